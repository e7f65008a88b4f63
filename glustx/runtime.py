"""The runtime of translators: one-shot waiters, hand-driven coroutines, and what is built on the two.

A fop is a coroutine. Whoever holds it (the server's receive path, the asynchronous or the blocking client API)
*drives* it: `send(None)` runs it until it returns or needs something that is not there yet. In the second case it
yields a `Waiter`, and is resumed when that waiter is set. Nothing else may be awaited in a translator; no event loop
is known here.

Stepping happens in *turns*. Setting a waiter inside a turn does not run anybody at once: the resumption is queued and
the turn's owner runs the queue when the current step has come to its own end. So the code between two awaits is
atomic, however many fops wait for what it sets, and a chain of a thousand lock hand-overs needs no stack.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from glustx.errors import FopAbandoned, FopCancelled

T = TypeVar("T")
Finish = Callable[[Any, "BaseException | None"], None]


_STUBBORN = 1000  # waits that one coroutine may begin while it is being closed


class _Turn(threading.local):
    active = False

    def __init__(self) -> None:
        self.ready: deque[Callable[[], None]] = deque()


_turn = _Turn()


def turn(work: Callable[..., object], *args: Any) -> None:
    """Run `work(*args)` as one turn, then all resumptions it caused; nested calls join the turn that is under way.

    Every edge (a receive callback, a timer, a finished worker) enters translators through here.
    """
    here = _turn
    if here.active:
        work(*args)
        return
    here.active = True
    ready = here.ready
    try:
        work(*args)
    finally:
        try:
            while ready:
                ready.popleft()()
        finally:
            here.active = False
            if ready:  # a resumption raised: the others must still run
                later = list(ready)
                ready.clear()
                turn(_run_all, later)


def _run_all(works: list[Callable[[], None]]) -> None:
    _turn.ready.extend(works)


class Waiter(Generic[T]):
    """A value that arrives once; awaiting it suspends the fop until then.

    One coroutine waits for a waiter. Setting it a second time is ignored: a reply may race with a cancellation.
    """

    __slots__ = ("_error", "_value", "_wake", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._wake: Callable[[], None] | None = None

    def __await__(self) -> Generator[Waiter[T], None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def set(self, value: T) -> None:
        """Deliver the value and let the waiting coroutine go on in this turn (or in one of its own)."""
        if self.done:
            return
        self.done = True
        self._value = value
        self._woken()

    def fail(self, error: BaseException) -> None:
        """Deliver an error; it is raised where the waiter is awaited."""
        if self.done:
            return
        self.done = True
        self._error = error
        self._woken()

    def _woken(self) -> None:
        wake = self._wake
        if wake is not None:
            self._wake = None
            here = _turn
            if here.active:
                here.ready.append(wake)
            else:
                turn(wake)


class Run:
    """A coroutine that has been suspended at least once, and what to call when it ends.

    Made by `drive`; `cancel` throws FopCancelled into it where it waits.
    """

    __slots__ = ("_co", "_doom", "_finish", "_waiter", "done")

    def __init__(self, co: Coroutine[Any, Any, Any], finish: Finish, waiter: Waiter[Any]) -> None:
        self._co = co
        self._finish = finish
        self._doom: BaseException | None = None
        self.done = False
        self._park(waiter)

    def _park(self, waiter: Waiter[Any]) -> None:
        if not isinstance(waiter, Waiter):
            self._step(TypeError(f"a fop may await only a Waiter, not {type(waiter).__name__}"))
            return
        self._waiter = waiter
        if self._doom is not None:
            _turn.ready.append(self._strike)
            return
        if waiter.done:
            _turn.ready.append(self._step)
        elif waiter._wake is not None:
            self._step(RuntimeError("two coroutines await the same Waiter"))
        else:
            waiter._wake = self._step

    def _step(self, error: BaseException | None = None) -> None:
        if self.done:
            return
        try:
            waiter = self._co.send(None) if error is None else self._co.throw(error)
        except StopIteration as stop:
            self.done = True
            self._finish(stop.value, None)
        except BaseException as failure:
            self.done = True
            self._finish(None, failure)
        else:
            self._park(waiter)

    def _strike(self) -> None:
        error, self._doom = self._doom, None
        if error is not None:
            self._step(error)

    def cancel(self, error: BaseException | None = None) -> None:
        """Throw FopCancelled (or `error`) into the coroutine where it is suspended; no effect once it has ended.

        It strikes as a resumption of its own, never inside the step of the coroutine that cancels. When the coroutine's
        own resumption is queued already (or it is running) it strikes at the next place where it would wait. What it
        waits for may still be set before it strikes: whoever is handed something that way must give it back. The
        coroutine may take its time to undo what it began; `finish` is called when it is through.
        """
        if self.done or self._doom is not None:
            return
        self._doom = error or FopCancelled()
        waiter = self._waiter
        if waiter._wake is not None:
            waiter._wake = None
            turn(_turn.ready.append, self._strike)

    def close(self) -> None:
        """Drop the coroutine without letting it wait again: for teardown, when nobody will ever resume it.

        Its `finally` blocks run: FopAbandoned is thrown where it waits, and again at each place where such a block
        would wait. (A plain `close` of a coroutine dies of the first of them.) `finish` is not called.
        """
        if self.done:
            return
        self.done = True
        self._waiter._wake = None
        for _ in range(_STUBBORN):
            try:
                self._co.throw(FopAbandoned())
            except (FopAbandoned, StopIteration):
                return
        raise RuntimeError("a coroutine that is being closed goes on waiting")


def drive(co: Coroutine[Any, Any, Any], finish: Finish) -> Run | None:
    """Start `co` and call `finish(value, error)` when it ends; return its `Run` when it is suspended, else None.

    Must be called inside a turn (see `turn`). A coroutine that never suspends costs one `send` and no object.
    """
    try:
        waiter = co.send(None)
    except StopIteration as stop:
        finish(stop.value, None)
        return None
    except BaseException as error:
        finish(None, error)
        return None
    return Run(co, finish, waiter)


def run_now(co: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that is expected never to suspend (an in-memory graph, a lifecycle step) and return its value.

    Raises RuntimeError when it does suspend.
    """
    box: list[Any] = []
    runs: list[Run | None] = []
    turn(lambda: runs.append(drive(co, lambda value, error: box.append((value, error)))))
    if not box:
        pending = runs[0]
        if pending is not None:
            pending.close()
        raise RuntimeError("the coroutine is waiting for something that this caller cannot deliver")
    value, error = box[0]
    if error is not None:
        raise error
    result: T = value
    return result


