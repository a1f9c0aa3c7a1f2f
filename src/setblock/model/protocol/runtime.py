"""Define a runtime: what decoding needs of a model, what one forward pass feeds it, and who runs the pass. `SBDModel` is one.

Knows tokens, positions and what each may see. Knows nothing of what they mean, of how a cache is laid out, of PyTorch modules,
nor of Transformers' models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedTokenizerBase

from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.sbd_config import SBDModelConfig

PROMPT_PART = 512
"""Tokens of a prompt that a pass is fed at most, unless a request says otherwise. Of 128 to 2,048 this is the fastest on a CPU,
or nearly so: 1.2 times as fast as a prompt of 2,048 tokens at once, whose mask has more pairs that nobody sees."""


def fixed_capacity(needed: int) -> int:
    """Return the positions to allocate for `needed`: few values for many lengths, so that compiled code is used again."""
    return max(256, 1 << (needed - 1).bit_length())


class RowSchedule(NamedTuple):
    """Hold what a pass feeds one row, for the host."""

    start: int  # the first position
    end: int  # the position past the last; `start` where the row is fed nothing
    block_start: int  # those from here on are fed as a block, those before it causally
    is_prefill: bool  # whether it feeds a prompt, which may be cut, or what was preempted
    is_cut: bool = False  # whether something is left for later passes: a part of the prompt, or all where a row waits
    stop_end: int = 0  # where the answer would end if this draft is right
    kinds: tuple[int, ...] = ()  # of the drafted tokens behind the first, where drafts vary in length
    token_ids: tuple[int, ...] = ()  # the certain token at `start` and the drafted ones, where drafts vary in length
    copied: int = 0  # the kind that the second token of a copy would be of, if there is one; a smaller number if not
    fed_size: int = -1  # tokens of the new block to feed; -1 where nobody has decided
    branches: int = -1  # how many branches are fed, at the draft's first places; -1 where nobody has decided
    branch_size: int = -1  # tokens of a branch; -1 where nobody has decided

    @property
    def drafted(self) -> int:
        """Return the number of tokens that the pass checks: those that it commits, but for the first."""
        return 0 if self.is_prefill else max(0, min(self.end, self.block_start) - self.start - 1)

    @property
    def in_block(self) -> int:
        """Return the number of tokens that are fed as a block."""
        return 0 if self.is_prefill else max(0, self.end - self.block_start)

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.end - self.start

    @property
    def is_alike(self) -> bool:
        """Return whether each token sees as much as the last one."""
        return self.end - self.start == 1 or self.start >= self.block_start


@dataclass(frozen=True)
class PassPlan:
    """Hold the sizes of a pass, and which rows of a batch it feeds how far."""

    rows: Tensor  # [A] int64, which rows of the batch take part, in order
    batch: int  # B, how many rows the batch has
    ends: Tensor  # [A] int64, the position past the last token that each row is fed
    queries: int  # Q, the most tokens of a row, branches left out
    width: int  # w, places of each row's block whose outputs are wanted: 1 where none is fed a block
    visible: int  # the position past the last in the cache that any row attends to
    is_prefill: Tensor | None = None  # [A] bool, rows fed part of a prompt, or what was preempted; None where none is
    checked: int = 0  # outputs of each row at which drafts are checked
    branches: int = 0  # n, the most branches of a row
    branch_size: int = 0  # c, tokens of a branch
    is_fixed: bool = False  # whether sizes are of the few that a compiled model is made for, at the price of padding
    fuses_commit: bool = True  # whether what is committed is fed with the block behind it, not in a separate pass
    causal_block: bool = False  # whether a token of a block sees no later one of it
    may_be_cut: bool = False  # whether a row may be fed any number of the tokens it is due, as vLLM's budget has it
    is_full: bool = False  # whether the pass surely has no padding
    sees_all: bool = False  # whether, besides, each token surely sees all that is visible
    # [A], for the host; None where only the device knows them, or sizes are fixed: code is compiled for the values of numbers
    schedules: Sequence[RowSchedule] | None = None

    @property
    def has_blocks(self) -> bool:
        """Return whether any row is fed a block; True where only the device knows."""
        return self.schedules is None or any(scheduled.in_block for scheduled in self.schedules)

    @property
    def has_all(self) -> bool:
        """Return whether all rows of the batch take part."""
        return self.rows.shape[0] == self.batch

    @property
    def branched(self) -> int:
        """Return n c, the most tokens that a row is fed in branches."""
        return self.branches * self.branch_size

    def of(self, whole: Tensor) -> Tensor:
        """Return [A, ...] of what all rows have, [B, ...]; the argument itself where all rows take part."""
        return whole if self.has_all else whole[self.rows]

    def put(self, part: Tensor, whole: Tensor | None = None) -> Tensor:
        """Return [B, ...] with `part` [A, ...] in its rows; elsewhere `whole` [B, ...], which may be written to, or 0."""
        if self.has_all:
            return part
        if whole is None:
            whole = part.new_zeros((self.batch, *part.shape[1:]))
        whole[self.rows] = part
        return whole


@dataclass(frozen=True)
class ModelInput:
    """Hold the inputs of a pass: A rows that take part, Q tokens at most and m = w + `PassPlan.checked` outputs of each.

    A pass that checks a draft can be fed *branches*, too: future blocks like the row's own, each of which begins at a place of
    the draft and sees what is before it. If the draft is wrong there, the branch has given the next draft already. There are n
    of c tokens for each row. They are the last n c columns and outputs, and Q and m count them.
    """

    plan: PassPlan  # its sizes and its rows
    tokens: Tensor  # [A, Q] int64, mask tokens included. Anything where not real
    positions: Tensor  # [A, Q] int64; 0 where not real
    block_start: Tensor  # [A] int64, from this position on tokens are of the future block; those before it run causally
    is_real: Tensor  # [A, Q] bool; the rest is padding
    # [A, m] int64, the columns of Q whose outputs are wanted: of w places of the row's block, then those that check a draft
    outputs: Tensor
    wanted: Tensor  # [A, m] bool, where they are; elsewhere anything may be given
    targets: Tensor  # [A, m] int64, the positions whose tokens the outputs predict
    branch_starts: Tensor | None = None  # [A, n] int64, the position of each branch's first token; None without any

    @property
    def in_block(self) -> Tensor:
        """Return [A, Q] bool, tokens of a future block. Where the runner does not fuse commits, all of a row's or none."""
        in_block = self.positions >= self.block_start[:, None]  # padding is at 0, where no block begins
        if self.branch_starts is not None:
            in_block[:, self.plan.queries :] = self.is_real[:, self.plan.queries :]
        return in_block

    @property
    def slots(self) -> Tensor:
        """Return [A, Q] int64, where the keys and values of each token are written, of the row's places in the cache: at its
        position. A branch is written behind all that the row is fed, where later passes write again."""
        if self.branch_starts is None:
            return self.positions
        behind = self.plan.ends[:, None] + torch.arange(self.plan.branched, device=self.positions.device)
        return torch.cat([self.positions[:, : self.plan.queries], behind], dim=1)

    @property
    def limits(self) -> Tensor:
        """Return [A, Q] int64, the first slot that each token must not see; a branch sees its own besides (`branch_slots`)."""
        limits = self.positions + 1
        if not self.plan.causal_block:
            limits = torch.where(self.in_block, self.plan.ends[:, None], limits)
        if self.branch_starts is not None:
            limits[:, self.plan.queries :] = self.branch_starts.repeat_interleave(self.plan.branch_size, dim=1)
        return limits

    @property
    def branch_slots(self) -> tuple[Tensor, Tensor] | None:
        """Return [A, Q] int64 each, the first slot of a branch that each token sees, and the one past the last; equal outside
        of branches. None where there are none."""
        if self.branch_starts is None:
            return None
        plan, first = self.plan, self.slots.clone()
        last, size = first.clone(), plan.branch_size
        place = torch.arange(plan.branched, device=first.device) % size
        of_branches = self.is_real[:, plan.queries :].reshape(-1, plan.branches, size)
        tokens = of_branches.sum(dim=2).repeat_interleave(size, dim=1)
        first[:, plan.queries :] -= place
        last[:, plan.queries :] += tokens.clamp(max=1) if plan.causal_block else tokens - place
        return first, last

    def padded(self, columns: int) -> "ModelInput":
        """Return the same pass with so many more columns, of padding."""
        wider = {name: pad(getattr(self, name), (0, columns)) for name in ("tokens", "positions", "is_real")}
        return replace(self, plan=replace(self.plan, is_full=False, sees_all=False), **wider)

    def spread(self, values: Tensor) -> Tensor:
        """Return [A, m, ...], with zeros where nothing is wanted, from values [M, ...] of the M wanted outputs, row by row."""
        whole = values.new_zeros((*self.wanted.shape, *values.shape[1:]))
        whole[self.wanted] = values
        return whole


