"""A TCP relay between a client and a brick that keeps every fop that crosses it: what was called, in which version of
the program, and how it was answered. It reads RPC headers by itself and shares nothing with glustx."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import NamedTuple

FOP_PROGRAM = 1298437


class Crossed(NamedTuple):
    """One call and its answer."""

    version: int
    proc: int
    accept_stat: int
    op_ret: int
    op_errno: int


class WireTap:
    """A relay to `127.0.0.1:target`; clients come to `port`.

    crossed: the fops so far, in the order of their replies.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.crossed: list[Crossed] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._calls: dict[tuple[int, int], tuple[int, int]] = {}
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> WireTap:
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            self._sockets += [near, far]
            for ends in ((near, far, True), (far, near, False)):
                thread = threading.Thread(target=self._relay, args=(*ends, id(near)), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, calls: bool, connection: int) -> None:
        held = b""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                held += data
                while len(held) >= 4:
                    size = struct.unpack_from(">I", held)[0] & 0x7FFFFFFF
                    if len(held) < 4 + size:
                        break
                    self._record(held[4 : 4 + size], calls, connection)
                    held = held[4 + size :]
                sink.sendall(data)  # last, so that no reply comes before its call is known
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _record(self, record: bytes, calls: bool, connection: int) -> None:
        xid, kind = struct.unpack_from(">II", record)
        if calls and kind == 0:
            program, version, proc = struct.unpack_from(">III", record, 12)
            if program == FOP_PROGRAM:
                self._calls[connection, xid] = (version, proc)
        elif not calls and kind == 1 and (connection, xid) in self._calls:
            (stat,) = struct.unpack_from(">I", record, 20)
            result = struct.unpack_from(">ii", record, 24) if stat == 0 else (-1, 0)
            self.crossed.append(Crossed(*self._calls.pop((connection, xid)), stat, *result))
