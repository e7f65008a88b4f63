"""Ctrl-C that never strikes in the middle of a turn.

Python raises KeyboardInterrupt between any two bytecodes of the main thread. Inside a turn that would tear a
translator's state apart, so while the main thread is in one the signal is only noted, and raised when the turn is over.
Where the program has its own SIGINT handler it is left in place.

A thread is in a turn while its ident is in `inside`; `pending` holds an item while an interrupt waits to be raised. It
is in `waiting` while its call waits: an interrupt that is raised then counts as a turn until the call has been
abandoned, so that a second one cannot keep it from handing on what others wait for.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

inside: set[int] = set()
waiting: set[int] = set()
pending: list[int] = []

_users = 0
_main = threading.main_thread().ident or 0


def on_sigint(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt now, or when the turn is over: a signal handler, for programs with their own as well."""
    if _main in inside:
        pending.append(number)
    else:
        if _main in waiting:
            inside.add(_main)
        signal.default_int_handler(number, frame)


def raise_pending() -> None:
    """Raise the interrupt that came during the turn that this thread has just left."""
    if pending and threading.get_ident() == _main:
        pending.clear()
        if _main in waiting:
            inside.add(_main)
        raise KeyboardInterrupt


class Guard:
    """Keeps the handler installed while there are pumps; made and closed in the main thread, else it does nothing."""

    def __init__(self) -> None:
        global _users
        self._counted = False
        if threading.get_ident() != _main:
            return
        current: Any = signal.getsignal(signal.SIGINT)
        if current is signal.default_int_handler:
            signal.signal(signal.SIGINT, on_sigint)
        if current is signal.default_int_handler or current is on_sigint:
            _users += 1
            self._counted = True

    def close(self) -> None:
        """Give Python's own handler back when the last guard goes."""
        global _users
        if not self._counted:
            return
        self._counted = False
        _users -= 1
        if not _users and threading.get_ident() == _main and signal.getsignal(signal.SIGINT) is on_sigint:
            signal.signal(signal.SIGINT, signal.default_int_handler)


class Guarded:
    """A mutex and the protection from KeyboardInterrupt, as one context."""

    __slots__ = ("_mutex",)

    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex

    def __enter__(self) -> None:
        inside.add(threading.get_ident())  # first: an interrupt between the two would leave the mutex locked
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self._mutex.release()
        inside.discard(threading.get_ident())
        if pending:
            raise_pending()
