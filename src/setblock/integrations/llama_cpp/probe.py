"""Find out, at start-up, whose cells a token sees that is in several sequences: llama.cpp does not document it.

Knows a context. Knows nothing of rows. Some fifteen passes over one or two tokens.
"""

import torch
from torch import Tensor

from setblock.errors import SetBlockError
from setblock.integrations.llama_cpp.context import Context, Fed
from setblock.integrations.llama_cpp.runner import MOST_HELPERS

PROBED_SEQUENCES = MOST_HELPERS + 2
_LISTS = (2, 3, 4, 8, 13, 14, 17, 29, 30, 1 + MOST_HELPERS)
"""How many sequences a token is tried with: hash tables may change their order where they grow."""


def own_sequence(context: Context, *, vocab_size: int) -> int | None:
    """Return -1 where a token sees the cells of the last of its sequences, 0 where of the first, None where neither is
    always so.

    Args:
        context: an empty one of `PROBED_SEQUENCES` sequences; it is empty again afterwards.

    Raises:
        SetBlockError: llama.cpp can't let a block's tokens see each other in this model.
    """
    one, other, last, changed = ((7 + 11 * number) % vocab_size for number in range(4))
    seen, unseen = (_pass(context, [one, each], is_causal=False)[0] for each in (last, changed))
    if torch.equal(seen, unseen):
        raise SetBlockError("llama.cpp computes only causal attention for this model, so it can't decode in blocks")

    # All sequences hold one token, but the probed one, which holds another: which of them has the next token seen?
    after_one, after_other = (_pass(context, [each, last], is_causal=True)[1] for each in (one, other))
    spare = PROBED_SEQUENCES - 1
    _empty(context)
    for token_id, sequences in ((one, range(spare)), (other, [spare])):
        context.logits([Fed(token_id, 0, sequences, is_wanted=False)], is_causal=False)
    found = None
    for own in (-1, 0):
        if found is None and all(_sees_last(context, count, own, last, after_other, after_one) for count in _LISTS):
            found = own
    _empty(context)
    return found


def _sees_last(context: Context, count: int, own: int, token_id: int, after_other: Tensor, after_one: Tensor) -> bool:
    """Return whether a token of `count` sequences sees what the last of them holds; `own`: whether it is named last or
    first."""
    probed, spare = count - 1, PROBED_SEQUENCES - 1
    context.keep(probed, 0)
    context.copy(spare, probed, 0, 1)
    sequences = list(range(count))
    logits = context.logits([Fed(token_id, 1, sequences if own else sequences[::-1], is_wanted=True)], is_causal=False)[
        0
    ]
    for sequence in sequences:
        context.keep(sequence, 1)
    context.keep(probed, 0)
    context.copy(0, probed, 0, 1)
    return bool((logits - after_other).norm() < (logits - after_one).norm() / 10)


def _pass(context: Context, tokens: list[int], *, is_causal: bool) -> Tensor:
    """Return the logits of a text in an empty cache."""
    context.keep(0, 0)
    fed = [Fed(token_id, place, [0], is_wanted=True) for place, token_id in enumerate(tokens)]
    return context.logits(fed, is_causal=is_causal)


def _empty(context: Context) -> None:
    for sequence in range(PROBED_SEQUENCES):
        context.keep(sequence, 0)
