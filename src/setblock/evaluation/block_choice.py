"""Choose the fastest block size on a machine, by what its passes cost (paper, eq. 16) and how many tokens they bring.

Knows costs and acceptance. Knows nothing of models, nor of clocks. It is for method `exact`, whose text is plain decoding's at
every block size, and so may be plain decoding where that is fastest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from setblock.decoding.settings import DecodingSettings, Method
from setblock.evaluation.pass_costs import PassCosts
from setblock.model.facts import SBDFacts

TRAINED_ACCEPTANCE = 0.8
"""Of a model trained for blocks, the probability that a drafted token is right where those before it are: about what the
bundled model has on word problems. A calibration says it of its own model."""
WORTH = 1.05
"""A smaller speed-up is within what a stopwatch errs by, and is not taken."""


@dataclass(frozen=True)
class Copying:
    """Hold what copied drafts gain where at least `matched` tokens match.

    Attributes:
        matched: as `draft_lookup`.
        passes: by the draft's length, the fraction of passes that check a draft, and the tokens that such a pass brings.
    """

    matched: int
    passes: Mapping[int, tuple[float, float]]


COPYING = (
    Copying(1, {2: (0.85, 1.72), 4: (0.80, 2.57), 8: (0.75, 3.34), 16: (0.72, 3.90), 32: (0.71, 4.13)}),
    Copying(2, {2: (0.65, 1.80), 4: (0.54, 2.90), 8: (0.45, 4.15), 16: (0.39, 5.22), 32: (0.37, 5.74)}),
    Copying(3, {2: (0.51, 1.87), 4: (0.37, 3.30), 8: (0.27, 5.19), 16: (0.21, 7.23), 32: (0.19, 8.45)}),
    Copying(4, {2: (0.44, 1.90), 4: (0.30, 3.47), 8: (0.21, 5.67), 16: (0.15, 8.46), 32: (0.13, 10.41)}),
)
"""Measured: plain answers of SmolLM2-135M-Instruct to 14 messages of task extraction. Answers that copy less gain less."""

COPYING_OTHERS = (
    Copying(1, {2: (0.93, 1.44), 4: (0.92, 1.72), 8: (0.91, 1.85), 16: (0.91, 1.90), 32: (0.91, 1.92)}),
    Copying(2, {2: (0.65, 1.52), 4: (0.59, 1.92), 8: (0.57, 2.13), 16: (0.56, 2.21), 32: (0.55, 2.24)}),
    Copying(3, {2: (0.42, 1.59), 4: (0.35, 2.15), 8: (0.32, 2.48), 16: (0.30, 2.62), 32: (0.30, 2.68)}),
    Copying(4, {2: (0.28, 1.68), 4: (0.21, 2.40), 8: (0.18, 2.91), 16: (0.17, 3.17), 32: (0.17, 3.28)}),
)
"""The same with a draft text. Measured on other answers, by `experiments/draft_text.py`: chats about everything. They copy
less from themselves than records do."""


@dataclass(frozen=True)
class BlockChoice:
    """Describe how to decode fastest.

    Attributes:
        method: `exact`, or `ntp` where plain decoding is fastest.
        block_size, draft_lookup: as in `DecodingSettings`; None where the method has none, or it is left as it is.
        speedup: the expected one over plain decoding.
        costs: what it was computed from.
    """

    method: Method
    block_size: int | None
    draft_lookup: int | None
    speedup: float
    costs: PassCosts

    def applied(self, settings: DecodingSettings) -> DecodingSettings:
        """Return the settings of a request of method `exact`, at this choice."""
        if self.method == "ntp":
            return replace(settings, method="ntp")
        lookup = self.draft_lookup if settings.draft_lookup is None else settings.draft_lookup
        return replace(settings, block_size=self.block_size, draft_lookup=lookup)

    def to_json(self) -> dict[str, Any]:
        """Return the choice as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if self.method == "ntp":
            return "plain decoding is fastest here"
        # What copies gain depends on the text: there is nothing to expect of a prompt that nobody has seen.
        gain = (
            f", about {self.speedup:.1f}x plain decoding for one request at a time" if self.draft_lookup is None else ""
        )
        return f"block size {self.block_size} is fastest here{gain}"


def fastest_choice(costs: PassCosts, facts: SBDFacts | None, *, has_draft_text: bool = False) -> BlockChoice:
    """Return the fastest way to decode a model with these facts in method `exact`.

    Args:
        has_draft_text: whether drafts may be copied from other texts, too.
    """
    plain = BlockChoice("ntp", None, None, 1.0, costs)
    copying = COPYING_OTHERS if has_draft_text else COPYING
    tried = [*(_by_copying(costs, copying) if facts is None else _by_blocks(costs, facts))]
    best = max(tried, key=lambda each: each.speedup, default=plain)
    return best if best.speedup >= WORTH else plain


def tokens_of_draft(acceptance: float, length: int) -> float:
    """Return the tokens that a checked draft gives, its first one right in any case: 1 + a + ... + a^(length - 1)."""
    return sum(acceptance**place for place in range(length))


def _by_blocks(costs: PassCosts, facts: SBDFacts) -> Iterator[BlockChoice]:
    """Yield choices by eq. 16 where each pass commits a draft and makes the next one (l = 1): tokens of a draft x
    time(1) / time(2k)."""
    acceptance = _acceptance_of(facts)
    for size in costs.seconds:
        both = costs.seconds.get(2 * size) if costs.fuses_commit else 2 * costs.seconds[size]
        if 1 < size <= max(facts.block_sizes, default=0) and both is not None:
            speedup = tokens_of_draft(acceptance, size) * costs.seconds[1] / both
            yield BlockChoice("exact", size, None, speedup, costs)


def _by_copying(costs: PassCosts, measured: Sequence[Copying]) -> Iterator[BlockChoice]:
    """Yield choices whose pass is over a draft, or over one token where nothing is found to copy."""
    one = costs.seconds[1]
    for copying in measured:
        for length, (drafted, tokens) in copying.passes.items():
            if length in costs.seconds:
                brought = drafted * tokens + 1 - drafted
                seconds = drafted * costs.seconds[length] + (1 - drafted) * one
                yield BlockChoice("exact", length, copying.matched, brought * one / seconds, costs)


def _acceptance_of(facts: SBDFacts) -> float:
    """Return the acceptance at which drafts give what a calibration of method `exact` has measured, the most careful
    one; by bisection."""
    known = [each for each in facts.calibrations if each.method == "exact"]
    if not known:
        return TRAINED_ACCEPTANCE
    careful = min(known, key=lambda each: each.nfe_speedup)
    length, low, high = int(careful.point["block_size"]), 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of_draft(middle, length) < careful.nfe_speedup else (low, middle)
    return low
