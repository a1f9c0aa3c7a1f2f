"""Train weights that FSDP2 shards over the processes: what is refused, how gradients are summed, which weights are one.

Knows Accelerate's plugin and PEFT's wrappers. Knows nothing of losses or files.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import FullyShardedDataParallelPlugin, broadcast_object_list
from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import TrainingArguments
from transformers.integrations import is_fsdp_enabled

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import switch_off


def is_sharded(args: TrainingArguments) -> bool:
    """Return whether each process is to hold a share of the weights."""
    return args.fsdp_plugin_args is not None or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def share_buffers(model: nn.Module) -> None:
    """Give each process the main one's buffers, which Accelerate does not send. Every process must call this. Raise
    `SetBlockError` if Accelerate can't send the model's weights."""
    if not is_fsdp_enabled():
        return
    base: Callable[[], nn.Module] | None = getattr(model, "get_base_model", None)
    if base is not None and getattr(base(), "all_tied_weights_keys", None):
        raise SetBlockError(
            "fsdp_cpu_ram_efficient_loading must be false for an adapter on a model that ties its head to its embeddings"
        )
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for name in buffers.keys() & model.state_dict().keys():
        raise SetBlockError(f"fsdp_cpu_ram_efficient_loading must be false: the model's {name} can't be sent")
    sent = [{name: buffer.cpu() for name, buffer in buffers.items()} if PartialState().is_main_process else {}]
    broadcast_object_list(sent)
    for name, buffer in sent[0].items():
        module, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module), attribute, buffer)


def set_up(plugin: FullyShardedDataParallelPlugin) -> None:
    """Have FSDP2 sum gradients in float32, also those of layers that compute in half precision, or raise `SetBlockError` if
    a setting would lose weights, or was never tried."""
    if plugin.fsdp_version != 2:
        raise SetBlockError(f"fsdp_version must be 2, not {plugin.fsdp_version}")
    if plugin.activation_checkpointing:
        raise SetBlockError(
            "fsdp_activation_checkpointing must be false: it hides an adapter's layers from PEFT, which then saves few of "
            "them; set training.activation_checkpointing to true instead"
        )
    if "SHARDED" not in str(plugin.state_dict_type):
        raise SetBlockError(
            "fsdp_state_dict_type must be SHARDED_STATE_DICT: each process writes its share of a checkpoint"
        )
    if (policy := plugin.mixed_precision_policy) is not None:
        plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32, output_dtype=None)


def reshard(model: nn.Module) -> None:
    """Have FSDP2 hold each process's share of the weights again, after a pass without a backward pass. The root's gathered
    ones, rounded to the type of the pass, would else be taken for what was trained."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def with_tied_weights_visible(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Have `Accelerator.prepare` see the one weight that an embedding and a head share, where PEFT trains rows of it. PEFT's
    wrappers give a new tensor each time, so Accelerate would shard the two separately, which PyTorch refuses. Switched off,
    they give the weight itself."""

    def prepared(*objects: Any, **kwargs: Any) -> Any:
        modules = [module for each in objects if isinstance(each, nn.Module) for module in each.modules()]
        # Without PEFT there is none of its wrappers either.
        wrappers = [m for m in modules if type(m).__name__ == "TrainableTokensWrapper" and not m.disable_adapters]
        for wrapper in wrappers:
            switch_off(wrapper)
        try:
            return prepare(*objects, **kwargs)
        finally:
            for wrapper in wrappers:
                wrapper.enable_adapters(True)  # type: ignore[operator]

    return prepared
