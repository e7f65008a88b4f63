"""iSCSI's bytes: headers of every opcode, texts, keys, digests, CHAP, and the login's tables, without a connection."""

from __future__ import annotations

import base64
import hashlib
import random
from typing import Any

import pytest

from glustx.iscsi import digest as digests
from glustx.iscsi import pdu as p
from glustx.iscsi.chap import ALGORITHMS, ChapError, ChapTarget, binary, hexed, response
from glustx.iscsi.keys import IRRELEVANT, KEYS, NOT_UNDERSTOOD, REJECT, Rule, Settings, accept, answer, number, offer
from glustx.iscsi.login import FULL_FEATURE, OPERATIONAL, SECURITY, Login, LoginRefused, normal, stage_flags
from glustx.iscsi.text import Inbox, Outbox, TextError, encode, parse
from glustx.scsi.config import AclConfig, TargetConfig

# -- headers ------------------------------------------------------------------------------------------------------


def sample(cls: type[p.Pdu], rng: random.Random) -> p.Pdu:
    """A header with every field set."""
    values: dict[str, Any] = {"immediate": rng.random() < 0.5, "flags": rng.randrange(256)}
    values |= {"ahs_length": 4 * rng.randrange(256), "data_length": rng.randrange(1 << 24)}
    for name, _, code in cls.layout:
        width = {"B": 1, "H": 2, "I": 4}.get(code)
        values[name] = rng.randrange(1 << 8 * width) if width else rng.randbytes(int(code[:-1]))
    return cls(**values)


@pytest.mark.parametrize("opcode", sorted(p.BY_OPCODE))
def test_headers_come_back(opcode: int, seeded: random.Random) -> None:
    cls = p.BY_OPCODE[opcode]
    for _ in range(20):
        pdu = sample(cls, seeded)
        raw = pdu.encode()
        assert len(raw) == p.BHS and raw[0] & 0x3F == opcode
        assert p.decode(raw) == pdu
        assert p.decode(b"ab" + raw, 2) == pdu


def test_headers_as_seen_on_the_wire() -> None:
    command = p.ScsiCommand(
        flags=0xC1, lun=p.lun_field(1), itt=0x11223344, length=0x200, cmd_sn=5, exp_stat_sn=6,
        cdb=bytes.fromhex("28000000000a0000010000000000 0000".replace(" ", "")),
    )  # fmt: skip
    assert command.encode().hex() == (
        "01c1000000000000" "0001000000000000" "11223344" "00000200" "00000005" "00000006"
        "28000000000a00000100000000000000"
    )  # fmt: skip
    response = p.ScsiResponse(status=2, itt=1, stat_sn=2, exp_cmd_sn=3, max_cmd_sn=4, residual=0x1FF, data_length=20)
    assert response.encode().hex() == "2180000200000014" + "00" * 8 + "00000001" + "00" * 4 + "0000000200000003" + (
        "00000004" + "00" * 8 + "000001ff"
    )
    login = p.LoginRequest(immediate=True, flags=0x87, isid=bytes.fromhex("800000000001"), cid=1, itt=2)
    assert login.encode()[:24].hex() == "438700000000000080000000000100000000000200010000"


def test_structs_of_the_traffic_are_the_classes() -> None:
    command = p.ScsiCommand(
        immediate=True, flags=0xA1, lun=p.lun_field(3), itt=9, length=8, cmd_sn=7, cdb=bytes(range(16))
    )
    assert p.COMMAND.unpack(command.encode()) == (0x41, 0xA1, 0, 3 << 48, 9, 8, 7, bytes(range(16)))
    out = p.DataOut(flags=0x80, itt=1, ttt=2, data_sn=3, offset=4)
    assert p.DATA_OUT.unpack(out.encode()) == (0x80, 1, 2, 3, 4)
    data_in = p.DataIn(
        flags=0x81, status=8, data_length=5, itt=1, ttt=2, stat_sn=3, exp_cmd_sn=4, max_cmd_sn=5, data_sn=6, offset=7,
        residual=8,
    )  # fmt: skip
    assert p.DATA_IN.pack(0x25, 0x81, 8, 5, 1, 2, 3, 4, 5, 6, 7, 8) == data_in.encode()
    status = p.ScsiResponse(
        flags=0x82, status=2, data_length=5, itt=1, stat_sn=3, exp_cmd_sn=4, max_cmd_sn=5, exp_data_sn=6, residual=8
    )
    assert p.RESPONSE.pack(0x21, 0x82, 2, 5, 1, 3, 4, 5, 6, 8) == status.encode()


