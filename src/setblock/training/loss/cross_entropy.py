"""Compute the cross entropy of an LM head's logits without holding all logits: in chunks, with their gradients.

Knows hidden states, a head and target ids. Knows nothing of models, or of which output predicts what.

The logits of M targets over a vocabulary of V are the largest tensor of a training step: in float32, with their softmax and
their gradient, M * V * 12 bytes, 70 GiB for 48k targets and V = 128k. Here only a chunk of them exists at a time, and the
forward pass already computes its gradients. So the backward pass needs no weights: a sharded model may have freed them by then.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 1 << 26
"""Logits that a chunk may have: 256 MiB in float32."""

Head = Callable[[Tensor], Tensor]

LossesOf = Callable[[Tensor, slice], Tensor]
"""A function from the logits [m, V] of a slice of all outputs, and that slice, to their losses [m]."""

Weighted = Callable[[Tensor, LossesOf], tuple[Tensor, Tensor]]
"""A function from the weights [M] of all outputs, and a function to their losses, to the weighted sum and the losses [M]."""


def in_float32(logits: Tensor) -> Tensor:
    """Return the logits in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cross_entropies(targets: Tensor) -> LossesOf:
    """Return a function from logits to the cross entropy of each target [M] int64, in nats."""

    def losses_of(logits: Tensor, here: slice) -> Tensor:
        return F.cross_entropy(in_float32(logits), targets[here], reduction="none")

    return losses_of


def losses_at_once(logits: Tensor) -> Weighted:
    """Return the weighted sum of losses from all logits [M, V] at once."""

    def weighted(weights: Tensor, losses_of: LossesOf) -> tuple[Tensor, Tensor]:
        losses = losses_of(logits, slice(0, len(logits)))
        return (losses * weights).sum(), losses

    return weighted


def chunked_loss(
    hidden: Tensor, weights: Tensor, losses_of: LossesOf, *, head: Head, parameters: Sequence[Tensor], chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the losses of a head's logits, and each loss.

    Losses are weighted here, and not by the caller, because the gradients are computed here.

    Args:
        hidden: [M, D].
        weights: [M] float32.
        losses_of: see `LossesOf`.
        head: from hidden states [m, D] to logits [m, V].
        parameters: the head's trained weights.
        chunk: the number of hidden states whose logits exist at once, at least 1.

    Returns:
        The sum, a scalar, and the losses [M], through which no gradient goes; both in float32 at least.
    """
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or any(p.requires_grad for p in parameters))
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedLoss.apply
    return apply(hidden, weights, losses_of, head, chunk, wanted, *parameters)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weights: Tensor,
        losses_of: LossesOf,
        head: Head,
        chunk: int,
        wanted: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        losses = torch.zeros(len(hidden), dtype=kind, device=hidden.device)
        hidden_gradient = torch.zeros_like(hidden) if wanted else None
        # Many chunks add up in each of these: more digits than half precision has.
        gradients = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
        for start in range(0, len(hidden), chunk):
            here = slice(start, start + chunk)
            with torch.set_grad_enabled(wanted):
                part = hidden[here].detach().requires_grad_(wanted)
                each = losses_of(head(part), here)  # [m]
                total = (each * weights[here]).sum()
            losses[here] = each.detach()
            if hidden_gradient is not None:
                of_part, *of_parameters = torch.autograd.grad(total, [part, *parameters], allow_unused=True)
                hidden_gradient[here] = of_part
                for gradient, new in zip(gradients, of_parameters, strict=True):
                    if new is not None:
                        gradient += new
        if hidden_gradient is not None:
            kept = [gradient.to(p.dtype) for gradient, p in zip(gradients, parameters, strict=True)]
            ctx.save_for_backward(hidden_gradient, *kept)
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        hidden_gradient, *gradients = (saved * upstream[0] for saved in ctx.saved_tensors)
        return hidden_gradient, None, None, None, None, None, *gradients
