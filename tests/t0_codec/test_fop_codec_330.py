"""Codecs of fop program 330: every fop agrees byte for byte with a second codec on xdrlib3, records of stock come out
as they went in, and cut or random bodies raise XdrError and nothing else."""

from __future__ import annotations

import contextlib
import errno
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx import fops
from glustx.errors import FopError
from glustx.fops import DirEntry, Fop, ReaddirReply, Reply
from glustx.inode import Fd
from glustx.rpc import message
from glustx.rpc.codec_special import JOIN_LIMIT
from glustx.rpc.program_330 import FOP330
from glustx.rpc.program_330_xdata import Memo330, put_xdata, read_xdata
from glustx.rpc.xdr import XdrError
from glustx.values import IATT_ALL, NULL_GFID, Flock, Iatt
from glustx.xdata import (
    DOUBLE,
    EMPTY,
    GFID_REQ,
    GFUUID,
    IATT,
    INT,
    MDATA,
    PTR,
    SET_CTIME_MDATA,
    STR,
    STR_OLD,
    UINT,
    VIRT_POSTSTAT,
    VIRT_PRESTAT,
    MdataTimes,
    Typed,
    Xdata,
    XdataError,
    gfuuid,
)
from tests.t0_codec.test_fop_codec import (
    CALLER,
    Numbers,
    Oracle,
    gfids,
    i64,
    names,
    reply_of,
    requests,
    same_request,
    u32,
    u64,
)

ON_WIRE = [codec.cls for codec in FOP330.values()]
ALL = pytest.mark.parametrize("cls", ON_WIRE, ids=lambda cls: cls.name)
OPENS = (fops.Open, fops.Opendir, fops.Create)


def test_the_program_ends_where_stocks_does() -> None:
    assert set(FOP330) == set(range(1, 53)) - {49}


# -- what this wire keeps of a value -----------------------------------------------------------------------------------


def kept(value: Any) -> Any:
    """What arrives of a request, a reply or a value in one: the layouts here have less room than version 400's."""
    if isinstance(value, Iatt):
        gone = dict.fromkeys(("attributes", "attributes_mask", "btime", "btime_nsec"), 0)
        cut = {field: getattr(value, field) & 0xFFFFFFFF for field in ("atime", "mtime", "ctime")}
        flags = IATT_ALL if value.mode or value.gfid != NULL_GFID else 0
        return msgspec.structs.replace(value, flags=flags, **gone, **cut)
    if isinstance(value, Xdata):
        return Xdata({key: kept_pair(key, *pair) for key, pair in value.typed()})
    if isinstance(value, tuple):
        return tuple(kept(item) for item in value)
    if isinstance(value, (Reply, DirEntry)):
        changes = {field: kept(getattr(value, field)) for field in value.__struct_fields__}
        if isinstance(value, fops.RchecksumReply):
            changes["strong"] = value.strong[:16].ljust(16, b"\0")
            changes["flags"] = 1 if value.xdata.number(b"fips-mode-rchecksum") else 0
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, Fop):
        skip = ("caller", "ctime", "stamp", "deadline")
        changes = {field: kept(getattr(value, field)) for field in value.__struct_fields__ if field not in skip}
        if isinstance(value, fops.Rchecksum):
            changes["flags"] = 0
        return msgspec.structs.replace(value, **changes)
    return value


def kept_pair(key: bytes, kind: int, value: Any) -> Typed:
    if key == GFID_REQ:
        return Typed(GFUUID, value)
    return Typed(STR_OLD, memory_of(kind, value))


def memory_of(kind: int, value: Any) -> bytes:
    """A value as stock has it in memory, written apart from the codec."""
    if kind == INT:
        return b"%d\0" % value
    if kind == UINT:
        return b"%d\0" % value
    if kind == DOUBLE:
        return f"{value:f}".encode() + b"\0"
    if kind == STR:
        return bytes(value) + b"\0"
    if kind == MDATA:
        seconds = struct.pack("<qqq", value.atime, value.mtime, value.ctime)
        return seconds + struct.pack("<III", value.atime_nsec, value.mtime_nsec, value.ctime_nsec) + bytes(4)
    if kind == IATT:
        return iatt_memory(value)
    return bytes(value)


