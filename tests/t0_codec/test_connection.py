"""One RPC connection without a socket: calls and replies in both roles, what stock answers to calls it cannot serve,
and what holds when the other end breaks off, floods or does not read."""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from glustx.graph import Graph, Surroundings
from glustx.rpc import callbacks, dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Piece
from glustx.rpc.connection import SEND_HIGH, CallRefused, ProcUnavail, RpcConnection, RpcError
from glustx.rpc.getspec import Dialled
from glustx.rpc.record import BURST, frame
from glustx.rpc.xdr import Reader, XdrError
from glustx.runtime import ManualReactor, turn

PROG, VERS = 1000, 3
NULL_AUTH = message.encode_auth_null()


class FakeChannel:
    """A channel that keeps what is written, and has a queue as long as the test says."""

    peer = "192.0.2.7:1023"
    received = sent = 0
    identity = None

    def __init__(self) -> None:
        self.out = bytearray()
        self.writes = 0
        self.reading = True
        self.ended: str | None = None
        self.backlog = 0

    def write(self, pieces: Sequence[Piece]) -> None:
        self.writes += 1
        self.out += b"".join(pieces)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self, reason: str) -> None:
        self.ended = reason

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def queued(self) -> int:
        return self.backlog

    def records(self) -> list[bytes]:
        """Take the records written so far."""
        found = []
        while self.out:
            (mark,) = struct.unpack_from(">I", self.out)
            size = mark & 0x7FFFFFFF
            found.append(bytes(self.out[4 : 4 + size]))
            del self.out[: 4 + size]
        return found


def feed(connection: RpcConnection, data: bytes) -> None:
    pos = 0
    while pos < len(data):
        room = connection.get_buffer(-1)
        size = min(len(room), len(data) - pos)
        room[:size] = data[pos : pos + size]
        turn(connection.buffer_updated, size)
        pos += size


def handler(connection: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
    if call.proc == 1:
        return body[::-1]
    if call.proc == 2:
        raise CallRefused(message.SYSTEM_ERR)
    if call.proc == 3:
        Reader(body).u64()
        return b""
    if call.proc == 4:
        raise RuntimeError("a fault in a handler")
    if call.proc == 5:
        return None  # answers later
    raise ProcUnavail


@pytest.fixture
def server() -> Iterator[tuple[RpcConnection, FakeChannel]]:
    connection, channel = RpcConnection({(PROG, VERS): handler}), FakeChannel()
    turn(connection.connection_made, channel)
    yield connection, channel
    turn(connection.connection_lost, None)


def call(xid: int, proc: int, body: bytes = b"", prog: int = PROG, vers: int = VERS, cred: bytes = NULL_AUTH) -> bytes:
    return frame(message.encode_call(xid, prog, vers, proc, cred) + body)


def answers(channel: FakeChannel) -> list[tuple[int, int, bytes]]:
    """xid, accept_stat and results of the replies written so far."""
    found = []
    for record in channel.records():
        header = message.parse_reply(record)
        assert header.accepted and (header.low, header.high) == (0, 0)
        found.append((header.xid, header.stat, record[header.pos :]))
    return found


# -- as a server -------------------------------------------------------------------------------------------------------


def test_calls_are_answered_in_one_write(server: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = server
    feed(connection, call(7, 1, b"abcd") + call(8, 1, b"efgh"))
    assert channel.writes == 1
    assert answers(channel) == [(7, 0, b"dcba"), (8, 0, b"hgfe")]


def test_an_answer_may_come_later_and_out_of_order(server: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = server
    feed(connection, call(1, 5) + call(2, 1, b"ab"))
    assert answers(channel) == [(2, 0, b"ba")]
    connection.reply(1, b"late")
    assert answers(channel) == [(1, 0, b"late")]


@pytest.mark.parametrize(
    ("record", "xid", "stat", "body"),
    [
        (call(3, 1, prog=PROG + 1), 3, message.PROG_UNAVAIL, b""),
        (call(3, 1, vers=VERS + 1), 3, message.PROG_MISMATCH, b""),
        (call(3, 99), 3, message.PROC_UNAVAIL, b""),
        (call(3, 3, b"short"), 3, message.GARBAGE_ARGS, b""),
        (call(3, 2), 3, message.SYSTEM_ERR, b""),
        (call(3, 4), 3, message.SYSTEM_ERR, b""),
        # What stock does with a header it cannot read: xid 0.
        (frame(struct.pack(">10I", 3, 0, 3, PROG, VERS, 1, 0, 0, 0, 0)), 0, message.GARBAGE_ARGS, b""),
        (call(3, 1, cred=struct.pack(">II", 390040, 404) + bytes(404)), 0, message.GARBAGE_ARGS, b""),
        (frame(struct.pack(">8I", 3, 0, 2, PROG, VERS, 1, 0, 9)), 0, message.GARBAGE_ARGS, b""),
        # A flavor that nobody knows is nobody in particular.
        (call(3, 1, b"ab", cred=struct.pack(">II", 77, 8) + bytes(8)), 3, message.SUCCESS, b"ba"),
    ],
    ids=["prog", "vers", "proc", "args", "refused", "fault", "rpcvers", "cred-size", "cut", "flavor"],
)
def test_calls_that_cannot_be_served(
    server: tuple[RpcConnection, FakeChannel],
    record: bytes,
    xid: int,
    stat: int,
    body: bytes,
    expected_logs: Any,
) -> None:
    connection, channel = server
    if record == call(3, 4):
        expected_logs.expect("program 1000, procedure 4 failed")
    feed(connection, record + call(4, 1, b"ok"))
    assert answers(channel) == [(xid, stat, body), (4, 0, b"ko")]
    assert channel.ended is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(b""), "a record of 0 bytes"),
        (frame(b"1234567"), "a record of 7 bytes"),
        (frame(struct.pack(">II", 1, 2)), "message type 2"),
        (b"GET / HTTP/1.1\r\n\r\n", "longer than"),
        (frame(struct.pack(">6I", 5, 0xFFFFFFFF, 0, 0, 0, 0)), "message type"),
    ],
    ids=["empty", "short", "type-2", "http", "type"],
)
def test_what_is_no_rpc_ends_the_connection(
    server: tuple[RpcConnection, FakeChannel],
    data: bytes,
    reason: str,
    caplog: pytest.LogCaptureFixture,
    expected_logs: Any,
) -> None:
    connection, channel = server
    expected_logs.expect(f"{reason}.*connection closed")
    with caplog.at_level(logging.WARNING, "glustx.rpc"):
        feed(connection, data)
        assert channel.ended is not None and reason in channel.ended
        # Nothing more is heard or said, and it is logged once.
        channel.records()
        feed(connection, call(9, 1, b"ab") + data)
        connection.reply(1, b"")
    assert channel.records() == []
    assert len(caplog.records) == 1 and FakeChannel.peer in caplog.text


