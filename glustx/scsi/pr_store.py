"""Where persistent reservations are kept: one xattr of the unit's file, shared by all gateways.

Record `trusted.glustx.scsi-pr`: 4 bytes "GXPR", 2 bytes version, the first 16 bytes of the SHA-256 of what follows, and
that: a `State` in MessagePack (arrays), deflated. A record that does not fit is an error, never "no reservations".

Locks, in a lock domain of their own on the file: byte 0 for a change of the record; byte 1 + slot is held by each
gateway as long as it has the unit open, with a random slot. A gateway whose connection was lost has lost that lock; it
finds out, and takes it anew, with each refresh.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from glustx.errors import FopError
from glustx.fops import Finodelk
from glustx.scsi.backing import Backing
from glustx.scsi.pr_state import State
from glustx.values import F_SETLK, F_SETLKW, F_UNLCK, F_WRLCK, Flock

KEY = "trusted.glustx.scsi-pr"
_MAGIC, _VERSION = b"GXPR", 1
_HEADER = len(_MAGIC) + 2 + 16
_LARGEST = 1 << 18  # 255 registrations with the longest names
_DOMAIN = b"glustx.scsi-pr"
_SLOTS = 1 << 60
_WITHOUT_LOCKS = (errno.EOPNOTSUPP, errno.ENOSYS)
_LOST = (errno.EINVAL, errno.ENOLCK, errno.ENOTCONN, errno.EBADFD)


class CorruptRecord(Exception):
    """A record that is there and cannot be read."""


def encode(state: State) -> bytes:
    """Return the record of a state."""
    body = zlib.compress(msgspec.msgpack.encode(state), 6)
    return _MAGIC + _VERSION.to_bytes(2, "big") + hashlib.sha256(body).digest()[:16] + body


def decode(record: bytes) -> State:
    """Return the state of a record; CorruptRecord says what is wrong with it."""
    if record[:4] != _MAGIC or len(record) < _HEADER:
        raise CorruptRecord(f"{len(record)} bytes that are no record of persistent reservations")
    version = int.from_bytes(record[4:6], "big")
    if version != _VERSION:
        raise CorruptRecord(f"a record of version {version}; this is written for version {_VERSION}")
    body = record[_HEADER:]
    if hashlib.sha256(body).digest()[:16] != record[6:_HEADER]:
        raise CorruptRecord("a record whose checksum does not fit")
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(body, _LARGEST)
        if not inflate.eof:
            raise CorruptRecord(f"a record of more than {_LARGEST} bytes")
        state = msgspec.msgpack.decode(text, type=State)
        state.check()
    except (zlib.error, msgspec.DecodeError, ValueError) as error:
        raise CorruptRecord(f"a record that cannot be decoded: {error}") from None
    return state


class Store:
    """The record of one unit.

    Args:
        backing: the unit's file.

    Attributes:
        shared: False where the graph has no locks, and so only one gateway.
    """

    def __init__(self, backing: Backing) -> None:
        self.backing = backing
        self.shared = True
        self.slot = 1 + secrets.randbelow(_SLOTS)
        self._turn = 0

    async def read(self) -> State:
        """Return what is kept; CorruptRecord when that cannot be read."""
        record = await self.backing.get_record(KEY)
        return decode(bytes(record)) if record is not None else State()

    async def write(self, state: State) -> None:
        """Keep a state; it is on stable storage afterwards."""
        await self.backing.set_record(KEY, encode(state))

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Keep other gateways from changing the record. Finds out whether the graph has locks."""
        owner = b"glustx-pr" + secrets.token_bytes(8)
        if self.shared:
            try:
                await self._lock(F_SETLKW, F_WRLCK, 0, 1, owner)
            except FopError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
                self.shared = False
        try:
            yield
        finally:
            if self.shared:
                await self._unlock(0, 1, owner)

    # -- presence ----------------------------------------------------------------------------------------------------

    async def arrive(self) -> None:
        """Say that this gateway has the unit open, or say it again where the lock that says so was lost."""
        if not self.shared:
            return
        # The owner changes when the lock is granted: while it is held another owner is refused, so one fop both asks
        # for the lock and takes it.
        try:
            await self._lock(F_SETLK, F_WRLCK, self.slot, 1, self._owner(self._turn + 1))
            self._turn += 1
        except FopError as error:
            if error.errno != errno.EAGAIN:
                raise

    async def leave(self) -> None:
        """Say that this gateway is through with the unit."""
        if self.shared and self._turn:
            await self._unlock(self.slot, 1, self._owner(self._turn))
            self._turn = 0

    async def alone(self) -> bool:
        """Tell whether no other gateway has the unit open."""
        if not self.shared:
            return True
        owner = b"glustx-pr" + secrets.token_bytes(8)
        for start, length in ((1, self.slot - 1), (self.slot + 1, _SLOTS - self.slot)):
            if length:
                try:
                    await self._lock(F_SETLK, F_WRLCK, start, length, owner)
                except FopError as error:
                    if error.errno == errno.EAGAIN:
                        return False
                    raise
                await self._unlock(start, length, owner)
        return True

    def _owner(self, turn: int) -> bytes:
        return b"glustx-gw%d" % (turn % 2)

    async def _lock(self, command: int, kind: int, start: int, length: int, owner: bytes) -> None:
        caller = msgspec.structs.replace(self.backing.caller, lk_owner=owner)
        flock = Flock(kind, start=start, len=length, lk_owner=owner)
        await self.backing.child(Finodelk(self.backing.fd, _DOMAIN, command, kind, flock, caller=caller))

    async def _unlock(self, start: int, length: int, owner: bytes) -> None:
        try:
            await self._lock(F_SETLK, F_UNLCK, start, length, owner)
        except FopError as error:
            if error.errno not in _LOST:  # gone with its connection
                raise
