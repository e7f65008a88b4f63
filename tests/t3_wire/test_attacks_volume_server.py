"""Strangers at the volume server and at a brick's control socket: what they say, and how much of it, costs what it may
cost, and whoever comes beside them is answered."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glustx.mgmt import control, guests
from glustx.mgmt.server import VolumeServer
from glustx.mgmt.volumes import Brick, Volume, Volumes
from glustx.rpc import message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.rpc.connection import SEND_FEW
from glustx.rpc.memory_pair import MemoryNetwork
from glustx.rpc.record import frame
from glustx.rpc.transport import AsyncioNetwork, drive_in_loop
from glustx.runtime import ManualReactor

HERE = Address("127.0.0.1", 24007)
VOLFILE = "volume v\n" * 3000


class Peer:
    """The dialling end of a connection, which keeps what it is sent."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.got = bytearray()
        self.room = memoryview(bytearray(1 << 16))
        self.closed = False
        self.channel: Any = None
        place.network.dial(HERE, self)
        place.reactor.run()

    def connection_made(self, channel: Any) -> None:
        self.channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.got += self.room[:nbytes]

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True

    def send(self, data: bytes) -> None:
        """Send bytes, and let all happen that can."""
        self.channel.write([data])
        self.place.reactor.run()

    def answer(self) -> bytes:
        """Take the next record out of what came."""
        (mark,) = struct.unpack_from(">I", self.got)
        record = bytes(self.got[4 : 4 + (mark & 0x7FFFFFFF)])
        del self.got[: 4 + len(record)]
        return record

    def ask(self, program: p.Program, proc: int, body: bytes = b"") -> bytes:
        """Call a procedure and return its results."""
        self.send(call(program, proc, body))
        record = self.answer()
        header = message.parse_reply(record)
        assert header.accepted and header.stat == message.SUCCESS, str(header)
        return record[header.pos :]


class Place:
    """Somebody who listens, and the network and clock around."""

    def __init__(self, make: Callable[[ManualReactor], Callable[[], Any]]) -> None:
        self.reactor = ManualReactor()
        self.network = MemoryNetwork(self.reactor)
        self.network.listen(HERE, make(self.reactor))

    def served(self) -> None:
        """Whoever comes is answered at once."""
        assert getspec(Peer(self), "v").spec == VOLFILE


class Site(Place):
    """A volume server of one volume, in a process of 2,000 descriptors."""

    def __init__(self) -> None:
        self.volumes = Volumes()
        self.volumes.add(Volume("v", [Brick("/b", 49152, "the brick's", "v.host.b")], VOLFILE))
        self.server: VolumeServer
        super().__init__(self.make)

    def make(self, reactor: ManualReactor) -> Callable[[], Any]:
        self.server = VolumeServer(reactor, self.volumes, descriptors=2000)
        return self.server.make_receiver


@pytest.fixture
def site() -> Site:
    return Site()


def call(program: p.Program, proc: int, body: bytes = b"") -> bytes:
    return frame(message.encode_call(7, program.number, program.version, proc) + body)


PING = call(p.DUMP, p.DUMP_PING)


def getspec(peer: Peer, key: str) -> p.GetspecReply:
    return p.GetspecReply.decode(peer.ask(p.HANDSHAKE, p.HNDSK_GETSPEC, p.GetspecRequest(1, key).encode()))


# -- what they say -----------------------------------------------------------------------------------------------------


@pytest.mark.logs("longer than 65536; connection closed")
@pytest.mark.parametrize("mark", [0xFFFFFFFF, 0xC0000000, 0x80010001, 0x7FFFFFFF])
def test_records_that_are_announced(site: Site, mark: int) -> None:
    peer = Peer(site)
    peer.send(struct.pack(">I", mark) + bytes(100))
    assert peer.closed and not peer.got
    site.served()


@pytest.mark.logs("a record in empty fragments; connection closed")
def test_fragments(site: Site) -> None:
    data = call(p.HANDSHAKE, p.HNDSK_GETSPEC, p.GetspecRequest(1, "k" * 9900).encode())[4:]
    marks = [1] * (len(data) - 1) + [0x80000001]
    peer = Peer(site)
    peer.send(b"".join(struct.pack(">IB", mark, byte) for mark, byte in zip(marks, data, strict=True)))
    record = peer.answer()
    reply = p.GetspecReply.decode(record[message.parse_reply(record).pos :])
    assert (reply.op_ret, reply.op_errno) == (-1, errno.EINVAL)
    peer.send(bytes(4 * 1000))
    assert peer.closed


