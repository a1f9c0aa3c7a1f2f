"""Decide which positions a pass reveals in each row, and which tokens they get: g and p of Algorithm 3.

Knows rows' terms. Knows nothing of what has become of the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from setblock.decoding.companions.asking import Accompanied, Companions
from setblock.decoding.companions.companion import Companion
from setblock.decoding.state.terms import RowTerms
from setblock.decoding.step.choice import Draws, draws_of
from setblock.decoding.step.logits import LogitRules, logit_rules
from setblock.decoding.step.selection import EveryCandidate, RowSamplers


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
        return _policy(terms, samplers, companions, vocab_size=parts[0].vocab_size)

    def taken(self, rows: Sequence[int], terms: Sequence[RowTerms]) -> "Policy":
        """Return the policy of `rows` only, which have these `terms`."""
        samplers, companions = self.samplers.taken(rows), self.companions.taken(rows)
        return _policy(terms, samplers, companions, vocab_size=self.vocab_size)


def companions_of(terms: RowTerms, *, vocab_size: int) -> tuple[Companion, ...]:
    """Return new companions for a request's row.

    Raises:
        SetBlockError: one is not possible with this model.
    """
    return tuple(maker.companion(terms, vocab_size=vocab_size) for maker in terms.settings.companions)


def open_policy(
    terms: Sequence[RowTerms],
    companions: Sequence[tuple[Companion, ...]],
    *,
    vocab_size: int,
    device: torch.device,
) -> Policy:
    """Return the policy of requests before their first pass. The last of a row's companions is the last to hear."""
    samplers = RowSamplers(
        [EveryCandidate() if each.settings.sampler is None else each.settings.sampler for each in terms], device=device
    )
    heard = Companions([Accompanied(each) for each in companions])
    return _policy(terms, samplers, heard, vocab_size=vocab_size)


def _policy(
    terms: Sequence[RowTerms],
    samplers: RowSamplers,
    companions: Companions,
    *,
    vocab_size: int,
) -> Policy:
    device = samplers.device
    return Policy(
        rules=logit_rules(terms, vocab_size=vocab_size, device=device),
        samplers=samplers,
        draws=draws_of([each.settings for each in terms], vocab_size=vocab_size, device=device),
        companions=companions,
        vocab_size=vocab_size,
    )
