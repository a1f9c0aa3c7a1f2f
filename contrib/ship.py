"""Make of a trained run what the package ships for a named model.

    python contrib/ship.py runs/smollm2-extraction-sbd --base smollm2-base --to models/smollm2-records

Writes the delta of all weights from the base model. Prints the bytes.
"""

import argparse
from pathlib import Path

from deltas.shipping import ship_delta


def main() -> None:
    """Pack, write, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("--base", required=True, help="the model that it started from")
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    options = parser.parse_args()
    ship_delta(options.run, options.to, base=options.base)
    print(f"{sum(file.stat().st_size for file in options.to.iterdir()):,} bytes in {options.to}")


if __name__ == "__main__":
    main()
