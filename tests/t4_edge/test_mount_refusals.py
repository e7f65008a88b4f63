"""What the command line and Python say of a volume of `glustx serve` that cannot be mounted: one sentence, at once, and
exit code 5."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.errors import MountError
from glustx.gfapi import AsyncVolume, Volume
from glustx.rpc.channel import Address
from tests.conformance.served import client_volfile
from tests.kit import ROOT, Stopwatch, free_port, wait_gone
from tests.peers import ServedVolume, VolfileServer
from tests.t2_graph.gfapi_faces import Waited


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVolume]:
    with ServedVolume(tmp_path_factory.mktemp("brick"), "vm") as volume:
        yield volume


def refused(url: str, *said: str, code: int = errno.ENOTCONN, command: tuple[str, ...] = ("fs", "ls")) -> None:
    """Mounting must fail at once with all of `said` and the errno: for both faces and for a command."""
    for mount in (blocking, in_loop):
        watch = Stopwatch()
        with pytest.raises(MountError) as caught:
            mount(url)
        assert watch.seconds() < 5
        text = caught.value.strerror
        assert caught.value.errno == code and f"({errno.errorcode[code]})" in text
        assert all(each in text for each in said), text
    words = [sys.executable, "-m", "glustx", *command, url.rstrip("/") + "/a.img"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 5 and done.stdout == "", done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("glustx: ") and all(each in line for each in said), line


def blocking(url: str) -> None:
    Volume(url)


def in_loop(url: str) -> None:
    loop = asyncio.new_event_loop()
    try:
        Waited(loop, AsyncVolume(url)).mount()
    finally:
        loop.close()


def test_a_volume_that_does_not_exist(served: ServedVolume) -> None:
    server = f"127.0.0.1:{served.port}"
    said = ("volume vn", f"volume server {server}: no such volume")
    refused(f"gluster://{server}/vn/", *said, code=errno.ENOENT)
    refused(f"gluster://{server}/vn/", *said, code=errno.ENOENT, command=("provision", "info"))


def test_a_port_where_nobody_listens() -> None:
    port = free_port()
    refused(f"gluster://127.0.0.1:{port}/vm/", "volume vm", f"127.0.0.1:{port}: Connection refused")


def test_a_host_that_does_not_exist() -> None:
    refused("gluster://no-such-host.invalid/vm/", "volume vm", "no-such-host.invalid:24007: ")


def test_a_brick_that_died(tmp_path: Path) -> None:
    with ServedVolume(tmp_path / "b", "vm") as volume:
        for pid in volume.bricks:
            os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid)
        brick = f"127.0.0.1:{volume.brick_port} brick {tmp_path / 'b'}"
        refused(volume.url(""), f"volume vm (ENOTCONN): {brick}: Connection refused")


def test_a_client_that_is_not_allowed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "glustx", "serve", "--allow", "198.51.100.7"]
    with ServedVolume(tmp_path / "b", "vm", command=command) as volume:
        brick = f"127.0.0.1:{volume.brick_port} brick {tmp_path / 'b'}"
        refused(volume.url(""), f"{brick}: the brick refuses this client: Authentication failed", code=errno.EACCES)


def test_a_port_that_hangs_up() -> None:
    """As one does that expects TLS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)

        def hang_up() -> None:
            try:
                while True:
                    with listener.accept()[0] as peer:
                        peer.recv(1)
            except OSError:
                return  # closed by the test

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        with VolfileServer({"vm": client_volfile(Address("127.0.0.1", port))}) as server:
            where = f"127.0.0.1:{port} brick /bricks/test"
            refused(
                f"gluster://127.0.0.1:{server.port}/vm/", f"{where}: it hangs up on the first call; it may want TLS"
            )
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def test_the_volume_is_usable_afterwards(served: ServedVolume) -> None:
    with Volume(served.url("")) as volume:
        assert volume.listdir("/") == []
