"""Run the engine in a separate thread, with the way in and out of it.

Knows the engine. Knows nothing of HTTP. Everything here but the thread runs in one event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from setblock.engine.engine import Engine
from setblock.engine.limits import EngineFigures
from setblock.engine.request import Progress, Request

logger = logging.getLogger(__name__)


class EngineStopped(RuntimeError):  # noqa: N818  # as a rule it was asked to
    """Report that the engine has stopped, or is asked to, before a request was answered."""


class Worker:
    """Feed an engine from an event loop. The thread sleeps while there is nothing to decode."""

    def __init__(self, engine: Engine) -> None:
        self.figures: EngineFigures = engine.figures  # after its last pass
        self.failure: Exception | None = None  # what the engine died of, if it has
        self._engine = engine
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="engine"
        )  # a pass is next in it unless the engine is idle
        self._answers: dict[str, Answers] = {}
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop  # from the first request on

    async def stop(self) -> None:
        """End after the pass that is being made. What was not answered fails with `EngineStopped`."""
        self._stopping = True
        self._fail_all()
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def is_well(self) -> bool:
        """Return whether requests are being answered."""
        return not self._stopping and self.failure is None

    async def submit(self, requests: Sequence[Request]) -> "Answers":
        """Have requests answered. Raise `SetBlockError` if the engine refuses one of them, and so all (`QueueFull` if there is
        no room), or `EngineStopped` if it can't any more."""
        if not self.is_well:
            raise EngineStopped
        self._loop = asyncio.get_running_loop()
        answers = Answers(self, requests)
        self._answers |= {each.id: answers for each in requests}
        try:
            await self._loop.run_in_executor(self._thread, self._submit, requests)
        except BaseException:
            answers.close()
            raise
        return answers

    def give_up(self, request_id: str) -> None:
        """Cancel a request that nobody waits for any longer."""
        if self._answers.pop(request_id, None) is not None:
            self._thread.submit(self._engine.cancel, request_id)

    # In the thread

    def _submit(self, requests: Sequence[Request]) -> None:
        if not self.is_well:
            raise EngineStopped
        was_idle = self._engine.is_idle
        try:
            for each in requests:
                self._engine.submit(each)
        finally:
            self.figures = self._engine.figures
            if was_idle:
                self._go_on()

    def _pass(self) -> None:
        try:
            progress = self._engine.step()
            self.figures = self._engine.figures
        except Exception as error:
            logger.exception("the engine has failed")
            self.failure = error
            self._loop.call_soon_threadsafe(self._fail_all)
            return
        if progress:
            self._loop.call_soon_threadsafe(self._hand_out, progress)
        self._go_on()

    def _go_on(self) -> None:
        """Make another pass after what has come in, if there is something to decode."""
        if not self._engine.is_idle:
            with suppress(RuntimeError):  # the thread is to end
                self._thread.submit(self._pass)

    # In the event loop

    def _hand_out(self, progress: list[Progress]) -> None:
        for each in progress:
            if (answers := self._answers.get(each.id)) is not None:  # it was not given up
                answers.made.put_nowait(each)
            if each.generation is not None:
                self._answers.pop(each.id, None)

    def _fail_all(self) -> None:
        for answers in set(self._answers.values()):
            answers.made.put_nowait(EngineStopped())
        self._answers.clear()


class Answers:
    """Follow the progress of requests that belong together. `close` gives up what is not finished."""

    def __init__(self, worker: Worker, requests: Sequence[Request]) -> None:
        self._worker = worker
        self._places = {request.id: place for place, request in enumerate(requests)}  # of those that are not finished
        self.made: asyncio.Queue[Progress | EngineStopped] = asyncio.Queue()  # by the worker

    async def progress(self, deadline: float | None = None) -> AsyncIterator[tuple[int, Progress]]:
        """Yield each request's index among those that were submitted, and what a pass did for it, until all are finished,
        or raise `EngineStopped`, or `TimeoutError` at `deadline` by the event loop's time."""
        while self._places:
            async with asyncio.timeout_at(deadline):
                made = await self.made.get()
            if isinstance(made, EngineStopped):
                raise made
            place = self._places[made.id]
            if made.generation is not None:
                del self._places[made.id]
            yield place, made

    def close(self) -> None:
        """Give up what is not finished."""
        for request_id in self._places:
            self._worker.give_up(request_id)
        self._places.clear()