def test_other_bytes_are_no_header() -> None:
    with pytest.raises(p.PduError, match="47 bytes"):
        p.decode(bytes(47))
    with pytest.raises(p.PduError, match="opcode 0x3e"):
        p.decode(b"\x3e" + bytes(47))
    with pytest.raises(p.PduError, match="instead of"):
        p.NopOut.decode(b"\x01" + bytes(47))


@pytest.mark.parametrize(
    ("lun", "field"),
    [(0, "0000"), (255, "00ff"), (256, "4100"), (300, "412c"), (16383, "7fff")],
)
def test_luns(lun: int, field: str) -> None:
    assert p.lun_field(lun).hex() == field + "00" * 6
    assert p.lun_of(int(field + "00" * 6, 16)) == lun


def test_luns_that_are_not_ours() -> None:
    assert p.lun_of(0x4001 << 48) == 1  # flat addressing of a small number
    assert p.lun_of(0x012C << 48) == 300  # as libiscsi writes it
    for raw in ("c101000000000000", "0001000100000000", "8000000000000000"):
        assert p.lun_of(int(raw, 16)) == -1


def test_additional_headers() -> None:
    extended = bytes.fromhex("00090100") + bytes(range(8))
    bidirectional = bytes.fromhex("0005020000000200")
    assert p.ahs_segments(extended + bidirectional) == [(1, bytes(range(8))), (2, bytes.fromhex("00000200"))]
    for wrong in ("00", "00000100", "00ff010000000000", "000501"):
        with pytest.raises(p.PduError):
            p.ahs_segments(bytes.fromhex(wrong))


# -- digests ------------------------------------------------------------------------------------------------------

VECTORS = [
    (bytes(32), "aa36918a"),
    (b"\xff" * 32, "43aba862"),
    (bytes(range(32)), "4e79dd46"),
    (bytes(range(31, -1, -1)), "5cdb3f11"),
    (b"123456789", "839206e3"),
    (b"", "00000000"),
]


@pytest.mark.parametrize(("data", "wire"), VECTORS)
def test_digest_vectors(data: bytes, wire: str) -> None:
    assert digests.digest(data).hex() == wire
    assert digests.by_table(data).to_bytes(4, "little").hex() == wire
    assert digests.digest(data[:5], bytearray(data[5:7]), memoryview(data[7:])).hex() == wire


def test_the_table_and_the_library_agree(seeded: random.Random) -> None:
    for size in (1, 3, 48, 1000):
        data, value = seeded.randbytes(size), seeded.randrange(1 << 32)
        assert digests.by_table(data, value) == digests.crc32c(data, value)


# -- texts --------------------------------------------------------------------------------------------------------


def test_texts_come_back() -> None:
    pairs = [("InitiatorName", "iqn.2026-12.org.example:ä"), ("SendTargets", ""), ("X-a.b", "c=d,e")]
    assert parse(encode(pairs)) == pairs
    assert parse(encode(pairs)[:-1] + b"\0\0\0") == pairs
    assert parse(b"") == []


