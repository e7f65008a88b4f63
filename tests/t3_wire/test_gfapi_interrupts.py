"""Calls that are interrupted: Ctrl-C at any bytecode and at seeded moments, beside other threads; tasks cancelled at
any await. Afterwards the volume works, what was acknowledged is there, and the brick holds no fd and no lock."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from glustx.gfapi import AsyncVolume, Source, Volume
from glustx.gfapi.interrupt import inside, pending, waiting
from glustx.gfapi.pump import Pump
from tests.conformance.served import Served, client_volfile, served, server_volfile
from tests.conformance.test_wire import MEMORY
from tests.kit import PATIENCE

# A coroutine whose call was interrupted before it began, and files that the interrupted code had no time to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest.fixture
def brick() -> Iterator[Served]:
    with served(server_volfile(MEMORY, "locks")) as brick:
        yield brick


def source(brick: Served) -> Source:
    return Source(volume="test", text=client_volfile(brick.address), origin="<client>")


@pytest.fixture
def vol(brick: Served) -> Iterator[Volume]:
    with Volume(source(brick)) as volume:
        yield volume


def held(brick: Served) -> tuple[int, int, int]:
    """Fds and calls under way at the brick, and inodes with locks."""
    server = brick.graph.root.statedump()
    return server["fds"], server["under_way"], brick.graph.xlators["locks"].statedump()["inodes-with-locks"]


def expect_nothing_held(brick: Served, alive: Callable[[], object]) -> None:
    """What the interrupted calls had is given back; `alive` keeps the client busy meanwhile."""
    end = time.monotonic() + PATIENCE
    while held(brick) != (0, 0, 0):
        gc.collect()
        alive()
        assert time.monotonic() < end, f"fds, calls, locks: {held(brick)}"


def expect_calm() -> None:
    assert threading.get_ident() not in inside | waiting and not pending


# -- at any bytecode -------------------------------------------------------------------------------------------------


class Striker:
    """Sends SIGINT to this process before the `at`-th bytecode that the main thread runs in the blocking face."""

    FILES = ("/gfapi/pump.py", "/gfapi/interrupt.py", "/gfapi/sync.py", "/gfapi/twins.py", "/gfapi/entries.py")

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        # What strikes a finalizer is swallowed by the interpreter, whoever wrote it.
        if not frame.f_code.co_filename.endswith(self.FILES) or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_name} line {frame.f_lineno} at {frame.f_lasti}"
                signal.raise_signal(signal.SIGINT)
        return self

    def strike(self, work: Callable[[], object]) -> bool:
        """Run `work`; True when it was interrupted, False when it ended before its turn came."""
        sys.settrace(self)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        assert self.left > 0, f"the interrupt at {self.where} was swallowed"
        return False


def open_and_close(vol: Volume) -> None:
    vol.open("/f", "r+b").close()


def write(vol: Volume) -> None:
    with vol.open("/f", "r+b") as file:
        file.write(b"x" * 100)


def lock(vol: Volume) -> None:
    with vol.open("/f", "r+b") as file:
        file.lock()
        file.unlock()


def listing(vol: Volume) -> None:
    assert [entry.name for entry in vol.scandir("/")] == ["f"]


WORKS = [open_and_close, write, lock, listing]


@pytest.mark.parametrize("work", WORKS)
def test_at_many_bytecodes(brick: Served, vol: Volume, work: Callable[[Volume], None], seeded: random.Random) -> None:
    strike_at(brick, vol, work, lambda: seeded.randrange(1, 20))


@pytest.mark.long
@pytest.mark.parametrize("work", WORKS)
def test_at_any_bytecode(brick: Served, vol: Volume, work: Callable[[Volume], None]) -> None:
    strike_at(brick, vol, work, lambda: 1)


def strike_at(brick: Served, vol: Volume, work: Callable[[Volume], None], step: Callable[[], int]) -> None:
    vol.create("/f").close()
    at, strikes = step(), 0
    while Striker(at).strike(lambda: work(vol)):
        expect_calm()
        assert vol.exists("/f")
        at += step()
        strikes += 1
    assert strikes > 50
    expect_nothing_held(brick, lambda: vol.exists("/f"))


# -- at seeded moments -----------------------------------------------------------------------------------------------


class Volley:
    """A thread that sends SIGINT to this process, once each time it is told to, after a moment drawn from `rng`."""

    def __init__(self, rng: random.Random, longest: float = 0.004) -> None:
        self._rng = rng
        self._longest = longest
        self._armed: threading.Semaphore = threading.Semaphore(0)
        self._over = False
        self._thread = threading.Thread(target=self._fire, daemon=True)
        self._thread.start()

    def _fire(self) -> None:
        while self._armed.acquire() and not self._over:
            threading.Event().wait(self._rng.uniform(0, self._longest))
            os.kill(os.getpid(), signal.SIGINT)

    def interrupt(self, step: Callable[[], object]) -> None:
        """Repeat `step` until it is interrupted."""
        end = time.monotonic() + PATIENCE
        try:
            self._armed.release()
            while time.monotonic() < end:
                step()
        except KeyboardInterrupt:
            return
        raise AssertionError("an interrupt was swallowed")

    def stop(self) -> None:
        self._over = True
        self._armed.release()
        self._thread.join(60)


class Ledger:
    """Numbers written to a file one after the other; what was acknowledged must be there, and nothing else but the one
    that was under way."""

    def __init__(self, vol: Volume, rng: random.Random) -> None:
        self.vol = vol
        self.rng = rng
        self.file = vol.create("/ledger")
        self.count = 0

    def step(self) -> None:
        """Write the next number, or do something else on the way."""
        what = self.rng.randrange(6)
        if what == 0:
            with self.vol.create(f"/{self.rng.randrange(20)}") as file:
                file.write(b"x" * 5000)
                file.lock()
                assert file.pread(5000, 0) == b"x" * 5000
                file.unlock()
        elif what == 1:
            for entry in self.vol.scandir("/"):
                assert entry.name
        elif what == 2:
            self.file.lock(start=1 << 40, length=1)
            self.file.unlock(start=1 << 40, length=1)
        else:
            self.file.pwrite(struct.pack(">Q", self.count), self.count * 8)
            self.count += 1

    def check(self) -> None:
        """Compare, and go on from what is there."""
        data = self.file.pread(1 << 20, 0)
        assert data[: self.count * 8] == struct.pack(f">{self.count}Q", *range(self.count))
        assert len(data) in (self.count * 8, self.count * 8 + 8)


def test_at_seeded_moments(brick: Served, vol: Volume, seeded: random.Random) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    volley = Volley(seeded)
    ledger = Ledger(vol, seeded)
    for _ in range(200):
        volley.interrupt(ledger.step)
        expect_calm()
        ledger.check()
    volley.stop()
    ledger.file.close()
    expect_nothing_held(brick, lambda: vol.exists("/"))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


@pytest.fixture(params=["once", "twice"])
def strikes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: a second SIGINT comes when the call is about to be abandoned, as `timeout --signal=INT` sends them."""
    if request.param == "twice":
        abandon = Pump._abandon

        def again(self: Pump, call: Any) -> None:
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGINT)
            abandon(self, call)

        monkeypatch.setattr(Pump, "_abandon", again)


