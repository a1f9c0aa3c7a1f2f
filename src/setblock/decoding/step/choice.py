"""Decide which positions a pass reveals in each row, and which tokens they get: g and p of Algorithm 3.

Knows rows' terms, which rows have which sampler, what it remembers between passes, and how tokens are drawn. Knows nothing of
what has become of the rows.

A token is the most likely one at temperature 0, else a draw: Gumbel-max with noise that is a pure function of (seed, position,
token id). So a request's tokens do not depend on what shares its batch, nor on how many passes its block takes. Which positions
a pass reveals depends on the distributions only, never on the noise, so a position's noise is still independent of all it is
conditioned on when it is used, and the draw is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from setblock.decoding.companions.asking import Accompanied, Companions
from setblock.decoding.samplers.base import BlockView, Memory, Sampler, Selection
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.state.joining import fitted, joined_list, stacked
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.logits import logit_rules, most_likely
from setblock.errors import SetBlockError


class Policy:
    """Hold the policy of the rows of a batch.

    Attributes:
        rules: what they ask of the logits before anything is chosen.
        samplers: which positions are revealed; they remember passes.
        draws: which tokens they get.
        companions: what goes along with the rows, and may say what comes next.
        vocab_size: V.
    """

    def __init__(
        self,
        terms: Sequence[RowTerms],
        companions: Sequence[Accompanied],
        *,
        vocab_size: int,
        device: torch.device,
        memories: Sequence[Memory] | None = None,
    ) -> None:
        """Take what each row has; `memories` are those of its sampler, if it was asked before."""
        settings = [each.settings for each in terms]
        self.rules = logit_rules(terms, vocab_size=vocab_size, device=device)
        self.samplers = RowSamplers([each.sampler for each in settings], device=device, memories=memories)
        self.draws = draws_of(settings, vocab_size=vocab_size, device=device)
        self.companions, self.vocab_size, self._device = Companions(companions), vocab_size, device

    @classmethod
    def joined(
        cls, parts: Sequence["Policy"], terms: Sequence[RowTerms], rows: Sequence[int] | None = None
    ) -> "Policy":
        """Return the rows of several policies in one, or `rows` of all these. They have these `terms`."""
        return cls(
            terms,
            joined_list([part.companions.rows for part in parts], rows),
            vocab_size=parts[0].vocab_size,
            device=parts[0]._device,
            memories=joined_list([part.samplers.memories() for part in parts], rows),
        )


# Which positions


class RowSamplers:
    """Hold one sampler for each row; rows of equal samplers are asked together. None reveals every candidate, of which there is
    one a pass in method `ntp`."""

    def __init__(
        self, samplers: Sequence[Sampler | None], *, device: torch.device, memories: Sequence[Memory] | None = None
    ) -> None:
        """Take each row's sampler and its memory from earlier passes, if any."""
        self._num_rows = len(samplers)
        different = [each for row, each in enumerate(samplers) if each not in samplers[:row]]
        groups = [[row for row, each in enumerate(samplers) if each == sampler] for sampler in different]
        self._groups = [
            (sampler, torch.tensor(rows, device=device)) for sampler, rows in zip(different, groups, strict=True)
        ]
        self._memories: list[Memory] = [
            {} if memories is None else _below([memories[row] for row in rows]) for rows in groups
        ]

    def memories(self) -> list[Memory]:
        """Return each row's memory: tensors [1, k, ...], none of rows that no sampler was asked for."""
        found: list[Memory] = [{} for _ in range(self._num_rows)]
        for (_, rows), memory in zip(self._groups, self._memories, strict=True):
            for place, row in enumerate(rows.tolist()):
                found[row] = {name: kept[place : place + 1] for name, kept in memory.items()}
        return found

    def select(self, block: BlockView, *, passes: Tensor, is_asked: Tensor) -> Selection:
        """Ask each row's sampler, and keep what it remembers, which is not returned.

        Args:
            block: of all rows, without memory.
            passes: [B] int64, how many have filled each row's block; where none, what was remembered is forgotten.
            is_asked: [B] bool, rows of which the pass says anything; what is remembered of others stays.

        Raises:
            SetBlockError: a sampler reveals nothing where there are candidates, or what is none.
        """
        if len(self._groups) == 1:
            return self._ask(0, block, passes, is_asked)
        reveal, changed = torch.zeros_like(block.candidates), None
        for index, (_, rows) in enumerate(self._groups):
            of_rows = BlockView(
                logits=block.logits[rows],
                candidates=block.candidates[rows],
                revealed=block.revealed[rows],
                entropy=block.entropy[rows],
                confidence=block.confidence[rows],
            )
            selection = self._ask(index, of_rows, passes[rows], is_asked[rows])
            reveal[rows] = selection.reveal
            if selection.logits is not None:
                changed = (block.logits if changed is None else changed).index_copy(0, rows, selection.logits)
        return Selection(reveal, changed)

    def _ask(self, index: int, block: BlockView, passes: Tensor, is_asked: Tensor) -> Selection:
        sampler, size = self._groups[index][0], block.candidates.shape[1]
        if sampler is None:
            return Selection(block.candidates)
        kept = {
            name: fitted(each, size).masked_fill(_beside(each, passes) == 0, 0)
            for name, each in self._memories[index].items()
        }
        selection = sampler.select(replace(block, memory=kept))
        if not isinstance(selection, Selection):
            raise SetBlockError(f"sampler {sampler} must return Selection(reveal), not a {type(selection).__name__}")
        is_own = type(sampler).__module__.startswith("setblock.decoding.")
        if not is_own and _breaks_rules(selection, block):
            # The one would decode for ever, the other write over what is fixed.
            raise SetBlockError(
                f"sampler {sampler} must reveal at least one candidate of each row, and candidates only"
            )
        self._memories[index] = {
            name: torch.where(_beside(each, is_asked), each, kept.get(name, torch.zeros_like(each)))
            for name, each in selection.memory.items()
        }
        return Selection(selection.reveal, selection.logits)


