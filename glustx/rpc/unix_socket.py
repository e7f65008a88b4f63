"""Unix sockets to listen on: event loops take a living one's path away, and leave the mode to the umask."""

from __future__ import annotations

import errno
import os
import socket
import stat


def refuse_living(path: str) -> None:
    """Raise EADDRINUSE when somebody listens on a unix socket: event loops take the path away without asking."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            pass  # its backlog is full
        except OSError:
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), path)


def bound(path: str, mode: int | None) -> socket.socket:
    """Return a unix socket at `path`, which nobody can connect to before it listens; one that is left there goes."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        pass
    try:
        sock.bind(path)
        if mode is not None:
            os.chmod(path, mode)
    except BaseException:
        sock.close()
        raise
    return sock
