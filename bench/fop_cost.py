"""What one fop costs in storage/posix alone: no wire, no client, the coroutine driven by hand.

    python -m pytest bench/fop_cost.py

Beside each fop stands the cost of the system calls that it cannot do without, on the same file system.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor
from glustx.values import NULL_GFID, ROOT_GFID, STAMP_CTIME, STAMP_MTIME, Loc, new_gfid
from glustx.xdata import CONTENT, GFID_REQ, MDATA_KEY, Xdata, XdataMemo, encode, gfuuid, uint

pytest.importorskip("pytest_benchmark")

BIRTH = 31
WANTED = Xdata({MDATA_KEY: 1, CONTENT: uint(65536), b"security.ima": 0, b"security.capability": 0})


class Bench:
    """A brick with a directory of files, and a clock for ctime."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reactor = ManualReactor()
        text = f"volume posix\n type storage/posix\n option directory {folder}\nend-volume\n"
        self.graph = Graph.load(text, Surroundings(self.reactor))
        self.reactor.wait(self.graph.start())
        self.memo = XdataMemo()
        self.clock = itertools.count(1_800_000_000_000_000_000, 1000)
        self.numbers = itertools.count()

    def do(self, req: fops.Fop) -> Any:
        """Run a fop that never suspends, as a server's receive path does."""
        co = self.graph.top(req)
        try:
            co.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError(f"{req.name} suspended")

    def birth(self) -> Xdata:
        """The xdata of a creation, as the wire brings it."""
        return self.memo.get(encode(Xdata({GFID_REQ: gfuuid(new_gfid())})))

    def create(self, name: bytes, parent: bytes = ROOT_GFID) -> tuple[Fd, Any]:
        fd = Fd(NULL_GFID, os.O_RDWR)
        loc = Loc(pargfid=parent, name=name)
        req = fops.Create(
            loc=loc, fd=fd, flags=os.O_RDWR, mode=0o644, xdata=self.birth(), ctime=next(self.clock), stamp=BIRTH
        )
        return fd, self.do(req)

    def file(self, size: int) -> tuple[Fd, bytes]:
        fd, reply = self.create(b"f%d" % next(self.numbers))
        for offset in range(0, size, 65536):
            self.do(fops.Write(fd=fd, offset=offset, data=b"x" * min(65536, size - offset)))
        return fd, reply.stat.gfid

    def folder_of(self, count: int) -> Fd:
        reply = self.do(fops.Mkdir(loc=Loc(pargfid=ROOT_GFID, name=b"many"), mode=0o755, xdata=self.birth()))
        gfid = reply.stat.gfid
        for number in range(count):
            fd, _ = self.create(b"file%04d" % number, gfid)
            self.do(fops.Release(fd=fd))
        fd = Fd(gfid, 0, directory=True)
        self.do(fops.Opendir(loc=Loc(gfid=gfid), fd=fd))
        return fd


@pytest.fixture
def brick(tmp_path: Path) -> Iterator[Bench]:
    try:
        os.setxattr(tmp_path, "trusted.glustx", b"1")
        os.removexattr(tmp_path, "trusted.glustx")
    except OSError:
        pytest.skip("trusted xattrs are refused here")
    made = Bench(tmp_path)
    yield made
    made.reactor.wait(made.graph.stop())


def many(benchmark: Any, one: Callable[[], Any], rounds: int = 200, iterations: int = 50) -> None:
    """Measure `one`, after a warm-up."""
    benchmark.pedantic(one, rounds=rounds, iterations=iterations, warmup_rounds=5)


@pytest.mark.parametrize("size", [0, 4096, 1 << 20], ids=["empty", "4k-with-content", "large"])
def test_lookup(benchmark: Any, brick: Bench, size: int) -> None:
    brick.file(size)
    req = fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"f0"), xdata=WANTED)
    many(benchmark, lambda: brick.do(req))


def test_lookup_floor(benchmark: Any, brick: Bench) -> None:
    """Two stats."""
    brick.file(0)
    root = os.open(brick.folder, os.O_RDONLY)

    def calls() -> None:
        os.stat(b"f0", dir_fd=root, follow_symlinks=False)
        os.fstat(root)

    many(benchmark, calls)
    os.close(root)


def test_lookup_missing(benchmark: Any, brick: Bench) -> None:
    req = fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"nothing"), xdata=WANTED)

    def one() -> None:
        with pytest.raises(Exception, match="ENOENT"):
            brick.do(req)

    one()

    def fast() -> None:
        try:
            brick.do(req)
        except Exception:
            pass

    many(benchmark, fast)


def test_stat(benchmark: Any, brick: Bench) -> None:
    _, gfid = brick.file(4096)
    req = fops.Stat(loc=Loc(gfid=gfid))
    many(benchmark, lambda: brick.do(req))


def test_fstat(benchmark: Any, brick: Bench) -> None:
    fd, _ = brick.file(4096)
    req = fops.Fstat(fd=fd)
    many(benchmark, lambda: brick.do(req))


def test_open_release(benchmark: Any, brick: Bench) -> None:
    _, gfid = brick.file(4096)
    loc = Loc(gfid=gfid)

    def one() -> None:
        fd = Fd(gfid, os.O_RDONLY)
        brick.do(fops.Open(loc=loc, fd=fd, flags=os.O_RDONLY))
        brick.do(fops.Release(fd=fd))

    many(benchmark, one)


