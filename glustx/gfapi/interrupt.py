"""Ctrl-C that never strikes in the middle of a turn.

Python raises KeyboardInterrupt between any two bytecodes of the main thread. Inside a turn that would tear a
translator's state apart, so while the main thread is in one the signal is only noted, and raised when the turn is over.
Where the program has its own SIGINT handler it is left in place.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_users = 0
_inside: set[int] = set()
_pending = False
_main = threading.main_thread().ident


def _on_sigint(number: int, frame: FrameType | None) -> None:
    global _pending
    if _main in _inside:
        _pending = True
    else:
        signal.default_int_handler(number, frame)


class Guard:
    """Marks the stretches of a thread that must not be interrupted."""

    def __init__(self) -> None:
        self._counted = False
        if threading.get_ident() == _main:
            self._install()

    def _install(self) -> None:
        global _users
        current: Any = signal.getsignal(signal.SIGINT)
        if current is signal.default_int_handler:
            signal.signal(signal.SIGINT, _on_sigint)
        if current is signal.default_int_handler or current is _on_sigint:
            _users += 1
            self._counted = True

    def inside(self) -> bool:
        """Tell whether this thread is in such a stretch."""
        return threading.get_ident() in _inside

    def enter(self) -> None:
        """Begin one."""
        _inside.add(threading.get_ident())

    def leave(self) -> None:
        """End it; a Ctrl-C that came meanwhile is raised now."""
        global _pending
        _inside.discard(threading.get_ident())
        if _pending and threading.get_ident() == _main:
            _pending = False
            raise KeyboardInterrupt

    def close(self) -> None:
        """Give the program's own handler back when the last guard goes."""
        global _users
        if not self._counted:
            return
        self._counted = False
        _users -= 1
        if not _users and threading.get_ident() == _main and signal.getsignal(signal.SIGINT) is _on_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)