@pytest.mark.parametrize(
    "data",
    [b"novalue\0", b"=x\0", b"1a=x\0", b"a b=x\0", b"a=\xff\xfe\0", b"k" * 64 + b"=v\0", b"k=" + b"v" * 8193 + b"\0"],
)
def test_texts_that_are_none(data: bytes) -> None:
    with pytest.raises(TextError):
        parse(data)


def test_a_text_in_pieces() -> None:
    inbox = Inbox(100)
    whole = encode([("Alpha", "1"), ("Beta", "2")])
    for at in range(len(whole) - 1):
        assert inbox.add(whole[at : at + 1], True) is None
    assert inbox.add(whole[-1:], False) == [("Alpha", "1"), ("Beta", "2")]
    assert inbox.empty
    with pytest.raises(TextError, match="more than 100"):
        inbox.add(bytes(101), True)
    endless = Inbox(100)
    for _ in range(64):
        assert endless.add(b"", True) is None
    with pytest.raises(TextError, match="too many pieces"):
        endless.add(b"", True)


def test_an_answer_in_pieces() -> None:
    outbox = Outbox()
    outbox.put(b"abcdefg")
    assert [outbox.take(3), outbox.take(3), outbox.take(3)] == [(b"abc", True), (b"def", True), (b"g", False)]
    assert len(outbox) == 0


# -- keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "offered", "said", "held"),
    [
        ("HeaderDigest", "CRC32C,None", "CRC32C", "CRC32C"),
        ("HeaderDigest", "None,CRC32C", "None", "None"),
        ("DataDigest", "X-new,CRC32C", "CRC32C", "CRC32C"),
        ("DataDigest", "X-new", REJECT, None),
        ("MaxConnections", "8", "1", 1),
        ("MaxConnections", "0", REJECT, None),
        ("InitialR2T", "Yes", "Yes", True),
        ("InitialR2T", "No", "No", False),
        ("ImmediateData", "No", "No", False),
        ("ImmediateData", "Yes", "Yes", True),
        ("ImmediateData", "yes", REJECT, None),
        ("MaxBurstLength", "16776192", "4194304", 4194304),
        ("MaxBurstLength", "0x4000", "16384", 16384),
        ("MaxBurstLength", "511", REJECT, None),
        ("FirstBurstLength", "65536", "65536", 65536),
        ("MaxOutstandingR2T", "16", "4", 4),
        ("MaxOutstandingR2T", "-1", REJECT, None),
        ("DefaultTime2Wait", "20", "20", 20),
        ("DefaultTime2Retain", "20", "0", 0),
        ("DataPDUInOrder", "No", "Yes", True),
        ("DataSequenceInOrder", "No", "Yes", True),
        ("ErrorRecoveryLevel", "2", "0", 0),
        ("IFMarker", "Yes", "No", False),
        ("OFMarkInt", "2048~8192", REJECT, None),
        ("iSCSIProtocolLevel", "5", "2", 2),
        ("TaskReporting", "FastAbort,RFC3720", "RFC3720", "RFC3720"),
        ("MaxRecvDataSegmentLength", "65536", None, 65536),
        ("MaxRecvDataSegmentLength", "16777216", REJECT, None),
        ("InitiatorAlias", "me", None, "me"),
    ],
)
def test_answers_to_keys(name: str, offered: str, said: str | None, held: Any) -> None:
    assert answer(KEYS[name], offered, Settings()) == (said, held)


def test_both_sides_of_every_key_agree() -> None:
    initiator = Settings(
        header_digest=("CRC32C", "None"), initial_r2t=True, immediate_data=False, max_burst=1 << 17, first_burst=512,
        max_outstanding_r2t=64, time2wait=7, time2retain=60, error_recovery_level=2, protocol_level=1,
    )  # fmt: skip
    for key in KEYS.values():
        if not key.setting or key.rule is Rule.DECLARED:
            continue
        said, held = answer(key, offer(key, initiator), Settings())
        assert said is not None and accept(key, said, initiator) == held, key.name


