"""Writes the table of families in `docs/versions.md` anew, from the results of `make test-families`."""

from family_sweep.table import main

if __name__ == "__main__":
    main()
