"""Arguments and answers of attribute calls, for paths and open files alike."""

from __future__ import annotations

import errno
import time
from typing import Any, Union

from glustx.errors import FopError
from glustx.fops import XattrReply
from glustx.gfapi.namei import to_text
from glustx.values import (
    SET_ATIME,
    SET_ATIME_NOW,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_MTIME_NOW,
    SET_UID,
    Iatt,
)

Change = tuple[Iatt, int]
"""Attributes to set, and SETATTR's `valid` that says which."""

Buffer = Union[bytes, bytearray, memoryview]

_GIGA = 1_000_000_000


def mode_change(mode: int) -> Change:
    """Set permission bits."""
    return Iatt(mode=mode & 0o7777), SET_MODE


def owner_change(uid: int, gid: int) -> Change:
    """Set owner and group, where not -1."""
    valid = (SET_UID if uid != -1 else 0) | (SET_GID if gid != -1 else 0)
    return Iatt(uid=max(uid, 0), gid=max(gid, 0)), valid


def time_change(times: tuple[float, float] | None, ns: tuple[int, int] | None) -> Change:
    """Set access and modification time as `os.utime` takes them.

    Raises:
        ValueError: both are given. TypeError: one is not a tuple of two.
    """
    for pair in (times, ns):
        if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError("utime: times and ns are a tuple (atime, mtime) or None")
    if times is not None and ns is not None:
        raise ValueError("utime: either times or ns, not both")
    valid = SET_ATIME | SET_MTIME
    if times is not None:
        ns = (round(times[0] * _GIGA), round(times[1] * _GIGA))
    elif ns is None:
        # As the kernel does it: stock's bricks look at the times even where the flags say now.
        ns = (time.time_ns(),) * 2
        valid |= SET_ATIME_NOW | SET_MTIME_NOW
    atime, atime_nsec = divmod(ns[0], _GIGA)
    mtime, mtime_nsec = divmod(ns[1], _GIGA)
    return Iatt(atime=atime, mtime=mtime, atime_nsec=atime_nsec, mtime_nsec=mtime_nsec), valid


def xattr_name(name: str | bytes) -> bytes:
    """Return an xattr's name as it travels. ValueError for an empty one or one with a NUL."""
    raw = name.encode("utf-8", "surrogateescape") if isinstance(name, str) else bytes(name)
    if not raw or b"\0" in raw:
        raise ValueError(f"{name!r} is no name of an extended attribute")
    return raw


def xattr_flags(flags: int) -> int:
    """Return SETXATTR's flags: 1 create, 2 replace, which are Linux's own."""
    if flags not in (0, 1, 2):
        raise ValueError(f"setxattr flags {flags}: 0, XATTR_CREATE (1) or XATTR_REPLACE (2)")
    return flags


def xattr_value(value: str | Buffer) -> bytes:
    """Return an xattr's value as it travels: text as UTF-8, with surrogates for what is none."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else bytes(value)


def fitting(value: bytes, size: int) -> bytes:
    """Return `value` when it has at most `size` bytes; 0 is any.

    Raises:
        FopError: ERANGE. ValueError: `size` is negative.
    """
    if size < 0:
        raise ValueError(f"size {size}")
    if size and len(value) > size:
        raise FopError(errno.ERANGE, f"{len(value)} bytes do not fit into {size}")
    return value


def list_names(reply: Any, size: int = 0) -> list[str]:
    """Return the names in the answer to a GETXATTR of all, sorted; FopError ERANGE when they take more than `size`."""
    assert isinstance(reply, XattrReply)
    fitting(b"".join(bytes(key) + b"\0" for key in reply.xattrs), size)
    return sorted(to_text(key) for key in reply.xattrs)