def test_an_initiator_refuses_answers_to_what_it_did_not_offer() -> None:
    with pytest.raises(ValueError, match="was not offered"):
        accept(KEYS["HeaderDigest"], "CRC32C", Settings(header_digest=("None",)))
    with pytest.raises(ValueError, match="does not follow"):
        accept(KEYS["MaxBurstLength"], "8388608", Settings())
    assert accept(KEYS["MaxBurstLength"], NOT_UNDERSTOOD, Settings()) is None


def test_numbers() -> None:
    assert (number("12"), number("0x1F"), number("0XfF")) == (12, 31, 255)
    for text in ("", "0x", "+1", "1_0", " 1", "1.0", "0x-1", "²"):
        with pytest.raises(ValueError, match=r"no number|invalid literal"):
            number(text)


# -- CHAP ---------------------------------------------------------------------------------------------------------

SECRET, OTHER = b"secretsecret", b"othersecret!"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_responses(algorithm: int) -> None:
    made = response(algorithm, 0x5C, SECRET, b"challenge")
    assert made == hashlib.new(ALGORITHMS[algorithm], b"\x5c" + SECRET + b"challenge").digest()
    assert len(made) == {5: 16, 6: 20, 7: 32, 8: 32}[algorithm]


def challenged(chap: ChapTarget, offered: str = "5") -> tuple[int, int, bytes]:
    keys = dict(chap.step({"CHAP_A": offered}))
    return int(keys["CHAP_A"]), int(keys["CHAP_I"]), binary(keys["CHAP_C"])


@pytest.mark.parametrize(
    ("offered", "picked"), [("5", 5), ("8,7,6,5", 8), ("5,6", 5), ("6,5", 6), ("99,5,x", 5), ("0x7", 7)]
)
def test_the_first_known_algorithm_is_picked(offered: str, picked: int) -> None:
    algorithm, identifier, challenge = challenged(ChapTarget("user", SECRET), offered)
    assert (algorithm, len(challenge)) == (picked, 32) and 0 <= identifier <= 255


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("form", ["hex", "HEX", "base64"])
def test_mutual_chap(algorithm: int, form: str) -> None:
    chap = ChapTarget("0xuser", SECRET, "target", OTHER)
    _, identifier, challenge = challenged(chap, str(algorithm))
    proof = response(algorithm, identifier, SECRET, challenge)
    written = {
        "hex": hexed(proof), "HEX": "0X" + proof.hex().upper(), "base64": "0b" + base64.b64encode(proof).decode(),
    }[form]  # fmt: skip
    told = dict(chap.step({"CHAP_N": "0xuser", "CHAP_R": written, "CHAP_I": "0x12", "CHAP_C": "0x" + "ab" * 64}))
    assert chap.done and told["CHAP_N"] == "target"
    assert binary(told["CHAP_R"]) == response(algorithm, 0x12, OTHER, b"\xab" * 64)


@pytest.mark.parametrize(
    "change",
    [
        {"CHAP_N": "other"},
        {"CHAP_R": "0x" + "00" * 16},
        {"CHAP_R": "0x"},
        {"CHAP_R": "0b!!!!"},
        {"CHAP_R": "12345"},
        {"CHAP_R": None},
        {"CHAP_N": None},
        {"CHAP_I": "7"},
        {"CHAP_I": "256", "CHAP_C": "0x01"},
        {"CHAP_I": "1", "CHAP_C": "0x" + "00" * 1025},
        {"CHAP_I": "1", "CHAP_C": "reflected"},
    ],
)
def test_chap_that_fails(change: dict[str, str | None]) -> None:
    chap = ChapTarget("user", SECRET, "target", OTHER)
    algorithm, identifier, challenge = challenged(chap)
    keys = {"CHAP_N": "user", "CHAP_R": hexed(response(algorithm, identifier, SECRET, challenge))}
    for name, value in change.items():
        if value is None:
            del keys[name]
        else:
            keys[name] = hexed(challenge) if value == "reflected" else value
    with pytest.raises(ChapError) as caught:
        chap.step(keys)
    assert not chap.done and SECRET.decode() not in str(caught.value)


