"""Compute how likely a model finds texts by plain next-token decoding: nats a token.

Knows token ids. Knows nothing of tasks, nor of how a text came about.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from setblock.evaluation.likelihood import likelihoods
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Likelihoods:
    """Hold how likely the model itself finds texts, read as plain next-token decoding reads them: nats a token, a mean
    over all tokens. Least is what decoding would seek; where answers have more than NTP's, decoding in blocks wrote
    what does not fit.

    Attributes:
        answers: of the method's answers; None where they have no tokens.
        ntp: the same of NTP's answers.
        reference: of the examples' own answers: how well the model knows such text at all.
    """

    answers: float | None
    ntp: float | None
    reference: float | None


def mean_nll(model: SBDModel, texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float | None:
    """Return the mean negative log-likelihood, in nats a token, of continuations after their contexts.

    One causal pass for each text, without a cache.

    Args:
        texts: pairs of token ids: a context that is not empty, and its continuation. What goes beyond the model's context is
            left out.

    Returns:
        The mean over all tokens of all continuations; None where there is none.
    """
    most = sys.maxsize if model.context_length is None else model.context_length
    kept = [(context, continuation[: max(0, most - len(context))]) for context, continuation in texts]
    kept = [(context, continuation) for context, continuation in kept if continuation]
    count = sum(len(continuation) for _, continuation in kept)
    return -sum(each.logprob for each in likelihoods(model, kept)) / count if count else None
