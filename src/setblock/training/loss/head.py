"""Find a model's head: hidden states -> logits, with whatever the model does to its logits afterwards.

Knows the scalings that Transformers' models have. Trusts none of them: which one a model has is found by trying it out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from setblock.model.runners.forward import logits_at

_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier")  # Cohere; Granite, HyperCLOVA X; Falcon-H1
_TOLERANCE = 0.02  # relative; rounding stays below it in any dtype, a scaling that is left out well above


@dataclass(frozen=True, eq=False)
class SplitHead:
    """Hold the head of a model as a function of hidden states, to be called inside of the model's forward pass."""

    module: nn.Module  # the model's own head
    scaling: Callable[[Tensor], Tensor]  # what the model does to the logits afterwards

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [m, D] to [m, V]."""
        # `forward`, since we are in a hook of the module: what wraps it (sharding, casting) has been done already.
        logits: Tensor = self.scaling(self.module.forward(hidden[None])[0])
        return logits


def split_head(model: PreTrainedModel) -> SplitHead | None:
    """Return the head of a model, or None where nothing this package knows of gives the model's own logits. The main process
    runs the model once, over a few tokens, and sends the others what it finds: they may not have the weights. Every process
    must call this. A model whose weights are in no process can't be tried."""
    module = model.get_output_embeddings()
    if module is None:
        return None
    heads = [SplitHead(module, scaling) for scaling in _scalings(model.config.get_text_config())]
    is_main = not PartialState._shared_state or PartialState().is_main_process
    found = [_first_right(model, heads) if is_main else None]
    if PartialState._shared_state:
        broadcast_object_list(found)
    (number,) = found
    return None if number is None else heads[number]


def _first_right(model: PreTrainedModel, heads: Sequence[SplitHead]) -> int | None:
    """Return the number of the first head that gives the model's own logits."""
    if any(p.is_meta for p in model.parameters()):
        return None
    seen: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden

    every, training = torch.arange(6, device=model.device), model.training
    tokens = (every * 7 + 11)[None] % len(model.get_input_embeddings().weight)
    where: dict[str, Any] = {"input_ids": tokens, "position_ids": every[None], "attention_mask": None}
    try:
        with torch.no_grad():
            logits = logits_at(model.eval(), every, **where, take=keep).float()
    finally:
        model.train(training)
    (hidden,) = seen  # [T, D]
    for number, head in enumerate(heads):
        with torch.no_grad():
            ours = head(hidden).float()
        if ours.shape == logits.shape and (ours - logits).norm() <= _TOLERANCE * logits.norm():
            return number
    return None


def _scalings(config: PretrainedConfig) -> Iterator[Callable[[Tensor], Tensor]]:
    yield lambda logits: logits
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        yield lambda logits: torch.tanh(logits / cap) * cap
    for name in _FACTORS:
        factor = getattr(config, name, None)
        if isinstance(factor, int | float) and factor:
            yield partial(torch.mul, other=factor)
            yield partial(torch.mul, other=1 / factor)
