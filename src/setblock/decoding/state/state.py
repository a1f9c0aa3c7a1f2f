"""Hold the state of a batch of requests: what is written, committed and revealed in each row.

Knows tokens and positions. Knows nothing of models, logits or text. Rows are independent: each has its own block, at
its own position, in its own pass.

    0 ........ committed ........ block_start ........ block_end
      in the cache,      fed causally in      the future block: revealed tokens and masks
      exactly            the next pass

Between a row's first pass of a block and its last, committed equals block_start. Rows may join a state and leave it between
passes. Nobody else moves `committed`. Shapes: B rows, k the largest block size, C positions, a block past the last limit, E the
most ids that end an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.decoding.drafts.chances import CONFIDENCES
from setblock.decoding.settings.table import Method
from setblock.decoding.settings.terms import RowTerms
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts
from setblock.model.protocol.feed import fixed_capacity

NO_TOKEN = -1
NEVER = torch.iinfo(torch.long).max


class Settled(NamedTuple):
    """Hold what a pass has made of the blocks.

    Attributes:
        is_whole: [B] bool, rows whose block is.
        has_first: [B] bool, rows whose block has its first token, right after what is committed; None where no row is exact.
    """

    is_whole: Tensor
    has_first: Tensor | None


@dataclass
class BatchState:
    """Hold the mutable state of a batch; tensors have the batch as their first dimension, and are int64 unless stated.

    Attributes:
        facts: how the model's logits are read; None where it was never trained for blocks.
        terms: what is fixed of each row, for the host.
        tokens: [B, C] the token at each position; the mask token where none is revealed, up to the row's limit.
        prompt_length: [B].
        limit: [B] the position past the last one that may be generated.
        ends: [B, E] token ids that end an answer, filled up with `NO_TOKEN`.
        committed: [B] how many positions the cache holds exactly.
        prefill_end: [B] how many it has to hold before the block is fed: the prompt, or what it held before it was evicted.
        prefilled: [B] bool, rows whose prompt was fed to its end at least once; what they are fed again reveals nothing.
        block_start, block_end: [B] the current block; empty where only a check of the last draft is left.
        needed_end: [B] the position past the last of the block that still matters: its end, or that of its first end-of-text.
        block_size: [B] k, the size of the next block.
        fed_size: [B] how many tokens of its block a row is fed behind what is committed; 0 where none: rows of `ntp`, all
            rows of a model that was not trained for blocks, and exact rows that draft without it.
        block_passes: [B] how many passes have filled the current block.
        revealed: [B, k] bool, which positions of the current block are fixed.
        is_ntp: [B] bool, rows that decode one token a pass.
        is_exact: [B] bool, rows whose blocks are drafts: what is committed is checked.
        draft_lookup: [B] of exact rows, how many tokens must match for a draft to be copied from the text; 0 for never.
        draft_kinds: [B, k] of exact rows, what kind each drafted token is of (`drafts.chances`), from position `committed` on.
        text_end: [B] the position up to which there is no gap; what stands before it may be a draft.
        stop_end: [B] the position past the last token that the text can have: past the end-of-text that it ends with, drafts
            included; else its limit. An answer that reaches it is whole.
        answer_end: [B] the position up to which tokens are written and will not change: there are no gaps before it, and in
            exact rows they are next-token decoding's.
        finished: [B] bool.
        stopped: [B] bool, rows that `finish` ended.
        failed: [B] bool, rows whose logits were not numbers, or left no token. Nothing more is revealed in them; what they
            have is kept.
        first_logits: [B, V] float32 or None, the causal logits of the block's first token, from its first pass.
        draft_text: what drafts may be copied from, besides each row's own text; None where there is nothing.
        may_prefill: for the host, whether any row may have to be fed its prompt, or what it had to give up.
        columns, rows: [C] and [B], 0, 1, 2, ...
        nobody, everybody: [B] bool, no row, and all.
        block_positions: [B, k] the positions of each row's block, running past `block_end` where it is shorter than k.
        first_is_causal: [B] bool, rows whose block's first token is predicted by the last token before the block; None where no
            row's is.
        takes_next: [B, k] bool, the first places of exact rows' blocks: what the causal logit says is taken as soon as it is
            known. None where no row is exact.
        confidences: the bounds between the kinds of what the model drafts, float32.
        shifts: [B, k] how far before a position of the block stands the output that predicts it.
        methods: of the rows, for the host, as are the next: whether all of them are exact, or never fed a block, or always a
            whole one; whether the drafts of any may be copied from the text, or vary in length.
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
    needed_end: Tensor
    block_size: Tensor
    fed_size: Tensor
    block_passes: Tensor
    revealed: Tensor
    is_ntp: Tensor
    is_exact: Tensor
    draft_lookup: Tensor
    draft_kinds: Tensor
    text_end: Tensor
    stop_end: Tensor
    answer_end: Tensor
    finished: Tensor
    stopped: Tensor
    failed: Tensor
    first_logits: Tensor | None = None
    draft_text: DraftText | None = None
    may_prefill: bool = True
    columns: Tensor = field(init=False)
    rows: Tensor = field(init=False)
    nobody: Tensor = field(init=False)
    everybody: Tensor = field(init=False)
    block_positions: Tensor = field(init=False)
    first_is_causal: Tensor | None = field(init=False)
    takes_next: Tensor | None = field(init=False)
    shifts: Tensor = field(init=False)
    confidences: Tensor = field(init=False)
    methods: frozenset[str] = field(init=False)
    is_all_exact: bool = field(init=False)
    is_all_causal: bool = field(init=False)
    feeds_whole: bool = field(init=False)
    copies_drafts: bool = field(init=False)
    adapts_drafts: bool = field(init=False)

    @property
    def batch(self) -> int:
        """Return B."""
        return self.tokens.shape[0]

    @property
    def block_width(self) -> int:
        """Return the number of positions k."""
        return self.revealed.shape[1]

    def __post_init__(self) -> None:
        """Derive what follows from the terms, and the numbers that passes count with."""
        device, methods = self.tokens.device, [each.method for each in self.terms]
        self.columns = torch.arange(self.tokens.shape[1], device=device)
        self.rows = torch.arange(self.batch, device=device)
        self.confidences = torch.tensor(CONFIDENCES, device=device)
        self.nobody, self.everybody = torch.zeros_like(self.is_ntp), torch.ones_like(self.is_ntp)
        self.methods = frozenset(methods)
        self.is_all_exact = all(each == "exact" for each in methods)
        self.is_all_causal = self.facts is None or all(each == "ntp" for each in methods)
        self.copies_drafts = any(each.method == "exact" and each.draft_lookup for each in self.terms)
        self.adapts_drafts = any(each.adapts_drafts for each in self.terms)
        self.feeds_whole = self.facts is not None and "ntp" not in methods and not self.adapts_drafts
        self._is_first = is_first = self.columns[: self.block_width] == 0
        self.takes_next = self.is_exact[:, None] & is_first if self.has("exact") else None
        self.first_is_causal = self.is_ntp | self.is_exact if self.has("ntp") or self.has("exact") else None
        if self.facts is None or self.facts.first_token_from_causal:
            self.first_is_causal = torch.ones_like(self.is_ntp)
        self.shifts = torch.ones((self.batch, self.block_width), dtype=torch.long, device=device)
        if self.facts is not None and not self.facts.logit_shift:
            from_before = self.nobody if self.first_is_causal is None else self.first_is_causal
            self.shifts[:] = from_before[:, None] & is_first
        self.block_positions = self.block_start[:, None] + self.columns[: self.block_width]

    @property
    def is_causal(self) -> Tensor:
        """Return [B] bool, rows that are not fed a block now."""
        return self.fed_size == 0

    @property
    def takes_first_at_once(self) -> bool:
        """Return whether every row takes a block's first token from the first causal logit that predicts it."""
        return self.facts is None or not self.has("sbd")

    def has(self, method: Method) -> bool:
        """Return whether any row is decoded by a method."""
        return method in self.methods

    @property
    def is_prefill(self) -> Tensor:
        """Return [B] bool, rows whose next pass is over their prompt, or over what was evicted."""
        return ~self.finished & (self.committed < self.prefill_end)

    def next_end(self, *, fuses_commit: bool, commits_answers: bool = False) -> Tensor:
        """Return [B] the position up to which a full next pass feeds each row; `committed` where there is nothing to
        feed.

        Args:
            fuses_commit: whether what is to be committed is fed with the block behind it, or alone.
            commits_answers: whether an answer that has ended is committed to its end, which nobody needs who is to read it
                only.
        """
        end = self.block_start
        if self.feeds_whole:
            end = self.block_end
        elif not self.is_all_causal:
            end = torch.minimum(end + self.fed_size, self.block_end)
        if not fuses_commit:
            end = torch.where(self.committed < self.block_start, self.block_start, end)
        if self.may_prefill:
            end = torch.where(self.is_prefill, self.prefill_end, end)
        return end if commits_answers else torch.where(self.finished, self.committed, end)

    def candidates(self) -> Tensor:
        """Return [B, k] bool, the masked positions that still matter: in the block, and before its first end-of-text. A
        row that is finished has none."""
        return ~self.revealed & (self.block_positions < self.needed_end[:, None])

    def write(self, chosen: Tensor, where: Tensor, *, positions: Tensor) -> Tensor:
        """Put `chosen` [B, n] tokens at `positions` [B, n] where `where` [B, n] bool says so.

        Returns:
            [B, n] int64 where they stand: their positions, or else a column that nobody reads.
        """
        at = positions.where(where, self.columns[-1])
        self.tokens.scatter_(1, at, chosen)
        return at

    def reveal(self, chosen: Tensor, reveal: Tensor) -> Tensor:
        """Fix `chosen` [B, k] tokens where `reveal` [B, k] bool says so. Return what `write` does."""
        self.revealed |= reveal
        return self.write(chosen, reveal, positions=self.block_positions)

    def settle(self) -> "Settled":
        """Find how far the text goes without a gap, what of it is certain, and which answers are whole. Calling it again
        changes nothing."""
        # 1. Is the block whole, and does it end in an end-of-text?
        first_stop = self._first_stop()
        self.needed_end = torch.minimum(first_stop, self.block_end)
        gap = self.block_end[:, None].where(self.revealed, self.block_positions).amin(dim=1)
        end = torch.minimum(gap, self.needed_end)
        self.stop_end = torch.where(first_stop <= end, end, self.stop_end)
        # 2. Is the answer? Drafts are no part of it, and may end otherwise; but a first token comes from the causal logits
        # after all that is certain
        certain, has_first = end, None
        if self.has("exact"):
            has_first = self.revealed[:, 0] & (self.committed == self.block_start)
            certain = torch.maximum(self.answer_end, self.committed + has_first)
            certain = certain if self.is_all_exact else torch.where(self.is_exact, certain, end)
        self.answer_end = torch.minimum(certain, self.stop_end)
        self.stop_end = torch.where(self.failed, self.answer_end, self.stop_end)
        self.finished = self.answer_end >= self.stop_end
        self.text_end = torch.minimum(end, self.stop_end)
        return Settled(end == self.needed_end, has_first)

    def advance(self, *, fuses_commit: bool = True) -> None:
        """Finish rows whose answer is whole after a pass, and open the next block of rows that have finished theirs.

        Args:
            fuses_commit: whether what is to be committed is fed with the block behind it. An exact row's next token is then
                committed at once, with what is drafted behind it. Otherwise a block that is fed gets a separate pass first.
        """
        done, has_first = self.settle()
        if has_first is not None:
            submitted = has_first if fuses_commit else has_first & (done | (self.block_passes > 0) | self.is_causal)
            done = submitted if self.is_all_exact else torch.where(self.is_exact, submitted, done)
        # The next block; after the answer's end, or where a draft ends the text, an empty one
        self._open_blocks(done | self.finished, self.text_end)

    def share(self, drafted: Sequence[int], fed: Sequence[int]) -> None:
        """Shorten drafts before the next pass, and say how much of the blocks behind them it is fed.

        Args:
            drafted: [B] of each row's drafted tokens, how many are checked, not counting the first, which is right; -1 for all.
            fed: [B] as `fed_size`; -1 to leave it as it is.
        """
        shares = torch.tensor([drafted, fed], device=self.tokens.device)
        start = self.committed + 1 + shares[0]
        is_cut = (shares[0] >= 0) & (start < self.text_end)
        self.fed_size = torch.where(shares[1] >= 0, shares[1], self.fed_size)
        self.stop_end = torch.where(is_cut, self.limit, self.stop_end)  # an end that is drafted no more
        self.text_end = torch.where(is_cut, start, self.text_end)
        self._open_blocks(is_cut, start)

    def _open_blocks(self, rows: Tensor, start: Tensor) -> None:
        """Begin a block of `rows` [B] bool at `start` [B], in which nothing is revealed."""
        self._move_blocks(rows, start)
        self.revealed = self.revealed.masked_fill(rows[:, None], False)
        if self.has("exact"):  # what was drafted behind a gap, or is not taken, or is wrong, is void
            self.tokens.scatter_(1, self.columns[-1].where(self.revealed, self.block_positions), mask_of(self.facts))

    def _move_blocks(self, rows: Tensor, start: Tensor) -> None:
        """Begin a block of `rows` [B] bool at `start` [B]. It ends, at the latest, where the text does."""
        self.block_start = torch.where(rows, start, self.block_start)
        self.block_positions = self.block_start[:, None] + self.columns[: self.block_width]
        self.block_end = torch.minimum(self.block_start + self.block_size, self.stop_end)
        self.needed_end = torch.where(rows, self.block_end, self.needed_end)
        self.block_passes = self.block_passes.masked_fill(rows, 0)

    # What the cache holds: here alone `committed` moves

    def commit(self, ends: Tensor, *, has_prefill: bool = True) -> None:
        """Commit what a pass fed causally, up to `ends` [B]: it is now in the cache. `has_prefill`: whether any row was
        fed its prompt, or what it had to give up."""
        self.committed = torch.maximum(self.committed, torch.minimum(ends, self.block_start))
        if has_prefill:
            self.prefilled = self.prefilled | (self.committed >= self.prefill_end)

    def correct(self, rows: Tensor, positions: Tensor, *, failed: Tensor) -> None:
        """Begin a block at `positions` [B] of `rows` [B] bool, where drafts were wrong and the right token stands now,
        unless they `failed` [B] bool. What comes before is committed."""
        self.committed = torch.where(rows, positions, self.committed)
        self.stop_end = torch.where(rows, self.limit, self.stop_end)
        self._move_blocks(rows, positions)
        self.revealed = torch.where(rows[:, None], self._is_first > failed[:, None], self.revealed)

    @torch.inference_mode()
    def hold(self, length: int) -> None:
        """Mark the first `length` positions of all rows, before their prefill, as already cached by another request."""
        self.committed = torch.full_like(self.committed, length)

    @torch.inference_mode()
    def evict(self) -> None:
        """Mark all rows' cache as lost. It is fed again before they continue."""
        self.prefill_end = torch.where(self.prefilled, self.committed.clamp(min=self.prefill_end), self.prefill_end)
        self.committed, self.may_prefill = torch.zeros_like(self.committed), True

    # Rows that end

    @torch.inference_mode()  # as the passes are that made these tensors: outside, they could not be changed in place
    def finish(self, row: int, *, end: int) -> None:
        """End a row's answer at a stop string: at position `end`, past its last token. What failed behind it does not count."""
        self._end(row, end)
        self.failed = self.failed & (self.rows != row)
        self.stopped = self.stopped | (self.rows == row)

    @torch.inference_mode()
    def cut(self, row: int) -> None:
        """End a row's answer where it is."""
        self._end(row, int(self.answer_end[row]))

    def _end(self, row: int, end: int) -> None:
        """End a row's answer at position `end`, and its blocks there."""
        here = self.rows == row
        self.finished, self.revealed = self.finished | here, self.revealed & ~here[:, None]
        for each in ("answer_end", "stop_end", "text_end", "block_start", "block_end", "needed_end"):
            setattr(self, each, getattr(self, each).masked_fill(here, end))
        self.block_positions = self.block_start[:, None] + self.columns[: self.block_width]

    def answer(self, row: int) -> Tensor:
        """Return [n] the tokens of a row's answer that will not change, the end-of-text included."""
        return self.tokens[row, self.terms[row].prompt_length : int(self.answer_end[row])]

    def has_stopped(self, row: int) -> bool:
        """Return whether a finished row ended with an end-of-text or a stop string. Waits for the device."""
        last = self.answer(row)[-1:].tolist()
        return bool(self.stopped[row]) or any(token_id in self.terms[row].ends for token_id in last)

    def _first_stop(self) -> Tensor:
        """Return [B] the position past the first end-of-text revealed in the block; `NEVER` where none is."""
        here = self.tokens.gather(1, self.block_positions)
        is_end = here == self.ends if self.ends.shape[1] == 1 else (here[..., None] == self.ends[:, None]).any(dim=-1)
        return (self.block_positions + 1).where(is_end & self.revealed, NEVER).amin(dim=1)


def capacity_of(terms: Sequence[RowTerms]) -> int:
    """Return C, past every row's block, rounded up."""
    return fixed_capacity(max(each.limit for each in terms) + max(each.block_size for each in terms))


def mask_of(facts: SBDFacts | None) -> int:
    """Return the token that is written where nothing is revealed."""
    return NO_TOKEN if facts is None else facts.mask_token_id
