"""The suite over everything that a fop may go through: memory and four file systems, by themselves and behind both
versions of the program over TCP, unix sockets and TLS.

All of it is for `make long`. The rest of the time each file system, and each version over each transport, runs the
tests that are likeliest to tell it from another.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from glustx import fops
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.values import NULL_GFID
from tests.certificates import Authority, volfile_options
from tests.conformance.brick import O_CREAT, O_RDWR, Brick
from tests.conformance.filesystems import FILE_SYSTEMS, FileSystems, brick_on, posix_brick, storage
from tests.conformance.served import client_volfile, served, server_volfile
from tests.conformance.suite import FopSuite
from tests.conformance.suite_locks import LocksSuite
from tests.conformance.suite_names import named
from tests.conformance.test_memory import VOLFILE
from tests.conformance.test_wire_330 import Suite330

O_DIRECT = 0o40000
STORES = ("memory", *FILE_SYSTEMS)
TRANSPORTS = ("tcp", "unix", "tls")
LOCKS = """
volume locks
    type features/locks
    subvolumes store
end-volume
"""


class Way(NamedTuple):
    """How a request gets to a store; `transport` is "" where nothing lies between."""

    store: str
    transport: str = ""


# What file systems do differently: holes and blocks, limits, xattrs, link counts of folders, cookies of listings.
TELLING_FILE_SYSTEMS = {
    *("test_bytes_of_a_file", "test_names_of_a_tree", "test_a_range_beyond_the_file_system", "test_truncate"),
    *("test_zerofill_past_the_end", "test_zerofill_of_a_fresh_file", "test_discard", "test_fallocate_keeping_the_size"),
    *("test_seek_finds_every_extent", "test_copy_file_range", "test_copy_file_range_errors", "test_setting_times"),
    *(
        "test_names_of_255_bytes_and_more",
        "test_names_are_bytes",
        "test_mkdir",
        "test_mknod",
        "test_xattrs",
        "test_statfs",
    ),
    *("test_xattr_errors", "test_rename_errors", "test_a_listing_while_names_come_and_go", "test_stamps_of_the_client"),
    "test_an_unlinked_file_lives_while_it_is_open",
}
# What a transport or a codec does: much data, views of it, typed and untyped dictionaries, errors, and closing.
TELLING_WIRES = {
    *("test_write_of_a_mebibyte", "test_write_of_a_view", "test_lookup_brings_xattrs", "test_rchecksum"),
    *("test_a_closed_fd", "test_zerofill_past_the_end", "test_copy_file_range"),
}
CHEAP_400 = (Way("ext4", "unix"), Way("xfs", "tls"), Way("btrfs", "tcp"))
CHEAP_330 = (Way("btrfs", "unix"), Way("tmpfs", "tls"), Way("ext4", "tcp"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every way for every test; what is not cheap or not telling is long."""
    if "way" not in metafunc.fixturenames or metafunc.cls is None:
        return
    name = metafunc.function.__name__
    ways = metafunc.cls.ways
    cheap = metafunc.cls.cheap if name in metafunc.cls.telling else ()
    marked = [
        pytest.param(way, id="-".join(filter(None, way)), marks=() if way in cheap else pytest.mark.long)
        for way in ways
    ]
    metafunc.parametrize("way", marked, indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def below(way: Way, file_systems: FileSystems) -> Iterator[str]:
    """The volfile of a fresh store."""
    if way.store == "memory":
        yield VOLFILE
        return
    folder = file_systems.folder(way.store)
    yield storage(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def tls_options(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The options that turn TLS on in a brick and in a client."""
    authority = Authority(tmp_path_factory.mktemp("tls") / "ca")
    return volfile_options(authority.issue("brick")), volfile_options(authority.issue("client"))


@pytest.fixture
def options(way: Way, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The options of both ends for the transport."""
    if way.transport == "tls":
        found: tuple[str, str] = request.getfixturevalue("tls_options")
        return found
    if way.transport == "unix":
        where = f"option transport.socket.listen-path {tmp_path / 'brick.socket'}"
        return f"    option transport-type unix\n    {where}", ""
    return "", ""


def over_the_wire(way: Way, below: str, options: tuple[str, str], program: int) -> Iterator[Brick]:
    server, client = options
    client += f"\n    option testing.old-protocol {'on' if program == 330 else 'off'}"
    with served(server_volfile(below + LOCKS, "locks", server)) as brick:
        pump = Pump()
        text = client_volfile(brick.address, options=client)
        graph = Graph.load(text, Surroundings(pump, pump, volume="test"), source="<client>")
        try:
            pump.run(graph.start(), 60)
            assert graph.root.link.up, graph.root.link.why  # type: ignore[attr-defined]
            assert graph.root.link.spoken.program.version == program  # type: ignore[attr-defined]
            pump.start_background()
            yield brick_on(way.store, lambda request: pump.run(graph.top(request), 60))
            pump.run(graph.stop(), 20)
        finally:
            pump.close()


class TestFileSystem(FopSuite):
    """storage/posix by itself."""

    ways = cheap = tuple(map(Way, FILE_SYSTEMS))
    telling = TELLING_FILE_SYSTEMS

    @pytest.fixture
    def brick(self, way: Way, below: str) -> Iterator[Brick]:
        with posix_brick(way.store, below) as brick:
            yield brick


class TestWire400(LocksSuite, FopSuite):
    """A client that speaks version 400."""

    ways = tuple(Way(store, transport) for store in STORES for transport in TRANSPORTS)
    cheap = CHEAP_400
    telling = TELLING_WIRES

    @pytest.fixture
    def brick(self, way: Way, below: str, options: tuple[str, str]) -> Iterator[Brick]:
        yield from over_the_wire(way, below, options, 400)


class TestWire330(Suite330):
    """A client that speaks version 330."""

    ways = TestWire400.ways
    cheap = CHEAP_330
    telling = TELLING_WIRES

    @pytest.fixture
    def brick(self, way: Way, below: str, options: tuple[str, str]) -> Iterator[Brick]:
        yield from over_the_wire(way, below, options, 330)


@pytest.mark.parametrize("program", [400, 330])
@pytest.mark.parametrize("way", [Way("ext4", "unix")], ids=["ext4-unix"], indirect=True)
def test_o_direct_reaches_the_brick(way: Way, below: str, options: tuple[str, str], program: int) -> None:
    """By OPEN and by CREATE; descriptors of this process are the brick's."""
    for brick in over_the_wire(way, below, options, program):
        file = brick.make(b"f")
        gc.collect()  # so that none is closed meanwhile
        before = direct_descriptors()
        opened = brick.open(file.gfid, O_RDWR | O_DIRECT)
        assert direct_descriptors() == before + 1
        created = Fd(NULL_GFID, O_RDWR)
        brick(fops.Create(named(b"f"), created, O_RDWR | O_CREAT | O_DIRECT, 0o644, xdata=brick.fresh()))
        assert direct_descriptors() == before + 2
        brick(fops.Write(created, 512, b"x" * 512))
        assert brick.read(opened) == bytes(512) + b"x" * 512


def direct_descriptors() -> int:
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += bool(fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_DIRECT)
    return found
