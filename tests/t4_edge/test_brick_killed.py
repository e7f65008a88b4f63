"""Bricks that are killed (SIGKILL) and started again under a mixed load of both faces of gfapi: what was acknowledged
is there afterwards, locks are held or reported lost, the clients go on by themselves, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import inspect
import logging
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import AsyncVolume, Source, Volume
from tests.peers import Volume as Peer
from tests.t4_edge.bricks import KINDS, brick, source, url

RESUME_SECONDS = 5.0
BLOCK = 4096
BLOCKS = 64
# What a call may meet while the brick is away, and a name that was made by a call that was not answered.
AWAY = {errno.ENOTCONN}


async def got(value: Any) -> Any:
    """The outcome of a call of either face."""
    return await value if inspect.isawaitable(value) else value


class Worker:
    """One thread or task that calls for ever.

    Attributes:
        done: how many calls have succeeded.
        last: when the last one did.
        strange: the error that ended it.
    """

    def __init__(self, load: Load, vol: Any, number: int) -> None:
        self.load = load
        self.vol = vol
        self.number = number
        self.rng = random.Random(load.rng.randrange(1 << 32))
        self.done = 0
        self.last = 0.0
        self.strange: BaseException | None = None

    async def run(self) -> None:
        """Go on until the load stops."""
        try:
            await self.begin()
            while not self.load.over.is_set():
                if self.load.pause.is_set():
                    self.load.paused(self)
                    await asyncio.sleep(0.002)
                    continue
                self.load.working(self)
                try:
                    await self.step()
                except OSError as error:
                    if error.errno not in AWAY:
                        raise
                    self.load.met[errno.errorcode[error.errno]] += 1
                    await asyncio.sleep(0.05)
                else:
                    self.done += 1
                    self.last = time.monotonic()
            await self.end()
        except BaseException as error:
            self.strange = error
        finally:
            self.load.paused(self)

    async def begin(self) -> None: ...

    async def step(self) -> None:
        raise NotImplementedError

    async def check(self) -> None: ...

    async def end(self) -> None: ...


class Writer(Worker):
    """Writes blocks to a file of its own and knows which of them were acknowledged."""

    async def begin(self) -> None:
        self.file = await got(self.vol.create(f"/w{self.number}"))
        self.stamp = 0
        self.acknowledged: dict[int, bytes] = {}

    async def step(self) -> None:
        self.stamp += 1
        index = self.rng.randrange(BLOCKS)
        block = f"{self.number}.{self.stamp}.".encode().ljust(BLOCK, b"x")
        self.acknowledged.pop(index, None)  # from here on it may be this one or the one before
        assert await got(self.file.pwrite(block, index * BLOCK)) == BLOCK
        self.acknowledged[index] = block
        if self.acknowledged and self.rng.random() < 0.3:
            index = self.rng.choice(list(self.acknowledged))
            assert await got(self.file.pread(BLOCK, index * BLOCK)) == self.acknowledged[index]

    async def check(self) -> None:
        for index, block in self.acknowledged.items():
            found = await got(self.file.pread(BLOCK, index * BLOCK))
            assert found == block, f"w{self.number} block {index}: {found[:24]!r} in place of {block[:24]!r}"

    async def end(self) -> None:
        await got(self.file.close())


class Maker(Worker):
    """Makes, renames and removes files in a directory of its own."""

    async def begin(self) -> None:
        self.top = f"/d{self.number}"
        await got(self.vol.mkdir(self.top))
        self.count = 0
        self.there: dict[str, bytes] = {}
        self.gone: set[str] = set()

    async def step(self) -> None:
        self.count += 1
        name = f"{self.top}/{self.count}"
        data = f"content of {name}".encode()
        file = await got(self.vol.open(name, "xb"))
        try:
            await got(file.write(data))
        finally:
            await got(file.close())
        self.there[name] = data
        if self.rng.random() < 0.5:
            del self.there[name]  # neither name is sure until the answer
            await got(self.vol.rename(name, name + "r"))
            name += "r"
            self.there[name] = data
        if self.rng.random() < 0.5:
            del self.there[name]
            await got(self.vol.unlink(name))
            self.gone.add(name)

    async def check(self) -> None:
        names = set(await got(self.vol.listdir(self.top)))
        assert {os.path.basename(name) for name in self.there} <= names
        assert not names & {os.path.basename(name) for name in self.gone}
        for name, data in self.there.items():
            file = await got(self.vol.open(name))
            assert await got(file.read()) == data
            await got(file.close())
        for left in names:
            await got(self.vol.unlink(f"{self.top}/{left}"))
        self.there.clear()
        self.gone.clear()


class Locker(Worker):
    """Holds a lock on a file of its own, and writes under it."""

    async def begin(self) -> None:
        self.path = f"/l{self.number}"
        self.kept = self.lost = 0
        await self.take()

    async def take(self) -> None:
        self.file = await got(self.vol.create(self.path))
        await got(self.file.lock(start=100, length=50))

    async def step(self) -> None:
        await got(self.file.pwrite(b"under the lock", 100))
        await asyncio.sleep(0.002)

    async def check(self) -> None:
        try:
            await got(self.file.pwrite(b"still under it", 100))
        except OSError as error:
            if error.errno != errno.EBADFD or "lock" not in str(error):
                raise
            self.lost += 1
            await got(self.file.close())
            await self.take()
            return
        with self.load.probe.open(self.path, "r+b") as other:
            held = other.test_lock(start=0, length=0)
        assert held is not None and (held.start, held.length) == (100, 50), f"{self.path}: {held}"
        self.kept += 1

    async def end(self) -> None:
        await got(self.file.unlock(100, 50))
        await got(self.file.close())


class Lister(Worker):
    """Asks for attributes and lists the root."""

    async def step(self) -> None:
        assert (await got(self.vol.stat("/"))).st_ino == 1
        assert await got(self.vol.listdir("/"))


KINDS_OF_WORK: tuple[type[Worker], ...] = (Writer, Writer, Maker, Locker, Lister)


class Load:
    """Ten workers: five threads on one blocking volume, five tasks on an asynchronous one."""

    def __init__(self, peer: Peer, rng: random.Random) -> None:
        self.rng = rng
        self.over = threading.Event()
        self.pause = threading.Event()
        self.met: Counter[str] = Counter()
        self._resting: set[Worker] = set()
        self.probe = Volume(url(peer))  # with all of the volfile, and a connection to the volume server
        self.blocking = Volume(source(peer))
        self.workers: list[Worker] = [cls(self, self.blocking, n) for n, cls in enumerate(KINDS_OF_WORK)]
        self._threads = [threading.Thread(target=self._thread, args=(worker,)) for worker in self.workers]
        self._loop = asyncio.new_event_loop()
        self._up = threading.Event()
        self._tasks = threading.Thread(target=self._loop.run_until_complete, args=(self._asynchronous(source(peer)),))
        self._tasks.start()
        assert self._up.wait(60)
        for thread in self._threads:
            thread.start()

    def _thread(self, worker: Worker) -> None:
        # A loop of its own, in which the worker's blocking calls are made one after the other.
        asyncio.run(worker.run())

    async def _asynchronous(self, where: Source) -> None:
        async with AsyncVolume(where) as vol:
            self.asynchronous = vol
            workers = [cls(self, vol, 10 + n) for n, cls in enumerate(KINDS_OF_WORK)]
            self.workers += workers
            self._up.set()
            await asyncio.gather(*(worker.run() for worker in workers))

    def paused(self, worker: Worker) -> None:
        """A worker rests."""
        self._resting.add(worker)

    def working(self, worker: Worker) -> None:
        """A worker is about to make a call."""
        self._resting.discard(worker)

    def healthy(self) -> None:
        """Raise what ended a worker."""
        for worker in self.workers:
            if worker.strange is not None:
                raise AssertionError(f"{type(worker).__name__} {worker.number} ended") from worker.strange

    def until(self, seen: Callable[[], bool], seconds: float, what: str) -> float:
        """Wait for something and return how long it took."""
        began = time.monotonic()
        while not seen():
            self.healthy()
            took = time.monotonic() - began
            assert took < seconds, f"{what} not after {took:.1f} s; met so far: {dict(self.met)}"
            time.sleep(0.002)
        return time.monotonic() - began

    def all_succeed_after(self, moment: float, seconds: float, what: str) -> float:
        """Wait until every worker has had a success later than `moment`."""
        return self.until(lambda: all(worker.last > moment for worker in self.workers), seconds, what)

    def check(self) -> None:
        """Let everybody rest, and compare what was acknowledged with what is there."""
        self.pause.set()
        self.until(lambda: len(self._resting) == len(self.workers), 30, "rest")
        self.until(self._probe_is_up, RESUME_SECONDS, "the probe")
        for worker in self.workers:
            if worker.vol is self.blocking:
                asyncio.run(worker.check())
            else:
                asyncio.run_coroutine_threadsafe(worker.check(), self._loop).result(60)
        self.pause.clear()

    def _probe_is_up(self) -> bool:
        try:
            self.probe.stat("/")
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """End everything."""
        self.over.set()
        for thread in (*self._threads, self._tasks):
            thread.join(60)
        self._loop.close()
        self.blocking.close()
        self.probe.close()


def usage() -> tuple[int, int, int]:
    """Threads, file descriptors (of sockets and selectors: others are the test's own) and resident KiB."""
    gc.collect()
    fds = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            fds += os.readlink(f"/proc/self/fd/{number}").startswith(("socket:", "anon_inode:"))
    with open("/proc/self/status") as status:
        rss = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
    return threading.active_count(), fds, rss


def rounds(kind: str, folder: Path, count: int, rng: random.Random) -> None:
    """Kill and restart a brick `count` times under load."""
    before = usage()
    with brick(kind, folder) as peer:
        load = Load(peer, rng)
        resumed: list[float] = []
        settled: tuple[int, int, int] | None = None
        try:
            for number in range(count):
                load.all_succeed_after(time.monotonic(), 30, f"round {number}: work")
                time.sleep(rng.uniform(0.0, 0.2))
                peer.crash()
                time.sleep(rng.choice((0.0, 0.05, rng.uniform(0.0, 0.5))))
                peer.restart()
                back = time.monotonic()
                resumed.append(load.all_succeed_after(back, RESUME_SECONDS, f"round {number}: resumption"))
                load.check()
                if number == min(20, count // 2):
                    settled = usage()
            last = usage()
        finally:
            load.stop()
        load.healthy()
        lockers = [worker for worker in load.workers if isinstance(worker, Locker)]
        kept, lost = sum(worker.kept for worker in lockers), sum(worker.lost for worker in lockers)
        assert kept + lost == 2 * count and all(worker.done > count for worker in load.workers)
        assert load.met["ENOTCONN"] > 0
        calls = sum(worker.done for worker in load.workers)
        print(
            f"{kind}: {count} rounds, {calls} calls, {dict(load.met)}, resumed in {statistics.median(resumed):.2f} s "
            f"(median), {max(resumed):.2f} s (longest); locks kept {kept}, lost {lost}; "
            f"threads, fds, KiB: {settled} after the first rounds, {last} after the last"
        )
        assert settled is not None
        assert last[0] == settled[0]
        assert abs(last[1] - settled[1]) <= 2  # a RELEASE or a connection attempt may be under way
        assert last[2] - settled[2] < 8 << 10  # the inode table remembers files that are gone
    assert usage()[:2] == before[:2]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep pytest from keeping thousands of log records, which would look like a leak."""
    logger = logging.getLogger("glustx")
    level = logger.level
    logger.setLevel(logging.WARNING)
    yield
    logger.setLevel(level)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_under_load(kind: str, tmp_path: Path, seeded: random.Random) -> None:
    rounds(kind, tmp_path / "brick", 8 if kind == "stock" else 3, seeded)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, "glusterd"])
def test_killed_200_times_under_load(kind: str, tmp_path: Path, seeded: random.Random) -> None:
    rounds(kind, tmp_path / "brick", 200, seeded)
