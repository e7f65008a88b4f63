"""Work on the parts of a range in several threads, at a bearable rate."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


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


def for_each(work: Callable[[T], object], items: Iterator[T], jobs: int, stop: threading.Event) -> None:
    """Run `work(item)` for all items in `jobs` threads; the first error stops all and is raised.

    Args:
        items: advanced by one thread at a time.
        stop: set when the work is to end early, also by an exception in the calling thread (Ctrl-C).
    """
    lock = threading.Lock()

    def run() -> None:
        while not stop.is_set():
            try:
                with lock:
                    item = next(items)
            except StopIteration:
                return
            except BaseException:
                stop.set()
                raise
            try:
                work(item)
            except BaseException:
                stop.set()
                raise

    with concurrent.futures.ThreadPoolExecutor(jobs, thread_name_prefix="glustx-work") as pool:
        try:
            running = [pool.submit(run) for _ in range(jobs)]
            for future in concurrent.futures.as_completed(running):
                future.result()
        finally:
            stop.set()


def in_parallel(
    work: Callable[[int, int], object], parts: Iterator[tuple[int, int]], jobs: int, stop: threading.Event
) -> None:
    """Run `work(start, end)` for all parts of a range, as `for_each` does."""
    for_each(lambda part: work(*part), parts, jobs, stop)
