"""Volume servers and bricks at IPv6 addresses and unix sockets, by URL and by volfile, with both faces of gfapi."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.errors import MountError
from glustx.gfapi import AsyncVolume, Volume
from glustx.gfapi.url import GlusterURL
from glustx.graph import Graph, Surroundings
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.rpc.connection import RpcConnection
from glustx.rpc.message import Call
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from tests.conformance.served import Served

BRICK = """
volume store
    type storage/memory
end-volume
volume /brick
    type features/locks
    subvolumes store
end-volume
volume server
    type protocol/server
    {listens}
    option auth.addr./brick.allow *
    subvolumes /brick
end-volume
"""
CLIENT = """
volume client
    type protocol/client
    option remote-subvolume /brick
    {dials}
end-volume
"""


class ServedByName(Served):
    """A brick, and a volume server at `manager` that gives out the volfile of its client."""

    def __init__(self, text: str, manager: Address, dials: str) -> None:
        super().__init__(text)
        self.manager = manager
        self.dials = dials

    async def _serve(self) -> None:
        network = AsyncioNetwork(self._loop)
        self.graph = Graph.load(self.text, Surroundings(AsyncioReactor(self._loop), network, volume="vm"))
        try:
            await drive_in_loop(self.graph.start(), self._loop)
            self.address = self.graph.root.address  # type: ignore[attr-defined]

            async def listen() -> Address:
                programs = {(p.HANDSHAKE.number, p.HANDSHAKE.version): self._getspec}
                return (await network.listen(self.manager, lambda: RpcConnection(programs))).address

            self.manager = await drive_in_loop(listen(), self._loop)
            self._up.set()
            await self._stop.wait()
            await drive_in_loop(self.graph.stop(), self._loop)
        finally:
            await network.close()

    def _getspec(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        assert p.GetspecRequest.decode(body).key == "vm"
        return p.GetspecReply.found(CLIENT.format(dials=self.dials.format(port=self.address.port))).encode()


def no_ipv6() -> str:
    """Why there is no IPv6 loopback here; empty when there is."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError as error:
        return str(error)
    return ""


@pytest.fixture(params=["ipv4", "ipv6", "unix", "unix-typed"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServedByName]:
    manager = Address("127.0.0.1")
    listens, dials = "option listen-port 0", "option remote-host 127.0.0.1\noption remote-port {port}"
    if request.param == "ipv6":
        if why := no_ipv6():
            pytest.skip(f"no IPv6 here: {why}")
        manager = Address("::1")
        listens += "\noption transport.socket.bind-address ::1\noption transport.address-family inet6"
        dials = "option remote-host ::1\noption remote-port {port}"
    elif request.param != "ipv4":
        manager = Address(path=str(tmp_path / "glusterd.socket"))
        listens = f"option transport.socket.listen-path {tmp_path / 'brick.socket'}"
        dials = f"option transport.socket.connect-path {tmp_path / 'brick.socket'}"
        if request.param == "unix-typed":
            listens += "\noption transport-type unix"
            dials += "\noption transport-type unix"
    brick = ServedByName(BRICK.format(listens=listens), manager, dials)
    brick.start()
    yield brick
    brick.stop()


def url_of(served: ServedByName) -> str:
    return str(GlusterURL((served.manager,), "vm"))


def test_blocking(served: ServedByName) -> None:
    url = url_of(served)
    assert url.startswith(("gluster://127.0.0.1:", "gluster://[::1]:", "gluster+unix:///vm/?socket=/"))
    with Volume(url) as volume:
        with volume.create("/f") as file:
            file.write(b"hello")
            file.lock()
        assert volume.getsize("/f") == 5
        assert volume.graph.root.link.brick == served.address
        volume.unlink("/f")


def test_async(served: ServedByName) -> None:
    async def main() -> None:
        async with AsyncVolume(url_of(served)) as volume:
            async with await volume.create("/g") as file:
                assert await file.write(b"hello") == 5
            await volume.unlink("/g")

    asyncio.run(main())


def test_other_ways_to_name_it(served: ServedByName) -> None:
    manager = served.manager
    host = manager.path or str(manager)
    with Volume(host, "vm") as volume:
        assert volume.exists("/")
    if manager.path:
        with Volume(f"gluster:///vm?transport=unix&socket={manager.path}") as volume:
            assert volume.host == manager.path
    else:
        dead = Address(manager.host, 1)
        with Volume(str(GlusterURL((dead, manager), "vm"))) as volume:
            assert volume.exists("/")


def test_a_brick_that_is_gone_is_named(served: ServedByName) -> None:
    closed = threading.Event()

    def close() -> None:
        served.graph.root.listener.close()  # type: ignore[attr-defined]
        served._loop.call_soon(served._loop.call_soon, closed.set)  # it stops listening a round later

    served._loop.call_soon_threadsafe(close)
    assert closed.wait(10)
    with pytest.raises(MountError) as caught:
        Volume(url_of(served))
    assert caught.value.errno == errno.ENOTCONN and f": {served.address} brick /brick: " in str(caught.value)


def test_a_socket_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MountError, match=f"unix:{tmp_path}/none: No such file or directory") as caught:
        Volume(f"gluster+unix:///vm?socket={tmp_path}/none")
    assert caught.value.errno == errno.ENOTCONN
