"""Distil a teacher: masked tokens learn its next-token distribution, and not only the token of the text.

Knows logits and divergences, and what a teacher is. Knows nothing of which models teach.

A masked token at position t stands where a next-token model that has read all before t says what comes there. That model sees
more than the block does, and says more than which token it was. The teacher is the clean half of the same pass, which costs
only its logits, or the model that training began with (`setblock.training.frozen`), which costs a pass over the clean
half. Where the two see very different things it may also hurt, as BARD (2026) found when it distilled next-token models into
block diffusion.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.training.cross_entropy import Head, in_float32
from setblock.training.inputs import TrainingInputs

LogitsOf = Callable[[slice], Tensor]
"""A teacher's logits [m, V] for a slice of the masked tokens that it teaches."""

Teacher = Callable[[TrainingInputs, Tensor], LogitsOf]
"""Reads the clean half of inputs, and says what comes after its outputs [M] of the flattened [B * T]."""


@dataclass(frozen=True)
class Distillation:
    """Define the third term of the loss.

    Attributes:
        weight: what its sum is multiplied by.
        teacher: who teaches; None: the clean half of the pass itself.
    """

    weight: float
    teacher: Teacher | None = None


def divergences(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(teacher ‖ model) of each row, in nats: [m] from logits [m, V] of both. No gradient goes into the
    teacher."""
    ours, theirs = (in_float32(each).log_softmax(dim=-1) for each in (logits, teacher_logits.detach()))
    return (theirs.exp() * (theirs - ours)).sum(dim=-1)


def logits_of_hidden(hidden: Tensor, head: Head) -> LogitsOf:
    """Return a teacher's logits from its hidden states [M, D], computed when they are asked for."""

    def logits_of(here: slice) -> Tensor:
        with torch.no_grad():
            return head(hidden[here])

    return logits_of
