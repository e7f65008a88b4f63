"""storage/memory under the conformance suite, and what only memory can show."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from glustx import fops
from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor, run_now
from glustx.values import ROOT_GFID, SEEK_DATA, SEEK_HOLE, Loc
from tests.conformance.brick import Brick
from tests.conformance.suite import FopSuite

VOLFILE = """
volume store
    type storage/memory
    option capacity 1GB
end-volume
"""


def memory_graph(text: str = VOLFILE) -> Graph:
    graph = Graph.load(text, Surroundings(ManualReactor()))
    run_now(graph.start())
    return graph


@pytest.fixture
def brick() -> Iterator[Brick]:
    graph = memory_graph()
    yield Brick(lambda request: run_now(graph.top(request)))
    run_now(graph.stop())


class TestMemory(FopSuite):
    """storage/memory alone; it never suspends."""


def test_a_full_brick(brick: Brick) -> None:
    file = brick.make(b"f", b"x" * 10000)
    before = brick.statfs()
    too_much = (1 << 30) + 4096
    for request in (
        fops.Zerofill(fd=file.fd, offset=0, size=too_much),
        fops.Fallocate(fd=file.fd, offset=4096, size=too_much),
        fops.Fallocate(fd=file.fd, offset=1 << 30, size=1 << 30, keep_size=1),
    ):
        brick.fails(request, errno.ENOSPC)
        assert brick.stat(file.gfid).size == 10000
        assert brick.read(file.fd) == b"x" * 10000
        assert brick.statfs() == before
    brick(fops.Fallocate(fd=file.fd, offset=0, size=1 << 30))
    assert brick.statfs().bfree == 0
    brick(fops.Write(fd=file.fd, offset=1 << 20, data=b"y"))
    brick.fails(fops.Write(fd=file.fd, offset=1 << 30, data=b"y"), errno.ENOSPC)
    assert brick.stat(file.gfid).size == 1 << 30


def test_space_comes_back(brick: Brick) -> None:
    before = brick.statfs().bfree
    file = brick.make(b"f")
    brick(fops.Zerofill(fd=file.fd, offset=0, size=1 << 20))
    assert brick.statfs().bfree == before - 256
    brick(fops.Discard(fd=file.fd, offset=0, size=1 << 19))
    assert brick.statfs().bfree == before - 128
    brick(fops.Unlink(loc=file.loc))
    assert brick.statfs().bfree == before - 128
    brick(fops.Release(fd=file.fd))
    assert brick.statfs().bfree == before


def test_20_gib_cost_no_memory() -> None:
    graph = memory_graph("volume store\n type storage/memory\nend-volume\n")
    brick = Brick(lambda request: run_now(graph.top(request)))
    file = brick.make(b"f")
    reply = brick(fops.Zerofill(fd=file.fd, offset=0, size=20 << 30))
    assert (reply.post.size, reply.post.blocks) == (20 << 30, 40 << 20)
    assert brick.read(file.fd, (20 << 30) - 5, 100) == bytes(5)


def test_what_is_zeroed_holds_no_data(brick: Brick) -> None:
    file = brick.make(b"f", b"x" * 20000)
    brick(fops.Zerofill(fd=file.fd, offset=4096, size=8192))
    assert brick(fops.Seek(fd=file.fd, offset=0, what=SEEK_HOLE)).offset == 4096
    assert brick(fops.Seek(fd=file.fd, offset=4096, what=SEEK_DATA)).offset == 12288
    brick(fops.Zerofill(fd=file.fd, offset=0, size=20480))
    brick.fails(fops.Seek(fd=file.fd, offset=0, what=SEEK_DATA), errno.ENXIO)


def test_put(brick: Brick) -> None:
    request = fops.Put(
        loc=Loc(pargfid=ROOT_GFID, name=b"f"), mode=0o644, umask=0, flags=0, offset=0, data=b"abc", xdata=brick.fresh()
    )
    gfid = brick(request).stat.gfid
    assert brick.content(gfid) == b"abc"
    brick.fails(request, errno.EEXIST)
