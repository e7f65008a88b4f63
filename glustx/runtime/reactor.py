"""What a graph may ask of the loop it lives in: the time, a timer, a door for other threads."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from glustx.runtime.turns import Waiter, drive, turn

T = TypeVar("T")


class TimerHandle(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> None:
        """Keep the call from being made."""


class Reactor(Protocol):
    """The edge's clock and door: what a graph may ask of the loop that it lives in."""

    def time(self) -> float:
        """Return monotonic seconds."""

    def call_later(self, delay: float, work: Callable[[], None]) -> TimerHandle:
        """Run `work` as a turn after `delay` seconds."""

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` as a turn soon, on the reactor's own thread; callable from any thread."""


async def sleep(reactor: Reactor, seconds: float) -> None:
    """Suspend the fop for `seconds`."""
    waiter: Waiter[None] = Waiter()
    handle = reactor.call_later(seconds, lambda: waiter.set(None))
    try:
        await waiter
    finally:
        handle.cancel()


class TimedOut(Exception):
    """A wait that took longer than its limit."""


async def wait_for(reactor: Reactor, waiter: Waiter[T], seconds: float) -> T:
    """Wait for `waiter` at most `seconds`; TimedOut after that (the waiter may still be set later, unseen)."""
    handle = reactor.call_later(seconds, lambda: waiter.fail(TimedOut()))
    try:
        return await waiter
    finally:
        handle.cancel()


class _ManualTimer:
    __slots__ = ("cancelled", "when", "work")

    def __init__(self, when: float, work: Callable[[], None]) -> None:
        self.when = when
        self.work = work
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualReactor:
    """A reactor whose clock moves only when told to: for tests, and for graphs that never wait for the outside.

    `post` may be called from any thread; `run` runs what was posted.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._heap: list[tuple[float, int, _ManualTimer]] = []
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()

    def time(self) -> float:
        """Return the manual clock, in seconds."""
        return self._now

    def call_later(self, delay: float, work: Callable[[], None]) -> TimerHandle:
        """Run `work` when `advance` has moved the clock by `delay` seconds."""
        timer = _ManualTimer(self._now + delay, work)
        heapq.heappush(self._heap, (timer.when, next(self._order), timer))
        return timer

    def post(self, work: Callable[[], None]) -> None:
        """Queue `work` for `run`."""
        self._posted.append(work)
        self._wake.set()

    def run(self) -> None:
        """Run all that was posted."""
        while self._posted:
            turn(self._posted.popleft())

    def run_until(self, done: Callable[[], bool], timeout: float = 30.0) -> None:
        """Run posted work until `done()`; TimedOut when `timeout` real seconds pass without a post."""
        while True:
            self._wake.clear()
            self.run()
            if done():
                return
            if not self._posted and not self._wake.wait(timeout):
                raise TimedOut(f"nothing was posted for {timeout} s")

    def advance(self, seconds: float) -> None:
        """Move the clock on and run the timers that are due, in order."""
        end = self._now + seconds
        while self._heap and self._heap[0][0] <= end:
            self._now, _, timer = heapq.heappop(self._heap)
            if not timer.cancelled:
                turn(timer.work)
            self.run()
        self._now = end

    def wait(self, co: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """Drive `co` to its end, running posted work meanwhile, and return its value or raise its error."""
        box: list[tuple[Any, BaseException | None]] = []
        turn(drive, co, lambda value, error: box.append((value, error)))
        self.run_until(lambda: bool(box), timeout)
        value, error = box[0]
        if error is not None:
            raise error
        result: T = value
        return result
