"""From a fop's errno, which is Linux's everywhere, to the OSError of the platform with the path that it concerns; and
what a user sees of a volume that cannot be mounted."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Coroutine
from typing import Any

from glustx.errors import FopCancelled, FopError, MountError
from glustx.runtime import TimedOut

# How long a call whose time is up may take to undo what it began while its caller waits.
UNDO_SECONDS = 0.2
# Linux numbers by name, for platforms that number otherwise.
_LINUX = {
    11: "EAGAIN", 35: "EDEADLK", 36: "ENAMETOOLONG", 37: "ENOLCK", 38: "ENOSYS", 39: "ENOTEMPTY", 40: "ELOOP",
    61: "ENODATA", 62: "ETIME", 71: "EPROTO", 75: "EOVERFLOW", 77: "EBADFD", 84: "EILSEQ", 87: "EUSERS",
    95: "EOPNOTSUPP", 98: "EADDRINUSE", 99: "EADDRNOTAVAIL", 100: "ENETDOWN", 101: "ENETUNREACH",
    103: "ECONNABORTED", 104: "ECONNRESET", 105: "ENOBUFS", 106: "EISCONN", 107: "ENOTCONN", 108: "ESHUTDOWN",
    110: "ETIMEDOUT", 111: "ECONNREFUSED", 112: "EHOSTDOWN", 113: "EHOSTUNREACH", 114: "EALREADY",
    115: "EINPROGRESS", 116: "ESTALE", 122: "EDQUOT", 125: "ECANCELED",
}  # fmt: skip
_LINUX_ONLY = {61: "ENOATTR", 77: "EBADF"}


# However a server or brick cannot be reached, to a user the volume is not connected; the text tells the rest.
_UNREACHED = frozenset({104, 110, 111, 112, 113, 100, 101, 103, 99})


def native(number: int) -> int:
    """Return this platform's number of a Linux errno (EIO for one that it does not have)."""
    if sys.platform == "linux" or number not in _LINUX:
        return number
    return getattr(errno, _LINUX[number], None) or getattr(errno, _LINUX_ONLY.get(number, ""), errno.EIO)


def os_error(error: FopError, where: str, path: object = None, other: object = None) -> OSError:
    """Return the OSError that tells a user of `error`.

    Args:
        where: what the call was made on, such as "volume vm at host1".
        path, other: the path or the two paths of the call, as the user gave them.
    """
    number = native(error.errno)
    name = errno.errorcode.get(number, str(number))
    detail = f": {error.text}" if error.text else ""
    text = f"{os.strerror(number)} ({name} on {where}{detail})"
    if other is not None:
        return OSError(number, text, path, None, other)
    return OSError(number, text, path) if path is not None else OSError(number, text)


def mount_error(error: FopError, volume: str) -> MountError:
    """Return what a user sees of `error`, which kept `volume` from being mounted."""
    number = errno.ENOTCONN if error.errno in _UNREACHED else native(error.errno)
    name = errno.errorcode.get(number, str(number))
    return MountError(number, f"cannot mount volume {volume} ({name}): {error.text or os.strerror(number)}")


def late(stop: FopCancelled, co: Coroutine[Any, Any, Any], seconds: float | None) -> TimedOut:
    """Return what tells that a call was called off because its time was up.

    Args:
        stop: what came out of it; it names the fop and the brick that was waited for, where there was one.
        co: the call.
        seconds: its time.
    """
    return TimedOut(f"{stop.at or getattr(co, '__name__', 'the call')}: no answer in {seconds:g} s")