def iatt_memory(s: Iatt) -> bytes:
    out = struct.pack("<QQQQQ", s.flags, s.ino, s.dev, s.rdev, s.size)
    out += struct.pack("<IIIIQ", s.nlink, s.uid, s.gid, s.blksize, s.blocks)
    out += struct.pack("<qqqq", s.atime, s.mtime, s.ctime, s.btime)
    out += struct.pack("<IIII", s.atime_nsec, s.mtime_nsec, s.ctime_nsec, s.btime_nsec)
    out += struct.pack("<QQ", s.attributes, s.attributes_mask) + s.gfid
    kinds = (0, 0o100000, 0o040000, 0o120000, 0o060000, 0o020000, 0o010000, 0o140000)
    kind = s.mode & 0o170000
    out += struct.pack("<I", kinds.index(kind) if kind in kinds[1:] else 0)
    out += bytes([sum(1 << at for at, bit in enumerate((0o4000, 0o2000, 0o1000)) if s.mode & bit)])
    for shift in (6, 3, 0):  # owner, group, other: read, write, execute from the lowest bit up
        out += bytes([sum(1 << at for at, bit in enumerate((4, 2, 1)) if s.mode >> shift & bit)])
    return out


class Oracle330(Oracle):
    """The table's layouts for version 330 on xdrlib3."""

    def ix(self, *stats: Iatt) -> Oracle330:
        for s in stats:
            self.gfid(s.gfid).words("QQIIII", s.ino, s.dev, s.mode, s.nlink, s.uid, s.gid)
            self.words("QQIQ", s.rdev, s.size, s.blksize, s.blocks)
            for seconds, nanoseconds in (
                (s.atime, s.atime_nsec),
                (s.mtime, s.mtime_nsec),
                (s.ctime, s.ctime_nsec),
            ):
                self.words("II", seconds & 0xFFFFFFFF, nanoseconds)
        return self

    def xd(self, xdata: Xdata) -> Oracle330:
        if not len(xdata):
            self.str(b"")
            return self
        out = struct.pack(">i", len(xdata))
        for key, (kind, value) in xdata.typed():
            data = memory_of(kind, value)
            out += struct.pack(">ii", len(key), len(data)) + key + b"\0" + data
        self.str(out)
        return self