@pytest.mark.usefixtures("strikes")
def test_a_call_that_waits_for_a_lock(brick: Served, vol: Volume, seeded: random.Random) -> None:
    """Interrupted while it waits, it does not keep what it is granted later: the next one gets the lock."""
    vol.create("/f").close()
    volley = Volley(seeded, 0.02)
    with Volume(source(brick), timeout=10) as other, other.open("/f", "r+b") as theirs, vol.open("/f", "r+b") as mine:
        for _ in range(20):
            theirs.lock()
            volley.interrupt(mine.lock)
            expect_calm()
            theirs.unlock()
            # It may have been granted to a caller who is gone; then it is given back at once.
            theirs.lock()
            theirs.unlock()
    volley.stop()
    expect_nothing_held(brick, lambda: vol.exists("/f"))


@pytest.mark.usefixtures("strikes")
def test_beside_other_threads(brick: Served, vol: Volume, seeded: random.Random) -> None:
    """The thread that is interrupted may hold the baton, and others wait for what it would receive: they go on."""
    over = threading.Event()
    done = [0] * 4
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(number)
        try:
            with vol.create(f"/t{number}") as file:
                while not over.is_set():
                    block = rng.randbytes(4096)
                    assert file.pwrite(block, 0) == 4096 and file.pread(4096, 0) == block
                    done[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    volley = Volley(seeded)
    ledger = Ledger(vol, seeded)
    try:
        for _ in range(60):
            volley.interrupt(ledger.step)
            seen = list(done)
            # Nobody of this thread pumps now: the baton must be with one of them.
            end = time.monotonic() + PATIENCE
            while any(now < old + 2 for now, old in zip(done, seen, strict=True)) and not failures:
                time.sleep(0.001)
                assert time.monotonic() < end, "a thread does not go on"
            ledger.check()
    finally:
        over.set()
        volley.stop()
        for thread in threads:
            thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)
    ledger.file.close()
    expect_nothing_held(brick, lambda: vol.exists("/"))


# -- tasks -----------------------------------------------------------------------------------------------------------


async def at_every_await(work: Callable[[], Any]) -> int:
    """Cancel `work` after 0, 1, 2, ... steps of the event loop until it ends before; return how often."""
    for steps in range(10_000):
        task = asyncio.ensure_future(work())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            continue
        return steps
    raise AssertionError("it never ended")


def test_a_task_cancelled_at_every_await(brick: Served, seeded: random.Random) -> None:
    async def main() -> None:
        async with AsyncVolume(source(brick)) as vol:

            async def work() -> None:
                if await vol.exists("/g"):
                    await vol.unlink("/g")
                async with await vol.create("/f") as file:
                    await file.lock()
                    await file.write(b"x" * 5000)
                    assert await file.pread(5000, 0) == b"x" * 5000
                    await file.unlock()
                assert [entry.name async for entry in vol.scandir("/")] == ["f"]
                await vol.rename("/f", "/g")
                await vol.rename("/g", "/f")

            for _ in range(10):
                assert await at_every_await(work) > 3
            # Between the steps of the loop the brick answers when it likes: cancellation meets replies at any point.
            for _ in range(200):
                task = asyncio.ensure_future(work())
                await asyncio.sleep(seeded.uniform(0, 0.006))
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            end = time.monotonic() + PATIENCE
            while held(brick) != (0, 0, 0):
                gc.collect()
                await vol.exists("/")
                assert time.monotonic() < end, f"fds, calls, locks: {held(brick)}"

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.run cancels its task on SIGINT from 3.11 on")
def test_ctrl_c_in_asyncio_run(brick: Served, seeded: random.Random) -> None:
    async def main() -> None:
        async with AsyncVolume(source(brick)) as vol:
            for number in range(10**9):
                async with await vol.create("/f") as file:
                    await file.write(struct.pack(">Q", number))

    volley = Volley(seeded, 0.05)
    for _ in range(15):
        volley.interrupt(lambda: asyncio.run(main()))
    volley.stop()
    with Volume(source(brick)) as vol:
        assert vol.getsize("/f") in (0, 8)
        expect_nothing_held(brick, lambda: vol.exists("/"))
