"""storage/memory under the conformance suite, and what only memory can show."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from glustx import fops
from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor, run_now
from glustx.values import ROOT_GFID, SEEK_DATA, SEEK_HOLE, XATTROP_ADD_ARRAY, Iatt, Loc, new_gfid
from glustx.xdata import GFID_REQ, PTR, Typed, Xdata, gfuuid
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


def test_xattrs_of_one_inode_are_bounded(brick: Brick) -> None:
    """A hundred thousand are asked for; what fits can be listed, and what does not changes nothing."""
    file = brick.make(b"f")
    here = Loc(gfid=file.gfid)
    for n in range(4000):
        brick(fops.Setxattr(here, Xdata({b"user.%05d" % n: b"v"})))
    brick.fails(fops.Setxattr(here, Xdata({b"user.a%05d" % n: b"v" for n in range(96_000)})), errno.ENOSPC)
    assert len(brick(fops.Getxattr(here)).xattrs) == 4000
    brick.fails(fops.Setxattr(here, Xdata({b"user.b%d" % n: bytes(65536) for n in range(16)})), errno.ENOSPC)
    one = b"\0\0\0\1" * 16384
    big = Xdata({b"trusted.afr.%d" % n: one for n in range(16)})
    brick.fails(fops.Xattrop(here, XATTROP_ADD_ARRAY, big), errno.ENOSPC)
    assert len(brick(fops.Getxattr(here)).xattrs) == 4000
    brick(fops.Setxattr(here, Xdata({b"user.00000": b"new"})))


def test_xattrop_of_what_is_no_xattr(brick: Brick) -> None:
    file = brick.make(b"f")
    here = Loc(gfid=file.gfid)
    for key, code in ((b"gfid-req", errno.EOPNOTSUPP), (b"", errno.ERANGE), (b"user." + b"k" * 251, errno.ERANGE)):
        brick.fails(fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({key: Typed(PTR, bytes(4))})), code)
    brick.fails(fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({b"user.a": Iatt()})), errno.EINVAL)


def test_a_reply_is_no_longer_than_a_brick_may_hold(brick: Brick) -> None:
    file = brick.make(b"f")
    brick(fops.Truncate(loc=Loc(gfid=file.gfid), offset=1 << 40))
    assert len(brick(fops.Read(file.fd, 0, (1 << 32) - 1)).data) == 128 << 20


def test_inodes_are_bounded() -> None:
    graph = memory_graph(VOLFILE.replace("1GB", "1MB"))
    brick = Brick(lambda request: run_now(graph.top(request)))
    for n in range(255):
        brick.make(b"%d" % n)
    assert brick.statfs().ffree == 0
    wish = Xdata({GFID_REQ: gfuuid(new_gfid())})
    brick.fails(fops.Mkdir(loc=Loc(pargfid=ROOT_GFID, name=b"d"), mode=0o755, xdata=wish), errno.ENOSPC)
    run_now(graph.stop())
