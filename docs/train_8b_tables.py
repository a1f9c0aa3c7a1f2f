"""Fill the table of docs/train-8b.md: what `setblock train --dry-run` says of Llama's sizes.

    python docs/train_8b_tables.py

Takes minutes. Needs no weights: the models are configs of Llama 3's shapes.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import yaml
from transformers import LlamaConfig

from setblock.roofline.hardware import HARDWARE
from setblock.training.dry_run import Estimate, dry_run
from setblock.training.recipe import load_recipe

PAGE = Path(__file__).with_name("train-8b.md")
BEGIN, END = "<!-- dry run -->\n", "<!-- end of dry run -->\n"
TOKENS = 1_000_000_000
SIZES: dict[str, dict[str, Any]] = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
}
MODES: dict[str, dict[str, Any] | None] = {
    "all weights": None,
    "LoRA, merged": {"r": 64},
    "adapter on the future block": {"r": 64, "only_noisy": True},
}


def main() -> None:
    """Estimate all, a line at a time, and write the table."""
    lines = [
        "| model | trained | GPUs | GiB a GPU | weights | gradients | optimizer | other | days |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="the lines to write (all)")
    sizes = parser.parse_args().sizes
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            for mode in MODES:
                for gpus in (8, 64):
                    found = estimate(Path(folder), size, mode, gpus)
                    figures = [found.total, *found.peak.values()]
                    cells = [size, mode, str(gpus), *(f"{figure / 2**30:.1f}" for figure in figures)]
                    lines.append(f"| {' | '.join(cells)} | {found.seconds / 86400:.2f} |")
                    print(lines[-1], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + after, encoding="utf-8")


def estimate(folder: Path, size: str, mode: str, gpus: int) -> Estimate:
    """Return the estimate of one line: rows of 8,192 tokens, one a GPU, a billion tokens in all."""
    shape = SIZES[size] | {"num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}
    model = folder / size
    LlamaConfig(**shape, tie_word_embeddings=size == "1B").save_pretrained(model)
    content = {
        "model": {"path": str(model)},
        "data": {"source": "word-problems", "documents": 1, "row_length": 8192},
        "training": {
            "output_dir": str(folder / "run"),
            "global_batch_size": 64,
            "per_device_train_batch_size": 1,
            "max_steps": TOKENS // (64 * 8192),
            "activation_checkpointing": True,
            "bf16": True,
            "use_cpu": True,
            "report_to": "none",
        },
    } | ({"adapter": MODES[mode]} if MODES[mode] else {})
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    recipe, args = load_recipe(path)
    return dry_run(recipe, args, gpus=gpus, peak=HARDWARE["h100"].peak(16), share=0.4)


if __name__ == "__main__":
    main()