def oracle_call(req: Any, number: Callable[[Fd], int]) -> bytes:
    o = Oracle330()
    cls = type(req)

    def fd() -> Oracle:
        return o.gfid(req.fd.gfid).words("q", number(req.fd))

    def presence(kind: str, name: bytes) -> Oracle:
        return o.words(kind, 1 if name else 0).str(name)

    match req:
        case fops.Rchecksum():
            o.words("qQI", number(req.fd), req.offset, req.size)
        case fops.Fsetattr():
            o.words("q", number(req.fd)).ix(req.stat).words("i", req.valid)
        case fops.Setattr():
            o.gfid(req.loc.gfid).ix(req.stat).words("i", req.valid)
        case fops.Stat() | fops.Statfs() | fops.Opendir() | fops.Getactivelk():
            o.gfid(req.loc.gfid)
        case fops.Readlink():
            o.gfid(req.loc.gfid).words("I", req.size)
        case fops.Mknod():
            o.gfid(req.loc.pargfid).words("QII", req.rdev, req.mode, req.umask).str(req.loc.name)
        case fops.Mkdir():
            o.gfid(req.loc.pargfid).words("II", req.mode, req.umask).str(req.loc.name)
        case fops.Unlink():
            o.gfid(req.loc.pargfid).str(req.loc.name).words("I", req.xflags)
        case fops.Rmdir():
            o.gfid(req.loc.pargfid).words("i", req.xflags).str(req.loc.name)
        case fops.Symlink():
            o.gfid(req.loc.pargfid).str(req.loc.name).words("I", req.umask).str(req.linkname)
        case fops.Rename():
            o.gfid(req.oldloc.pargfid).gfid(req.newloc.pargfid).str(req.oldloc.name).str(req.newloc.name)
        case fops.Link():
            o.gfid(req.oldloc.gfid).gfid(req.newloc.pargfid).str(req.newloc.name)
        case fops.Truncate():
            o.gfid(req.loc.gfid).words("Q", req.offset)
        case fops.Open():
            o.gfid(req.loc.gfid).words("I", req.flags)
        case fops.Read():
            fd().words("QII", req.offset, req.size, req.flags)
        case fops.Write():
            fd().words("QII", req.offset, len(req.data), req.flags).xd(req.xdata)
            return o.raw(req.data)
        case fops.Setxattr() | fops.Xattrop():
            o.gfid(req.loc.gfid).words("I", req.flags).xd(req.xattrs)
        case fops.Fsetxattr() | fops.Fxattrop():
            fd().words("I", req.flags).xd(req.xattrs)
        case fops.Getxattr():
            o.gfid(req.loc.gfid)
            presence("I", req.key)
        case fops.Fgetxattr():
            fd()
            presence("I", req.key)
        case fops.Removexattr():
            o.gfid(req.loc.gfid).str(req.key)
        case fops.Fremovexattr():
            fd().str(req.key)
        case fops.Fsync():
            fd().words("I", req.datasync)
        case fops.Fsyncdir():
            fd().words("i", req.datasync)
        case fops.Access():
            o.gfid(req.loc.gfid).words("I", req.mask)
        case fops.Create():
            o.gfid(req.loc.pargfid).words("III", req.flags, req.mode, req.umask).str(req.loc.name)
        case fops.Ftruncate():
            fd().words("Q", req.offset)
        case fops.Lk():
            fd().words("II", req.cmd, req.type).flk(req.flock)
        case fops.Lookup():
            o.gfid(req.loc.gfid).gfid(req.loc.pargfid).words("I", req.flags).str(req.loc.name)
        case fops.Readdir() | fops.Readdirp():
            fd().words("QI", req.offset, req.size)
        case fops.Inodelk():
            o.gfid(req.loc.gfid).words("II", req.cmd, req.type).flk(req.flock).str(req.domain)
        case fops.Finodelk():
            fd().words("II", req.cmd, req.type).flk(req.flock).str(req.domain)
        case fops.Entrylk():
            o.gfid(req.loc.gfid).words("II", req.cmd, req.type)
            presence("Q", req.basename).str(req.domain)
        case fops.Fentrylk():
            fd().words("II", req.cmd, req.type)
            presence("Q", req.basename).str(req.domain)
        case fops.Fallocate():
            fd().words("IQQ", req.keep_size, req.offset, req.size)
        case fops.Discard() | fops.Zerofill():
            fd().words("QQ", req.offset, req.size)
        case fops.Ipc():
            o.words("i", req.op)
        case fops.Seek():
            fd().words("Qi", req.offset, req.what)
        case fops.Lease():
            o.gfid(req.loc.gfid)
            lease(o, req.lease)
        case fops.Setactivelk():
            o.gfid(req.loc.gfid)
            locks(o, req.locks)
        case fops.Flush() | fops.Fstat() | fops.Release() | fops.Releasedir():
            fd()
        case _:
            raise AssertionError(f"the table here lacks {cls.name}")
    return o.xd(req.xdata).raw(b"")


def lease(o: Oracle, it: Any) -> None:
    o.words("II", it.cmd, it.type).gfid(it.id).words("I", it.flags)


def locks(o: Oracle, them: Any) -> None:
    for lock in them:
        o.words("I", 1).flk(lock.flock).str(lock.client.encode("utf-8", "surrogateescape")).words("I", lock.flags)
    o.words("I", 0)


