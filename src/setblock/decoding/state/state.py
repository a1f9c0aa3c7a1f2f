"""The state of a batch of requests: the parameters of its rows, and what is written, committed and revealed in each.

Rows are independent: each is in its own block and pass.

    0 ........ committed ........ block_start ........ block_end
      in the cache,      fed causally in      the future block: revealed tokens and masks
      exactly            the next pass

Between the first and the last pass of a row's block, committed equals block_start. Rows may join and leave a state
between passes. Only this module changes `committed`. Shapes: B rows; k the largest block size; C positions, up to a
block past the largest limit; E the most ids that end an answer; n alternatives of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from setblock import devices
from setblock.decoding.answer.generation import PassCounts
from setblock.decoding.drafts.kinds import CONFIDENCES
from setblock.decoding.settings.table import RequestParams
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.runtime import fixed_capacity
from setblock.model.protocol.sbd_config import SBDModelConfig

NEVER = torch.iinfo(torch.long).max
NO_TOKEN = -1


INTEGERS = (
    *("prompt_length", "limit", "block_size", "is_ntp", "is_sbd", "is_exact", "prompt_lookup"),
    *("seeds", "top_k", "first_end"),
)
NUMBERS = ("temperature", "top_p", "min_p", "penalty")


@dataclass(frozen=True)
class Columns:
    """The numbers of each row's request on the device, packed: a row that joins is written by three copies."""

    integers: Tensor  # [B, `INTEGERS`] int64; `first_end` is the first position at which an end-of-text is allowed
    numbers: Tensor  # [B, `NUMBERS`] float32
    ends: Tensor  # [B, E] int64, token ids that end the answer, filled up with `NO_TOKEN`

    @classmethod
    def of(cls, rows: Sequence[RequestParams], *, device: torch.device) -> "Columns":
        """Return the columns of requests."""
        most_ends = max(1, *(len(each.ends) for each in rows))
        integers, numbers = [], []
        for each in rows:
            settings, method = each.settings, each.settings.method
            first_end = each.prompt_length + settings.min_new_tokens
            integers.append(
                [
                    *(each.prompt_length, each.limit, each.block_size, method == "ntp", method == "sbd"),
                    *(
                        method == "exact",
                        settings.prompt_lookup or 0,
                        settings.seed,
                        settings.top_k or NEVER,
                        first_end,
                    ),
                ]
            )
            numbers.append([settings.temperature, settings.top_p, settings.min_p, settings.repetition_penalty])
        return cls(
            integers=torch.tensor(integers, device=device),
            numbers=torch.tensor(numbers, device=device, dtype=torch.float32),
            ends=torch.tensor(
                [[*each.ends, *[NO_TOKEN] * (most_ends - len(each.ends))] for each in rows], device=device
            ),
        )

    def integer(self, name: str) -> Tensor:
        """Return [B] int64, one of `INTEGERS`."""
        return self.integers[:, INTEGERS.index(name)]

    def number(self, name: str) -> Tensor:
        """Return [B] float32, one of `NUMBERS`."""
        return self.numbers[:, NUMBERS.index(name)]