def test_chap_out_of_order() -> None:
    with pytest.raises(ChapError, match="before a challenge"):
        ChapTarget("user", SECRET).step({"CHAP_N": "user", "CHAP_R": "0x00"})
    with pytest.raises(ChapError, match="no algorithm"):
        ChapTarget("user", SECRET).step({"CHAP_A": "9,x"})
    chap = ChapTarget("user", SECRET)
    algorithm, identifier, challenge = challenged(chap)
    with pytest.raises(ChapError, match="second CHAP_A"):
        chap.step({"CHAP_A": "5"})
    keys = {"CHAP_N": "user", "CHAP_R": hexed(response(algorithm, identifier, SECRET, challenge))}
    with pytest.raises(ChapError, match="no mutual secret"):
        chap.step(keys | {"CHAP_I": "1", "CHAP_C": "0x01"})


# -- login --------------------------------------------------------------------------------------------------------

HOST, DISKS = "iqn.2026-12.org.example:host", "iqn.2026-12.org.example:disks"


class Targets:
    """A directory of one target."""

    def __init__(self, **config: Any) -> None:
        self.settings = Settings()
        self.discovery_rule = AclConfig()
        self.config = TargetConfig(name=DISKS, **config)

    def look_up(self, name: str) -> TargetConfig:
        if name != DISKS:
            raise LoginRefused((2, 3), "not here")
        return self.config


NAMES = [("InitiatorName", HOST), ("TargetName", DISKS)]
CHAP_RULE = (AclConfig(user="user", password=SECRET.decode(), mutual_user="target", mutual_password=OTHER.decode()),)


def step(login: Login, flags: int, pairs: list[tuple[str, str]] | bytes = b"", **changes: Any) -> Any:
    """One request; returns (class, detail, flags, keys)."""
    data = pairs if isinstance(pairs, bytes) else encode(pairs)
    got, text = login.request(p.LoginRequest(**({"immediate": True, "flags": flags, "isid": bytes(6)} | changes)), data)
    return got.status_class, got.status_detail, got.flags, parse(text)


def to(current: int, following: int | None = None) -> int:
    return stage_flags(current, following)


@pytest.mark.parametrize(
    ("steps", "done"),
    [
        ([(OPERATIONAL, FULL_FEATURE)], True),
        ([(SECURITY, FULL_FEATURE)], True),
        ([(SECURITY, OPERATIONAL), (OPERATIONAL, FULL_FEATURE)], True),
        ([(SECURITY, None), (SECURITY, OPERATIONAL), (OPERATIONAL, None), (OPERATIONAL, FULL_FEATURE)], True),
        ([(SECURITY, None)], False),
    ],
)
def test_stages(steps: list[tuple[int, int | None]], done: bool) -> None:
    login = Login(Targets(), "10.0.0.1")
    for index, (current, following) in enumerate(steps):
        code, detail, flags, keys = step(login, to(current, following), NAMES if not index else b"")
        assert (code, detail, flags) == (0, 0, to(current, following))
        assert ("TargetPortalGroupTag", "1") in keys or index
    assert login.done is done
    assert login.port_name == f"{HOST},i,0x000000000000"


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        (to(SECURITY, SECURITY), (2, 0xB)),
        (to(OPERATIONAL, SECURITY), (2, 0xB)),
        (to(OPERATIONAL, OPERATIONAL), (2, 0xB)),
        (to(SECURITY, 2), (2, 0xB)),
        (to(2, FULL_FEATURE), (2, 0xB)),
        (to(FULL_FEATURE), (2, 0xB)),
        (to(OPERATIONAL, FULL_FEATURE) | p.CONTINUE, (2, 0xB)),
    ],
)
def test_steps_that_there_are_not(flags: int, status: tuple[int, int]) -> None:
    login = Login(Targets(), "10.0.0.1")
    assert step(login, flags, NAMES)[:2] == status
    assert login.refused and not login.done


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        ([("TargetName", DISKS)], (2, 7)),
        ([("InitiatorName", HOST)], (2, 7)),
        ([("InitiatorName", ""), NAMES[1]], (2, 0)),
        ([("InitiatorName", "iqn." + "x" * 220), NAMES[1]], (2, 0)),
        ([("InitiatorName", HOST), ("TargetName", DISKS + "x")], (2, 3)),
        ([*NAMES, ("SessionType", "Odd")], (2, 9)),
        ([*NAMES, ("InitiatorName", HOST + "2")], (2, 0)),
        ([*NAMES, ("InitiatorName", HOST)], (0, 0)),
        ([("InitiatorName", HOST.upper()), ("TargetName", DISKS.upper())], (0, 0)),
        ([("InitiatorName", HOST), ("SessionType", "Discovery")], (0, 0)),
        (b"no text", (2, 0)),
        (b"a=" + b"x" * 8000 + b"x" * 300, (2, 0)),
    ],
)
def test_who_may_begin(pairs: Any, status: tuple[int, int]) -> None:
    assert step(Login(Targets(), "10.0.0.1"), to(OPERATIONAL, FULL_FEATURE), pairs)[:2] == status


