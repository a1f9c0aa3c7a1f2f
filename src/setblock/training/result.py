"""Save what a run leaves: a checkpoint that plain Transformers loads, wherever the weights were (spread, or in an
adapter).

Knows trained models and how their weights are gathered. Knows nothing of training loops.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from setblock.model.adapter import quiet_peft
from setblock.model.sbd_model import SBDModel
from setblock.training.adapters import AdapterSection
from setblock.training.trainer import SBDTrainer


def save_result(
    trainer: SBDTrainer,
    sbd: SBDModel,
    output: Path,
    *,
    adapter: AdapterSection | None,
    starting: Callable[[], SBDModel],
) -> None:
    """Save what was trained. Every process must call this; the main one writes.

    Args:
        sbd: what the trainer trained.
        starting: makes what it started from once more, prepared in the same way, its weights not quantised.
    """
    state = _gathered(trainer)
    if not trainer.is_world_process_zero():
        return
    if adapter is None:
        sbd.save(output, state=state)
        return
    # A base model that was quantised, sharded or given other layers is not unmade: it is loaded again.
    with tempfile.TemporaryDirectory(prefix=".adapter-", dir=output) as temporary:
        trainer.model.save_pretrained(temporary, state_dict=state, save_embedding_layers=False)
        (Path(temporary) / "README.md").unlink(missing_ok=True)  # a model card of PEFT's, with nothing filled in
        base = starting()
        if not adapter.only_noisy:
            merge(base, temporary)
        base.save(output, adapter=Path(temporary) if adapter.only_noisy or adapter.keep_adapter else None)


def merge(base: SBDModel, adapter: str | Path) -> None:
    """Add an adapter, a folder that PEFT wrote, to the weights of the model that it was trained on."""
    from peft import PeftModel

    with quiet_peft():
        base.model = PeftModel.from_pretrained(base.model, str(adapter)).merge_and_unload()


def _gathered(trainer: SBDTrainer) -> dict[str, Tensor] | None:
    """Return all weights on the CPU of the main process, where each process has a part of them; else None."""
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        return None
    state: dict[str, Tensor] = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return state