def oracle_reply(cls: type[Fop], r: Any, number: int) -> bytes:
    o = Oracle330()
    ret = err = 0
    match r:
        case fops.ReadReply():
            ret, err = len(r.data), errno.ENOENT if r.eof else 0
        case fops.WriteReply():
            ret = r.count
        case fops.XattrReply():
            ret = r.size
        case fops.ReadlinkReply():
            ret = len(r.path)
        case fops.ActiveLksReply():
            ret = len(r.locks)
        case ReaddirReply():
            ret, err = len(r.entries), errno.ENOENT if r.eof else 0
    o.words("ii", ret, err)
    match r:
        case fops.ReadReply():
            o.ix(r.stat).words("I", len(r.data)).xd(r.xdata)
            return o.raw(r.data)
        case fops.PrePost() | fops.WriteReply():
            o.ix(r.pre, r.post)
        case fops.LookupReply():
            o.ix(r.stat, r.postparent)
        case fops.AttrReply():
            o.ix(r.stat)
        case fops.EntryReply():
            o.ix(r.stat, r.preparent, r.postparent)
        case fops.RenameReply():
            o.ix(r.stat, r.preoldparent, r.postoldparent, r.prenewparent, r.postnewparent)
        case fops.ReadlinkReply():
            o.ix(r.stat).str(r.path)
        case fops.CreateReply():
            o.ix(r.stat).words("Q", number).ix(r.preparent, r.postparent)
        case fops.StatfsReply():
            o.words("Q" * 11, *msgspec.structs.astuple(r.statfs))
        case fops.XattrReply() | fops.XattropReply():
            o.xd(r.xattrs)
        case ReaddirReply():
            for e in r.entries:
                o.words("IQQII", 1, e.ino, e.off, len(e.name), e.type).str(e.name)
                if cls is fops.Readdirp:
                    o.ix(e.stat or Iatt()).xd(e.xattrs)
            o.words("I", 0)
        case fops.LkReply():
            o.flk(r.flock)
        case fops.SeekReply():
            o.words("Q", r.offset)
        case fops.RchecksumReply():
            o.words("I", r.weak).str(r.strong[:16].ljust(16, b"\0"))
        case fops.LeaseReply():
            lease(o, r.lease)
        case fops.ActiveLksReply():
            locks(o, r.locks)
        case fops.Done():
            if cls in (fops.Open, fops.Opendir):
                o.words("q", number)
        case _:
            raise AssertionError(f"the table here lacks {type(r).__name__}")
    return o.xd(r.xdata).raw(b"")


def call_bytes(req: Fop, number: Callable[[Fd], int]) -> bytes:
    body, payload = FOP330[req.procnum].encode_call(req, number)
    return body if payload is None else body + bytes(payload)


def decode_call(cls: type[Fop], body: bytes, numbers: Numbers, memo: Memo330 | None = None) -> Fop:
    """Decode from the middle of a buffer that goes on behind the body, as a receive buffer does."""
    buf = memoryview(b"junk" + body + bytes(400))
    return FOP330[cls.procnum].decode_call(buf, 4, 4 + len(body), numbers.new, memo or Memo330(), CALLER, 5, 3)


def reply_bytes(cls: type[Fop], reply: Reply, number: int = 0, xid: int = 7) -> bytes:
    return b"".join(bytes(piece) for piece in FOP330[cls.procnum].encode_reply(xid, reply, number))


def decode_reply(cls: type[Fop], body: bytes) -> tuple[Reply, int | None]:
    buf = memoryview(b"junk" + body + bytes(400))
    return FOP330[cls.procnum].decode_reply(buf, 4, 4 + len(body), Memo330())


def without_gfid(req: Fop, numbers: Numbers) -> Fop:
    """These two calls name the fd by its number alone."""
    if not isinstance(req, (fops.Rchecksum, fops.Fsetattr)):
        return req
    return msgspec.structs.replace(req, fd=numbers.new(NULL_GFID, numbers.number(req.fd)))


def carried(value: Any) -> bool:
    """Whether this wire can carry all keys, and knows the type of none but gfid-req."""
    fields = [getattr(value, field, EMPTY) for field in ("xdata", "xattrs")]
    dicts = [x for x in fields if isinstance(x, Xdata)] + [e.xattrs for e in getattr(value, "entries", ())]
    known = (SET_CTIME_MDATA, VIRT_PRESTAT, VIRT_POSTSTAT)
    return all(key and b"\0" not in key and key not in known for x in dicts for key in x)


