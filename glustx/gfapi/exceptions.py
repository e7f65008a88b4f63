"""Exceptions under libgfapi-python's names; each is also what Python's own code expects in its place."""

from __future__ import annotations

import errno
import os

from glustx.errors import LibgfapiException, MountError

__all__ = [
    "BadDescription",
    "ClosedFile",
    "Error",
    "LibgfapiException",
    "LogFileError",
    "MountError",
    "VolumeNotMounted",
]


class BadDescription(LibgfapiException, ValueError):
    """Hosts, name, protocol or port of a volume that cannot be meant."""


class VolumeNotMounted(LibgfapiException, RuntimeError):
    """A call on a volume that is not mounted yet, or not any more."""


class LogFileError(OSError, LibgfapiException):
    """A log file that cannot be opened for writing."""


class Error(OSError):
    """A copy that cannot be made: both paths are one file, or, in a tree, a list of (source, target, reason)."""


class ClosedFile(OSError, ValueError):
    """A call on a file that is closed: OSError EBADF, as from the system, and ValueError, as from `io`."""

    def __init__(self) -> None:
        super().__init__(errno.EBADF, f"{os.strerror(errno.EBADF)} (EBADF: I/O operation on closed file)")
