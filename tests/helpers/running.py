"""Running an engine, and what it is to be compared with."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from answers import answers, assert_same
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.row_output import RowOutput
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Progress, Request
from setblock.model.sbd_model import SBDModel


@dataclass
class Received:
    """All progress of a request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    events: list[RowOutput] = field(default_factory=list)
    generation: Generation | None = None
    silent: int = 0  # passes without an event


class Log(defaultdict[str, Received]):
    """The progress of an engine's requests, by request."""

    def __init__(self) -> None:
        super().__init__(Received)

    def add(self, progress: list[Progress]) -> None:
        for each in progress:
            received = self[each.id]
            assert received.generation is None, "nothing comes after the end"
            received.text += each.text
            received.token_ids += each.token_ids
            received.generation = each.generation
            if each.event is None:
                received.silent += 1
            else:
                received.events.append(each.event)

    def run(self, engine: Engine, *, most: int = 10_000) -> "Log":
        """Step to the end."""
        for _ in range(most):
            if engine.is_idle:
                return self
            self.add(engine.step())
        raise AssertionError("the engine does not get to an end")


_ALONE: dict[tuple[object, ...], Generation] = {}


def alone(sbd: SBDModel, request: Request) -> Generation:
    """The answer to a request by itself, padded, in a cache of its own."""
    key = (sbd, sbd.end_of_text_ids, tuple(request.prompt), repr(request.settings))
    if key not in _ALONE:
        _ALONE[key] = answers(sbd, [request.prompt], [request.settings])[0]
    return _ALONE[key]


def assert_as_alone(received: Received, theirs: Generation) -> None:
    """The same answer, by the same passes but for those over the prompt."""
    ours = received.generation
    assert ours is not None
    assert_same(ours, theirs)
    assert received.text == ours.text
    rest = ours.token_ids[len(received.token_ids) :]  # an end of text
    assert received.token_ids + rest == ours.token_ids
    assert len(rest) <= (ours.finish_reason == "stop")
    assert (ours.passes.block, ours.passes.commit) == (theirs.passes.block, theirs.passes.commit)
    assert ours.revealed_by == theirs.revealed_by
    assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)
    assert [event.number for event in received.events] == list(range(1 + theirs.passes.decoding))
    assert [event.kind for event in received.events].count("commit") == theirs.passes.commit
    assert ours.passes.prefill == 1 + received.silent


def check_that_rows_come_and_go_as_alone(model: SBDModel, wanted: Sequence[Request], limits: EngineLimits) -> None:
    """Requests that join one pass after the other, and lose their cache on the way, get what each gets alone."""
    engine, log = Engine(model, limits), Log()
    for request in wanted:
        engine.submit(request)
        log.add(engine.step())
    log.run(engine)
    assert engine.figures.preemptions > 0
    for request in wanted:
        generation = log[request.id].generation
        assert generation is not None
        (alone,) = answers(model, [request.prompt], [request.settings])
        assert_same(generation, alone)
        assert log[request.id].text == alone.text
