"""protocol/client and protocol/server under the conformance suite, speaking fop program 330: what that program has no
room for is answered as the tests at the top say."""

from __future__ import annotations

import errno
import hashlib
import time
import zlib
from collections.abc import Iterator

import pytest
from hypothesis.stateful import rule, run_state_machine_as_test

from glustx import fops
from glustx.gfapi.pump import Pump
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.values import SET_MODE, STAMP_ATIME, STAMP_CTIME, STAMP_MTIME, Iatt
from glustx.xdata import BUF_HAS_ZEROES, CHECK_ZERO_FILLED, FIPS_RCHECKSUM, Xdata
from tests.conformance.brick import Brick
from tests.conformance.models import PLACES, SIZES, BytesModel
from tests.conformance.served import client_volfile, served, server_volfile
from tests.conformance.suite import FopSuite, _on
from tests.conformance.suite_locks import LocksSuite
from tests.conformance.test_wire import MEMORY

LATER = (2**31 - 7) * 10**9


class BytesModel330(BytesModel):
    """A file under random fops, of which COPY_FILE_RANGE does not exist."""

    @rule(offset=PLACES, size=SIZES, to=PLACES)
    def copy(self, offset: int, size: int, to: int) -> None:
        fd = self.file.fd
        self.brick.fails(fops.CopyFileRange(fd, fd, offset_in=offset, offset_out=to, size=size), errno.EOPNOTSUPP)


class Suite330(LocksSuite, FopSuite):
    """The suite, and what differs in it."""

    def test_stamps_of_the_client(self, brick: Brick) -> None:
        """The credential says nothing of times: the brick sets those of its own clock, and those that the fop has."""
        file = brick.make(b"f", b"abc")
        start = time.time_ns()
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=LATER, stamp=STAMP_CTIME | STAMP_ATIME))
        after = brick.stat(file.gfid)
        assert start - 10**7 <= after.ctime_ns == after.mtime_ns <= time.time_ns()
        assert after.atime_ns < start

    def test_stamps_never_go_back(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        brick(fops.Write(fd=file.fd, offset=0, data=b"x"))
        first = brick.stat(file.gfid)
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=1, stamp=STAMP_CTIME | STAMP_MTIME))
        assert brick.stat(file.gfid).mtime_ns >= first.mtime_ns

    def test_setxattr_without_a_time_leaves_the_times(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        before = brick.stat(file.gfid)
        brick(fops.Setxattr(loc=file.loc, xattrs=Xdata({b"user.a": b"1"})))
        assert brick.stat(file.gfid).ctime_ns == before.ctime_ns

    def test_stamps_of_the_parent(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        before = brick.stat(folder.gfid)
        brick.mkdir(b"e", folder.gfid)
        after = brick.stat(folder.gfid)
        assert after.mtime_ns == after.ctime_ns >= before.ctime_ns and after.atime_ns == before.atime_ns

    def test_copy_file_range(self, brick: Brick) -> None:
        one, other = brick.make(b"a", b"abc"), brick.make(b"b")
        request = fops.CopyFileRange(fd_in=one.fd, fd_out=other.fd, offset_in=0, offset_out=0, size=3)
        brick.fails(request, errno.EOPNOTSUPP)
        assert brick.read(other.fd) == b""

    def test_copy_file_range_errors(self, brick: Brick) -> None:
        one = brick.make(b"a", b"abc")
        request = fops.CopyFileRange(fd_in=one.fd, fd_out=one.fd, offset_in=0, offset_out=1, size=3)
        brick.fails(request, errno.EOPNOTSUPP)

    def test_rchecksum(self, brick: Brick) -> None:
        data = bytes(range(250)) * 8
        file = brick.make(b"f", data + bytes(4096))
        asked = Xdata({CHECK_ZERO_FILLED: 1})
        reply = brick(fops.Rchecksum(fd=file.fd, offset=10, size=1000, xdata=asked))
        assert reply.weak == zlib.adler32(data[10:1010], 0)
        kind = hashlib.sha256 if reply.flags else hashlib.md5
        assert bytes(reply.strong) == kind(data[10:1010]).digest()[:16]
        assert reply.flags == reply.xdata.number(FIPS_RCHECKSUM)
        assert not reply.xdata.number(BUF_HAS_ZEROES)
        reply = brick(fops.Rchecksum(fd=file.fd, offset=len(data), size=4096, xdata=asked))
        assert reply.xdata.number(BUF_HAS_ZEROES) == 1

    def test_fops_that_name_a_file_by_its_fd_alone(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        unopened = Fd(file.gfid, 2, anonymous=True)
        reply = brick(fops.Fsetattr(unopened, Iatt(mode=0o100600), SET_MODE))
        assert (reply.post.gfid, reply.post.mode) == (file.gfid, 0o100600)
        brick.fails(fops.Rchecksum(unopened, 0, 3), errno.EBADF)

    def test_bytes_of_a_file(self, brick: Brick) -> None:
        run_state_machine_as_test(_on(BytesModel330, brick), settings=self.examples)


def through_the_old_program(below: str) -> Iterator[Brick]:
    with served(server_volfile(below, "locks")) as brick:
        pump = Pump()
        text = client_volfile(brick.address).replace("end-volume", "    option testing.old-protocol on\nend-volume", 1)
        graph = Graph.load(text, Surroundings(pump, pump, volume="test"), source="<client>")
        try:
            pump.run(graph.start(), 60)
            assert graph.root.link.spoken.program.version == 330  # type: ignore[attr-defined]
            pump.start_background()
            yield Brick(lambda request: pump.run(graph.top(request), 60))
            pump.run(graph.stop(), 20)
        finally:
            pump.close()


class TestWire330Memory(Suite330):
    """A client of storage/memory."""

    @pytest.fixture
    def brick(self) -> Iterator[Brick]:
        yield from through_the_old_program(MEMORY)