@ALL
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_calls_agree_with_xdrlib(cls: type[Fop], data: st.DataObject) -> None:
    numbers = Numbers()
    req = data.draw(requests(cls, numbers).filter(carried))
    expected = oracle_call(req, numbers.number)
    assert call_bytes(req, numbers.number) == expected
    got = decode_call(cls, expected, numbers)
    same_request(without_gfid(kept(req), numbers), got, numbers)
    assert (got.caller, got.ctime, got.stamp) == (CALLER, 5, 3)
    # Whatever is cut off is missed; only a WRITE cannot know how much payload there should have been.
    payload = len(req.data) if isinstance(req, fops.Write) else 0
    cut = data.draw(st.integers(0, len(expected) - payload - 1))
    with pytest.raises(XdrError):
        decode_call(cls, expected[:cut], numbers)
    if cls is not fops.Write:
        with pytest.raises(XdrError):
            decode_call(cls, expected + bytes(4), numbers)


@ALL
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_replies_agree_with_xdrlib(cls: type[Fop], data: st.DataObject) -> None:
    reply = data.draw(reply_of(cls).filter(carried))
    number = data.draw(st.integers(0, 2**63 - 1)) if cls in OPENS else 0
    expected = oracle_reply(cls, reply, number)
    record = reply_bytes(cls, reply, number)
    assert record[28:] == expected
    assert record[:28] == Oracle().words("IIIIIII", len(expected) + 24 | 0x80000000, 7, 1, 0, 0, 0, 0).raw(b"")
    got, fd_number = decode_reply(cls, expected)
    assert got == kept(reply) and fd_number == (number if cls in OPENS else None)
    for cut in {8, len(expected) - 1, data.draw(st.integers(0, len(expected) - 1))}:
        with pytest.raises(XdrError):
            decode_reply(cls, expected[:cut])


