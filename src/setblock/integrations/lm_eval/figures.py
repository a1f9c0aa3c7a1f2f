"""Compute what the answers to a task of the harness cost, as its result file holds it.

Knows outcomes. Knows nothing of the harness, nor of whether an answer was right.
"""

from typing import Any

from setblock.evaluation.exam import TimedAnswers
from setblock.evaluation.outcomes import nfe_speedup, outcomes_of


def figures_of(answers: TimedAnswers) -> dict[str, Any]:
    """Return the figures of the answers to a task.

    `nfe_speedup_of_text` is against the passes in which plain decoding would have written the very same text.
    """
    outcomes = outcomes_of(answers.generations)
    of_text = sum(max(tokens - 1, 0) for tokens in outcomes.tokens)
    return {
        "num_answers": len(outcomes),
        "num_tokens": sum(outcomes.tokens),
        "num_forwards": outcomes.num_forwards,
        "prefill_forwards": sum(outcomes.prefill),
        "mean_forwards": outcomes.num_forwards / len(outcomes),
        "tokens_per_forward": outcomes.tokens_per_forward,
        "nfe_speedup_of_text": nfe_speedup(ntp_passes=of_text, passes=sum(outcomes.decoding)),
        "seconds": answers.seconds,
        "errors": sum(answer.finish_reason == "error" for answer in answers.generations),
    }
