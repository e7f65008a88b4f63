"""How many of the process's file descriptors clients may have: fds they hold are files that storage has open.

The rest is for connections, for storage's open folders, and for whoever comes later. Without a bound one client that
opens file after file would leave none to accept another client's connection with.
"""

from __future__ import annotations

import errno

from glustx.errors import FopError

_MOST = 1 << 20
_KEPT = 5120  # storage's folders, and some connections
_UNKNOWN = 1 << 16


def raised_limit() -> int:
    """Let the process have as many descriptors as its hard limit allows (2^20 at most); return how many that are."""
    try:
        import resource
    except ImportError:  # not a Unix
        return _UNKNOWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


class Descriptors:
    """What the clients of one brick hold together.

    Attributes:
        room: how many they may hold; one connection may have half of it.
        used: how many they do.
    """

    __slots__ = ("room", "used")

    def __init__(self) -> None:
        self.room = _UNKNOWN
        self.used = 0

    def measure(self) -> None:
        """Find out how many the process may have."""
        limit = raised_limit()
        self.room = limit - min(_KEPT, limit // 2)

    def take(self, held: int) -> None:
        """Count one more for a connection that holds `held`; FopError EMFILE or ENFILE when there is none."""
        if held >= self.room // 2:
            raise FopError(errno.EMFILE, f"the client holds {held} fds")
        if self.used >= self.room:
            raise FopError(errno.ENFILE, f"the clients of this brick hold {self.used} fds")
        self.used += 1

    def give(self, count: int) -> None:
        """Some are given back."""
        self.used -= count
