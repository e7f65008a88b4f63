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
    """What was done: the method, the bytes that the brick zeroed by itself, and the bytes of zeroes that were sent.

    `fallback` tells why it is another method than the one that was tried first, or is empty.
    """

    method: str
    offloaded: int = 0
    written: int = 0
    fallback: str = ""


class Unsupported(OSError):
    """A method that was named and that the volume does not have."""


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

    Raises:
        Unsupported: a named method does not exist there.
        OSError: ENOSPC; whatever else the volume says.
    """
    if size == 0:
        return Zeroed("none")
    fallback = ""
    if method in ("auto", "zerofill"):
        progress.phase("zeroing", size, "zerofill")
        try:
            file.zerofill(offset, size)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            if method == "zerofill":
                raise _unsupported("zerofill", "ZEROFILL", error) from None
            fallback = f"the server has no ZEROFILL: {error.strerror or error}"
        else:
            progress.add(size)
            return Zeroed("zerofill", offloaded=size)
    if method == "punch":
        progress.phase("zeroing", size, "punch")
        end = offset + size
        before = file.stat().st_size
        if before > offset and not fresh:
            try:
                file.discard(offset, min(end, before) - offset)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                raise _unsupported("punch", "DISCARD", error) from None
        if end > before:
            file.truncate(end)
        progress.add(size)
        return Zeroed("punch", offloaded=size)
    progress.phase("zeroing", size, "writes")
    _write_zeroes(file, offset, size, limits, progress)
    return Zeroed("writes", written=size, fallback=fallback)


def _unsupported(method: str, fop: str, error: OSError) -> Unsupported:
    text = f"method {method} was asked for, and the server has no {fop}: {error.strerror or error}"
    return Unsupported(error.errno, text, error.filename)


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
