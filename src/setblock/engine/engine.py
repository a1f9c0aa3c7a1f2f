"""The engine: it decodes many requests together, which start and end between passes.

It is not thread-safe: call it from one thread.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial

import torch

from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.drafts.draft_length import CAPTURED
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.decoding.settings.resolve import check_rows
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.inputs import prompts_in_parts
from setblock.decoding.step.reading import kernel_for
from setblock.decoding.step.update import StepOutput
from setblock.engine.captured import CapturedPasses, CudaGraph, Eager, PassSize, Recorder
from setblock.engine.launcher import LaunchedPass, Launcher
from setblock.engine.limits import EngineFigures, EngineLimits
from setblock.engine.pages import PagePool
from setblock.engine.request import EngineSequence, Progress, QueueFull, Request
from setblock.engine.running import RunningBatch
from setblock.engine.schedule import schedule
from setblock.errors import ParameterError, SetBlockError
from setblock.locks import lock_of
from setblock.model.protocol.runtime import LanguageModel, RowSchedule, pass_kind


class Engine:
    """Decode many requests together. Each answer is the same as if its request were alone.

    Every step is one forward pass in which some requests are fed a part of their prompt and others a block. A request starts
    when fewer than `max_num_seqs` run and the cache has pages for its prompt and a block. If the cache is full later, the
    request that arrived last is preempted: it releases its pages, waits, and its tokens are fed again.

    Attributes:
        size: the limits that it was made with.
        limits: those that hold, after a `restart` perhaps smaller ones.
        captured: its captured passes, if it has some.
    """

    def __init__(
        self,
        model: LanguageModel,
        limits: EngineLimits | None = None,
        *,
        whole_rows: bool = False,
        recorder: Callable[[], Recorder] | None = None,
        on_step: Callable[[StepOutput], None] | None = None,
    ) -> None:
        """Make an idle engine.

        Args:
            model: if it is compiled or captured, passes have few sizes.
            limits: of memory and work.
            whole_rows: each request has one page of `max_model_len` tokens, whose keys and values are read without a copy, also
                if the model does not need that.
            recorder: records passes of few sizes and replays them, by default as the model says.
            on_step: called after each pass that is not one of few sizes, with its tensors. They are of all rows that run.

        Raises:
            SetBlockError: the model has no runner for these limits.
        """
        self.limits = self.size = limits or EngineLimits()
        self._model, self._whole_rows = model, whole_rows or model.needs_whole_rows
        if self._whole_rows:
            longest = self.limits.max_model_len or model.context_length or self.limits.kv_tokens
            page_tokens = min(longest, self.limits.kv_tokens)
            pages = min(self.limits.max_num_seqs, self.limits.kv_tokens // page_tokens)
        else:
            page_tokens = self.limits.page_tokens
            pages = -(-self.limits.kv_tokens // page_tokens)
        self._pool = PagePool(pages, page_tokens=page_tokens)
        self._runner = model.runner(
            pages=pages, page_tokens=page_tokens, rows=self.limits.max_num_seqs, whole_rows=self._whole_rows
        )
        self._sequences: dict[str, EngineSequence] = {}  # all that are not finished
        self._waiting: deque[EngineSequence] = deque()
        table = StateTable(
            self.limits.max_num_seqs, sbd_config=model.sbd_config, device=model.device, draft_text=model.draft_text
        )
        self._running = RunningBatch(table)
        self.captured: CapturedPasses | None = None
        if recorder is None and model.static_kind is not None:
            recorder = CudaGraph if model.static_kind == "captured" else Eager
        if recorder is not None:
            positions = pages * page_tokens
            passes = model.static_passes(self._runner, rows=table.vacant + 1, positions=positions)
            self._made_of = model.static_state, model.draft_text
            self.captured = CapturedPasses(
                table,
                passes,
                vocab_size=model.vocab_size,
                recorder=recorder,
                measured=partial(_measured, model),
                kernel=kernel_for(model),
            )
        self._launcher = Launcher(self._running, self._pool, self._runner, self.captured, on_step=on_step)
        self._in_flight: LaunchedPass | None = None  # a pass whose outputs were not read yet
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
        needed, most = checked.params[0].limit, self.max_model_len
        if needed > most:
            is_limit = most == self.limits.max_model_len
            raise SetBlockError(
                f"prompt and answer may take {needed} tokens and this engine's {'limit is' if is_limit else 'cache holds'} "
                f"{most}: ask for fewer than {needed - prompt_end} new tokens or enlarge "
                f"{'max_model_len' if is_limit else 'kv_tokens'}"
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

        A pass is launched before the one before it is read, if nobody could join: the device then never waits for the host. On
        a CPU this gains nothing, and is done for captured passes only."""
        progress = []
        if self._in_flight is None:
            progress += self._drop_cancelled()
            self._admit()
            if not (schedules := self._plan()):
                return progress
            self._in_flight = self._launcher.launch(schedules)
            self._counts["passes"] += 1
        launched, self._in_flight = self._in_flight, self._launch_ahead(self._in_flight)
        progress += self._progress(*self._launcher.read(launched, self._in_flight))
        if not self._running.sequences:
            self._in_flight = None  # nobody is left whom it could have fed anything
        return progress if self._in_flight else progress + self._drop_cancelled()

    def fits(self, model: LanguageModel, limits: EngineLimits) -> bool:
        """Return whether the engine, whose passes are captured, can be used again by `restart` as one made for `model` and
        `limits`: it is large enough, and the model has not changed meanwhile."""
        state, draft_text = self._made_of
        return (
            limits.max_num_seqs <= self.size.max_num_seqs
            and limits.kv_tokens <= self.size.kv_tokens
            and limits.page_tokens == self.size.page_tokens
            and model is self._model
            and model.draft_text is draft_text
            and model.static_state == state
        )

    def restart(self, limits: EngineLimits) -> None:
        """Make the engine, which is idle, what it was at first, with limits that it `fits`. Captured passes stay."""
        assert self.is_idle
        self.limits = limits
        self._pool.clear()
        self._counts.clear()

    @property
    def is_idle(self) -> bool:
        """Return whether the engine has nothing to do and nothing to report."""
        return not self._sequences

    @property
    def max_model_len(self) -> int:
        """Return the most tokens that a prompt and its answer may have: as the limits say, or as the cache holds."""
        of_cache = self._pool.page_tokens * (1 if self._whole_rows else self._pool.total)
        return min(self.limits.max_model_len or of_cache, of_cache)

    @property
    def figures(self) -> EngineFigures:
        """Return the engine's counters."""
        pool, running = self._pool, len(self._running.sequences)
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
            if sequence in self._running.sequences:
                self._running.changing()
                rows, row = self._running.batch, self._running.sequences.index(sequence)
                leaving.append(row)
            else:
                rows, row = sequence.opened(), 0
                self._waiting.remove(sequence)
            rows.state.finish(row)
            generation = rows.generation(row, cancelled=True)
            text = rows.texts[row].take(final=True) if sequence.request.streams else ""
            progress.append(Progress(sequence.request.id, text, (), None, generation))
            self._forget(sequence)
        self._leave(leaving)
        return progress

    def _admit(self) -> None:
        """Start waiting requests in the order of the queue, while there is a free row and cache for the first of them."""
        joining: list[EngineSequence] = []
        while self._waiting and (others := len(self._running.sequences) + len(joining)) < self.limits.max_num_seqs:
            left_over = 0 if self._whole_rows else others  # pages for the others to grow
            if not self._give_first_pages(self._waiting[0], left_over=left_over):
                break
            joining.append(self._waiting.popleft())
        if joining:
            self._running.join(joining)

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
        if rows:
            self._running.leave(rows)
            if not self._running.sequences:  # the runner keeps no tensors of finished requests
                self._launcher.place()

    def _forget(self, sequence: EngineSequence) -> None:
        sequence.release(self._pool)
        del self._sequences[sequence.request.id]
        self._cancelled.pop(sequence.request.id, None)

    # What a pass feeds

    def _plan(self) -> list[RowSchedule]:
        """Return the schedule of each running request, whose pages are allocated; empty if none runs."""
        while self._running.sequences:
            schedules = self._scheduled(self._launcher.whole_schedules())
            assert any(each.tokens for each in schedules), "decoding stops before an answer ends"
            if self._give_pages(schedules):
                return schedules
        return []

    def _scheduled(self, whole: Sequence[RowSchedule]) -> list[RowSchedule]:
        """Return what of `whole` the next pass feeds."""
        requests = self._running.batch.state.params.rows
        chunks = [each.settings.prefill_chunk for each in requests]
        if self._runner.prompts_apart and any(each.is_prefill for each in whole):
            whole = prompts_in_parts(whole, requests, free_tokens=draft_lengths_of(self._model).free_tokens)
        return schedule(
            whole,
            self.limits.max_num_batched_tokens,
            served=[sequence.served for sequence in self._running.sequences],
            chunks=chunks if any(chunks) else None,
            refed=None
            if self._runner.most_refed is None
            else [self._runner.refed(row, each.start) for row, each in enumerate(whole)],
        )

    def _give_pages(self, schedules: Sequence[RowSchedule]) -> bool:
        """Allocate the pages of the next pass. Return False if there were too few; the request that arrived last was then
        preempted."""
        sequences = self._running.sequences
        is_enough = self._pool.extend([each.pages for each in sequences], [each.end for each in schedules])
        if not is_enough:
            self._preempt(max(range(len(sequences)), key=lambda row: sequences[row].arrival))
        return is_enough

    def _preempt(self, row: int) -> None:
        """Take a running request's pages, and let it wait before all others."""
        sequence, scheduled = self._running.sequences[row], self._launcher.cut_schedules()[row]
        self._running.save()
        sequence.rows = self._running.selected([row])
        sequence.rows.state.preempt()
        params, sequence.prompt_end = sequence.rows.state.params.rows[0], max(sequence.prompt_end, scheduled.start)
        sequence.block_end = min(scheduled.block_start + params.block_size, params.limit)
        sequence.release(self._pool)
        self._waiting.appendleft(sequence)
        self._leave([row])
        self._counts["preemptions"] += 1

    # The pass

    def _launch_ahead(self, launched: LaunchedPass) -> LaunchedPass | None:
        """Launch the pass after `launched`. Return None if that would delay somebody, or it can't be launched ahead."""
        may_join = self._waiting and len(self._running.sequences) < self.limits.max_num_seqs
        ahead = None if may_join or self._cancelled else self._launcher.launch_ahead(launched)
        self._counts["passes"] += ahead is not None
        return ahead

    def _progress(self, schedules: Sequence[RowSchedule], outputs: Sequence[RowOutput | None]) -> list[Progress]:
        """Return the result of a pass for each request that it fed, and let those leave that are finished."""
        batch, progress, leaving = self._running.batch, [], []
        for row, scheduled in enumerate(schedules):
            of_row = outputs[row]
            if not scheduled.tokens or of_row is None:
                continue
            sequence = self._running.sequences[row]
            sequence.served = self._counts["passes"]
            text = batch.texts[row].take(final=of_row.finished) if sequence.request.streams else ""
            made, params = sequence.read(of_row), batch.state.params.rows[row]
            self._count(scheduled, params.settings.method, of_row.scheduled.start)
            if not of_row.failed and self._runner.shares_pages:
                sequence.cache_full_pages(self._pool, of_row.scheduled.start)
            # No event for a pass that ends before its prompt does, nor for one that feeds preempted tokens again.
            is_silent = scheduled.is_prefill and (sequence.prefilled or not of_row.prefilled)
            sequence.prefilled = of_row.prefilled
            answer = None
            if of_row.finished:
                self._running.load()
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

    def _count(self, scheduled: RowSchedule, method: str, next_start: int) -> None:
        """Add a row's part of a pass to the figures. Its next pass starts at position `next_start`."""
        committed = 0 if scheduled.is_prefill or method == "ntp" else scheduled.tokens - scheduled.in_block
        self._counts["prefill_tokens" if scheduled.is_prefill else "block_tokens"] += scheduled.tokens - committed
        self._counts["commit_tokens"] += committed
        if method == "exact":
            self._counts["drafted_tokens"] += scheduled.drafted
            self._counts["accepted_tokens"] += max(0, min(scheduled.drafted, next_start - scheduled.start - 1))


def _measured(model: LanguageModel, size: PassSize, seconds: float) -> None:
    with lock_of(model):
        draft_lengths_of(model).times(CAPTURED, size.rows).update(size.rows * size.queries, seconds)
