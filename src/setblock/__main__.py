"""Run the `setblock` command as `python -m setblock`."""

from setblock.cli.main import main

if __name__ == "__main__":
    main()