@pytest.mark.logs("asks for volfile")
@pytest.mark.logs("99 more such warnings")
@pytest.mark.parametrize(
    "key",
    [
        "../../etc/passwd",
        "/../v",
        "v\0",
        "\0",
        "%s%n",
        "\udcff\udcfe",
        "v\n2026 ERROR",
    ],
)
def test_names_of_volfiles(site: Site, key: str, caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(site)
    for _ in range(100):
        reply = getspec(peer, key)
        assert (reply.op_ret, reply.op_errno, reply.spec) == (-1, errno.ENOENT, "")
    site.served()
    site.server.close()
    said = [record.getMessage() for record in caplog.records if record.name == "glustx.mgmt"]
    assert len(said) <= 2 and not any("\n" in text or "\0" in text for text in said)


@pytest.mark.logs("signs in")
def test_bricks_that_are_none(site: Site) -> None:
    """Signing in leads no client elsewhere, and nothing is remembered of it."""
    peer = Peer(site)
    for n in range(200):
        body = p.SignInRequest(f"/none-{n}", 1 + n, 1).encode()
        assert p.StatusReply.decode(peer.ask(p.PORTMAP, p.PMAP_SIGNIN, body)).op_ret == -1
    assert site.volumes.portmap == {}


def test_a_name_of_60000_bytes(site: Site) -> None:
    reply = getspec(Peer(site), "k" * 60_000)
    assert (reply.op_ret, reply.op_errno, reply.spec) == (-1, errno.EINVAL, "")


# -- how many, how long ------------------------------------------------------------------------------------------------


@pytest.mark.logs("500 others have not asked for anything either")
def test_who_asks_for_nothing(site: Site) -> None:
    """Half a header, nothing at all, a ping: the oldest make room, and half a minute is the end of it."""
    peers = []
    for n in range(600):
        peers.append(Peer(site))
        if n % 3:
            peers[-1].send(b"\x80\x00" if n % 3 == 1 else PING)
    assert [peer.closed for peer in peers] == [True] * 100 + [False] * 500
    client = Peer(site)
    assert getspec(client, "v").spec == VOLFILE
    site.reactor.advance(31)
    assert all(peer.closed for peer in peers) and not client.closed
    assert len(site.server.guests) == 1
    assert getspec(client, "/v").spec == VOLFILE


@pytest.mark.logs("1000 others have asked for something since")
def test_who_stays(site: Site) -> None:
    """Clients stay for as long as they like, until there are too many: then the longest silent goes."""
    first, second = Peer(site), Peer(site)
    assert getspec(first, "v").op_ret > 0 and getspec(second, "v").op_ret > 0
    site.reactor.advance(3600)
    assert getspec(first, "v").op_ret > 0
    others = []
    for _ in range(999):
        others.append(Peer(site))
        getspec(others[-1], "v")
    assert second.closed and not first.closed and not any(peer.closed for peer in others)
    for peer in others:
        peer.channel.abort("gone")
    site.reactor.run()
    assert len(site.server.guests) == 1


def test_who_does_not_read(site: Site) -> None:
    """Volfiles that nobody takes are not made."""
    peer = Peer(site)
    peer.channel.pause_reading()
    ask = call(p.HANDSHAKE, p.HNDSK_GETSPEC, p.GetspecRequest(1, "v").encode())
    for _ in range(10):
        peer.send(ask * 100)
    assert peer.channel.other.queued() < SEND_FEW + 2 * len(VOLFILE)
    site.served()
    peer.channel.resume_reading()
    site.reactor.run()
    assert peer.got.count(VOLFILE.encode()) == 1000


# -- the control socket ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> Place:
    return Place(lambda reactor: control.receivers(reactor, lambda: "d" * 100_000, lambda: {"volume-id": "x"}))


@pytest.mark.logs("others are at the control socket; connection closed")
def test_many_at_the_control_socket(asked: Place) -> None:
    peers = [Peer(asked) for _ in range(control.MOST_ASKERS)]
    late = Peer(asked)
    assert late.closed and not any(peer.closed for peer in peers)
    peers[0].channel.abort("gone")
    asked.reactor.run()
    assert b"volume-id" in Peer(asked).ask(control.CONTROL, control.FACTS)


@pytest.mark.logs("longer than 1048576; connection closed")
def test_records_at_the_control_socket(asked: Place) -> None:
    peer = Peer(asked)
    peer.send(struct.pack(">I", 0xFFFFFFFF))
    assert peer.closed
    peer = Peer(asked)
    peer.channel.pause_reading()
    peer.send(call(control.CONTROL, control.STATEDUMP) * 1000)
    assert peer.channel.other.queued() < SEND_FEW + 200_000
    assert b"volume-id" in Peer(asked).ask(control.CONTROL, control.FACTS)


def test_others_have_their_turn_between_statedumps() -> None:
    order: list[str] = []

    def dump() -> str:
        order.append("dump")
        return ""

    asked = Place(lambda reactor: control.receivers(reactor, dump, dict))
    peer, other = Peer(asked), Peer(asked)
    peer.channel.write([call(control.CONTROL, control.STATEDUMP) * 10])
    for _ in range(3):
        asked.reactor.post(lambda: order.append("other"))
    asked.reactor.run()
    assert order.index("other") <= 2 and order.count("dump") == 10
    assert not other.closed


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs unix sockets")
def test_the_control_socket_is_its_owners_from_the_first_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio
    import socket

    modes: list[int] = []
    path = tmp_path / "control"
    listen = socket.socket.listen

    def watched(self: socket.socket, *backlog: int) -> None:
        modes.append(stat.S_IMODE(path.stat().st_mode))
        listen(self, *backlog)

    monkeypatch.setattr(socket.socket, "listen", watched)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        network = AsyncioNetwork(loop)
        waiter = network.listen(Address(path=str(path)), lambda: guests.RpcConnection(), mode=0o600)

        async def value() -> Any:
            return await waiter

        await drive_in_loop(value(), loop)
        modes.append(stat.S_IMODE(path.stat().st_mode))
        await network.close()

    asyncio.run(run())
    assert modes == [0o600, 0o600]
