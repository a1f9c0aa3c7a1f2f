"""Force decoding of models of random weights to a script: passes cost what they cost, and the text has no meaning.

Block decoding is given how many tokens a pass reveals, speculative decoding and exact mode how many of the drafted tokens
are right. What the sampler and the draft model compute is computed all the same, so that a pass costs what it costs in use.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from setblock.decoding.samplers import BlockView, EntropyBounded, Selection
from setblock.decoding.state.state import BatchState


@dataclass(frozen=True)
class FixedCount:
    """Reveal the first `count` masked positions of each block, whatever their logits: forces the passes a block takes."""

    count: int

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        EntropyBounded().select(block)
        return Selection(block.candidates & (block.candidates.cumsum(dim=1) <= self.count))


class Script:
    """Hold the text that a model is going to write after a prompt, and which of its tokens a draft gets right.

    Args:
        token_ids: prompt and answer of one request.
        rate: the share of tokens that drafts get right; which ones is the same in all methods.
        vocab_size: wrong tokens are below it.
    """

    def __init__(self, token_ids: list[int], *, rate: float, vocab_size: int, device: torch.device) -> None:
        right = torch.rand(len(token_ids), generator=torch.Generator().manual_seed(7)) < rate
        truth = torch.tensor(token_ids)
        self.drafts = torch.where(right, truth, (truth + 1) % (vocab_size - 1)).to(device)

    def at(self, positions: Tensor) -> Tensor:
        """Return the draft's tokens at absolute positions; anything past the end."""
        return self.drafts[positions.clamp(max=len(self.drafts) - 1)]


class ScriptedDrafts:
    """Reveal the whole block as the script drafts it, as a sampler for method `exact`. Its request is the only one of a
    batch.

    Attributes:
        state: the batch's state, set once it is open: a sampler does not get positions.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.state: BatchState | None = None

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        assert self.state is not None
        EntropyBounded().select(block)
        drafts = self.script.at(self.state.block.positions[:, : block.candidates.shape[1]])
        return Selection(
            block.candidates, logits=torch.full_like(block.logits, -1e4).scatter(-1, drafts[..., None], 0.0)
        )


@contextmanager
def scripted(draft_model: Any, script: Script) -> Iterator[None]:
    """Make a draft model of Transformers' assisted generation draft as the script says, after computing its own."""
    last = torch.zeros((), dtype=torch.long)

    def remember(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal last
        fed, cache = kwargs["input_ids"].shape[1], kwargs.get("past_key_values")
        last = torch.tensor((0 if cache is None else cache.get_seq_length()) + fed)

    def replace(module: nn.Module, args: tuple[Any, ...], logits: Tensor) -> Tensor:
        chosen = script.at(last)
        logits = logits.clone()
        logits[:, -1] = -1e4
        logits[:, -1, chosen] = 0.0
        return logits

    handles = [
        draft_model.register_forward_pre_hook(remember, with_kwargs=True),
        draft_model.get_output_embeddings().register_forward_hook(replace),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
