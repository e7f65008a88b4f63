"""Zeroes in a range of a file by one of three methods: the brick's ZEROFILL, a hole, or writes over the wire.

`zerofill` is one call, however long the range: the brick has methods of its own and allocates the space. `punch` gives
the space back, so that nothing is allocated. `writes` sends the zeroes, and works on everything that can be written.
"""

from __future__ import annotations

import concurrent.futures
import errno
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from glustx.provision.progress import Progress
from glustx.provision.target import File

METHODS = ("auto", "zerofill", "punch", "writes")
ALIASES = {"write": "writes"}
BLOCK = 1 << 20
DEFAULT_CHUNK = 128 << 20

_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROES = bytes(BLOCK)


class Limits(msgspec.Struct, frozen=True):
    """How hard the method `writes` may work.

    Args:
        chunk: bytes that one thread writes before it takes the next part of the range.
        jobs: threads.
        bwlimit: bytes per second of all threads together; 0 means no limit.
    """

    chunk: int = DEFAULT_CHUNK
    jobs: int = 4
    bwlimit: int = 0


class Zeroed(msgspec.Struct, frozen=True):
    """What was done: the method, the bytes that the brick zeroed by itself, and the bytes of zeroes that were sent."""

    method: str
    offloaded: int = 0
    written: int = 0


def zero_range(
    file: File, offset: int, size: int, method: str, limits: Limits, progress: Progress, *, fresh: bool = False
) -> Zeroed:
    """Make [offset, offset + size) of a file read as zeroes; the file grows to hold the range.

    Args:
        method: one of METHODS; `auto` is zerofill, and writes where no brick does that. A method that was named is
            never replaced by another.
        limits: for writes.
        progress: counts the bytes.
        fresh: the file has never been written, so a hole needs no discard.

    Raises OSError: EOPNOTSUPP when a named method does not exist there; ENOSPC; whatever else the volume says.
    """
    if size == 0:
        return Zeroed("none")
    if method in ("auto", "zerofill"):
        progress.phase("zeroing", size, "zerofill")
        try:
            file.zerofill(offset, size)
        except OSError as error:
            if method == "zerofill" or error.errno not in _UNSUPPORTED:
                raise
        else:
            progress.add(size)
            return Zeroed("zerofill", offloaded=size)
    if method == "punch":
        progress.phase("zeroing", size, "punch")
        end = offset + size
        before = file.stat().st_size
        if before > offset and not fresh:
            file.discard(offset, min(end, before) - offset)
        if end > before:
            file.truncate(end)
        progress.add(size)
        return Zeroed("punch", offloaded=size)
    progress.phase("zeroing", size, "writes")
    _write_zeroes(file, offset, size, limits, progress)
    return Zeroed("writes", written=size)


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


def _write_zeroes(file: File, offset: int, size: int, limits: Limits, progress: Progress) -> None:
    throttle = Throttle(limits.bwlimit)
    stop = threading.Event()

    def write(start: int, end: int) -> None:
        at = start
        while at < end and not stop.is_set():
            count = min(BLOCK - at % BLOCK, end - at)
            throttle.wait(count)
            written = file.pwrite(_ZEROES[:count] if count < BLOCK else _ZEROES, at)
            at += written
            progress.add(written)

    in_parallel(write, chunks(offset, size, limits.chunk), limits.jobs, stop)


def chunks(offset: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) of parts of a range, each at most `step` bytes, cut at multiples of it."""
    end = offset + size
    while offset < end:
        cut = min(end, offset - offset % step + step)
        yield offset, cut
        offset = cut


def in_parallel(
    work: Callable[[int, int], None], parts: Iterator[tuple[int, int]], jobs: int, stop: threading.Event
) -> None:
    """Run `work(start, end)` for all parts in `jobs` threads; the first error stops all and is raised.

    Args:
        stop: set when the work is to end early, also by an exception in the calling thread (Ctrl-C).
    """
    lock = threading.Lock()

    def run() -> None:
        while not stop.is_set():
            with lock:
                part = next(parts, None)
            if part is None:
                return
            try:
                work(*part)
            except BaseException:
                stop.set()
                raise

    with concurrent.futures.ThreadPoolExecutor(jobs, thread_name_prefix="glustx-provision") as pool:
        try:
            running = [pool.submit(run) for _ in range(jobs)]
            for future in concurrent.futures.as_completed(running):
                future.result()
        finally:
            stop.set()
