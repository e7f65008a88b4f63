"""The reserve of a brick on small disks: what takes space is refused, what takes none is not."""

from __future__ import annotations

import errno
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx import fops
from glustx.inode import Fd
from glustx.values import ROOT_GFID, Caller, Loc
from glustx.xlators.storage.posix_reserve import SPACE_CHECK, parse_reserve, reserved_blocks
from tests.loopfs import small_disk
from tests.t1_xlator.posix.kit import Brick, birth

MIB = 1 << 20


@pytest.fixture(params=["ext4", "tmpfs", "xfs"])
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Brick]:
    """A brick whose reserve has been reached."""
    with small_disk(str(request.param), tmp_path) as disk:
        folder = disk.root / "brick"
        folder.mkdir()
        made = Brick(folder, reserve="0")
        fd, gfid = made.create(b"data")
        made.write(fd, b"x" * MIB)
        made.do(fops.Fallocate(fd=fd, offset=MIB, size=MIB))
        hole, _ = made.create(b"holes")
        made.write(hole, b"x" * 4096, 0)
        made.write(hole, b"x" * 4096, MIB)
        made.posix.options.reserve = "100%"
        made.posix.options_changed(None)
        made.full = (fd, hole, gfid)  # type: ignore[attr-defined]
        yield made
        del fd, hole
        made.full = None  # type: ignore[attr-defined]
        made.close()
        gc.collect()


def fds(full: Brick) -> tuple[Fd, Fd, bytes]:
    found: tuple[Fd, Fd, bytes] = full.full  # type: ignore[attr-defined]
    return found


def test_what_is_allocated_can_be_overwritten(full: Brick) -> None:
    fd, hole, _ = fds(full)
    assert full.write(fd, b"y" * 65536, 0).count == 65536
    assert full.write(fd, b"y" * 4096, MIB - 4096).count == 4096
    full.do(fops.Zerofill(fd=fd, offset=0, size=MIB))
    full.do(fops.Discard(fd=hole, offset=0, size=4096))
    if full.posix.zero.fstype != "tmpfs":  # there preallocated pages cannot be told from holes
        full.do(fops.Zerofill(fd=fd, offset=0, size=2 * MIB))
        assert full.write(fd, b"y" * 4096, 2 * MIB - 4096).count == 4096
        full.do(fops.Fallocate(fd=fd, offset=0, size=2 * MIB))


def test_what_takes_space_is_refused(full: Brick) -> None:
    fd, hole, _ = fds(full)
    for request in (
        fops.Write(fd=fd, offset=2 * MIB - 1, data=b"yy"),
        fops.Write(fd=fd, offset=8 * MIB, data=b"y"),
        fops.Zerofill(fd=fd, offset=MIB, size=MIB + 1),
        fops.Zerofill(fd=fd, offset=2 * MIB, size=4096),
        fops.Fallocate(fd=fd, offset=2 * MIB, size=4096),
        fops.Fallocate(fd=fd, offset=2 * MIB, size=4096, keep_size=1),
        fops.Ftruncate(fd=fd, offset=3 * MIB),
        fops.CopyFileRange(fd_in=fd, fd_out=hole, offset_in=0, offset_out=MIB, size=2 * 4096),
        fops.Write(fd=hole, offset=MIB // 2, data=b"into a hole"),
        fops.Zerofill(fd=hole, offset=0, size=MIB),
        fops.Write(fd=hole, offset=0, data=b"y" * 65536),
    ):
        full.fails(errno.ENOSPC, request)
    at_end = Fd(fds(full)[2], os.O_WRONLY | os.O_APPEND)
    full.do(fops.Open(loc=Loc(gfid=fds(full)[2]), fd=at_end, flags=os.O_WRONLY | os.O_APPEND))
    full.fails(errno.ENOSPC, fops.Write(fd=at_end, offset=0, data=b"y"))
    full.release(at_end)
    full.fails(errno.ENOSPC, full.creation(b"new"))
    full.fails(errno.ENOSPC, fops.Mkdir(loc=Loc(pargfid=ROOT_GFID, name=b"d"), mode=0o755, xdata=birth()))
    assert full.write(fd, b"z", 2 * MIB, caller=Caller(pid=-6)).count == 1, "the self-heal daemon may"


def test_what_gives_space_back_is_welcome(full: Brick) -> None:
    fd, _, _ = fds(full)
    full.do(fops.Discard(fd=fd, offset=0, size=MIB))
    full.do(fops.Ftruncate(fd=fd, offset=4096))
    full.unlink(b"holes")
    full.unlink(b"data")
    assert full.names() == [b".", b".."]


def test_statfs_tells_what_clients_may_use(full: Brick) -> None:
    figures = full.do(fops.Statfs(loc=Loc(gfid=ROOT_GFID))).statfs
    assert (figures.bfree, figures.bavail) == (0, 0) and figures.blocks > 0
    full.posix.options.reserve = "1MB"
    full.posix.options_changed(None)
    there = os.statvfs(full.folder)
    figures = full.do(fops.Statfs(loc=Loc(gfid=ROOT_GFID))).statfs
    assert figures.bfree == there.f_bfree - MIB // there.f_frsize


def test_the_disk_is_looked_at_again(full: Brick) -> None:
    """Every few seconds, on a worker; FALLOCATE and ZEROFILL see for themselves."""
    fd, _, _ = fds(full)
    full.posix.reserve = parse_reserve("1")
    assert full.posix.low_on_space
    full.do(fops.Fallocate(fd=fd, offset=2 * MIB, size=4096))
    assert not full.posix.low_on_space
    full.posix.reserve = parse_reserve("100%")
    full.fails(errno.ENOSPC, fops.Zerofill(fd=fd, offset=3 * MIB, size=4096))
    assert full.posix.low_on_space
    full.posix.reserve = parse_reserve("1")
    full.fails(errno.ENOSPC, fops.Write(fd=fd, offset=3 * MIB, data=b"y"))
    full.reactor.advance(SPACE_CHECK)
    full.reactor.run_until(lambda: not full.posix.low_on_space)
    full.write(fd, b"y", 3 * MIB)


def test_reserved_blocks() -> None:
    figures = os.statvfs("/")
    assert reserved_blocks(figures, (50.0, True)) == round(figures.f_blocks / 2 + 0.25)
    assert reserved_blocks(figures, (float(figures.f_frsize * 3 + 1), False)) == 4
    assert reserved_blocks(figures, (0.0, True)) == 0
