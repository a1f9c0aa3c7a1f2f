"""`python -m setblock`: the same as the `setblock` command."""

from setblock.cli.main import main

if __name__ == "__main__":
    main()
