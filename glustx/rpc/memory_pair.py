"""Byte streams inside one process: what is written at one end is read at the other, with no socket between them.

For clients and bricks that share a process, and for tests: with a `ManualReactor` every run is the same, and a test may
hold a direction back (`pause_reading`) or cut a connection (`abort`). Each read is a turn of its own, as on a socket.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence

from glustx.rpc.channel import QUEUE_HIGH, QUEUE_LOW, Address, Listener, Piece, Receiver
from glustx.runtime import Reactor, Waiter, turn

FIRST_PORT = 49152


class MemoryChannel:
    """One end of a stream; `other` is the other end.

    Args:
        reactor: delivers what is on the way.
        receiver: reads at this end.
        peer: what this end calls the other.
        chunk: most bytes in one read.
    """

    identity: str | None = None

    def __init__(self, reactor: Reactor, receiver: Receiver, peer: str, chunk: int) -> None:
        self.peer = peer
        self.received = 0
        self.sent = 0
        self.receiver = receiver
        self.other: MemoryChannel
        self.is_open = True
        self._reactor = reactor
        self._chunk = chunk
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._full = False
        self._reading = True
        self._closing = False
        self._posted = False

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send copies of the pieces in order."""
        if not self.is_open or self._closing:
            return
        data = b"".join(pieces)
        if not data:
            return
        self._queue.append(memoryview(data))
        self._queued += len(data)
        self._full = self._full or self._queued > QUEUE_HIGH
        self.sent += len(data)
        self._kick()

    def close(self) -> None:
        """Send what is queued, then close."""
        self._closing = True
        self._kick()

    def abort(self, reason: str) -> None:
        """Close at once; what is on the way is lost."""
        self._end(ConnectionAbortedError(errno.ECONNABORTED, reason))

    def pause_reading(self) -> None:
        """Hold back what the other end sends."""
        self._reading = False

    def resume_reading(self) -> None:
        """Let it through again."""
        self._reading = True
        self.other._kick()

    def queued(self) -> int:
        """Return how many bytes the other end has not read yet."""
        return self._queued

    def _kick(self) -> None:
        if not self._posted and self.is_open:
            self._posted = True
            self._reactor.post(self._deliver)

    def _deliver(self) -> None:
        """Make the other end read once."""
        self._posted = False
        other = self.other
        if not self.is_open or (self._queue and not other._reading):
            return
        if self._queue:
            room = other.receiver.get_buffer(-1)[: self._chunk]
            size = 0
            while self._queue and size < len(room):
                data = self._queue.popleft()
                part = data[: len(room) - size]
                room[size : size + len(part)] = part
                size += len(part)
                if len(part) < len(data):
                    self._queue.appendleft(data[len(part) :])
            self._queued -= size
            other.received += size
            other.receiver.buffer_updated(size)
            if self._full and self._queued <= QUEUE_LOW:
                self._full = False
                resume = getattr(self.receiver, "resume_writing", None)
                if resume is not None:
                    self._reactor.post(resume)
        elif self._closing:
            self._end(None)
            return
        if self._queue or self._closing:
            self._kick()

    def _end(self, error: Exception | None) -> None:
        if not self.is_open:
            return
        reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) if error is not None else None
        for end, heard in ((self, error), (self.other, reset)):
            end.is_open = False
            end._queue.clear()
            end._queued = 0
            self._reactor.post(lambda end=end, heard=heard: end.receiver.connection_lost(heard))  # type: ignore[misc]


class MemoryListener:
    """Takes the connections that are dialled to its address."""

    def __init__(self, network: MemoryNetwork, address: Address, make_receiver: Callable[[], Receiver]) -> None:
        self.address = address
        self.make_receiver = make_receiver
        self._network = network

    def close(self) -> None:
        """Stop listening."""
        self._network.listeners.pop(self.address, None)


class MemoryNetwork:
    """A network of one process: dial what somebody listens on.

    Args:
        reactor: whoever uses the network lives in this one.
        chunk: most bytes in one read, as a socket's buffer would bound them.

    Attributes:
        listeners: by address.
        channels: the dialling end of every connection that was made and may still be open, oldest first.
    """

    def __init__(self, reactor: Reactor, chunk: int = 1 << 16) -> None:
        self.listeners: dict[Address, MemoryListener] = {}
        self.channels: list[MemoryChannel] = []
        self._reactor = reactor
        self._chunk = chunk
        self._ports = itertools.count(FIRST_PORT)

    def listen(self, address: Address, make_receiver: Callable[[], Receiver]) -> Waiter[Listener]:
        """Listen on `address` and make a receiver for each connection; return the waiter of the Listener.

        Port 0 takes a free one. The waiter fails with EADDRINUSE when the address is taken.
        """
        waiter: Waiter[Listener] = Waiter()
        if not address.path and not address.port:
            free = (Address(address.host, port) for port in self._ports)
            address = next(candidate for candidate in free if candidate not in self.listeners)
        if address in self.listeners:
            waiter.fail(OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)))
        else:
            listener = self.listeners[address] = MemoryListener(self, address, make_receiver)
            waiter.set(listener)
        return waiter

    def dial(self, address: Address, receiver: Receiver) -> None:
        """Connect without waiting; `receiver` hears connection_made, or connection_lost with the OSError."""
        self._reactor.post(lambda: self._dial(address, receiver))

    def _dial(self, address: Address, receiver: Receiver) -> None:
        listener = self.listeners.get(address)
        if listener is None:
            error = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            turn(receiver.connection_lost, error)
            return
        name = str(Address(address.host, next(self._ports), address.path))
        near = MemoryChannel(self._reactor, receiver, str(address), self._chunk)
        far = MemoryChannel(self._reactor, listener.make_receiver(), name, self._chunk)
        near.other, far.other = far, near
        self.channels = [channel for channel in self.channels if channel.is_open] + [near]
        turn(far.receiver.connection_made, far)
        turn(near.receiver.connection_made, near)

    def close(self) -> None:
        """Stop listening and abort every connection."""
        self.listeners.clear()
        for channel in self.channels:
            channel.abort("shutting down")
