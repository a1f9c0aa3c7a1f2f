"""The interface of a runtime: the model that decoding drives (`LanguageModel`), the inputs of one forward pass (`ModelInput`)
and the object that runs it (`Runner`). `SBDModel` is one implementation.

It is independent of the cache's layout, of PyTorch modules and of Transformers.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.sbd_config import SBDModelConfig

PROMPT_PART = 512
"""The most prompt tokens that one pass is fed, unless a request sets a number. Of 128 to 2,048 this is the fastest on a CPU,
or nearly so: 1.2 times as fast as a prompt of 2,048 tokens at once, whose mask has more pairs that nobody sees."""


def fixed_capacity(needed: int) -> int:
    """Return the positions to allocate for `needed`: few values for many lengths, so that compiled code is used again."""
    return max(256, next_power_of_two(needed))


def next_power_of_two(number: int) -> int:
    """Return the first power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


class RowSchedule(NamedTuple):
    """What a pass feeds one row, as numbers on the host."""

    start: int  # the first position
    end: int  # the position past the last; equals `start` where the row is fed nothing
    block_start: int  # tokens from this position on are fed as a block, those before it causally
    is_prefill: bool  # whether the tokens are a prompt (or a part of it), or those of a preempted request
    is_cut: bool = False  # whether later passes feed the rest: a part of the prompt, or all of it where the row waits
    stop_end: int = 0  # the position where the answer ends if the whole draft is right
    kinds: tuple[int, ...] = ()  # kinds of the drafted tokens after the first, where drafts vary in length
    token_ids: tuple[int, ...] = ()  # the certain token at `start` and the drafted ones, where drafts vary in length
    copied: int = 0  # the kind of a copy's second token, if there is one; a smaller number if not
    fed_size: int = -1  # tokens of the new block to feed; -1 where not yet resolved

    @property
    def drafted(self) -> int:
        """The number of drafted tokens that the pass checks: the causal ones except the first."""
        return 0 if self.is_prefill else max(0, min(self.end, self.block_start) - self.start - 1)

    @property
    def in_block(self) -> int:
        """The number of tokens that are fed as a block."""
        return 0 if self.is_prefill else max(0, self.end - self.block_start)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.end - self.start

    @property
    def sees_all(self) -> bool:
        """Whether every token attends to all positions before `end`, as the last one does."""
        return self.end - self.start == 1 or self.start >= self.block_start


class PassLayout(Enum):
    """What is known of a pass beforehand."""

    PADDED = auto()  # rows may have padding
    FULL = auto()  # no row has padding
    UNIFORM = auto()  # no row has padding, and each token sees all `visible` positions


@dataclass(frozen=True)
class PassPlan:
    """The sizes of a pass, the rows of the batch that take part, and how far each is fed."""

    rows: Tensor  # [A] int64, the rows of the batch that take part, in order
    batch: int  # B, the number of rows of the batch
    ends: Tensor  # [A] int64, the position past the last token that each row is fed
    queries: int  # Q, the most tokens of a row
    width: int  # w, outputs wanted of each row's block; 1 where no row is fed a block
    visible: int  # the position past the last in the cache that any row attends to
    is_prefill: Tensor | None = None  # [A] bool, rows fed (part of) a prompt or a preempted request; None without any
    checked: int = 0  # outputs of each row at which drafts are checked
    layout: PassLayout = PassLayout.PADDED
    fuses_commit: bool = True  # whether committed tokens are fed with the block after them, not in a separate pass
    causal_block: bool = False  # whether a token of a block sees no later one of it
    may_be_cut: bool = False  # whether a row may be fed only some of its tokens, as under vLLM's token budget
    # [A], for the host; None where only the device has them, and in static passes: compiled code depends on such numbers
    schedules: Sequence[RowSchedule] | None = None

    @property
    def is_full(self) -> bool:
        """Whether no row has padding."""
        return self.layout in (PassLayout.FULL, PassLayout.UNIFORM)

    @property
    def has_blocks(self) -> bool:
        """Whether any row is fed a block; True where only the device has that information."""
        return self.schedules is None or any(scheduled.in_block for scheduled in self.schedules)

    @property
    def has_all(self) -> bool:
        """Whether all rows of the batch take part."""
        return self.rows.shape[0] == self.batch

    def of(self, whole: Tensor) -> Tensor:
        """Return the participating rows [A, ...] of `whole` [B, ...]; `whole` itself where all rows take part."""
        return whole if self.has_all else whole[self.rows]

    def put(self, part: Tensor, whole: Tensor | None = None) -> Tensor:
        """Return [B, ...] with `part` [A, ...] in the participating rows. The other rows are those of `whole` [B, ...], which
        may be overwritten, or 0 without it."""
        if self.has_all:
            return part
        if whole is None:
            whole = part.new_zeros((self.batch, *part.shape[1:]))
        whole[self.rows] = part
        return whole