def test_read_4k(benchmark: Any, brick: Bench) -> None:
    fd, _ = brick.file(1 << 20)
    req = fops.Read(fd=fd, offset=65536, size=4096)
    many(benchmark, lambda: brick.do(req))


def test_read_4k_floor(benchmark: Any, brick: Bench) -> None:
    """pread and fstat."""
    brick.file(1 << 20)
    number = os.open(brick.folder / "f0", os.O_RDONLY)

    def calls() -> None:
        os.pread(number, 4096, 65536)
        os.fstat(number)

    many(benchmark, calls)
    os.close(number)


def test_write_4k(benchmark: Any, brick: Bench) -> None:
    fd, _ = brick.file(1 << 20)
    data = memoryview(b"y" * 4096)

    def one() -> None:
        req = fops.Write(fd=fd, offset=65536, data=data, ctime=next(brick.clock), stamp=STAMP_CTIME | STAMP_MTIME)
        brick.do(req)

    many(benchmark, one)


def test_write_4k_floor(benchmark: Any, brick: Bench) -> None:
    """pwrite, setxattr of 57 bytes, two fstats."""
    brick.file(1 << 20)
    number = os.open(brick.folder / "f0", os.O_RDWR)
    data = b"y" * 4096

    def calls() -> None:
        os.fstat(number)
        os.pwrite(number, data, 65536)
        os.setxattr(number, b"trusted.glusterfs.mdata", b"%057d" % next(brick.clock))
        os.fstat(number)

    many(benchmark, calls)
    os.close(number)


def test_create(benchmark: Any, brick: Bench) -> None:
    def one() -> None:
        brick.create(b"c%d" % next(brick.numbers))

    many(benchmark, one, rounds=100, iterations=20)


def test_create_floor(benchmark: Any, brick: Bench) -> None:
    """openat, three xattrs, mkdir and linkat of the handle, the parent's xattr, four fstats."""
    root = os.open(brick.folder, os.O_RDONLY)
    handles = brick.folder / ".glusterfs"

    def calls() -> None:
        gfid = new_gfid()
        text = gfid.hex()
        name = b"c%d" % next(brick.numbers)
        os.fstat(root)
        number = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=root)
        os.setxattr(number, b"trusted.gfid", gfid)
        os.setxattr(number, b"trusted.gfid2path.5f1befa89614443c", b"00000000-0000-0000-0000-000000000001/x.img")
        os.setxattr(number, b"trusted.glusterfs.mdata", b"%057d" % next(brick.clock))
        folder = f"{handles}/{text[:2]}/{text[2:4]}"
        if not os.path.exists(folder):
            os.mkdir(folder, 0o700)
        os.link(name, f"{folder}/{text}", src_dir_fd=root, follow_symlinks=False)
        os.fstat(number)
        os.setxattr(root, b"trusted.glusterfs.mdata", b"%057d" % next(brick.clock))
        os.fstat(root)
        os.close(number)

    many(benchmark, calls, rounds=100, iterations=20)
    os.close(root)


def test_unlink(benchmark: Any, brick: Bench) -> None:
    names = [b"u%d" % number for number in range(3000)]
    for name in names:
        fd, _ = brick.create(name)
        brick.do(fops.Release(fd=fd))
    left = iter(names)

    def one() -> None:
        loc = Loc(pargfid=ROOT_GFID, name=next(left))
        brick.do(fops.Unlink(loc=loc, ctime=next(brick.clock), stamp=25))

    benchmark.pedantic(one, rounds=100, iterations=25, warmup_rounds=2)


def test_unlink_floor(benchmark: Any, brick: Bench) -> None:
    """lstat, unlink of handle and name, the parent's xattr and two fstats."""
    names = [b"u%d" % number for number in range(3000)]
    handles = {}
    for name in names:
        fd, reply = brick.create(name)
        brick.do(fops.Release(fd=fd))
        handles[name] = brick.graph.root.handle(reply.stat.gfid)  # type: ignore[attr-defined]
    root = os.open(brick.folder, os.O_RDONLY)
    left = iter(names)

    def calls() -> None:
        name = next(left)
        os.lstat(name, dir_fd=root)
        os.fstat(root)
        os.unlink(handles[name])
        os.unlink(name, dir_fd=root)
        os.setxattr(root, b"trusted.glusterfs.mdata", b"%057d" % next(brick.clock))
        os.fstat(root)

    benchmark.pedantic(calls, rounds=100, iterations=25, warmup_rounds=2)
    os.close(root)


def test_readdirp_2000(benchmark: Any, brick: Bench) -> None:
    """The time of a whole listing; divide by 2002 for an entry."""
    fd = brick.folder_of(2000)
    total = 0

    def one() -> None:
        nonlocal total
        offset, total = 0, 0
        while True:
            reply = brick.do(fops.Readdirp(fd=fd, offset=offset, size=131072, xdata=WANTED))
            if not reply.entries:
                break
            total += len(reply.entries)
            offset = reply.entries[-1].off

    benchmark.pedantic(one, rounds=20, warmup_rounds=2)
    assert total == 2002


def test_setxattr(benchmark: Any, brick: Bench) -> None:
    _, gfid = brick.file(4096)
    numbers = itertools.count()

    def one() -> None:
        xattrs = Xdata({b"user.number": b"%d" % next(numbers)})
        brick.do(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=xattrs, ctime=next(brick.clock), stamp=STAMP_CTIME))

    many(benchmark, one)
