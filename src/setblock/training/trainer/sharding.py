"""Training of weights that FSDP2 shards over the processes: what is refused, how gradients are summed, which weights
are tied."""

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
    """Return whether each process gets a share of the weights."""
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
    """Make FSDP2 sum gradients in float32, also those of layers that compute in half precision. Raise `SetBlockError`
    if a setting would lose weights, or is untested."""
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
    """Make FSDP2 reshard the weights after a pass without a backward pass. Otherwise the root's gathered weights,
    rounded to the type of the pass, would be taken for the trained ones."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def with_tied_weights_visible(prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Make `Accelerator.prepare` see the one weight that an embedding and a head share, where PEFT trains rows of it.
    PEFT's wrappers return a new tensor each time, so Accelerate would shard the two separately, which PyTorch refuses.
    While this context is active, the wrappers return the weight itself."""

    def prepared(*objects: Any, **kwargs: Any) -> Any:
        modules = [module for each in objects if isinstance(each, nn.Module) for module in each.modules()]
        # Without PEFT there are no wrappers of it.
        wrappers = [m for m in modules if type(m).__name__ == "TrainableTokensWrapper" and not m.disable_adapters]
        for wrapper in wrappers:
            switch_off(wrapper)
        try:
            return prepare(*objects, **kwargs)
        finally:
            for wrapper in wrappers:
                wrapper.enable_adapters(True)  # type: ignore[operator]

    return prepared
