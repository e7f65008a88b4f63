"""Leases between peers: a C program on stock's libgfapi, and our own client, each on our brick and on stock's."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.gfapi import Volume as Client
from tests.kit import ROOT, compile_c, need_peer
from tests.peers import BRICK_VOLFILE, ServedVolume, StockBrick, Volume
from tests.t2_graph.gfapi_faces import fails
from tests.t4_edge.bricks import source

PATIENCE = 30.0


@contextlib.contextmanager
def brick_with_leases(kind: str, folder: Path) -> Iterator[Volume]:
    folder.mkdir()
    folder.chmod(0o755)
    if kind == "stock":
        need_peer("namespaces", "glusterfsd")
        text = BRICK_VOLFILE.replace("option leases off", "option leases on")
        with StockBrick(folder, "v1", text) as stock:
            yield stock
    else:
        command = [sys.executable, "-m", "glustx", "serve", "--option", "features/leases:leases=on"]
        with ServedVolume(folder, "v1", command=command) as served:
            yield served


@pytest.fixture(scope="module", params=["glustx", "stock"])
def volume(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    need_peer("root")
    with brick_with_leases(request.param, tmp_path_factory.mktemp("leases") / "brick") as volume:
        yield volume


def test_two_clients_of_libgfapi(volume: Volume, tmp_path: Path) -> None:
    need_peer("gcc", "glusterfs/api/glfs.h")
    program = compile_c(ROOT / "tests/c/lease.c", tmp_path / "lease", libraries=("gfapi", "pthread"))
    volume.run(program, volume.host, str(volume.port), volume.volume, "lease")


def test_two_clients_of_ours(volume: Volume) -> None:
    recalled = threading.Event()
    with Client(source(volume)) as one, Client(source(volume)) as two:
        one.create("/f").close()
        with one.open("/f", "r+b") as file:
            file.lease(recalled=recalled.set)
            assert file.test_lease() == (False, True)
            file.pwrite(b"under the lease", 0)
            change = threading.Thread(target=two.truncate, args=("/f", 5))
            change.start()
            assert recalled.wait(PATIENCE)
            assert file.pwrite(b"still", 0) == 5 and change.is_alive()
            file.unlease()
            change.join(PATIENCE)
            assert not change.is_alive() and file.pread(99, 0) == b"still"
            file.lease(exclusive=False)
            stock = isinstance(volume, StockBrick)
            with fails(errno.EINVAL if stock else errno.EAGAIN):  # stock's OPEN loses the errno
                two.open("/f", os.O_WRONLY | os.O_NONBLOCK)
        with two.open("/f", "rb") as other:
            other.lease(exclusive=False)
