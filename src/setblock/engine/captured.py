"""Whole passes of few sizes that are captured once and replayed with a single launch.

A captured pass takes its rows out of the table, prepares the inputs, runs the model and the head, checks drafts, samples,
writes the rows back and packs what the host has to know. Its sizes are powers of two: R rows of Q tokens that see K keys. What
the host gives each pass is one copy: the rows, and how much each of them drafts.

Not captured, and run as any other pass: prompts, grammars, log-probabilities, biases and bans, a least number of new tokens,
and samplers of others.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import is_
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from setblock.decoding.answer.row_output import output_tables
from setblock.decoding.constraints.rows import BatchConstraints, RowConstraints
from setblock.decoding.samplers.base import Sampler
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.choice import Kernel, Policy, StaticSamplers, is_own
from setblock.decoding.step.inputs import prepare_inputs
from setblock.decoding.step.update import update
from setblock.devices import HostCopy, Packed, packed, seconds_of, sent
from setblock.errors import SetBlockError, warn
from setblock.model.protocol.runtime import (
    PassPlan,
    RowSchedule,
    StaticRunner,
    fixed_capacity,
    next_power_of_two,
)

T = TypeVar("T")

MOST_CAPTURED = 256
"""The most captured passes of an engine, of which the oldest is dropped for another: each takes memory, and every value of a
sampler's parameter has passes of its own."""


class Recorder(Protocol):
    """Records the operations of a function on the device, at fixed addresses. A CUDA graph is one."""

    def capture(self, run: Callable[[], T]) -> T:
        """Call `run` and record what it does. Return its result, whose tensors each replay fills anew."""

    def replay(self) -> None:
        """Do what was recorded."""


class Eager:
    """No recorder: each replay runs the pass again, one operation after the other. It is for compiled models, of which only
    the model itself is one launch."""

    _run: Callable[[], Any]
    _result: Any  # Packed

    def capture(self, run: Callable[[], T]) -> T:
        """See `Recorder`."""
        self._run, self._result = run, (result := run())
        return result

    @torch.inference_mode()
    def replay(self) -> None:
        """See `Recorder`."""
        self._result.values.copy_(self._run().values)


class CudaGraph:
    """A recorder for CUDA. All graphs of a process share one pool of memory: only one of them runs at a time."""

    _pool: Any = None

    def capture(self, run: Callable[[], T]) -> T:
        """See `Recorder`."""
        if CudaGraph._pool is None:
            CudaGraph._pool = torch.cuda.graph_pool_handle()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CudaGraph._pool, capture_error_mode="thread_local"):
            return run()

    def replay(self) -> None:
        """See `Recorder`."""
        self._graph.replay()


class PassSize(NamedTuple):
    """The size of a pass; each number is a power of two."""

    rows: int  # R
    queries: int  # Q, tokens of each row
    keys: int  # K, positions that each row may see


@dataclass(frozen=True)
class PassTraits:
    """What of the requests decides which operations a pass has, besides its size."""

    methods: frozenset[str]
    block_width: int
    capacity: int
    samplers: tuple[Sampler | None, ...]
    # Whether any request copies drafts, adapts their length, has a penalty, draws, and draws by each of the bounds
    has: tuple[bool, ...]


@dataclass
class CapturedPass:
    """A pass that was captured."""

    recorder: Recorder
    given: Tensor  # [4, R] int64: rows of the table, what `BatchState.shorten_drafts` takes, and which sampler
    outputs: Packed | None = None