Function = Callable[..., Any]

Compile = Callable[[Function], Function]
"""Give a function that does the same with tensors of few, fixed shapes, and faster."""


def identity(function: Function, /) -> Function:
    """Return the function itself, which is no faster."""
    return function


class Runner(Protocol):
    """Run the passes of a batch of rows, and keep what the model remembers of them (its keys and values).

    A pass writes what it is fed to its positions of the cache, future blocks included. Every later pass of a row begins at or
    before the end of what was committed, so it writes over what a block has left there.
    """

    # Whether a row may be fed tokens causally and a future block behind them in one pass; if not, commits are separate passes
    fuses_commit: bool = True
    pads: bool = False  # whether a pass computes as many tokens for each row, padding included
    branched: int = 0  # how many tokens a row may be fed in branches; 0 where they can't be run
    # The positions of a row's cache, which every pass reads in full where passes should be of few sizes; else None
    fixed_keys: int | None = None
    compiled: Compile = staticmethod(identity)  # what makes the functions between passes of few sizes fast

    def computed(self, tokens: int) -> int:
        """Return how many tokens a pass computes that is fed so many: no fewer. More where products of few numbers of rows are
        fast, or give a token the same bits."""
        return tokens

    def logits(self, inputs: ModelInput) -> Tensor:
        """Return f of eq. 9: float32 logits, which may be written to. They are [M, V] of the M wanted outputs, row by row; or
        [A, m, V] of all outputs, with anything where none is wanted."""


