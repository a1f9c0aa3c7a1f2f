"""Run the engine in a separate thread, with the way in and out of it.

Knows the engine. Knows nothing of HTTP. Everything here but the thread runs in one event loop.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from setblock.engine.engine import Engine
from setblock.engine.limits import EngineFigures
from setblock.engine.request import Progress, Request

logger = logging.getLogger(__name__)


class EngineStopped(RuntimeError):  # noqa: N818  # as a rule it was asked to
    """Report that the engine has stopped, or is asked to, before a request was answered."""


class Worker:
    """Feed an engine from an event loop. The thread sleeps while there is nothing to decode."""

    def __init__(self, engine: Engine, *, on_failure: Callable[[], None] = lambda: None) -> None:
        self.figures: EngineFigures = engine.figures  # after its last pass
        self.failure: Exception | None = None  # what the engine died of, if it has
        self._engine, self._on_failure = engine, on_failure
        # What the thread is to do between two passes, and None to stop
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._answers: dict[str, Answers] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop  # from `start` on

    def start(self) -> None:
        """Begin; the running event loop is the one that gets the answers."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End after the pass that is being made. What was not answered fails with `EngineStopped`."""
        self._stopping = True
        self._fail_all()
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    @property
    def is_well(self) -> bool:
        """Return whether requests are being answered."""
        return self._thread.is_alive() and not self._stopping and self.failure is None

    async def submit(self, requests: Sequence[Request]) -> "Answers":
        """Have requests answered. Raise `SetBlockError` if the engine refuses one of them, and so all (`QueueFull` if there is
        no room), or `EngineStopped` if it can't any more."""
        if not self.is_well:
            raise EngineStopped
        answers = Answers(self, requests)
        self._answers |= {each.id: answers for each in requests}
        self._inbox.put(lambda: self._submit(answers))
        try:
            await answers.next()  # until the engine has taken the requests
        except BaseException:
            answers.close()
            raise
        return answers

    def give_up(self, request_id: str) -> None:
        """Cancel a request that nobody waits for any longer."""
        if self._answers.pop(request_id, None) is not None:
            self._inbox.put(lambda: self._engine.cancel(request_id))

    # In the thread

    def _run(self) -> None:
        try:
            while self._take_in():
                progress = self._engine.step()
                self.figures = self._engine.figures
                if progress:
                    self._loop.call_soon_threadsafe(self._hand_out, progress)
        except Exception as error:
            logger.exception("the engine has failed")
            self.failure = error
            self._loop.call_soon_threadsafe(self._fail_all)
            self._on_failure()

    def _take_in(self) -> bool:
        """Do what has come in, waiting for something if the engine is idle. False once there is nothing more to do."""
        while not (self._inbox.empty() and not self._engine.is_idle):
            work = self._inbox.get()
            if work is None:
                return False
            work()
        return True

    def _submit(self, answers: "Answers") -> None:
        fault = None
        try:
            for each in answers.requests:
                self._engine.submit(each)
        except Exception as error:
            fault = error
        self._loop.call_soon_threadsafe(answers.put, fault)
        self.figures = self._engine.figures

    # In the event loop

    def _hand_out(self, progress: list[Progress]) -> None:
        for each in progress:
            answers = self._answers.get(each.id)
            if answers is None:  # given up
                continue
            if each.generation is not None:
                del self._answers[each.id]
            answers.put(each)

    def _fail_all(self) -> None:
        for answers in set(self._answers.values()):
            answers.put(EngineStopped())
        self._answers.clear()


class Answers:
    """Follow the progress of requests that belong together. `close` gives up what is not finished."""

    def __init__(self, worker: Worker, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._worker = worker
        self._places = {request.id: place for place, request in enumerate(requests)}
        self._open = set(self._places)
        self._made: asyncio.Queue[Progress | Exception | None] = asyncio.Queue()

    async def progress(self, deadline: float | None = None) -> AsyncIterator[tuple[int, Progress]]:
        """Yield each request's index among those that were submitted, and what a pass did for it, until all are finished,
        or raise `EngineStopped`, or `TimeoutError` at `deadline` by the event loop's time."""
        while self._open:
            async with asyncio.timeout_at(deadline):
                made = await self.next()
            assert made is not None
            if made.generation is not None:
                self._open.discard(made.id)
            yield self._places[made.id], made

    def put(self, made: Progress | Exception | None) -> None:
        """Hand over what came of it, first None where the engine has taken the requests; the worker does."""
        self._made.put_nowait(made)

    def close(self) -> None:
        """Give up what is not finished."""
        for request_id in self._open:
            self._worker.give_up(request_id)
        self._open.clear()

    async def next(self) -> Progress | None:
        """Wait for what is handed over next, and return or raise it."""
        made = await self._made.get()
        if isinstance(made, Exception):
            raise made
        return made