@dataclass(frozen=True)
class ModelInput:
    """The inputs of a pass: A participating rows, each of at most Q tokens and m = w + `PassPlan.checked` outputs."""

    plan: PassPlan  # sizes and rows of the pass
    tokens: Tensor  # [A, Q] int64, mask tokens included; arbitrary in padding
    positions: Tensor  # [A, Q] int64; 0 in padding
    block_start: Tensor  # [A] int64, from this position on tokens are of the future block; those before it run causally
    is_real: Tensor  # [A, Q] bool; False in padding
    # [A, m] int64, the columns (of Q) of the outputs: w of the row's block, then those that check a draft
    outputs: Tensor
    wanted: Tensor  # [A, m] bool, which of these outputs are wanted; the others may be anything
    targets: Tensor  # [A, m] int64, the positions whose tokens the outputs predict

    @property
    def in_block(self) -> Tensor:
        """[A, Q] bool, tokens of a future block. Where the runner does not fuse commits, all tokens of a row or none."""
        return self.positions >= self.block_start[:, None]  # padding is at 0, where no block begins

    @property
    def limits(self) -> Tensor:
        """[A, Q] int64, the first slot that each token must not see. The token at position p is in slot p."""
        limits = self.positions + 1
        return limits if self.plan.causal_block else torch.where(self.in_block, self.plan.ends[:, None], limits)

    def padded(self, columns: int) -> "ModelInput":
        """Return the same pass with `columns` more columns of padding."""
        wider = {name: pad(getattr(self, name), (0, columns)) for name in ("tokens", "positions", "is_real")}
        return replace(self, plan=replace(self.plan, layout=PassLayout.PADDED), **wider)

    def spread(self, values: Tensor) -> Tensor:
        """Return the values [M, ...] of the M wanted outputs, row by row, as [A, m, ...] with zeros elsewhere."""
        whole = values.new_zeros((*self.wanted.shape, *values.shape[1:]))
        whole[self.wanted] = values
        return whole


