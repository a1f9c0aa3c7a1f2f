"""Read each row's predictions from a feed's logits: the values ẑ_t..ẑ_{t+k-1} and z_t of eq. 9.

Knows which output predicts which position. Knows nothing of models, nor of what is revealed next.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import MostLikely, most_likely
from setblock.model.protocol.feed import Feed


@dataclass(frozen=True)
class Logits:
    """Hold what a pass predicts for some positions of each row.

    Attributes:
        logits: [B, m, V] float32; -inf for the mask token. Anything where not known.
        positions: [B, m] int64, the absolute positions they predict.
        known: [B, m] bool, where the logits are valid; nowhere where a token is revealed already.
        best: the most likely token of each position. Several need it, and a vocabulary is long.
    """

    logits: Tensor
    positions: Tensor
    known: Tensor
    best: MostLikely

    @property
    def is_finite(self) -> Tensor:
        """Return [B, m] bool, where the logits are finite and leave a token to choose."""
        greatest = self.best.logits
        return greatest - greatest == 0  # what is no number, or infinite, is not 0 when it is taken from itself

    def with_logits(self, logits: Tensor) -> "Logits":
        """Return the same positions with other logits."""
        return Logits(logits, self.positions, self.known, most_likely(logits))

    def columns(self, first: int, last: int) -> "Logits":
        """Return those of the columns from `first` to `last`."""
        best = MostLikely(self.best.logits[:, first:last], self.best.token_ids[:, first:last])
        return Logits(self.logits[:, first:last], self.positions[:, first:last], self.known[:, first:last], best)


@dataclass(frozen=True)
class PassLogits:
    """Hold the logits of a pass.

    Attributes:
        all: ẑ of the first w positions of each row's block; then z of the m positions that exact rows committed in this pass,
            but for each row's first.
        size: w.
    """

    all: Logits
    size: int

    @property
    def block(self) -> Logits:
        """Return those of the block. Known nowhere in a pass that only commits."""
        return self.all.columns(0, self.size)

    @property
    def commit(self) -> Logits | None:
        """Return those of what was committed; None where no row committed more than its first."""
        return self.all.columns(self.size, self.all.known.shape[1]) if self.all.known.shape[1] > self.size else None


def read_logits(state: BatchState, feed: Feed, logits: Tensor) -> PassLogits:
    """Return what the logits of a feed predict, those of all its outputs [A, w + m, V] or of the M that are wanted [M, V].
    Keeps in the state the causal logit of a block's first token, which the block's later passes need; the state is that from
    which the feed was made."""
    plan, size = feed.plan, feed.plan.width
    if state.facts is not None:
        logits[..., state.facts.mask_token_id].fill_(-torch.inf)  # a mask is never an answer
    best = most_likely(logits)
    if logits.dim() == 2:  # read as few, and where nothing is wanted never
        logits, best = feed.spread(logits), MostLikely(feed.spread(best.logits), feed.spread(best.token_ids))

    # 1. The block's first token may come from a causal logit of an earlier pass, in which it was fed or committed
    block_start = plan.of(state.block.start)
    if state.terms.first_is_causal is not None and not (plan.fuses_commit and state.terms.takes_first_at_once):
        if state.first_logits is None:
            state.first_logits = logits.new_zeros((state.batch, logits.shape[-1]))
        fresh = feed.wanted[:, 0] & (plan.of(state.cache.committed) < block_start)
        first = torch.where(fresh[:, None], logits[:, 0], plan.of(state.first_logits))  # [A, V]
        logits[:, 0] = torch.where(plan.of(state.terms.first_is_causal)[:, None], first, logits[:, 0])
        state.first_logits = plan.put(first, state.first_logits)
        best.logits[:, 0], best.token_ids[:, 0] = most_likely(logits[:, 0])

    # 2. Of a block, a pass says something if it was fed; or where the first token is known as soon as what comes before it is
    wanted = feed.wanted
    if plan.is_prefill is not None or not plan.fuses_commit:  # else all that is wanted
        says = (plan.ends > block_start) | plan.of(state.is_causal)
        if plan.is_prefill is not None:
            says = says | (plan.is_prefill & (block_start == plan.of(state.terms.prompt_length)))
        wanted = wanted & (says[:, None] | (state.columns[: wanted.shape[1]] >= size))

    # 3. From the A rows that took part to all B
    logits, target, wanted = (plan.put(each) for each in (logits, feed.targets, wanted))
    return PassLogits(Logits(logits, target, wanted, MostLikely(*map(plan.put, best))), size)
