"""Decide which positions a pass reveals in each row, and which tokens they get: g and p of Algorithm 3.

Knows rows' terms, which rows have which sampler, and what it remembers between passes. Knows nothing of what has
become of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.companions.asking import Accompanied, Companions
from setblock.decoding.companions.companion import Companion
from setblock.decoding.samplers import BlockView, Memory, Sampler, Selection
from setblock.decoding.samplers.base import Moments
from setblock.decoding.state.joining import fitted, stacked
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.choice import Draws, draws_of
from setblock.decoding.step.logits import LogitRules, logit_rules
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class EveryCandidate:
    """Replace a sampler where a pass has one candidate, as in method `ntp`."""

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        return Selection(block.candidates)


class RowSamplers:
    """Hold one sampler for each row; rows of equal samplers are asked together."""

    def __init__(
        self, samplers: Sequence[Sampler], *, device: torch.device, memories: Sequence[Memory] | None = None
    ) -> None:
        """Take each row's sampler and its memory from earlier passes, if any."""
        self._samplers, self.device = list(samplers), device
        groups: list[tuple[Sampler, list[int]]] = []
        for row, sampler in enumerate(samplers):
            same = next((rows for other, rows in groups if other == sampler), None)
            if same is None:
                groups.append((sampler, [row]))
            else:
                same.append(row)
        self._groups = [(sampler, torch.tensor(rows, device=device)) for sampler, rows in groups]
        self._is_own = [type(sampler).__module__.startswith("setblock.decoding.") for sampler, _ in groups]
        self._memories: list[Memory] = [
            {} if memories is None else _below([memories[row] for row in rows]) for _, rows in groups
        ]

    @classmethod
    def joined(cls, parts: Sequence["RowSamplers"]) -> "RowSamplers":
        """Return the rows of several batches, each with its memory."""
        samplers = [sampler for part in parts for sampler in part._samplers]
        memories = [memory for part in parts for memory in part._of_rows()]
        return cls(samplers, device=parts[0].device, memories=memories)

    def taken(self, rows: Sequence[int]) -> "RowSamplers":
        """Return the samplers of `rows` only."""
        memories = self._of_rows()
        return RowSamplers(
            [self._samplers[row] for row in rows], device=self.device, memories=[memories[row] for row in rows]
        )

    def _of_rows(self) -> list[Memory]:
        """Return each row's memory: tensors [1, k, ...], none of rows that no sampler was asked for."""
        found: list[Memory] = [{} for _ in self._samplers]
        for (_, rows), memory in zip(self._groups, self._memories, strict=True):
            for place, row in enumerate(rows.tolist()):
                found[row] = {name: kept[place : place + 1] for name, kept in memory.items()}
        return found

    def select(
        self,
        logits: Tensor,
        *,
        candidates: Tensor,
        revealed: Tensor,
        passes: Tensor,
        is_asked: Tensor,
        moments: Moments,
    ) -> Selection:
        """Ask each row's sampler, and keep what it remembers, which is not returned.

        Args:
            logits, candidates, revealed, moments: as in `BlockView`.
            passes: [B] int64, how many have filled each row's block; where none, what was remembered is forgotten.
            is_asked: [B] bool, rows of which the pass says anything; what is remembered of others stays.

        Raises:
            SetBlockError: a sampler reveals nothing where there are candidates, or what is none.
        """
        if len(self._groups) == 1:
            memory = self._recall(0, passes, size=candidates.shape[1])
            block = BlockView(logits, candidates, revealed, memory, moments)
            selection = self._ask(0, block, is_asked)
            return Selection(selection.reveal, selection.logits)  # the memory is kept here
        reveal, changed = torch.zeros_like(candidates), None
        for index, (_, rows) in enumerate(self._groups):
            memory = self._recall(index, passes[rows], size=candidates.shape[1])
            of_rows = Moments(*(each[rows] for each in moments))
            block = BlockView(logits[rows], candidates[rows], revealed[rows], memory, of_rows)
            selection = self._ask(index, block, is_asked[rows])
            reveal[rows] = selection.reveal
            if selection.logits is not None:
                changed = (logits if changed is None else changed).index_copy(0, rows, selection.logits)
        return Selection(reveal, changed)

    def _ask(self, index: int, block: BlockView, is_asked: Tensor) -> Selection:
        sampler = self._groups[index][0]
        selection = sampler.select(block)
        if not isinstance(selection, Selection):
            raise SetBlockError(f"sampler {sampler} must return Selection(reveal), not a {type(selection).__name__}")
        if not self._is_own[index] and _breaks_rules(selection, block):
            # The one would decode for ever, the other write over what is fixed.
            raise SetBlockError(
                f"sampler {sampler} must reveal at least one candidate of each row, and candidates only"
            )
        self._memories[index] = _renewed(block.memory, selection.memory, is_asked)
        return selection

    def _recall(self, index: int, passes: Tensor, *, size: int) -> Memory:
        """Return the memory of blocks of `size` that an earlier pass began."""
        kept = self._memories[index].items()
        return {
            name: fitted(each, size).masked_fill(passes.view(-1, *[1] * (each.dim() - 1)) == 0, 0)
            for name, each in kept
        }