def test_what_must_stay_the_same_during_login() -> None:
    for change in ({"isid": b"others"}, {"tsih": 1}, {"cid": 1}):
        login = Login(Targets(), "10.0.0.1")
        assert step(login, to(SECURITY), NAMES)[0] == 0
        assert step(login, to(SECURITY), b"", **change)[:2] == (2, 0xB)
    login = Login(Targets(), "10.0.0.1")
    assert step(login, to(SECURITY), NAMES)[0] == 0
    assert step(login, to(OPERATIONAL, FULL_FEATURE))[:2] == (2, 0xB)
    assert step(Login(Targets(), "x"), to(SECURITY), NAMES, version_min=1, version_max=1)[:2] == (2, 5)


def test_a_login_without_end() -> None:
    login = Login(Targets(), "10.0.0.1")
    step(login, to(SECURITY), NAMES)
    codes = [step(login, to(SECURITY))[0] for _ in range(100)]
    assert 0 in codes and 2 in codes
    login = Login(Targets(), "10.0.0.1")
    codes = [step(login, to(SECURITY) | p.CONTINUE, b"X-a=" + b"b" * 8000 + b"\0")[0] for _ in range(20)]
    assert codes[0] == 0 and codes[-1] == 2


def test_a_text_over_several_requests() -> None:
    login = Login(Targets(), "10.0.0.1")
    whole = encode([*NAMES, ("MaxBurstLength", "65536")])
    for at in range(0, len(whole) - 1, 10):
        code, _, flags, keys = step(login, to(OPERATIONAL) | p.CONTINUE, whole[at : at + 10])
        assert (code, flags, keys) == (0, to(OPERATIONAL), [])
    rest = whole[len(range(0, len(whole) - 1, 10)) * 10 :]
    code, _, flags, keys = step(login, to(OPERATIONAL, FULL_FEATURE), rest)
    assert login.done and ("MaxBurstLength", "65536") in keys


def test_an_answer_over_several_responses() -> None:
    login = Login(Targets(), "10.0.0.1")
    strange = [(f"X-{number:05}", "1") for number in range(500)]
    data, whole, flags = encode([*NAMES, *strange]), b"", []
    while not login.done and len(flags) < 10:
        request = p.LoginRequest(immediate=True, flags=to(OPERATIONAL, FULL_FEATURE), isid=bytes(6))
        got, text = login.request(request, data)
        assert got.status_class == 0
        assert len(text) <= 8192
        whole, data = whole + text, b""
        flags.append(got.flags)
    assert flags == [to(OPERATIONAL) | p.CONTINUE, to(OPERATIONAL, FULL_FEATURE)]
    told = dict(parse(whole))
    assert {told[name] for name, _ in strange} == {NOT_UNDERSTOOD}
    assert "MaxRecvDataSegmentLength" in told


