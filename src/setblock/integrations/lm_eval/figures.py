"""Compute what the answers to a task of the harness cost, as its result file holds it.

Knows outcomes. Knows nothing of the harness, nor of whether an answer was right.
"""

from typing import Any

from setblock.evaluation.exam import TimedAnswers
from setblock.evaluation.outcomes import nfe_speedup, outcomes_of


def figures_of(answers: TimedAnswers, *, ntp: TimedAnswers | None = None) -> dict[str, Any]:
    """Return the figures of one run, and of its comparison with plain decoding where that ran, too.

    `nfe_speedup_of_text` is against the passes in which plain decoding would have written the very same text.
    """
    plain = None if ntp is None else outcomes_of(ntp.generations)
    reference = None if ntp is None else [answer.token_ids for answer in ntp.generations]
    outcomes = outcomes_of(answers.generations, ntp=reference)
    of_text = sum(max(tokens - 1, 0) for tokens in outcomes.tokens)
    passes = sum(outcomes.decoding)
    found = {
        "num_answers": len(outcomes),
        "num_tokens": sum(outcomes.tokens),
        "num_forwards": outcomes.num_forwards,
        "prefill_forwards": sum(outcomes.prefill),
        "mean_forwards": outcomes.num_forwards / len(outcomes),
        "tokens_per_forward": outcomes.tokens_per_forward,
        "nfe_speedup_of_text": nfe_speedup(ntp_passes=of_text, passes=passes),
        "seconds": answers.seconds,
        "errors": sum(answer.finish_reason == "error" for answer in answers.generations),
    }
    if ntp is None or plain is None:
        return found
    return found | {
        "nfe_speedup": nfe_speedup(ntp_passes=sum(plain.decoding), passes=passes),
        "identical_to_ntp": outcomes.differing.count(0) / len(outcomes),
        "ntp_forwards": plain.num_forwards,
        "ntp_tokens": sum(plain.tokens),
        "ntp_seconds": ntp.seconds,
    }
