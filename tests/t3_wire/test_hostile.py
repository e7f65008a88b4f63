"""Peers that mean no good, over real sockets: whatever they send, they get an error or a closed connection, memory and
descriptors stay bounded, and a well-behaved client beside them is served at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from glustx import fops
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.codec_special import FOP400
from glustx.rpc.record import frame
from glustx.values import ROOT_GFID, ROOT_LOC, Caller, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xdata_memo import XdataMemo
from tests.conformance.served import BRICK, Served, server_volfile
from tests.kit import PATIENCE, Stopwatch

STORE = """
volume store
    type storage/memory
end-volume
volume threads
    type performance/io-threads
    subvolumes store
end-volume
"""
MIB = 1 << 20


def loops() -> list[str]:
    try:
        import uvloop  # noqa: F401
    except ImportError:
        return ["asyncio"]
    return ["asyncio", "uvloop"]


@pytest.fixture(scope="module", params=loops())
def brick(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A brick on a loopback port, in a thread with a loop of either kind."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "uvloop":
            import uvloop

            patch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
        served = Served(server_volfile(STORE, "threads"))
    served.start()
    yield served
    served.stop()


class Peer:
    """A client made of a blocking socket: it says what the test wants and reads what comes."""

    def __init__(self, brick: Served, timeout: float = PATIENCE) -> None:
        self.socket = socket.create_connection((brick.address.host, brick.address.port), timeout)
        self.xid = 1
        self.numbers: dict[int, int] = {}
        self.cred = message.encode_auth_v3(Caller(pid=os.getpid()))

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def record(self) -> bytes:
        (mark,) = struct.unpack(">I", self.exactly(4))
        return self.exactly(mark & 0x7FFFFFFF)

    def wait_closed(self) -> None:
        """Read until the other end closes; TimeoutError when it does not."""
        with contextlib.suppress(ConnectionResetError):
            while self.socket.recv(1 << 16):
                pass

    def call(self, prog: int, vers: int, proc: int, body: bytes = b"") -> bytes:
        self.xid += 1
        return frame(message.encode_call(self.xid, prog, vers, proc, self.cred) + body)

    def ask(self, prog: int, vers: int, proc: int, body: bytes = b"") -> tuple[int, bytes]:
        """accept_stat and results of a call."""
        self.send(self.call(prog, vers, proc, body))
        record = self.record()
        header = message.parse_reply(record)
        assert header.xid == self.xid and header.accepted
        return header.stat, record[header.pos :]

    def setvolume(self) -> bytes:
        pairs = {"process-uuid": f"peer-{id(self)}", "remote-subvolume": BRICK, "fops-version": p.FOP_400.number}
        return p.SetvolumeRequest(dict_v1.pack_all(pairs)).encode()

    def login(self) -> Peer:
        stat, body = self.ask(p.HANDSHAKE.number, p.HANDSHAKE.version, p.HNDSK_SETVOLUME, self.setvolume())
        assert stat == 0 and p.SetvolumeReply.decode(body).op_ret == 0
        return self

    def fop_call(self, req: Fop) -> bytes:
        body, payload = FOP400[req.procnum].encode_call(req, lambda fd: self.numbers[id(fd)])
        return self.call(p.FOP_400.number, p.FOP_400.version, req.procnum, body + bytes(payload or b""))

    def fop(self, req: Fop) -> Any:
        self.send(self.fop_call(req))
        record = self.record()
        header = message.parse_reply(record)
        assert (header.xid, header.accepted, header.stat) == (self.xid, True, 0)
        reply, number = FOP400[req.procnum].decode_reply(record, header.pos, len(record), XdataMemo())
        if number is not None:
            self.numbers[id(req.fd)] = number  # type: ignore[attr-defined]
        return reply

    def create(self, content: bytes) -> Fd:
        fd = Fd(b"", 2)
        wish = Xdata({GFID_REQ: gfuuid(new_gfid())})
        name = Loc(pargfid=ROOT_GFID, name=os.urandom(8).hex().encode())
        reply = self.fop(fops.Create(name, fd, 0o102, 0o644, xdata=wish))
        fd.gfid = reply.stat.gfid
        self.fop(fops.Write(fd, 0, content))
        return fd


@pytest.fixture(autouse=True)
def others_are_served(brick: Served) -> Iterator[None]:
    """After each attack all its connections are forgotten, and another client is served."""
    forget_complaints(brick)
    yield
    well_behaved(brick)
    wait_for_sessions(brick, 0)


def forget_complaints(brick: Served) -> None:
    """Let the next warning of this host be heard, though the last one is no minute old."""
    root: Any = brick.graph.root
    root.complaints._hosts.clear()


def well_behaved(brick: Served) -> None:
    """A client that connects, logs in, writes and reads, all in under a second."""
    watch = Stopwatch()
    with Peer(brick) as peer:
        peer.login()
        assert peer.fop(fops.Stat(ROOT_LOC)).stat.gfid == ROOT_GFID
        fd = peer.create(b"well behaved")
        assert peer.fop(fops.Read(fd, 5, 100)).data == b"behaved"
        peer.fop(fops.Release(fd))
    assert watch.seconds() < 1.0


def wait_for_sessions(brick: Served, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    done = threading.Event()
    seen: list[int] = []

    def look() -> None:
        seen.append(len(brick.graph.root.sessions))  # type: ignore[attr-defined]
        if seen[-1] == count:
            done.set()
        elif time.monotonic() < deadline:
            brick._loop.call_later(0.01, look)

    brick._loop.call_soon_threadsafe(look)
    assert done.wait(PATIENCE + 5), f"{seen[-1]} sessions, not {count}"


def resident() -> int:
    """Bytes of memory that this process has (the brick lives in it)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")


