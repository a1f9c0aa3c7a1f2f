"""The worker: the engine in a thread of its own, and the queues between it and the server's event loop."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from setblock.engine.engine import Engine
from setblock.engine.limits import EngineFigures
from setblock.engine.request import Progress, Request

logger = logging.getLogger(__name__)


class EngineStopped(RuntimeError):  # noqa: N818  # usually no error: the server shuts down
    """The engine has stopped, or is stopping, before a request was answered."""


OutputQueue = asyncio.Queue[Progress | EngineStopped]
"""The outputs of requests that were submitted together."""


class Worker:
    """The thread of an engine. It sleeps while there is nothing to decode. All public methods are for one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.figures: EngineFigures = engine.figures  # after its last pass
        self.failure: BaseException | None = None  # the exception that ended the engine, if one did
        self._engine = engine
        # While the engine is not idle, the executor's queue always has a pass
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._outputs: dict[str, OutputQueue] = {}  # by request id
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop  # from the first request on

    async def stop(self) -> None:
        """End the thread after the running pass. Unfinished requests get `EngineStopped`."""
        self._stopping = True
        self._fail_all()
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def is_well(self) -> bool:
        """Return whether it takes requests: it is not stopping, and has not failed."""
        return not self._stopping and self.failure is None

    async def submit(self, requests: Sequence[Request]) -> OutputQueue:
        """Submit requests to the engine. Return the queue of their progress: each request's last item has a
        `generation`. If the engine stops, the last item is `EngineStopped`. Raise `SetBlockError` if the engine
        refuses one of them (`QueueFull` if its queue is full); in that case, none is answered. Raise `EngineStopped`
        if the engine has stopped."""
        if not self.is_well:
            raise EngineStopped
        self._loop = asyncio.get_running_loop()
        made: OutputQueue = asyncio.Queue()
        self._outputs |= {each.id: made for each in requests}
        try:
            await self._loop.run_in_executor(self._thread, self._submit, requests)
        except BaseException:
            self.abort(each.id for each in requests)
            raise
        return made

    def abort(self, request_ids: Iterable[str]) -> None:
        """Cancel those of these requests that are not finished."""
        for request_id in request_ids:
            if self._outputs.pop(request_id, None) is not None:
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
        except BaseException as error:  # a panic in Rust is no `Exception`
            logger.exception("the engine has failed")
            self.failure = error
            self._loop.call_soon_threadsafe(self._fail_all)
            return
        if progress:
            self._loop.call_soon_threadsafe(self._hand_out, progress)
        self._go_on()

    def _go_on(self) -> None:
        """Queue another pass, after requests that have come in, unless the engine is idle."""
        if not self._engine.is_idle:
            with suppress(RuntimeError):  # the executor is shut down
                self._thread.submit(self._pass)

    # In the event loop

    def _hand_out(self, progress: list[Progress]) -> None:
        for each in progress:
            if (made := self._outputs.get(each.id)) is not None:  # None if it was aborted
                made.put_nowait(each)
            if each.generation is not None:
                self._outputs.pop(each.id, None)

    def _fail_all(self) -> None:
        for made in set(self._outputs.values()):
            made.put_nowait(EngineStopped())
        self._outputs.clear()
