"""Check each checkpoint against what is trained, and record in it what that was: from then on it counts as whole.

Knows the tensors that are trained, under the names that checkpoints have, and how FSDP2's checkpoints are read. Knows nothing
of training loops.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import rotate_checkpoints

from setblock.errors import SetBlockError
from setblock.files import write_whole
from setblock.model.checkpoint import Sums, refuse_loss, stored_sums, sums_of
from setblock.training.config import SBDConfig
from setblock.training.run.checkpoints import RECORD, step_of, whole_checkpoints
from setblock.training.trainer.sharding import is_sharded

_WRAPPERS = re.compile(r"(?<![^.])(_checkpoint_wrapped_module|_orig_mod)\.")


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are trained, named as in a checkpoint: PEFT leaves out the name of its adapter."""
    adapter = getattr(model, "active_adapter", None) if hasattr(model, "get_base_model") else None
    names = {name: _WRAPPERS.sub("", name) for name, p in model.named_parameters() if p.requires_grad}
    if adapter is not None:
        names = {name: re.sub(rf"\.{adapter}(?=\.|$)", "", stored) for name, stored in names.items()}
    parameters = dict(model.named_parameters())
    return {stored: parameters[name] for name, stored in names.items()}


class Completeness(TrainerCallback):
    """Check what a run resumes from and each checkpoint that it writes, and delete older ones only then."""

    def __init__(self, args: SBDConfig) -> None:
        """Take over from the Trainer which checkpoints are deleted."""
        self._limit, args.save_total_limit = args.save_total_limit, None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Check that the model holds what the record of its checkpoint says."""
        output = Path(args.output_dir)
        record = output / f"checkpoint-{state.global_step}" / RECORD
        if record.is_file():
            recorded = {name: (tuple(shape), total) for name, (shape, total) in json.loads(record.read_text()).items()}
            refuse_loss(
                recorded, sums_of(trained_tensors(kwargs["model"]).items()), f"what was loaded of {record.parent}"
            )
        for later in whole_checkpoints(output) if args.should_save else ():
            if step_of(later) > state.global_step:
                (later / RECORD).unlink()  # will be written again

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the checkpoint, and record in it what was trained: it counts as whole from then on.

        Raises:
            SetBlockError: a trained tensor is not in it. All processes raise the same.
        """
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        tensors = trained_tensors(kwargs["model"])
        expected = sums_of(tensors.items())
        try:
            if is_sharded(args):
                refuse_loss(expected, _sharded_sums(checkpoint, tensors), checkpoint)
            elif args.should_save:
                refuse_loss(expected, stored_sums(checkpoint), checkpoint)
            problem = ""
        except SetBlockError as error:
            problem = str(error)
        raise_together(problem)
        if args.should_save:
            write_whole(checkpoint / RECORD, json.dumps(expected, indent=0) + "\n")
            best = state.best_model_checkpoint
            rotate_checkpoints(args.output_dir, self._limit, best_model_checkpoint=best, use_mtime=True)


def raise_together(problem: str) -> None:
    """Raise the first problem that any process has. Every process must call this; it waits for all."""
    problems = [each for each in gather_object([problem]) if each]
    if problems:
        raise SetBlockError(problems[0])


def _sharded_sums(checkpoint: Path, tensors: dict[str, Tensor]) -> Sums:
    """Return what FSDP2 has written of tensors with these names and shapes. Each process reads its share."""
    reader = FileSystemReader(checkpoint / f"{FSDP_MODEL_NAME}_0")
    stored = reader.read_metadata().state_dict_metadata
    sizes = {name: getattr(stored.get(f"model.{name}"), "size", None) for name in tensors}
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items() if sizes[name] == tensor.shape}
    if copies:
        load({"model": copies}, storage_reader=reader)
    return sums_of(copies.items())
