"""ROD tokens of a gateway (SBC-4 4.20, SPC-5 5.18): what stands for ranges of a unit until it expires or is revoked.

Where the brick can share blocks a token has a snapshot, so it stands for what the ranges held when it was made.
Elsewhere it stands for what they hold, and is revoked before anything is written to them through this gateway (another
gateway's writes are not seen): a copy is never a mixture. A token works by any nexus and unit of the gateway; whoever
knows its 512 bytes may read its ranges, so most of them are random.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import struct
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.runtime import Reactor, TimerHandle, Waiter, spawn
from glustx.scsi import third_party as can
from glustx.scsi.sense import ILLEGAL_REQUEST, CheckCondition, check
from glustx.scsi.token_pins import Pin, Record, can_pin, pin, settled, sweep

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

UNSUPPORTED_TYPE, UNKNOWN, CORRUPT, REVOKED, EXPIRED, CANCELLED, DELETED, WRONG_LENGTH = 1, 4, 5, 6, 7, 8, 9, 10
_TAIL = can.TOKEN_LENGTH - 8
_HEAD = 96  # bytes that REPORT ALL ROD TOKENS shows
_ID = slice(8, 16)
_REMEMBERED = 4096  # tokens that are gone

Ranges = Sequence[tuple[int, int]]


def refused(why: int) -> CheckCondition:
    """Return the error for a token that cannot be used: INVALID TOKEN OPERATION with the qualifier `why`."""
    return check(ILLEGAL_REQUEST, 0x23, why)


class Token:
    """One token.

    Attributes:
        data: its 512 bytes.
        unit, ranges: what it stands for, in blocks of the unit.
        pin: its snapshot, None where there is none.
        gone: why it cannot be used any more, 0 while it can.
        users: copies that read by it now.
    """

    def __init__(self, data: bytes, unit: LogicalUnit, ranges: Ranges, inactivity: int) -> None:
        self.data = data
        self.unit = unit
        self.ranges = tuple(ranges)
        self.inactivity = inactivity
        self.pin: Pin | None = None
        self.gone = 0
        self.users = 0
        self.timer: TimerHandle | None = None

    @property
    def blocks(self) -> int:
        """How many blocks it stands for."""
        return sum(count for _, count in self.ranges)

    def check(self) -> None:
        """Raise the reason why it cannot be used any more."""
        if self.gone:
            raise refused(self.gone)


class Tokens:
    """The tokens of one gateway.

    Args:
        reactor: clock.
    """

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self._live: dict[bytes, Token] = {}
        self._gone: dict[bytes, int] = {}
        self._drops: list[Waiter[None]] = []

    async def make(self, unit: LogicalUnit, ranges: Ranges, inactivity: int) -> Token:
        """Make a token for ranges of a unit, with a snapshot where the brick can share blocks.

        Args:
            unit, ranges: what it stands for: pairs of first block and number of blocks.
            inactivity: seconds without use after which it expires.
        """
        if len(self._live) >= can.MOST_TOKENS:
            raise check(ILLEGAL_REQUEST, 0x55, 0x0C, f"{can.MOST_TOKENS} tokens")
        data = _token(unit, sum(count for _, count in ranges))
        token = Token(data, unit, ranges, inactivity)
        if can_pin(unit):
            token.pin = await self._pin(token)
        if token.pin is None:
            await settled(unit, ranges)
        self._live[data[_ID]] = token
        self._watch(unit)
        self._restart(token)
        return token

    @staticmethod
    async def _pin(token: Token) -> Pin | None:
        unit = token.unit
        record = Record(
            hashlib.sha256(token.data).digest(),
            unit.backing.gfid,
            unit.block_size,
            int(time.time()),
            token.inactivity,
            token.ranges,
        )
        try:
            return await pin(unit, token.data[_ID], record)
        except FopError as error:
            log.info("%r: a token has no snapshot: %s", unit, error)
            return None

    def find(self, data: bytes) -> Token | None:
        """Return a token by its 512 bytes, None for the one that stands for zeroes; CheckCondition for what is none."""
        kind, length = int.from_bytes(data[0:4], "big"), int.from_bytes(data[6:8], "big")
        if length != _TAIL:
            raise refused(WRONG_LENGTH)
        if kind == can.ZERO:
            return None
        if kind != can.ACCESS_UPON_REFERENCE:
            raise refused(UNSUPPORTED_TYPE)
        token = self._live.get(data[_ID])
        if token is None:
            raise refused(self._gone.get(data[_ID], UNKNOWN))
        if not hmac.compare_digest(token.data, data):
            raise refused(CORRUPT)
        unit = token.unit
        if unit not in unit.gateway.units.values() or any(lba + count > unit.blocks for lba, count in token.ranges):
            self.end(token, REVOKED)
        token.check()
        return token

    def begin_use(self, token: Token) -> None:
        """A copy reads by a token: it does not expire meanwhile."""
        token.users += 1
        if token.timer is not None:
            token.timer.cancel()
            token.timer = None

    def end_use(self, token: Token) -> None:
        """A copy is over."""
        token.users -= 1
        if token.gone:
            self._drop(token)
        elif not token.users:
            self._restart(token)

    def end(self, token: Token, why: int) -> None:
        """Make a token unusable; its snapshot goes when nobody reads it."""
        if token.gone:
            return
        token.gone = why
        del self._live[token.data[_ID]]
        self._gone[token.data[_ID]] = why
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        if token.timer is not None:
            token.timer.cancel()
            token.timer = None
        self._watch(token.unit)
        self._drop(token)

    def heads(self, unit: LogicalUnit) -> Iterator[bytes]:
        """Return the first 96 bytes of each token of a unit, which do not suffice to use it."""
        return (token.data[:_HEAD] for token in self._live.values() if token.unit is unit)

    async def sweep(self, units: Sequence[LogicalUnit]) -> None:
        """Remove what snapshots a gateway that is gone has left behind on the volumes of units."""
        for backing in {id(unit.backing.child.xlator): unit.backing for unit in units if can_pin(unit)}.values():
            try:
                removed = await sweep(backing.child, backing.caller)
            except FopError as error:
                log.warning("%s: snapshots that are left over could not be removed: %s", backing.volume, error)
            else:
                if removed:
                    log.info("%s: %d snapshots of tokens were left over and are removed", backing.volume, removed)

    async def stop(self) -> None:
        """End all tokens."""
        for token in list(self._live.values()):
            self.end(token, CANCELLED)
        for waiter in self._drops:
            await waiter

    # -- parts -------------------------------------------------------------------------------------------------------

    def _restart(self, token: Token) -> None:
        token.timer = self.reactor.call_later(token.inactivity, lambda: self.end(token, EXPIRED))

    def _drop(self, token: Token) -> None:
        made = token.pin
        if made is not None and not token.users:
            token.pin = None
            self._drops = [each for each in self._drops if not each.done]
            self._drops.append(spawn(made.drop()))

    def _watch(self, unit: LogicalUnit) -> None:
        """Look at a unit's writes while it has tokens without a snapshot, and only then."""
        watched = [token for token in self._live.values() if token.unit is unit and token.pin is None]

        def written(first: int, end: int) -> None:
            for token in watched:
                if not token.gone and any(lba < end and first < lba + count for lba, count in token.ranges):
                    self.end(token, REVOKED)

        unit.order.written = written if watched else None


def _token(unit: LogicalUnit, blocks: int) -> bytes:
    """Return the 512 bytes of a new token (SPC-5 table 105, SBC-4 4.20.3)."""
    own = unit.identity.naa
    creator = (
        struct.pack(">BBHBBBB", 0xE4, 0, 0, 1, 3, 0, len(own))
        + own.ljust(20, b"\0")
        + struct.pack(">I", unit.block_size)
    )
    head = struct.pack(">IHH8s", can.ACCESS_UPON_REFERENCE, 0, _TAIL, secrets.token_bytes(8))
    represented = (blocks << unit.shift).to_bytes(16, "big")
    device = struct.pack(
        ">IBBH", unit.block_size, 0, unit.limits.physical_exponent, unit.limits.lowest_aligned & 0x3FFF
    )
    known = (head + creator + represented).ljust(_HEAD, b"\0") + device.ljust(32, b"\0")
    return known + secrets.token_bytes(can.TOKEN_LENGTH - len(known))
