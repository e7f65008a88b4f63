"""The seam between protocol cores and sockets: what a byte stream offers and what it expects of whoever reads it.

A `Receiver` is a state machine over bytes and knows no socket; a `Channel` owns one and knows no protocol. Their
methods are those of `asyncio.BufferedProtocol` and its transport, so that the event loop can drive a receiver without
an adapter; the blocking pump and the in-memory pair drive the same receivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Union

import msgspec

from glustx.rpc.tls import Tls

Piece = Union[bytes, bytearray, memoryview]

# A sender whose queue has grown past the first hears `resume_writing` when it is down to the second.
QUEUE_HIGH, QUEUE_LOW = 128 << 10, 64 << 10


class Address(msgspec.Struct, frozen=True):
    """Where to connect or listen: a unix socket's path, or a host (name, IPv4, IPv6) and a port.

    `tls` is what `getspec.connect` secures a connection with; unix sockets are never secured.
    """

    host: str = "127.0.0.1"
    port: int = 0
    path: str = ""
    tls: Tls | None = None

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Channel(Protocol):
    """A connected byte stream; `identity` is the common name in the peer's certificate, None without TLS."""

    peer: str
    identity: str | None

    @property
    def received(self) -> int:
        """Return how many bytes have come over the wire."""

    @property
    def sent(self) -> int:
        """Return how many bytes have gone over the wire."""

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send the pieces in order. What cannot be sent at once is copied, so the caller may reuse its buffers."""

    def close(self) -> None:
        """Send what is queued, then close; the receiver hears `connection_lost(None)`."""

    def abort(self, reason: str) -> None:
        """Close at once; the receiver hears `connection_lost`."""

    def pause_reading(self) -> None:
        """Stop calling `buffer_updated` until `resume_reading`."""

    def resume_reading(self) -> None:
        """Go on reading."""

    def queued(self) -> int:
        """Return how many bytes wait to be sent."""


class Receiver(Protocol):
    """Whoever reads a channel. All calls come inside a runtime turn of the reactor's thread."""

    def connection_made(self, channel: Channel) -> None:
        """The stream is there."""

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes should go (never empty)."""

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` have arrived in the buffer that `get_buffer` returned."""

    def connection_lost(self, error: Exception | None) -> None:
        """The stream is gone, or could never be made; no call follows."""


class Network(Protocol):
    """How a graph reaches others; part of its surroundings."""

    def dial(self, address: Address, receiver: Receiver) -> None:
        """Connect without waiting; `receiver` hears connection_made, or connection_lost with the OSError."""


class Listener(Protocol):
    """A listening socket."""

    address: Address

    def close(self) -> None:
        """Stop listening; connections that were accepted stay."""
