"""Zeroes in a range of a file by one of three methods: the brick's ZEROFILL, a hole, or writes over the wire.

`zerofill` is one call, however long the range: the brick has methods of its own and allocates the space. `punch` gives
the space back, so that nothing is allocated. `writes` sends the zeroes, and works on everything that can be written.
"""

from __future__ import annotations

import errno
import threading

import msgspec

from glustx.fs.parallel import Throttle, chunks, in_parallel
from glustx.progress import Progress
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
