r"""Train the delta that the package ships for a named model, in the form in which it ships.

    python contrib/fit_delta.py recipes/smollm2-extraction-sbd.yaml --set model.path=runs/smollm2-extraction-sbd \
        --set data.seed=6 --base smollm2-base --to models/smollm2-records

`contrib/ship.py` rounds what a run learned, and accuracy is lost. This begins at the rounded delta of the recipe's
`model.path` and trains its factors as they are stored (`deltas/trained.py`). It writes the folder every 50 steps.
With `--from`, it begins at a stored delta. A run that was ended continues from its newest checkpoint in the recipe's
`output_dir`, to the same result.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerCallback

from deltas.shipping import FORM, FORMS, rows_of_facts, ship_changes
from deltas.trained import hold_changes
from setblock.data.packing import RowDataset
from setblock.heap import keep_freed_memory
from setblock.model.loading.named import DELTA_FILE, resolved
from setblock.training.recipe import load_recipe, parse_override
from setblock.training.run.checkpoints import claim, newest_checkpoint
from setblock.training.run.train import prepared_model, recipe_rows
from setblock.training.trainer.metrics import MetricsFile
from setblock.training.trainer.trainer import SBDTrainer

EVERY = 50
"""Optimiser steps between two times that the folder is written."""


TRAINED = "trained.safetensors"
"""In a checkpoint: the factors before they are rounded, their steps, and the vectors."""


class DeltaTrainer(SBDTrainer):
    """Train with checkpoints that hold what is trained, and not the model, whose matrices are made of it."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write what is trained."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: each.detach().contiguous() for name, each in _trained(self.model)}, folder / TRAINED)

    @torch.no_grad()
    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        stored = load_file(Path(resume_from_checkpoint) / TRAINED)
        for name, each in _trained(self.model):
            each.copy_(stored[name])


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def main() -> None:
    """Train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path, help="its model.path is a run that trained all weights")
    parser.add_argument("--base", required=True, help="the model that the first run started from")
    parser.add_argument("--to", type=Path, required=True, help="folder to write")
    parser.add_argument("--from", type=Path, dest="stored", metavar="FOLDER", help="a delta to continue from")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of the recipe")
    options = parser.parse_args()
    recipe, args = load_recipe(options.recipe, overrides=dict(map(parse_override, options.set)))
    keep_freed_memory(for_training=True)
    sbd = prepared_model(recipe, args)
    assert sbd.sbd_config is not None  # the recipe trains for blocks
    rows = recipe_rows(recipe, sbd)
    start = load_file(Path(resolved(options.base)) / "model.safetensors")
    facts = sbd.sbd_config.to_json()
    stored = None if options.stored is None else load_file(options.stored / DELTA_FILE)
    rows_kept = rows_of_facts(facts, start)
    changes = hold_changes(sbd.model, start, form=FORM, forms=FORMS, rows=rows_kept, stored=stored)

    def write() -> None:
        vectors = {name: each.detach() for name, each in sbd.model.named_parameters() if name in start}
        ship_changes(changes, vectors, facts, options.to, base=options.base)

    class Writes(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % EVERY == 0 or state.global_step == state.max_steps:
                write()

    output = Path(args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    claim(output, recipe, documents=rows["train"].fingerprint)
    checkpoint = newest_checkpoint(output)
    data = {name: RowDataset(each) for name, each in rows.items()}
    DeltaTrainer(
        sbd,
        args,
        train_dataset=data["train"],
        eval_dataset=data.get("evaluation"),
        callbacks=[MetricsFile(), Writes()],
    ).train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    print(f"{sum(file.stat().st_size for file in options.to.iterdir()):,} bytes in {options.to}")


if __name__ == "__main__":
    main()