class BatchParams:
    """The parameters of a batch's rows as tensors, int64 unless stated. Fields of `RequestParams` are [B]."""

    def __init__(
        self,
        rows: Sequence[RequestParams],
        sbd_config: SBDModelConfig | None,
        *,
        device: torch.device,
        columns: Columns | None = None,
        confidences: Tensor | None = None,
    ) -> None:
        """Build the tensors. `rows` are kept for the host. `sbd_config` is None for a model not trained for blocks. With
        `columns` [B], and `confidences`, nothing is copied to the device."""
        self.rows, self.sbd_config = tuple(rows), sbd_config
        self.waits = devices.waits(device)  # whether a host that reads a value has to wait for the device
        self.block_width = max(each.block_size for each in rows)  # k
        self.most_passes = max(each.most_passes for each in rows)
        self.capacity = fixed_capacity(max(each.limit for each in rows) + self.block_width)  # C, past every row's block
        methods = {each.settings.method for each in rows}
        self.has_sbd, self.has_exact, self.has_ntp = ("sbd" in methods, "exact" in methods, "ntp" in methods)
        # The token at positions that are not revealed
        self.mask_token = (
            NO_TOKEN if sbd_config is None or sbd_config.mask_token_id is None else sbd_config.mask_token_id
        )
        self.columns = columns = Columns.of(rows, device=device) if columns is None else columns
        self.prompt_length, self.limit = columns.integer("prompt_length"), columns.integer("limit")
        self.ends = columns.ends  # [B, E]
        self.block_size = columns.integer("block_size")
        self.is_ntp = columns.integer("is_ntp") > 0  # [B] bool, one token a pass
        self.is_sbd = columns.integer("is_sbd") > 0  # [B] bool
        # [B] tokens of a block that a row is fed
        self.fed_size = (
            torch.zeros_like(self.block_size) if sbd_config is None else self.block_size.masked_fill(self.is_ntp, 0)
        )
        self.is_exact = columns.integer("is_exact") > 0  # [B] bool, blocks are drafts
        self.prompt_lookup = columns.integer("prompt_lookup")  # [B] as in the settings
        self.seeds = columns.integer("seeds")  # [B] of each row's draws
        # float32, the bounds between the kinds of what the model drafts
        self.confidences = torch.tensor(CONFIDENCES, device=device) if confidences is None else confidences
        # Whether the drafts of any row may be copied from the text, or vary in length
        self.copies_drafts = any(each.settings.prompt_lookup for each in rows)
        self.adapts_drafts = any(each.adapts_drafts for each in rows)
        # Whether all rows are exact; whether none is ever fed a block; whether all are always fed whole blocks
        self.is_all_exact = methods == {"exact"}
        self.is_all_causal = sbd_config is None or methods == {"ntp"}
        # Whether a row may be fed no block, see `feed_blocks`
        self.may_skip_blocks = sbd_config is not None and sbd_config.causal_block
        self.feeds_whole = not (sbd_config is None or self.has_ntp or self.adapts_drafts or self.may_skip_blocks)
        # The most alternatives of a token that a row reports; None if no row keeps log-probabilities
        self.num_alternatives = max((n for each in rows if (n := each.settings.logprobs) is not None), default=None)

        self.is_first = torch.arange(self.block_width, device=device) == 0  # [k] bool, the first place of a block
        # [B, k] bool, True in column 0 of exact rows: that token is plain decoding's, and always revealed
        self.takes_next = self.is_exact[:, None] & self.is_first if self.has_exact else None
        always = sbd_config is None or sbd_config.first_token_from_causal
        from_before = torch.ones_like(self.is_ntp) if always else self.is_ntp | self.is_exact
        # [B] bool, rows whose block's first token is predicted by the last token before it; None if there are none
        self.first_is_causal = from_before if always or self.has_ntp or self.has_exact else None
        # [B, k] for each position of the block, how far before it the output is that predicts it
        self.shifts = torch.ones((len(rows), self.block_width), dtype=torch.long, device=device)
        if sbd_config is not None and not sbd_config.logit_shift:
            self.shifts.copy_(from_before[:, None] & self.is_first)


@dataclass
class Cached:
    """What the cache contains of each row. Tensors are [B]."""

    committed: Tensor  # how many positions have exact keys and values in the cache
    # How many must be in the cache before the block is fed: the prompt, or what was in it before the row was preempted
    prefill_end: Tensor
    # bool, rows whose prompt was fed to its end at least once; a repeated prefill reveals nothing
    prefilled: Tensor


@dataclass
class Block:
    """The current block of each row, [B] unless stated. It is empty if only a check of the last draft is left."""

    start: Tensor
    end: Tensor
    # The position past the last one that is still needed: `end`, or right after the block's first end-of-text
    needed_end: Tensor
    # How many of the block's tokens a row is fed after what is committed. 0 for rows of `ntp`, all rows of a model that
    # was not trained for blocks, and exact rows whose next draft doesn't come from a block
    fed_size: Tensor
    passes: Tensor  # how many passes have predicted it
    revealed: Tensor  # [B, k] bool, positions whose token is fixed
    # [B, k] in exact rows, the source of each drafted token (`drafts.kinds`). Column 0 is position `committed`, even
    # after the block has moved
    kinds: Tensor
    positions: Tensor = field(init=False)  # [B, k]; past `end` where the block is shorter than k