def test_keys_in_login() -> None:
    login = Login(Targets(alias="my disks", portal_group=7), "10.0.0.1")
    offered = [
        *NAMES, ("InitiatorAlias", "host"), ("HeaderDigest", "CRC32C"), ("X-com.example", "1"), ("Strange", "2"),
        ("FirstBurstLength", "1048576"), ("MaxBurstLength", "65536"), ("AuthMethod", "None"), ("IFMarkInt", "1"),
        ("MaxRecvDataSegmentLength", "4096"), ("ImmediateData", "maybe"),
    ]  # fmt: skip
    keys = dict(step(login, to(OPERATIONAL, FULL_FEATURE), offered)[3])
    assert keys == {
        "TargetAlias": "my disks", "TargetPortalGroupTag": "7", "HeaderDigest": "CRC32C",
        "X-com.example": NOT_UNDERSTOOD, "Strange": NOT_UNDERSTOOD, "MaxBurstLength": "65536",
        "FirstBurstLength": "65536", "AuthMethod": IRRELEVANT, "IFMarkInt": REJECT, "ImmediateData": REJECT,
        "MaxRecvDataSegmentLength": "262144",
    }  # fmt: skip
    own = login.parameters
    assert (own.header_digest, own.data_digest, own.max_send, own.max_recv) == (True, False, 4096, 262144)
    assert (own.first_burst, own.max_burst, own.initial_r2t, own.immediate_data) == (65536, 65536, True, True)


def test_keys_said_twice() -> None:
    login = Login(Targets(), "10.0.0.1")
    assert step(login, to(OPERATIONAL), [*NAMES, ("MaxBurstLength", "65536")])[0] == 0
    assert step(login, to(OPERATIONAL), [("MaxBurstLength", "65536")])[3] == []
    assert step(login, to(OPERATIONAL), [("MaxBurstLength", "512")])[:2] == (2, 0)


def test_keys_that_mean_nothing_here() -> None:
    login = Login(Targets(), "10.0.0.1")
    names = [("InitiatorName", HOST), ("SessionType", "Discovery")]
    keys = dict(
        step(login, to(OPERATIONAL, FULL_FEATURE), [*names, ("MaxBurstLength", "512"), ("DataDigest", "None")])[3]
    )
    assert (keys["MaxBurstLength"], keys["DataDigest"]) == (IRRELEVANT, "None") and "TargetPortalGroupTag" not in keys
    nothing = [*NAMES, ("InitialR2T", "Yes"), ("ImmediateData", "No"), ("FirstBurstLength", "512")]
    assert dict(step(Login(Targets(), "x"), to(OPERATIONAL), nothing)[3])["FirstBurstLength"] == IRRELEVANT


def test_rules_for_initiators() -> None:
    rules = (AclConfig(initiator="iqn.*:host", addresses=("10.0.0.0/8",)),)
    assert step(Login(Targets(acls=rules), "10.1.2.3"), to(OPERATIONAL), NAMES)[0] == 0
    assert step(Login(Targets(acls=rules), "192.0.2.1"), to(OPERATIONAL), NAMES)[:2] == (2, 2)
    code, detail, _, keys = step(Login(Targets(redirect="192.0.2.9:3260"), "x"), to(SECURITY), NAMES)
    assert (code, detail, keys) == (1, 1, [("TargetAddress", "192.0.2.9:3260")])


