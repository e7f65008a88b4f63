"""What a brick tells a client unasked: the messages that travel with Event.UPCALL.

`client` names the session that the message is for (as `Caller.client` does); protocol/server sends it there and nobody
else hears of it. Source: stock's callback program 52743234, procedures 10 and 11.
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