def _breaks_rules(selection: Selection, block: BlockView) -> bool:
    """Return whether a sampler reveals a position that is no candidate, or nothing of a row that has candidates. Waits
    for the device; the samplers of this package are not asked, since tests hold them to it."""
    chosen = selection.reveal & block.candidates
    return bool((block.candidates.any(dim=1) ^ chosen.any(dim=1)).any() | (selection.reveal ^ chosen).any())


def _renewed(old: Memory, new: Memory, rows: Tensor) -> Memory:
    """Return the new memory in `rows` [b] bool and the old one elsewhere; an empty memory counts as zeros."""

    def kept(name: str, each: Tensor) -> Tensor:
        return torch.where(rows.view(-1, *[1] * (each.dim() - 1)), each, old.get(name, torch.zeros_like(each)))

    return {name: kept(name, each) for name, each in new.items()}


def _below(memories: Sequence[Memory]) -> Memory:
    """Stack the memories of several rows, with zeros where a row has none."""
    examples = {name: each for memory in memories for name, each in memory.items()}

    def of(memory: Memory, name: str) -> Tensor:
        return memory[name] if name in memory else torch.zeros_like(examples[name][:1])

    return {name: stacked([of(memory, name) for memory in memories]) for name in examples}


@dataclass(frozen=True)
class Policy:
    """Hold the policy of the rows of a batch.

    Attributes:
        rules: what they ask of the logits before anything is chosen.
        samplers: which positions are revealed; they remember passes.
        draws: which tokens they get.
        companions: what goes along with the rows, and may say what comes next.
        vocab_size: V.
    """

    rules: LogitRules
    samplers: RowSamplers
    draws: Draws
    companions: Companions
    vocab_size: int

    @classmethod
    def joined(cls, parts: Sequence["Policy"], terms: Sequence[RowTerms]) -> "Policy":
        """Return the rows of several policies in one. `terms` are of all of them."""
        samplers = RowSamplers.joined([part.samplers for part in parts])
        companions = Companions.joined([part.companions for part in parts])
        return policy_of(terms, samplers, companions, vocab_size=parts[0].vocab_size)

    def taken(self, rows: Sequence[int], terms: Sequence[RowTerms]) -> "Policy":
        """Return the policy of `rows` only, which have these `terms`."""
        samplers, companions = self.samplers.taken(rows), self.companions.taken(rows)
        return policy_of(terms, samplers, companions, vocab_size=self.vocab_size)


def policy_of(terms: Sequence[RowTerms], samplers: RowSamplers, companions: Companions, *, vocab_size: int) -> Policy:
    """Return the policy of rows."""
    return Policy(
        rules=logit_rules(terms, vocab_size=vocab_size, device=samplers.device),
        samplers=samplers,
        draws=draws_of([each.settings for each in terms], vocab_size=vocab_size, device=samplers.device),
        companions=companions,
        vocab_size=vocab_size,
    )


def open_policy(
    terms: Sequence[RowTerms],
    companions: Sequence[tuple[Companion, ...]],
    *,
    vocab_size: int,
    device: torch.device,
) -> Policy:
    """Return the policy of requests before their first pass. The last of a row's companions is the last to hear."""
    samplers = RowSamplers([each.settings.sampler or EveryCandidate() for each in terms], device=device)
    return policy_of(terms, samplers, Companions([Accompanied(each) for each in companions]), vocab_size=vocab_size)
