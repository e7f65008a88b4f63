"""Headers of ONC RPC calls and replies (RFC 5531) and stock's AUTH_GLUSTERFS credentials, both ways.

Pure functions over bytes. Records on the hot path are parsed by precompiled layouts elsewhere; these functions serve
everything else and are what the others are tested against.
"""

from __future__ import annotations

import struct

import msgspec

from glustx.rpc.xdr import Reader, Writer, XdrError
from glustx.values import Caller

# Names and numbers of RFC 5531, sections 8 and 9.
RPC_VERSION = 2
CALL, REPLY = 0, 1
MSG_ACCEPTED, MSG_DENIED = 0, 1
SUCCESS, PROG_UNAVAIL, PROG_MISMATCH, PROC_UNAVAIL, GARBAGE_ARGS, SYSTEM_ERR = 0, 1, 2, 3, 4, 5
RPC_MISMATCH, AUTH_ERROR = 0, 1
AUTH_OK, AUTH_BADCRED, AUTH_REJECTEDCRED, AUTH_BADVERF, AUTH_REJECTEDVERF, AUTH_TOOWEAK = 0, 1, 2, 3, 4, 5
ACCEPT_NAMES = ("SUCCESS", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL", "GARBAGE_ARGS", "SYSTEM_ERR")

AUTH_NULL = 0
AUTH_GLUSTERFS_V1 = 5
AUTH_GLUSTERFS_V2 = 390039
AUTH_GLUSTERFS_V3 = 390040
MAX_AUTH_BYTES = 400

# What a credential of 400 bytes has room for; stock counts the bytes of lk_owner as if each were a group.
_UNITS_V2 = 95
_UNITS_V3 = 91
_V1_GROUPS = 16

_NULL_AUTH = bytes(8)
_CALL = struct.Struct(">6I")
_REPLY = struct.Struct(">6I")


class Credential(msgspec.Struct, frozen=True, gc=False):
    """Who calls and which times to stamp.

    `stamp` and `ctime` (ns since the epoch) are v3's; they are 0 in the others.
    """

    caller: Caller
    stamp: int = 0
    ctime: int = 0


ANONYMOUS = Credential(Caller())


class Call(msgspec.Struct, frozen=True, gc=False):
    """The header of a call. `cred` and `verf` are bodies of at most 400 bytes; the arguments begin at `pos`."""

    xid: int
    prog: int
    vers: int
    proc: int
    flavor: int
    cred: bytes
    verf_flavor: int
    verf: bytes
    pos: int


class ReplyHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a reply; the results begin at `pos`.

    `stat` is an accept_stat when `accepted`, else a reject_stat. `low` and `high` are the versions of a PROG_MISMATCH
    or RPC_MISMATCH; `low` is the auth_stat of an AUTH_ERROR.
    """

    xid: int
    accepted: bool
    stat: int
    pos: int
    low: int = 0
    high: int = 0

    def __str__(self) -> str:
        if self.accepted:
            name = ACCEPT_NAMES[self.stat]
            return f"{name} (versions {self.low} to {self.high})" if self.stat == PROG_MISMATCH else name
        return f"RPC_MISMATCH ({self.low} to {self.high})" if self.stat == RPC_MISMATCH else f"AUTH_ERROR {self.low}"


# -- calls -------------------------------------------------------------------------------------------------------------


def encode_call(xid: int, prog: int, vers: int, proc: int, cred: bytes = _NULL_AUTH) -> bytes:
    """Return the header of a call; the arguments follow it.

    Args:
        xid, prog, vers, proc: unsigned 32-bit numbers.
        cred: flavor, length and body, as the `encode_auth_*` functions return them.
    """
    return _CALL.pack(xid & 0xFFFFFFFF, CALL, RPC_VERSION, prog, vers, proc) + cred + _NULL_AUTH


def parse_call(buf: bytes | bytearray | memoryview, pos: int = 0, end: int | None = None) -> Call:
    """Parse the header of a call; XdrError when it is none, or one of another RPC version."""
    reader = Reader(buf, pos, end)
    xid, kind, rpcvers = reader.u32(), reader.u32(), reader.u32()
    if kind != CALL:
        raise XdrError(f"message {xid} is no call but of type {kind}")
    if rpcvers != RPC_VERSION:
        raise XdrError(f"call {xid} of RPC version {rpcvers}")
    prog, vers, proc = reader.u32(), reader.u32(), reader.u32()
    flavor, cred = reader.u32(), reader.opaque(MAX_AUTH_BYTES)
    verf_flavor, verf = reader.u32(), reader.opaque(MAX_AUTH_BYTES)
    return Call(xid, prog, vers, proc, flavor, cred, verf_flavor, verf, reader.pos)


def message_type(buf: bytes | bytearray | memoryview, pos: int = 0) -> int:
    """Return CALL or REPLY for the message at `pos`; XdrError when it is neither."""
    reader = Reader(buf, pos)
    xid, kind = reader.u32(), reader.u32()
    if kind not in (CALL, REPLY):
        raise XdrError(f"message {xid} is of type {kind}, neither call nor reply")
    return kind


# -- replies -----------------------------------------------------------------------------------------------------------


def encode_reply(xid: int, stat: int = SUCCESS, low: int = 0, high: int = 0) -> bytes:
    """Return the header of an accepted reply; after SUCCESS the results follow it.

    Args:
        xid: the call's.
        stat: an accept_stat.
        low, high: versions that are offered, for PROG_MISMATCH only (stock sends zeroes).
    """
    header = _REPLY.pack(xid, REPLY, MSG_ACCEPTED, AUTH_NULL, 0, stat)
    return header + struct.pack(">II", low, high) if stat == PROG_MISMATCH else header


def encode_denied(xid: int, stat: int = AUTH_ERROR, low: int = AUTH_TOOWEAK, high: int = 0) -> bytes:
    """Return a denied reply: AUTH_ERROR with its auth_stat in `low`, or RPC_MISMATCH with two versions."""
    words = (xid, REPLY, MSG_DENIED, stat, low)
    return struct.pack(">6I", *words, high) if stat == RPC_MISMATCH else struct.pack(">5I", *words)


def parse_reply(buf: bytes | bytearray | memoryview, pos: int = 0, end: int | None = None) -> ReplyHeader:
    """Parse the header of a reply; XdrError when it is none."""
    reader = Reader(buf, pos, end)
    xid, kind, reply_stat = reader.u32(), reader.u32(), reader.u32()
    if kind != REPLY:
        raise XdrError(f"message {xid} is no reply but of type {kind}")
    if reply_stat == MSG_DENIED:
        stat, low = reader.u32(), reader.u32()
        if stat not in (RPC_MISMATCH, AUTH_ERROR):
            raise XdrError(f"reply {xid} is denied with {stat}")
        high = reader.u32() if stat == RPC_MISMATCH else 0
        return ReplyHeader(xid, False, stat, reader.pos, low, high)
    if reply_stat != MSG_ACCEPTED:
        raise XdrError(f"reply {xid} is neither accepted nor denied but {reply_stat}")
    reader.u32()  # the verifier says nothing in any flavor that is used here
    reader.opaque(MAX_AUTH_BYTES)
    stat = reader.u32()
    if stat > SYSTEM_ERR:
        raise XdrError(f"reply {xid} has accept_stat {stat}")
    low, high = (reader.u32(), reader.u32()) if stat == PROG_MISMATCH else (0, 0)
    return ReplyHeader(xid, True, stat, reader.pos, low, high)


# -- credentials -------------------------------------------------------------------------------------------------------


def encode_auth_null() -> bytes:
    """Return the credential of nobody in particular."""
    return _NULL_AUTH


def encode_auth_v1(caller: Caller) -> bytes:
    """Return an AUTH_GLUSTERFS v1 credential: 16 groups, and 8 bytes of lk_owner, which is read as a little-endian
    number."""
    owner = int.from_bytes(_owner_of(caller)[:8], "little")
    groups = caller.groups[:_V1_GROUPS]
    writer = Writer().u64(owner).u32(caller.pid & 0xFFFFFFFF).u32(caller.uid).u32(caller.gid).u32(len(groups))
    for group in groups + (0,) * (_V1_GROUPS - len(groups)):
        writer.u32(group)
    return _auth(AUTH_GLUSTERFS_V1, writer)


def encode_auth_v2(caller: Caller) -> bytes:
    """Return an AUTH_GLUSTERFS v2 credential: what stock sends until a DUMP has named program 400.

    Groups that do not fit are left out; XdrError when lk_owner alone does not fit.
    """
    owner = _owner_of(caller)
    groups = _groups_that_fit(caller, owner, _UNITS_V2)
    writer = Writer().i32(caller.pid).u32(caller.uid).u32(caller.gid).u32(len(groups))
    for group in groups:
        writer.u32(group)
    return _auth(AUTH_GLUSTERFS_V2, writer.opaque(owner))


def encode_auth_v3(caller: Caller, stamp: int = 0, ctime: int = 0) -> bytes:
    """Return an AUTH_GLUSTERFS v3 credential.

    Args:
        caller: groups that do not fit are left out.
        stamp: STAMP_* bits: which times the brick sets to `ctime`.
        ctime: nanoseconds since the epoch.

    Raises XdrError when lk_owner alone does not fit.
    """
    owner = _owner_of(caller)
    groups = _groups_that_fit(caller, owner, _UNITS_V3)
    seconds, nanoseconds = divmod(ctime, 1_000_000_000)
    writer = Writer().i32(caller.pid).u32(caller.uid).u32(caller.gid)
    writer.u32(stamp).u32(nanoseconds).u64(seconds).u32(len(groups))
    for group in groups:
        writer.u32(group)
    return _auth(AUTH_GLUSTERFS_V3, writer.opaque(owner))


def decode_cred(flavor: int, body: bytes, client: str = "") -> Credential:
    """Return who a credential names; a flavor that is not known is nobody in particular, as in stock.

    Args:
        flavor, body: from the call's header.
        client: the session the call came on, for `Caller.client`.

    Raises XdrError for a body that its flavor does not explain.
    """
    if flavor not in (AUTH_GLUSTERFS_V1, AUTH_GLUSTERFS_V2, AUTH_GLUSTERFS_V3):
        return Credential(Caller(client=client))
    if len(body) > MAX_AUTH_BYTES:
        raise XdrError(f"a credential of {len(body)} bytes")
    reader = Reader(body)
    if flavor == AUTH_GLUSTERFS_V1:
        owner = reader.u64().to_bytes(8, "little")
        pid, uid, gid, count = reader.i32(), reader.u32(), reader.u32(), reader.u32()
        if count > _V1_GROUPS:
            raise XdrError(f"a v1 credential with {count} groups")
        groups = tuple(reader.u32() for _ in range(_V1_GROUPS))[:count]
        reader.done()
        return Credential(Caller(pid, uid, gid, groups, owner, client))
    pid, uid, gid = reader.i32(), reader.u32(), reader.u32()
    stamp = ctime = 0
    if flavor == AUTH_GLUSTERFS_V3:
        stamp, nanoseconds = reader.u32(), reader.u32()
        ctime = reader.u64() * 1_000_000_000 + nanoseconds
    count = reader.u32()
    if count * 4 > reader.left:
        raise XdrError(f"a credential of {len(body)} bytes announces {count} groups")
    groups = tuple(reader.u32() for _ in range(count))
    owner = reader.opaque(MAX_AUTH_BYTES)
    reader.done()
    return Credential(Caller(pid, uid, gid, groups, owner, client), stamp, ctime)


def _owner_of(caller: Caller) -> bytes:
    # Stock's clients fill an lk_owner that nobody set with the pid in host order.
    return caller.lk_owner or (caller.pid & 0xFFFFFFFF).to_bytes(4, "little")


def _groups_that_fit(caller: Caller, owner: bytes, units: int) -> tuple[int, ...]:
    if len(owner) > units:
        raise XdrError(f"an lk_owner of {len(owner)} bytes; a credential has room for {units}")
    return caller.groups[: units - len(owner)]


def _auth(flavor: int, writer: Writer) -> bytes:
    return bytes(Writer().u32(flavor).opaque(bytes(writer)))