def test_chap_in_login() -> None:
    login = Login(Targets(acls=CHAP_RULE), "10.0.0.1", lambda size: bytes([7]) * size)
    _, _, flags, keys = step(login, to(SECURITY, OPERATIONAL), [*NAMES, ("AuthMethod", "None,CHAP")])
    assert flags == to(SECURITY) and ("AuthMethod", "CHAP") in keys
    _, _, flags, keys = step(login, to(SECURITY), [("CHAP_A", "8,7,6,5")])
    assert keys == [("CHAP_A", "8"), ("CHAP_I", "7"), ("CHAP_C", hexed(bytes([7]) * 32))]
    proof = hexed(response(8, 7, SECRET, bytes([7]) * 32))
    mine = [("CHAP_N", "user"), ("CHAP_R", proof), ("CHAP_I", "9"), ("CHAP_C", "0x0102")]
    _, _, flags, keys = step(login, to(SECURITY, OPERATIONAL), mine)
    assert flags == to(SECURITY, OPERATIONAL)
    assert keys == [("CHAP_N", "target"), ("CHAP_R", hexed(response(8, 9, OTHER, b"\x01\x02")))]
    assert step(login, to(OPERATIONAL, FULL_FEATURE))[0] == 0 and login.done


@pytest.mark.parametrize(
    "steps",
    [
        [(to(OPERATIONAL, FULL_FEATURE), NAMES)],
        [(to(SECURITY, OPERATIONAL), NAMES)],
        [(to(SECURITY), [*NAMES, ("AuthMethod", "None")])],
        [(to(SECURITY), [*NAMES, ("AuthMethod", "KRB5")])],
        [(to(SECURITY), [*NAMES, ("AuthMethod", "CHAP")]), (to(SECURITY), [("CHAP_A", "99")])],
        [(to(SECURITY), NAMES), (to(SECURITY), [("CHAP_A", "5")])],
        [
            (to(SECURITY), [*NAMES, ("AuthMethod", "CHAP")]),
            (to(SECURITY), [("CHAP_A", "5")]),
            (to(SECURITY, FULL_FEATURE), [("CHAP_N", "user"), ("CHAP_R", "0x" + "11" * 16)]),
        ],
    ],
)
def test_logins_without_the_right_proof(steps: list[tuple[int, list[tuple[str, str]]]]) -> None:
    login = Login(Targets(acls=CHAP_RULE), "10.0.0.1")
    got = [step(login, flags, pairs)[:2] for flags, pairs in steps]
    assert got[-1] == (2, 1) and not login.done and SECRET.decode() not in login.refused


def test_only_chap_where_none_is_set() -> None:
    assert step(Login(Targets(), "x"), to(SECURITY), [*NAMES, ("AuthMethod", "CHAP")])[:2] == (2, 1)
    assert ("AuthMethod", "None") in step(Login(Targets(), "x"), to(SECURITY), [*NAMES, ("AuthMethod", "CHAP,None")])[3]


@pytest.mark.parametrize("name", ["", "a" * 224, "iqn.a b", "iqn.a,i,0x00", "iqn.\x01"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(LoginRefused):
        normal(name)


def test_random_texts_end_in_an_answer(seeded: random.Random) -> None:
    corpus = encode([*NAMES, ("AuthMethod", "CHAP"), ("CHAP_A", "5"), ("MaxBurstLength", "0x1"), ("CHAP_R", "0b")])
    for _ in range(500):
        login = Login(Targets(acls=CHAP_RULE if seeded.random() < 0.5 else ()), "10.0.0.1")
        for _ in range(4):
            data = bytearray(corpus)
            for _ in range(seeded.randrange(4)):
                data[seeded.randrange(len(data))] = seeded.randrange(256)
            pdu = p.LoginRequest(flags=seeded.choice([0, 4, 0x81, 0x87, 0x40, seeded.randrange(256)]), isid=bytes(6))
            got, text = login.request(pdu, bytes(data))
            assert got.opcode == p.LOGIN_RESPONSE and len(text) <= 8192
            if login.refused:
                assert got.status_class and not login.done
                break