class CapturedPasses:
    """The captured passes of an engine.

    Attributes:
        sizes: how many passes of each size there were.
        reason: why passes are not captured any more, or None.
    """

    def __init__(
        self,
        table: StateTable,
        passes: StaticRunner,
        *,
        vocab_size: int,
        recorder: Callable[[], Recorder] = CudaGraph,
        measured: Callable[[PassSize, float], None] = lambda size, seconds: None,
        kernel: Kernel | None = None,
    ) -> None:
        """Capture nothing yet. `measured` is called with the size and the seconds of each pass that is captured. `kernel`: of
        all passes of the model (`reading.kernel_for`)."""
        self._table, self._passes, self._vocab_size, self._recorder = table, passes, vocab_size, recorder
        self._measured, self._kernel = measured, kernel
        self._captured: dict[tuple[PassSize, PassTraits], CapturedPass] = {}
        self._version = table.version
        self._requests: Sequence[RequestParams] = ()  # of which `_traits` are
        self._traits: PassTraits | None = None
        self.sizes: Counter[PassSize] = Counter()
        self.reason: str | None = None

    @property
    def num_captured(self) -> int:
        """Return how many captured passes there are, at most `MOST_CAPTURED`."""
        return len(self._captured)

    def clear(self, pages: Sequence[int]) -> None:
        """See `StaticRunner`."""
        self._passes.clear(pages)

    def by_size(self) -> dict[PassSize, CapturedPass]:
        """Return a captured pass of each size, the last that was captured."""
        return {size: each for (size, _), each in self._captured.items()}

    def can_capture(
        self, requests: Sequence[RequestParams], schedules: Sequence[RowSchedule], constraints: BatchConstraints
    ) -> bool:
        """Return whether a pass over these requests, each with its schedule and constraints, is captured."""
        return (
            self.reason is None
            and not any(scheduled.is_prefill for scheduled in schedules)
            and not constraints.constrained
            and self._traits_of(requests) is not None
        )

    def _traits_of(self, requests: Sequence[RequestParams]) -> PassTraits | None:
        last = self._requests  # mostly the same
        if len(requests) != len(last) or not all(map(is_, requests, last)):
            self._requests, self._traits = requests, traits_of(requests)
        return self._traits

    @torch.inference_mode()
    def launch(
        self,
        rows: Sequence[int],
        requests: Sequence[RequestParams],
        schedules: Sequence[RowSchedule],
        *,
        pages: Sequence[Sequence[int]],
        requested: Sequence[Sequence[int]] | None = None,
    ) -> HostCopy | None:
        """Launch a pass that `can_capture` allows. Return a copy of what it did to these rows, then to those that fill the
        pass up; or None if it could not be captured: nothing has happened then, and `reason` says why.

        Args:
            rows: of the table.
            requests: theirs.
            schedules: what the pass feeds each row, at least one token, or an upper bound on it.
            pages: of each row.
            requested: [2, rows], as in `BatchState.shorten_drafts`; by default drafts are fed whole.
        """
        size = PassSize(
            rows=next_power_of_two(len(rows)),
            queries=next_power_of_two(max(scheduled.tokens for scheduled in schedules)),
            keys=self._passes.keys_for(max(scheduled.end for scheduled in schedules)),
        )
        if self._version != self._table.version:  # addresses have changed
            self._captured, self._version = {}, self._table.version
        self._passes.place(rows, pages)
        filling = size.rows - len(rows)
        columns = [[-1] * len(rows)] * 2 if requested is None else requested
        traits = self._traits_of(requests)
        assert traits is not None
        key = size, traits
        numbers = [
            [*rows, *[self._table.vacant] * filling],
            *([*each, *[-1] * filling] for each in columns),
            [*(traits.samplers.index(each.settings.sampler) for each in requests), *[0] * filling],
        ]
        given = sent(numbers, self._table.device)
        captured = self._captured.get(key)
        is_new = captured is None
        if captured is None:
            if len(self._captured) >= MOST_CAPTURED:
                del self._captured[next(iter(self._captured))]
            captured = self._captured[key] = CapturedPass(self._recorder(), torch.empty_like(given))
        captured.given.copy_(given)
        if is_new:
            self._capture(captured, size, traits, [*requests, *[requests[0]] * filling])
        else:
            captured.recorder.replay()
        self.sizes[size] += 1
        if captured.outputs is None:
            return None
        outputs = captured.outputs
        if outputs.values.device.type == "cpu":  # the next replay writes there
            outputs = replace(outputs, values=outputs.values.clone())
        return HostCopy(outputs)

    def _capture(
        self, captured: CapturedPass, size: PassSize, traits: PassTraits, requests: Sequence[RequestParams]
    ) -> None:
        """Capture a pass and replay it, once it is certain that a replay does what the pass does."""
        run = partial(self._pass, captured.given, size, traits, requests)
        try:
            outputs, seconds = recorded(run, captured.recorder, self._table, values=lambda outputs: [outputs.values])
        except (RuntimeError, SetBlockError) as error:
            self.reason = str(error).strip().splitlines()[0]
            warn(f"passes are not captured, but launched one operation after the other: {self.reason}")
        else:
            captured.outputs = outputs
            self._measured(size, seconds)

    def _pass(self, given: Tensor, size: PassSize, traits: PassTraits, requests: Sequence[RequestParams]) -> Packed:
        """Run a pass over the rows given. Neither reads a value nor makes a tensor from one of the host."""
        rows, requested, which = given[0], given[1:3], given[3]
        state = self._table.load(rows, requests, may_prefill=False)
        policy = Policy(
            requests,
            [RowConstraints(())] * size.rows,
            vocab_size=self._vocab_size,
            device=self._table.device,
            columns=state.params.columns,
            samplers=StaticSamplers(traits.samplers, which),
            kernel=self._kernel,
        )
        if state.params.adapts_drafts:
            state.shorten_drafts(requested)
        params = state.params
        width = 1 if params.is_all_causal or (size.queries == 1 and not params.has_sbd) else params.block_width
        plan = PassPlan(
            rows=state.rows,
            batch=size.rows,
            ends=torch.minimum(state.next_end(fuses_commit=True), state.cache.committed + size.queries),
            is_prefill=None,
            queries=size.queries,
            width=width,
            checked=min(size.queries, params.block_width) - 1 if params.has_exact else 0,
            visible=size.keys,
            causal_block=params.sbd_config is not None and params.sbd_config.causal_block,
        )
        inputs = prepare_inputs(state, plan)
        logits = self._passes.logits(inputs, rows=rows)
        step = update(state, inputs, logits, policy)
        self._table.store(rows, state)
        return packed(*output_tables(state, step))


