"""Small runs of each way to train: their models, their recipes, and what they leave."""

import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

from setblock.errors import SetBlockError
from setblock.training.recipe import checked_recipe
from setblock.training.run.held_out import held_out_scores
from setblock.training.run.train import train
from setblock.training.trainer.metrics import read_metrics
from training.fsdp_on_cpu import environment
from training.processes import forget_processes

STEPS, STOP, BATCH = 3, 2, 4

ADAPTERS: dict[str, dict[str, Any] | None] = {
    "all weights": None,
    "merged": {"r": 4, "alpha": 64},
    "future block": {"r": 4, "alpha": 64, "only_noisy": True},
}

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optim": "sgd", "learning_rate": 0.05},
    "adamw": {"learning_rate": 0.01, "adam_epsilon": 0.01},  # a small epsilon makes much of rounding
    "muon": {"matrix_optimizer": "muon", "learning_rate": 0.002, "adam_epsilon": 0.01},
}


@dataclass(frozen=True)
class Case:
    """One way to train. `options` are of `accelerate launch`."""

    trained: str = "all weights"
    tied: bool = False
    loss: str = "plain"
    precision: str = "float32"
    checkpointing: bool = False
    optimizer: str = "sgd"
    options: Sequence[str] = field(default=())

    def __str__(self) -> str:
        words = [self.trained, "tied" if self.tied else "untied", self.loss, self.precision, self.optimizer]
        return ", ".join([*words, *(["checkpointing"] if self.checkpointing else [])])

    def recipe(self, models: Path, output: Path) -> dict[str, Any]:
        training = {
            "output_dir": str(output),
            "max_steps": STEPS,
            "block_sizes": [2, 4, 8],
            "per_device_train_batch_size": 1,
            "global_batch_size": BATCH,
            "cross_entropy": self.loss,
            "activation_checkpointing": self.checkpointing,
            "bf16": self.precision == "bfloat16",
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "logging_steps": 1,
            "save_steps": STOP,
            "report_to": "none",
        }
        name = f"{'tied' if self.tied else 'untied'}-{self.precision}"
        adapter = ADAPTERS[self.trained]
        return {
            "model": {"path": str(models / name)},
            "data": {
                "source": "word-problems",
                "documents": STEPS * BATCH,
                "evaluation": {"split": "validation", "documents": 3},
            },
            "training": training | OPTIMIZERS[self.optimizer],
        } | ({} if adapter is None else {"adapter": adapter})

    @property
    def is_read_once(self) -> bool:
        """Whether one process reads the weights and sends the others theirs."""
        return not self.tied or self.trained == "all weights"

    @property
    def environment(self) -> dict[str, str]:
        """What `accelerate launch` gives the processes of this case."""
        precision = "bf16" if self.precision == "bfloat16" else "no"
        count = os.environ.get("WORLD_SIZE", "1")
        loading = () if self.is_read_once else ("--fsdp_cpu_ram_efficient_loading", "false")
        return environment("--num_processes", count, "--mixed_precision", precision, *loading, *self.options)


class StoppedError(Exception):
    """A run is interrupted here."""


class Stop(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == STOP:
            raise StoppedError


def run(case: Case, models: Path, output: Path, *, stop: bool = False, is_one: bool = False, **training: Any) -> str:
    """Train, and return what became of it."""
    before = dict(os.environ)
    content = case.recipe(models, output)
    content["training"] |= training
    try:
        os.environ.update({} if is_one else case.environment)
        forget_processes()
        recipe, arguments = checked_recipe(output.with_suffix(".yaml"), content, overrides={})
        train(recipe, arguments, callbacks=lambda *_: [Stop()] if stop else [])
        return "trained"
    except StoppedError:
        return "stopped"
    except SetBlockError as error:
        return f"refused: {error}"
    except Exception as error:
        return "".join(traceback.format_exception(error))
    finally:
        os.environ.clear()
        os.environ.update(before)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a result, those of its adapter too."""
    files = [folder / "model.safetensors", *folder.glob("sbd_adapter/*.safetensors")]
    return {f"{path.parent.name == 'sbd_adapter'} {name}": w for path in files for name, w in load_file(path).items()}


def held_out(folder: Path) -> list[tuple[float, float]]:
    """Loss and share of right tokens on held-out documents, before and after."""
    found = held_out_scores(read_metrics(folder))
    assert found is not None
    assert found.before is not None
    return [(each.loss, each.accuracy) for each in (found.before, found.after)]


def losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in read_metrics(folder) if "loss" in entry]
