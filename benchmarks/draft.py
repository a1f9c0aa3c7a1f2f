"""Make a draft model for assisted generation: a model's first layers, trained for minutes to predict the next token.

    python benchmarks/draft.py
    python benchmarks/draft.py --model runs/smollm2-extraction-sbd --layers 6 --set data.source=tasks/extraction

A fair draft is of the target's own family and knows its task. This one begins as the target's first layers, with its
embeddings and tokenizer, and is trained by `benchmarks/draft.yaml` on the generator that the target was trained on. An
interrupted run resumes where it stopped.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import setblock
from setblock.model.loading.named import BUNDLED_MODEL

HERE = Path(__file__).parent


def main() -> None:
    """Cut the model, then train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=BUNDLED_MODEL, help="the target: a folder or a name (the bundled model)")
    parser.add_argument("--layers", type=int, default=2, help="that are kept (2)")
    parser.add_argument("--out", type=Path, default=Path("runs/draft"), help="(runs/draft)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of setblock train")
    options = parser.parse_args()
    start = options.out.with_name(f"{options.out.name}-start")
    if not (start / "config.json").exists():
        cut(options.model, options.layers, start)
    recipe = [str(HERE / "draft.yaml"), "--set", f"model.path={start}", "--output", str(options.out)]
    overrides = [part for each in options.set for part in ("--set", each)]
    subprocess.run([sys.executable, "-m", "setblock", "train", *recipe, *overrides], check=True)


def cut(model: str | Path, layers: int, folder: Path) -> None:
    """Save a model's first layers."""
    sbd = setblock.load(model)
    config = sbd.model.config
    if not 1 <= layers < config.num_hidden_layers:
        raise SystemExit(f"--layers must be between 1 and {config.num_hidden_layers - 1}, not {layers}")
    sbd.model.model.layers = sbd.model.model.layers[:layers]
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    sbd.save(folder)


if __name__ == "__main__":
    main()