def recorded(
    run: Callable[[], T], recorder: Recorder, table: StateTable, *, values: Callable[[T], Sequence[Tensor]]
) -> tuple[T, float]:
    """Record a function that changes a table as a pass does, once it is certain that a replay does the same. Return the result
    of the last replay, and its seconds. Raise `RuntimeError` or `SetBlockError`, with the table as it was, if the function
    can't be recorded. `values` gives the tensors of a result, which are compared."""
    before = table.snapshot()
    try:
        expected = [
            each.clone() for each in values(run())
        ]  # a first time, so that whatever is made on first use is there
        after = table.snapshot()
        table.restore(before)
        result = recorder.capture(run)
        table.restore(before)
        for each in values(result):
            each.fill_(-1)
        recorder.replay()
        pairs = zip(values(result), expected, strict=True)
        if not all(torch.equal(each, other) for each, other in pairs) or not table.is_like(after):
            raise SetBlockError("a replay did not give what the pass gives")
        table.restore(before)  # the first replay of a graph also prepares it: the second is measured
        seconds = seconds_of(recorder.replay, table.device)
    except (RuntimeError, SetBlockError):
        table.restore(before)
        raise
    return result, seconds


def traits_of(requests: Sequence[RequestParams]) -> PassTraits | None:
    """Return the traits of a pass over these requests, or None if it is not captured."""
    settings = [each.settings for each in requests]
    if any(
        each.logprobs is not None
        or each.logit_bias
        or each.banned_tokens
        or each.min_new_tokens
        or not is_own(each.sampler)
        for each in settings
    ):
        return None
    return PassTraits(
        methods=frozenset(each.method for each in settings),
        block_width=max(each.block_size for each in requests),
        capacity=fixed_capacity(max(each.limit + each.block_size for each in requests)),
        samplers=tuple(dict.fromkeys(each.sampler for each in settings)),
        has=(
            any(each.prompt_lookup for each in settings),
            any(each.adapts_drafts for each in requests),
            any(each.repetition_penalty != 1 for each in settings),
            any(each.temperature for each in settings),
            any(each.top_k for each in settings),
            any(each.top_p != 1 for each in settings),
            any(each.min_p for each in settings),
        ),
    )