@pytest.mark.logs("could not be dealt with")
@pytest.mark.logs("a fault of this side; connection closed")
def test_a_fault_of_ours_ends_one_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    connection, channel = RpcConnection({}), FakeChannel()
    connection.hot_call = lambda *_: 1 // 0
    turn(connection.connection_made, channel)
    with caplog.at_level(logging.WARNING, "glustx.rpc"):
        feed(connection, call(1, 1))
    assert channel.ended == "a fault of this side" and "ZeroDivisionError" in caplog.text


def test_a_peer_that_does_not_read_is_not_read_from(server: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = server
    many = 2 * BURST + 5
    channel.backlog = SEND_HIGH + 1
    feed(connection, b"".join(call(n, 1, b"ab") for n in range(many)))
    # What had been read already waits as well.
    assert not channel.reading and len(answers(channel)) == BURST
    channel.backlog = SEND_HIGH // 4 + 1
    turn(connection.resume_writing)
    assert not channel.reading and channel.records() == []
    channel.backlog = SEND_HIGH // 4
    turn(connection.resume_writing)
    assert channel.reading and [xid for xid, *_ in answers(channel)] == list(range(BURST, many))


def test_who_sends_much_lets_others_have_their_turn(server: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = server
    posted: list[Any] = []
    connection.post = posted.append
    many = 2 * BURST + 5
    feed(connection, b"".join(call(n, 1, b"ab") for n in range(many)))
    for done in (BURST, 2 * BURST):
        assert len(answers(channel)) == BURST and not channel.reading
        assert len(posted) == done // BURST
        turn(posted[-1])
    assert [xid for xid, *_ in answers(channel)] == list(range(2 * BURST, many))
    assert channel.reading and len(posted) == 2
    # Gone in between: nothing happens.
    feed(connection, b"".join(call(n, 1, b"ab") for n in range(many)))
    turn(connection.connection_lost, None)
    turn(posted[-1])


def test_several_reasons_to_pause(server: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = server
    connection.pause("a")
    connection.pause("b")
    feed(connection, call(1, 1, b"ab"))
    connection.resume("a")
    connection.resume("a")
    assert not channel.reading and channel.records() == []
    connection.resume("b")
    assert channel.reading and answers(channel) == [(1, 0, b"ba")]


# -- as a client -------------------------------------------------------------------------------------------------------


class Answers:
    """The `reply_to` of a call, and what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
        self.told.append(bytes(view[pos:end]) if view is not None else error)


@pytest.fixture
def client() -> tuple[Dialled, FakeChannel]:
    connection, channel = Dialled(), FakeChannel()
    turn(connection.connection_made, channel)
    return connection, channel


def reply(xid: int, body: bytes = b"", stat: int = 0) -> bytes:
    return frame(message.encode_reply(xid, stat) + body)


def test_replies_out_of_order_find_their_calls(client: tuple[Dialled, FakeChannel]) -> None:
    connection, channel = client
    told = [Answers() for _ in range(4)]
    xids = [connection.call(PROG, VERS, 1, NULL_AUTH, b"args", one) for one in told]
    assert xids == [2, 3, 4, 5]  # stock begins with 2
    sent = [message.parse_call(record) for record in channel.records()]
    assert [(c.xid, c.prog, c.vers, c.proc) for c in sent] == [(xid, PROG, VERS, 1) for xid in xids]
    feed(connection, b"".join(reply(xid, struct.pack(">I", xid)) for xid in (4, 2, 5)))
    assert [one.told for one in told] == [[struct.pack(">I", 2)], [], [struct.pack(">I", 4)], [struct.pack(">I", 5)]]
    assert set(connection.waiting) == {3}


def test_a_reply_to_nothing_is_ignored(client: tuple[Dialled, FakeChannel]) -> None:
    connection, channel = client
    told = Answers()
    xid = connection.call(PROG, VERS, 1, NULL_AUTH, b"", told)
    feed(connection, reply(xid + 100, b"?") + reply(xid, b"mine") + reply(xid, b"twice"))
    assert told.told == [b"mine"] and channel.ended is None


@pytest.mark.parametrize(
    ("record", "text", "code"),
    [
        (reply(2, bytes(8), message.PROG_MISMATCH), "PROG_MISMATCH", errno.EOPNOTSUPP),
        (reply(2, b"", message.PROG_UNAVAIL), "PROG_UNAVAIL", errno.EOPNOTSUPP),
        (reply(2, b"", message.PROC_UNAVAIL), "PROC_UNAVAIL", errno.EOPNOTSUPP),
        (reply(2, b"", message.GARBAGE_ARGS), "GARBAGE_ARGS", errno.EINVAL),
        (reply(2, b"", message.SYSTEM_ERR), "SYSTEM_ERR", errno.EIO),
        (frame(message.encode_denied(2)), "MSG_DENIED", errno.EACCES),
    ],
)
def test_refusals_are_told(client: tuple[Dialled, FakeChannel], record: bytes, text: str, code: int) -> None:
    connection, _ = client
    told = Answers()
    connection.call(PROG, VERS, 1, NULL_AUTH, b"", told)
    feed(connection, record)
    (error,) = told.told
    assert isinstance(error, RpcError) and text in str(error) and error.errno == code


def test_a_reply_with_a_verifier_is_read(client: tuple[Dialled, FakeChannel]) -> None:
    connection, _ = client
    told = Answers()
    connection.call(PROG, VERS, 1, NULL_AUTH, b"", told)
    feed(connection, frame(struct.pack(">5I", 2, 1, 0, 5, 8) + b"verifier" + struct.pack(">I", 0) + b"result"))
    assert told.told == [b"result"]


@pytest.mark.parametrize(
    "body", [b"", struct.pack(">I", 7), struct.pack(">II", 0, 0), struct.pack(">IIII", 0, 0, 0, 9)]
)
@pytest.mark.logs("connection closed")
def test_a_reply_that_is_none_fails_its_call_and_ends_the_connection(
    client: tuple[Dialled, FakeChannel], body: bytes
) -> None:
    connection, channel = client
    told = Answers()
    connection.call(PROG, VERS, 1, NULL_AUTH, b"", told)
    feed(connection, frame(struct.pack(">II", 2, 1) + body))
    assert channel.ended is not None and isinstance(told.told[0], RpcError)


def test_the_connection_ends_with_calls_waiting(client: tuple[Dialled, FakeChannel]) -> None:
    connection, _ = client
    told = [Answers() for _ in range(3)]
    for one in told:
        connection.call(PROG, VERS, 1, NULL_AUTH, b"", one)
    cause = BrokenPipeError(32, "gone")
    turn(connection.connection_lost, cause)
    assert [one.told for one in told] == [[cause]] * 3 and connection.waiting == {}
    late = Answers()
    assert connection.call(PROG, VERS, 1, NULL_AUTH, b"", late) == 0
    assert isinstance(late.told[0], ConnectionResetError)
    turn(connection.connection_lost, None)
    assert [len(one.told) for one in told] == [1, 1, 1]


def test_callbacks_between_replies(client: tuple[Dialled, FakeChannel]) -> None:
    connection, channel = client
    heard = []

    def callback(_: RpcConnection, call: message.Call, body: bytes) -> None:
        heard.append(callbacks.decode_callback(call.proc, body))

    connection.programs = {(p.CALLBACK.number, p.CALLBACK.version): callback}
    told = Answers()
    xid = connection.call(PROG, VERS, 1, NULL_AUTH, b"", told)
    channel.records()
    recall = callbacks.RecallLease(b"g" * 16, 1, b"l" * 16)
    # The server counts its own xids, which may well be those of calls that wait.
    feed(
        connection,
        frame(callbacks.encode_callback(xid, recall))
        + reply(xid, b"answer")
        + frame(callbacks.encode_callback(xid + 1, p.CBK_FETCHSPEC)),
    )
    assert told.told == [b"answer"] and heard == [recall, None]
    assert channel.records() == []  # nobody answers a callback


def test_a_client_reads_on_however_much_it_has_to_send(client: tuple[Dialled, FakeChannel]) -> None:
    connection, channel = client
    channel.backlog = 10 * SEND_HIGH
    connection.call(PROG, VERS, 1, NULL_AUTH, bytes(100), Answers())
    assert channel.reading and not connection.records.held


def test_a_connection_that_comes_too_late_is_closed() -> None:
    connection, channel = Dialled(), FakeChannel()
    connection.ready.fail(TimeoutError("the dialler has given up"))
    turn(connection.connection_made, channel)
    assert channel.ended is not None


# -- a brick's session before and after SETVOLUME ----------------------------------------------------------------------

BRICK = """
volume /brick
  type storage/memory
end-volume

volume server
  type protocol/server
  option auth.addr./brick.allow *
  subvolumes /brick
end-volume
"""
SETVOLUME = p.SetvolumeRequest(
    dict_v1.pack_all({"process-uuid": "me", "remote-subvolume": "/brick", "fops-version": p.FOP_400.number})
).encode()


@pytest.fixture
def session() -> Iterator[tuple[RpcConnection, FakeChannel]]:
    reactor = ManualReactor()
    graph = Graph.load(BRICK, Surroundings(reactor))
    reactor.wait(graph.start())
    connection, channel = graph.root.make_receiver(), FakeChannel()  # type: ignore[attr-defined]
    turn(connection.connection_made, channel)
    yield connection, channel
    turn(connection.connection_lost, None)
    reactor.wait(graph.stop())


def fop(xid: int, proc: int, body: bytes = b"", vers: int = 400) -> bytes:
    return call(xid, proc, body, p.FOP_400.number, vers)


STAT_ROOT = bytes(15) + b"\x01" + bytes(12)


def test_a_fop_before_setvolume(session: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = session
    feed(connection, b"".join(fop(proc + 1, proc, STAT_ROOT) for proc in (1, 12, 13, 46, 49, 56)))
    assert {(stat, body) for _, stat, body in answers(channel)} == {(message.GARBAGE_ARGS, b"")}
    # DUMP and both pings need no introduction.
    feed(
        connection,
        call(1, 1, bytes(8), *_of(p.DUMP)) + call(2, 2, b"", *_of(p.DUMP)) + call(3, 3, b"", *_of(p.HANDSHAKE)),
    )
    (_, _, dumped), ping, pong = answers(channel)
    listed = p.DumpReply.decode(dumped)
    assert all(listed.offers(known) for known in (p.FOP_400, p.FOP_330, p.HANDSHAKE)) and not listed.offers(p.PORTMAP)
    assert ping == (2, 0, bytes(12)) and pong == (3, 0, bytes(12))


def _of(program: p.Program) -> tuple[int, int]:
    return program.number, program.version


def test_procedures_that_are_none(session: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = session
    feed(connection, call(1, 1, SETVOLUME, *_of(p.HANDSHAKE)))
    assert struct.unpack_from(">i", answers(channel)[0][2]) == (0,)
    feed(
        connection, fop(2, 1, STAT_ROOT) + fop(3, 0) + fop(4, 49) + fop(5, 57) + fop(6, 1, STAT_ROOT, 331) + fop(7, 999)
    )
    stat, null, *others = answers(channel)
    assert stat[:2] == (2, 0) and len(stat[2]) == 8 + 12 + 148
    assert null == (3, 0, bytes(12))
    assert [(xid, accept) for xid, accept, _ in others] == [
        (4, message.GARBAGE_ARGS),  # COMPOUND
        (5, message.PROC_UNAVAIL),
        (6, message.PROG_MISMATCH),
        (7, message.PROC_UNAVAIL),
    ]
    feed(connection, fop(8, 1, STAT_ROOT[:-1]) + fop(9, 1, b"") + fop(10, 1, STAT_ROOT + bytes(4)))
    assert [accept for _, accept, _ in answers(channel)] == [message.GARBAGE_ARGS] * 3
    assert channel.ended is None


def test_credentials_that_are_none(session: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = session
    feed(connection, call(1, 1, SETVOLUME, *_of(p.HANDSHAKE)))
    channel.records()
    good = message.encode_auth_v3(message.Caller(pid=1, lk_owner=b"12345678"))
    head = message.encode_call(2, p.FOP_400.number, 400, 1, b"")[:24]

    def stat(cred: bytes, verf: bytes = NULL_AUTH) -> int:
        feed(connection, frame(head + cred + verf + STAT_ROOT))
        ((_, accept, _),) = answers(channel)
        return accept

    odd = struct.pack(">II", message.AUTH_GLUSTERFS_V3, 45) + good[8:] + b"\0\0\0\0\0"
    for _ in range(2):
        assert stat(good) == message.SUCCESS
        assert stat(NULL_AUTH) == message.SUCCESS
        assert stat(good, struct.pack(">II", 1, 0)) == message.GARBAGE_ARGS
        assert stat(good, struct.pack(">II", 0, 4) + b"verf") == message.GARBAGE_ARGS
        assert stat(NULL_AUTH, struct.pack(">II", 0, 4) + b"verf") == message.GARBAGE_ARGS
        assert stat(odd) == message.GARBAGE_ARGS
        assert stat(struct.pack(">II", message.AUTH_GLUSTERFS_V3, 36) + bytes(32) + b"\0\0\1\0") == message.GARBAGE_ARGS
        assert stat(struct.pack(">II", message.AUTH_GLUSTERFS_V2, 4) + bytes(4)) == message.GARBAGE_ARGS


@pytest.mark.logs("a record of 1048576 bytes is longer than 65536; connection closed")
def test_a_stranger_cannot_send_much(session: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = session
    feed(connection, struct.pack(">I", (1 << 20) | 0x80000000))
    assert channel.ended is not None and "longer than" in channel.ended


def test_large_records_once_let_in(session: tuple[RpcConnection, FakeChannel]) -> None:
    connection, channel = session
    feed(connection, call(1, 1, SETVOLUME, *_of(p.HANDSHAKE)))
    channel.records()
    write = bytes(15) + b"\x01" + struct.pack(">qQII", -2, 0, 4 << 20, 2) + struct.pack(">IiI", 0, -1, 0)
    feed(connection, fop(2, 13, write + bytes(4 << 20)))
    ((xid, accept, body),) = answers(channel)
    assert (xid, accept) == (2, 0) and struct.unpack_from(">ii", body) == (-1, 21)  # the root is a directory


def test_xdr_errors_are_value_errors() -> None:
    assert issubclass(XdrError, ValueError)


def test_calls_made_side_by_side_leave_in_one_write(client: tuple[Dialled, FakeChannel]) -> None:
    connection, channel = client
    later: list[Any] = []
    connection.soon = later.append
    answers = Answers()

    def call(number: int) -> None:
        connection.call(PROG, VERS, number, NULL_AUTH, b"", answers)

    call(1)
    assert channel.writes == 1, "a call that is alone leaves at once"
    call(2)
    call(3)
    assert (channel.writes, len(later)) == (1, 1)
    later.pop()()
    assert (channel.writes, len(channel.records())) == (2, 3)
    call(4)
    connection.send(frame(b"head"), memoryview(bytearray()))
    assert channel.writes == 3, "a buffer that may change waits for nobody, and takes along what came before it"
    later.pop()()
    assert (channel.writes, len(channel.records())) == (3, 2)
