"""Codecs of fop program 400: what is encoded decodes to the same, hot fops agree byte for byte with a second codec on
xdrlib3, records of stock come out as they went in, and cut or random bodies raise XdrError and nothing else."""

from __future__ import annotations

import contextlib
import errno
import struct
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import xdrlib3
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx import fops
from glustx.errors import FopError
from glustx.fops import FOPS, DirEntry, Fop, ReaddirReply, ReadReply, Reply
from glustx.inode import Fd
from glustx.rpc import message
from glustx.rpc.codec import compile_codec
from glustx.rpc.codec_special import FOP400, JOIN_LIMIT
from glustx.rpc.xdr import XdrError
from glustx.values import NULL_GFID, ActiveLock, Caller, Flock, Iatt, LeaseInfo, Loc, Statvfs
from glustx.xdata import (
    DOUBLE,
    EMPTY,
    GFID_REQ,
    GFUUID,
    IATT,
    INT,
    MDATA,
    NULL_RAW,
    PTR,
    STR,
    STR_OLD,
    UINT,
    MdataTimes,
    Typed,
    Xdata,
    XdataError,
    gfuuid,
)
from glustx.xdata_memo import XdataMemo

CLIENT = "client-of-the-test"
CALLER = Caller(client=CLIENT)
ON_WIRE = [cls for cls in FOPS.values() if cls.procnum >= 0]
ALL = pytest.mark.parametrize("cls", ON_WIRE, ids=lambda cls: cls.name)

u32 = st.integers(0, 2**32 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
gfids = st.binary(min_size=16, max_size=16)
names = st.binary(max_size=40)
iatts = st.builds(
    Iatt,
    gfid=gfids,
    **dict.fromkeys(("flags", "ino", "dev", "rdev", "size", "blocks", "attributes", "attributes_mask"), u64),
    **dict.fromkeys(("atime", "mtime", "ctime", "btime"), i64),
    **dict.fromkeys(("atime_nsec", "mtime_nsec", "ctime_nsec", "btime_nsec"), u32),
    **dict.fromkeys(("nlink", "uid", "gid", "blksize", "mode"), u32),
)
typed = st.one_of(
    st.builds(Typed, st.just(INT), i64),
    st.builds(Typed, st.just(UINT), u64),
    st.builds(Typed, st.just(DOUBLE), st.floats(allow_nan=False)),
    st.builds(Typed, st.just(STR), st.binary(max_size=20).filter(lambda data: not data.endswith(b"\0"))),
    st.builds(Typed, st.sampled_from([PTR, STR_OLD]), st.binary(max_size=20)),
    st.builds(Typed, st.just(GFUUID), gfids),
    st.builds(Typed, st.just(IATT), iatts),
    st.builds(Typed, st.just(MDATA), st.builds(MdataTimes, i64, i64, i64, u32, u32, u32)),
)
dicts = st.dictionaries(names.filter(lambda key: key != GFID_REQ), typed, max_size=4)
xdatas = st.one_of(
    st.just(EMPTY),
    dicts.map(Xdata),
    st.builds(lambda pairs, gfid: Xdata({**pairs, GFID_REQ: gfuuid(gfid)}), dicts, gfids),
)
flocks = st.builds(Flock, u32, u32, u64, u64, u32, st.binary(max_size=24))
locks = st.builds(ActiveLock, flocks, st.text(max_size=20).map(str), u32)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "u32": u32,
    "i32": i32,
    "u64": u64,
    "i64": i64,
    "op_ret": st.integers(0, 2**31 - 1),
    "str": names,
    "opaque": names,
    "presence-str": names,
    "presence64-str": names,
    "payload": st.binary(max_size=100),
}
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    Iatt: iatts,
    Flock: flocks,
    LeaseInfo: st.builds(LeaseInfo, u32, u32, gfids, u32),
    Statvfs: st.builds(Statvfs, *[u64] * 11),
    Xdata: xdatas,
    tuple[ActiveLock, ...]: st.lists(locks, max_size=3).map(tuple),
    bool: st.booleans(),
}


