"""Free space that a brick keeps for internal clients (option reserve): how much, and what a change takes of it.

Once it is reached, what would take more space is answered ENOSPC; overwriting allocated blocks, removing, punching and
cutting stay possible. The file system is asked every few seconds on a worker, and again by each FALLOCATE and
ZEROFILL, which take most at a time; so WRITEs can eat into the reserve for that long, as they can on a stock brick.
"""

from __future__ import annotations

import errno
import os

from glustx import linux
from glustx.options import parse_size

SPACE_CHECK = 5.0  # seconds, as stock


def parse_reserve(text: str) -> tuple[float, bool]:
    """Return the reserve and whether it is a percentage: `1` and `1%` are, `10GB` and anything from 100 are bytes."""
    number = text.strip().rstrip("%")
    try:
        amount = float(number)
    except ValueError:
        return float(parse_size(text)), False
    if not 0 <= amount < 1 << 63 or (text.strip().endswith("%") and amount > 100):
        raise ValueError(f"{text!r} is neither a percentage nor a size")
    return amount, amount < 100 or text.strip().endswith("%")


def reserved_blocks(figures: os.statvfs_result, reserve: tuple[float, bool]) -> int:
    """Return how many blocks of `f_frsize` a file system keeps back."""
    amount, percent = reserve
    if percent:
        return int(figures.f_blocks * amount / 100 + 0.5)
    return -int(-amount // max(1, figures.f_frsize))


def allocated(fd: int, offset: int, size: int) -> bool:
    """Tell whether a file has blocks for all of [offset, offset + size), so that writing there takes no more."""
    end = offset + size
    if end > os.fstat(fd).st_size:
        return False
    if os.lseek(fd, offset, os.SEEK_HOLE) >= end:
        return True
    # What was preallocated and not written yet has blocks as well, and counts as a hole.
    try:
        for extent in linux.fiemap(fd, offset, size):
            if extent.logical > offset:
                return False
            offset = extent.end
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOTTY):
            raise
    return offset >= end
