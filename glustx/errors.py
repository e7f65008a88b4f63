"""The exceptions a translator may raise or meet: a fop that failed, a fop that was called off, a bad option; and what
users see of a volume that cannot be mounted."""

from __future__ import annotations

import errno as _errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glustx.xdata import Xdata


class FopError(Exception):
    """A fop that failed with an errno; the only exception a translator's method raises on purpose.

    Args:
        errno: Linux errno number, as it goes on the wire.
        text: what was being done, for logs and the person at the edge; never sent to a peer.
        xdata: keys that travel with the error (such as `glusterfs.preop.check.failed`).
    """

    def __init__(self, errno: int, text: str = "", xdata: Xdata | None = None) -> None:
        super().__init__(errno, text)
        self.errno = errno
        self.text = text
        self.xdata = xdata

    def __str__(self) -> str:
        name = _errno.errorcode.get(self.errno, str(self.errno))
        return f"{name}: {self.text or os.strerror(self.errno)}"


_LAST_ERRNO = 4095


def told(code: int, text: str = "", xdata: Xdata | None = None) -> FopError:
    """Return the failure that a peer tells of, EIO where its errno is none."""
    return FopError(code if 0 < code <= _LAST_ERRNO else _errno.EIO, text, xdata)


class FopCancelled(BaseException):
    """Thrown into a suspended fop when its caller is gone or its deadline has passed.

    A BaseException, so that no `except Exception` in a translator takes it for a failure it may handle. `at` tells
    what was waited for, where a translator knows it.
    """

    at: str = ""


class FopAbandoned(BaseException):
    """Thrown into a suspended fop that nobody will resume, when its graph or its driver is torn down."""


class OptionError(ValueError):
    """An option that does not exist or whose value does not fit.

    Args:
        xlator: name of the volume in the volfile.
        key: the option as written.
        text: one sentence that says what is wrong and what would be right.
    """

    def __init__(self, xlator: str, key: str, text: str) -> None:
        super().__init__(xlator, key, text)
        self.xlator = xlator
        self.key = key
        self.text = text

    def __str__(self) -> str:
        return f"volume {self.xlator}, option {self.key}: {self.text}"


class GraphError(ValueError):
    """A graph that cannot be built or brought up: unknown type, wrong number of subvolumes, a storage that refuses."""


class LibgfapiException(Exception):
    """A volume cannot be described, mounted or used: the name that libgfapi-python has for it."""


class MountError(OSError, LibgfapiException):
    """A volume that could not be mounted: its servers or bricks cannot be reached, do not know it, or refuse.

    `strerror` is one sentence with the volume, the servers or brick by host and port, and the reason. `errno` is
    ENOTCONN where nobody could be reached, ENOENT for a volume that the servers do not know, else what they answered.
    """
