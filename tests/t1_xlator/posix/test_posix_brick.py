"""The brick folder of storage/posix: whose it is, its options, its health, and a full file system."""

from __future__ import annotations

import errno
import os
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import GraphError, OptionError
from glustx.values import (
    ROOT_GFID,
    ROOT_LOC,
    Caller,
    Loc,
    new_gfid,
)
from glustx.xdata import ZERO_METHOD
from glustx.xlators.storage.posix import prepare_brick
from glustx.xlators.storage.posix_reserve import parse_reserve
from tests.brick_check import Layout
from tests.conftest import ExpectedLogs
from tests.t1_xlator.posix.kit import (
    ROOT_TEXT,
    Brick,
    Faulty,
    attempts,
    failure,
    restarted,
)


def test_a_brick_of_another_volume_is_refused(folder: Path, namespace: str) -> None:
    mine, other = "c86e4a85-a39a-4aa6-b0d0-06cf4cc4ea50", "40169439-ebd4-494f-91f6-ca9438168d54"
    with pytest.raises(GraphError, match="has no volume id"):
        Brick(folder, namespace, volume_id=mine)
    prepare_brick(str(folder), mine, namespace=namespace)
    Brick(folder, namespace, volume_id=mine).close()
    with pytest.raises(GraphError, match="belongs to volume"):
        Brick(folder, namespace, volume_id=other)
    with pytest.raises(OSError, match="another"):
        prepare_brick(str(folder), other, namespace=namespace)
    with pytest.raises(GraphError, match="not a UUID"):
        Brick(folder, namespace, volume_id="x")
    inner = folder / "inner"
    inner.mkdir()
    os.setxattr(inner, "trusted.gfid" if namespace == "trusted" else "user.glustx.trusted.gfid", b"g" * 16)
    if namespace == "user":
        os.setxattr(inner, "user.glustx.xattr-namespace", b"user")
    with pytest.raises(GraphError, match="inside another brick"):
        Brick(inner, namespace)


def test_namespaces_are_never_mixed(folder: Path) -> None:
    Brick(folder, "user").close()
    with pytest.raises(GraphError, match="xattr-namespace user"):
        Brick(folder, "trusted")
    assert not [name for name in os.listxattr(folder) if name.startswith("trusted.")]


def test_a_stock_brick_is_not_taken_for_a_users(stock: Brick) -> None:
    with pytest.raises(GraphError, match="must be trusted"):
        Brick(stock.folder, "user")


def test_the_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"host\.example:.*/nowhere: No such file"):
        Brick(tmp_path / "nowhere", "user")
    assert not (tmp_path / "nowhere").exists()


def test_errors_name_host_brick_fop_and_place(brick: Brick) -> None:
    error = brick.fails(errno.ENOENT, fops.Unlink(loc=Loc(pargfid=ROOT_GFID, name=b"n")))
    assert str(error) == f"ENOENT: host.example:{brick.folder}: unlink <{ROOT_TEXT}>/n: No such file or directory"


def test_the_health_file_is_written_and_a_failure_is_told(
    brick: Brick, monkeypatch: pytest.MonkeyPatch, expected_logs: ExpectedLogs
) -> None:
    expected_logs.expect("failed its health check: Input/output error")
    events: list[Any] = []
    brick.graph.listeners.append(lambda event, data: events.append(event.value))

    def check(expected: str) -> None:
        brick.posix.health = "checking" if brick.posix.health == "ok" else brick.posix.health
        brick.reactor.wait(brick.posix._check_health())
        assert brick.posix.health == expected

    check("ok")
    text = (brick.folder / ".glusterfs/health_check").read_text()
    assert struct.calcsize("19s") == len(text)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", Faulty(patch, "pwrite", 1, errno.EIO))
        check("failed")
    check("ok")
    assert events == ["child-down", "child-up"]


def test_a_health_check_that_hangs_has_failed(
    brick: Brick, monkeypatch: pytest.MonkeyPatch, expected_logs: ExpectedLogs
) -> None:
    expected_logs.expect("host.example:.* failed its health check: no answer within 20 s")
    go_on, under_way = threading.Event(), threading.Event()
    began: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        began.append(fd)
        under_way.set()
        assert go_on.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    brick.reactor.advance(30)
    assert under_way.wait(60)
    brick.reactor.advance(20)
    assert brick.posix.health == "failed"
    brick.reactor.advance(300)
    assert len(began) == 1, "one worker waits for a disk that hangs, not one for each check"
    go_on.set()
    while brick.posix.health != "ok":
        brick.reactor.advance(30)
        brick.reactor.run_until(lambda: not brick.posix._touching)