@dataclass
class Answer:
    """How far the answer of each row goes. Tensors are [B]."""

    text_end: Tensor  # the end of the text without a gap, drafts included
    stop_end: Tensor  # where the answer is complete: after its end-of-text, drafts included; otherwise its limit
    end: Tensor  # the end of the final text: without a gap and, in exact rows, without a draft
    finished: Tensor  # bool
    # bool, rows whose logits were not numbers or left no token. They keep what they have, and nothing more is revealed
    failed: Tensor


@dataclass
class Record:
    """What passes have done to each row so far. Tensors are [B] int64 unless stated."""

    prefill: Tensor  # the number of passes over the prompt
    number: Tensor  # of the last pass: 0 is the prefill
    commits: Tensor  # the number of passes that committed a block, or, in method `ntp`, a token
    drafted: Tensor  # drafted tokens that were checked
    accepted: Tensor  # drafted tokens that were right
    revealing: Tensor  # [B, C] int64, the pass that revealed each position, 0 for the prefill
    entropies: Tensor  # [B, C] float32, nats, of each position when it was revealed
    logprob: Tensor  # [B, C] float32; [B, 0], and the next three empty, too, where no log-probabilities are kept
    rank: Tensor  # [B, C] int64, of each token among all by its probability, from 1
    top_logprobs: Tensor  # [B, C, n] float32
    top_ids: Tensor  # [B, C, n]


