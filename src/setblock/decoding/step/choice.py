"""The choice of positions that a pass reveals in each row, and of their tokens: g and p of Algorithm 3.

A token is the most likely one at temperature 0, otherwise a draw: Gumbel-max with noise that is a pure function of
(seed, position, token id). So a request's tokens depend neither on the rest of its batch nor on how many passes its
block takes. Which positions a pass reveals never depends on the noise, so a position's noise is independent of all that
its token is conditioned on: the draw is exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setblock.decoding.constraints.rows import BatchConstraints, RowConstraints
from setblock.decoding.samplers.base import BlockView, Memory, Sampler, Selection
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.joining import joined_list, joined_rows
from setblock.decoding.state.state import BatchParams, Columns
from setblock.decoding.step.logits import Logits, Reader, Reading, logit_rules, most_likely, read_best
from setblock.errors import SetBlockError


class Policy:
    """How the tokens of a batch's rows are chosen: logit rules, samplers, draws and constraints."""

    def __init__(
        self,
        params: Sequence[RequestParams],
        constraints: Sequence[RowConstraints],
        *,
        vocab_size: int,
        device: torch.device,
        columns: Columns | None = None,
        samplers: "RowSamplers | StaticSamplers | None" = None,
        kernel: "Kernel | None" = None,
    ) -> None:
        """`columns`: of `params`, if they are on the device already. `samplers`: by default one for each row. `kernel`: reads
        the logits in place of PyTorch's operations. All passes of a request must have the same: they may differ in rounding."""
        settings = [each.settings for each in params]
        self.vocab_size, self._device = vocab_size, device
        columns = Columns.of(params, device=device) if columns is None else columns
        self.rules = logit_rules(params, columns, vocab_size=vocab_size)
        self.samplers = samplers or RowSamplers([each.sampler for each in settings], device=device)
        self.draws = draws_of(settings, columns, vocab_size=vocab_size)._replace(kernel=kernel)
        self.constraints = BatchConstraints(constraints)

    @classmethod
    def joined(cls, parts: Sequence["Policy"], params: BatchParams, rows: Sequence[int] | None = None) -> "Policy":
        """Return one policy with the rows of several, or only `rows`, numbered over all parts; `params` are theirs."""
        constraints, vocab_size = joined_list([part.constraints.rows for part in parts], rows), parts[0].vocab_size
        device, columns = parts[0]._device, params.columns
        kernel = parts[0].draws.kernel
        policy = cls(params.rows, constraints, vocab_size=vocab_size, device=device, columns=columns, kernel=kernel)
        policy.samplers.memories = joined_list([part.samplers.memories for part in parts], rows)
        return policy


# Which positions


class RowSamplers:
    """One sampler for each row; rows with equal samplers are run together. None reveals all candidates."""

    def __init__(self, samplers: Sequence[Sampler | None], *, device: torch.device) -> None:
        different = [each for row, each in enumerate(samplers) if each not in samplers[:row]]
        groups = [[row for row, each in enumerate(samplers) if each == sampler] for sampler in different]
        self._groups = [
            (sampler, rows, torch.tensor(rows, device=device)) for sampler, rows in zip(different, groups, strict=True)
        ]
        # For each row, its sampler's memory for the next pass: tensors [1, k, ...]; empty before the first call
        self.memories: list[Memory] = [{}] * len(samplers)

    def select(self, block: BlockView, *, passes: Tensor, is_wanted: Tensor) -> Selection:
        """Run each row's sampler, and store its memory.

        Args:
            block: of all rows, without memory.
            passes: [B] int64, how many passes have predicted each row's block. If none, its memory is cleared first.
            is_wanted: [B] bool, rows of whose block the pass predicts something. The memory of others stays.

        Raises:
            SetBlockError: a sampler breaks the rule of `Selection`.
        """
        if len(self._groups) == 1:
            sampler, everyone, _ = self._groups[0]
            return self._ask(sampler, everyone, block, passes, is_wanted)
        reveal, changed = torch.zeros_like(block.candidates), None
        for sampler, numbers, rows in self._groups:
            columns = (block.logits, block.candidates, block.revealed, block.entropy, block.confidence)
            logits, candidates, revealed, entropy, confidence = (each[rows] for each in columns)
            of_rows = BlockView(logits, candidates, revealed, entropy, confidence)
            selection = self._ask(sampler, numbers, of_rows, passes[rows], is_wanted[rows])
            reveal[rows] = selection.reveal
            if selection.logits is not None:
                changed = (block.logits if changed is None else changed).index_copy(0, rows, selection.logits)
        return Selection(reveal, changed)

    def _ask(
        self, sampler: Sampler | None, rows: Sequence[int], block: BlockView, passes: Tensor, is_wanted: Tensor
    ) -> Selection:
        if sampler is None:
            return Selection(block.candidates)
        size, memories = block.candidates.shape[1], [self.memories[row] for row in rows]
        names = {name: each for memory in memories for name, each in memory.items()}
        kept = {}
        for name, example in names.items():  # zeros where a row has none
            whole = joined_rows([memory.get(name, torch.zeros_like(example)) for memory in memories], None, size)
            kept[name] = whole.masked_fill(_beside(whole, passes) == 0, 0)
        selection = sampler.select(replace(block, memory=kept))
        if not isinstance(selection, Selection):
            raise SetBlockError(f"sampler {sampler} must return Selection(reveal), not a {type(selection).__name__}")
        # This check waits for the device. The samplers of this package are exempt: tests check them
        if not is_own(sampler):
            chosen = selection.reveal & block.candidates
            reveals_none = block.candidates.any(dim=1) ^ chosen.any(dim=1)  # such a row would never finish
            if bool(reveals_none.any() | (selection.reveal ^ chosen).any()):  # or overwrite revealed tokens
                raise SetBlockError(
                    f"sampler {sampler} must reveal at least one candidate of each row, and candidates only"
                )
        left = {
            name: torch.where(_beside(each, is_wanted), each, kept.get(name, torch.zeros_like(each)))
            for name, each in selection.memory.items()
        }
        if left or names:
            for place, row in enumerate(rows):
                self.memories[row] = {name: each[place : place + 1] for name, each in left.items()}
        return Selection(selection.reveal, selection.logits)


