"""How a file is opened: mode strings and this platform's O_* to the Linux numbers that travel."""

from __future__ import annotations

import os
import sys

from glustx.inode import O_ACCMODE

O_CREAT, O_EXCL, O_TRUNC, O_APPEND = 0o100, 0o200, 0o1000, 0o2000
_LINUX = {
    "O_WRONLY": 0o1, "O_RDWR": 0o2, "O_CREAT": O_CREAT, "O_EXCL": O_EXCL, "O_TRUNC": O_TRUNC, "O_APPEND": O_APPEND,
    "O_DSYNC": 0o10000, "O_SYNC": 0o4010000, "O_DIRECT": 0o40000, "O_DIRECTORY": 0o200000, "O_NOFOLLOW": 0o400000,
    "O_NOATIME": 0o1000000, "O_NONBLOCK": 0o4000,
}  # fmt: skip
O_NOFOLLOW = _LINUX["O_NOFOLLOW"]
O_DIRECTORY = _LINUX["O_DIRECTORY"]
# Bits that mean something to a brick; the rest (CLOEXEC, LARGEFILE) concerns this process alone.
_TRAVELLING = O_ACCMODE
for _bit in _LINUX.values():
    _TRAVELLING |= _bit


def open_flags(how: int | str) -> int:
    """Return the Linux flags for `os.O_*` flags or a mode string such as `rb`, `r+b`, `xb`, `ab`.

    Raises:
        ValueError: a mode string that is not one; text modes are refused, since files here are raw bytes (wrap one in
            `io.TextIOWrapper(io.BufferedReader(file))`).
    """
    if isinstance(how, str):
        return _from_mode(how)
    if sys.platform == "linux":
        return how & _TRAVELLING
    flags = 0
    for name, linux in _LINUX.items():
        own = getattr(os, name, 0)
        if own and how & own == own:
            flags |= linux
    return flags


def _from_mode(mode: str) -> int:
    kinds = set(mode)
    if "t" in kinds:
        raise ValueError(f"invalid mode: {mode!r} (files are raw bytes; io.TextIOWrapper makes text of them)")
    if len(kinds) != len(mode) or kinds - set("rwaxb+") or len(kinds & set("rwax")) != 1:
        raise ValueError(f"invalid mode: {mode!r} (one of r, w, a, x; + to read and write; b)")
    flags = 0o2 if "+" in kinds else 0o0 if "r" in kinds else 0o1
    if "w" in kinds:
        flags |= O_CREAT | O_TRUNC
    elif "a" in kinds:
        flags |= O_CREAT | O_APPEND
    elif "x" in kinds:
        flags |= O_CREAT | O_EXCL
    return flags


def mode_text(flags: int) -> str:
    """Return the mode string that `io` objects show for Linux flags."""
    if flags & O_APPEND:
        return "ab+" if flags & O_ACCMODE == 2 else "ab"
    return ("rb", "wb", "rb+", "rb+")[flags & O_ACCMODE]
