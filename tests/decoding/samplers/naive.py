"""Every rule again, as a plain loop over one row: what the docstrings say, and nothing clever."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Probabilities = list[list[float]]  # of a row's k positions, over V tokens


@dataclass
class Careful:
    """Compares numbers, and remembers the closest call: rounding may decide that one either way."""

    closest: float = math.inf

    def at_most(self, a: float, b: float) -> bool:
        if a != b and math.isfinite(a) and math.isfinite(b):
            self.closest = min(self.closest, abs(a - b))
        return a <= b

    def ordered(self, positions: Iterable[int], key: Callable[[int], float]) -> list[int]:
        """Ascending; ties from left to right."""
        order = sorted(positions, key=lambda i: (key(i), i))
        for one, other in pairwise(order):
            self.at_most(key(one), key(other))
        return order


@dataclass(frozen=True)
class Row:
    """A row in a pass."""

    probs: Probabilities
    candidates: list[int]
    careful: Careful
    memory: dict[str, Any] = field(default_factory=dict)  # the naive rules may write into it

    def confidence(self, i: int) -> float:
        return max(self.probs[i])

    def entropy(self, i: int) -> float:
        return -sum(p * math.log(p) for p in self.probs[i] if p)

    def margin(self, i: int) -> float:
        second, first = sorted(self.probs[i])[-2:]
        return first - second

    def most_confident(self) -> list[int]:
        return self.careful.ordered(self.candidates, lambda i: -self.confidence(i))

    def those(self, is_one: Callable[[int], bool], fallback: Sequence[int]) -> set[int]:
        return {i for i in self.candidates if is_one(i)} or {fallback[0]}


def entropy_bounded(row: Row, gamma: float, proxy: str) -> set[int]:
    doubts = {"entropy": row.entropy, "confidence": lambda i: -row.confidence(i), "margin": lambda i: -row.margin(i)}
    order = row.careful.ordered(row.candidates, doubts[proxy])
    s = 1
    for size in range(2, len(order) + 1):
        entropies = sorted(row.entropy(i) for i in order[:size])
        if row.careful.at_most(sum(entropies[:-1]), gamma):
            s = size
    return set(order[:s])


def entropy_prefix(row: Row, gamma: float) -> set[int]:
    s = 1
    for size in range(1, len(row.candidates) + 1):
        if row.careful.at_most(sum(row.entropy(i) for i in row.candidates[:size]), gamma):
            s = size
    return set(row.candidates[:s])


def entropy_threshold(row: Row, threshold: float) -> set[int]:
    order = row.careful.ordered(row.candidates, row.entropy)
    return row.those(lambda i: row.careful.at_most(row.entropy(i), threshold), order)


def confidence_threshold(row: Row, threshold: float) -> set[int]:
    return row.those(lambda i: row.careful.at_most(threshold, row.confidence(i)), row.most_confident())


def factor(row: Row, factor: float) -> set[int]:
    order, best = row.most_confident(), 1
    for n, i in enumerate(order, start=1):
        if row.careful.at_most((n + 1) * (1 - row.confidence(i)), factor):
            best = n
    return set(order[:best])


def fixed_count(row: Row, count: int) -> set[int]:
    return set(row.most_confident()[:count])


def left_to_right(row: Row, count: int) -> set[int]:
    return set(row.candidates[:count])


def confident_prefix(row: Row, threshold: float) -> set[int]:
    prefix = set()
    for i in row.candidates:
        if not row.careful.at_most(threshold, row.confidence(i)):
            break
        prefix.add(i)
    return prefix or {row.candidates[0]}


def adaptive_confidence(row: Row, lower: float, upper: float) -> set[int]:
    past = row.memory.setdefault("past", [])
    mean = sum(past) / len(past) if past else max(row.confidence(i) for i in row.candidates)
    threshold = min(max(mean, lower), upper)
    if past:
        reveal = confidence_threshold(row, threshold)
    else:  # the largest confidence is not less than itself
        reveal = row.those(lambda i: row.confidence(i) >= threshold, row.most_confident())
    past += [row.confidence(i) for i in reveal]
    return reveal


def distance_penalty(row: Row, threshold: float, penalty: float) -> set[int]:
    def penalised(i: int) -> float:
        return row.entropy(i) + penalty * (i - row.candidates[0])

    order = row.careful.ordered(row.candidates, penalised)
    return row.those(lambda i: row.careful.at_most(penalised(i), threshold), order)


def spaced(row: Row, gamma: float, gap: int) -> set[int]:
    select: set[int] = set()
    wanted = entropy_bounded(row, gamma, "entropy")
    for i in row.careful.ordered(wanted, row.entropy):
        if all(abs(i - other) >= gap for other in select):
            select.add(i)
    return select


def dilated(row: Row, stride: int) -> set[int]:
    while True:
        group = {i for i in row.candidates if i % stride == 0}
        if group:
            return group
        stride //= 2


def klass(row: Row, threshold: float, max_kl: float, passes: int) -> set[int]:
    history = row.memory.setdefault("history", [])
    history.append({i: row.probs[i] for i in row.candidates})

    def is_stable(i: int) -> bool:
        recent = [seen.get(i) for seen in history[-passes - 1 :]]
        if len(recent) <= passes or None in recent:
            return False
        return all(row.careful.at_most(divergence(now, before), max_kl) for before, now in pairwise(recent))

    return row.those(lambda i: row.careful.at_most(threshold, row.confidence(i)) and is_stable(i), row.most_confident())


def divergence(now: list[float], before: list[float]) -> float:
    return sum(p * math.log(p / max(q, 1e-38)) for p, q in zip(now, before, strict=True) if p)


def credit_decoding(row: Row, threshold: float, strength: float, decay: float, power: float) -> set[int]:
    credit = row.memory.setdefault("credit", [[0.0] * len(probs) for probs in row.probs])
    fused = list(row.probs)
    for i, probs in enumerate(row.probs):
        credit[i] = [decay * c for c in credit[i]]
        if i not in row.candidates:
            continue
        row.careful.at_most(*sorted(probs)[-2:])
        credit[i][probs.index(max(probs))] += max(probs) ** power
        weights = [p * (1 + c) ** strength for p, c in zip(probs, credit[i], strict=True)]
        fused[i] = [w / sum(weights) for w in weights]
    return confidence_threshold(Row(fused, row.candidates, row.careful), threshold)


NAIVE: dict[str, Callable[..., set[int]]] = {
    "entropy-bounded": entropy_bounded,
    "entropy-prefix": entropy_prefix,
    "entropy-threshold": entropy_threshold,
    "confidence-threshold": confidence_threshold,
    "factor": factor,
    "fixed-count": fixed_count,
    "left-to-right": left_to_right,
    "confident-prefix": confident_prefix,
    "adaptive-confidence": adaptive_confidence,
    "distance-penalty": distance_penalty,
    "spaced": spaced,
    "dilated": dilated,
    "klass": klass,
    "credit-decoding": credit_decoding,
}
