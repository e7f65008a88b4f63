"""Which sockets are ready: epoll where there is one, which spares the bookkeeping of `selectors`; that elsewhere."""

from __future__ import annotations

import select
import selectors
import sys
from collections.abc import Callable
from typing import Any, Protocol

EVENT_READ, EVENT_WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

Handler = Callable[[int], None]
"""Called with what a socket is ready for, EVENT_READ and EVENT_WRITE in one mask; an error counts as both."""


class Watch(Protocol):
    """What a pump watches its sockets with.

    Attributes:
        live: takes a change while another thread waits in `select`; else that thread has to be woken.
    """

    live: bool

    def register(self, sock: Any, mask: int, handler: Handler | None) -> None:
        """Watch a socket (or a descriptor) for the events of `mask`."""

    def modify(self, sock: Any, mask: int, handler: Handler | None) -> None:
        """Watch for other events."""

    def unregister(self, sock: Any) -> None:
        """Leave a socket alone; to be called before it is closed."""

    def select(self, timeout: float | None) -> list[tuple[Handler | None, int]]:
        """Wait for `timeout` seconds at most (None: for ever); return handlers and what they are to deal with."""

    def close(self) -> None:
        """Give the descriptor back."""


class SelectorWatch:
    """`selectors` in that form."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.live = hasattr(self._selector, "fileno")  # epoll and kqueue

    def register(self, sock: Any, mask: int, handler: Handler | None) -> None:
        """Watch a socket (or a descriptor) for the events of `mask`."""
        self._selector.register(sock, mask, handler)

    def modify(self, sock: Any, mask: int, handler: Handler | None) -> None:
        """Watch for other events."""
        self._selector.modify(sock, mask, handler)

    def unregister(self, sock: Any) -> None:
        """Leave a socket alone; to be called before it is closed."""
        self._selector.unregister(sock)

    def close(self) -> None:
        """Give the descriptor back."""
        self._selector.close()

    def select(self, timeout: float | None) -> list[tuple[Handler | None, int]]:
        """Wait for at most `timeout` seconds."""
        return [(key.data, mask) for key, mask in self._selector.select(timeout)]


if sys.platform == "linux":
    _IN, _OUT = select.EPOLLIN, select.EPOLLOUT
    # To epoll's events and back; whoever is hung up on or has failed finds out by reading or writing.
    _EVENTS = (0, _IN, _OUT, _IN | _OUT)
    _READY = {event: (EVENT_READ if event & ~_OUT else 0) | (EVENT_WRITE if event & ~_IN else 0) for event in range(64)}

    class EpollWatch:
        """epoll itself."""

        live = True

        def __init__(self) -> None:
            self._epoll = select.epoll()
            self._handlers: dict[int, Handler | None] = {}
            self._poll = self._epoll.poll

        def register(self, sock: Any, mask: int, handler: Handler | None) -> None:
            """Watch a socket (or a descriptor) for the events of `mask`."""
            number = sock if isinstance(sock, int) else sock.fileno()
            self._epoll.register(number, _EVENTS[mask])
            self._handlers[number] = handler

        def modify(self, sock: Any, mask: int, handler: Handler | None) -> None:
            """Watch for other events."""
            number = sock if isinstance(sock, int) else sock.fileno()
            self._epoll.modify(number, _EVENTS[mask])
            self._handlers[number] = handler

        def unregister(self, sock: Any) -> None:
            """Leave a socket alone; to be called before it is closed."""
            number = sock if isinstance(sock, int) else sock.fileno()
            del self._handlers[number]
            self._epoll.unregister(number)

        def select(self, timeout: float | None) -> list[tuple[Handler | None, int]]:
            """Wait for at most `timeout` seconds."""
            handlers = self._handlers
            found = self._poll(timeout, 64)
            # One that was taken out by another thread meanwhile has no handler any more.
            return [(handlers[number], _READY[event & 63]) for number, event in found if number in handlers]

        def close(self) -> None:
            """Give the descriptor back."""
            self._epoll.close()


def make_watch() -> Watch:
    """Return the quickest that this platform has."""
    return EpollWatch() if sys.platform == "linux" else SelectorWatch()
