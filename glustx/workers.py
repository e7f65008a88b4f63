"""Worker threads of the process: where a system call that can really block runs, off the reactor's thread.

Jobs enter one `SimpleQueue`; results go back to the reactor they came from in bursts, one `post` for each burst, since
waking a loop costs more than the work. A job that has begun runs to its end: cancelling its fop only means nobody
hears of it.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from glustx.runtime import Reactor, Waiter

T = TypeVar("T")

DEFAULT_THREADS = 8


class _Burst:
    """Results on their way to one reactor."""

    __slots__ = ("lock", "posted", "reactor", "results")

    def __init__(self, reactor: Reactor) -> None:
        # Weak: the pool finds this object by the reactor, and must not be what keeps the reactor alive.
        self.reactor = weakref.ref(reactor)
        self.results: deque[tuple[Waiter[Any], Any, BaseException | None]] = deque()
        self.posted = False
        self.lock = threading.Lock()

    def add(self, waiter: Waiter[Any], value: Any, error: BaseException | None) -> None:
        self.results.append((waiter, value, error))
        with self.lock:
            if self.posted:
                return
            self.posted = True
        reactor = self.reactor()
        try:
            if reactor is not None:
                reactor.post(self.deliver)
        except RuntimeError:
            pass  # the reactor is closed: nobody waits any more

    def deliver(self) -> None:
        with self.lock:
            self.posted = False
        results = self.results
        while results:
            waiter, value, error = results.popleft()
            if error is None:
                waiter.set(value)
            else:
                waiter.fail(error)


class Workers:
    """A pool of daemon threads that grows on demand up to `threads`.

    Args:
        threads: most threads at a time; more than 8 lose on two cores.
    """

    def __init__(self, threads: int = DEFAULT_THREADS) -> None:
        self.threads = threads
        self._jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Waiter[Any], _Burst] | None] = (
            queue.SimpleQueue()
        )
        self._started = 0
        self._idle = 0
        self._lock = threading.Lock()
        self._bursts: weakref.WeakKeyDictionary[Any, _Burst] = weakref.WeakKeyDictionary()

    def submit(self, reactor: Reactor, work: Callable[..., T], *args: Any) -> Waiter[T]:
        """Run `work(*args)` on a worker and return the waiter of its result, which is set on the reactor's thread."""
        waiter: Waiter[T] = Waiter()
        with self._lock:
            burst = self._bursts.get(reactor)
            if burst is None:
                burst = self._bursts[reactor] = _Burst(reactor)
            if not self._idle and self._started < self.threads:
                self._started += 1
                threading.Thread(target=self._serve, name=f"glustx-worker-{self._started}", daemon=True).start()
            else:
                self._idle -= 1 if self._idle else 0
        self._jobs.put((work, args, waiter, burst))
        return waiter

    def _serve(self) -> None:
        get = self._jobs.get
        while True:
            job = get()
            if job is None:
                return
            work, args, waiter, burst = job
            try:
                value = work(*args)
            except BaseException as error:
                burst.add(waiter, None, error)
            else:
                burst.add(waiter, value, None)
            del job, work, args, waiter, burst  # a parked thread must not keep an fd or a buffer alive
            value = None
            with self._lock:
                self._idle += 1


_shared: Workers | None = None
_shared_lock = threading.Lock()


def shared() -> Workers:
    """Return the process's pool, making it at the first call (and anew in a forked child)."""
    global _shared
    if _shared is None:
        with _shared_lock:
            if _shared is None:
                _shared = Workers()
    return _shared


def _forget() -> None:
    global _shared, _shared_lock
    _shared = None
    _shared_lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_forget)
