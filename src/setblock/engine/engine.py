"""The engine: it decodes many requests together, which start and end between passes.

It is not thread-safe: call it from one thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from setblock.decoding.answer.row_output import RowOutput, row_outputs
from setblock.decoding.batch import Batch
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.decoding.loop import FREE_TOKENS
from setblock.decoding.settings.resolve import check_rows
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.inputs import schedules_ahead
from setblock.devices import HostCopy
from setblock.engine.captured import CapturedPasses, CudaGraph, Recorder
from setblock.engine.limits import EngineFigures, EngineLimits
from setblock.engine.pages import PagePool
from setblock.engine.request import EngineSequence, Progress, QueueFull, Request
from setblock.engine.schedule import schedule
from setblock.errors import ParameterError, SetBlockError
from setblock.locks import lock_of
from setblock.model.protocol.runtime import LanguageModel, RowSchedule, pass_kind


class Engine:
    """Decode many requests together. Each answer is the same as if its request were alone.

    Every step is one forward pass in which some requests are fed a part of their prompt and others a block. A request starts
    when fewer than `max_num_seqs` run and the cache has pages for its prompt and a block. If the cache is full later, the
    request that arrived last is preempted: it releases its pages, waits, and its tokens are fed again.
    """

    def __init__(
        self,
        model: LanguageModel,
        limits: EngineLimits | None = None,
        *,
        recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        """Make an idle engine, or raise `SetBlockError` if the model has no runner for rows that come and go. With a
        `recorder`, passes of few sizes are captured by it and replayed; by default that is `CudaGraph` if the limits say
        so."""
        self.limits = limits or EngineLimits()
        pages, page_tokens = -(-self.limits.kv_tokens // self.limits.page_tokens), self.limits.page_tokens
        self._model = model
        self._pool = PagePool(pages, page_tokens=page_tokens)
        self._runner = model.paged_runner(pages=pages, page_tokens=page_tokens, rows=self.limits.max_num_seqs)
        self._sequences: dict[str, EngineSequence] = {}  # all that are not finished
        self._waiting: deque[EngineSequence] = deque()
        self._running: list[EngineSequence] = []
        self._batch: Batch  # of those that run, in the same order, while there are any
        self._table = StateTable(
            self.limits.max_num_seqs, sbd_config=model.sbd_config, device=model.device, draft_text=model.draft_text
        )
        self._free_rows = list(reversed(range(self.limits.max_num_seqs)))  # of the table
        self._rows: torch.Tensor  # [R] int64, the rows of `_batch` in the table
        # Whether passes have changed the state in one of the two places since it was written to the other
        self._batch_is_newer = self._table_is_newer = False
        self.captured: CapturedPasses | None = None
        if recorder is None and self.limits.cuda_graphs:
            if model.device.type != "cuda":
                raise SetBlockError(f"cuda_graphs needs a model on a CUDA device: this one is on {model.device}")
            recorder = CudaGraph
        if recorder is not None:
            positions = pages * page_tokens
            passes = model.static_passes(self._runner, rows=self._table.vacant + 1, positions=positions)
            self.captured = CapturedPasses(self._table, passes, vocab_size=model.vocab_size, recorder=recorder)
        self._in_flight: _LaunchedPass | None = None  # a captured pass whose outputs were not read yet
        self._cancelled: dict[str, None] = {}
        self._arrivals = 0
        self._counts = Counter[str]()  # of the figures that count what was done

    def submit(self, request: Request) -> None:
        """Add a request to the queue. Raise `QueueFull` if `max_waiting` requests are already waiting, or `SetBlockError` if
        the model does not support the request, or prompt and answer may be longer than the whole cache."""
        if request.settings.n != 1:
            raise ParameterError(f"n must be 1 in a request to the engine, not {request.settings.n}")
        if request.id in self._sequences:
            raise SetBlockError(f"a request with id {request.id!r} is not finished yet: give another id")
        if len(self._waiting) >= self.limits.max_waiting:
            raise QueueFull(f"{len(self._waiting)} requests are waiting, the most that may wait: try again later")
        checked, prompt_end = check_rows(self._model, [request.prompt], [request.settings]), len(request.prompt)
        needed, total = checked.params[0].limit, self._pool.total * self._pool.page_tokens
        if needed > total:
            raise SetBlockError(
                f"prompt and answer may take {needed} tokens and this engine's cache holds {total}: ask for fewer than "
                f"{needed - prompt_end} new tokens or enlarge kv_tokens"
            )
        block_end = min(prompt_end + checked.params[0].block_size, needed)
        sequence = EngineSequence(request, self._arrivals, checked, list(request.prompt), prompt_end, block_end)
        self._sequences[request.id] = sequence
        self._arrivals += 1
        self._waiting.append(sequence)

    def cancel(self, request_id: str) -> None:
        """Cancel a request. The next step reports its text so far. Unknown and finished ids are ignored."""
        if request_id in self._sequences:
            self._cancelled[request_id] = None

    @torch.inference_mode()
    def step(self) -> list[Progress]:
        """Run one forward pass. Return its result for each request that it fed, and for cancelled requests; nothing if the
        engine is idle. After an exception the engine can't be used any more.

        A captured pass is launched before the one before it is read, if nobody could join: the device then never waits for
        the host."""
        progress = []
        if self._in_flight is None:
            progress += self._drop_cancelled()
            self._admit()
            if not (schedules := self._plan()):
                return progress
            self._in_flight = self._launch_captured(schedules)
            if self._in_flight is None:
                return progress + self._pass(schedules)
        launched, self._in_flight = self._in_flight, self._launch_ahead(self._in_flight)
        progress += self._read_captured(launched)
        if not self._running:
            self._in_flight = None  # nobody is left whom it could have fed anything
        return progress if self._in_flight else progress + self._drop_cancelled()

    @property
    def is_idle(self) -> bool:
        """Return whether the engine has nothing to do and nothing to report."""
        return not self._sequences

    @property
    def figures(self) -> EngineFigures:
        """Return the engine's counters."""
        pool, running = self._pool, len(self._running)
        used = (pool.total - pool.available) * pool.page_tokens
        with lock_of(self._model):
            pass_seconds = draft_lengths_of(self._model).curve(pass_kind(self._runner), running)
        return EngineFigures(
            waiting=len(self._waiting),
            running=running,
            kv_tokens_used=used,
            kv_tokens_cached=len(pool.evictable) * pool.page_tokens,
            kv_tokens_total=pool.total * pool.page_tokens,
            pass_seconds=pass_seconds,
            **self._counts,
        )

    # Who runs

    def _drop_cancelled(self) -> list[Progress]:
        progress, leaving = [], []
        for sequence in [self._sequences[request_id] for request_id in self._cancelled]:
            if sequence in self._running:
                self._changing()
                rows, row = self._batch, self._running.index(sequence)
                leaving.append(row)
            else:
                rows, row = sequence.opened(), 0
                self._waiting.remove(sequence)
            rows.state.finish(row)
            generation = rows.generation(row, cancelled=True)
            progress.append(Progress(sequence.request.id, rows.texts[row].take(final=True), (), None, generation))
            self._forget(sequence)
        self._cancelled.clear()
        self._leave(leaving)
        return progress

    def _admit(self) -> None:
        """Start waiting requests in the order of the queue, while there is a free row and cache for the first of them."""
        joining: list[EngineSequence] = []
        while self._waiting and (others := len(self._running) + len(joining)) < self.limits.max_num_seqs:
            if not self._give_first_pages(self._waiting[0], left_over=others):
                break
            joining.append(self._waiting.popleft())
        if not joining:
            return
        parts = [self._batch] if self._running else []
        self._save()
        for sequence in joining:
            parts.append(sequence.opened())
            sequence.row, sequence.rows = self._free_rows.pop(), None
            self._table.write(sequence.row, parts[-1].state)
        self._running += joining
        self._rows = self._rows_of(self._running)
        requests = [params for part in parts for params in part.state.params.rows]
        self._batch = Batch.joined(parts, state=self._table.load(self._rows, requests))
        self._table_is_newer = False

    def _give_first_pages(self, sequence: EngineSequence, *, left_over: int) -> bool:
        """Allocate a waiting sequence's pages: those that already hold its prefix, and new ones for the rest of its prompt and
        a block. Return False, with nothing allocated, if fewer than `left_over` pages would remain for others to grow. It
        does no work on the device."""
        # The output of a prompt's last token is needed, so that token is always fed.
        pool, is_new = self._pool, not sequence.prefilled
        known = sequence.token_ids[: sequence.prompt_end - is_new] if self._runner.shares_pages else []
        pages, keys = pool.find(known)
        pool.share(pages)
        missing = pool.pages_for(max(sequence.prompt_end, sequence.block_end)) - len(pages)
        if missing + left_over > pool.available:
            pool.release(pages)
            return False
        sequence.pages, sequence.keys = pages + pool.take(missing), keys
        hit = len(pages) * pool.page_tokens
        sequence.opened().state.hold(hit)
        self._counts["prefix_hit_tokens"] += hit
        return True

    def _leave(self, rows: Sequence[int]) -> None:
        if not rows:
            return
        staying = [row for row in range(len(self._running)) if row not in set(rows)]
        self._free_rows += [self._running[row].row for row in rows]
        self._save()
        if staying:
            self._batch = self._selected(staying)
        self._running = [self._running[row] for row in staying]
        if staying:
            self._rows = self._rows_of(self._running)
            self._table_is_newer = False
        else:  # the batch and the runner keep no tensors of finished requests
            self._table_is_newer = False
            del self._batch
            self._place()

    def _rows_of(self, sequences: Sequence[EngineSequence]) -> torch.Tensor:
        return torch.tensor([sequence.row for sequence in sequences], device=self._model.device)

    def _save(self) -> None:
        """Write the state of those that run back to the table."""
        if self._running and self._batch_is_newer:
            self._table.store(self._rows, self._batch.state)
        self._batch_is_newer = False

    def _load(self) -> BatchState:
        """Return the state of those that run, from the table if captured passes have changed it there."""
        if self._table_is_newer:
            self._batch.state = self._table.load(self._rows, self._batch.state.params.rows, may_prefill=False)
            self._table_is_newer = False
        return self._batch.state

    def _selected(self, rows: Sequence[int]) -> Batch:
        """Return a batch of some rows of the batch, with their state in the table."""
        state, at = self._batch.state, torch.tensor([self._running[row].row for row in rows])
        requests = [state.params.rows[row] for row in rows]
        loaded = self._table.load(at.to(self._model.device), requests, may_prefill=state.may_prefill)
        return self._batch.select(rows, state=loaded)

    def _forget(self, sequence: EngineSequence) -> None:
        sequence.release(self._pool)
        del self._sequences[sequence.request.id]

    # What a pass feeds

    def _plan(self) -> list[RowSchedule]:
        """Return the schedule of each running request, whose pages are allocated; empty if none runs."""
        while self._running:
            batch, is_static = self._batch, self._is_static
            whole = (
                batch.choose_lengths(self._runner, is_static=is_static).schedules if is_static else self._schedules()
            )
            served = [sequence.served for sequence in self._running]
            refed = [self._runner.refed(row, each.start) for row, each in enumerate(whole)]
            schedules = schedule(whole, self.limits.max_num_batched_tokens, served=served, refed=refed)
            if self._give_pages(schedules):
                return schedules
        return []

    @property
    def _is_static(self) -> bool:
        """Whether the next pass is one of few sizes, which is captured."""
        if self.captured is None or self._batch.next_schedules is None:
            return False
        return self.captured.can_capture(
            self._batch.state.params.rows, self._batch.next_schedules, self._batch.policy.constraints
        )

    def _schedules(self) -> list[RowSchedule]:
        """Return the schedules of the next pass, with the lengths that were chosen applied to the state."""
        self._load()
        if (chosen := self._batch.chosen) is None or chosen.requested is not None:
            self._batch_is_newer = True  # drafts may be cut
        if self._runner.most_refed is not None:  # it is asked about rows by their numbers
            self._place()
        return self._batch.schedules(self._runner)

    def _give_pages(self, schedules: Sequence[RowSchedule]) -> bool:
        """Allocate the pages of the next pass. Return False if there were too few; the request that arrived last was then
        preempted."""
        oldest_first = sorted(range(len(schedules)), key=lambda row: self._running[row].arrival)
        for row in oldest_first:
            sequence = self._running[row]
            missing = max(0, self._pool.pages_for(schedules[row].end) - len(sequence.pages))
            if missing > self._pool.available:
                self._preempt(oldest_first[-1])
                return False
            sequence.pages += self._pool.take(missing)
        return True

    def _preempt(self, row: int) -> None:
        """Take a running request's pages, and let it wait before all others."""
        sequence, scheduled = self._running[row], self._schedules()[row]
        self._save()
        sequence.rows = self._selected([row])
        sequence.rows.state.preempt()
        params, sequence.prompt_end = sequence.rows.state.params.rows[0], max(sequence.prompt_end, scheduled.start)
        sequence.block_end = min(scheduled.block_start + params.block_size, params.limit)
        sequence.release(self._pool)
        self._waiting.appendleft(sequence)
        self._leave([row])
        self._counts["preemptions"] += 1

    # The pass

    def _pass(self, schedules: Sequence[RowSchedule]) -> list[Progress]:
        """Run a pass, and return its results."""
        batch = self._batch
        self._load()
        if (chosen := batch.chosen) is not None and chosen.requested is not None:
            self._schedules()
        self._place()
        step = batch.step(self._runner, schedules)
        self._counts["passes"] += 1
        self._batch_is_newer = True
        return self._progress(schedules, batch.outputs(step))

    def _launch_captured(self, schedules: Sequence[RowSchedule]) -> "_LaunchedPass | None":
        """Launch a pass over the scheduled requests as a captured one; return None if it is not captured."""
        if self.captured is None or not self._is_static:
            return None
        fed = [row for row, scheduled in enumerate(schedules) if scheduled.tokens]
        requested = self._batch.choose_lengths(self._runner, is_static=True).requested
        if requested is not None:
            requested = [[each[row] for row in fed] for each in requested]
        launched = self._launch(fed, [schedules[row] for row in fed], requested)
        if launched is not None:
            self._batch.feeds(schedules)
        return launched

    def _launch_ahead(self, launched: "_LaunchedPass") -> "_LaunchedPass | None":
        """Launch the pass after `launched`, whose outputs were not read. It feeds all that may be needed. Return None if that
        would delay somebody, cost more than reading first, or if it can't be known what is needed."""
        running, batch = self._running, self._batch
        requests, may_join = batch.state.params.rows, self._waiting and len(running) < self.limits.max_num_seqs
        is_free = sum(2 * each.block_size for each in requests) <= FREE_TOKENS
        if may_join or self._cancelled or not is_free or batch.policy.constraints.listening:
            return None
        fed = dict(zip(launched.sequences, launched.schedules, strict=True))
        if any(sequence not in fed for sequence in running):
            return None
        whole = [_with_block(fed[sequence], each) for sequence, each in zip(running, requests, strict=True)]
        bounds = schedules_ahead(whole, requests)
        rows = [row for row, bound in enumerate(bounds) if bound.tokens]
        missing = [max(0, self._pool.pages_for(bounds[row].end) - len(running[row].pages)) for row in rows]
        if not rows or sum(missing) > self._pool.available:
            return None
        for row, count in zip(rows, missing, strict=True):
            running[row].pages += self._pool.take(count)
        fed_sizes = [requests[row].block_size if requests[row].adapts_drafts else -1 for row in rows]
        return self._launch(rows, [bounds[row] for row in rows], [[-1] * len(rows), fed_sizes])

    def _launch(
        self, rows: Sequence[int], schedules: Sequence[RowSchedule], requested: Sequence[Sequence[int]] | None
    ) -> "_LaunchedPass | None":
        assert self.captured is not None
        self._save()
        sequences, requests = [self._running[row] for row in rows], self._batch.state.params.rows
        copy = self.captured.launch(
            [sequence.row for sequence in sequences],
            [requests[row] for row in rows],
            schedules,
            pages=[sequence.pages for sequence in sequences],
            requested=requested,
        )
        if copy is None:
            return None
        self._counts["passes"] += 1
        self._table_is_newer = True
        return _LaunchedPass(sequences, schedules, copy)

    def _read_captured(self, launched: "_LaunchedPass") -> list[Progress]:
        """Read the outputs of a captured pass, and return its results."""
        ahead, of_sequence = self._in_flight, dict(zip(launched.sequences, row_outputs(launched.copy), strict=False))
        fed = dict(zip(launched.sequences, launched.schedules, strict=True))
        if ahead is not None:  # what it feeds is known now
            ahead.schedules = [of_sequence[sequence].scheduled for sequence in ahead.sequences]
            for sequence, scheduled in zip(ahead.sequences, ahead.schedules, strict=True):
                assert self._pool.pages_for(scheduled.end) <= len(sequence.pages), (
                    "a pass was fed more than was expected"
                )
        none = RowSchedule(0, 0, 0, is_prefill=False)
        schedules = [fed.get(sequence, none) for sequence in self._running]
        outputs = self._batch.read([of_sequence.get(sequence) for sequence in self._running], self._changing)
        return self._progress(schedules, outputs)

    def _progress(self, schedules: Sequence[RowSchedule], outputs: Sequence[RowOutput | None]) -> list[Progress]:
        """Return the result of a pass for each request that it fed, and let those leave that are finished."""
        batch, progress, leaving = self._batch, [], []
        for row, scheduled in enumerate(schedules):
            of_row = outputs[row]
            if not scheduled.tokens or of_row is None:
                continue
            sequence = self._running[row]
            sequence.served = self._counts["passes"]
            text = batch.texts[row].take(final=of_row.finished)
            made, params = sequence.read(of_row), batch.state.params.rows[row]
            self._count(scheduled, params.settings.method, of_row.scheduled.start)
            if not of_row.failed and self._runner.shares_pages:
                sequence.cache_full_pages(self._pool, of_row.scheduled.start)
            # No event for a pass that ends before its prompt does, nor for one that feeds preempted tokens again.
            is_silent = scheduled.is_prefill and (sequence.prefilled or not of_row.prefilled)
            sequence.prefilled = of_row.prefilled
            answer = None
            if of_row.finished:
                self._load()
                answer = batch.generation(row)
                leaving.append(row)
                if answer.error is not None and self.captured is not None:
                    self.captured.clear(sequence.pages)
                self._forget(sequence)
            if made and made[-1] in params.ends:
                made.pop()
            progress.append(Progress(sequence.request.id, text, made, None if is_silent else of_row, answer))
        self._leave(leaving)
        return progress

    def _changing(self) -> BatchState:
        """Return the state of those that run, to be changed."""
        state, self._batch_is_newer = self._load(), True
        return state

    def _place(self) -> None:
        self._runner.place(
            [sequence.pages for sequence in self._running], [sequence.arrival for sequence in self._running]
        )

    def _count(self, scheduled: RowSchedule, method: str, next_start: int) -> None:
        """Add a row's part of a pass to the figures. Its next pass starts at position `next_start`."""
        committed = 0 if scheduled.is_prefill or method == "ntp" else scheduled.tokens - scheduled.in_block
        self._counts["prefill_tokens" if scheduled.is_prefill else "block_tokens"] += scheduled.tokens - committed
        self._counts["commit_tokens"] += committed
        if method == "exact":
            self._counts["drafted_tokens"] += scheduled.drafted
            self._counts["accepted_tokens"] += max(0, min(scheduled.drafted, next_start - scheduled.start - 1))


def _with_block(scheduled: RowSchedule, params: RequestParams) -> RowSchedule:
    """Return a schedule that feeds a whole block, too, if it feeds anything and the row has blocks: a copied draft may be as
    long as one that came from a block."""
    if not scheduled.tokens or params.settings.method == "ntp":
        return scheduled
    return scheduled._replace(end=max(scheduled.end, min(scheduled.block_start + params.block_size, params.limit)))


@dataclass
class _LaunchedPass:
    """A captured pass that was launched, and whose outputs were not read yet."""

    sequences: Sequence[EngineSequence]
    schedules: Sequence[RowSchedule]  # what it feeds each of them; upper bounds until the pass before it was read
    copy: HostCopy
