"""Several coroutines at a time: side by side, out of reach of a cancellation, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any, Generic, TypeVar

from glustx.errors import FopAbandoned, FopCancelled
from glustx.runtime.turns import Finish, Run, Waiter, drive, turn

T = TypeVar("T")


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
        stop.at = stop.at or next((e.at for o in into if isinstance(e := o.error, FopCancelled)), "")
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
