"""The state of a batch of requests: what is written, committed and revealed in each row.

Knows tokens and positions. Knows nothing of models, logits or text. Rows are independent: each has a block of its own, at
its own position, in its own pass.

    0 ........ committed ........ block_start ........ block_end
      in the cache,      fed causally in      the future block: revealed tokens and masks
      exactly            the next pass

Between a row's first pass of a block and its last, committed equals block_start. Rows may join a state and leave it between
passes. Nobody else moves `committed`. Shapes: B rows, k the largest block size, C positions, a block past the last limit, E the
most ids that end an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from setblock.decoding.ragged import fitted, stacked
from setblock.decoding.terms import RowTerms
from setblock.model.facts import SBDFacts

NO_TOKEN = -1


@dataclass
class BatchState:
    """Mutable; all tensors have the batch as their first dimension, and int64 unless said otherwise.

    Attributes:
        facts: how the model's logits are read; None where it was never trained for blocks.
        terms: what is fixed of each row, for the host.
        tokens: [B, C] the token at each position; anything past what is revealed.
        prompt_length: [B].
        limit: [B] the position past the last one that may be generated.
        ends: [B, E] token ids that end an answer, filled up with `NO_TOKEN`.
        committed: [B] how many positions the cache holds exactly.
        prefill_end: [B] how many it has to hold before the block is fed: the prompt, or what it held before it was evicted.
        prefilled: [B] bool, rows whose prompt was fed to its end at least once; what they are fed again reveals nothing.
        block_start, block_end: [B] the current block; empty where only a check of the last draft is left.
        block_size: [B] k, the size of the next block.
        block_passes: [B] how many passes have filled the current block.
        revealed: [B, k] bool, which positions of the current block are fixed.
        is_ntp: [B] bool, rows that decode one token a pass.
        is_exact: [B] bool, rows whose blocks are drafts: what is committed is checked.
        is_adaptive: [B] bool, rows whose block ends at its first gap after each pass; what is revealed past it goes over into
            the next block.
        draft_passes: [B] of exact rows, after how many passes a draft is checked as far as it goes.
        draft_lookup: [B] of exact rows, how many tokens must match for a draft to be copied from the text; 0 for never.
        verified: [B] of exact rows, the position up to which the tokens are next-token decoding's.
        answer_end: [B] the position past the last of the answer, as far as it is certain.
        finished: [B] bool.
        stopped: [B] bool, rows that ended with an end-of-text or a stop string.
        failed: [B] bool, rows whose logits were not numbers, or left no token. Nothing more is revealed in them; what they
            have is kept.
        first_logits: [B, V] float32 or None, the causal logits of the block's first token, from its first pass.
    """

    facts: SBDFacts | None
    terms: tuple[RowTerms, ...]
    tokens: Tensor
    prompt_length: Tensor
    limit: Tensor
    ends: Tensor
    committed: Tensor
    prefill_end: Tensor
    prefilled: Tensor
    block_start: Tensor
    block_end: Tensor
    block_size: Tensor
    block_passes: Tensor
    revealed: Tensor
    is_ntp: Tensor
    is_exact: Tensor
    is_adaptive: Tensor
    draft_passes: Tensor
    draft_lookup: Tensor
    verified: Tensor
    answer_end: Tensor
    finished: Tensor
    stopped: Tensor
    failed: Tensor
    first_logits: Tensor | None = None

    @property
    def batch(self) -> int:
        """B."""
        return self.tokens.shape[0]

    @property
    def block_width(self) -> int:
        """The number of positions k."""
        return self.revealed.shape[1]

    @cached_property
    def block_positions(self) -> Tensor:
        """[B, k] the positions of each row's block, running past `block_end` where it is shorter than k."""
        return self.block_start[:, None] + torch.arange(self.block_width, device=self.tokens.device)

    @property
    def block_sources(self) -> Tensor:
        """[B, k] the position whose output predicts each position of the block."""
        if self.facts is None or self.facts.logit_shift:
            return self.block_positions - 1
        if self.first_is_causal is None:
            return self.block_positions
        source = self.block_positions.clone()
        source[:, 0] -= self.first_is_causal.long()
        return source

    @cached_property
    def first_is_causal(self) -> Tensor | None:
        """[B] bool, rows whose block's first token is predicted by the last token before the block; None where no row's is."""
        if self.facts is None or self.facts.first_token_from_causal:
            return torch.ones_like(self.is_ntp)
        return self.is_ntp | self.is_exact if any(each.method != "sbd" for each in self.terms) else None

    @property
    def is_causal(self) -> Tensor:
        """[B] bool, rows that are never fed a block: those of `ntp`, and all of a model that was never trained for blocks."""
        return self.is_ntp if self.facts is not None else torch.ones_like(self.is_ntp)

    @cached_property
    def copies_drafts(self) -> bool:
        """Whether any row's drafts may be copied from the text."""
        return any(each.method == "exact" and each.draft_lookup for each in self.terms)

    @cached_property
    def _has_exact(self) -> bool:
        return any(each.method == "exact" for each in self.terms)

    @cached_property
    def _has_adaptive(self) -> bool:
        return any(each.adaptive_blocks for each in self.terms)

    @property
    def is_prefill(self) -> Tensor:
        """[B] bool, rows whose next pass is over their prompt, or over what they had to give up."""
        return ~self.finished & (self.committed < self.prefill_end)

    def next_end(self, *, fuses_commit: bool = True, commits_answers: bool = False) -> Tensor:
        """[B] the position up to which each row's next pass feeds it, if that pass is not cut short; `committed` where there is
        nothing to feed.

        Args:
            fuses_commit: whether what is to be committed is fed with the block behind it, or alone.
            commits_answers: whether an answer that has ended is committed to its end, which nobody needs who is to read it
                only.
        """
        is_causal = self.is_causal if fuses_commit else self.is_causal | (self.committed < self.block_start)
        end = torch.where(is_causal, self.block_start, self.block_end)
        end = torch.where(self.is_prefill, self.prefill_end, end)
        return end if commits_answers else torch.where(self.finished, self.committed, end)

    def candidates(self) -> Tensor:
        """[B, k] bool, the masked positions that still matter: in the block, and before its first end-of-text."""
        return ~self.revealed & self._needed(self._ends()) & ~(self.finished | self.failed)[:, None]

    def reveal(self, chosen: Tensor, reveal: Tensor) -> None:
        """Fix `chosen` [B, k] tokens where `reveal` [B, k] bool says so."""
        here = self.tokens.gather(1, self.block_positions)
        self.tokens.scatter_(1, self.block_positions, torch.where(reveal, chosen, here))
        self.revealed |= reveal
        if self._has_exact:  # the first token of a block comes from the causal logits after all that is verified
            self.verified = torch.where(reveal[:, 0] & self.is_exact, self.block_start + 1, self.verified)

    def advance(self, *, corrected: Tensor | None = None) -> None:
        """After a pass: finish rows whose answer is whole, open the next block of rows that are done with theirs.

        Args:
            corrected: [B] bool, exact rows whose draft was cut, and whose next pass commits the corrected token together with
                a first pass over the block behind it. A pass that only drafts behind that token would verify nothing.
        """
        # 1. Is the answer whole?
        final_end = self.final_end()
        end = self._first_end(final_end)
        stopped = ~self.finished & (end < final_end)
        self.answer_end = torch.where(stopped, end + 1, final_end)
        self.stopped |= stopped
        self.finished |= stopped | self.failed | (final_end >= self.limit)
        # 2. Is the block? An adaptive one is, and a draft that has had its passes: as far as they go without a gap.
        ends = self._ends()
        needed = self._needed(ends)
        length = needed.sum(dim=1)
        run = torch.minimum(self._run(), length)
        whole = run == length
        done = whole
        if self._has_adaptive:
            done = whole | (self.is_adaptive & (run > 0))
        if self._has_exact:
            submitted = self.is_exact & (self.committed == self.block_start) & (run > 0)
            drafted = whole | self.is_causal | (self.block_passes >= self.draft_passes)
            drafted = drafted if corrected is None else drafted | corrected
            done = torch.where(self.is_exact, submitted & drafted, done)
        ended = (ends & needed).any(dim=1) & whole
        beyond = self._shifted(run) & (self.is_adaptive & ~whole)[:, None] if self._has_adaptive else None
        # 3. The next one, after the answer's end an empty one
        start = torch.where(self.finished, self.answer_end, self.block_start + run)
        self.open_blocks(done | self.finished, start, empty=ended | self.finished, revealed=beyond)

    def open_blocks(
        self, rows: Tensor, start: Tensor, *, empty: Tensor | None = None, revealed: Tensor | None = None
    ) -> None:
        """Begin a block of `rows` [B] bool at `start` [B]. It stops short at the row's limit, and at once where `empty` [B]. Of
        its positions, `revealed` [B, k] are known already."""
        end = torch.minimum(start + self.block_size, self.limit)
        if empty is not None:
            end = torch.where(empty, start, end)
        self.block_start = torch.where(rows, start, self.block_start)
        vars(self).pop("block_positions", None)  # to be computed anew
        self.block_end = torch.where(rows, end, self.block_end)
        self.block_passes = self.block_passes.masked_fill(rows, 0)
        self.revealed = self.revealed & ~rows[:, None]
        if revealed is not None:
            self.revealed |= revealed & rows[:, None]

    # What the cache holds: here alone `committed` moves

    def commit(self, ends: Tensor) -> None:
        """After a pass that fed each row up to `ends` [B]: what it fed causally is in the cache."""
        self.committed = torch.maximum(self.committed, torch.minimum(ends, self.block_start))
        self.prefilled = self.prefilled | (self.committed >= self.prefill_end)

    def correct(self, rows: Tensor, positions: Tensor, tokens: Tensor) -> None:
        """Where drafts of `rows` [B] bool were wrong from `positions` [B] on: put the right `tokens` [B] there, and begin a
        block with them. What comes before is committed."""
        at = positions[:, None]
        self.tokens.scatter_(1, at, torch.where(rows, tokens, self.tokens.gather(1, at)[:, 0])[:, None])
        self.open_blocks(rows, positions)
        self.revealed[:, 0] |= rows
        self.committed = torch.where(rows, positions, self.committed)
        self.verified = torch.where(rows, positions + 1, self.verified)

    @torch.inference_mode()
    def hold(self, length: int) -> None:
        """Of all rows, before their prefill: the cache holds the first `length` positions already, from another request."""
        self.committed = torch.full_like(self.committed, length)

    @torch.inference_mode()
    def evict(self) -> None:
        """Of all rows: the cache has lost what it held. It is fed again before they go on."""
        self.prefill_end = torch.where(self.prefilled, self.committed.clamp(min=self.prefill_end), self.prefill_end)
        self.committed = torch.zeros_like(self.committed)

    # Rows that end, leave and join

    @torch.inference_mode()  # as the passes are that made these tensors: outside, they could not be changed in place
    def finish(self, row: int, *, end: int) -> None:
        """End a row's answer at a stop string: at position `end`, past its last token."""
        self.finished[row] = self.stopped[row] = True
        self.answer_end[row] = end

    @classmethod
    @torch.inference_mode()
    def joined(cls, states: Sequence["BatchState"]) -> "BatchState":
        """The rows of several states in one."""
        first_logits = None
        if any(state.first_logits is not None for state in states):
            vocab_size = max(0 if state.first_logits is None else state.first_logits.shape[1] for state in states)
            first_logits = stacked(
                [
                    torch.zeros((state.batch, vocab_size), device=state.tokens.device)
                    if state.first_logits is None
                    else state.first_logits
                    for state in states
                ]
            )
        terms = tuple(each for state in states for each in state.terms)
        parts = {name: stacked([getattr(state, name) for state in states]) for name in _TENSORS}
        parts["ends"] = stacked([state.ends for state in states], fill=NO_TOKEN)
        # The row of the largest limit may get a larger block from another.
        parts["tokens"] = fitted(parts["tokens"], capacity_of(terms))
        return cls(facts=states[0].facts, terms=terms, first_logits=first_logits, **parts)

    @torch.inference_mode()
    def taken(self, rows: Tensor) -> "BatchState":
        """A state of `rows` [n] alone, as wide as they need."""
        parts: dict[str, Any] = {name: getattr(self, name)[rows] for name in _TENSORS}
        state = BatchState(
            facts=self.facts,
            terms=tuple(self.terms[row] for row in rows.tolist()),
            first_logits=None if self.first_logits is None else self.first_logits[rows],
            **parts,
        )
        state.tokens = state.tokens[:, : capacity_of(state.terms)]
        state.revealed = state.revealed[:, : max(each.block_size for each in state.terms)]
        return state

    @torch.inference_mode()
    def cut(self, row: int) -> None:
        """End a row's answer where it is."""
        rows = torch.arange(self.batch, device=self.finished.device) == row
        self.answer_end = torch.where(rows, self.final_end(), self.answer_end)
        self.finished = self.finished | rows

    def final_end(self) -> Tensor:
        """[B] the position up to which tokens are written and will not change: there are no gaps before it."""
        end = self.gapless_end()
        if not self._has_exact:
            return end
        return torch.where(self.is_exact & ~self.finished, self.verified, end)

    def gapless_end(self) -> Tensor:
        """[B] the position up to which there is no gap; what stands before it may be a draft."""
        return torch.where(
            self.finished, self.answer_end, torch.minimum(self.block_start + self._run(), self.block_end)
        )

    def answer_ends(self) -> Tensor:
        """[B] the position past each answer's last token that will not change, the end-of-text included."""
        end = self.final_end()
        return torch.minimum(end, self._first_end(end) + 1)

    def answer(self, row: int) -> Tensor:
        """[n] the tokens of a row's answer that will not change, the end-of-text included."""
        return self.tokens[row, int(self.prompt_length[row]) : int(self.answer_ends()[row])]

    def first_seen(self, vocab_size: int) -> Tensor:
        """[B, V] the position at which each token first stands. Revealed tokens of a block are seen by all of the block; but in
        exact rows not by its first position, where the token is next-token decoding's."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device).expand_as(self.tokens)
        start = self.block_start[:, None]
        column = (positions - start).clamp(0, self.revealed.shape[1] - 1)
        in_block = (positions >= start) & (positions < self.block_end[:, None]) & self.revealed.gather(1, column)
        never = torch.iinfo(torch.long).max
        seen_from = start - 1 + self.is_exact[:, None].long()
        at = torch.where(positions < start, positions, torch.where(in_block, seen_from, never))
        return torch.full((self.batch, vocab_size), never, device=at.device).scatter_reduce(1, self.tokens, at, "amin")

    def _run(self) -> Tensor:
        """[B] how many positions are revealed from the block's beginning on, without a gap."""
        return self.revealed.cumprod(dim=1).sum(dim=1)

    def _first_end(self, final_end: Tensor) -> Tensor:
        """[B] the position of the first end-of-text among an answer's final tokens; `final_end` [B] where there is none."""
        positions = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        in_answer = (positions >= self.prompt_length[:, None]) & (positions < final_end[:, None])
        return torch.where(in_answer & self._is_end(self.tokens), positions, final_end[:, None]).amin(dim=1)

    def _is_end(self, tokens: Tensor) -> Tensor:
        """Bool, as `tokens` [B, n]: whether each ends its row's answer."""
        return (tokens[..., None] == self.ends[:, None]).any(dim=-1)

    def _shifted(self, run: Tensor) -> Tensor:
        """[B, k] bool, which positions of a block that begins `run` [B] later are revealed."""
        columns = run[:, None] + torch.arange(self.revealed.shape[1], device=run.device)
        inside = columns < self.revealed.shape[1]
        return inside & self.revealed.gather(1, columns.clamp(max=self.revealed.shape[1] - 1))

    def _ends(self) -> Tensor:
        """[B, k] bool, revealed positions of the block that hold an end-of-text."""
        return self.revealed & self._is_end(self.tokens.gather(1, self.block_positions))

    def _needed(self, ends: Tensor) -> Tensor:
        """[B, k] bool, positions of the block up to its first revealed end-of-text. `ends` as `_ends` gives it."""
        is_up_to_first = ends.cumsum(dim=1) <= ends
        return is_up_to_first & (self.block_positions < self.block_end[:, None])


_TENSORS = [each.name for each in fields(BatchState) if each.name not in ("facts", "terms", "first_logits")]


def capacity_of(terms: Sequence[RowTerms]) -> int:
    """C, such that no position of any row's block is past it."""
    return max(each.limit for each in terms) + max(each.block_size for each in terms)
