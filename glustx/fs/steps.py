"""Failures of steps: which place, which step, which errno; and which of them mean that the volume is out of reach."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator

from glustx.fs.sides import Place

_LOST = {
    getattr(errno, name)
    for name in (
        "ENOTCONN", "ETIMEDOUT", "ECONNREFUSED", "ECONNRESET", "ECONNABORTED", "EHOSTUNREACH", "EHOSTDOWN",
        "ENETUNREACH", "ENETDOWN", "ESHUTDOWN",
    )
    if hasattr(errno, name)
}  # fmt: skip


class StepError(OSError):
    """A step that failed at a place.

    Args:
        place: where.
        action: what was being done: open, read, write, mkdir.
        error: what was said.
    """

    def __init__(self, place: Place, action: str, error: OSError) -> None:
        super().__init__(error.errno or errno.EIO, error.strerror or str(error))
        self.place = place
        self.action = action

    def __str__(self) -> str:
        name = errno.errorcode.get(self.errno or 0, "")
        text = self.strerror or os.strerror(self.errno or 0)
        return f"{self.place.name}: {self.action}: {text}" + (f" ({name})" if name and name not in text else "")

    @property
    def lost(self) -> bool:
        """Tell whether the volume cannot be reached, so that going on makes no sense."""
        return not self.place.local and self.errno in _LOST


class Stopped(Exception):
    """Work that another thread ends, because it failed or was interrupted."""


@contextlib.contextmanager
def step(place: Place, action: str) -> Iterator[None]:
    """Name the place and the step in an OSError of the block."""
    try:
        yield
    except StepError:
        raise
    except OSError as error:
        raise StepError(place, action, error) from error


def refused(place: Place, action: str, number: int, text: str) -> StepError:
    """Return the failure of a step that is not even tried."""
    return StepError(place, action, OSError(number, text))
