"""Reads and writes around the page cache, for files that are open with O_DIRECT.

What comes from the wire is neither aligned in memory nor, always, in the file. So a file that is open with O_DIRECT has
two descriptors: whole sectors go by the direct one, through memory that is aligned, and everything else (the last piece
of a file, a write at an odd place, any fop but READ and WRITE) by the ordinary one; the kernel keeps the two coherent.
A file system without O_DIRECT, or that wants larger sectors than these, has the page cache do it. So no request fails
for how it is aligned, on any file system; stock passes on what the kernel says, which on some is EINVAL.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from typing import Any

from glustx.xlators.storage.posix_object import OpenFile

SECTOR = 512


def go_direct(f: OpenFile, flags: int) -> None:
    """Give an open file its second descriptor; when there can be none, its data goes through the page cache.

    Args:
        flags: what the file is open with.
    """
    flags &= os.O_ACCMODE | os.O_SYNC | os.O_DSYNC
    with contextlib.suppress(OSError):
        f.direct = os.open(f"/proc/self/fd/{f.fd}", flags | os.O_DIRECT | os.O_CLOEXEC)
        f.slow = True


def read_direct(f: OpenFile, size: int, offset: int) -> bytes:
    """Read like os.pread, around the page cache where offset and size are whole sectors."""
    if size and not (offset | size) % SECTOR:
        with mmap.mmap(-1, size) as memory:
            try:
                return memory[: os.preadv(f.direct, [memory], offset)]
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
    return os.pread(f.fd, size, offset)


def write_direct(f: OpenFile, data: Any, offset: int) -> int:
    """Write like os.pwrite, around the page cache where offset and size are whole sectors."""
    size = len(data)
    if size and not (offset | size) % SECTOR:
        with mmap.mmap(-1, size) as memory:
            memory[:] = data
            try:
                return os.pwrite(f.direct, memory, offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
    return os.pwrite(f.fd, data, offset)
