"""protocol/client and protocol/server under the conformance suite: every fop crosses a socket. Other transports and
file systems are in test_product."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.brick import Brick
from tests.conformance.served import client_volfile, served, server_volfile
from tests.conformance.suite import FopSuite
from tests.conformance.suite_locks import LocksSuite

MEMORY = """
volume store
    type storage/memory
end-volume
volume locks
    type features/locks
    subvolumes store
end-volume
"""


def through_the_wire(below: str, above: str = "", server: str = "", client: str = "") -> Iterator[Brick]:
    with served(server_volfile(below, "locks", server)) as brick:
        pump = Pump()
        text = client_volfile(brick.address, above, client)
        graph = Graph.load(text, Surroundings(pump, pump, volume="test"), source="<client>")
        try:
            pump.run(graph.start(), 60)
            pump.start_background()
            yield Brick(lambda request: pump.run(graph.top(request), 60))
            pump.run(graph.stop(), 20)
        finally:
            pump.close()


class TestWireMemory(LocksSuite, FopSuite):
    """A client of storage/memory."""

    @pytest.fixture
    def brick(self) -> Iterator[Brick]:
        yield from through_the_wire(MEMORY)


class TestWirePosix(LocksSuite, FopSuite):
    """A client of storage/posix below the translators of a real brick."""

    @pytest.fixture
    def brick(self, tmp_path: Path) -> Iterator[Brick]:
        folder = tmp_path / "brick"
        folder.mkdir()
        namespace = "trusted" if os.geteuid() == 0 else "user"
        prepare_brick(str(folder), namespace=namespace)
        yield from through_the_wire(f"""
volume store
    type storage/posix
    option directory {folder}
    option xattr-namespace {namespace}
end-volume
volume threads
    type performance/io-threads
    subvolumes store
end-volume
volume locks
    type features/locks
    subvolumes threads
end-volume
""")
