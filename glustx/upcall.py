"""What a brick, or the link to it, tells a client unasked: the messages that travel with Event.UPCALL.

`client` names the session that the message is for (as `Caller.client` does); protocol/server sends it there and nobody
else hears of it. Source: stock's callback program 52743234, procedures 8, 10 and 11.
"""

from __future__ import annotations

import msgspec

from glustx.values import Flock


class InodelkContention(msgspec.Struct, frozen=True, gc=False):
    """Somebody waits for an inodelk that `client` holds: `flock` is the lock it holds, as it asked for it."""

    client: str
    gfid: bytes
    flock: Flock
    pid: int
    domain: bytes


class EntrylkContention(msgspec.Struct, frozen=True, gc=False):
    """Somebody waits for an entrylk that `client` holds on `name` (all names when empty) of directory `gfid`."""

    client: str
    gfid: bytes
    type: int
    pid: int
    name: bytes
    domain: bytes


class LeaseRecall(msgspec.Struct, frozen=True, gc=False):
    """A lease of `client` on an inode must be given back, or it is taken away after a while.

    Attributes:
        type: what may be kept of it: 0, nothing.
        id: the lease id; null when all of the client's leases on the inode are meant, as stock's bricks have it.
    """

    client: str
    gfid: bytes
    type: int = 0
    id: bytes = bytes(16)


class LocksLost(msgspec.Struct, frozen=True, gc=False):
    """Locks that this client held on a brick went with the connection and could not be had again.

    Attributes:
        brick: where.
        posix: gfid and range of each posix lock; its fds answer EBADFD from now on.
        inodelks, entrylks: how many of these; giving one of them back answers ENOLCK.
    """

    brick: str
    posix: tuple[tuple[bytes, Flock], ...] = ()
    inodelks: int = 0
    entrylks: int = 0
