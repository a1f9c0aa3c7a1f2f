"""The saving of a run's result as a checkpoint that plain Transformers loads, wherever the weights were (sharded, or in
an adapter). Also checks that every trained tensor is in the result and in each intermediate checkpoint, which counts as
complete from then on."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from accelerate.utils.constants import FSDP_MODEL_NAME
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import rotate_checkpoints

from setblock.errors import SetBlockError
from setblock.files import write_whole
from setblock.model.adapter.adapter import quiet_peft
from setblock.model.checkpoint import Sums, refuse_loss, stored_sums, sums_of
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.run.checkpoints import RECORD, step_of, whole_checkpoints
from setblock.training.trainer.sharding import is_sharded


def save_result(
    trainer: Trainer,
    sbd: SBDModel,
    output: Path,
    *,
    adapter: AdapterSection | None,
    starting: Callable[[], SBDModel],
    dtype: torch.dtype | None = None,
) -> None:
    """Save the trained model. With an adapter: the merged model, or the base model with the adapter next to it. Every
    process must call this; the main one writes. Raise `SetBlockError`, the same in all processes, if a trained tensor
    is not in the files written, or the base model can't be loaded again.

    Args:
        dtype: the type that all weights are rounded to, and that the result runs in; None: as they were trained.
    """
    expected = sums_of(trained_tensors(trainer.model).items())
    state: dict[str, Tensor] | None = None
    if trainer.is_fsdp_enabled:  # each process has a part of it
        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
        state = cast(dict[str, Tensor], get_model_state_dict(trainer.model_wrapped, options=options))
    with raising_together():
        if trainer.is_world_process_zero() and adapter is not None:
            # Quantising, sharding and adding layers can't be undone, so the base model is loaded again.
            with tempfile.TemporaryDirectory(prefix=".adapter-", dir=output) as temporary:
                folder = Path(temporary)
                trainer.model.save_pretrained(temporary, state_dict=state, save_embedding_layers=False)
                refuse_loss(expected, stored_sums(folder), "the adapter's file")
                (folder / "README.md").unlink(missing_ok=True)  # a model card of PEFT's, with nothing filled in
                base = starting()
                if not adapter.only_noisy:
                    merge(base, folder)
                base.save(output, adapter=folder if adapter.only_noisy or adapter.keep_adapter else None)
        elif trainer.is_world_process_zero():
            state = trainer.model.state_dict() if state is None else state
            refuse_loss(expected, sums_of(state.items()), "the gathered model")
            if dtype is not None:
                state = {name: w.to(dtype) if w.is_floating_point() else w for name, w in state.items()}
            if sbd.end_of_text_ids:
                sbd.write_end_of_text_ids()  # the Trainer writes the tokenizer's there
            sbd.save(output, state=state)


def merge(base: SBDModel, adapter: Path) -> None:
    """Add an adapter, a folder that PEFT wrote, to the weights of the model that it was trained on, or raise
    `SetBlockError` if PEFT has not taken every tensor of it."""
    from peft import PeftModel

    with quiet_peft():
        wrapped = PeftModel.from_pretrained(base.model, str(adapter), is_trainable=True)
        refuse_loss(stored_sums(adapter), sums_of(trained_tensors(wrapped).items()), "the adapter as PEFT loads it")
        base.model = wrapped.merge_and_unload()


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are trained, named as in a checkpoint: PEFT leaves out the name of its adapter."""
    left_out = r"(?<![^.])(_checkpoint_wrapped_module|_orig_mod)\."
    if hasattr(model, "get_base_model"):
        left_out += rf"|\.{model.active_adapter}(?=\.|$)"
    return {re.sub(left_out, "", name): p for name, p in model.named_parameters() if p.requires_grad}


class Completeness(TrainerCallback):
    """A trainer callback that checks the checkpoint a run resumes from and each one that it writes, and only then
    deletes older ones."""

    def __init__(self, args: SBDConfig) -> None:
        """Take over the deletion of checkpoints from the Trainer."""
        self._limit, args.save_total_limit = args.save_total_limit, None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Check that the model holds what the record of its checkpoint says."""
        output = Path(args.output_dir)
        record = output / f"checkpoint-{state.global_step}" / RECORD
        if record.is_file():
            recorded = {name: (tuple(shape), total) for name, (shape, total) in json.loads(record.read_text()).items()}
            loaded = sums_of(trained_tensors(kwargs["model"]).items())
            refuse_loss(recorded, loaded, f"what was loaded of {record.parent}")
        for later in whole_checkpoints(output) if args.should_save else ():
            if step_of(later) > state.global_step:
                (later / RECORD).unlink()  # will be written again

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Check the checkpoint, and record in it what was trained: it counts as complete from then on. All processes
        raise the same `SetBlockError` if a trained tensor is not in it."""
        checkpoint = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        tensors = trained_tensors(kwargs["model"])
        expected = sums_of(tensors.items())
        with raising_together():
            if is_sharded(args):
                refuse_loss(expected, _sharded_sums(checkpoint, tensors), checkpoint)
            elif args.should_save:
                refuse_loss(expected, stored_sums(checkpoint), checkpoint)
        if args.should_save:
            write_whole(checkpoint / RECORD, json.dumps(expected, indent=0) + "\n")
            best = state.best_model_checkpoint
            rotate_checkpoints(args.output_dir, self._limit, best_model_checkpoint=best, use_mtime=True)


@contextmanager
def raising_together() -> Iterator[None]:
    """Raise the first `SetBlockError` that any process meets. Every process must enter this context, which waits for
    all."""
    problem = ""
    try:
        yield
    except SetBlockError as error:
        problem = str(error)
    problems = [each for each in gather_object([problem]) if each]
    if problems:
        raise SetBlockError(problems[0])


def _sharded_sums(checkpoint: Path, tensors: dict[str, Tensor]) -> Sums:
    """Return the sums of the tensors of these names and shapes in the files that FSDP2 wrote. Each process reads its
    share."""
    reader = FileSystemReader(checkpoint / f"{FSDP_MODEL_NAME}_0")
    stored = reader.read_metadata().state_dict_metadata
    sizes = {name: getattr(stored.get(f"model.{name}"), "size", None) for name in tensors}
    copies = {name: torch.empty_like(tensor) for name, tensor in tensors.items() if sizes[name] == tensor.shape}
    if copies:
        load({"model": copies}, storage_reader=reader)
    return sums_of(copies.items())
