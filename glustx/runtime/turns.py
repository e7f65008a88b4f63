"""Waiters, coroutines driven by hand, and the turns in which they are stepped.

Stepping happens in *turns*. Setting a waiter inside a turn does not run anybody at once: the resumption is queued and
the turn's owner runs the queue when the current step has come to its own end. So the code between two awaits is
atomic, however many fops wait for what it sets, and a chain of a thousand lock hand-overs needs no stack.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

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