class PagedRunner(Runner, Protocol):
    """Run the passes of rows that come and go. Its cache is pages of positions, which rows that begin alike may share."""

    shares_pages: bool = True  # whether a row may be given pages that another row has filled, not fed what they hold

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Say which rows the next pass's batch has; none, where there is none.

        Args:
            pages: of each row, the pages that hold its positions, from the first on.
            ids: of each row, a unique number, as long as it is in the batch. A row that comes again is fed anew.
        """


class LanguageModel(Protocol):
    """Define a model that decoding can drive."""

    tokenizer: PreTrainedTokenizerBase
    # What its training fixed; None where it was never trained for blocks: it decodes by `ntp`, or `exact` with copied drafts
    sbd_config: SBDModelConfig | None
    end_of_text_ids: tuple[int, ...]  # ids that end an answer
    draft_text: DraftText | None  # what method `exact` copies drafts from, besides each request's own text, if anything

    @property
    def vocab_size(self) -> int:
        """Return V, the number of logits of a position."""

    @property
    def context_length(self) -> int | None:
        """Return the most positions that the model can hold, or None where there is no limit."""

    @property
    def device(self) -> torch.device:
        """Return the device where feeds are made, and logits are read."""

    def runner(self, *, rows: int, capacity: int, branched: int = 0) -> Runner:
        """Return a runner, with an empty cache, of `rows` rows of at most `capacity` positions, which stay together to
        the end. `branched`: the most tokens that a row may be fed in branches, if the runner can run them."""

    def paged_runner(self, *, pages: int, page_tokens: int, rows: int) -> PagedRunner:
        """Return a runner of rows that come and go, at most `rows` at once. Its cache is empty, and has `pages` pages of
        `page_tokens` positions. Raise `SetBlockError`, which says why, if the model can't be run so."""


def pass_kind(runner: Runner) -> str:
    """Return the name of a runner's passes, whose costs are alike."""
    return f"{type(runner).__name__}{'' if runner.fixed_keys is None else ', compiled'}"
