"""Connections to the volume server: how many there may be, how long one may ask for nothing, how much each may take.

Anybody may connect, and most who do stay for as long as they live: clients and bricks wait to hear of changes. Who has
asked for nothing yet has half a minute. When there are too many of either kind, the one that has been silent longest
goes; clients and bricks come back by themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import ClassVar

from glustx.rpc.channel import Channel
from glustx.rpc.complaints import Complaints
from glustx.rpc.connection import SEND_FEW, Handler, RpcConnection
from glustx.rpc.strangers import Strangers
from glustx.runtime import Reactor
from glustx.xlators.protocol.server_descriptors import raised_limit

log = logging.getLogger("glustx.mgmt")

# Longer than any call here: a key or a brick's path, and a few words about the caller.
RECORD_LIMIT = 64 << 10
STRANGERS = 1024
STRANGER_SECONDS = 30.0
# With 256 KiB unsent for each this is 2 GiB at the worst.
GUESTS = 8192


class Guest(RpcConnection):
    """One connection.

    Args:
        guests: all of them.
        programs: as in RpcConnection.
    """

    long_turn: ClassVar[float | None] = 0.005

    def __init__(self, guests: Guests, programs: Mapping[tuple[int, int], Handler]) -> None:
        super().__init__(programs, RECORD_LIMIT)
        self.records.burst = 16
        self.guests = guests
        self.post = guests.reactor.post

    def connection_made(self, channel: Channel) -> None:
        """Somebody is connected."""
        super().connection_made(channel)
        self.guests.strangers.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(error)
        self.guests.left(self)

    def reply(self, xid: int, results: bytes) -> None:
        """Answer a call, at once: volfiles are long, and many that gather would be memory."""
        super().reply(xid, results)
        self.flush()

    def served(self) -> None:
        """It has asked for something that it was given."""
        self.guests.served(self)

    def send_high(self) -> int:
        """Return what may wait to be sent."""
        return SEND_FEW

    def complain(self, peer: str, text: str) -> None:
        """Warn of the peer, as often as its host deserves."""
        self.guests.complaints.say(peer, text)

    def turn_away(self, why: str) -> None:
        """End the connection."""
        self.broken(why)


class Guests:
    """All connections of a volume server.

    Args:
        reactor: tells the time.
        limit: descriptors that the process may have; None to find out, and to raise it as far as possible.
    """

    def __init__(self, reactor: Reactor, limit: int | None = None) -> None:
        self.reactor = reactor
        limit = limit or raised_limit()
        strangers, self.most = min(STRANGERS, limit // 4), min(GUESTS, limit // 2)
        self.strangers = Strangers(lambda: reactor, lambda: (strangers, STRANGER_SECONDS), "asked for anything")
        self.complaints = Complaints(log, reactor.time)
        self._known: dict[Guest, None] = {}  # the longest silent first

    def __len__(self) -> int:
        return len(self.strangers) + len(self._known)

    def served(self, guest: Guest) -> None:
        """A guest was given what it asked for."""
        self.strangers.leave(guest)
        self._known.pop(guest, None)
        self._known[guest] = None
        if len(self._known) > self.most:
            silent = next(iter(self._known))
            del self._known[silent]
            silent.turn_away(f"{self.most} others have asked for something since")

    def left(self, guest: Guest) -> None:
        """A guest is gone."""
        self.strangers.leave(guest)
        self._known.pop(guest, None)

    def close(self) -> None:
        """Tell what was left out of the log; no timer fires any more."""
        self.strangers.close()
        self.complaints.flush()
