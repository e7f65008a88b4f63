"""Cold RPC codecs: captured records of stock decode and encode to the same bytes, values survive a round, and whatever
is cut, random or oversized raises XdrError and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx.fops import FOPS
from glustx.rpc import callbacks, dict_v1, message, programs
from glustx.rpc.body import Body
from glustx.rpc.message import AUTH_GLUSTERFS_V1, AUTH_GLUSTERFS_V2, AUTH_GLUSTERFS_V3, Credential
from glustx.rpc.xdr import Reader, Writer, XdrError
from glustx.values import IATT_ALL, Caller, Flock, Iatt

GOLDEN = {
    name: bytes.fromhex(record)
    for name, record in (
        line.split()
        for line in (Path(__file__).parent.parent / "golden" / "rpc.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}
BODIES: dict[str, type[Body] | type[programs.DumpReply]] = {
    "getspec-call": programs.GetspecRequest,
    "getspec-reply": programs.GetspecReply,
    "signin-call": programs.SignInRequest,
    "signin-reply": programs.StatusReply,
    "dump-call-glusterd": programs.DumpRequest,
    "dump-reply-glusterd": programs.DumpReply,
    "dump-reply-brick": programs.DumpReply,
    "ping-reply": programs.PingReply,
    "portbybrick-call": programs.PortByBrickRequest,
    "portbybrick-reply": programs.PortByBrickReply,
    "setvolume-call": programs.SetvolumeRequest,
    "setvolume-reply": programs.SetvolumeReply,
    "cache-invalidation": callbacks.CacheInvalidation,
}

u32 = st.integers(0, 2**32 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
u64 = st.integers(0, 2**64 - 1)
words = st.text(st.characters(exclude_categories=()), max_size=40)
keys = st.binary(min_size=1, max_size=40).filter(lambda key: b"\0" not in key)
dicts = st.dictionaries(keys, st.binary(max_size=60), max_size=8)
bytes16 = st.binary(min_size=16, max_size=16)
flocks = st.builds(Flock, u32, u32, u64, u64, u32, st.binary(max_size=64))
# The old layout has no birth time, 32 bits for seconds, and no flags: those that are all zero have none.
iatts = st.builds(
    Iatt,
    gfid=bytes16.filter(any),
    flags=st.just(IATT_ALL),
    **dict.fromkeys(("ino", "dev", "rdev", "size", "blocks"), u64),
    **dict.fromkeys(("atime", "mtime", "ctime", "atime_nsec", "mtime_nsec", "ctime_nsec"), u32),
    **dict.fromkeys(("nlink", "uid", "gid", "blksize", "mode"), u32),
)
FIELDS = {
    "u32": u32,
    "i32": i32,
    "u64": u64,
    "i64": st.integers(-(2**63), 2**63 - 1),
    "bytes16": bytes16,
    "opaque": st.binary(max_size=60),
    "text": st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")),
    "dict": dicts,
    "iatt": iatts,
    "flock": flocks,
}
ALL_BODIES = sorted(Body.__subclasses__(), key=lambda cls: cls.__name__)


def body_of(name: str) -> bytes:
    record = GOLDEN[name]
    reply = "reply" in name
    return record[message.parse_reply(record).pos if reply else message.parse_call(record).pos :]


# -- captured records --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(BODIES))
def test_stock_bodies_come_out_as_they_went_in(name: str) -> None:
    body = body_of(name)
    assert BODIES[name].decode(body).encode() == body


@pytest.mark.parametrize("name", sorted(name for name in GOLDEN if "reply" not in name))
def test_stock_call_headers_come_out_as_they_went_in(name: str) -> None:
    record = GOLDEN[name]
    call = message.parse_call(record)
    who = message.decode_cred(call.flavor, call.cred)
    cred = {
        message.AUTH_NULL: lambda: message.encode_auth_null(),
        AUTH_GLUSTERFS_V2: lambda: message.encode_auth_v2(who.caller),
        AUTH_GLUSTERFS_V3: lambda: message.encode_auth_v3(who.caller, who.stamp, who.ctime),
    }[call.flavor]()
    assert message.encode_call(call.xid, call.prog, call.vers, call.proc, cred) == record[: call.pos]
    assert message.message_type(record) == message.CALL


def test_what_the_captured_records_say() -> None:
    getspec = programs.GetspecRequest.decode(body_of("getspec-call"))
    assert getspec.flags == 0 and getspec.key.startswith("w1.192.0.2.1.var-tmp-")  # a brick asks for its own
    assert dict_v1.text(getspec.xdata, b"max-op-version") == "100000"
    assert dict_v1.number(getspec.xdata, b"min-op-version") == 1
    spec = programs.GetspecReply.decode(body_of("getspec-reply"))
    assert spec.op_ret == len(spec.spec) > 1000
    assert spec.spec.startswith("volume w1-posix\n    type storage/posix\n")
    assert programs.GetspecReply.found(spec.spec, spec.xdata).encode()[4:] == spec.encode()[4:]
    glusterd = programs.DumpReply.decode(body_of("dump-reply-glusterd"))
    brick = programs.DumpReply.decode(body_of("dump-reply-brick"))
    assert glusterd.offers(programs.PORTMAP) and not glusterd.offers(programs.FOP_400)
    assert brick.offers(programs.FOP_400) and not brick.offers(programs.PORTMAP)
    assert programs.PortByBrickReply.decode(body_of("portbybrick-reply")).port > 49151
    setvolume = programs.SetvolumeRequest.decode(body_of("setvolume-call")).pairs
    assert dict_v1.text(setvolume, b"fops-version") == "1298437"
    assert dict_v1.text(setvolume, b"process-uuid").startswith("CTX_ID:")
    assert dict_v1.text(programs.SetvolumeReply.decode(body_of("setvolume-reply")).pairs, b"child_up") == "1"
    event = callbacks.CacheInvalidation.decode(body_of("cache-invalidation"))
    assert event.event_type == callbacks.EVENT_CACHE_INVALIDATION and len(event.gfid) == 36
    assert event.stat.is_reg()


def test_zerofill_credential() -> None:
    call = message.parse_call(GOLDEN["zerofill-call"])
    assert (call.prog, call.vers, call.proc) == (1298437, 400, 46)
    assert programs.describe(call.prog, call.vers, call.proc) == "GlusterFS 4.x v1 ZEROFILL"
    who = message.decode_cred(call.flavor, call.cred, "session")
    assert who == Credential(Caller(0x4F45, 0, 0, (), b"\x45\x4f\0\0", "session"), 6, 0x6B0D9BE2 * 10**9 + 0x35DE6739)
    # An lk_owner that nobody set is filled with the pid, which gives the very same bytes.
    bare = message.encode_auth_v3(Caller(0x4F45), 6, who.ctime)
    assert bare in GOLDEN["zerofill-call"]


def test_fetchspec_is_the_callback_stock_sends() -> None:
    record = GOLDEN["fetchspec"]
    assert callbacks.encode_callback(1, programs.CBK_FETCHSPEC) == record
    call = message.parse_call(record)
    assert callbacks.decode_callback(call.proc, record[call.pos :]) is None


# -- headers -----------------------------------------------------------------------------------------------------------


@given(u32, st.integers(0, 5), u32, u32)
def test_reply_round(xid: int, stat: int, low: int, high: int) -> None:
    record = message.encode_reply(xid, stat, low, high)
    header = message.parse_reply(record + b"rest")
    versions = (low, high) if stat == message.PROG_MISMATCH else (0, 0)
    assert (header.xid, header.accepted, header.stat, header.pos) == (xid, True, stat, len(record))
    assert (header.low, header.high) == versions
    assert message.ACCEPT_NAMES[stat] in str(header)


@given(u32, st.integers(0, 1), u32, u32)
def test_denied_round(xid: int, stat: int, low: int, high: int) -> None:
    header = message.parse_reply(message.encode_denied(xid, stat, low, high))
    assert (header.xid, header.accepted, header.stat, header.low) == (xid, False, stat, low)
    assert header.high == (high if stat == message.RPC_MISMATCH else 0)


@pytest.mark.parametrize(
    "record",
    [
        struct.pack(">6I", 1, 0, 3, 7, 1, 1) + bytes(16),  # RPC version 3
        struct.pack(">6I", 1, 1, 2, 7, 1, 1) + bytes(16),  # a reply
        struct.pack(">6I", 1, 2, 2, 7, 1, 1) + bytes(16),  # neither
        struct.pack(">8I", 1, 0, 2, 7, 1, 1, 5, 404) + bytes(412),  # a credential of 404 bytes
        struct.pack(">8I", 1, 0, 2, 7, 1, 1, 5, 0xFFFFFFFF) + bytes(64),
        struct.pack(">10I", 1, 0, 2, 7, 1, 1, 0, 0, 0, 404) + bytes(404),  # a verifier of 404 bytes
    ],
)
def test_calls_that_are_none(record: bytes) -> None:
    with pytest.raises(XdrError):
        message.parse_call(record)


@pytest.mark.parametrize(
    "words_",
    [(1, 0, 0, 0, 0, 0), (1, 1, 2, 0, 0, 0), (1, 1, 0, 0, 0, 6), (1, 1, 0, 0, 401, 0), (1, 1, 1, 2, 0), (1, 1, 0)],
)
def test_replies_that_are_none(words_: tuple[int, ...]) -> None:
    with pytest.raises(XdrError):
        message.parse_reply(struct.pack(f">{len(words_)}I", *words_))


def test_a_view_in_the_middle_of_a_buffer() -> None:
    record = GOLDEN["portbybrick-call"]
    buf = memoryview(bytearray(b"\xff" * 12 + record + b"\xff" * 9))
    call = message.parse_call(buf, 12, 12 + len(record))
    asked = programs.PortByBrickRequest.decode(buf[call.pos : 12 + len(record)])
    assert asked == programs.PortByBrickRequest.decode(body_of("portbybrick-call"))


# -- credentials -------------------------------------------------------------------------------------------------------

callers = st.builds(
    Caller,
    i32,
    u32,
    u32,
    st.lists(u32, max_size=120).map(tuple),
    st.binary(min_size=1, max_size=91),
)


@given(callers, u32, st.integers(0, 2**63))
def test_v3_round(caller: Caller, stamp: int, ctime: int) -> None:
    header = message.parse_call(message.encode_call(1, 2, 3, 4, message.encode_auth_v3(caller, stamp, ctime)))
    assert header.flavor == AUTH_GLUSTERFS_V3
    kept = caller.groups[: 91 - len(caller.lk_owner)]
    expected = Caller(caller.pid, caller.uid, caller.gid, kept, caller.lk_owner, "c")
    assert message.decode_cred(header.flavor, header.cred, "c") == Credential(expected, stamp, ctime)


@given(callers)
def test_v2_round(caller: Caller) -> None:
    header = message.parse_call(message.encode_call(1, 2, 3, 4, message.encode_auth_v2(caller)))
    kept = caller.groups[: 95 - len(caller.lk_owner)]
    expected = Caller(caller.pid, caller.uid, caller.gid, kept, caller.lk_owner)
    assert message.decode_cred(header.flavor, header.cred) == Credential(expected)


@given(callers)
def test_v1_round(caller: Caller) -> None:
    header = message.parse_call(message.encode_call(1, 2, 3, 4, message.encode_auth_v1(caller)))
    assert (header.flavor, len(header.cred)) == (AUTH_GLUSTERFS_V1, 88)
    owner = caller.lk_owner[:8].ljust(8, b"\0")
    expected = Caller(caller.pid, caller.uid, caller.gid, caller.groups[:16], owner)
    assert message.decode_cred(header.flavor, header.cred) == Credential(expected)


@given(callers, st.integers(2, 3))
def test_no_credential_is_over_400_bytes(caller: Caller, version: int) -> None:
    encode = message.encode_auth_v3 if version == 3 else message.encode_auth_v2
    assert len(encode(caller)) <= 8 + message.MAX_AUTH_BYTES


def test_lk_owner_is_never_cut() -> None:
    for encode, room in ((message.encode_auth_v2, 95), (message.encode_auth_v3, 91)):
        encode(Caller(lk_owner=bytes(room), groups=(1, 2)))
        with pytest.raises(XdrError, match=f"room for {room}"):
            encode(Caller(lk_owner=bytes(room + 1)))


def test_an_unknown_flavor_is_nobody() -> None:
    assert message.decode_cred(0, b"", "s") == Credential(Caller(client="s"))
    assert message.decode_cred(6, b"whatever") == message.ANONYMOUS


@given(st.sampled_from([AUTH_GLUSTERFS_V1, AUTH_GLUSTERFS_V2, AUTH_GLUSTERFS_V3]), st.binary(max_size=420))
def test_random_credentials(flavor: int, body: bytes) -> None:
    try:
        who = message.decode_cred(flavor, body)
    except XdrError:
        return
    assert len(who.caller.groups) <= 100 and len(who.caller.lk_owner) <= 400


# -- the v1 dictionary -------------------------------------------------------------------------------------------------


@given(dicts)
def test_dict_round(pairs: dict[bytes, bytes]) -> None:
    assert dict_v1.decode(dict_v1.encode(pairs)) == pairs


def test_dict_bytes() -> None:
    assert dict_v1.encode({b"k": b"12\0"}) == bytes.fromhex("00000001 00000001 00000003 6b00 313200")
    assert dict_v1.decode(b"") == {} == dict_v1.decode(bytes(4))
    twice = bytes.fromhex("00000002 00000001 00000001 6b00 61 00000001 00000001 6b00 62")
    assert dict_v1.decode(twice) == {b"k": b"b"}


@pytest.mark.parametrize(
    "data",
    [
        "000000",  # shorter than a count
        "ffffffff",  # a count of -1
        "00000001",  # no pair
        "7fffffff 00000001 00000001 6b00 61",  # more pairs than bytes
        "00000001 00000001 7fffffff 6b00 61",  # a value longer than what is there
        "00000001 00000001 ffffffff 6b00 61",  # a value of -1 bytes
        "00000001 80000000 00000001 6b00 61",  # a key of -2^31 bytes
        "00000001 7fffffff 7fffffff 6b00 61",
        "00000001 00000001 00000001 6b01 61",  # a key that does not end
        "00000001 00000001 00000001 6b00 6161",  # a byte too many
    ],
)
def test_dicts_that_are_none(data: str) -> None:
    with pytest.raises(XdrError):
        dict_v1.decode(bytes.fromhex(data))


def test_dict_values() -> None:
    pairs = dict_v1.pack_all({"a": "text", "n": 7, "m": -7, "e": ""})
    assert pairs == {b"a": b"text\0", b"n": b"7\0", b"m": b"-7\0", b"e": b"\0"}
    assert [dict_v1.text(pairs, key, "?") for key in (b"a", b"n", b"e", b"absent")] == ["text", "7", "", "?"]
    assert [dict_v1.number(pairs, key, 9) for key in (b"a", b"n", b"m", b"e", b"absent")] == [9, 7, -7, 9, 9]
    assert dict_v1.number({b"k": b"9" * 5000}, b"k", 1) == 1
    with pytest.raises(XdrError):
        dict_v1.encode({b"a\0b": b""})


# -- bodies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALL_BODIES, ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.data())
def test_body_round(cls: type[Body], data: st.DataObject) -> None:
    value = cls(*(data.draw(FIELDS[kind]) for kind in cls.kinds().values()))
    encoded = value.encode()
    assert len(encoded) % 4 == 0
    assert cls.decode(encoded) == value
    cut = data.draw(st.integers(0, max(0, len(encoded) - 1)))
    if encoded:
        with pytest.raises(XdrError):
            cls.decode(encoded[:cut])
    with pytest.raises(XdrError):
        cls.decode(encoded + bytes(4))


@pytest.mark.parametrize("cls", [*ALL_BODIES, programs.DumpReply], ids=lambda cls: cls.__name__)
@settings(max_examples=40)
@given(data=st.binary(max_size=300))
def test_random_bytes_raise_only_xdr_error(cls: type[Body], data: bytes) -> None:
    try:
        cls.decode(data)
    except XdrError:
        pass


@pytest.mark.parametrize("parse", [message.parse_call, message.parse_reply, message.message_type, dict_v1.decode])
@given(data=st.binary(max_size=200))
def test_random_headers_raise_only_xdr_error(parse, data: bytes) -> None:
    try:
        parse(data)
    except XdrError:
        pass


@given(st.lists(st.builds(programs.Program, FIELDS["text"], u64, u64), max_size=5))
def test_dump_round(listed: list[programs.Program]) -> None:
    reply = programs.DumpReply(tuple(listed))
    assert programs.DumpReply.decode(reply.encode()) == reply


def test_a_list_that_never_ends() -> None:
    with pytest.raises(XdrError):
        programs.DumpReply.decode(bytes(16) + struct.pack(">I", 2))
    endless = struct.pack(">I", 1) + bytes(20)
    with pytest.raises(XdrError, match="cut short"):
        programs.DumpReply.decode(bytes(16) + endless * 50)


def test_values_that_do_not_fit() -> None:
    with pytest.raises(XdrError):
        programs.SignInRequest("/b", 1 << 31, 0).encode()
    with pytest.raises(XdrError):
        Writer().u32(-1)
    with pytest.raises(XdrError):
        Writer().fixed(b"short", 16)
    with pytest.raises(XdrError):
        Reader(b"", 3)
    with pytest.raises(XdrError, match="at most 4"):
        Reader(bytes(Writer().opaque(bytes(5)))).opaque(4)


def test_unsigned_hypers_keep_their_sign() -> None:
    data = bytes(Writer().u64(2**64 - 2).i64(-2))
    reader = Reader(data)
    assert (reader.u64(), reader.i64(), reader.left) == (2**64 - 2, -2, 0)


def test_callbacks_round() -> None:
    event = callbacks.RecallLease(bytes(range(16)), 2, bytes(16), {b"k": b"v\0"})
    call = message.parse_call(record := callbacks.encode_callback(7, event))
    assert (call.prog, call.vers, call.proc, call.flavor) == (52743234, 1, 8, 0)
    assert callbacks.decode_callback(call.proc, record[call.pos :]) == event
    with pytest.raises(XdrError):
        callbacks.decode_callback(programs.CBK_CHILD_UP, b"\0\0\0\0")
    with pytest.raises(XdrError):
        callbacks.decode_callback(99, b"")


# -- tables ------------------------------------------------------------------------------------------------------------


def test_fop_procedures() -> None:
    v400 = programs.fop_procedures(400)
    assert {cls for cls in FOPS.values() if cls.procnum >= 0} == set(v400.values())
    assert v400[46].name == "zerofill" and v400[56].name == "copy_file_range"
    assert max(programs.fop_procedures(330)) == 52
    assert programs.FOP_330.procedure(56) == "procedure 56"
    assert programs.FOP_400.procedure(0) == "NULL"