# -- bytes that are no records, records that are no calls --------------------------------------------------------------


@pytest.mark.logs("connection closed")
def test_random_bytes(brick: Served, seeded: random.Random) -> None:
    peers = [Peer(brick) for _ in range(40)]
    for peer in peers:
        with contextlib.suppress(ConnectionError):
            peer.send(seeded.randbytes(seeded.choice([5, 100, 5000, 100_000])))
    well_behaved(brick)
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
        peer.wait_closed()
        peer.socket.close()


def test_random_records_of_a_client_that_is_let_in(brick: Served, seeded: random.Random) -> None:
    with Peer(brick) as peer:
        peer.login()
        fd = peer.create(b"x")
        good = [peer.fop_call(req) for req in (fops.Stat(ROOT_LOC), fops.Read(fd, 0, 1), fops.Write(fd, 0, b"y"))]
        for _ in range(300):
            data = bytearray(seeded.choice(good)[4:])
            for _ in range(seeded.randrange(1, 6)):
                data[seeded.randrange(8, len(data))] = seeded.randrange(256)
            peer.send(frame(bytes(data)))
            reply = peer.record()
            assert struct.unpack_from(">II", reply)[1] == message.REPLY
        well_behaved(brick)


def test_cut_records(brick: Served) -> None:
    with Peer(brick) as whole:
        record = whole.call(p.HANDSHAKE.number, p.HANDSHAKE.version, p.HNDSK_SETVOLUME, whole.setvolume())
    for cut in range(1, len(record), 7):
        with Peer(brick) as peer:
            peer.send(record[:cut])
            peer.socket.shutdown(socket.SHUT_WR)
            peer.wait_closed()
    well_behaved(brick)
    # Cut short in what the record says, not in its length.
    with Peer(brick) as peer:
        for cut in range(12, len(record) - 4, 9):
            peer.send(frame(record[4 : 4 + cut]))
            answer = message.parse_reply(peer.record())
            assert answer.stat == message.GARBAGE_ARGS
        peer.login()


