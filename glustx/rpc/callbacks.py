"""Bodies of the callback program: what a server tells its clients unasked, and is never answered.

FETCHSPEC, INO_FLUSH, GET_SNAPS, CHILD_UP and CHILD_DOWN have no body.
"""

from __future__ import annotations

from glustx import upcall
from glustx.rpc import programs
from glustx.rpc.body import I32, U32, Body, Bytes16, Dict, OldFlock, OldIatt, Text
from glustx.rpc.message import encode_call
from glustx.rpc.programs import CALLBACK
from glustx.rpc.xdr import XdrError
from glustx.values import ZERO_IATT

# CacheInvalidation.flags: what may no longer be as it was remembered.
UP_NLINK, UP_MODE, UP_OWN, UP_SIZE, UP_TIMES, UP_ATIME, UP_PERM, UP_RENAME = 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80
UP_FORGET, UP_PARENT_TIMES, UP_XATTR, UP_XATTR_RM, UP_EXPLICIT_LOOKUP, UP_INVAL_ATTR = (
    0x100,
    0x200,
    0x400,
    0x800,
    0x1000,
    0x2000,
)
EVENT_CACHE_INVALIDATION = 1


class EventNotify(Body, frozen=True):
    """An event of the management daemon."""

    op: I32
    data: Dict = {}


class CacheInvalidation(Body, frozen=True):
    """Another client has changed an inode.

    Args:
        gfid: in its text form, unlike everywhere else.
        event_type: EVENT_CACHE_INVALIDATION.
        flags: UP_* bits.
        expire_time_attr: seconds for which the new attributes may be kept.
        stat, parent_stat, oldparent_stat: attributes now; zeroed where they are not known.
    """

    gfid: Text
    event_type: U32
    flags: U32
    expire_time_attr: U32 = 0
    stat: OldIatt = ZERO_IATT
    parent_stat: OldIatt = ZERO_IATT
    oldparent_stat: OldIatt = ZERO_IATT
    xdata: Dict = {}


class RecallLease(Body, frozen=True):
    """A lease must be given back; stock's bricks leave `lease_id` (theirs is a transaction's) and `lease_type` null."""

    gfid: Bytes16
    lease_type: U32
    lease_id: Bytes16
    xdata: Dict = {}


class Statedump(Body, frozen=True):
    """The client that is process `pid` shall write a statedump."""

    pid: U32


class InodelkContention(Body, frozen=True):
    """Somebody waits for an inodelk that the client holds."""

    gfid: Bytes16
    flock: OldFlock
    pid: U32
    domain: Text
    xdata: Dict = {}


class EntrylkContention(Body, frozen=True):
    """Somebody waits for an entrylk that the client holds."""

    gfid: Bytes16
    type: U32
    pid: U32
    name: Text
    domain: Text
    xdata: Dict = {}


BODIES: dict[int, type[Body]] = {
    programs.CBK_EVENT_NOTIFY: EventNotify,
    programs.CBK_CACHE_INVALIDATION: CacheInvalidation,
    programs.CBK_RECALL_LEASE: RecallLease,
    programs.CBK_STATEDUMP: Statedump,
    programs.CBK_INODELK_CONTENTION: InodelkContention,
    programs.CBK_ENTRYLK_CONTENTION: EntrylkContention,
}
"""The body's class by procedure number; a procedure that is not here has none."""

_PROC = {cls: proc for proc, cls in BODIES.items()}


def body_of(told: object) -> Body | None:
    """Return the callback that tells a client what came up with Event.UPCALL (see `glustx.upcall`); None for what no
    callback can tell."""
    if isinstance(told, upcall.InodelkContention):
        return InodelkContention(told.gfid, told.flock, told.pid, _text(told.domain))
    if isinstance(told, upcall.EntrylkContention):
        return EntrylkContention(told.gfid, told.type, told.pid, _text(told.name), _text(told.domain))
    if isinstance(told, upcall.LeaseRecall):
        return RecallLease(told.gfid, told.type, told.id)
    return told if isinstance(told, Body) else None


def told_by(body: Body | None) -> object:
    """Return what a callback tells this process as a message of `glustx.upcall`; other bodies as they are."""
    if isinstance(body, InodelkContention):
        return upcall.InodelkContention("", body.gfid, body.flock, body.pid, _bytes(body.domain))
    if isinstance(body, EntrylkContention):
        return upcall.EntrylkContention("", body.gfid, body.type, body.pid, _bytes(body.name), _bytes(body.domain))
    if isinstance(body, RecallLease):
        return upcall.LeaseRecall("", body.gfid, body.lease_type, body.lease_id)
    return body


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def encode_callback(xid: int, what: int | Body) -> bytes:
    """Return a whole callback message, without its record mark.

    Args:
        xid: the server's own counter for this connection.
        what: a body, or the number of a procedure that has none.
    """
    proc, body = (what, b"") if isinstance(what, int) else (_PROC[type(what)], what.encode())
    return encode_call(xid, CALLBACK.number, CALLBACK.version, proc) + body


def decode_callback(proc: int, body: bytes | bytearray | memoryview) -> Body | None:
    """Return the body of a callback, None for a procedure without one; XdrError when the bytes are anything else."""
    cls = BODIES.get(proc)
    if cls is not None:
        return cls.decode(body)
    if proc not in CALLBACK.procedures:
        raise XdrError(f"there is no callback {proc}")
    if len(body):
        raise XdrError(f"callback {CALLBACK.procedure(proc)} with a body of {len(body)} bytes")
    return None