def is_own(sampler: Sampler | None) -> bool:
    """Return whether a sampler is this package's, and so neither waits for the device nor keeps anything between passes."""
    return sampler is None or type(sampler).__module__.startswith("setblock.decoding.")


class StaticSamplers:
    """Samplers of this package, each of which is run on all rows: which row has which one is known to the device alone."""

    def __init__(self, samplers: Sequence[Sampler | None], which: Tensor) -> None:
        """`which` [B] int64: the index of each row's sampler."""
        self._samplers, self._which = samplers, which
        self.memories: list[Memory] = [{}] * len(which)  # these samplers keep nothing

    def select(self, block: BlockView, *, passes: Tensor, is_wanted: Tensor) -> Selection:
        """Run the samplers, as `RowSamplers.select` does."""
        found = Selection(block.candidates)
        for index, sampler in enumerate(self._samplers):
            selection = Selection(block.candidates) if sampler is None else sampler.select(block)
            if len(self._samplers) == 1:
                return selection
            found = self._where(index, block, selection, found)
        return found

    def _where(self, index: int, block: BlockView, selection: Selection, others: Selection) -> Selection:
        here, logits = (self._which == index)[:, None], others.logits
        if selection.logits is not None:
            logits = torch.where(here[..., None], selection.logits, block.logits if logits is None else logits)
        return Selection(torch.where(here, selection.reveal, others.reveal), logits)


def _beside(each: Tensor, of_rows: Tensor) -> Tensor:
    """Return `of_rows` [b] as [b, 1, ...], with as many dimensions as `each`."""
    return of_rows.view(-1, *[1] * (each.dim() - 1))


# Which tokens


Kernel = Callable[[Tensor, Tensor, Tensor, Tensor], Reading]
"""Reads logits [B, n, V], given temperatures [B], seeds [B] and positions [B, n]: `reading_kernel.read_by_kernel`."""


class Draws(NamedTuple):
    """How each row of a batch draws its tokens. A bound is None if no row has it."""

    temperature: Tensor  # [B] float32, at least 0; 0 is exactly argmax (the smallest id of a tie)
    top_k: Tensor | None  # [B] int64, V in rows without this bound
    top_p: Tensor | None  # [B] float32
    min_p: Tensor | None  # [B] float32
    seeds: Tensor  # [B] int64
    is_greedy: bool  # whether all temperatures are 0
    kernel: Kernel | None = None

    @property
    def reader(self) -> Reader:
        """What reads the logits of these rows."""
        return read_best if self.kernel is None else self._read

    def _read(self, logits: Tensor, positions: Tensor) -> Reading:
        reading = self.read_by_kernel(logits, positions)
        has_bound = not (self.top_k is None and self.top_p is None and self.min_p is None)
        return reading._replace(chosen=None) if has_bound else reading

    def read_by_kernel(self, logits: Tensor, positions: Tensor) -> Reading:
        """Read logits [B, n, V] for `positions` [B, n] by the kernel, without bounds."""
        assert self.kernel is not None
        return self.kernel(logits, self.temperature, self.seeds, positions)

    def select(self, rows: Tensor) -> "Draws":
        """Return the draws of `rows` [n] only."""
        select: dict[str, Any] = {name: each[rows] for name, each in self._asdict().items() if isinstance(each, Tensor)}
        return self._replace(**select)


