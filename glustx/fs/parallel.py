"""Work on the parts of a range in several threads, at a bearable rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

log = logging.getLogger("glustx.fs")

T = TypeVar("T")

_PATIENCE = 5.0


class Throttle:
    """Keeps several threads together below a rate.

    Args:
        rate: bytes per second; 0 means no limit.
        clock, sleep: for tests.
    """

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = clock()

    def wait(self, size: int) -> None:
        """Wait until `size` more bytes may go."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock()
            begin = max(now, self._free_at)
            self._free_at = begin + size / self._rate
        if begin > now:
            self._sleep(begin - now)


def chunks(offset: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of parts of a range, each at most `step` bytes, cut at multiples of it."""
    end = offset + size
    while offset < end:
        cut = min(end, offset - offset % step + step)
        yield offset, cut
        offset = cut


class Gate:
    """Opened once by another thread. Unlike `threading.Event` it has no lock that a KeyboardInterrupt which strikes the
    waiting thread could leave taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._open = False

    def open(self) -> None:
        """Let the waiting thread go on."""
        self._open = True
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        """Wait, for ever by default; tell whether it is open."""
        return self._open or self._lock.acquire(timeout=seconds)


def for_each(work: Callable[[T], object], items: Iterator[T], jobs: int, stop: threading.Event) -> None:
    """Run `work(item)` for all items in `jobs` threads; the first error stops all and is raised.

    When it returns or raises, no thread works any more, even if it was interrupted while it started them; a request
    that is not answered for 5 seconds after that is given up.

    Args:
        items: advanced by one thread at a time.
        stop: set when the work is to end early, also by an exception in the calling thread (Ctrl-C).
    """
    _Crew(work, items, jobs, stop).run()


class _Crew(Generic[T]):
    def __init__(self, work: Callable[[T], object], items: Iterator[T], jobs: int, stop: threading.Event) -> None:
        self._work, self._items, self._jobs, self._stop = work, items, jobs, stop
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._left = jobs
        self._active = 0
        self._closed = False
        self._error: BaseException | None = None
        self._over = Gate()

    def run(self) -> None:
        try:
            for _ in range(self._jobs):
                threading.Thread(target=self._begin, name="glustx-work", daemon=True).start()
            self._over.wait()
        finally:
            self._stop.set()
            with self._lock:
                # A thread whose start was interrupted may begin at any time, and then does nothing.
                self._closed = True
                idle = not self._active
            if not idle and not self._over.wait(_PATIENCE):
                log.error("a server did not answer for %g s: a file .*.glustx-* may have been left on it", _PATIENCE)
        if self._error is not None:
            raise self._error

    def _begin(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._active += 1
        try:
            self._labour()
        except BaseException as error:
            self._stop.set()
            with self._lock:
                self._error = self._error or error
        with self._lock:
            self._active -= 1
            self._left -= 1
            over = not self._active and (self._closed or not self._left)
        if over:
            self._over.open()

    def _labour(self) -> None:
        while not self._stop.is_set():
            with self._turn:
                try:
                    item = next(self._items)
                except StopIteration:
                    return
            self._work(item)


def in_parallel(
    work: Callable[[int, int], object], parts: Iterator[tuple[int, int]], jobs: int, stop: threading.Event
) -> None:
    """Run `work(start, end)` for all parts of a range, as `for_each` does."""
    for_each(lambda part: work(*part), parts, jobs, stop)