class Runner(Protocol):
    """Runs the passes of a batch of rows that come and go, and keeps their key-value cache, in pages.

    A pass writes all its tokens to their positions of the cache, future blocks included. Every later pass of a row begins at or
    before the end of the committed tokens, so it overwrites the entries of a block.
    """

    # Whether a row may be fed tokens causally and a future block behind them in one pass; if not, commits are separate passes
    fuses_commit: bool = True
    pads: bool = False  # whether a pass computes the same number of tokens for each row, padding included
    shares_pages: bool = True  # whether a row may use pages that another row has filled, without being fed their tokens
    prompts_apart: bool = False  # whether prompts get passes of their own: other rows would be padded to their length
    runs_ahead: bool = False  # whether a pass may be fed upper bounds on its schedules, before the last pass was read
    # None if the cache can be cut back to any position. Else a row goes back to a settled one, where its pass begins: it is fed
    # known tokens again, and no block where these are as many as this
    most_refed: int | None = None

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Set the rows of the next pass's batch; none, where there is no next pass.

        Args:
            pages: the pages of each row's positions, from the first on.
            ids: a number for each row, unique as long as the row is in the batch. A row that returns is fed from the start.
        """

    def refed(self, row: int, start: int) -> int:
        """Return how many known tokens before `start` the next pass feeds a row of the batch again."""
        return 0

    def computed(self, tokens: int) -> int:
        """Return the number of tokens that a pass computes when it is fed `tokens`: at least as many. It is more where only
        some row counts make matrix products fast, or give a token the same bits in every pass."""
        return tokens

    def logits(self, inputs: ModelInput) -> Tensor:
        """Return f of eq. 9: float32 logits, which the caller may overwrite. They are [M, V], of the M wanted outputs row by
        row; or [A, m, V], of all outputs, with arbitrary values where none is wanted."""


class StaticRunner(Protocol):
    """Runs passes of fixed sizes for the rows of a static table, with the cache of a `Runner`.

    A pass has [R, Q] tokens of R rows. Each row may see up to K keys.

    A pass reads nothing on the host, copies nothing from it, and has no size that depends on values: it can be captured.
    """

    def keys_for(self, positions: int) -> int:
        """Return K, a power of two, for rows that end at `positions` at the latest."""

    def place(self, rows: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Write the pages of rows of the table, from the first position on, as far as they have changed."""

    def clear(self, pages: Sequence[int]) -> None:
        """Make sure that what pages hold now, which may be NaN, spoils no pass of their next owner."""

    def logits(self, inputs: ModelInput, *, rows: Tensor) -> Tensor:
        """Run one pass, and return the logits of all outputs, [R, m, V] float32.

        Args:
            inputs: in which all rows take part, with K as `visible`.
            rows: [R] int64, their rows of the table.
        """


class LanguageModel(Protocol):
    """A model that decoding can drive."""

    tokenizer: PreTrainedTokenizerBase
    # None where the model was never trained for blocks: it then decodes by `ntp`, or by `exact` with copied drafts
    sbd_config: SBDModelConfig | None
    end_of_text_ids: tuple[int, ...]  # ids that end an answer
    draft_text: DraftText | None  # texts that method `exact` copies drafts from, besides each request's own

    @property
    def vocab_size(self) -> int:
        """V, the number of logits of a position."""

    @property
    def context_length(self) -> int | None:
        """The most positions that the model supports, or None where there is no limit."""

    @property
    def device(self) -> torch.device:
        """The device of the inputs and the logits."""

    @property
    def needs_whole_rows(self) -> bool:
        """Whether each request needs one page for all its positions."""

    @property
    def static_kind(self) -> Literal["compiled", "captured"] | None:
        """How passes of fixed sizes run, if that is asked for: compiled, or captured as CUDA graphs; else None."""

    @property
    def static_state(self) -> Hashable:
        """What of the model captured passes depend on, such as the addresses of its weights. They may be replayed as long as it
        is equal."""

    def runner(self, *, pages: int, page_tokens: int, rows: int, whole_rows: bool = False) -> Runner:
        """Return a runner for at most `rows` rows at once, with an empty cache of `pages` pages of `page_tokens` positions.

        Args:
            pages: of the cache.
            page_tokens: positions of a page.
            rows: the most that may run at once.
            whole_rows: whether a row has one page, which holds all its positions.

        Raises:
            SetBlockError: the model can't be run so.
        """

    def static_passes(self, runner: Runner, *, rows: int, positions: int) -> StaticRunner:
        """Return a runner of passes of fixed sizes, with the cache of `runner`, for a static table of `rows` rows of at most
        `positions` positions each. Raise `SetBlockError` with the reason if the model has none."""


def pass_kind(runner: Runner) -> str:
    """Return a name for the kind of a runner's passes. Passes of one kind have similar costs."""
    return type(runner).__name__