def draws_of(settings: Sequence[DecodingSettings], columns: Columns, *, vocab_size: int) -> Draws:
    """Return the draws of a batch of requests."""
    has_top_k = any(each.top_k and each.top_k < vocab_size for each in settings)
    return Draws(
        temperature=columns.number("temperature"),
        top_k=columns.integer("top_k").clamp(max=vocab_size) if has_top_k else None,
        top_p=columns.number("top_p") if any(each.top_p != 1 for each in settings) else None,
        min_p=columns.number("min_p") if any(each.min_p != 0 for each in settings) else None,
        seeds=columns.integer("seeds"),
        is_greedy=all(each.temperature == 0 for each in settings),
    )


def chosen_from(logits: Logits, draws: Draws) -> Tensor:
    """Return [B, m] int64, the token chosen at each position of `logits`."""
    if logits.reading.chosen is not None:
        return logits.reading.chosen
    return choose_tokens(logits.logits, draws, positions=logits.positions, best=logits.best.token_ids)


def choose_tokens(logits: Tensor, draws: Draws, *, positions: Tensor, best: Tensor | None = None) -> Tensor:
    """Return [B, k] int64, the token chosen at each of the absolute `positions` [B, k] int64 from its logits [B, k, V]
    float32. `best` [B, k] int64: the most likely tokens (the smallest id of a tie), if they are known already."""
    greedy = most_likely(logits).token_ids if best is None else best
    if draws.is_greedy:
        return greedy
    scaled = cut(logits / draws.temperature.clamp(min=1e-6, max=1e30)[:, None, None], draws)
    if draws.kernel is not None:
        kept = logits.masked_fill(scaled == -torch.inf, -torch.inf)
        sampled = draws.read_by_kernel(kept, positions).chosen
        assert sampled is not None
        return torch.where(draws.temperature[:, None] > 0, sampled, greedy)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    uniform = keyed_uniform(draws.seeds[:, None, None], positions[:, :, None], token_ids)
    exponential = -torch.log1p(-uniform)  # the smallest of exponential / probability is a draw
    sampled = (scaled - exponential.log()).argmax(dim=-1)
    return torch.where(draws.temperature[:, None] > 0, sampled, greedy)


def cut(scaled: Tensor, draws: Draws) -> Tensor:
    """Return logits [B, k, V] with -inf for tokens that top-k, then top-p, then min-p exclude; never the most likely
    one. Top-k keeps all tokens that are exactly as likely as its last one; top-p keeps those of smaller id first."""
    if draws.top_k is not None:
        rank = (draws.top_k - 1)[:, None, None].expand(*scaled.shape[:2], 1)
        least = scaled.sort(dim=-1, descending=True).values.gather(-1, rank)
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if draws.top_p is not None:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs  # the probability of all that are more likely
        out = (before >= draws.top_p[:, None, None]) & (draws.top_p < 1)[:, None, None]
        out[..., 0].fill_(False)
        scaled = scaled.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    if draws.min_p is not None:
        least = scaled.amax(dim=-1, keepdim=True) + draws.min_p.log()[:, None, None]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    return scaled


def keyed_uniform(*keys: Tensor) -> Tensor:
    """Return float32 numbers in (0, 1) that depend only on the broadcast integer keys, mixed as in SplitMix64."""
    state = torch.zeros((), dtype=torch.int64, device=keys[0].device)
    for key in keys:
        state = _mix(state + key + _GOLDEN)
    # 63 bits: numbers near 0 decide which of many tokens is drawn, so they must not be coarse. Rounding may give 1.
    uniform = (_shift_right(state, 1).float() + 0.5) * 2.0**-63
    return uniform.clamp(max=1 - 2.0**-24)


def random_tokens(seeds: Tensor, positions: Tensor, *, vocab_size: int) -> Tensor:
    """Return uniformly random token ids [B, n] int64 below `vocab_size` for `positions` [B, n], by `seeds` [B] of rows.

    They are the same in every pass and batch, and independent of the noise that the position's token is drawn with.
    """
    no_token = torch.full_like(positions, -1)
    return (keyed_uniform(seeds[:, None], positions, no_token) * vocab_size).long()


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; int64 arithmetic wraps around


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Return `z` shifted right logically: int64's own shift is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