@ALL
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_random_bodies_raise_only_what_they_may(cls: type[Fop], data: st.DataObject) -> None:
    numbers = Numbers()
    req = data.draw(requests(cls, numbers).filter(carried))
    reply = data.draw(reply_of(cls).filter(carried))
    for whole in (call_bytes(req, numbers.number), reply_bytes(cls, reply)[28:]):
        body = bytearray(data.draw(st.one_of(st.just(whole), st.binary(max_size=400))))
        for _ in range(data.draw(st.integers(1, 3))):
            if len(body) >= 4:
                at = data.draw(st.integers(0, len(body) // 4 - 1)) * 4
                word = data.draw(st.one_of(u32, st.sampled_from([0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])))
                body[at : at + 4] = struct.pack(">I", word)
        with contextlib.suppress(XdrError):
            decode_call(cls, bytes(body), numbers)
        with contextlib.suppress(XdrError, FopError):
            decode_reply(cls, bytes(body))


# The zeroed fields of a failed fop's reply between op_errno and xdata, in bytes.
I3 = 100
FIELDS = {
    **dict.fromkeys(("stat", "fstat"), I3),
    "readlink": I3 + 4,
    **dict.fromkeys(("mknod", "mkdir", "symlink", "link"), 3 * I3),
    **dict.fromkeys(("unlink", "rmdir", "truncate", "write", "fsync", "ftruncate", "setattr", "fsetattr"), 2 * I3),
    **dict.fromkeys(("fallocate", "discard", "zerofill", "lookup"), 2 * I3),
    "rename": 5 * I3,
    **dict.fromkeys(("open", "opendir", "seek"), 8),
    "create": 8 + 3 * I3,
    "read": I3 + 4,
    "statfs": 88,
    **dict.fromkeys(("getxattr", "fgetxattr", "xattrop", "fxattrop", "readdir", "readdirp", "getactivelk"), 4),
    "lk": 32,
    "rchecksum": 8,
    "lease": 28,
}


@ALL
def test_error_replies_are_whole(cls: type[Fop]) -> None:
    for xdata in (None, Xdata({b"k": b"v"})):
        record = FOP330[cls.procnum].encode_error(9, FopError(errno.EDQUOT, "said to people", xdata))
        raw = put_xdata(xdata or EMPTY)
        head = struct.unpack_from(">9I", record)
        assert head == (len(record) - 4 | 0x80000000, 9, 1, 0, 0, 0, 0, 0xFFFFFFFF, errno.EDQUOT)
        assert record[36:] == bytes(FIELDS.get(cls.name, 0)) + raw
        with pytest.raises(FopError) as caught:
            decode_reply(cls, record[28:])
        assert caught.value.errno == errno.EDQUOT
        assert dict(caught.value.xdata or EMPTY) == dict(xdata or EMPTY)


@pytest.mark.parametrize("size", [0, 1, JOIN_LIMIT, JOIN_LIMIT + 1])
@pytest.mark.parametrize("xdata", [EMPTY, Xdata({b"k": b"value"})], ids=["plain", "xdata"])
def test_read_replies_of_all_sizes(size: int, xdata: Xdata) -> None:
    reply = fops.ReadReply(bytes(range(256)) * (size // 256) + b"x" * (size % 256), Iatt(size=size), True, xdata=xdata)
    pieces = FOP330[12].encode_reply(7, reply, 0)
    record = b"".join(pieces)
    assert record[28:] == oracle_reply(fops.Read, reply, 0)
    assert decode_reply(fops.Read, record[28:])[0] == kept(reply)
    # A large payload is not copied on its way out.
    assert (len(pieces) == 2 and pieces[1] is reply.data) == (size > JOIN_LIMIT)


# -- the dictionary ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.dictionaries(names.filter(lambda key: key and b"\0" not in key and key != GFID_REQ), names, max_size=4),
    gfid=gfids,
    other=gfids,
)
def test_the_memo_gives_what_decoding_gives(pairs: dict[bytes, bytes], gfid: bytes, other: bytes) -> None:
    memo = Memo330()
    first = Xdata({**pairs, GFID_REQ: gfuuid(gfid)})
    second = Xdata({**pairs, GFID_REQ: gfuuid(other)})
    plain = Xdata(pairs)
    for xdata in (first, second, plain, first, second, plain):
        raw = put_xdata(xdata)
        got = memo.get(raw)
        assert got == kept(xdata) == read_xdata(raw, 0, len(raw))[0] and got.gfid_req == xdata.gfid_req
    for whole in (put_xdata(first), put_xdata(plain)):
        for cut in range(len(whole)):
            with pytest.raises(XdataError):
                memo.get(whole[:cut])
    # What the memo knows a dictionary by is no dictionary.
    raw = put_xdata(first)
    at = raw.index(b"gfid-req") + 9
    with pytest.raises(XdataError):
        memo.get(raw[:at] + raw[at + 16 :])


def test_a_gfid_req_inside_another_value_is_not_one() -> None:
    memo = Memo330()
    inner = put_xdata(Xdata({GFID_REQ: gfuuid(bytes(range(16)))}))
    for value in (inner, inner.replace(bytes(range(16)), bytes(16)), inner):
        got = memo.get(put_xdata(Xdata({b"a": value, b"b": b"1"})))
        assert got[b"a"] == value and got.gfid_req is None


@settings(max_examples=30, deadline=None)
@given(
    mode=st.sampled_from([0o100000, 0o040000, 0o120000, 0o060000, 0o020000, 0o010000, 0o140000]),
    bits=st.integers(0, 0o7777),
    numbers=st.lists(u64, min_size=8, max_size=8),
    times=st.lists(i64, min_size=4, max_size=4),
    small=st.lists(u32, min_size=8, max_size=8),
    gfid=gfids,
)
def test_attributes_and_times_travel_as_stocks_memory(
    mode: int, bits: int, numbers: list[int], times: list[int], small: list[int], gfid: bytes
) -> None:
    stat = Iatt(gfid, *numbers, *times, *small, mode | bits)
    mdata = MdataTimes(*times[:3], *small[:3])
    sent = Xdata({VIRT_POSTSTAT: stat, SET_CTIME_MDATA: mdata, b"n": -7, b"text": "t", b"bytes": b"b\0c"})
    raw = put_xdata(sent)
    got, end = read_xdata(raw, 0, len(raw))
    assert end == len(raw)
    assert iatt_memory(stat) in raw and memory_of(MDATA, mdata) in raw
    assert got[VIRT_POSTSTAT] == stat and got[SET_CTIME_MDATA] == mdata
    assert got.number(b"n") == -7 and got.text(b"text") == "t" and got[b"bytes"] == b"b\0c"
    assert dict(got.typed())[b"bytes"].type in (PTR, STR_OLD)


def test_what_the_old_dictionary_cannot_hold_is_refused() -> None:
    for bad in (Xdata({b"": b"v"}), Xdata({b"a\0b": b"v"})):
        with pytest.raises(XdrError):
            put_xdata(bad)
    for raw in (
        struct.pack(">Ii", 4, -1),
        struct.pack(">Ii", 4, 1 << 30),
        struct.pack(">Iiii", 12, 1, -1, 0),
        struct.pack(">I", 1 << 31) + bytes(40),
        put_xdata(Xdata({b"k": b"v"}))[:-1],
        put_xdata(Xdata({b"gfid-req": b"short"})),
    ):
        with pytest.raises(XdrError):
            read_xdata(raw, 0, len(raw))


# -- stock's own bytes -------------------------------------------------------------------------------------------------

EMPTY_DICT = struct.pack(">II", 4, 0)
GOLDEN = Path(__file__).parent.parent / "golden" / "wire" / "fops-330.txt"
STOCK = [
    (f"{index}-{words[0].lower()}", *map(bytes.fromhex, words[1:]))
    for index, words in enumerate(line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#"))
]


@pytest.mark.parametrize(("name", "call", "reply"), STOCK, ids=[name for name, *_ in STOCK])
def test_stock_fops_come_out_as_they_went_in(name: str, call: bytes, reply: bytes) -> None:
    header = message.parse_call(call)
    who = message.decode_cred(header.flavor, header.cred)
    assert header.flavor == message.AUTH_GLUSTERFS_V2
    assert (
        message.encode_call(header.xid, header.prog, header.vers, header.proc, message.encode_auth_v2(who.caller))
        == call[: header.pos]
    )
    codec = FOP330[header.proc]
    assert name.endswith(codec.name) and (header.prog, header.vers) == (1298437, 330)
    numbers = Numbers()
    req = decode_call(codec.cls, call[header.pos :], numbers)
    assert same_but_for_null_dicts(call_bytes(req, numbers.number), call[header.pos :])
    answer = message.parse_reply(reply)
    try:
        decoded, number = decode_reply(codec.cls, reply[answer.pos :])
        again = reply_bytes(codec.cls, decoded, number or 0, answer.xid)[4:]
        if codec.cls not in (fops.Read, fops.Readdir, fops.Readdirp):
            reply = reply[:28] + bytes(4) + reply[32:]  # op_errno of a success says nothing
    except FopError as error:
        again = codec.encode_error(answer.xid, error)[4:]
    if codec.cls is fops.Readdirp:
        # `..` of the root comes without a gfid: an entry that must be looked up, whatever attributes it has.
        decoded, _ = decode_reply(codec.cls, again[answer.pos :])
        assert decoded == decode_reply(codec.cls, reply[answer.pos :])[0]
    else:
        assert same_but_for_null_dicts(again, reply)


def same_but_for_null_dicts(ours: bytes, stock: bytes) -> bool:
    """Stock writes a dictionary without pairs as four zero bytes in an opaque or as none; we always as none."""
    return ours == stock or (stock.endswith(EMPTY_DICT) and ours == stock[:-8] + bytes(4))


def test_the_captures_cover_the_program() -> None:
    seen = {name.partition("-")[2] for name, *_ in STOCK}
    # Stock's client sends none of these by itself.
    unseen = {"fentrylk", "lease", "getactivelk", "setactivelk"}
    assert seen == {cls.name for cls in ON_WIRE} - unseen


def test_a_flock_of_a_lock_list_is_stocks() -> None:
    lock = fops.ActiveLock(Flock(1, 0, 5, 10, 77, b"owner"), "client", 3)
    body = call_bytes(fops.Setactivelk(fops.Loc(gfid=b"g" * 16), (lock,)), lambda fd: 0)
    assert body == b"g" * 16 + struct.pack(">IIIQQII", 1, 1, 0, 5, 10, 77, 5) + b"owner\0\0\0" + struct.pack(
        ">I", 6
    ) + b"client\0\0" + struct.pack(">III", 3, 0, 0)
