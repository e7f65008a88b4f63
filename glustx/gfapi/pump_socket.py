"""Sockets of the pump: non-blocking channels that send at once what the kernel takes, and the dialling of them."""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glustx.rpc.channel import Address, Piece, Receiver
from glustx.runtime import TimerHandle, turn

if TYPE_CHECKING:
    from glustx.gfapi.pump import Pump

log = logging.getLogger("glustx.gfapi")

CONNECT_SECONDS = 20.0
_IOV_MAX = 1024
_RECEIVES = 8
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_WAIT = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR)
_CONNECTING = (errno.EINPROGRESS, errno.EWOULDBLOCK, getattr(errno, "WSAEWOULDBLOCK", errno.EWOULDBLOCK))
_HAS_SENDMSG = hasattr(socket.socket, "sendmsg")


class SocketChannel:
    """One connected socket in a pump; every call comes under the pump's mutex, inside a turn.

    Args:
        pump: whose selector watches it.
        sock: connected and non-blocking.
        receiver: who reads it.
        peer: address of the other side, for messages.
    """

    identity: str | None = None

    def __init__(self, pump: Pump, sock: socket.socket, receiver: Receiver, peer: str) -> None:
        self.peer = peer
        self.received = 0
        self.sent = 0
        self._pump = pump
        self._sock = sock
        self._receiver = receiver
        self._out: deque[memoryview] = deque()
        self._waiting = 0
        self._reading = True
        self._closing = False
        self._error: OSError | None = None  # of a write, while the last words are read
        self._mask = 0
        self._gone = False

    def begin(self) -> None:
        """Tell the receiver and watch the socket."""
        self._pump.channels.add(self)
        self._watch()
        turn(self._receiver.connection_made, self)

    def _watch(self) -> None:
        mask = (_READ if self._reading else 0) | (_WRITE if self._out else 0)
        if mask != self._mask:
            self._pump.watch(self._sock, self._mask, mask, self._ready)
            self._mask = mask

    # -- sending -----------------------------------------------------------------------------------------------------

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send the pieces; what the kernel does not take is copied and follows later."""
        if self._gone or self._closing:
            return
        taken = 0
        if not self._out:
            try:
                if len(pieces) == 1:
                    taken = self._sock.send(pieces[0])
                elif _HAS_SENDMSG:
                    taken = self._sock.sendmsg(pieces[:_IOV_MAX])
                else:
                    taken = self._sock.send(b"".join(pieces))
            except OSError as error:
                if error.errno not in _WAIT:
                    self._broken(error)
                    return
            self.sent += taken
        for piece in pieces:
            size = len(piece)
            if taken >= size:
                taken -= size
                continue
            self._out.append(memoryview(bytes(memoryview(piece)[taken:])))
            self._waiting += size - taken
            taken = 0
        if self._out:
            self._watch()

    def _flush(self) -> None:
        out = self._out
        while out:
            try:
                if _HAS_SENDMSG:
                    taken = self._sock.sendmsg([out[i] for i in range(min(len(out), _IOV_MAX))])
                else:
                    taken = self._sock.send(out[0])
            except OSError as error:
                if error.errno not in _WAIT:
                    self._broken(error)
                    return
                break
            self.sent += taken
            self._waiting -= taken
            while taken:
                if taken >= len(out[0]):
                    taken -= len(out.popleft())
                else:
                    out[0] = out[0][taken:]
                    taken = 0
        if not out and self._closing:
            self._end(None)
        else:
            self._watch()

    def queued(self) -> int:
        """Return how many bytes wait to be sent."""
        return self._waiting

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _ready(self, mask: int) -> None:
        if mask & _WRITE and not self._gone:
            self._flush()
        if mask & _READ and self._reading and not self._gone:
            self._receive()

    def _receive(self) -> None:
        for _ in range(_RECEIVES):
            if not self._receive_once() or self._gone or not self._reading:
                return

    def _receive_once(self) -> bool:
        """Fill the receiver's buffer once; whether there may be more to read."""
        receiver = self._receiver
        buffer = receiver.get_buffer(-1)
        try:
            count = self._sock.recv_into(buffer)
        except OSError as error:
            if error.errno not in _WAIT:
                self._end(error)
            return False
        if not count:
            self._end(None)
            return False
        self.received += count
        full = count == len(buffer)
        try:
            # A turn of its own: whoever waits for these bytes uses them before the buffer is filled again.
            turn(receiver.buffer_updated, count)
        except Exception as error:
            log.exception("%s: reading failed", self.peer)
            self._end(error)
        return full

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        self._reading = False
        if not self._gone:
            self._watch()

    def resume_reading(self) -> None:
        """Go on reading."""
        self._reading = True
        if not self._gone:
            self._watch()

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._gone or self._closing:
            return
        self._closing = True
        if not self._out:
            self._fail(None)

    def abort(self, reason: str) -> None:
        """Close at once."""
        self._fail(ConnectionAbortedError(errno.ECONNABORTED, reason))

    def _broken(self, error: OSError) -> None:
        """The other side is gone. What it sent before lies in the socket still, and may say why (a TLS alert)."""
        self._closing = True
        self._error = error
        self._out.clear()
        self._waiting = 0
        self._watch()
        self._pump.post(self._read_on)

    def _read_on(self) -> None:
        """Read what is left, a buffer a turn, and end."""
        if self._gone:
            return
        if self._reading and self._receive_once():
            self._pump.post(self._read_on)
        else:
            self._end(None)

    def _fail(self, error: Exception | None) -> None:
        """End from inside the receiver's own call: it hears of it in a turn of its own."""
        if not self._gone:
            self._shut()
            self._pump.post(lambda: self._receiver.connection_lost(error))

    def _end(self, error: Exception | None) -> None:
        if not self._gone:
            self._shut()
            turn(self._receiver.connection_lost, self._error or error)

    def _shut(self) -> None:
        self._gone = True
        self._out.clear()
        self._waiting = 0
        if self._mask:
            self._pump.watch(self._sock, self._mask, 0, self._ready)
            self._mask = 0
        self._pump.channels.discard(self)
        self._sock.close()

    def drop(self) -> None:
        """Close without a word to anybody: the pump itself ends."""
        if not self._gone:
            self._shut()


