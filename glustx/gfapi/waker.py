"""What makes a thread that waits in a selector come back: an eventfd where there is one, a socket pair elsewhere."""

from __future__ import annotations

import os
import socket
from typing import Any


class Waker:
    """A bell: `ring` from any thread makes `fd` readable until `drain`."""

    def __init__(self) -> None:
        self.fd: Any
        self._end: Any
        if hasattr(os, "eventfd"):
            self.fd = self._end = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self.fd, self._end = socket.socketpair()
            self.fd.setblocking(False)
            self._end.setblocking(False)

    def ring(self) -> None:
        """Make `fd` readable."""
        try:
            if isinstance(self._end, int):
                os.eventfd_write(self._end, 1)
            else:
                self._end.send(b"\0")
        except OSError:
            pass  # full: it rings already

    def drain(self) -> None:
        """Make `fd` silent again."""
        try:
            if isinstance(self.fd, int):
                os.eventfd_read(self.fd)
            else:
                self.fd.recv(64)
        except OSError:
            pass  # silent already

    def close(self) -> None:
        """Give the descriptors back."""
        if isinstance(self.fd, int):
            os.close(self.fd)
        else:
            self.fd.close()
            self._end.close()