def spawn(co: Coroutine[Any, Any, T]) -> Waiter[T]:
    """Start `co` beside the caller and return a waiter of its result. Must be called inside a turn."""
    waiter: Waiter[T] = Waiter()
    drive(co, _into(waiter))
    return waiter


async def shield(co: Coroutine[Any, Any, T]) -> T:
    """Run `co` to its end even when the caller is cancelled meanwhile; the cancellation is raised afterwards.

    For the second half of a transaction: an unlock or a post-op that must happen once the first half has.
    """
    inner: Waiter[T] = Waiter()
    run = drive(co, _into(inner))
    cancelled: FopCancelled | None = None
    while not inner.done:
        try:
            await inner
        except (GeneratorExit, FopAbandoned):
            if run is not None:
                run.close()
            raise
        except FopCancelled as stop:
            if inner.done:
                raise
            cancelled = stop
        except BaseException:
            break
    if cancelled is not None:
        raise cancelled
    return await inner


def _into(waiter: Waiter[Any]) -> Finish:
    def finish(value: Any, error: BaseException | None) -> None:
        if error is not None:
            waiter.fail(error)
        else:
            waiter.set(value)

    return finish


class Outcome(Generic[T]):
    """What one of several parallel fops came to: a value or an error."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: BaseException | None = None

    def get(self) -> T:
        """Return the value or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


async def fan_out(
    cos: Iterable[Coroutine[Any, Any, T]],
    *,
    limit: int = 0,
    outcomes: list[Outcome[T]] | None = None,
) -> list[Outcome[T]]:
    """Start all coroutines, wait until each has ended, and return their outcomes in order.

    Cancelling the caller cancels those still under way and waits for them to undo what they began.

    Args:
        cos: the coroutines; with a `limit`, a generator keeps those that are not started yet from being made.
        limit: how many may be under way at one time; 0 means all.
        outcomes: list to put the outcomes in, for a caller that must know who did what although it was cancelled (an
            outcome's error is FopCancelled then; one that never started is missing).
    """
    into: list[Outcome[T]] = [] if outcomes is None else outcomes
    fan = _Fan(iter(cos), limit, into)
    fan.more()
    stop: FopCancelled | None = None
    while fan.runs or not fan.exhausted:
        fan.done = Waiter()
        try:
            await fan.done
        except (GeneratorExit, FopAbandoned):
            fan.close()
            raise
        except FopCancelled as error:
            stop = error
            fan.exhausted = True
            for run in list(fan.runs.values()):
                run.cancel()
    if stop is not None:
        raise stop
    return into


