"""`gf_iatt`, the attributes of program 330 and of callbacks: 100 bytes, with no flags and 32 bits of seconds."""

from __future__ import annotations

import struct
from typing import Any

from glustx.values import IATT_ALL, NULL_GFID, Iatt

# gfid, ino, dev, mode, nlink, uid, gid, rdev, size, blksize, blocks, then seconds and nanoseconds of three times.
GF_IATT = "16s2Q4I2QIQ6I"
OLD_IATT = struct.Struct(">" + GF_IATT)


def iatt_values(iatt: Iatt) -> tuple[Any, ...]:
    """Return the fields of a `gf_iatt`; of seconds the low 32 bits, for which alone it has room."""
    return (
        iatt.gfid, iatt.ino, iatt.dev, iatt.mode, iatt.nlink, iatt.uid, iatt.gid, iatt.rdev, iatt.size, iatt.blksize,
        iatt.blocks, iatt.atime & 0xFFFFFFFF, iatt.atime_nsec, iatt.mtime & 0xFFFFFFFF, iatt.mtime_nsec,
        iatt.ctime & 0xFFFFFFFF, iatt.ctime_nsec,
    )  # fmt: skip


def make_iatt(
    gfid: bytes, ino: int, dev: int, mode: int, nlink: int, uid: int, gid: int, rdev: int, size: int, blksize: int,
    blocks: int, atime: int, atime_nsec: int, mtime: int, mtime_nsec: int, ctime: int, ctime_nsec: int,
) -> Iatt:  # fmt: skip
    """Return the attributes that a `gf_iatt` holds; one that is all zero has no field that is valid."""
    flags = IATT_ALL if mode or gfid != NULL_GFID else 0
    return Iatt(
        gfid, flags, ino, dev, rdev, size, blocks, 0, 0, atime, mtime, ctime, 0,
        atime_nsec, mtime_nsec, ctime_nsec, 0, nlink, uid, gid, blksize, mode,
    )  # fmt: skip
