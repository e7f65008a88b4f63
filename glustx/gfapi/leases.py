"""The leases of open files: under which id each file's fops go, and who hears of it when one is recalled or lost."""

from __future__ import annotations

import base64
import errno
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from glustx.errors import FopError
from glustx.fops import Fop, Lease
from glustx.upcall import LeaseRecall
from glustx.values import LEASE_GET, LEASE_RD, LEASE_RW, LEASE_SET, LEASE_UNLOCK, NULL_GFID, LeaseInfo, Loc
from glustx.xdata import LEASE_ID, Xdata
from glustx.xlator import Event

if TYPE_CHECKING:
    from glustx.gfapi.file import FileCore

log = logging.getLogger("glustx.gfapi")
Recalled = Callable[[], object]
_ID_SIZE = 16


class Held:
    """The lease of one open file."""

    __slots__ = ("gfid", "id", "recalled", "told", "type")

    def __init__(self, gfid: bytes, id_: bytes, type_: int, recalled: Recalled | None) -> None:
        self.gfid = gfid
        self.id = id_
        self.type = type_
        self.recalled = recalled
        self.told = False

    def tell(self) -> None:
        """Tell whoever took it, once, that it has to be given back."""
        if self.told:
            return
        self.told = True
        if self.recalled is not None:
            try:
                self.recalled()
            except Exception:
                log.exception("what was to be called at the recall of a lease failed")


class LeaseBook:
    """The leases of a session, by gfid; it listens to the session's graph."""

    def __init__(self) -> None:
        self._held: dict[bytes, list[Held]] = {}

    def add(self, held: Held) -> None:
        """A lease was granted."""
        self._held.setdefault(held.gfid, []).append(held)

    def drop(self, held: Held) -> None:
        """It was given back."""
        some = self._held.get(held.gfid, [])
        if held in some:
            some.remove(held)
            if not some:
                del self._held[held.gfid]

    def hear(self, event: Event, data: Any) -> None:
        """A brick recalls leases, or is gone and has forgotten them."""
        if event is Event.UPCALL and isinstance(data, LeaseRecall):
            for held in list(self._held.get(data.gfid, ())):
                if data.id in (held.id, bytes(_ID_SIZE)):
                    held.tell()
        elif event is Event.CHILD_DOWN:
            self.lost()

    def lost(self) -> None:
        """Every lease is gone."""
        for some in list(self._held.values()):
            for held in list(some):
                held.tell()


async def take(file: FileCore, exclusive: bool, lease_id: bytes | None, recalled: Recalled | None) -> Held:
    """Take a lease for an open file; see `FileCore.lease`."""
    id_ = _fresh() if lease_id is None else bytes(lease_id)
    if len(id_) != _ID_SIZE or not any(id_):
        raise FopError(errno.EINVAL, f"a lease id is {_ID_SIZE} bytes, not all of them 0")
    # A recall may overtake the answer.
    held = Held(file.fd.gfid, id_, LEASE_RW if exclusive else LEASE_RD, recalled)
    file.session.leases.add(held)
    try:
        await file.top(_request(file, LEASE_SET, held.type, id_))
    except BaseException:
        file.session.leases.drop(held)
        raise
    return held


async def give_back(file: FileCore, held: Held, top: Callable[[Fop], Coroutine[Any, Any, Any]]) -> None:
    """Give a file's lease back; one that has been taken away is given back already."""
    file.session.leases.drop(held)
    await top(_request(file, LEASE_UNLOCK, held.type, held.id))


async def ask(file: FileCore) -> tuple[bool, bool]:
    """Return whether anybody holds leases to read, and to write."""
    reply = await file.top(_request(file, LEASE_GET, 0, b"\1" * _ID_SIZE))
    type_: int = reply.lease.type
    return bool(type_ & LEASE_RD), bool(type_ & LEASE_RW)


def marking(
    top: Callable[[Fop], Coroutine[Any, Any, Any]], lease_id: bytes
) -> Callable[[Fop], Coroutine[Any, Any, Any]]:
    """Return `top` for fops that are to go under a lease id."""
    mark = Xdata({LEASE_ID: lease_id})

    def marked(req: Fop) -> Coroutine[Any, Any, Any]:
        return top(msgspec.structs.replace(req, xdata=req.xdata.asking(mark)))

    return marked


def _fresh() -> bytes:
    # Stock's bricks compare lease ids as C strings: one without a zero at its end is never found again.
    return base64.urlsafe_b64encode(os.urandom(11))[: _ID_SIZE - 1].ljust(_ID_SIZE, b"\0")


def _request(file: FileCore, cmd: int, type_: int, id_: bytes) -> Lease:
    gfid = file.fd.gfid
    if gfid == NULL_GFID:
        raise FopError(errno.EBADF, "the file is not open")
    return Lease(Loc(gfid=gfid), LeaseInfo(cmd, type_, id_), caller=file.caller)