@pytest.mark.logs("longer than 65536; connection closed")
@pytest.mark.logs("longer than 1073741824; connection closed")
def test_lengths_that_are_too_long(brick: Served) -> None:
    for login, mark in ((False, 0xFFFFFFFF), (False, 0x80010001), (True, 0xFFFFFFFF), (True, 0x7FFFFFFF)):
        with Peer(brick) as peer:
            if login:
                peer.login()
            peer.send(struct.pack(">I", mark) + bytes(100))
            peer.wait_closed()
            well_behaved(brick)
        forget_complaints(brick)


@needs_proc
def test_gigabytes_that_are_announced(brick: Served) -> None:
    before = resident()
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            peer = stack.enter_context(Peer(brick)).login()
            peer.send(struct.pack(">I", ((1 << 30) - 1) | 0x80000000) + bytes(100))
        well_behaved(brick)
        assert resident() - before < 30 * MIB


def test_ten_thousand_fragments_of_one_byte(brick: Served) -> None:
    with Peer(brick) as peer:
        key = "k" * 10_000
        body = p.GetspecRequest(1, key, {}).encode()
        data = peer.call(p.HANDSHAKE.number, p.HANDSHAKE.version, p.HNDSK_GETSPEC, body)[4:]
        marks = [1] * (len(data) - 1) + [0x80000001]
        sender = threading.Thread(
            target=peer.send,
            args=(b"".join(struct.pack(">IB", mark, byte) for mark, byte in zip(marks, data, strict=True)),),
        )
        sender.start()
        well_behaved(brick)
        reply = p.GetspecReply.decode(peer.record()[24:])
        sender.join()
        assert reply.op_ret == -1


@pytest.mark.logs("a record in empty fragments; connection closed")
def test_a_record_of_nothing_without_end(brick: Served) -> None:
    with Peer(brick) as peer:
        with contextlib.suppress(ConnectionError):
            peer.send(bytes(4 * 10_000))
        peer.wait_closed()


def test_a_hundred_half_headers(brick: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            peer = stack.enter_context(Peer(brick))
            peer.send(b"\x80\x00")
        well_behaved(brick)
        late = stack.enter_context(Peer(brick))
        header = late.call(p.DUMP.number, p.DUMP.version, p.DUMP_PING)
        late.send(header[:3])
        well_behaved(brick)
        late.send(header[3:])
        assert message.parse_reply(late.record()).stat == message.SUCCESS


def test_programs_that_are_not_here(brick: Served) -> None:
    with Peer(brick) as peer:
        for prog, vers, stat in (
            (0, 0, message.PROG_UNAVAIL),
            (100003, 3, message.PROG_UNAVAIL),  # NFS
            (p.PORTMAP.number, 1, message.PROG_UNAVAIL),
            (4867634, 2, message.PROG_UNAVAIL),  # brick operations
            (p.CALLBACK.number, 1, message.PROG_UNAVAIL),
            (p.FOP_400.number, 331, message.PROG_MISMATCH),
            (p.HANDSHAKE.number, 99, message.PROG_MISMATCH),
        ):
            assert peer.ask(prog, vers, 1, bytes(64))[0] == stat
        for prog, vers in ((p.DUMP.number, 1), (p.HANDSHAKE.number, 2)):
            assert peer.ask(prog, vers, 77)[0] == message.PROC_UNAVAIL
        for proc in (1, 11, 12, 13, 20, 23, 27, 46, 49, 56):
            assert peer.ask(p.FOP_400.number, 400, proc, bytes(200))[0] == message.GARBAGE_ARGS
        peer.login()
        well_behaved(brick)


def test_dictionaries_that_promise_too_much(brick: Served) -> None:
    with Peer(brick) as peer:
        for lie in ("7fffffff", "ffffffff", "00000001 7fffffff 00000000 00", "00000001 00000001 7fffffff 6b00"):
            data = bytes.fromhex(lie)
            body = struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)
            assert peer.ask(p.HANDSHAKE.number, 2, p.HNDSK_SETVOLUME, body)[0] == message.GARBAGE_ARGS
        peer.login()
        for head in (struct.pack(">IiI", 8, 1, 0x7FFFFFFF), struct.pack(">IiI", 0xFFFFFFFF, 4096, 4096)):
            body = ROOT_GFID + head + bytes(8)
            assert peer.ask(p.FOP_400.number, 400, 1, body)[0] == message.GARBAGE_ARGS
        pairs = Xdata({b"user.%d" % n: b"v" * 10 for n in range(4000)})
        assert peer.fop(fops.Lookup(ROOT_LOC, xdata=pairs)).stat.gfid == ROOT_GFID


