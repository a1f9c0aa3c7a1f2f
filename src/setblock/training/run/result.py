"""Save what a run leaves: a checkpoint that plain Transformers loads, wherever the weights were (spread, or in an
adapter).

Knows trained models and how their weights are gathered. Knows nothing of training loops.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import quiet_peft
from setblock.model.checkpoint import Sums, refuse_loss, stored_sums, sums_of
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter.adapter import AdapterSection
from setblock.training.run.completeness import raise_together, trained_tensors
from setblock.training.trainer.trainer import SBDTrainer


def save_result(
    trainer: SBDTrainer,
    sbd: SBDModel,
    output: Path,
    *,
    adapter: AdapterSection | None,
    starting: Callable[[], SBDModel],
    dtype: torch.dtype | None = None,
) -> None:
    """Save what was trained. Every process must call this; the main one writes.

    Args:
        sbd: what the trainer trained.
        dtype: the type that all weights, where they were trained, are rounded to, and that the result runs in; None: as they
            were trained.
        starting: makes what it started from once more, prepared in the same way, its weights not quantised.

    Raises:
        SetBlockError: a trained tensor is not in what was written, or the base model can't be loaded again. All processes raise
            the same.
    """
    expected = sums_of(trained_tensors(trainer.model).items(), dtype=dtype if adapter is None else None)
    state = _gathered(trainer)
    problem = ""
    if trainer.is_world_process_zero():
        try:
            if adapter is None:
                state = trainer.model.state_dict() if state is None else state
                if dtype is not None:
                    state = {name: w.to(dtype) if w.is_floating_point() else w for name, w in state.items()}
                refuse_loss(expected, sums_of(state.items()), "the gathered model")
                sbd.save(output, state=state)
            else:
                _save_adapter(trainer, output, state, expected, adapter=adapter, starting=starting)
        except SetBlockError as error:
            problem = str(error)
    raise_together(problem)


def _save_adapter(
    trainer: SBDTrainer,
    output: Path,
    state: dict[str, Tensor] | None,
    expected: Sums,
    *,
    adapter: AdapterSection,
    starting: Callable[[], SBDModel],
) -> None:
    """Save an adapter's model: merged, or its base with the adapter next to it."""
    # A base model that was quantised, sharded or given other layers is not unmade: it is loaded again.
    with tempfile.TemporaryDirectory(prefix=".adapter-", dir=output) as temporary:
        trainer.model.save_pretrained(temporary, state_dict=state, save_embedding_layers=False)
        refuse_loss(expected, stored_sums(Path(temporary)), "the adapter's file")
        (Path(temporary) / "README.md").unlink(missing_ok=True)  # a model card of PEFT's, with nothing filled in
        base = starting()
        if not adapter.only_noisy:
            merge(base, temporary)
        base.save(output, adapter=Path(temporary) if adapter.only_noisy or adapter.keep_adapter else None)


def merge(base: SBDModel, adapter: str | Path) -> None:
    """Add an adapter, a folder that PEFT wrote, to the weights of the model that it was trained on.

    Raises:
        SetBlockError: PEFT has not taken every tensor of it.
    """
    from peft import PeftModel

    with quiet_peft():
        wrapped = PeftModel.from_pretrained(base.model, str(adapter), is_trainable=True)
        refuse_loss(
            stored_sums(Path(adapter)), sums_of(trained_tensors(wrapped).items()), "the adapter as PEFT loads it"
        )
        base.model = wrapped.merge_and_unload()


def _gathered(trainer: SBDTrainer) -> dict[str, Tensor] | None:
    """Return what is trained on the CPU of the main process, where each process has a part of it; else None."""
    if not trainer.is_fsdp_enabled:
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    return cast(dict[str, Tensor], get_model_state_dict(trainer.model_wrapped, options=options))
