"""The driver for asyncio: fops that wait, tasks side by side, cancellation, time-outs, loops."""

from __future__ import annotations

import asyncio
import errno
import threading
from typing import Any

import pytest

from glustx.errors import FopCancelled, FopError
from glustx.fops import Fop
from glustx.gfapi import AsyncVolume, Source
from glustx.gfapi.aio import run_in_loop
from glustx.rpc.transport import AsyncioReactor
from glustx.runtime import TimedOut, Waiter, sleep
from tests.t2_graph.gfapi_faces import MEMORY

SOURCE = Source(volume="test", text=MEMORY, origin="<test>")


class Gate:
    """Stands above a mounted graph: fops named in `held` wait until it is opened."""

    def __init__(self, vol: AsyncVolume, *held: str) -> None:
        session = vol._core.session
        self.below = session.top
        session.top = self
        self.held = set(held)
        self.waiting: list[Waiter[None]] = []
        self.cancelled = 0

    async def __call__(self, request: Fop) -> Any:
        if request.name in self.held:
            waiter: Waiter[None] = Waiter()
            self.waiting.append(waiter)
            try:
                await waiter
            except FopCancelled:
                self.cancelled += 1
                raise
        return await self.below(request)

    def open(self) -> None:
        waiting, self.waiting = self.waiting, []
        for waiter in waiting:
            waiter.set(None)


async def spin(condition: Any) -> None:
    """Let the loop turn until `condition()`."""
    while not condition():  # noqa: ASYNC110 - what is waited for is no part of asyncio
        await asyncio.sleep(0)


@pytest.mark.parametrize("rounds", [0, 1, 2, 50])
def test_values_and_errors(rounds):
    async def main():
        reactor = AsyncioReactor(asyncio.get_running_loop())

        async def work(error: bool) -> int:
            for _ in range(rounds):
                await sleep(reactor, 0)
            if error:
                raise FopError(errno.EIO)
            return rounds

        assert await run_in_loop(work(False)) == rounds
        with pytest.raises(FopError):
            await run_in_loop(work(True))

    asyncio.run(main())


def test_a_call_that_does_not_wait_makes_no_future(monkeypatch):
    async def main():
        async with AsyncVolume(SOURCE) as vol:
            monkeypatch.setattr(asyncio.get_running_loop(), "create_future", None)
            await vol.mkdir("/d")
            assert await vol.listdir("/") == ["d"]
            monkeypatch.undo()

    asyncio.run(main())


def test_tasks_side_by_side():
    async def main():
        async with AsyncVolume(SOURCE) as vol:
            gate = Gate(vol, "write")
            files = [await vol.create(f"/f{i}") for i in range(10)]
            tasks = [asyncio.create_task(file.write(b"abc")) for file in files]
            await spin(lambda: len(gate.waiting) == 10)
            gate.open()
            assert await asyncio.gather(*tasks) == [3] * 10
            for file in files:
                await file.close()

    asyncio.run(main())


def test_cancelling_a_task_cancels_the_fop_and_waits_for_its_undo():
    async def main():
        reactor = AsyncioReactor(asyncio.get_running_loop())
        steps = []

        async def work():
            try:
                await Waiter()
            except FopCancelled:
                steps.append("struck")
                for _ in range(3):
                    await sleep(reactor, 0.001)
                steps.append("undone")
                raise

        task = asyncio.create_task(run_in_loop(work()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert steps == ["struck", "undone"]

    asyncio.run(main())


def test_cancelling_twice_waits_as_well():
    async def main():
        reactor = AsyncioReactor(asyncio.get_running_loop())
        undone = []

        async def work():
            try:
                await Waiter()
            except FopCancelled:
                try:
                    await sleep(reactor, 0.02)
                except FopCancelled:
                    undone.append("struck again")
                undone.append("undone")
                raise

        task = asyncio.create_task(run_in_loop(work()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert undone[-1] == "undone"

    asyncio.run(main())


def test_a_cancelled_call_leaves_the_volume_usable():
    async def main():
        async with AsyncVolume(SOURCE) as vol:
            gate = Gate(vol, "fstat")
            file = await vol.create("/f")
            task = asyncio.create_task(file.stat())
            await spin(lambda: gate.waiting)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert gate.cancelled == 1
            gate.held.clear()
            assert (await file.stat()).st_size == 0
            await file.close()

    asyncio.run(main())


def test_timeouts_of_gfapi_and_of_asyncio():
    async def main():
        async with AsyncVolume(SOURCE) as vol:
            gate = Gate(vol, "fstat", "mkdir")
            file = await vol.using(timeout=0.01).create("/f")
            with pytest.raises(TimeoutError) as caught:
                await file.stat()
            assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, "/f")
            task = asyncio.create_task(vol.mkdir("/d"))
            await spin(lambda: len(gate.waiting) == 2)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.01)
            assert gate.cancelled == 2
            with pytest.raises(TimedOut):
                await run_in_loop(vol._core.mkdir("/e"), 0.01)
            gate.held.clear()
            await file.close()
            assert await vol.listdir("/") == ["f"]

    asyncio.run(main())


def test_an_undo_that_takes_too_long_goes_on_without_its_caller():
    async def main():
        undone, over = asyncio.Event(), Waiter()

        async def work():
            try:
                await Waiter()
            finally:
                await over
                undone.set()

        with pytest.raises(TimedOut, match=r"work: no answer in 0\.01 s"):
            await asyncio.wait_for(run_in_loop(work(), 0.01), 60)
        assert not undone.is_set()
        over.set(None)
        await asyncio.wait_for(undone.wait(), 60)

    asyncio.run(main())


def test_results_of_worker_threads():
    async def main():
        reactor = AsyncioReactor(asyncio.get_running_loop())

        async def work():
            waiter: Waiter[str] = Waiter()
            threading.Thread(target=reactor.post, args=(lambda: waiter.set("value"),)).start()
            return await waiter

        assert await run_in_loop(work()) == "value"

    asyncio.run(main())


def test_a_volume_belongs_to_its_loop():
    vol = AsyncVolume(SOURCE)
    first = asyncio.new_event_loop()
    first.run_until_complete(vol.mount())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(vol.stat("/"))
    first.run_until_complete(vol.close())
    first.close()


def test_life_of_a_volume():
    async def main():
        vol = AsyncVolume(SOURCE)
        assert not vol.mounted and "not mounted" in repr(vol)
        assert await vol.mount() is vol and await vol.mount() is vol
        assert vol.mounted and vol.name == "test"
        file = await vol.create("/f")
        await vol.close()
        await vol.close()
        assert not vol.mounted
        await file.close()
        with pytest.raises(ValueError, match="closed"):
            await file.write(b"x")

    asyncio.run(main())


def test_a_file_that_nobody_closed():
    async def main():
        async with AsyncVolume(SOURCE) as vol:
            file = await vol.create("/f")
            await vol.unlink("/f")
            await file.allocate(0, 1 << 20)
            store = vol.graph.xlators["store"]
            assert store.statedump()["used"] == 1 << 20
            with pytest.warns(ResourceWarning, match="unclosed <AsyncFile '/f'"):
                del file
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert store.statedump()["used"] == 0

    asyncio.run(main())


def test_uvloop():
    uvloop = pytest.importorskip("uvloop")

    async def main():
        async with AsyncVolume(SOURCE) as vol:
            gate = Gate(vol, "write")
            async with await vol.create("/f") as file:
                task = asyncio.create_task(file.write(b"abc"))
                await spin(lambda: gate.waiting)
                gate.open()
                assert await task == 3
                assert await file.pread(10, 0) == b"abc"

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
