"""The decoding loop: Algorithms 2 and 3 of the paper over a batch of independent rows.

Knows the order of things: prefill, then passes that reveal, then the next block. Knows nothing of text.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.choice import choose_tokens
from setblock.decoding.passes import run_pass
from setblock.decoding.samplers import Sampler
from setblock.decoding.state import BatchState
from setblock.model.cache import SlotCache
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class DecodingStep:
    """What one forward pass did. B rows, k the largest block size; all tensors [B, k] unless said otherwise.

    Attributes:
        is_prefill: whether the pass was the prefill.
        took_part: [B] bool, rows that were in the pass.
        committed: [B] bool, rows whose previous tokens this pass wrote to the cache causally (never so in the prefill).
        positions: int64, absolute positions of the block.
        token_ids: int64, the tokens chosen for them.
        revealed: bool, positions that this pass revealed.
        entropy: float32, nats, of the distribution at each masked position.
        finished: [B] bool, rows whose answer is whole after the pass.
    """

    is_prefill: bool
    took_part: Tensor
    committed: Tensor
    positions: Tensor
    token_ids: Tensor
    revealed: Tensor
    entropy: Tensor
    finished: Tensor


@torch.inference_mode()
def decode(model: SBDModel, state: BatchState, cache: SlotCache, *, sampler: Sampler) -> Iterator[DecodingStep]:
    """Decode every row of `state` to its end, yielding after each forward pass (Algorithm 3).

    The prefill reveals a token too where the block's first token comes from the causal logit: it is known then.
    """
    end_of_text = torch.tensor(model.end_of_text_ids, dtype=torch.long, device=model.device)
    is_prefill = True
    while not bool(state.finished.all()):
        took_part = ~state.finished
        committed = took_part & (state.committed < state.block_start) & ~torch.tensor(is_prefill)
        block = run_pass(model, state, cache, prefill=is_prefill)

        positions = state.block_positions
        candidates = state.candidates(end_of_text) & block.known
        selection = sampler.select(block.logits, candidates)
        chosen = choose_tokens(block.logits, temperature=state.temperature, seeds=state.seeds, positions=positions)
        state.reveal(chosen, selection.reveal)
        state.advance(end_of_text)

        yield DecodingStep(
            is_prefill=is_prefill,
            took_part=took_part,
            committed=committed,
            positions=positions,
            token_ids=chosen,
            revealed=selection.reveal,
            entropy=selection.entropy,
            finished=state.finished.clone(),
        )
        is_prefill = False
