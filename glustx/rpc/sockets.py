"""Sockets, whoever waits for them: unix sockets to listen on, and how a peer is called."""

from __future__ import annotations

import errno
import os
import socket
import stat
from typing import Any

from glustx.rpc.channel import Address, Piece


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


def peer_name(sock: Any) -> str:
    """Return what the other end is called in messages."""
    try:
        return socket_name(sock.getpeername())
    except OSError:
        return "?"


def socket_name(name: Any) -> str:
    """Return what getpeername or getsockname tells, as messages show it."""
    if isinstance(name, tuple):
        return str(Address(name[0], name[1]))
    return f"unix:{os.fsdecode(name) or 'peer'}"


def immutable(piece: Piece) -> bool:
    """Tell whether a piece stays as it is, so that it need not be copied before it is sent."""
    return isinstance(piece, bytes) or (isinstance(piece, memoryview) and isinstance(piece.obj, bytes))
