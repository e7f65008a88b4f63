"""Data of storage/posix: reads, writes, ranges, and the fops that open or make files."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopCancelled
from glustx.inode import Fd
from glustx.runtime import drive, fan_out, turn
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    SEEK_DATA,
    SEEK_HOLE,
    Loc,
    new_gfid,
)
from glustx.xdata import (
    GFID_REQ,
    WRITE_IS_APPEND,
    Xdata,
    gfuuid,
    uint,
)
from tests.t1_xlator.posix.kit import (
    BIRTH,
    T0,
    Brick,
    attempts,
    birth,
    failure,
    restarted,
)


def test_reads_and_their_ends(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"0123456789")
    assert (brick.read(fd, 4).data, brick.read(fd, 4).eof) == (b"0123", False)
    assert (brick.read(fd, 4, 6).data, brick.read(fd, 4, 6).eof) == (b"6789", True)
    past = brick.read(fd, 4, 100)
    assert (past.data, past.eof, past.stat.size) == (b"", True, 10)
    assert brick.read(fd, 0xFFFFFFFF).data == b"0123456789"
    brick.fails(errno.EINVAL, fops.Read(fd=fd, offset=1 << 63, size=1))
    brick.fails(errno.EINVAL, fops.Write(fd=fd, offset=1 << 63, data=b"x"))
    reader, writer = brick.open(gfid, os.O_RDONLY), brick.open(gfid, os.O_WRONLY)
    brick.fails(errno.EBADF, fops.Write(fd=reader, offset=0, data=b"x"))
    brick.fails(errno.EBADF, fops.Zerofill(fd=reader, offset=0, size=1))
    brick.fails(errno.EBADF, fops.Read(fd=writer, offset=0, size=1))
    appender = brick.open(gfid, os.O_WRONLY | os.O_APPEND)
    brick.write(appender, b"AB", 2)
    assert brick.read(fd).data == b"0123456789AB"
    brick.do(fops.Zerofill(fd=appender, offset=1, size=2))
    assert brick.read(fd).data == b"0\0\0" + b"3456789AB"
    brick.release(fd)
    brick.fails(errno.EBADF, fops.Read(fd=fd, offset=0, size=1))


def test_reads_that_miss_the_cache_go_to_a_worker(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, bytes(range(256)) * 64)
    tries = []

    def preadv(*args: Any) -> int:
        tries.append(args[2])
        raise BlockingIOError(errno.EAGAIN, "not in the cache")

    monkeypatch.setattr(os, "preadv", preadv)
    brick.posix._nowait = True
    cold = brick.open(gfid)
    for number in range(70):
        assert brick.read(cold, 256, 256 * (number % 64)).data == bytes(range(256))
    assert len(tries) == 2  # one miss sends 64 reads without asking


def test_large_and_synchronous_writes_end_when_the_data_is_there(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    block = os.urandom(1 << 20)
    reply = brick.write(fd, memoryview(block))
    assert (reply.count, reply.pre.size, reply.post.size) == (1 << 20, 0, 1 << 20)
    assert (brick.folder / "f").read_bytes() == block
    sync = brick.open(gfid, os.O_RDWR | os.O_SYNC)
    assert brick.write(sync, b"s", 5).count == 1
    assert brick.write(fd, b"t", 6, flags=os.O_DSYNC).count == 1
    assert brick.read(fd, 2, 5).data == b"st"
    brick.do(fops.Fsync(fd=fd))
    brick.do(fops.Fsync(fd=fd, datasync=1))
    asked = Xdata({WRITE_IS_APPEND: uint(1)})
    assert brick.write(fd, b"x", 1 << 20, xdata=asked).xdata[WRITE_IS_APPEND] == 1
    assert brick.write(fd, b"x", 1 << 20, xdata=asked).xdata[WRITE_IS_APPEND] == 0


def test_large_appends_at_one_time_do_not_overlap(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    appenders = [brick.open(gfid, os.O_WRONLY | os.O_APPEND) for _ in range(3)]
    size = 1_500_000
    outcomes = brick.reactor.wait(
        fan_out(
            [
                brick.graph.top(fops.Write(fd=appender, offset=0, data=bytes([65 + number]) * size))
                for number, appender in enumerate(appenders)
            ]
        )
    )
    assert [outcome.get().count for outcome in outcomes] == [size] * 3
    data = brick.read(fd, 3 * size).data
    assert sorted(data[at : at + size] for at in range(0, 3 * size, size)) == [bytes([65 + n]) * size for n in range(3)]


def test_a_cancelled_write_has_its_buffer_until_it_ends(brick: Brick) -> None:
    fd, _ = brick.create(b"f")
    data = bytearray(b"A" * (1 << 20))
    box: list[Any] = []
    runs: list[Any] = []
    request = fops.Write(fd=fd, offset=0, data=memoryview(data), flags=os.O_DSYNC)
    turn(lambda: runs.append(drive(brick.graph.top(request), lambda value, error: box.append((value, error)))))
    assert runs[0] is not None and not box
    runs[0].cancel()
    assert not box, "the fop ended while a worker still had its data"
    brick.reactor.run_until(lambda: bool(box))
    assert isinstance(box[0][1], FopCancelled)
    data[:] = b"B" * (1 << 20)
    assert brick.read(fd, 1 << 20).data == b"A" * (1 << 20)


def test_ranges(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"A" * 10000)
    reply = brick.do(fops.Zerofill(fd=fd, offset=9000, size=2000))
    assert (reply.pre.size, reply.post.size) == (10000, 11000)
    assert brick.read(fd, 3000, 8000).data == b"A" * 1000 + bytes(2000)
    assert brick.do(fops.Zerofill(fd=fd, offset=50000, size=4096)).post.size == 54096
    for offset, size in [(0, 0), (1 << 63, 10), (0, (1 << 64) - 1)]:
        brick.fails(errno.EINVAL, fops.Zerofill(fd=fd, offset=offset, size=size))
        brick.fails(errno.EINVAL, fops.Discard(fd=fd, offset=offset, size=size))
        brick.fails(errno.EINVAL, fops.Fallocate(fd=fd, offset=offset, size=size))
    brick.fails(errno.EFBIG, fops.Zerofill(fd=fd, offset=(1 << 63) - 1, size=1 << 20))
    before = (brick.folder / "f").stat()
    brick.fails(errno.EOPNOTSUPP, fops.Fallocate(fd=fd, offset=0, size=1 << 20, keep_size=2))
    assert (brick.folder / "f").stat() == before
    kept = brick.do(fops.Fallocate(fd=fd, offset=0, size=1 << 20, keep_size=1)).post
    assert kept.size == 54096 and kept.blocks >= 2048
    assert brick.do(fops.Fallocate(fd=fd, offset=0, size=1 << 20)).post.size == 1 << 20
    holed = brick.do(fops.Discard(fd=fd, offset=0, size=8192)).post
    assert holed.size == 1 << 20 and brick.read(fd, 8193, 0).data == bytes(8192) + b"A"
    assert brick.do(fops.Seek(fd=fd, offset=0, what=SEEK_DATA)).offset == 8192
    assert brick.do(fops.Seek(fd=fd, offset=0, what=SEEK_HOLE)).offset == 0
    brick.fails(errno.ENXIO, fops.Seek(fd=fd, offset=1 << 20, what=SEEK_HOLE))
    brick.fails(errno.EINVAL, fops.Seek(fd=fd, offset=0, what=7))
    assert brick.do(fops.Truncate(loc=Loc(gfid=gfid), offset=3)).post.size == 3
    assert brick.do(fops.Ftruncate(fd=fd, offset=5)).post.size == 5
    big = brick.do(fops.Zerofill(fd=fd, offset=0, size=64 << 20)).post
    assert big.size == 64 << 20 and big.blocks >= 64 << 11
    assert brick.do(fops.Ftruncate(fd=fd, offset=1)).pre.size == 64 << 20


@pytest.mark.parametrize("method", ["zero-range", "punch", "writes"])
def test_zerofill_by_every_method(folder: Path, namespace: str, method: str) -> None:
    brick = Brick(folder, namespace, zero_method=method)
    assert brick.posix.limits()["zero_method"] == method
    fd, _ = brick.create(b"f")
    brick.write(fd, b"A" * 100_000)
    request = fops.Zerofill(fd=fd, offset=1000, size=200_000)
    error = failure(brick, request)
    if error is not None and error.errno == errno.EOPNOTSUPP and brick.posix.zero.method != method:
        brick.close()
        pytest.skip(f"{brick.posix.zero.fstype} has no {method}")
    assert error is None
    assert brick.do(fops.Fstat(fd=fd)).stat.size == 201_000
    assert brick.read(fd, 201_000).data == b"A" * 1000 + bytes(200_000)
    brick.close()


def test_copy_file_range_and_checksums(brick: Brick) -> None:
    import hashlib
    import zlib

    data = os.urandom(300_000)
    source, origin = brick.create(b"a")
    target, gfid = brick.create(b"b")
    brick.write(source, data)
    reply = brick.do(fops.CopyFileRange(fd_in=source, fd_out=target, offset_in=0, offset_out=10, size=300_000))
    assert (reply.count, reply.pre.size, reply.post.size, reply.stat.gfid) == (300_000, 0, 300_010, origin)
    assert brick.read(target, 300_000, 10).data == data
    brick.fails(
        errno.EINVAL,
        fops.CopyFileRange(fd_in=source, fd_out=target, offset_in=0, offset_out=0, size=1, flags=9),
    )
    sums = brick.do(fops.Rchecksum(fd=source, offset=7, size=100_000))
    assert (sums.weak, sums.strong) == (zlib.adler32(data[7:100_007], 0), hashlib.md5(data[7:100_007]).digest())
    restarted(brick, fips_mode_rchecksum="on")
    anonymous = Fd(gfid, 0, anonymous=True)
    sums = brick.do(fops.Rchecksum(fd=anonymous, offset=10, size=300_000, xdata=Xdata({b"check-zero-filled": 1})))
    assert sums.strong == hashlib.sha256(data).digest() and sums.flags == 1
    assert sums.xdata[b"fips-mode-rchecksum"] == 1 and b"buf-has-zeroes" not in sums.xdata
    zero = brick.do(fops.Rchecksum(fd=anonymous, offset=0, size=10, xdata=Xdata({b"check-zero-filled": 1})))
    assert zero.xdata[b"buf-has-zeroes"] == 1


def test_create_on_a_name_that_is_there(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"data")
    brick.fails(errno.EEXIST, brick.creation(b"f"))
    again = Fd(NULL_GFID, os.O_RDWR)
    reply = brick.do(brick.creation(b"f", fd=again, flags=os.O_RDWR))
    assert reply.stat.gfid == gfid and reply.stat.size == 4 and again.gfid == gfid
    assert brick.read(again).data == b"data"
    emptied = brick.do(brick.creation(b"f", flags=os.O_RDWR | os.O_TRUNC))
    assert emptied.stat.size == 0
    brick.mkdir(b"d")
    brick.fails(errno.EISDIR, brick.creation(b"d", flags=os.O_RDWR))
    brick.do(fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"l"), linkname=b"nowhere", xdata=birth()))
    brick.fails(errno.EEXIST, brick.creation(b"l", flags=os.O_RDWR))
    assert brick.do(brick.creation(b"echo")).xdata[GFID_REQ] == brick.lookup(b"echo").stat.gfid


def test_wrong_kinds(brick: Brick) -> None:
    folder = brick.mkdir(b"d")
    _, gfid = brick.create(b"f")
    root = ROOT_GFID
    brick.fails(errno.EISDIR, fops.Unlink(loc=Loc(pargfid=root, name=b"d")))
    brick.fails(errno.ENOTDIR, fops.Rmdir(loc=Loc(pargfid=root, name=b"f")))
    brick.fails(errno.EISDIR, fops.Open(loc=Loc(gfid=folder), fd=Fd(folder, 0), flags=0))
    brick.fails(errno.EISDIR, fops.Truncate(loc=Loc(gfid=folder), offset=0))
    brick.fails(errno.EINVAL, fops.Readlink(loc=Loc(gfid=gfid), size=10))
    brick.fails(errno.EPERM, fops.Link(oldloc=Loc(gfid=folder), newloc=Loc(pargfid=root, name=b"e")))
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"f"), newloc=Loc(pargfid=root, name=b"d"))
    brick.fails(errno.EISDIR, move)
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"d"), newloc=Loc(pargfid=root, name=b"f"))
    brick.fails(errno.ENOTDIR, move)
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"d"), newloc=Loc(pargfid=folder, name=b"in"))
    brick.fails(errno.EINVAL, move)
    brick.create(b"x", folder)
    brick.mkdir(b"e")
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"e"), newloc=Loc(pargfid=root, name=b"d"))
    error = failure(brick, move)
    assert error is not None and error.errno in (errno.ENOTEMPTY, errno.EEXIST)  # xfs says EEXIST
    lock = fops.Lease(loc=Loc(gfid=gfid), lease=None)  # type: ignore[arg-type]
    brick.fails(errno.ENOSYS, lock)
    brick.fails(errno.EOPNOTSUPP, fops.Ipc(op=1))
    fd = brick.opendir(folder)
    brick.fails(errno.EISDIR, fops.Read(fd=fd, offset=0, size=1))


def test_two_step_creation(brick: Brick) -> None:
    gfid = new_gfid()
    made = brick.do(fops.Icreate(loc=Loc(gfid=gfid), mode=stat.S_IFREG | 0o600, ctime=T0, stamp=BIRTH)).stat
    assert made.gfid == gfid and made.nlink == 0
    xdata = Xdata({GFID_REQ: gfuuid(gfid)})
    brick.do(fops.Namelink(loc=Loc(pargfid=ROOT_GFID, name=b"f"), xdata=xdata))
    assert brick.lookup(b"f").stat.gfid == gfid and brick.lookup(b"f").stat.nlink == 1
    reply = brick.do(attempts(brick)["put"])
    assert reply.stat.size == 4 and (brick.folder / "new").read_bytes() == b"data"
    assert os.getxattr(brick.folder / "new", "user.a") == b"1"
