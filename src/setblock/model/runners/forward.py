"""Run one forward pass of a Hugging Face causal LM, with logits only where they are wanted; compiled, where shapes are few.

Knows how to call and to compile a model. Knows nothing of what the tokens mean, nor of what makes shapes few.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache

from setblock.masks import AttentionMask
from setblock.model.protocol.runtime import Function

_FEW, _FULL = 6, 16
"""Outputs between these are filled up to the second: on CPUs a float32 product of 7 to 15 rows takes MKL up to twice the time
of one of 16. Elsewhere (bfloat16, prepacked weights, GPUs) a few rows more cost nothing."""


Take = Callable[[Tensor], Tensor]
"""Receives hidden states [M, D] on their way into the head, and returns those that the head is to map."""


class SelectOutputs:
    """Hook the LM head, which then sees only the hidden states at `index` [M] of the flattened [B * T] sequence: the
    logits come out as [1, M, V]. Without an index it changes nothing. With `take`, the head sees what that returns of them.

    A hook, and not a matrix product of our own, because whatever the model does after its head (soft-capping, scaling) must
    still happen.
    """

    def __init__(self) -> None:
        self.index: Tensor | None = None
        self.take: Take | None = None

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Replace the head's inputs, the hidden states [B, T, D] first. Returns them with [1, M, D] in their place."""
        if self.index is None:
            return args
        hidden = args[0]
        chosen = hidden.reshape(-1, hidden.shape[-1])[self.index]  # [M, D]
        return ((chosen if self.take is None else self.take(chosen))[None], *args[1:])


_HOOK = "_setblock_select_outputs"


def keep_hook(model: PreTrainedModel) -> None:
    """Put on the LM head the hook that `head_reads_only` uses, for good. Without it each pass puts one on and off, which
    takes longer, and is a new compilation each time."""
    head = model.get_output_embeddings()
    if not hasattr(head, _HOOK):
        hook = SelectOutputs()
        head.register_forward_pre_hook(hook)
        setattr(head, _HOOK, hook)


@contextmanager
def head_reads_only(model: PreTrainedModel, index: Tensor, *, take: Take | None = None) -> Iterator[None]:
    """Show the LM head only the hidden states at `index` [M] of the flattened [B * T] sequence, for a while.

    The hook runs after those of what wraps the head: its weights are there when `take` is called.
    """
    head = model.get_output_embeddings()
    kept: SelectOutputs | None = getattr(head, _HOOK, None)
    hook = SelectOutputs() if kept is None else kept
    handle = head.register_forward_pre_hook(hook) if kept is None else None
    hook.index, hook.take = index, take
    try:
        yield
    finally:
        hook.index = hook.take = None
        if handle is not None:
            handle.remove()


@contextmanager
def attention_by(name: str, config: PretrainedConfig) -> Iterator[None]:
    """Make a model's layers call the attention function that is registered by that name.

    Args:
        config: of the text model.
    """
    usual = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = usual


def logits_at(
    model: PreTrainedModel,
    index: Tensor,
    *,
    input_ids: Tensor,
    position_ids: Tensor,
    attention_mask: AttentionMask | None,
    cache: Cache | None = None,
    wrapped: Callable[..., Any] | None = None,
    least: int = 1,
    take: Take | None = None,
    **more: Any,
) -> Tensor:
    """Run the model once and return the logits [M, V] at `index` [M] of the flattened [B * T] inputs.

    Args:
        model: the model itself.
        input_ids, position_ids: [B, T].
        attention_mask: from `setblock.model.attention.attention.attention_mask`. None for none: the attention must be one of
            ours, since Transformers makes one for its own.
        cache: where the keys and values go, and come from; None for a pass without a cache.
        wrapped: what to call in the model's stead, where a trainer has wrapped it, or it was compiled.
        least: outputs that the head must be given, for bits that do not depend on how many are wanted.
        take: receives the hidden states at `index`; the logits are of those that it returns.
        more: for the attention function, to which Transformers hands what it does not know.
    """
    wanted = len(index)
    filled = index if take is not None else filled_up(index, least=least)
    with head_reads_only(model, filled, take=take):
        output = (model if wrapped is None else wrapped)(
            input_ids=input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=cache is not None,
            **more,
        )
    logits: Tensor = output.logits[0]
    return logits[:wanted]


def filled_up(index: Tensor, *, least: int) -> Tensor:
    """Return `index` [M], its last repeated where a head is faster, or gives other bits, for so few outputs."""
    wanted = len(index)
    filled = _FULL if _FEW < wanted < _FULL else max(wanted, least) if wanted else 0
    return index if filled == wanted else torch.cat([index, index[-1:].expand(filled - wanted)])


_MOST_SHAPES = 64
"""Shapes that are compiled, each once; a model that meets more continues uncompiled, and PyTorch says so."""


def _limits() -> dict[str, Any]:
    """Return options of `torch.compile` that newer versions of PyTorch have; older ones stop at 8 shapes."""
    wanted = {"recompile_limit": _MOST_SHAPES, "isolate_recompiles": True}
    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in wanted.items() if name in known}


class CompiledModel:
    """Run a model and what is between its passes compiled: a new shape compiles for seconds to a minute, and a known one
    never does.

    Attributes:
        model: what to call in the model's stead.
    """

    def __init__(self, model: PreTrainedModel, *, backend: str) -> None:
        self._backend, self._functions = backend, dict[Function, Function]()
        self.model: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False, **_limits())

    def function(self, function: Function, /) -> Function:
        """Return what runs between passes, compiled as one graph in the same way; see
        `setblock.model.protocol.runtime.Compile`."""
        if function not in self._functions:
            compiled = torch.compile(function, backend=self._backend, fullgraph=True, dynamic=False, **_limits())
            self._functions[function] = compiled
        return self._functions[function]