class Dial:
    """One attempt to connect: the addresses that a name stands for, one after the other."""

    def __init__(self, pump: Pump, address: Address, receiver: Receiver) -> None:
        self._pump = pump
        self._address = address
        self._receiver = receiver
        self._candidates: list[tuple[int, Any]] = []
        self._error: Exception = ConnectionError(errno.ENOTCONN, f"{address} stands for no address")
        self._sock: socket.socket | None = None
        self._timer: TimerHandle | None = None
        self._over = False

    def begin(self) -> None:
        """Start; the receiver hears how it went in a later turn."""
        self._pump.channels.add(self)
        address = self._address
        if address.path:
            family = getattr(socket, "AF_UNIX", None)
            if family is None:
                self._error = OSError(errno.EAFNOSUPPORT, "no unix sockets on this platform")
                self._pump.post(self._next)
                return
            self._found([(int(family), address.path)])
            return
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            self._pump.resolve(address.host, address.port, self._resolved)
            return
        self._found([(int(family), name) for family, _, _, _, name in found])

    def _resolved(self, found: list[tuple[int, Any]], error: Exception | None) -> None:
        if error is not None:
            self._error = error
        self._found(found)

    def _found(self, candidates: list[tuple[int, Any]]) -> None:
        self._candidates = candidates
        self._timer = self._pump.call_later(CONNECT_SECONDS, self._late)
        self._pump.post(self._next)

    def drop(self) -> None:
        """Give up without a word to anybody: the pump itself ends."""
        self._done()
        if self._sock is not None:
            self._drop_socket(self._sock)

    def _done(self) -> None:
        self._over = True
        self._candidates = []
        self._pump.channels.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _late(self) -> None:
        self._error = TimeoutError(errno.ETIMEDOUT, f"no answer in {CONNECT_SECONDS:g} s")
        self._candidates = []
        if self._sock is not None:
            self._drop_socket(self._sock)
        self._next()

    def _drop_socket(self, sock: socket.socket) -> None:
        self._sock = None
        self._pump.watch(sock, _WRITE, 0, self._writable)
        sock.close()

    def _next(self) -> None:
        """Try the next address; when none is left, the receiver hears of the last error."""
        while self._candidates and not self._over:
            family, name = self._candidates.pop(0)
            sock = None
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
                sock.setblocking(False)
                code = sock.connect_ex(name)
            except OSError as error:
                self._error = error
                if sock is not None:
                    sock.close()
                continue
            if not code:
                self._made(sock)
                return
            if code in _CONNECTING:
                self._sock = sock
                self._pump.watch(sock, 0, _WRITE, self._writable)
                return
            sock.close()
            self._error = OSError(code, os.strerror(code))
        if not self._over:
            self._done()
            turn(self._receiver.connection_lost, self._error)

    def _writable(self, mask: int) -> None:
        sock = self._sock
        if sock is None:
            return
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._drop_socket(sock)
            self._error = OSError(code, os.strerror(code))
            self._next()
            return
        self._sock = None
        self._pump.watch(sock, _WRITE, 0, self._writable)
        self._made(sock)

    def _made(self, sock: socket.socket) -> None:
        self._done()
        if not self._address.path:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        SocketChannel(self._pump, sock, self._receiver, str(self._address)).begin()
