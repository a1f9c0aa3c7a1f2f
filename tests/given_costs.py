"""Costs of passes that are given, and not learned from a clock, and what is decided with them."""

from collections.abc import Callable, Sequence

from setblock.decoding.drafts.control import DraftControl
from setblock.decoding.drafts.costs import LearnedCosts, TimedPass
from setblock.decoding.drafts.gains import DraftChoice


class GivenCosts(LearnedCosts):
    """A pass costs what a function of its tokens and rows says."""

    num_passes = 0

    def __init__(self, seconds: Callable[[int, int], float]) -> None:
        self.of = seconds

    def seconds(self, tokens: Sequence[int], *, rows: int, cached: int) -> list[float]:
        return [self.of(each, rows) for each in tokens]

    def extras(self) -> tuple[float, float]:
        return 0.0, 0.0

    def learn(self, timed: TimedPass) -> None:
        pass


class GivenControl(DraftControl):
    """Passes of all kinds cost what is given."""

    def __init__(self, costs: LearnedCosts) -> None:
        super().__init__()
        self.costs = costs

    def costs_of(self, name: str, *, rows: int) -> LearnedCosts:
        return self.costs


def on_a_cpu(tokens: int, rows: int) -> float:
    return 0.85 + 0.035 * tokens + 0.08 * rows


def free(tokens: int, rows: int) -> float:
    return 1.0


def by_token(tokens: int, rows: int) -> float:
    """No draft is worth it."""
    return float(tokens)


def gain_of(control: DraftControl) -> float:
    """How many times as many tokens as plain passes recent ones have given."""
    return control._gain_here.gained / control._gain_here.spent


def decided(control: DraftControl, rows: int, *, size: int, kinds: Sequence[int] = ()) -> list[DraftChoice]:
    prospects = [control.new_row().prospects(kinds, size, waits=False) for _ in range(rows)]
    return control.decide(prospects, "any", others=0, prompts=0, padded_rows=rows, cached=0)
