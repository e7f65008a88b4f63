"""xdata: its bytes on the wire, the values it takes, and the memo that shares what was decoded once."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
import xdrlib3
from hypothesis import given
from hypothesis import strategies as st

from glustx.rpc.program_330_xdata import put_xdata
from glustx.values import ROOT_GFID, Iatt
from glustx.xdata import (
    DOUBLE,
    EMPTY,
    GFID_REQ,
    GFUUID,
    IATT,
    INT,
    MAX_PAIRS,
    MDATA,
    NO_PAIRS,
    NULL_RAW,
    PTR,
    STR,
    STR_OLD,
    UINT,
    MdataTimes,
    Typed,
    Xdata,
    XdataError,
    decode_at,
    encode,
    gfuuid,
    uint,
)
from glustx.xdata_memo import XdataMemo

# A LOOKUP's dictionary as a stock client sends it.
LOOKUP = bytes.fromhex(
    "000000b40000000500000005"
    "00000018747275737465642e676c757374657266732e6d6461746100000000020000000000000001"
    "00000012676c757374657266732e636f6e74656e7400000000000003"
    "0000000000010000"
    "0000000d73656375726974792e696d6100000000000000020000000000000000"
    "0000001473656375726974792e6361706162696c69747900000000020000000000000000"
    "00000009676669642d7265710000000000000007" + "00000000000000000000000000000001"
)

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u64 = st.integers(0, (1 << 64) - 1)
u32 = st.integers(0, (1 << 32) - 1)
keys = st.binary(min_size=1, max_size=40).filter(lambda key: not key.endswith(b"\0") and key != GFID_REQ)
iatts = st.builds(
    Iatt,
    st.binary(min_size=16, max_size=16),
    *[u64] * 8,
    *[i64] * 4,
    *[u32] * 9,
)
values = st.one_of(
    st.builds(Typed, st.just(INT), i64),
    st.builds(Typed, st.just(UINT), u64),
    st.builds(Typed, st.sampled_from([PTR, STR_OLD]), st.binary(max_size=80)),
    st.builds(Typed, st.just(STR), st.binary(max_size=80).map(lambda text: text.rstrip(b"\0"))),
    st.builds(Typed, st.just(GFUUID), st.binary(min_size=16, max_size=16)),
    st.builds(Typed, st.just(IATT), iatts),
    st.builds(Typed, st.just(DOUBLE), st.floats(allow_nan=False)),
    st.builds(Typed, st.just(MDATA), st.builds(MdataTimes, i64, i64, i64, u32, u32, u32)),
)
gfid_reqs = st.just({}) | st.builds(lambda gfid: {GFID_REQ: Typed(GFUUID, gfid)}, st.binary(min_size=16, max_size=16))
dicts = st.builds(lambda pairs, req: {**pairs, **req}, st.dictionaries(keys, values, max_size=8), gfid_reqs)


def oracle(pairs: dict[bytes, Typed]) -> bytes:
    """The same dictionary by xdrlib3."""
    body = xdrlib3.Packer()
    for key, (kind, value) in pairs.items():
        body.pack_opaque(key + b"\0")
        body.pack_int(kind)
        if kind == INT:
            body.pack_hyper(value)
        elif kind == UINT:
            body.pack_uhyper(value)
        elif kind == DOUBLE:
            body.pack_double(value)
        elif kind == STR:
            body.pack_opaque(value + b"\0")
        elif kind in (PTR, STR_OLD):
            body.pack_opaque(value)
        elif kind == GFUUID:
            body.pack_fopaque(16, value)
        elif kind == IATT:
            gfid, *numbers = msgspec.structs.astuple(value)
            body.pack_fopaque(16, gfid)
            for number in numbers[:8]:
                body.pack_uhyper(number)
            for number in numbers[8:12]:
                body.pack_hyper(number)
            for number in numbers[12:]:
                body.pack_uint(number)
        else:
            times = msgspec.structs.astuple(value)
            for number in times[:3]:
                body.pack_hyper(number)
            for number in times[3:]:
                body.pack_uint(number)
    packed: bytes = body.get_buffer()
    head = xdrlib3.Packer()
    head.pack_uint(len(packed))
    head.pack_int(len(pairs))
    head.pack_uint(len(pairs))
    return bytes(head.get_buffer()) + packed


# -- bytes


@given(dicts)
def test_bytes_are_as_xdrlib_packs_them(pairs: dict[bytes, Typed]) -> None:
    assert encode(Xdata(pairs)) == (oracle(pairs) if pairs else NULL_RAW)


@given(dicts, st.binary(max_size=9), st.binary(max_size=9))
def test_round_trip_inside_other_bytes(pairs: dict[bytes, Typed], before: bytes, after: bytes) -> None:
    raw = encode(Xdata(pairs))
    for buf in (before + raw + after, memoryview(before + raw + after), bytearray(before + raw + after)):
        got, stop = decode_at(buf, len(before), len(before) + len(raw))
        assert stop == len(before) + len(raw)
        assert dict(got.typed()) == pairs
        assert list(got) == list(pairs)
        assert got.raw == raw
        assert got.gfid_req == (pairs[GFID_REQ].value if GFID_REQ in pairs else None)


def test_golden_lookup() -> None:
    got, stop = decode_at(LOOKUP, 0, len(LOOKUP))
    assert stop == len(LOOKUP)
    assert dict(got.typed()) == {
        b"trusted.glusterfs.mdata": Typed(INT, 1),
        b"glusterfs.content": Typed(UINT, 65536),
        b"security.ima": Typed(INT, 0),
        b"security.capability": Typed(INT, 0),
        GFID_REQ: Typed(GFUUID, ROOT_GFID),
    }
    assert encode(got) == LOOKUP


def test_null_and_empty() -> None:
    assert encode(EMPTY) == NULL_RAW == bytes.fromhex("00000000ffffffff00000000")
    assert decode_at(NULL_RAW, 0, 12) == (EMPTY, 12)
    assert decode_at(bytes(12), 0, 12) == (EMPTY, 12)
    assert not EMPTY
    assert Xdata({}) == EMPTY


def test_a_key_without_its_nul_and_a_wrong_size_are_taken() -> None:
    raw = struct.pack(">IiI", 9999, 1, 1) + struct.pack(">I4siq", 4, b"keyx", INT, -5)
    got, stop = decode_at(raw, 0, len(raw))
    assert (dict(got), stop) == ({b"keyx": -5}, len(raw))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "header"),
        (NULL_RAW[:11], "header"),
        (struct.pack(">IiI", 0, -1, 3), "NULL dict with 3 pairs"),
        (struct.pack(">IiI", 0, 1, 1), "announces 1 pairs"),
        (struct.pack(">IiI", 0, 1, MAX_PAIRS + 1) + bytes(1 << 20), "announces 16385 pairs"),
        (struct.pack(">IiI", 0, 1, 1 << 31) + bytes(64), "announces"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I4siq", 4, b"key\0", 0, 1), "unknown value type 0"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I4siq", 4, b"key\0", 10, 1), "unknown value type 10"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I4siI", 4, b"key\0", PTR, 1 << 31), "cut short"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I4siI", 4, b"key\0", INT, 1), "cut short"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I4siq", 4, b"key\0", IATT, 1), "cut short"),
        (struct.pack(">IiI", 0, 1, 1) + struct.pack(">I12siq", 9, b"gfid-req\0", INT, 1), "gfid-req is not 16 bytes"),
    ],
)
def test_what_is_no_dictionary(raw: bytes, why: str) -> None:
    with pytest.raises(XdataError, match=why):
        decode_at(raw, 0, len(raw))
    with pytest.raises(XdataError):
        XdataMemo().get(raw)


def test_values_do_not_reach_over_the_end() -> None:
    raw = encode(Xdata({b"key": b"value"}))
    for end in range(len(raw)):
        with pytest.raises(XdataError):
            decode_at(raw, 0, end)


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_xdata_error(data: bytes) -> None:
    try:
        _, stop = decode_at(data, 0, len(data))
    except XdataError:
        return
    assert 12 <= stop <= len(data)


@given(dicts, st.data())
def test_damaged_dictionaries_raise_only_xdata_error(pairs: dict[bytes, Typed], data: st.DataObject) -> None:
    raw = bytearray(encode(Xdata(pairs)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    memo = XdataMemo()
    for decode in (lambda: decode_at(raw, 0, len(raw))[0], lambda: memo.get(bytes(raw))):
        try:
            got = decode()
        except XdataError:
            continue
        assert isinstance(got, Xdata)


# -- values


def test_plain_values_get_the_type_that_stock_expects() -> None:
    times = MdataTimes(1, 2, 3)
    pairs: dict[bytes, Any] = {
        b"int": -1,
        b"bool": True,
        b"big": 1 << 63,
        b"text": "caf\xe9\udcff",
        b"bytes": b"\0",
        b"view": memoryview(b"ab"),
        b"iatt": Iatt(size=3),
        b"mdata": times,
        b"gfid": gfuuid(ROOT_GFID),
        b"uint": uint(4),
    }
    assert {key: typed.type for key, typed in Xdata(pairs).typed()} == {
        b"int": INT,
        b"bool": INT,
        b"big": UINT,
        b"text": STR,
        b"bytes": PTR,
        b"view": PTR,
        b"iatt": IATT,
        b"mdata": MDATA,
        b"gfid": GFUUID,
        b"uint": UINT,
    }
    assert Xdata(pairs)[b"text"] == b"caf\xc3\xa9\xff"
    with pytest.raises(TypeError, match="cannot carry list"):
        Xdata({b"list": []})


def test_a_gfid_req_travels_as_a_gfid() -> None:
    assert dict(Xdata({GFID_REQ: ROOT_GFID}).typed()) == {GFID_REQ: Typed(GFUUID, ROOT_GFID)}


def test_mapping() -> None:
    xdata = Xdata({b"a": 1, b"b": b"2"})
    assert (len(xdata), dict(xdata), b"a" in xdata, xdata.get(b"c"), xdata.get(b"c", 5)) == (
        2,
        {b"a": 1, b"b": b"2"},
        True,
        None,
        5,
    )
    assert xdata.plus({b"a": 2, b"c": 3}) == Xdata({b"a": 2, b"b": b"2", b"c": 3})
    assert xdata.without(b"a", b"z") == Xdata({b"b": b"2"})
    assert dict(xdata) == {b"a": 1, b"b": b"2"}, "copies leave the original alone"
    assert xdata != Xdata({b"a": uint(1), b"b": b"2"}), "types count"
    assert hash(xdata) == hash(Xdata({b"b": b"2", b"a": 1}))
    assert xdata.names_any(frozenset({b"z", b"a"}))
    assert not xdata.names_any(frozenset({b"z"}))


def test_text_and_number() -> None:
    xdata = Xdata({b"text": b"12\0", b"neg": "-3", b"bad": b"1x", b"int": 7, b"huge": b"9" * 30, b"sign": b"-"})
    assert [xdata.text(key) for key in (b"text", b"int", b"none")] == ["12", "7", ""]
    assert xdata.text(b"none", "default") == "default"
    assert [xdata.number(key, 99) for key in (b"text", b"neg", b"bad", b"int", b"huge", b"sign", b"none")] == [
        12,
        -3,
        99,
        7,
        99,
        99,
        99,
    ]


# -- the memo


@given(st.lists(dicts, max_size=8), st.lists(st.tuples(st.integers(0, 7), st.binary(min_size=16, max_size=16))))
def test_the_memo_answers_as_decoding_does(
    dictionaries: list[dict[bytes, Typed]], asked: list[tuple[int, bytes]]
) -> None:
    memo = XdataMemo(limit=4, largest=300)
    for index, gfid in asked:
        if index < len(dictionaries):
            pairs = dictionaries[index]
            raw = encode(Xdata({**pairs, GFID_REQ: gfuuid(gfid)} if GFID_REQ in pairs else pairs))
            got, expected = memo.get(raw), decode_at(raw, 0, len(raw))[0]
            assert dict(got.typed()) == dict(expected.typed())
            assert got.gfid_req == expected.gfid_req
            assert got.raw == raw


def test_equal_bytes_share_one_object() -> None:
    memo = XdataMemo()
    raw = encode(Xdata({b"glusterfs.content": 5}))
    assert memo.get(raw) is memo.get(bytes(raw))
    assert memo.get(NULL_RAW) is EMPTY


def test_requests_that_differ_in_their_gfid_share_a_template() -> None:
    memo = XdataMemo()
    one, two = (memo.get(LOOKUP[:-16] + bytes([number]) * 16) for number in (1, 2))
    assert (one.gfid_req, two.gfid_req) == (b"\1" * 16, b"\2" * 16)
    assert one[GFID_REQ] == b"\1" * 16
    assert one.template is two.template
    one.template.plan = "what storage derived"
    assert memo.get(LOOKUP).template.plan == "what storage derived"
    assert one.raw == LOOKUP[:-16] + b"\1" * 16
    assert two.without(GFID_REQ) == one.without(GFID_REQ)


def test_the_memo_is_bounded() -> None:
    memo = XdataMemo(limit=8, largest=100)
    for number in range(1000):
        memo.get(encode(Xdata({b"number": number, GFID_REQ: bytes(16)} if number % 2 else {b"number": number})))
        assert len(memo._known) + len(memo._templates) <= 9
    big = encode(Xdata({b"big": bytes(200)}))
    assert memo.get(big) is not memo.get(big)


MARK = b"\0\0\0\x09gfid-req\0\0\0\0" + struct.pack(">i", GFUUID)
G1, G2 = b"\x11" * 16, b"\x22" * 16


def _pair(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack(">I", len(key)) + key + bytes(-len(key) % 4) + struct.pack(">i", kind) + value


def _opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def _dict(*pairs: bytes) -> bytes:
    body = b"".join(pairs)
    return struct.pack(">IiI", len(body), len(pairs), len(pairs)) + body


REAL = _pair(b"gfid-req\0", GFUUID, G1)
HOSTILE = {
    "a mark in a value": _dict(_pair(b"x\0", PTR, _opaque(MARK + G1))),
    "a mark in a value before the real one": _dict(_pair(b"x\0", PTR, _opaque(MARK + G1)), REAL),
    "a mark in a value behind the real one": _dict(REAL, _pair(b"x\0", PTR, _opaque(MARK + G1))),
    "a mark in a value, and a gfid-req without its NUL": _dict(
        _pair(b"x\0", PTR, _opaque(MARK + G1)), _pair(b"gfid-req", GFUUID, G1)
    ),
    "a mark in a value, and a binary gfid-req": _dict(
        _pair(b"x\0", PTR, _opaque(MARK + G1)), _pair(b"gfid-req\0", PTR, _opaque(G1))
    ),
    "two gfid-reqs": _dict(REAL, _pair(b"gfid-req\0", GFUUID, G1)),
    "two gfid-reqs, the last without its NUL": _dict(REAL, _pair(b"gfid-req", GFUUID, G1)),
    "two gfid-reqs, the last binary": _dict(REAL, _pair(b"gfid-req\0", PTR, _opaque(G1))),
    "a mark that ends the bytes": _dict(_pair(b"x\0", PTR, _opaque(MARK))),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_hostile_gfid_req_marks(raw: bytes) -> None:
    memo = XdataMemo()
    variants = [raw]
    at = -1
    while (at := raw.find(G1, at + 1)) >= 0:
        variants.append(raw[:at] + G2 + raw[at + 16 :])
    variants.append(raw.replace(G1, G2))
    cut = raw.find(MARK) + len(MARK)
    variants.append(raw[:cut] + raw[cut + 16 :])  # what a template would be kept under
    for variant in variants * 2:
        try:
            expected = decode_at(variant, 0, len(variant))
        except XdataError:
            with pytest.raises(XdataError):
                memo.get(variant)
            continue
        if expected[1] != len(variant):
            with pytest.raises(XdataError):
                memo.get(variant)
            continue
        assert dict(memo.get(variant).typed()) == dict(expected[0].typed())
        assert memo.get(variant).gfid_req == expected[0].gfid_req


@given(st.lists(st.sampled_from([REAL, MARK, G1, G2, bytes(4), _pair(b"x\0", PTR, _opaque(MARK + G1))]), max_size=5))
def test_random_pieces_of_marks(pieces: list[bytes]) -> None:
    memo = XdataMemo()
    body = b"".join(pieces)
    for gfid in (G1, G2, G1):
        for count in (1, 2, 3):
            raw = struct.pack(">IiI", len(body), count, count) + body.replace(G1, gfid)
            try:
                expected = decode_at(raw, 0, len(raw))
            except XdataError:
                expected = (EMPTY, -1)
            if expected[1] == len(raw):
                assert dict(memo.get(raw).typed()) == dict(expected[0].typed())
            else:
                with pytest.raises(XdataError):
                    memo.get(raw)


def test_a_dictionary_that_is_there_and_empty() -> None:
    """Stock's clients tell it from none: the answer to a listing of xattrs must be one."""
    assert NO_PAIRS.raw.hex() == bytes(12).hex()
    assert EMPTY.raw.hex() == "00000000ffffffff00000000"
    assert decode_at(NO_PAIRS.raw, 0, 12) == (EMPTY, 12)
    assert len(put_xdata(NO_PAIRS)) > len(put_xdata(EMPTY))
