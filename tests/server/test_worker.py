"""The engine's thread: what goes in comes out, what is given up stops, and a dead engine keeps nobody waiting."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from setblock import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import QueueFull, Request
from setblock.errors import SetBlockError
from setblock.server.worker import EngineStopped, Worker

PROMPT = [5, 6, 7, 8]


def request(name, **settings):
    return Request(name, PROMPT, DecodingSettings(**{"method": "ntp", "max_new_tokens": 30, **settings}))


@asynccontextmanager
async def working(engine):
    worker = Worker(engine)
    try:
        yield worker
    finally:
        await worker.stop()


async def finished(made, count=1):
    done = {}
    while len(done) < count:
        each = await made.get()
        if isinstance(each, EngineStopped):
            raise each
        if each.generation is not None:
            done[each.id] = each.generation
    return done


async def until_idle(worker):
    async with asyncio.timeout(60):
        while worker.figures.running or worker.figures.waiting:
            await asyncio.sleep(0.01)


@pytest.fixture
def engine(served_model):
    return Engine(served_model)


def test_requests_of_one_submission_have_different_outputs(engine):
    async def main():
        async with working(engine) as worker:
            both = await worker.submit([request("a"), request("b", max_new_tokens=3)])
            alone = await worker.submit([request("c", max_new_tokens=3)])
            generations, other = await finished(both, 2), (await finished(alone))["c"]
            assert generations["b"].token_ids == generations["a"].token_ids[:3] == other.token_ids
            assert worker.figures.running == 0

    asyncio.run(main())


def test_what_is_given_up_is_gone_within_two_passes(engine):
    async def main():
        async with working(engine) as worker:
            made = await worker.submit([request("a", max_new_tokens=400, stop_token_ids=[], banned_tokens=[0])])
            await made.get()
            worker.abort(["a"])
            before = worker.figures.passes
            await until_idle(worker)
            assert worker.figures.passes <= before + 2
            assert not worker._outputs

    asyncio.run(main())


def test_a_request_that_is_refused_takes_its_siblings_along(served_model):
    async def main():
        async with working(Engine(served_model, EngineLimits(max_num_seqs=1, max_waiting=1))) as worker:
            running = await worker.submit([request("a", max_new_tokens=300, banned_tokens=[0])])
            await running.get()
            with pytest.raises(SetBlockError, match="context"):
                await worker.submit([request("b", max_new_tokens=10**6)])
            with pytest.raises(QueueFull):
                await worker.submit([request("c"), request("d"), request("e")])
            worker.abort(["a"])
            await until_idle(worker)
            assert await finished(await worker.submit([request("f", max_new_tokens=2)]))

    asyncio.run(main())


def test_a_dead_engine_keeps_nobody_waiting(engine, monkeypatch):
    def break_down():
        raise RuntimeError("out of memory")

    async def main():
        async with working(engine) as worker:
            monkeypatch.setattr(engine, "step", break_down)
            made = await worker.submit([request("a")])
            with pytest.raises(EngineStopped):
                await finished(made)
            with pytest.raises(EngineStopped):
                await worker.submit([request("b")])
            assert (str(worker.failure), worker.is_well) == ("out of memory", False)

    asyncio.run(main())


def test_stopping_fails_unfinished_requests(engine):
    async def main():
        async with working(engine) as worker:
            made = await worker.submit([request("a", max_new_tokens=400, banned_tokens=[0])])
            waiting = asyncio.create_task(finished(made))
            await asyncio.sleep(0)
            await worker.stop()
            with pytest.raises(EngineStopped):
                await waiting

    asyncio.run(main())