@dataclass
class BatchState:
    """The mutable state of a batch. Tensors have the batch as their first dimension, and are int64 unless stated."""

    params: BatchParams  # the fixed parameters of each row
    tokens: Tensor  # [B, C] the token at each position; up to the row's limit, the mask token where none is revealed
    cache: Cached
    block: Block
    answer: Answer
    # [B, V] float32, the causal logits of the block's first token, from its first pass; [B, 0] before any is needed
    first_logits: Tensor
    record: Record | None = None  # None if nothing is recorded
    draft_text: DraftText | None = None  # a text to copy drafts from, besides each row's own
    may_prefill: bool = True  # known to the host: whether any row may need a prefill, the first or after a preemption
    batch: int = field(init=False)  # B
    columns: Tensor = field(init=False)  # [C], 0, 1, 2, ...
    rows: Tensor = field(init=False)  # [B], the same
    nobody: Tensor = field(init=False)  # [B] bool, no row
    everybody: Tensor = field(init=False)  # [B] bool, all rows

    def __post_init__(self) -> None:
        """Derive the index tensors and masks that passes use."""
        (self.batch, size), device = self.tokens.shape, self.tokens.device
        self.columns = torch.arange(size, device=device)
        self.rows = torch.arange(self.batch, device=device)
        self.nobody, self.everybody = torch.zeros_like(self.answer.finished), torch.ones_like(self.answer.finished)
        self.block.positions = self.block.start[:, None] + self.columns[: self.params.block_width]

    @property
    def is_causal(self) -> Tensor:
        """Rows that are not fed a block now, and predict a token all the same, [B] bool."""
        return (self.block.fed_size == 0) & ~self.params.is_sbd

    @property
    def is_prefill(self) -> Tensor:
        """Rows whose next pass is a prefill, the first or after a preemption, [B] bool."""
        return ~self.answer.finished & (self.cache.committed < self.cache.prefill_end)

    def next_end(self, *, fuses_commit: bool, commits_answers: bool = False) -> Tensor:
        """Return [B], the position up to which the next pass feeds each row with a full draft; `committed` if there is
        nothing to feed.

        Args:
            fuses_commit: whether the tokens to commit are fed together with the next block, or alone.
            commits_answers: whether an ended answer is committed to its end, which reading it doesn't need.
        """
        cache, block = self.cache, self.block
        end = block.start
        if self.params.feeds_whole:
            end = block.end
        elif not self.params.is_all_causal:
            end = torch.minimum(end + block.fed_size, block.end)
        if not fuses_commit:
            end = torch.where(cache.committed < block.start, block.start, end)
        if self.may_prefill:
            end = torch.where(self.is_prefill, cache.prefill_end, end)
        return end if commits_answers else torch.where(self.answer.finished, cache.committed, end)

    def candidates(self) -> Tensor:
        """Return [B, k] bool, the masked positions of the block before its first end-of-text; none in finished rows."""
        block = self.block
        return ~block.revealed & (block.positions < block.needed_end[:, None])

    def write(self, chosen: Tensor, where: Tensor, *, positions: Tensor) -> Tensor:
        """Write the tokens `chosen` [B, n] at `positions` [B, n] where `where` [B, n] bool is True. Return [B, n]
        int64, the positions written to; for the others the last column, which is never read."""
        at = positions.where(where, self.columns[-1])
        self.tokens.scatter_(1, at, chosen)
        return at

    def reveal(self, chosen: Tensor, reveal: Tensor) -> Tensor:
        """Fix the tokens `chosen` [B, k] where `reveal` [B, k] bool is True. Return what `write` does."""
        self.block.revealed |= reveal
        return self.write(chosen, reveal, positions=self.block.positions)

    def settle(self) -> tuple[Tensor, Tensor | None]:
        """Update the end of the text without a gap, the end of the final text, and which answers are complete.
        Idempotent.

        Returns:
            [B] bool, rows whose block is complete; and [B] bool, rows whose block's first token is revealed with all
            tokens before it in the cache, or None if no row is exact.
        """
        block, answer, params = self.block, self.answer, self.params
        # 1. Is the block complete, and does it contain an end-of-text?
        here, ends = self.tokens.gather(1, block.positions), params.ends
        is_end = here == ends if ends.shape[1] == 1 else (here[..., None] == ends[:, None]).any(dim=-1)
        first_stop = (block.positions + 1).where(is_end & block.revealed, NEVER).amin(dim=1)
        block.needed_end = torch.minimum(first_stop, block.end)
        gap = block.end[:, None].where(block.revealed, block.positions).amin(dim=1)
        end = torch.minimum(gap, block.needed_end)
        answer.stop_end = torch.where(first_stop <= end, end, answer.stop_end)
        # 2. Is the answer complete? A draft may be wrong, so only its first token counts: it came from causal logits
        certain, has_first = end, None
        if params.has_exact:
            has_first = block.revealed[:, 0] & (self.cache.committed == block.start)
            certain = torch.maximum(answer.end, self.cache.committed + has_first)
            certain = certain if params.is_all_exact else torch.where(params.is_exact, certain, end)
        answer.end = torch.minimum(certain, answer.stop_end)
        answer.stop_end = torch.where(answer.failed, answer.end, answer.stop_end)
        answer.finished = answer.end >= answer.stop_end
        answer.text_end = torch.minimum(end, answer.stop_end)
        return end == block.needed_end, has_first

    def advance(self, *, fuses_commit: bool = True) -> None:
        """Finish rows whose answer is complete after a pass, and open the next block of rows whose block is complete.

        With `fuses_commit`, as in `next_end`, exact rows open a new block after the draft as soon as the draft's first
        token is known, and the next pass checks the draft. Otherwise a block that is fed gets a separate pass first.
        """
        done, has_first = self.settle()
        if has_first is not None:
            submitted = has_first if fuses_commit else has_first & (done | (self.block.passes > 0) | self.is_causal)
            done = submitted if self.params.is_all_exact else torch.where(self.params.is_exact, submitted, done)
        # The next block is empty after the answer's end, or if a draft ends the text
        self._open_blocks(done | self.answer.finished, self.answer.text_end)

    def shorten_drafts(self, requested: Tensor) -> None:
        """Shorten drafts before the next pass, and set how much of the next blocks it feeds.

        Args:
            requested: [2, B] int64. How many drafted tokens of each row are checked, not counting the first, or -1 for all;
                and the new `fed_size` of each row, or -1 to leave it unchanged.
        """
        answer = self.answer
        start = self.cache.committed + 1 + requested[0]
        is_cut = (requested[0] >= 0) & (start < answer.text_end)
        self.block.fed_size = torch.where(requested[1] >= 0, requested[1], self.block.fed_size)
        answer.stop_end = torch.where(is_cut, self.params.limit, answer.stop_end)  # a drafted end that was cut
        answer.text_end = torch.where(is_cut, start, answer.text_end)
        self._open_blocks(is_cut, start)

    def feed_blocks(self) -> None:
        """Let the next pass feed each row a block, after one that fed some of them none."""
        self.block.fed_size = self.params.fed_size

    def _open_blocks(self, rows: Tensor, start: Tensor) -> None:
        """Place the blocks of `rows` [B] bool at `start` [B], and mask all their positions."""
        block = self.block
        self._place_blocks(rows, start)
        block.revealed = block.revealed.masked_fill(rows[:, None], False)
        if self.params.has_exact:  # tokens that were drafted after a gap, cut or rejected
            self.tokens.scatter_(1, self.columns[-1].where(block.revealed, block.positions), self.params.mask_token)

    def _place_blocks(self, rows: Tensor, start: Tensor) -> None:
        """Place the blocks of `rows` [B] bool at `start` [B]. A block ends at `stop_end` at the latest."""
        block = self.block
        block.start = torch.where(rows, start, block.start)
        block.positions = block.start[:, None] + self.columns[: self.params.block_width]
        block.end = torch.minimum(block.start + self.params.block_size, self.answer.stop_end)
        block.needed_end = torch.where(rows, block.end, block.needed_end)
        block.passes = block.passes.masked_fill(rows, 0)

    # Only the following methods change `committed`

    def commit(self, ends: Tensor, *, has_prefill: bool = True) -> None:
        """Count what a pass fed causally, up to `ends` [B], as committed. The runner has already written the keys and
        values. `has_prefill`: whether the pass was a prefill for any row."""
        cache = self.cache
        cache.committed = torch.maximum(cache.committed, torch.minimum(ends, self.block.start))
        if has_prefill:
            cache.prefilled = cache.prefilled | (cache.committed >= cache.prefill_end)

    def correct(self, rows: Tensor, positions: Tensor, *, has_token: Tensor) -> None:
        """Open a block at `positions` [B] in `rows` [B] bool, whose draft is wrong there. All before it is committed.
        Where `has_token` [B] bool is True, the block's first token is revealed: the right one was written there."""
        self.cache.committed = torch.where(rows, positions, self.cache.committed)
        self.answer.stop_end = torch.where(rows, self.params.limit, self.answer.stop_end)
        self._place_blocks(rows, positions)
        self.block.revealed = torch.where(rows[:, None], self.params.is_first & has_token[:, None], self.block.revealed)

    @torch.inference_mode()
    def hold(self, length: int) -> None:
        """Mark the first `length` positions of all rows, before their prefill, as already cached by another request."""
        self.cache.committed = torch.full_like(self.cache.committed, length)

    @torch.inference_mode()
    def preempt(self) -> None:
        """Mark the cache of all rows as lost. It is computed again before they continue."""
        cache = self.cache
        held = torch.maximum(cache.committed, cache.prefill_end)
        cache.prefill_end = torch.where(cache.prefilled, held, cache.prefill_end)
        cache.committed, self.may_prefill = torch.zeros_like(cache.committed), True

    # Rows that end

    @torch.inference_mode()  # inference tensors can't be changed in place outside of it
    def finish(self, row: int, *, end: int | None = None) -> None:
        """End a row's answer and blocks at position `end`, past its last token; by default where the answer ends now. A
        failure after it is cleared."""
        answer, block, here = self.answer, self.block, self.rows == row
        end = int(answer.end[row]) if end is None else end
        answer.finished, answer.failed = answer.finished | here, answer.failed & ~here
        block.revealed = block.revealed & ~here[:, None]
        for group, names in ((answer, ("text_end", "stop_end", "end")), (block, ("start", "end", "needed_end"))):
            for each in names:
                setattr(group, each, getattr(group, each).masked_fill(here, end))
        block.positions = block.start[:, None] + self.columns[: self.params.block_width]

    def counts(self, row: int) -> PassCounts:
        """Return the passes of one row. Waits for the device."""
        record, is_ntp = self.record, self.params.rows[row].settings.method == "ntp"
        assert record is not None
        prefill, number, commit = torch.stack([record.prefill[row], record.number[row], record.commits[row]]).tolist()
        commit = 0 if is_ntp else commit
        return PassCounts(prefill=prefill, block=number - commit, commit=commit)

    def answer_of(self, row: int) -> Tensor:
        """Return [n] int64, the final tokens of a row's answer, the end-of-text included."""
        return self.tokens[row, self.params.rows[row].prompt_length : int(self.answer.end[row])]
