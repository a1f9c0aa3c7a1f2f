"""Decode many requests together, which start and end between passes.

Single-threaded: whoever has several threads calls it from one of them.
"""

from collections import Counter, deque
from collections.abc import Sequence

import torch

from setblock.decoding.batch import Batch
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.decoding.settings.checks import check_rows
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
    when there is a place for it and cache for its prompt. If the cache becomes full later, the newest request releases its
    pages, waits, and its tokens are fed again.
    """

    def __init__(self, model: LanguageModel, limits: EngineLimits | None = None) -> None:
        """Make an idle engine, or raise `SetBlockError` if the model has no runner for rows that come and go."""
        self.limits = limits or EngineLimits()
        pages, page_tokens = -(-self.limits.kv_tokens // self.limits.page_tokens), self.limits.page_tokens
        self._model = model
        self._pool = PagePool(pages, page_tokens=page_tokens)
        self._runner = model.paged_runner(pages=pages, page_tokens=page_tokens, rows=self.limits.max_num_seqs)
        self._sequences: dict[str, EngineSequence] = {}  # all that are not finished
        self._waiting: deque[EngineSequence] = deque()
        self._running: list[EngineSequence] = []
        self._batch: Batch  # of those that run, in the same order, while there are any
        self._cancelled: dict[str, None] = {}
        self._arrivals = 0
        self._counts = Counter[str]()  # of the figures that count what was done

    def submit(self, request: Request) -> None:
        """Add a request. Raise `QueueFull` if `max_waiting` requests are already waiting, or `SetBlockError` if the model does
        not support the request, or the cache could never hold it."""
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
        """Run one forward pass, and return its result for each request in it. An idle engine returns nothing. After an
        exception the engine cannot be used any more."""
        progress = self._drop_cancelled()
        self._admit()
        if schedules := self._plan():
            progress += self._pass(schedules)
        return progress

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
        """Let those run that came first, as long as there is a place and cache for what they are to be fed first."""
        joining: list[EngineSequence] = []
        while self._waiting and (others := len(self._running) + len(joining)) < self.limits.max_num_seqs:
            if not self._give_first_pages(self._waiting[0], left_over=others):
                break
            joining.append(self._waiting.popleft())
        if not joining:
            return
        rows = [self._batch] if self._running else []
        self._batch = Batch.joined([*rows, *(sequence.opened() for sequence in joining)])
        for sequence in joining:
            sequence.rows = None
        self._running += joining

    def _give_first_pages(self, sequence: EngineSequence, *, left_over: int) -> bool:
        """Give a sequence pages for its prompt and a block, also those that hold its beginning already. Return False
        if fewer than `left_over` would remain, for others to grow. Costs nothing on the device."""
        # The output of a prompt's last token is needed, so that one is always fed.
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
        self._running = [self._running[row] for row in staying]
        if staying:
            self._batch = self._batch.select(staying)
        else:  # nothing is held for those who have gone
            del self._batch
            self._place()

    def _forget(self, sequence: EngineSequence) -> None:
        sequence.release(self._pool)
        del self._sequences[sequence.request.id]

    # What a pass feeds

    def _plan(self) -> list[RowSchedule]:
        """Return what each running request is fed, with pages for all of it; empty if none runs."""
        while self._running:
            if self._runner.most_refed is not None:  # it is asked about rows by their numbers
                self._place()
            whole, served = self._batch.schedules(self._runner), [sequence.served for sequence in self._running]
            schedules = schedule(whole, self.limits.max_num_batched_tokens, served=served)
            if self._give_pages(schedules):
                return schedules
        return []

    def _give_pages(self, schedules: Sequence[RowSchedule]) -> bool:
        """Give pages to all that are to be fed. False if there were too few: the youngest has then given up its own."""
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
        sequence, scheduled = self._running[row], self._batch.whole_schedules(self._runner)[row]
        sequence.rows = self._batch.select([row])
        sequence.rows.state.preempt()
        params, sequence.prompt_end = sequence.rows.state.params.rows[0], max(sequence.prompt_end, scheduled.start)
        sequence.block_end = min(scheduled.block_start + params.block_size, params.limit)
        sequence.release(self._pool)
        self._waiting.appendleft(sequence)
        self._leave([row])
        self._counts["preemptions"] += 1

    # The pass

    def _pass(self, schedules: Sequence[RowSchedule]) -> list[Progress]:
        rows = self._batch
        self._place()
        step = rows.step(self._runner, schedules)
        self._counts["passes"] += 1

        outputs = rows.outputs(step)
        texts = rows.new_texts(outputs)
        progress, leaving = [], []
        for row, scheduled in enumerate(schedules):
            if not scheduled.tokens:
                continue
            sequence, of_row = self._running[row], outputs[row]
            sequence.served = self._counts["passes"]
            made, params = sequence.read(of_row), rows.state.params.rows[row]
            self._count(scheduled, params.settings.method, of_row.scheduled.start)
            if not of_row.failed and self._runner.shares_pages:
                sequence.cache_full_pages(self._pool, of_row.scheduled.start)
            # Of a prompt's passes only the one that ends it says anything; nor do those that feed again what was lost.
            is_silent = scheduled.is_prefill and (sequence.prefilled or not of_row.prefilled)
            sequence.prefilled = of_row.prefilled
            answer = rows.generation(row) if of_row.finished else None
            if made and made[-1] in params.ends:
                made.pop()
            progress.append(Progress(sequence.request.id, texts[row], made, None if is_silent else of_row, answer))
            if of_row.finished:
                leaving.append(row)
                self._forget(sequence)
        self._leave(leaving)
        return progress

    def _place(self) -> None:
        self._runner.place(
            [sequence.pages for sequence in self._running], [sequence.arrival for sequence in self._running]
        )

    def _count(self, scheduled: RowSchedule, method: str, next_start: int) -> None:
        """Count what a pass fed a row, which continues at `next_start`."""
        committed = 0 if scheduled.is_prefill or method == "ntp" else scheduled.tokens - scheduled.in_block
        self._counts["prefill_tokens" if scheduled.is_prefill else "block_tokens"] += scheduled.tokens - committed
        self._counts["commit_tokens"] += committed
        if method == "exact":
            self._counts["drafted_tokens"] += scheduled.drafted
            self._counts["accepted_tokens"] += max(0, min(scheduled.drafted, next_start - scheduled.start - 1))