# -- peers that do not read, come and go, or die -----------------------------------------------------------------------


def flood(peer: Peer, data: bytes, limit: float = 1.5) -> int:
    """Send `data` over and over until the other end takes no more for a while; returns how many bytes it took."""
    peer.socket.setblocking(False)
    sent = 0
    view = memoryview(data)
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        _, ready, _ = select.select([], [peer.socket], [], 0.2)
        if not ready:
            break
        with contextlib.suppress(BlockingIOError):
            at = sent % len(data)
            sent += peer.socket.send(view[at:])
    return sent


@needs_proc
def test_a_peer_that_asks_and_never_reads(brick: Served) -> None:
    with Peer(brick) as owner, Peer(brick) as peer:
        fd = owner.login().create(bytes(MIB))
        peer.login()
        anonymous = Fd(fd.gfid, 2, anonymous=True)
        peer.numbers[id(anonymous)] = -2
        ask = peer.fop_call(fops.Read(anonymous, 0, MIB))
        well_behaved(brick)
        before = resident()
        sent = flood(peer, ask * 100)
        assert sent > 20 * len(ask)
        assert resident() - before < 64 * MIB
        well_behaved(brick)
        assert resident() - before < 64 * MIB


@needs_proc
def test_small_questions_without_number(brick: Served) -> None:
    with Peer(brick) as peer:
        before = resident()
        flood(peer, peer.call(p.DUMP.number, p.DUMP.version, p.DUMP_DUMP, bytes(8)) * 1000, limit=1.0)
        well_behaved(brick)
        assert resident() - before < 64 * MIB


@needs_proc
def test_a_thousand_connections_leave_no_descriptor(brick: Served) -> None:
    wait_for_sessions(brick, 0)
    before = len(os.listdir("/proc/self/fd"))
    for n in range(1000):
        with Peer(brick) as peer:
            if n % 4 == 1:
                peer.send(b"\x80\x00")
            elif n % 4 == 2:
                peer.send(peer.call(p.DUMP.number, p.DUMP.version, p.DUMP_PING))
            elif n % 20 == 3:
                peer.login()
                peer.create(b"left open")
            if n % 2:
                # Reset instead of a polite end.
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    well_behaved(brick)
    wait_for_sessions(brick, 0)
    assert len(os.listdir("/proc/self/fd")) <= before
    root: Any = brick.graph.root
    assert root.clients == {} and brick.graph.winding == 0


def test_a_peer_that_dies_with_fops_under_way(brick: Served) -> None:
    with Peer(brick) as owner:
        fd = owner.login().create(bytes(MIB))
        for _ in range(20):
            with Peer(brick) as peer:
                peer.login()
                anonymous = Fd(fd.gfid, 2, anonymous=True)
                peer.numbers[id(anonymous)] = -2
                calls = [fops.Read(anonymous, 0, MIB), fops.Write(anonymous, 0, bytes(MIB))] * 3
                for req in calls:
                    peer.send(peer.fop_call(req))
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        well_behaved(brick)
        assert owner.fop(fops.Read(fd, 0, 2 * MIB)).data == bytes(MIB)
