"""A volume by URL over each transport: TCP on IPv4 and IPv6, and unix sockets, for the volume server and the brick;
with the brick's port pinned, and asked of the portmap. Both faces mount it, lose their connection and go on."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx.gfapi import AsyncVolume, Volume
from glustx.mgmt.server import VolumeServer
from glustx.mgmt.volumes import Brick, Volumes
from glustx.mgmt.volumes import Volume as Served
from glustx.rpc.channel import Address
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import turn
from tests.conformance.served import BRICK
from tests.conformance.served import Served as ServedBrick
from tests.conformance.test_wire import MEMORY
from tests.kit import PATIENCE
from tests.t2_graph.gfapi_faces import Waited

SERVER = """{below}
volume {brick}
    type features/locks
    subvolumes store
end-volume
volume server
    type protocol/server
    {listen}
    option auth.addr.{brick}.allow *
    subvolumes {brick}
end-volume
"""
CLIENT = """
volume client
    type protocol/client
    option remote-subvolume {brick}
    {where}
end-volume
"""


class Site(ServedBrick):
    """A brick and a volume server in the event loop of a thread."""

    def __init__(self, listen: str, manager: Address) -> None:
        super().__init__(SERVER.format(below=MEMORY, brick=BRICK, listen=listen))
        self.volumes = Volumes()
        self.manager = manager
        self.network: AsyncioNetwork

    def begin(self) -> None:
        """Bring both up."""
        self.start()

        async def listen() -> None:
            self.network = AsyncioNetwork(self._loop)
            server = VolumeServer(AsyncioReactor(self._loop), self.volumes)
            waiter = self.network.listen(self.manager, server.make_receiver)
            self.manager = (await drive_in_loop(_value(waiter), self._loop)).address

        asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def publish(self, text: str) -> None:
        """Give clients of volume `test` this volfile."""
        self.volumes.portmap[BRICK] = self.address.port
        self.volumes.add(Served("test", [Brick(BRICK, self.address.port, "", "test.brick")], text))

    def cut(self) -> None:
        """Hang up on the clients of the brick."""

        def abort() -> None:
            for session in list(self.graph.root.sessions):  # type: ignore[attr-defined]
                session.channel.abort("pulled")

        async def in_loop() -> None:
            turn(abort)

        asyncio.run_coroutine_threadsafe(in_loop(), self._loop).result(10)

    def end(self) -> None:
        """Take both down."""
        asyncio.run_coroutine_threadsafe(self.network.close(), self._loop).result(10)
        self.stop()


async def _value(waiter: Any) -> Any:
    return await waiter


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


@pytest.fixture(params=["tcp", "tcp-portmap", "tcp6", "tcp6-portmap", "unix"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    kind, _, portmap = request.param.partition("-")
    if kind == "tcp6" and not has_ipv6():
        pytest.skip("needs ::1")
    if kind == "unix":
        path = tmp_path / "brick.socket"
        made = Site(
            f"option transport-type unix\n    option transport.socket.listen-path {path}",
            Address(path=str(tmp_path / "manager.socket")),
        )
    else:
        host = "127.0.0.1" if kind == "tcp" else "::1"
        made = Site(f"option transport.socket.bind-address {host}", Address(host, 0))
    made.begin()
    if kind == "unix":
        where = f"option transport-type unix\n    option transport.socket.connect-path {path}"
    elif portmap:
        where = f"option remote-host {host}\n    option remote-portmap {made.manager.port}"
    else:
        where = f"option remote-host {host}\n    option remote-port {made.address.port}"
    made.publish(CLIENT.format(brick=BRICK, where=where))
    yield made
    made.end()


def url(site: Site) -> str:
    where = site.manager
    return f"gluster+unix:///test?socket={where.path}" if where.path else f"gluster://{where}/test"


@pytest.mark.parametrize("face", ["blocking", "async"])
def test_mounted_cut_and_used_again(site: Site, face: str) -> None:
    loop = asyncio.new_event_loop()
    opened = Volume(url(site)) if face == "blocking" else Waited(loop, AsyncVolume(url(site)))
    with opened as vol:
        with vol.create("/f") as file:
            assert file.pwrite(b"x" * (1 << 20), 0) == 1 << 20
            file.lock()
            for _ in range(2):
                site.cut()
                end = time.monotonic() + PATIENCE
                while True:
                    try:
                        assert file.pread(2 << 20, 0) == b"x" * (1 << 20)
                        break
                    except OSError as error:
                        if error.errno != errno.ENOTCONN or time.monotonic() > end:
                            raise
                        time.sleep(0.01)
            with vol.open("/f", "r+b") as other, pytest.raises(BlockingIOError):
                other.lock(blocking=False)
        vol.unlink("/f")
        (client,) = (x for x in vol.graph.xlators.values() if x.type_name == "protocol/client")
        dump = client.statedump()
        assert dump["session"] == 3 and dump["up"] and dump["posix_locks"] == 0
        assert str(site.address) in dump["remote"] or site.address.path in dump["remote"]
    loop.close()


def test_unix_sockets_that_nobody_serves(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file or directory") as caught:
        Volume(f"gluster+unix:///test?socket={tmp_path / 'none'}")
    assert caught.value.errno == errno.ENOTCONN
