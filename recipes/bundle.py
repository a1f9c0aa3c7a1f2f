"""Turn a trained checkpoint into the bundled reference model: weights rounded to bfloat16, to be run in float32.

    python recipes/bundle.py runs/word-problems-sbd-more

Half the size, and what is evaluated afterwards is what users get.
"""

import sys

import torch

import setblock
from setblock.model.loading.named import BUNDLED_MODEL


def main() -> None:
    """Bundle the checkpoint named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python recipes/bundle.py CHECKPOINT")
    setblock.load(sys.argv[1], dtype=torch.float32, device="cpu").save(BUNDLED_MODEL, dtype=torch.bfloat16)
    size = sum(path.stat().st_size for path in BUNDLED_MODEL.rglob("*") if path.is_file())
    print(f"saved {BUNDLED_MODEL}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
