"""The pump: fops that wait, threads that share the baton, Ctrl-C, time-outs, the background thread, fork, the end."""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from glustx.errors import FopError
from glustx.fops import Fop
from glustx.gfapi import Source, Volume
from glustx.gfapi.pump import Pump
from glustx.gfapi.watch import EVENT_READ, EVENT_WRITE, SelectorWatch, make_watch
from glustx.runtime import Lock, TimedOut, Waiter, sleep, spawn
from tests.kit import PATIENCE, ROOT, Stopwatch
from tests.t2_graph.gfapi_faces import MEMORY, fails

DELAYED = (
    MEMORY
    + """
volume slow
    type debug/delay-gen
    option delay-percentage 100
    option delay-duration 2000
    option enable read,write
    subvolumes test
end-volume
"""
)


class Gate:
    """Stands above a mounted graph: fops named in `held` wait until somebody opens it."""

    def __init__(self, vol: Volume, *held: str) -> None:
        self.pump: Pump = vol._pump
        self.session = vol._core.session
        self.below = self.session.top
        self.held = set(held)
        self.waiting: list[Waiter[None]] = []
        self.arrived = threading.Semaphore(0)
        self.cancelled = 0
        self.hook: Callable[[Fop], None] | None = None
        self.session.top = self

    async def __call__(self, request: Fop) -> Any:
        if self.hook is not None:
            self.hook(request)
        if request.name in self.held:
            waiter: Waiter[None] = Waiter()
            self.waiting.append(waiter)
            self.arrived.release()
            try:
                await waiter
            except BaseException:
                self.cancelled += 1
                raise
        return await self.below(request)

    def open(self, error: BaseException | None = None) -> None:
        """Let all go on that wait (or fail them); from any thread."""

        def work() -> None:
            waiting, self.waiting = self.waiting, []
            for waiter in waiting:
                if error is not None:
                    waiter.fail(error)
                else:
                    waiter.set(None)

        self.pump.post(work)


@pytest.fixture
def vol():
    with Volume(Source(volume="test", text=MEMORY, origin="<test>")) as volume:
        yield volume


@pytest.fixture
def pump():
    made = Pump(idle=0.005)
    made.start_background()
    yield made
    made.close()