def test_the_janitor_removes_what_a_failed_removal_left(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted(brick, health_check_interval="0")
    folder = brick.mkdir(b"tree")
    brick.create(b"file", brick.mkdir(b"inner", folder))
    for fd in brick.fds:
        brick.release(fd)
    brick.fds = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", Faulty(patch, "listdir", 1, errno.EIO))
        brick.fails(errno.EIO, fops.Rmdir(loc=Loc(pargfid=ROOT_GFID, name=b"tree"), xflags=1))
    landfill = brick.folder / ".glusterfs/landfill"
    assert len(os.listdir(landfill)) == 1
    brick.reactor.advance(599)
    assert len(os.listdir(landfill)) == 1
    brick.reactor.advance(1)
    brick.reactor.run_until(lambda: not os.listdir(landfill))
    assert Layout(brick.folder, brick.namespace).problems() == []


def test_a_full_disk(small: Brick) -> None:
    fd, gfid = small.create(b"f")
    chunk = b"x" * (128 << 10)
    offset = 0
    while (error := failure(small, fops.Write(fd=fd, offset=offset, data=chunk))) is None:
        offset = (small.folder / "f").stat().st_size
    assert error.errno == errno.ENOSPC
    assert (small.folder / "f").stat().st_size == offset > 20 << 20
    small.fails(errno.ENOSPC, fops.Zerofill(fd=fd, offset=offset, size=8 << 20))
    assert small.do(fops.Fstat(fd=fd)).stat.size == offset
    assert small.write(fd, b"overwritten", 0).count == 11  # needs no space
    for kind in ("mkdir", "put"):
        for number in range(300):
            before = small.tree()
            req = attempts(small, b"%s%d" % (kind.encode(), number))[kind]
            if (error := failure(small, req)) is not None:
                break
        assert error is not None and error.errno == errno.ENOSPC
        assert small.tree() == before
    small.do(fops.Truncate(loc=Loc(gfid=gfid), offset=0))
    small.mkdir(b"fits")


def test_a_disk_without_inodes(small: Brick) -> None:
    made: list[bytes] = []
    while True:
        before = small.tree()
        req = small.creation(b"f%d" % len(made))
        if (error := failure(small, req)) is not None:
            break
        small.release(req.fd)
        made.append(req.fd.gfid)
    assert error.errno == errno.ENOSPC
    assert small.tree() == before
    small.unlink(b"f0")
    small.unlink(b"f1")
    assert small.lookup(b"f2").stat.gfid == made[2]


def test_the_reserve_keeps_clients_out_and_lets_internal_ones_in(small: Brick) -> None:
    brick = restarted(small, reserve="1")
    fd, _ = brick.create(b"f")
    brick.posix.options.reserve = "100%"
    brick.posix.options_changed(None)
    brick.fails(errno.ENOSPC, fops.Write(fd=fd, offset=0, data=b"x"))
    brick.fails(errno.ENOSPC, fops.Zerofill(fd=fd, offset=0, size=4096))
    brick.fails(errno.ENOSPC, fops.Fallocate(fd=fd, offset=0, size=4096))
    for req in attempts(brick).values():
        brick.fails(errno.ENOSPC, req)
    healer = Caller(pid=-6)
    assert brick.write(fd, b"healed", caller=healer).count == 6
    assert brick.write(fd, b"HEALED").count == 6  # overwrites take no space
    brick.posix.options.reserve = "0%"
    brick.posix.options_changed(None)
    assert brick.write(fd, b"more", 6).count == 4


@pytest.mark.parametrize(
    ("text", "meaning"),
    [("1", (1, True)), ("2.5%", (2.5, True)), ("100%", (100, True)), ("0", (0, True)), ("10GB", (10 << 30, False))],
)
def test_reserve_is_a_percentage_or_a_size(text: str, meaning: tuple[float, bool]) -> None:
    assert parse_reserve(text) == meaning


@pytest.mark.parametrize(
    ("key", "text"), [("reserve", "101%"), ("reserve", "-1"), ("reserve", "much"), ("create_mask", "0999")]
)
def test_options_that_make_no_sense_are_refused(folder: Path, key: str, text: str) -> None:
    with pytest.raises(OptionError, match=key.replace("_", "-")):
        Brick(folder, "user", **{key: text})
    assert os.listdir(folder) == []


def test_statfs_divides_by_the_bricks_on_the_disk(folder: Path) -> None:
    brick = Brick(folder, "user")
    whole = brick.do(fops.Statfs(loc=Loc(gfid=ROOT_GFID))).statfs
    restarted(brick, shared_brick_count="2")
    half = brick.do(fops.Statfs(loc=Loc(gfid=ROOT_GFID))).statfs
    assert (half.blocks, half.bsize, half.namemax) == (whole.blocks // 2, whole.bsize, whole.namemax)
    brick.fails(errno.ESTALE, fops.Statfs(loc=Loc(gfid=new_gfid())))
    brick.close()


def test_a_folder_is_served_once_at_a_time(brick: Brick) -> None:
    with pytest.raises(GraphError, match="another process, or another volume of this one, serves this folder"):
        Brick(brick.folder, brick.namespace)
    brick.create(b"still-served")
    restarted(brick).lookup(b"still-served")


def test_the_zero_method_is_told_on_demand(brick: Brick) -> None:
    answer = brick.do(fops.Getxattr(loc=ROOT_LOC, key=ZERO_METHOD))
    assert answer.xattrs.text(ZERO_METHOD) == brick.graph.root.limits()["zero_method"]