class _Fan:
    """The coroutines of one `fan_out`: those under way, by their outcome, and those to come."""

    __slots__ = ("cos", "done", "exhausted", "limit", "outcomes", "runs", "starting")

    def __init__(self, cos: Iterator[Coroutine[Any, Any, Any]], limit: int, outcomes: list[Outcome[Any]]) -> None:
        self.cos = cos
        self.limit = limit
        self.outcomes = outcomes
        self.runs: dict[Outcome[Any], Run] = {}
        self.exhausted = False
        self.starting = False
        self.done: Waiter[None] | None = None

    def more(self) -> None:
        """Start as many as may be under way."""
        if self.starting or (self.limit and len(self.runs) >= self.limit):
            return
        self.starting = True
        for co in self.cos:
            outcome: Outcome[Any] = Outcome()
            self.outcomes.append(outcome)
            try:
                waiter = co.send(None)
            except StopIteration as stop:
                outcome.value = stop.value
            except BaseException as error:
                outcome.error = error
            else:
                run = Run(co, self._finisher(outcome), waiter)
                if not run.done:
                    self.runs[outcome] = run
                    if len(self.runs) == self.limit:
                        break
        else:
            self.exhausted = True
        self.starting = False

    def _finisher(self, outcome: Outcome[Any]) -> Finish:
        def finish(value: Any, error: BaseException | None) -> None:
            outcome.value = value
            outcome.error = error
            if self.runs.pop(outcome, None) is not None:
                if not self.exhausted:
                    self.more()
                if not self.runs and self.done is not None:
                    self.done.set(None)

        return finish

    def close(self) -> None:
        self.exhausted = True
        for run in self.runs.values():
            run.close()


class Tasks:
    """Work of a translator that no fop waits for: heals, refreshes, delayed unlocks.

    Args:
        log: where an error of such work is told; nobody else would hear of it.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._runs: set[Run] = set()
        self._idle: Waiter[None] | None = None

    def __len__(self) -> int:
        return len(self._runs)

    def start(self, co: Coroutine[Any, Any, Any]) -> None:
        """Start work; it goes on until it ends or `stop` is called. Enters a turn by itself."""
        turn(self._start, co)

    def _start(self, co: Coroutine[Any, Any, Any]) -> None:
        runs: list[Run] = []

        def finish(_: Any, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, FopCancelled):
                self._log.error("background work failed: %s", error, exc_info=error)
            self._runs.difference_update(runs)
            if not self._runs and self._idle is not None:
                self._idle.set(None)

        run = drive(co, finish)
        if run is not None and not run.done:
            runs.append(run)
            self._runs.add(run)

    async def stop(self) -> None:
        """Cancel all work and wait until it has ended."""
        for run in list(self._runs):
            run.cancel()
        if self._runs:
            self._idle = Waiter()
            await self._idle


class Lock:
    """Mutual exclusion between fops, first come first served.

    Use `async with lock:`. The owner is handed over at release, so a waiter that was woken owns the lock already.
    """

    __slots__ = ("_queue", "locked")

    def __init__(self) -> None:
        self.locked = False
        self._queue: deque[Waiter[None]] = deque()

    async def acquire(self) -> None:
        """Wait until the lock is ours."""
        if not self.locked:
            self.locked = True
            return
        waiter: Waiter[None] = Waiter()
        self._queue.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done:
                self.release()  # handed over just before the cancellation
            else:
                self._queue.remove(waiter)
            raise

    def release(self) -> None:
        """Hand the lock to the first in the queue, or free it."""
        if self._queue:
            self._queue.popleft().set(None)
        else:
            self.locked = False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Queue(Generic[T]):
    """An unbounded first-in first-out queue between fops: `put` never waits, `get` does."""

    __slots__ = ("_getters", "_items")

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._getters: deque[Waiter[T]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item, or hand it to the first that waits."""
        if self._getters:
            self._getters.popleft().set(item)
        else:
            self._items.append(item)

    async def get(self) -> T:
        """Take the oldest item, waiting for one."""
        if self._items:
            return self._items.popleft()
        waiter: Waiter[T] = Waiter()
        self._getters.append(waiter)
        try:
            return await waiter
        except BaseException:
            if waiter.done and waiter._error is None:
                if self._getters:
                    self._getters.popleft().set(waiter._value)
                else:
                    self._items.appendleft(waiter._value)
            elif waiter in self._getters:
                self._getters.remove(waiter)
            raise


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
