"""Conformance of fops on data: reading, writing, sizes, zeroing, allocating, holes, copies, checksums."""

from __future__ import annotations

import errno
import hashlib
import zlib

import pytest

from glustx import fops
from glustx.fops import Discard, Fallocate, Ftruncate, Read, Seek, Truncate, Write, Zerofill
from glustx.inode import Fd
from glustx.values import SEEK_DATA, SEEK_HOLE, Loc
from glustx.xdata import BUF_HAS_ZEROES, CHECK_ZERO_FILLED, Xdata
from tests.conformance.brick import O_APPEND, O_RDONLY, O_RDWR, Brick
from tests.conformance.suite_names import STRANGER

MIB = 1 << 20
PATTERN = bytes(range(256)) * 64  # 16 KiB


class DataSuite:
    """Fops on data."""

    # -- reading and writing -----------------------------------------------------------------------------------------

    def test_write_and_read(self, brick: Brick) -> None:
        file = brick.make(b"f")
        reply = brick(Write(fd=file.fd, offset=0, data=PATTERN))
        assert (reply.count, reply.pre.size, reply.post.size) == (len(PATTERN), 0, len(PATTERN))
        assert reply.post.blocks > 0 and reply.post.gfid == file.gfid
        assert reply.post.mtime_ns >= reply.pre.mtime_ns
        reply = brick(Read(fd=file.fd, offset=100, size=1000))
        assert bytes(reply.data) == PATTERN[100:1100]
        assert reply.stat.size == len(PATTERN)

    def test_write_of_a_view(self, brick: Brick) -> None:
        file = brick.make(b"f")
        buffer = bytearray(PATTERN)
        brick(Write(fd=file.fd, offset=0, data=memoryview(buffer)[10:20]))
        buffer[:] = bytes(len(buffer))
        assert brick.read(file.fd) == PATTERN[10:20]

    def test_write_over_and_past_the_end(self, brick: Brick) -> None:
        file = brick.make(b"f", b"0123456789")
        reply = brick(Write(fd=file.fd, offset=5, data=b"abcdefgh"))
        assert (reply.pre.size, reply.post.size) == (10, 13)
        assert brick.read(file.fd) == b"01234abcdefgh"
        brick(Write(fd=file.fd, offset=9000, data=b"z"))
        assert brick.read(file.fd) == b"01234abcdefgh" + bytes(9000 - 13) + b"z"

    def test_write_of_a_mebibyte(self, brick: Brick) -> None:
        file = brick.make(b"f")
        data = PATTERN * 64
        assert brick(Write(fd=file.fd, offset=1, data=data)).count == MIB
        assert brick.read(file.fd, 0, MIB + 1) == b"\0" + data

    def test_write_in_append_mode(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        fd = brick.open(file.gfid, O_RDWR | O_APPEND)
        brick(Write(fd=fd, offset=0, data=b"def"))
        assert brick.read(file.fd) == b"abcdef"

    def test_read_at_the_end(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        reply = brick(Read(fd=file.fd, offset=0, size=100))
        assert bytes(reply.data) == b"abc" and reply.eof
        reply = brick(Read(fd=file.fd, offset=3, size=100))
        assert bytes(reply.data) == b"" and reply.eof
        reply = brick(Read(fd=file.fd, offset=1 << 40, size=100))
        assert bytes(reply.data) == b"" and reply.eof
        reply = brick(Read(fd=file.fd, offset=0, size=1))
        assert bytes(reply.data) == b"a" and not reply.eof

    def test_data_errors(self, brick: Brick) -> None:
        file = brick.make(b"f")
        never = Fd(file.gfid, O_RDWR)
        brick.fails(Read(fd=never, offset=0, size=1), errno.EBADF, errno.EBADFD)
        brick.fails(Write(fd=file.fd, offset=1 << 63, data=b"x"), errno.EINVAL)
        brick.fails(Read(fd=file.fd, offset=1 << 63, size=1), errno.EINVAL)
        brick.fails(Write(fd=file.fd, offset=(1 << 63) - 1, data=b"xx"), errno.EFBIG, errno.EINVAL)
        assert brick.stat(file.gfid).size == 0

    def test_fsync_shows_the_attributes(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        for datasync in (0, 1):
            reply = brick(fops.Fsync(fd=file.fd, datasync=datasync))
            assert (reply.pre.size, reply.post.size) == (3, 3)

    # -- size --------------------------------------------------------------------------------------------------------

    def test_truncate(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN * 64)
        full = brick.stat(file.gfid)
        reply = brick(Truncate(loc=Loc(gfid=file.gfid), offset=5000))
        assert (reply.pre.size, reply.post.size) == (full.size, 5000)
        assert reply.post.blocks < full.blocks
        reply = brick(Ftruncate(fd=file.fd, offset=12000))
        assert (reply.pre.size, reply.post.size) == (5000, 12000)
        assert brick.read(file.fd) == PATTERN[:5000] + bytes(7000)
        assert brick(Ftruncate(fd=file.fd, offset=0)).post.size == 0

    def test_truncate_errors(self, brick: Brick) -> None:
        file, folder = brick.make(b"f", b"abc"), brick.mkdir(b"d")
        brick.fails(Truncate(loc=folder, offset=0), errno.EISDIR)
        brick.fails(Truncate(loc=Loc(gfid=STRANGER), offset=0), errno.ESTALE)
        brick.fails(Ftruncate(fd=brick.open(file.gfid, O_RDONLY), offset=0), errno.EINVAL, errno.EBADF)
        brick.fails(Ftruncate(fd=file.fd, offset=1 << 63), errno.EINVAL, errno.EFBIG)
        assert brick.read(file.fd) == b"abc"

    # -- ZEROFILL ----------------------------------------------------------------------------------------------------

    def test_zerofill_inside(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        reply = brick(Zerofill(fd=file.fd, offset=3, size=10001))
        assert (reply.pre.size, reply.post.size) == (len(PATTERN), len(PATTERN))
        assert brick.read(file.fd) == PATTERN[:3] + bytes(10001) + PATTERN[10004:]

    def test_zerofill_past_the_end(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN[:10000])
        reply = brick(Zerofill(fd=file.fd, offset=9000, size=2000))
        assert (reply.pre.size, reply.post.size) == (10000, 11000)
        assert brick.read(file.fd) == PATTERN[:9000] + bytes(2000)
        reply = brick(Zerofill(fd=file.fd, offset=50000, size=4096))
        assert (reply.pre.size, reply.post.size) == (11000, 54096)
        assert brick.read(file.fd) == PATTERN[:9000] + bytes(45096)

    def test_zerofill_of_a_fresh_file(self, brick: Brick) -> None:
        file = brick.make(b"f")
        reply = brick(Zerofill(fd=file.fd, offset=0, size=16 * MIB))
        assert reply.post.size == 16 * MIB
        assert reply.post.blocks * 512 >= 16 * MIB
        assert brick.read(file.fd, 16 * MIB - 10, 100) == bytes(10)

    def test_zerofill_by_an_anonymous_fd(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        brick(Zerofill(fd=Fd(file.gfid, O_RDWR, anonymous=True), offset=0, size=100))
        assert brick.read(file.fd) == bytes(100) + PATTERN[100:]

    def test_zerofill_in_append_mode_stays_where_it_is_told(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        fd = brick.open(file.gfid, O_RDWR | O_APPEND)
        brick(Zerofill(fd=fd, offset=10, size=20))
        assert brick.read(file.fd) == PATTERN[:10] + bytes(20) + PATTERN[30:]

    @pytest.mark.parametrize("fop", [Zerofill, Discard, Fallocate])
    def test_ranges_that_are_refused(self, brick: Brick, fop: type[fops.RangeFop]) -> None:
        file = brick.make(b"f", PATTERN)
        reader = brick.open(file.gfid, O_RDONLY)
        brick.fails(fop(fd=file.fd, offset=0, size=0), errno.EINVAL)
        brick.fails(fop(fd=file.fd, offset=1 << 63, size=1), errno.EINVAL)
        brick.fails(fop(fd=file.fd, offset=0, size=1 << 63), errno.EINVAL)
        brick.fails(fop(fd=file.fd, offset=(1 << 63) - 4096, size=8192), errno.EFBIG, errno.EINVAL)
        brick.fails(fop(fd=reader, offset=0, size=1), errno.EBADF)
        brick.fails(fop(fd=Fd(file.gfid, O_RDWR), offset=0, size=1), errno.EBADF, errno.EBADFD)
        assert brick.read(file.fd) == PATTERN
        assert brick.stat(file.gfid).size == len(PATTERN)

    @pytest.mark.parametrize("fop", [Zerofill, Fallocate])
    def test_a_range_beyond_the_file_system(self, brick: Brick, fop: type[fops.RangeFop]) -> None:
        file = brick.make(b"f", PATTERN)
        code, _ = brick.outcome(fop(fd=file.fd, offset=1 << 62, size=4096))
        assert code == brick.far
        assert brick.stat(file.gfid).size == (len(PATTERN) if code else (1 << 62) + 4096)
        assert brick.read(file.fd, 0, len(PATTERN)) == PATTERN

    # -- DISCARD, FALLOCATE ------------------------------------------------------------------------------------------

    def test_discard(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN * 16)
        brick(fops.Fsync(fd=file.fd))
        before = brick.stat(file.gfid)
        reply = brick(Discard(fd=file.fd, offset=4096, size=128 << 10))
        assert reply.pre.size == reply.post.size == before.size
        assert brick.stat(file.gfid).blocks < before.blocks
        expected = bytearray(PATTERN * 16)
        expected[4096 : 4096 + (128 << 10)] = bytes(128 << 10)
        assert brick.read(file.fd) == expected
        brick(Discard(fd=file.fd, offset=1 << 30, size=4096))
        assert brick.stat(file.gfid).size == before.size

    def test_discard_of_bytes(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        brick(Discard(fd=file.fd, offset=10, size=20))
        assert brick.read(file.fd) == PATTERN[:10] + bytes(20) + PATTERN[30:]

    def test_fallocate(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        reply = brick(Fallocate(fd=file.fd, offset=0, size=MIB))
        assert (reply.pre.size, reply.post.size) == (len(PATTERN), MIB)
        assert reply.post.blocks * 512 >= MIB
        assert brick.read(file.fd) == PATTERN + bytes(MIB - len(PATTERN))

    def test_fallocate_keeping_the_size(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        reply = brick(Fallocate(fd=file.fd, offset=MIB, size=MIB, keep_size=1))
        assert reply.pre.size == reply.post.size == len(PATTERN)
        assert reply.post.blocks * 512 >= MIB + len(PATTERN)
        assert brick.read(file.fd) == PATTERN

    @pytest.mark.parametrize("flags", [2, 3, 0x10, 0x11])
    def test_fallocate_with_other_flags(self, brick: Brick, flags: int) -> None:
        file = brick.make(b"f", PATTERN)
        brick.fails(Fallocate(fd=file.fd, offset=0, size=4096, keep_size=flags), errno.EOPNOTSUPP)
        assert brick.read(file.fd) == PATTERN

    # -- SEEK --------------------------------------------------------------------------------------------------------

    def test_seek_finds_every_extent(self, brick: Brick) -> None:
        file = brick.make(b"f")
        step = 256 << 10
        for place in (0, 3, 4, 9):
            brick(Write(fd=file.fd, offset=place * step, data=b"x" * step))
        brick(Ftruncate(fd=file.fd, offset=12 * step))
        brick(fops.Fsync(fd=file.fd))
        extents = []
        offset = 0
        while True:
            code, reply = brick.outcome(Seek(fd=file.fd, offset=offset, what=SEEK_DATA))
            if code:
                assert code == errno.ENXIO
                break
            start = reply.offset
            offset = brick(Seek(fd=file.fd, offset=start, what=SEEK_HOLE)).offset
            extents.append((start // step, offset // step))
        assert extents == [(0, 1), (3, 5), (9, 10)]
        assert brick(Seek(fd=file.fd, offset=11 * step, what=SEEK_HOLE)).offset == 11 * step
        assert brick(Seek(fd=file.fd, offset=10, what=SEEK_DATA)).offset == 10

    def test_seek_errors(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN)
        for what in (SEEK_DATA, SEEK_HOLE):
            brick.fails(Seek(fd=file.fd, offset=len(PATTERN), what=what), errno.ENXIO)
            brick.fails(Seek(fd=file.fd, offset=1 << 40, what=what), errno.ENXIO)
        brick.fails(Seek(fd=file.fd, offset=0, what=7), errno.EINVAL)
        assert brick(Seek(fd=file.fd, offset=0, what=SEEK_HOLE)).offset == len(PATTERN)
        empty = brick.make(b"e")
        brick.fails(Seek(fd=empty.fd, offset=0, what=SEEK_HOLE), errno.ENXIO)

    # -- copies and sums ---------------------------------------------------------------------------------------------

    def test_copy_file_range(self, brick: Brick) -> None:
        source, target = brick.make(b"a", PATTERN), brick.make(b"b", b"0123456789")
        request = fops.CopyFileRange(fd_in=source.fd, fd_out=target.fd, offset_in=100, offset_out=4, size=5000)
        reply = brick(request)
        assert 0 < reply.count <= 5000
        assert (reply.pre.size, reply.post.size) == (10, 4 + reply.count)
        assert reply.stat.gfid == source.gfid  # as stock answers, whatever else one might expect
        assert brick.read(target.fd) == b"0123" + PATTERN[100 : 100 + reply.count]
        past = fops.CopyFileRange(fd_in=source.fd, fd_out=target.fd, offset_in=1 << 20, offset_out=0, size=10)
        assert brick(past).count == 0

    def test_copy_file_range_errors(self, brick: Brick) -> None:
        source, target = brick.make(b"a", PATTERN), brick.make(b"b")
        reader = brick.open(target.gfid, O_RDONLY)
        copy = fops.CopyFileRange
        brick.fails(copy(fd_in=source.fd, fd_out=reader, offset_in=0, offset_out=0, size=10), errno.EBADF)
        brick.fails(copy(fd_in=source.fd, fd_out=source.fd, offset_in=0, offset_out=5, size=10), errno.EINVAL)
        assert brick.stat(target.gfid).size == 0

    def test_rchecksum(self, brick: Brick) -> None:
        file = brick.make(b"f", PATTERN + bytes(4096))
        asked = Xdata({CHECK_ZERO_FILLED: 1})
        reply = brick(fops.Rchecksum(fd=file.fd, offset=10, size=1000, xdata=asked))
        data = PATTERN[10:1010]
        assert reply.weak == zlib.adler32(data, 0)
        assert bytes(reply.strong) == (hashlib.sha256 if reply.flags else hashlib.md5)(data).digest()
        assert not reply.xdata.number(BUF_HAS_ZEROES)
        reply = brick(fops.Rchecksum(fd=file.fd, offset=len(PATTERN), size=4096, xdata=asked))
        assert reply.xdata.number(BUF_HAS_ZEROES) == 1
