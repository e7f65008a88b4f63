"""What is fuzzed: for each kind of bytes that a peer may send, a function that takes some and returns when all is well.

Bytes that are refused as the code promises to (XdrError, FopError, VolfileError, ValueError of an ACL) are well. Any
other exception is a finding, as is a value that does not come back when it is encoded and decoded once more.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

from fuzz.brick import brick as brick
from fuzz.iscsi import iscsi as iscsi
from fuzz.iscsi import iscsi_login as iscsi_login
from fuzz.liar import liar as liar
from fuzz.scsi import scsi as scsi
from glustx import volfile
from glustx.errors import FopError
from glustx.inode import ANONYMOUS_FD, Fd
from glustx.rpc import callbacks, dict_v1, message, programs
from glustx.rpc.body import Body
from glustx.rpc.connection import RpcConnection
from glustx.rpc.fop_programs import FOPS_330, FOPS_400, FopProgram
from glustx.rpc.program_330_xdata import put_xdata
from glustx.rpc.program_330_xdata import read_xdata as read_330
from glustx.rpc.record import Budget, RecordBuffer
from glustx.rpc.xdr import XdrError
from glustx.values import Caller
from glustx.xdata import XdataError, decode_at
from glustx.xdata_memo import XdataMemo
from glustx.xlators.system import posix_acl_forms

REFUSED = (XdrError, XdataError, FopError)
_PROGRAMS = (FOPS_400, FOPS_330)
_BODIES = [
    cls
    for module in (programs, callbacks)
    for _, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, Body) and cls is not Body
]
_RECORD_LIMIT = 4096


def record(data: bytes) -> None:
    """Records come out as a plain reading of the bytes says, however they arrive; the budget is given back."""
    step = data[0] + 1 if data else 1
    stream = data[1:]
    budget = Budget(1 << 20)
    buffer = RecordBuffer(_RECORD_LIMIT, budget)
    found: list[bytes] = []
    refused = False
    try:
        for start in range(0, len(stream), step):
            piece = stream[start : start + step]
            while piece:
                room = buffer.room()
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                piece = piece[size:]
                while buffer.feed(size, lambda view, pos, end: found.append(bytes(view[pos:end]))):
                    size = 0
    except XdrError:
        refused = True
    buffer.close()
    assert budget.used == 0, f"{budget.used} bytes of the budget are lost"
    wanted = _records(stream)
    assert found == wanted[: len(found)], "other records than were sent"
    assert refused or len(found) == len(wanted), "a record is missing"


def _records(stream: bytes) -> list[bytes]:
    found: list[bytes] = []
    whole = b""
    at = 0
    while at + 4 <= len(stream):
        mark = int.from_bytes(stream[at : at + 4], "big")
        size = mark & 0x7FFFFFFF
        if at + 4 + size > len(stream):
            break
        whole += stream[at + 4 : at + 4 + size]
        at += 4 + size
        if mark >> 31:
            found.append(whole)
            whole = b""
    return found


def header(data: bytes) -> None:
    """Headers of calls and replies, and the credentials in them."""
    with contextlib.suppress(XdrError):
        call = message.parse_call(data)
        assert call.pos <= len(data)
        cred = message.decode_cred(call.flavor, call.cred, "client")
        if call.flavor == message.AUTH_GLUSTERFS_V3:
            again = message.encode_auth_v3(cred.caller, cred.stamp, cred.ctime)
            there = message.decode_cred(message.AUTH_GLUSTERFS_V3, again[8:], "client")
            # Groups that stock's own count has no room for are left out.
            assert there.caller.uid == cred.caller.uid and there.ctime == cred.ctime
    with contextlib.suppress(XdrError):
        reply = message.parse_reply(data)
        assert reply.pos <= len(data) and str(reply)


def connection(data: bytes) -> None:
    """A connection, as server and as client at once, breaks or answers, and never raises."""

    class Quiet(RpcConnection):
        def broken(self, reason: str) -> None:
            self.records.held = True

    quiet = Quiet({(programs.DUMP.number, programs.DUMP.version): lambda *_: b""})
    quiet.channel = _Sink()  # type: ignore[assignment]
    quiet.waiting[1] = lambda view, pos, end, error: None
    try:
        quiet._record(memoryview(data), 0, len(data))
    except XdrError:
        pass


class _Sink:
    peer = "fuzz"

    def write(self, pieces: Any) -> None:
        b"".join(pieces)

    def queued(self) -> int:
        return 0


class _Fds:
    """Numbers of fds both ways."""

    def __init__(self) -> None:
        self.fds: dict[int, Fd] = {}

    def find(self, gfid: bytes, number: int) -> Fd:
        return self.fds.setdefault(number, Fd(gfid, 2, anonymous=number == ANONYMOUS_FD))

    def number(self, fd: Fd) -> int:
        return next(number for number, known in self.fds.items() if known is fd)


def call(data: bytes) -> None:
    """The body of a call of any fop, of both versions: `version, procedure, body`."""
    picked = _pick(data)
    if picked is None:
        return
    spoken, codec, body = picked
    fds = _Fds()
    caller = Caller(client="client")
    with contextlib.suppress(*REFUSED):
        req = codec.decode_call(memoryview(body), 0, len(body), fds.find, spoken.memo(), caller, 0, 0)
        str(req.subject())
        req.targets()
        once = _joined(codec.encode_call(req, fds.number))
        req = codec.decode_call(memoryview(once), 0, len(once), fds.find, spoken.memo(), caller, 0, 0)
        again = _joined(codec.encode_call(req, fds.number))
        assert again == once, f"{codec.name}: a call that was decoded is encoded as another"


def reply(data: bytes) -> None:
    """The body of a reply to any fop, of both versions: `version, procedure, body`."""
    picked = _pick(data)
    if picked is None:
        return
    spoken, codec, body = picked
    with contextlib.suppress(*REFUSED):
        found, number = codec.decode_reply(memoryview(body), 0, len(body), spoken.memo())
        once = b"".join(map(bytes, codec.encode_reply(7, found, number or 0)))[28:]
        found, number = codec.decode_reply(memoryview(once), 0, len(once), spoken.memo())
        again = b"".join(map(bytes, codec.encode_reply(7, found, number or 0)))[28:]
        assert again == once, f"{codec.name}: a reply that was decoded is encoded as another"


def _pick(data: bytes) -> tuple[FopProgram, Any, bytes] | None:
    if len(data) < 2:
        return None
    spoken = _PROGRAMS[data[0] & 1]
    numbers = sorted(spoken.codecs)
    return spoken, spoken.codecs[numbers[data[1] % len(numbers)]], data[2:]


def _joined(parts: tuple[bytes, Any]) -> bytes:
    body, payload = parts
    return body + bytes(payload or b"")


def dict_400(data: bytes) -> None:
    """The typed dictionary, with and without the memo."""
    with contextlib.suppress(XdataError):
        pairs, end = decode_at(data, 0, len(data))
        assert end <= len(data) + 3
        for key in pairs:
            pairs.text(key)
            pairs.number(key)
        memo = XdataMemo()
        for _ in range(2):
            try:
                known = memo.get(data)
            except XdataError:
                break
            assert known.raw == pairs.raw, "the memo knows another dictionary"
        again, _ = decode_at(pairs.raw, 0, len(pairs.raw))
        assert again.raw == pairs.raw


def dict_330(data: bytes) -> None:
    """The untyped dictionary, alone and as xdata."""
    with contextlib.suppress(XdrError):
        pairs = dict_v1.decode(data)
        with contextlib.suppress(XdrError):
            assert dict_v1.decode(dict_v1.encode(pairs)) == pairs
        for key in pairs:
            dict_v1.text(pairs, key)
            dict_v1.number(pairs, key)
    with contextlib.suppress(XdrError):
        xdata, end = read_330(data, 0, len(data))
        assert end <= len(data)
        raw = put_xdata(xdata)
        assert put_xdata(read_330(raw, 0, len(raw))[0]) == raw


def body(data: bytes) -> None:
    """Arguments and results of every procedure that is no fop: `class, body`."""
    if not data:
        return
    cls = _BODIES[data[0] % len(_BODIES)]
    with contextlib.suppress(XdrError):
        found = cls.decode(data[1:])
        once = found.encode()
        assert cls.decode(once).encode() == once


def texts(data: bytes) -> None:
    """What is text or an xattr's value: a volfile from a volume server, an ACL from a client."""
    with contextlib.suppress(volfile.VolfileError):
        found = volfile.parse(data)
        assert volfile.parse(volfile.format(found)).volumes == found.volumes
    with contextlib.suppress(ValueError):
        acl = posix_acl_forms.parse(data)
        assert posix_acl_forms.pack(acl) == data
    with contextlib.suppress(ValueError):
        posix_acl_forms.from_text(data)


TARGETS: tuple[Callable[[bytes], None], ...] = (
    record, header, connection, call, reply, dict_400, dict_330, body, texts, brick, liar, iscsi,
    iscsi_login, scsi,
)  # fmt: skip


def one_input(data: bytes) -> None:
    """Hand an input to the target that its first byte names."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def tagged(target: Callable[[bytes], None], data: bytes) -> bytes:
    """Return the input that hands `data` to a target."""
    return bytes([TARGETS.index(target)]) + data