class Numbers:
    """Both ends' idea of which fd has which number."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {}
        self.fds: list[Fd] = []

    def new(self, gfid: bytes, number: int) -> Fd:
        fd = Fd(gfid, 2)
        self.of[id(fd)] = number
        self.fds.append(fd)
        return fd

    def number(self, fd: Fd) -> int:
        return self.of[id(fd)]


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    if typing.get_origin(hint) is typing.Annotated:
        return FIELDS[typing.get_args(hint)[1]]
    return VALUES[hint]


@st.composite
def requests(draw: st.DrawFn, cls: type[Fop], numbers: Numbers) -> Fop:
    """A request of `cls`; what does not travel (a Loc's path, the rest of a Loc) is left out."""
    hints = typing.get_type_hints(cls, include_extras=True)
    values: dict[str, Any] = {}
    for field in cls.__struct_fields__:
        if field in Fop.__struct_fields__:
            continue
        if hints[field] is Loc:
            parts = [part for word, _, part in (word.partition(".") for word in cls.wire) if word == field]
            kinds = {"gfid": gfids, "pargfid": gfids, "name": names}
            values[field] = Loc(**{part or "gfid": draw(kinds[part or "gfid"]) for part in parts})
        elif hints[field] is Fd:
            values[field] = numbers.new(draw(gfids), draw(i64))
        else:
            values[field] = draw(strategy(hints[field]))
    return cls(**values, xdata=draw(xdatas))


@st.composite
def replies(draw: st.DrawFn, cls: type[Reply]) -> Reply:
    if cls is ReadReply:
        return ReadReply(draw(FIELDS["payload"]), draw(iatts), draw(st.booleans()), xdata=draw(xdatas))
    hints = typing.get_type_hints(cls, include_extras=True)
    return cls(**{field: draw(strategy(hints[field])) for field in cls.__struct_fields__})


def entries(plus: bool) -> st.SearchStrategy[tuple[DirEntry, ...]]:
    if not plus:
        one = st.builds(DirEntry, u64, u64, u32, names)
    else:
        known = iatts.filter(lambda stat: stat.gfid != NULL_GFID)
        make = lambda ino, off, kind, name, stat, xattrs: DirEntry(  # noqa: E731
            ino, off, kind, name, stat, xattrs, stat.gfid if stat else NULL_GFID
        )
        one = st.builds(make, u64, u64, u32, names, st.one_of(st.none(), known), xdatas)
    return st.lists(one, max_size=4).map(tuple)


def reply_of(cls: type[Fop]) -> st.SearchStrategy[Reply]:
    if cls.reply is ReaddirReply:
        return st.builds(ReaddirReply, entries(cls is fops.Readdirp), st.booleans(), xdata=xdatas)
    return replies(cls.reply)


def call_bytes(req: Fop, number: Callable[[Fd], int]) -> bytes:
    body, payload = FOP400[req.procnum].encode_call(req, number)
    return body if payload is None else body + bytes(payload)


def reply_bytes(cls: type[Fop], reply: Reply, number: int = 0, xid: int = 7) -> bytes:
    return b"".join(bytes(piece) for piece in FOP400[cls.procnum].encode_reply(xid, reply, number))


def decode_call(cls: type[Fop], body: bytes, numbers: Numbers, caller: Caller = CALLER) -> Fop:
    """Decode from the middle of a buffer that goes on behind the body, as a receive buffer does."""
    buf = memoryview(b"junk" + body + NULL_RAW * 30)
    return FOP400[cls.procnum].decode_call(buf, 4, 4 + len(body), numbers.new, XdataMemo(), caller, 5, 3)


def decode_reply(cls: type[Fop], body: bytes) -> tuple[Reply, int | None]:
    buf = memoryview(b"junk" + body + NULL_RAW * 30)
    return FOP400[cls.procnum].decode_reply(buf, 4, 4 + len(body), XdataMemo())


def same_request(sent: Fop, got: Fop, numbers: Numbers) -> None:
    assert type(sent) is type(got)
    for field in type(sent).__struct_fields__:
        if field in ("caller", "ctime", "stamp", "deadline"):
            continue
        one, other = getattr(sent, field), getattr(got, field)
        if isinstance(one, Fd):
            assert isinstance(other, Fd)
            if field in sent.wire or f"{field}.remote" in sent.wire:
                assert (one.gfid, numbers.number(one)) == (other.gfid, numbers.number(other))
            else:
                assert other.client == CLIENT and other.directory == isinstance(sent, fops.Opendir)
        else:
            assert one == other, field


# -- rounds ------------------------------------------------------------------------------------------------------------


@ALL
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_call_round(cls: type[Fop], data: st.DataObject) -> None:
    numbers = Numbers()
    req = data.draw(requests(cls, numbers))
    body = call_bytes(req, numbers.number)
    got = decode_call(cls, body, numbers)
    same_request(req, got, numbers)
    assert (got.caller, got.ctime, got.stamp) == (CALLER, 5, 3)
    # Whatever is cut off is missed; only a WRITE cannot know how much payload there should have been.
    payload = len(req.data) if isinstance(req, fops.Write) else 0
    cut = data.draw(st.integers(0, len(body) - payload - 1))
    with pytest.raises(XdrError):
        decode_call(cls, body[:cut], numbers)
    if cls is not fops.Write:
        with pytest.raises(XdrError):
            decode_call(cls, body + bytes(4), numbers)


@ALL
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_reply_round(cls: type[Fop], data: st.DataObject) -> None:
    reply = data.draw(reply_of(cls))
    opens = cls in (fops.Open, fops.Opendir, fops.Create)
    number = data.draw(st.integers(0, 2**63 - 1)) if opens else 0
    record = reply_bytes(cls, reply, number)
    assert struct.unpack_from(">I", record)[0] == len(record) - 4 | 0x80000000
    header = message.parse_reply(record, 4)
    assert (header.xid, header.accepted, header.stat, header.pos) == (7, True, 0, 28)
    body = record[28:]
    got, fd_number = decode_reply(cls, body)
    assert got == reply
    assert fd_number == (number if opens else None)
    for cut in {8, 12, len(body) - 1, data.draw(st.integers(0, len(body) - 1))} & set(range(len(body))):
        with pytest.raises(XdrError):
            decode_reply(cls, body[:cut])


@ALL
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_random_bodies_raise_only_what_they_may(cls: type[Fop], data: st.DataObject) -> None:
    # A true body with a few words overwritten gets further in than noise does.
    numbers = Numbers()
    req = data.draw(requests(cls, numbers))
    for whole in (call_bytes(req, numbers.number), reply_bytes(cls, data.draw(reply_of(cls)))[28:]):
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


# What follows op_ret, op_errno and xdata in each reply: bytes, from the reply column of the protocol's table.
IX = 148
TAIL = {
    **dict.fromkeys(("stat", "fstat", "icreate"), IX),
    "readlink": IX + 4,
    **dict.fromkeys(("mknod", "mkdir", "symlink", "link", "put", "copy_file_range"), 3 * IX),
    **dict.fromkeys(("unlink", "rmdir", "truncate", "write", "fsync", "ftruncate", "setattr", "fsetattr"), 2 * IX),
    **dict.fromkeys(("fallocate", "discard", "zerofill", "namelink", "lookup"), 2 * IX),
    "rename": 5 * IX,
    **dict.fromkeys(("open", "opendir", "seek"), 8),
    "create": 8 + 3 * IX,
    "read": IX + 4,
    "statfs": 11 * 8,
    **dict.fromkeys(("getxattr", "fgetxattr", "xattrop", "fxattrop"), 12 + 2 * IX),
    "lk": 4 + 4 + 8 + 8 + 4 + 4,
    **dict.fromkeys(("readdir", "readdirp", "getactivelk"), 4),
    "rchecksum": 12,
    "lease": 4 + 4 + 16 + 4,
}


# The same by a field's wire type, for fops that stock does not have and no table of stock's can tell about.
SIZE = {
    **{
        "op_ret": 0,
        "u32": 4,
        "i32": 4,
        "u64": 8,
        "i64": 8,
        "str": 4,
        "opaque": 4,
        "presence-str": 4,
        "presence64-str": 4,
    },
    **{Iatt: IX, Flock: 32, LeaseInfo: 28, Statvfs: 88, Xdata: 4, tuple[ActiveLock, ...]: 4},
}


def tail_of(cls: type[Fop]) -> int:
    if cls.gf_fop < fops.OWN_FIRST:
        return TAIL.get(cls.name, 0)
    hints = typing.get_type_hints(cls.reply, include_extras=True)
    kinds = [hints[field] for field in cls.reply.__struct_fields__ if field != "xdata"]
    return sum(
        SIZE[typing.get_args(kind)[1] if typing.get_origin(kind) is typing.Annotated else kind] for kind in kinds
    )


@ALL
def test_error_replies_are_whole(cls: type[Fop]) -> None:
    for xdata, raw in ((None, NULL_RAW), (Xdata({b"k": 1}), Xdata({b"k": 1}).raw)):
        record = FOP400[cls.procnum].encode_error(9, FopError(errno.EDQUOT, "said to people", xdata))
        assert struct.unpack_from(">9I", record) == (
            len(record) - 4 | 0x80000000, 9, 1, 0, 0, 0, 0, 0xFFFFFFFF, errno.EDQUOT
        )  # fmt: skip
        rest = record[36:]
        tail = tail_of(cls)
        assert len(rest) == tail + len(raw)
        if cls is fops.Read:
            assert rest == bytes(tail) + raw
        elif "getxattr" in cls.name or "xattrop" in cls.name:
            assert rest == raw + NULL_RAW + bytes(2 * IX)
        else:
            assert rest == raw + bytes(tail)
        with pytest.raises(FopError) as caught:
            decode_reply(cls, record[28:])
        assert caught.value.errno == errno.EDQUOT and caught.value.xdata == xdata


# -- the dictionary ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(pairs=dicts, gfid=gfids, other=gfids)
def test_the_memo_gives_what_decoding_gives(pairs: dict[bytes, Typed], gfid: bytes, other: bytes) -> None:
    memo = XdataMemo()
    first = Xdata({**pairs, GFID_REQ: gfuuid(gfid)})
    second = Xdata({**pairs, GFID_REQ: gfuuid(other)})
    plain = Xdata(pairs)
    for xdata in (first, second, plain, first, second, plain):
        got = memo.get(xdata.raw)
        assert got == xdata and got.raw == xdata.raw and got.gfid_req == xdata.gfid_req
    for whole in (first, plain):
        for cut in range(len(whole.raw)):
            with pytest.raises(XdataError):
                memo.get(whole.raw[:cut])
    # What the memo knows a dictionary by is no dictionary.
    at = first.raw.index(b"gfid-req") + 16
    with pytest.raises(XdataError):
        memo.get(first.raw[:at] + first.raw[at + 16 :])


def test_a_gfid_req_inside_another_value_is_not_one() -> None:
    memo = XdataMemo()
    inner = Xdata({GFID_REQ: gfuuid(bytes(range(16)))}).raw
    tricky = Xdata({b"a": inner, b"b": 1})
    changed = Xdata({b"a": inner.replace(bytes(range(16)), bytes(16)), b"b": 1})
    for xdata in (tricky, changed, tricky):
        got = memo.get(xdata.raw)
        assert got == xdata and got.gfid_req is None


def test_dictionaries_that_are_none() -> None:
    good = Xdata({b"k": 1}).raw
    for bad in (
        good[:11],
        good + b"\0",
        struct.pack(">IiI", 0, -1, 1),
        struct.pack(">IiI", 0, 5000, 5000) + bytes(5000 * 12),
        struct.pack(">IiI", 0, 1, 0x7FFFFFFF) + bytes(40),
        good.replace(struct.pack(">I", INT), struct.pack(">I", 0)),
        good.replace(struct.pack(">I", INT), struct.pack(">I", 10)),
        good.replace(b"\0\0\0\2k\0\0\0", b"\0\0\0\x09gfid-req\0\0\0\0"),  # a number, not 16 bytes
    ):
        with pytest.raises(XdataError):
            XdataMemo().get(bad)


# -- a second codec, written from the protocol's table -----------------------------------------------------------------


class Oracle(xdrlib3.Packer):
    """Packs the layouts of the table with xdrlib3; shares nothing with the codecs but the values."""

    def words(self, kinds: str, *values: int) -> Oracle:
        for kind, value in zip(kinds, values, strict=True):
            {"I": self.pack_uint, "i": self.pack_int, "Q": self.pack_uhyper, "q": self.pack_hyper}[kind](value)
        return self

    def gfid(self, gfid: bytes) -> Oracle:
        self.pack_fopaque(16, gfid)
        return self

    def str(self, data: bytes) -> Oracle:
        self.pack_opaque(data)
        return self

    def ix(self, *stats: Iatt) -> Oracle:
        for s in stats:
            self.gfid(s.gfid).words("QQQQQQ", s.flags, s.ino, s.dev, s.rdev, s.size, s.blocks)
            self.words("QQqqqq", s.attributes, s.attributes_mask, s.atime, s.mtime, s.ctime, s.btime)
            self.words("IIII", s.atime_nsec, s.mtime_nsec, s.ctime_nsec, s.btime_nsec)
            self.words("IIIII", s.nlink, s.uid, s.gid, s.blksize, s.mode)
        return self

    def xd(self, xdata: Xdata) -> Oracle:
        if not len(xdata):
            return self.words("IiI", 0, -1, 0)
        pairs = Oracle()
        for key, (kind, value) in xdata.typed():
            pairs.str(key + b"\0").words("i", kind)
            if kind == INT:
                pairs.words("q", value)
            elif kind == UINT:
                pairs.words("Q", value)
            elif kind == DOUBLE:
                pairs.pack_double(value)
            elif kind == GFUUID:
                pairs.gfid(value)
            elif kind == IATT:
                pairs.ix(value)
            elif kind == MDATA:
                pairs.words("qqq", value.atime, value.mtime, value.ctime)
                pairs.words("III", value.atime_nsec, value.mtime_nsec, value.ctime_nsec)
            else:
                pairs.str(value + b"\0" if kind == STR else value)
        packed = pairs.get_buffer()
        self.words("IiI", len(packed), len(xdata), len(xdata))
        self.pack_fopaque(len(packed), packed)
        return self

    def flk(self, f: Flock) -> Oracle:
        return self.words("IIQQI", f.type, f.whence, f.start, f.len, f.pid).str(f.lk_owner)

    def raw(self, data: bytes) -> bytes:
        return bytes(self.get_buffer()) + data


def oracle_call(req: Any, number: Callable[[Fd], int]) -> bytes:
    o = Oracle()

    def fd() -> Oracle:
        return o.gfid(req.fd.gfid).words("q", number(req.fd))

    match req:
        case fops.Read():
            fd().words("QII", req.offset, req.size, req.flags)
        case fops.Write():
            fd().words("QII", req.offset, len(req.data), req.flags).xd(req.xdata)
            return o.raw(req.data)
        case fops.Zerofill():
            fd().words("QQ", req.offset, req.size)
        case fops.Lookup():
            o.gfid(req.loc.gfid).gfid(req.loc.pargfid).words("I", req.flags).str(req.loc.name)
        case fops.Stat():
            o.gfid(req.loc.gfid)
        case fops.Fstat():
            fd()
        case fops.Create():
            o.gfid(req.loc.pargfid).words("III", req.flags, req.mode, req.umask).str(req.loc.name)
        case fops.Open():
            o.gfid(req.loc.gfid).words("I", req.flags)
        case fops.Inodelk():
            o.gfid(req.loc.gfid).words("II", req.cmd, req.type).flk(req.flock).str(req.domain)
        case fops.Finodelk():
            fd().words("II", req.cmd, req.type).flk(req.flock).str(req.domain)
        case fops.Xattrop():
            o.gfid(req.loc.gfid).words("I", req.flags).xd(req.xattrs)
        case fops.Fxattrop():
            fd().words("I", req.flags).xd(req.xattrs)
        case fops.Readdirp():
            fd().words("QI", req.offset, req.size)
    return o.xd(req.xdata).raw(b"")


def oracle_reply(cls: type[Fop], r: Any, number: int) -> bytes:
    o = Oracle()
    if cls is fops.Read:
        o.words("ii", len(r.data), errno.ENOENT if r.eof else 0).ix(r.stat).words("I", len(r.data)).xd(r.xdata)
        return o.raw(r.data)
    ret = r.count if cls is fops.Write else len(r.entries) if cls is fops.Readdirp else 0
    o.words("ii", ret, errno.ENOENT if cls is fops.Readdirp and r.eof else 0).xd(r.xdata)
    if cls in (fops.Write, fops.Zerofill):
        o.ix(r.pre, r.post)
    elif cls is fops.Lookup:
        o.ix(r.stat, r.postparent)
    elif cls in (fops.Stat, fops.Fstat):
        o.ix(r.stat)
    elif cls is fops.Create:
        o.ix(r.stat).words("Q", number).ix(r.preparent, r.postparent)
    elif cls is fops.Open:
        o.words("q", number)
    elif cls in (fops.Xattrop, fops.Fxattrop):
        o.xd(r.xattrs).ix(Iatt(), Iatt())
    elif cls is fops.Readdirp:
        for e in r.entries:
            o.words("IQQII", 1, e.ino, e.off, len(e.name), e.type).str(e.name).ix(e.stat or Iatt()).xd(e.xattrs)
        o.words("I", 0)
    return o.raw(b"")


HOT = [
    fops.Read, fops.Write, fops.Zerofill, fops.Lookup, fops.Stat, fops.Fstat, fops.Create, fops.Open, fops.Inodelk,
    fops.Finodelk, fops.Xattrop, fops.Fxattrop, fops.Readdirp,
]  # fmt: skip


@pytest.mark.parametrize("cls", HOT, ids=lambda cls: cls.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_hot_fops_agree_with_xdrlib(cls: type[Fop], data: st.DataObject) -> None:
    numbers = Numbers()
    req = data.draw(requests(cls, numbers))
    expected = oracle_call(req, numbers.number)
    assert call_bytes(req, numbers.number) == expected
    same_request(req, decode_call(cls, expected, numbers), numbers)
    reply = data.draw(reply_of(cls))
    number = data.draw(st.integers(0, 2**63 - 1)) if cls in (fops.Open, fops.Create) else 0
    expected = oracle_reply(cls, reply, number)
    record = reply_bytes(cls, reply, number)
    assert record[28:] == expected
    assert record[:28] == Oracle().words("IIIIIII", len(expected) + 24 | 0x80000000, 7, 1, 0, 0, 0, 0).raw(b"")
    assert decode_reply(cls, expected) == (reply, number if cls in (fops.Open, fops.Create) else None)


@pytest.mark.parametrize("size", [0, 1, JOIN_LIMIT, JOIN_LIMIT + 1, 1 << 20])
@pytest.mark.parametrize("xdata", [EMPTY, Xdata({b"k": b"value"})], ids=["plain", "xdata"])
def test_read_replies_of_all_sizes(size: int, xdata: Xdata) -> None:
    reply = ReadReply(bytes(range(256)) * (size // 256) + b"x" * (size % 256), Iatt(size=size), True, xdata=xdata)
    pieces = FOP400[12].encode_reply(7, reply, 0)
    record = b"".join(pieces)
    assert record[28:] == oracle_reply(fops.Read, reply, 0)
    assert decode_reply(fops.Read, record[28:])[0] == reply
    # A large payload is not copied on its way out.
    assert (len(pieces) == 2 and pieces[1] is reply.data) == (size > JOIN_LIMIT)


def test_presence_flags() -> None:
    for cls, width in ((fops.Getxattr, 4), (fops.Entrylk, 8)):
        more = {"domain": b"d", "cmd": 0, "type": 1} if cls is fops.Entrylk else {}
        field = "basename" if cls is fops.Entrylk else "key"
        at = 24 if cls is fops.Entrylk else 16
        for name, flag in ((b"", 0), (b"five5", 1)):
            body = call_bytes(cls(loc=Loc(gfid=b"g" * 16), **{field: name}, **more), lambda fd: 0)
            assert int.from_bytes(body[at : at + width], "big") == flag
            assert body[at + width : at + width + 4] == struct.pack(">I", len(name))


def test_an_anonymous_fd_travels_as_minus_two() -> None:
    fd = Fd(b"g" * 16, 2, anonymous=True)
    body = call_bytes(fops.Fstat(fd), lambda fd: -2)
    assert body == b"g" * 16 + b"\xff" * 7 + b"\xfe" + NULL_RAW


# -- stock's own bytes -------------------------------------------------------------------------------------------------

STOCK = [
    (f"{index}-{words[0].lower()}", *map(bytes.fromhex, words[1:]))
    for index, words in enumerate(
        line.split()
        for line in (Path(__file__).parent.parent / "golden" / "wire" / "fops.txt").read_text().splitlines()
        if not line.startswith("#")
    )
]


def same_but_for_null_dicts(ours: bytes, stock: bytes) -> bool:
    """Stock writes an absent dictionary as a NULL one or an empty one (count -1 or 0); we always write it as NULL."""
    if len(ours) != len(stock):
        return False
    words = range(0, len(ours) & ~3, 4)
    differing = [at for at in words if ours[at : at + 4] != stock[at : at + 4]]
    return ours[len(ours) & ~3 :] == stock[len(ours) & ~3 :] and all(
        ours[at - 4 : at + 8] == NULL_RAW and stock[at - 4 : at + 8] == bytes(12) for at in differing
    )


@pytest.mark.parametrize(("name", "call", "reply"), STOCK, ids=[name for name, *_ in STOCK])
def test_stock_fops_come_out_as_they_went_in(name: str, call: bytes, reply: bytes) -> None:
    header = message.parse_call(call)
    who = message.decode_cred(header.flavor, header.cred)
    codec = FOP400[header.proc]
    assert name.endswith(codec.name) and (header.prog, header.vers) == (1298437, 400)
    numbers = Numbers()
    req = decode_call(codec.cls, call[header.pos :], numbers, who.caller)
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
        assert decoded == decode_reply(codec.cls, reply[answer.pos :])[0] and len(again) == len(reply)
    else:
        assert same_but_for_null_dicts(again, reply)


def test_the_captures_cover_the_program() -> None:
    seen = {name.partition("-")[2] for name, *_ in STOCK}
    # Stock's client sends none of these by itself, or (NAMELINK, ICREATE) must never be sent.
    unseen = {"fentrylk", "lease", "getactivelk", "setactivelk", "icreate", "namelink", "put"}
    assert seen == {cls.name for cls in ON_WIRE if cls.gf_fop < fops.OWN_FIRST} - unseen


@pytest.fixture
def declared() -> Iterator[None]:
    """Whatever a test declares is gone after it."""
    before = dict(FOPS)
    yield
    FOPS.clear()
    FOPS.update(before)


@pytest.mark.usefixtures("declared")
def test_a_fop_of_our_own_may_name_its_fields_as_it_likes() -> None:
    class Counted(Reply, frozen=True, gc=False):
        zero: fops.U64
        fd_number: fops.U32
        stat: Iatt

    @fops.fop(9000, 9000, fops.READS, Counted)
    class CountZeroes(Fop, frozen=True, gc=False):
        fd: Fd

    codec = compile_codec(CountZeroes)
    for xdata in (EMPTY, Xdata({b"k": 1})):
        reply = Counted(zero=5, fd_number=6, stat=Iatt(size=7), xdata=xdata)
        (record,) = codec.encode_reply(7, reply, 99)
        assert record[36 + len(xdata.raw) :][:12] == struct.pack(">QI", 5, 6)
        assert codec.decode_reply(memoryview(record), 28, len(record), XdataMemo()) == (reply, None)
    error = codec.encode_error(7, FopError(errno.EIO, "no"))
    assert len(error) == 36 + len(NULL_RAW) + tail_of(CountZeroes) == 36 + len(NULL_RAW) + 12 + IX


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(("procnum", "gf_fop"), [(57, 9000), (9000, 59), (999, 999), (-1, 59)])
def test_numbers_between_stocks_and_our_own_are_refused(procnum: int, gf_fop: int) -> None:
    class Mine(Fop, frozen=True, gc=False):
        fd: Fd

    with pytest.raises(TypeError, match="fop mine: numbers"):
        fops.fop(procnum, gf_fop, fops.READS)(Mine)


def words(text: str) -> bytes:
    return bytes.fromhex("".join(word for word in text.split() if word != "|"))


GFID = words("36b61fbc 99114e09 a8e30329 da86b7d5")
POST = words(
    """36b61fbc99114e09a8e30329da86b7d5 00000000000017ff a8e30329da86b7d5 000000000000fe00 0000000000000000
    0000000001000000 0000000000008000 0000000000000000 0000000000000000
    000000006b0d9be2 000000006b0d9be2 000000006b0d9be2 0000000000000000
    35de6739 35de6739 35dafcc6 00000000 00000001 00000000 00000000 00001000 00008180"""
)


def test_zerofill_as_qemu_sends_it() -> None:
    call = words(
        """80000084 0000000d 00000000 00000002 0013d005 00000190 0000002e 0005f398 00000028
        00004f45 00000000 00000000 00000006 35de6739 00000000 6b0d9be2 00000000 00000004 454f0000
        00000000 00000000 36b61fbc 99114e09 a8e30329 da86b7d5
        00000000 00000000 00000000 00000000 00000000 01000000 00000000 ffffffff 00000000"""
    )
    header = message.parse_call(call, 4)
    assert (header.prog, header.vers, header.proc) == (1298437, 400, 46)
    who = message.decode_cred(header.flavor, header.cred)
    assert who.stamp == 6 and who.ctime == 0x6B0D9BE2 * 10**9 + 0x35DE6739
    numbers = Numbers()
    req = decode_call(fops.Zerofill, call[header.pos :], numbers)
    assert (req.fd.gfid, numbers.number(req.fd), req.offset, req.size) == (GFID, 0, 0, 16 << 20)
    cred = message.encode_auth_v3(who.caller, who.stamp, who.ctime)
    again = message.encode_call(header.xid, 1298437, 400, 46, cred) + call_bytes(req, numbers.number)
    assert struct.pack(">I", len(again) | 0x80000000) + again == call


def test_zerofill_as_a_brick_answers_it() -> None:
    head = words("80000154 0000000d 00000001 00000000 00000000 00000000 00000000")
    head += words("00000000 00000000 | 00000000 ffffffff 00000000")
    reply, _ = decode_reply(fops.Zerofill, (head + bytes(IX) + POST)[28:])
    assert isinstance(reply, fops.PrePost) and reply.pre == Iatt()
    post = reply.post
    assert (post.size, post.blocks, post.nlink, post.mode, post.flags) == (16 << 20, 0x8000, 1, 0o100600, 0x17FF)
    assert reply_bytes(fops.Zerofill, reply, 0, 13) == head + bytes(IX) + POST


def test_other_worked_examples() -> None:
    numbers = Numbers()
    write = words(
        """921d893b f6a44475 85506f01 75617eb6 | 00000000 00000000 | 00000000 00000000 | 00000006 | 00008001 |
        00000000 ffffffff 00000000 | 68656c6c 6f0a"""
    )
    req = decode_call(fops.Write, write, numbers)
    assert (bytes(req.data), req.flags, req.offset) == (b"hello\n", 0x8001, 0)
    assert call_bytes(req, numbers.number) == write
    # The announced size is not looked at, as in stock.
    assert bytes(decode_call(fops.Write, write[:32] + struct.pack(">I", 100) + write[36:], numbers).data) == b"hello\n"
    read = words("00000006 00000002") + POST + words("00000006 | 00000000 ffffffff 00000000 | 68656c6c 6f0a")
    reply, _ = decode_reply(fops.Read, read)
    assert reply.data == b"hello\n" and reply.eof
    assert reply_bytes(fops.Read, reply)[28:] == read
    create = GFID + words("00000241 | 000081a4 | 00000000 | 00000002 66310000 | 00000024 00000001 00000001 00000009")
    create += b"gfid-req\0\0\0\0" + words("00000007") + GFID
    req = decode_call(fops.Create, create, numbers)
    assert (req.loc.pargfid, req.loc.name, req.flags, req.mode) == (GFID, b"f1", 0x241, 0o100644)
    assert req.xdata.gfid_req == GFID and call_bytes(req, numbers.number) == create
    lk = GFID + words(
        """00000000 00000000 | 00000001 | 00000001 | 00000001 00000000 0000000000000005 000000000000000a 000047a5
        00000008 1ad1b97a9f21bf22 | 00000000 ffffffff 00000000"""
    )
    req = decode_call(fops.Lk, lk, numbers)
    assert req.flock == Flock(1, 0, 5, 10, 0x47A5, words("1ad1b97a9f21bf22")) and (req.cmd, req.type) == (1, 1)
    assert call_bytes(req, numbers.number) == lk
    one = words("00000001 0000000000000001 0000000000000007 00000001 00000004 00000001 2e000000")
    listing = words("00000001 00000002 00000000 ffffffff 00000000") + one + POST + NULL_RAW + bytes(4)
    reply, _ = decode_reply(fops.Readdirp, listing)
    assert [(e.name, e.ino, e.off, e.type, e.gfid) for e in reply.entries] == [(b".", 1, 7, 4, GFID)] and reply.eof
    assert reply_bytes(fops.Readdirp, reply)[28:] == listing


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_oversized_strings_and_lists() -> None:
    numbers = Numbers()
    huge = struct.pack(">I", 1 << 30) + bytes(64)
    with pytest.raises(XdrError, match="does not fit"):
        decode_call(fops.Removexattr, GFID + huge, numbers)
    with pytest.raises(XdrError, match="does not fit"):
        decode_call(fops.Removexattr, GFID + struct.pack(">I", 70000) + bytes(70000) + NULL_RAW, numbers)
    owner = GFID + bytes(8) + bytes(8) + bytes(28) + struct.pack(">I", 2000) + bytes(2000) + NULL_RAW
    with pytest.raises(XdrError):
        decode_call(fops.Lk, owner, numbers)
    with pytest.raises(XdrError, match="more dict"):
        decode_call(fops.Write, GFID + bytes(24) + struct.pack(">IiI", 1 << 31, 1, 1) + bytes(90), numbers)