def in_thread(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Run `work` in a thread; its outcome (a value or the exception) is appended to the list."""
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(work())
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, box


# -- values, errors, suspensions -------------------------------------------------------------------------------------


def test_a_coroutine_that_does_not_wait(pump):
    async def value():
        return 5

    async def error():
        raise FopError(errno.EIO)

    assert pump.run(value()) == 5
    with pytest.raises(FopError):
        pump.run(error())
    assert pump.holder is None or pump.holder is pump


@pytest.mark.parametrize("rounds", [1, 2, 50])
def test_a_coroutine_that_waits_for_timers(pump, rounds):
    async def work():
        for _ in range(rounds):
            await sleep(pump, 0.0005)
        return rounds

    began = time.monotonic()
    assert pump.run(work()) == rounds
    assert time.monotonic() - began >= 0.0005 * rounds


@pytest.mark.parametrize("rounds", [1, 30])
def test_a_coroutine_that_waits_for_other_threads(pump, rounds):
    async def work():
        total = 0
        for i in range(rounds):
            waiter: Waiter[int] = Waiter()
            threading.Thread(target=pump.post, args=(lambda w=waiter, i=i: w.set(i),)).start()
            total += await waiter
        return total

    assert pump.run(work()) == sum(range(rounds))


def test_an_error_after_waiting(pump):
    async def work():
        await sleep(pump, 0)
        raise FopError(errno.ENOSPC, "full")

    with pytest.raises(FopError, match="full"):
        pump.run(work())


def test_a_delayed_graph():
    with Volume(Source(volume="test", text=DELAYED, origin="<test>")) as vol, vol.create("/f") as file:
        assert file.write(b"abc") == 3
        assert file.pread(3, 0) == b"abc"
        with fails(errno.EINVAL):
            file.zerofill(0, 0)


def test_what_runs_aside_is_not_waited_for(vol):
    gate = Gate(vol, "release")
    file = vol.create("/f")
    file.close()
    assert gate.arrived.acquire(timeout=PATIENCE)
    assert vol.graph.winding == 1
    gate.open()
    vol.stat("/f")
    assert vol.graph.winding == 0


# -- threads ---------------------------------------------------------------------------------------------------------


def test_threads_that_all_wait(vol):
    gate = Gate(vol, "fstat")
    files = [vol.create(f"/f{i}") for i in range(8)]
    threads = [in_thread(file.stat) for file in files]
    for _ in threads:
        assert gate.arrived.acquire(timeout=PATIENCE)
    gate.open()
    for (thread, box), file in zip(threads, files, strict=True):
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert box[0].gfid == file.gfid
    for file in files:
        file.close()


def test_a_call_that_another_threads_call_completes(vol):
    """One thread waits for a lock that another gives back: nothing else wakes it."""
    watch = Stopwatch()
    with vol.open("/f", "w+b") as one, vol.open("/f", "r+b") as two:
        for _ in range(20):
            one.lock()
            thread, box = in_thread(two.lock)
            while not vol._pump._calls:
                time.sleep(0.0005)
            one.unlock()
            thread.join(PATIENCE)
            assert box == [None]
            two.unlock()
    assert watch.seconds() < 5  # each wakes the other: none of them sat out SIGNAL_SECONDS


def test_the_baton_goes_round():
    """While the holder waits for ever, others come and go; when it is done, one that still waits pumps.

    No background thread: nobody else would pump."""
    pump = Pump()
    first, second = Waiter(), Waiter()

    async def wait(waiter):
        return await waiter

    one = in_thread(lambda: pump.run(wait(first)))
    while not pump._calls:
        time.sleep(0.0005)
    two = in_thread(lambda: pump.run(wait(second)))
    while len(pump._calls) < 2:
        time.sleep(0.0005)

    async def short():
        await sleep(pump, 0.001)
        return 7

    assert pump.run(short()) == 7
    pump.post(lambda: first.set(1))
    one[0].join(PATIENCE)
    assert one[1] == [1]
    pump.post(lambda: second.set(2))
    two[0].join(PATIENCE)
    assert two[1] == [2]
    pump.close()


def test_many_threads_many_calls():
    with Volume(Source(volume="test", text=DELAYED, origin="<test>")) as vol:
        vol.mkdir("/d")

        def work(number: int) -> int:
            done = 0
            for i in range(15):
                with vol.create(f"/d/{number}-{i}") as file:
                    file.pwrite(bytes([number]) * 5000, i)
                    done += file.pread(5000, i) == bytes([number]) * 5000
            return done

        threads = [in_thread(lambda n=n: work(n)) for n in range(6)]
        for thread, box in threads:
            thread.join(60)
            assert box == [15]
        assert len(vol.listdir("/d")) == 90


def test_readers_of_one_file_share_its_position(vol):
    data = os.urandom(64 * 500)
    with vol.create("/f") as file:
        file.write(data)
        file.seek(0)
        threads = [in_thread(lambda: [file.read(64) for _ in range(100)]) for _ in range(5)]
        parts = []
        for thread, box in threads:
            thread.join(30)
            parts.extend(box[0])
        assert sorted(parts) == sorted(data[i : i + 64] for i in range(0, len(data), 64))


# -- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_sigint():
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_while_waiting(own_sigint):
    with Volume(Source(volume="test", text=MEMORY, origin="<test>")) as vol:
        gate = Gate(vol, "fstat")
        file = vol.create("/f")
        threading.Thread(target=lambda: (gate.arrived.acquire(), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            file.stat()
        gate.held.clear()
        assert file.stat().st_size == 0
        assert gate.cancelled == 1
        assert not vol._pump._calls
        file.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_another_thread_pumps(own_sigint):
    with Volume(Source(volume="test", text=MEMORY, origin="<test>")) as vol:
        gate = Gate(vol, "fstat")
        one, two = vol.create("/one"), vol.create("/two")
        thread, box = in_thread(one.stat)
        assert gate.arrived.acquire(timeout=PATIENCE)
        threading.Thread(target=lambda: (gate.arrived.acquire(), os.kill(os.getpid(), signal.SIGINT))).start()
        with pytest.raises(KeyboardInterrupt):
            two.stat()
        gate.open()
        thread.join(PATIENCE)
        assert box[0].gfid == one.gfid
        gate.held.clear()
        assert two.stat().gfid == two.gfid
        one.close()
        two.close()


def test_ctrl_c_of_the_holder_hands_the_baton_on(own_sigint):
    with Volume(Source(volume="test", text=MEMORY, origin="<test>")) as vol:
        gate = Gate(vol, "fstat")
        one, two = vol.create("/one"), vol.create("/two")
        box: list[Any] = []

        def other() -> None:
            assert gate.arrived.acquire(timeout=PATIENCE)
            thread, inner = in_thread(two.stat)
            assert gate.arrived.acquire(timeout=PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)
            while gate.cancelled == 0:
                time.sleep(0.001)
            gate.open()
            thread.join(PATIENCE)
            box.extend(inner)

        helper = threading.Thread(target=other)
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            one.stat()
        helper.join(PATIENCE)
        assert box[0].gfid == two.gfid
        gate.held.clear()
        one.close()
        two.close()


def test_ctrl_c_never_strikes_inside_a_turn(own_sigint):
    with Volume(Source(volume="test", text=MEMORY, origin="<test>")) as vol:
        gate = Gate(vol)
        after: list[str] = []

        def hook(request: Fop) -> None:
            if request.name == "mkdir":
                signal.raise_signal(signal.SIGINT)
                after.append("the turn went on")

        gate.hook = hook
        with pytest.raises(KeyboardInterrupt):
            vol.mkdir("/d")
        gate.hook = None
        assert after == ["the turn went on"]
        assert vol.isdir("/d")


def test_a_programs_own_handler_is_left_alone(own_sigint):
    def mine(number, frame):
        raise AssertionError("never called")

    signal.signal(signal.SIGINT, mine)
    with Volume.memory() as vol:
        assert signal.getsignal(signal.SIGINT) is mine
        vol.mkdir("/d")
    assert signal.getsignal(signal.SIGINT) is mine


# -- time-outs -------------------------------------------------------------------------------------------------------


def test_a_call_that_takes_too_long(vol):
    gate = Gate(vol, "fstat", "mkdir")
    file = vol.using(timeout=0.02).create("/f")
    with pytest.raises(TimeoutError) as caught:
        file.stat()
    assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, "/f")
    with pytest.raises(TimeoutError) as caught:
        vol.using(timeout=0.02).mkdir("/d")
    assert caught.value.filename == "/d" and "0.02 s" in caught.value.strerror
    assert gate.cancelled == 2
    gate.held.clear()
    file.close()
    assert vol.listdir("/") == ["f"]


def test_a_timeout_that_is_not_reached(vol):
    assert vol.using(timeout=PATIENCE).listdir("/") == []
    assert not vol._pump._timers


def test_the_undo_of_a_late_call_is_waited_for(pump):
    undone = []

    async def work():
        try:
            await Waiter()
        finally:
            await sleep(pump, 0.01)
            undone.append(True)

    with pytest.raises(TimedOut):
        pump.run(work(), timeout=0.01)
    assert undone == [True]


def test_an_undo_that_takes_too_long_goes_on_without_its_caller(pump):
    undone = threading.Event()
    over = Waiter()

    async def work():
        try:
            await Waiter()
        finally:
            await over
            undone.set()

    watch = Stopwatch()
    with pytest.raises(TimedOut, match=r"work: no answer in 0\.01 s"):
        pump.run(work(), timeout=0.01)
    assert watch.seconds() < 5 and not undone.is_set()
    pump.post(lambda: over.set(None))
    assert undone.wait(PATIENCE)


# -- when nobody calls -----------------------------------------------------------------------------------------------


def test_timers_and_posts_go_on_without_callers(pump):
    ticked = threading.Event()
    thread_names = []

    async def tick():
        for _ in range(3):
            await sleep(pump, 0.005)
        thread_names.append(threading.current_thread().name)
        ticked.set()

    pump.post(lambda: spawn(tick()))
    assert ticked.wait(PATIENCE)
    assert thread_names == ["glustx-pump"]


def test_a_caller_gets_the_baton_from_the_background(pump):
    while pump.holder is not pump:
        time.sleep(0.001)

    async def work():
        await sleep(pump, 0.001)
        return threading.current_thread().name

    # Its new timer wakes the background thread, which lays the baton down, unless the timer is due by then.
    names = [pump.run(work()) for _ in range(20)]
    assert threading.current_thread().name in names
    while pump.holder is not pump:
        time.sleep(0.001)


def test_callers_that_never_wait_leave_the_background_alone(pump):
    async def nothing():
        return None

    while pump.holder is not pump:
        time.sleep(0.001)
    for _ in range(1000):
        pump.run(nothing())
    assert pump.holder is pump


def test_an_idle_pump_sleeps(pump):
    while pump.holder is not pump:
        time.sleep(0.001)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1


# -- misuse and the end ----------------------------------------------------------------------------------------------


def test_a_call_from_inside_a_call_is_refused(vol):
    gate = Gate(vol)
    caught = []

    def hook(request: Fop) -> None:
        if request.name == "mkdir":
            with pytest.raises(RuntimeError, match="inside another"):
                vol.stat("/")
            caught.append(True)

    gate.hook = hook
    vol.mkdir("/d")
    assert caught == [True]


def test_collection_inside_a_call_does_not_hang(vol):
    file = vol.create("/f")
    gate = Gate(vol)
    loop: dict[str, Any] = {"file": file}
    loop["self"] = loop
    del file

    def hook(request: Fop) -> None:
        if request.name == "mkdir":
            loop.clear()
            gc.collect()

    gate.hook = hook
    with pytest.warns(ResourceWarning, match="unclosed"):
        vol.mkdir("/d")
    gate.hook = None
    assert sorted(vol.listdir("/")) == ["d", "f"]


def test_closing_ends_calls_that_wait():
    vol = Volume(Source(volume="test", text=MEMORY, origin="<test>"))
    gate = Gate(vol, "fstat")
    files = [vol.create(f"/f{i}") for i in range(3)]
    threads = [in_thread(file.stat) for file in files]
    for _ in threads:
        assert gate.arrived.acquire(timeout=PATIENCE)
    vol.close()
    for thread, box in threads:
        thread.join(PATIENCE)
        assert isinstance(box[0], RuntimeError) and "closed" in str(box[0])
    assert gate.cancelled == 3
    for file in files:
        file.close()
    with pytest.raises(RuntimeError, match="closed"):
        vol.stat("/")


def test_a_pump_ends_with_its_thread_and_descriptors():
    before = threading.active_count()
    open_before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(5):
        with Volume.memory() as vol:
            vol.mkdir("/d")
    deadline = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert threading.active_count() <= before
    if open_before:
        assert len(os.listdir("/proc/self/fd")) == open_before


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.filterwarnings("ignore:unclosed <Volume:ResourceWarning")
def test_a_volume_that_is_dropped_is_collected(closed):
    vol = Volume.memory()
    vol.mkdir("/d")
    if closed:
        vol.close()
    ref = weakref.ref(vol._pump)
    del vol
    deadline = time.monotonic() + PATIENCE
    while ref() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert ref() is None


def test_a_volume_that_nobody_closed_says_so():
    script = "from glustx.gfapi import Volume\nvol = Volume.memory()\nvol.mkdir('/d')\nvol.create('/f').write(b'x')\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_after_fork_the_child_is_refused(vol):
    file = vol.create("/f")
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            answers = []
            for call in (lambda: vol.stat("/"), lambda: file.pread(1, 0)):
                try:
                    call()
                except RuntimeError as error:
                    answers.append(str(error))
            vol.close()
            os.write(write, " | ".join(answers).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    assert text.count("before fork()") == 2
    assert vol.stat("/f").st_size == 0
    file.close()


def test_locks_of_the_runtime_between_threads(pump):
    lock = Lock()
    order: list[int] = []

    async def work(number):
        async with lock:
            order.append(number)
            await sleep(pump, 0.001)
            order.append(number)

    threads = [in_thread(lambda n=n: pump.run(work(n))) for n in range(6)]
    for thread, _ in threads:
        thread.join(PATIENCE)
    assert [order[i] == order[i + 1] for i in range(0, 12, 2)] == [True] * 6


def test_the_overhead_of_a_call_is_small():
    """Per call, against the same coroutine driven by hand; the median of many rounds, since the machine may be busy."""
    from glustx.runtime import drive, turn

    with Volume.memory() as vol, vol.create("/f") as file:
        file.write(b"x" * 4096)
        core, box = file._core, []

        def raw() -> None:
            turn(drive, core.pread(4096, 0), lambda value, error: box.append(value))
            box.pop()

        def timed(work: Callable[[], object]) -> float:
            began = time.thread_time()
            for _ in range(300):
                work()
            return (time.thread_time() - began) / 300

        extra = sorted(timed(lambda: file.pread(4096, 0)) - timed(raw) for _ in range(15))[7]
    print(f"a blocking call costs {extra * 1e6:.2f} us over its coroutine")
    assert extra < 10e-6


# -- what stays behind -----------------------------------------------------------------------------------------------


class Outcome:
    """A value that shows whether somebody holds it."""


async def comes_later(pump: Pump) -> Outcome:
    await sleep(pump, 0.0)
    return Outcome()


def test_a_call_with_a_limit_leaves_nothing_behind(pump):
    """Not the outcome of a call until the time it had is over, nor a timer for each of thousands."""
    gone = weakref.ref(pump.run(comes_later(pump), 3600))
    assert gone() is None
    for _ in range(2000):
        pump.run(comes_later(pump), 3600)
    assert len(pump._timers) < 500


def test_calls_beside_one_that_waits_for_long_leave_nothing_behind(pump):
    """They end without getting the baton, which stays with the one that waits."""
    wait: Waiter[None] = Waiter()

    async def long() -> None:
        await wait

    thread, _ = in_thread(lambda: pump.run(long()))
    while pump.holder is None:
        time.sleep(0.001)
    gone = weakref.ref(pump.run(comes_later(pump)))
    assert gone() is None
    for _ in range(200):
        pump.run(comes_later(pump))
    assert not pump._queue
    pump.post(lambda: wait.set(None))
    thread.join(PATIENCE)
    assert pump.holder is None


@pytest.mark.parametrize("kind", [SelectorWatch, type(make_watch())])
def test_a_watch_tells_what_sockets_are_ready_for(kind: type[Any]) -> None:
    watch = kind()
    ours, theirs = socket.socketpair()
    heard: list[int] = []
    with ours, theirs:
        watch.register(ours, EVENT_READ, heard.append)
        assert watch.select(0) == []
        theirs.send(b"x")
        assert watch.select(5) == [(heard.append, EVENT_READ)]
        watch.modify(ours, EVENT_READ | EVENT_WRITE, heard.append)
        assert watch.select(5) == [(heard.append, EVENT_READ | EVENT_WRITE)]
        ours.recv(1)
        watch.modify(ours, EVENT_WRITE, None)
        assert watch.select(5) == [(None, EVENT_WRITE)]
        watch.modify(ours, EVENT_READ, heard.append)
        theirs.close()
        (found,) = watch.select(5)
        assert found[1] & EVENT_READ, "the end of the stream is something to read"
        watch.unregister(ours)
        assert watch.select(0) == []
    watch.close()
