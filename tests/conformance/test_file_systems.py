"""What is the same on ext4, xfs, btrfs and tmpfs beyond the suite, and what is each one's own: how it zeroes, whether
copies share blocks, the largest xattr, times that it cannot keep itself, and O_DIRECT."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx import fops, linux
from glustx.values import ROOT_GFID, SET_ATIME, SET_MTIME, Iatt, Loc
from glustx.xdata import Xdata
from tests.conformance.brick import O_RDWR, Brick
from tests.conformance.filesystems import FILE_SYSTEMS, FileSystems, posix_brick, storage
from tests.every_fop import Script
from tests.kit import PATIENCE

METHOD = {"ext4": "zero-range", "xfs": "zero-range", "btrfs": "zero-range", "tmpfs": "punch"}
SHARES = {"xfs", "btrfs"}
# Of those that are tried; on ext4 the xattrs of an inode share one block, on btrfs each has to fit into a node.
LARGEST_XATTR = {"ext4": 300, "xfs": 65536, "btrfs": 10_000, "tmpfs": 65536}
MIB = 1 << 20
O_DIRECT, O_DSYNC, O_APPEND = 0o40000, 0o10000, 0o2000


@pytest.fixture(params=FILE_SYSTEMS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, file_systems: FileSystems) -> Iterator[Path]:
    made = file_systems.folder(kind)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def volfile(folder: Path) -> str:
    return storage(folder)


@pytest.fixture
def brick(kind: str, volfile: str) -> Iterator[Brick]:
    with posix_brick(kind, volfile) as made:
        yield made


def test_every_fop_and_how_it_zeroes(kind: str, brick: Brick) -> None:
    outcomes = Script(brick, brick).run()
    refused = {name for name, outcome in outcomes.items() if outcome not in ("ok", "by-hand")}
    locks = {"lk", "inodelk", "finodelk", "entrylk", "fentrylk", "lease", "getactivelk", "setactivelk"}
    assert refused == {*locks, "ipc"} and brick.names() == []
    assert brick.graph is not None and brick.graph.root.limits()["zero_method"] == METHOD[kind]


def test_a_copy_shares_blocks_where_it_can(kind: str, brick: Brick, folder: Path) -> None:
    data = random.Random(1).randbytes(MIB)
    source, target = brick.make(b"a", data), brick.make(b"b")
    brick(fops.Fsync(source.fd))
    assert brick(fops.CopyFileRange(source.fd, target.fd, offset_in=0, offset_out=0, size=MIB)).count == MIB
    brick(fops.Fsync(target.fd))
    assert brick.content(target.gfid) == data
    if kind != "tmpfs":  # which knows no extents
        with open(folder / "b", "rb") as file:
            extents = list(linux.fiemap(file.fileno(), 0, MIB))
        assert extents and {bool(x.flags & linux.FIEMAP_EXTENT_SHARED) for x in extents} == {kind in SHARES}
    brick(fops.Write(target.fd, 4096, b"x" * 4096))
    assert brick.content(source.gfid) == data
    assert brick.content(target.gfid) == data[:4096] + b"x" * 4096 + data[8192:]


def test_an_xattr_that_is_too_large_leaves_the_old_one(kind: str, brick: Brick) -> None:
    file = brick.make(b"f")
    brick(fops.Setxattr(file.loc, Xdata({b"user.a": b"old"})))
    for size in (300, 10_000, 65536, 65537):
        code, _ = brick.outcome(fops.Setxattr(file.loc, Xdata({b"user.a": bytes(size)})))
        assert code == (0 if size <= LARGEST_XATTR[kind] else errno.ENOSPC if size <= 65536 else errno.E2BIG)
        assert brick(fops.Getxattr(file.loc, b"user.a")).xattrs[b"user.a"] == (b"old" if code else bytes(size))
        brick(fops.Setxattr(file.loc, Xdata({b"user.a": b"old"})))


@pytest.mark.parametrize("seconds", [-5, 0, 2**31, 2**32, 2**34, 2**38])
def test_times_that_no_file_system_can_keep(kind: str, volfile: str, seconds: int) -> None:
    when = Iatt(atime=seconds, atime_nsec=999_999_999, mtime=seconds + 1, mtime_nsec=1)
    with posix_brick(kind, volfile) as brick:
        file = brick.make(b"f")
        brick(fops.Setattr(file.loc, when, SET_ATIME | SET_MTIME))
        before = brick.stat(file.gfid)
    with posix_brick(kind, volfile) as brick:
        after = brick(fops.Lookup(Loc(pargfid=ROOT_GFID, name=b"f"))).stat
        assert (after.atime_ns, after.mtime_ns) == (before.atime_ns, before.mtime_ns) == (when.atime_ns, when.mtime_ns)


# -- O_DIRECT ----------------------------------------------------------------------------------------------------------


def cached(path: Path) -> bool:
    """Whether the first page of a file is in the page cache."""
    with open(path, "rb", buffering=0) as file:
        try:
            return os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT) > 0
        except BlockingIOError:
            return False


@pytest.mark.parametrize("flags", [O_DIRECT, O_DIRECT | O_DSYNC, O_DIRECT | O_APPEND])
def test_direct_data_is_right_however_it_is_aligned(kind: str, brick: Brick, folder: Path, flags: int) -> None:
    rng = random.Random(kind)
    file = brick.make(b"f")
    direct = brick.open(file.gfid, O_RDWR | flags)
    model = bytearray()
    for step in range(60):
        offset = rng.choice((0, 1, 511, 512, 4096, 5000, 65536, len(model)))
        data = rng.randbytes(rng.choice((1, 512, 513, 4096, 12288, 65536, 70000)))
        fd = rng.choice((direct, direct, file.fd))
        at = len(model) if flags & O_APPEND and fd is direct else offset
        reply = brick(fops.Write(fd, offset, data))
        assert reply.count == len(data)
        model.extend(bytes(max(0, at + len(data) - len(model))))
        model[at : at + len(data)] = data
        assert reply.post.size == len(model)
        if step % 7 == 3:
            brick(fops.Zerofill(direct, 4096, 5000))
            model.extend(bytes(max(0, 9096 - len(model))))
            model[4096:9096] = bytes(5000)
        if step % 7 == 5:
            size = rng.randrange(len(model))
            brick(fops.Ftruncate(direct, size))
            del model[size:]
        offset = rng.choice((0, 3, 512, 4096, 8192))
        for fd in (direct, file.fd):
            reply = brick(fops.Read(fd, offset, 65536))
            assert bytes(reply.data) == model[offset : offset + 65536]
    assert (folder / "f").read_bytes() == model
    brick(fops.Release(direct))


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_direct_data_stays_out_of_the_page_cache(kind: str, volfile: str, folder: Path) -> None:
    """A tmpfs is its page cache, and btrfs takes data that it has to sum through its own."""
    data = random.Random(2).randbytes(MIB)
    with posix_brick(kind, volfile) as brick:
        file = brick.make(b"f")
        brick(fops.Write(brick.open(file.gfid, O_RDWR | O_DIRECT), 0, data))
        assert not cached(folder / "f")
        assert brick.content(file.gfid) == data and cached(folder / "f")
    with posix_brick(kind, volfile.replace("end-volume", "    option o-direct on\nend-volume")) as brick:
        file = brick.make(b"g")
        brick(fops.Write(file.fd, 0, data))
        assert brick.content(file.gfid) == data and not cached(folder / "g")


def test_direct_writes_on_a_full_disk(kind: str, volfile: str, folder: Path) -> None:
    with posix_brick(kind, volfile.replace("end-volume", "    option reserve 0\nend-volume")) as brick:
        ballast, file = brick.make(b"ballast"), brick.make(b"f")
        room = os.statvfs(folder)
        brick(fops.Fallocate(ballast.fd, 0, max(MIB, room.f_bavail * room.f_frsize - 20 * MIB)))
        direct = brick.open(file.gfid, O_RDWR | O_DIRECT)
        data, count = random.Random(3).randbytes(MIB), 0
        while not (found := brick.outcome(fops.Write(direct, count, data)))[0]:
            count += found[1].count
            assert count < 200 * MIB
        assert found[0] == errno.ENOSPC
        assert brick.stat(file.gfid).size == count
        stored = brick.content(file.gfid)
        assert len(stored) == count and stored == (data * (count // MIB + 1))[:count]
        if kind != "btrfs":  # which writes what is there anew elsewhere
            brick(fops.Write(direct, 512, data[:4096]))
            assert brick.content(file.gfid)[:8192] == data[:512] + data[:4096] + data[4608:8192]
        brick(fops.Unlink(ballast.loc))
        brick(fops.Release(ballast.fd))
        brick(fops.Release(direct))
    # xfs frees blocks in its own time, btrfs when it commits.
    deadline = time.monotonic() + PATIENCE
    while os.statvfs(folder).f_bavail < room.f_bavail // 2 and time.monotonic() < deadline:
        fd = os.open(folder, os.O_RDONLY)
        linux.syncfs(fd)
        os.close(fd)
    assert os.statvfs(folder).f_bavail >= room.f_bavail // 2


def test_no_direct_descriptor_is_left(brick: Brick) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    file = brick.make(b"f")
    before = descriptors()
    fds = [brick.open(file.gfid, O_RDWR | O_DIRECT) for _ in range(10)]
    assert descriptors() == before + 20
    for fd in fds:
        brick(fops.Release(fd))
    assert descriptors() == before