def _breaks_rules(selection: Selection, block: BlockView) -> bool:
    """Return whether a sampler reveals a position that is no candidate, or nothing of a row that has candidates. Waits
    for the device; the samplers of this package are not asked, since tests hold them to it."""
    chosen = selection.reveal & block.candidates
    return bool((block.candidates.any(dim=1) ^ chosen.any(dim=1)).any() | (selection.reveal ^ chosen).any())


def _beside(each: Tensor, of_rows: Tensor) -> Tensor:
    """Return `of_rows` [b] as [b, 1, ...], with as many dimensions as `each`."""
    return of_rows.view(-1, *[1] * (each.dim() - 1))


def _below(memories: Sequence[Memory]) -> Memory:
    """Stack the memories of several rows, with zeros where a row has none."""
    examples = {name: each for memory in memories for name, each in memory.items()}
    return {
        name: stacked([memory.get(name, torch.zeros_like(each)) for memory in memories])
        for name, each in examples.items()
    }


# Which tokens


@dataclass(frozen=True)
class Draws:
    """Hold how each row of a batch draws its tokens.

    Attributes:
        temperature: [B] float32, at least 0; 0 is exactly argmax (the smallest id of a tie).
        top_k: [B] int64 (V where there is none), or None where no row has one. So with the following two.
        top_p: [B] float32.
        min_p: [B] float32.
        seeds: [B] int64.
        is_greedy: whether all temperatures are 0.
    """

    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    seeds: Tensor
    is_greedy: bool

    def taken(self, rows: Tensor) -> "Draws":
        """Return the draws of `rows` [n] only."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        taken: dict[str, Any] = {name: each[rows] for name, each in columns.items() if isinstance(each, Tensor)}
        return replace(self, **taken)


def draws_of(settings: Sequence[DecodingSettings], *, vocab_size: int, device: torch.device) -> Draws:
    """Return the draws of a batch of requests."""
    temperature = torch.tensor([each.temperature for each in settings], device=device, dtype=torch.float32)
    top_k = [min(each.top_k or vocab_size, vocab_size) for each in settings]
    return Draws(
        temperature=temperature,
        top_k=torch.tensor(top_k, device=device) if min(top_k) < vocab_size else None,
        top_p=_unless_all([each.top_p for each in settings], 1.0, device),
        min_p=_unless_all([each.min_p for each in settings], 0.0, device),
        seeds=torch.tensor([each.seed for each in settings], device=device, dtype=torch.long),
        is_greedy=all(each.temperature == 0 for each in settings),
    )


def _unless_all(values: list[float], off: float, device: torch.device) -> Tensor | None:
    return None if all(value == off for value in values) else torch.tensor(values, device=device, dtype=torch.float32)


def choose_tokens(logits: Tensor, draws: Draws, *, positions: Tensor, best: Tensor | None = None) -> Tensor:
    """Choose a token for each position.

    Args:
        logits: [B, k, V] float32.
        positions: [B, k] int64, absolute.
        best: [B, k] int64, the token of the greatest logit (the smallest id of a tie), where it is known already.

    Returns:
        [B, k] int64 token ids.
    """
    greedy = most_likely(logits).token_ids if best is None else best
    if draws.is_greedy:
        return greedy
    scaled = cut(logits / draws.temperature.clamp(min=1e-6, max=1e30)[:, None, None], draws)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    uniform = keyed_uniform(draws.seeds[:, None, None], positions[:, :, None], token_ids)
    exponential = -torch.log1p(-uniform)  # the smallest of exponential / probability is a draw
    sampled = (scaled - exponential.log()).argmax(dim=-1)
    return torch.where(draws.temperature[:, None] > 0, sampled, greedy)


def cut(scaled: Tensor, draws: Draws) -> Tensor:
    """Return logits [B, k, V] with -inf for tokens that top-k, then top-p, then min-p leave out. The most likely token
    always stays.

    Of tokens exactly as likely as the last that top-k lets in, all stay; top-p takes those of smaller id first.
    """
    if draws.top_k is not None:
        rank = (draws.top_k - 1)[:, None, None].expand(*scaled.shape[:2], 1)
        least = scaled.sort(dim=-1, descending=True).values.gather(-1, rank)
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if draws.top_p is not None:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs  # the probability of all that are more likely
        out = (before >= draws.top_p[:, None, None]) & (draws.top_p < 1)[:, None, None]
        out[..., 0] = False
        scaled = scaled.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    if draws.min_p is not None:
        least = scaled.amax(dim=-1, keepdim=True) + draws.min_p.log()[:, None, None]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    return scaled


def keyed_uniform(*keys: Tensor) -> Tensor:
    """Return float32 numbers in (0, 1) that depend only on the broadcast integer keys, by SplitMix64's mixing function."""
    state = torch.zeros((), dtype=torch.int64, device=keys[0].device)
    for key in keys:
        state = _mix(state + key + _GOLDEN)
    # 63 bits: numbers near 0 decide which of many tokens is drawn, so they must not be coarse. Rounding may give 1.
    uniform = (_shift_right(state, 1).float() + 0.5) * 2.0**-63
    return uniform.clamp(max=1 - 2.0**-24)


def random_tokens(seeds: Tensor, positions: Tensor, *, vocab_size: int) -> Tensor:
    """Return uniform noise [B, n], int64 token ids below `vocab_size`, for `positions` [B, n] of rows with `seeds` [B].

    A position's noise is the same in each pass and each batch, and independent of that which its token is drawn with.
    """
    no_token = torch.full_like(positions, -1)
    return (keyed_uniform(seeds[:, None], positions, no_token) * vocab_size).long()


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; int64 arithmetic wraps around


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift the bits right logically: int64's own shift is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
