"""How storage/posix gets from gfids and names to objects, and what it remembers of them until they change."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.inode import Fd
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    SET_MODE,
    Iatt,
    Loc,
    gfid_text,
    new_gfid,
)
from glustx.xdata import (
    CONTENT,
    MDATA_KEY,
    Xdata,
    uint,
)
from glustx.xlators.storage.posix_lookup import Plan
from tests.t1_xlator.posix.kit import (
    ROOT_TEXT,
    Brick,
    birth,
    gift,
    restarted,
)


def test_fops_reach_gfids_that_were_never_looked_up(brick: Brick) -> None:
    here = ROOT_GFID
    for level in range(300):
        here = brick.mkdir(b"level%d" % level, here)
    fd, file = brick.create(b"file", here)
    brick.write(fd, b"deep")
    brick.release(fd)
    restarted(brick)
    assert brick.do(fops.Stat(loc=Loc(gfid=file))).stat.size == 4
    restarted(brick)
    assert brick.names(here) == [b".", b"..", b"file"]
    assert brick.lookup(b"file", here).stat.gfid == file
    restarted(brick)
    assert brick.read(Fd(file, os.O_RDWR, anonymous=True)).data == b"deep"


def test_the_cache_of_directories_is_bounded(brick: Brick) -> None:
    brick.posix._dirs_half = 4
    gfids = [brick.mkdir(b"d%d" % number) for number in range(30)]
    before = len(os.listdir("/proc/self/fd"))
    for gfid in gfids * 2:
        brick.create(new_gfid().hex().encode(), gfid)[0].slots.clear()
    assert len(brick.posix._dirs) + len(brick.posix._old_dirs) <= 11
    assert len(os.listdir("/proc/self/fd")) <= before + 10


def test_unknown_and_null_gfids(brick: Brick) -> None:
    nobody = new_gfid()
    brick.fails(errno.ENOENT, fops.Lookup(loc=Loc(gfid=nobody)))
    brick.fails(errno.ESTALE, fops.Lookup(loc=Loc(pargfid=nobody, name=b"x")))
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=nobody)))
    brick.fails(errno.ESTALE, fops.Open(loc=Loc(gfid=nobody), fd=Fd(nobody, 0), flags=0))
    brick.fails(errno.ESTALE, brick.creation(b"x", nobody))
    brick.fails(errno.ESTALE, fops.Read(fd=Fd(nobody, 0, anonymous=True), offset=0, size=1))
    brick.fails(errno.EINVAL, fops.Stat(loc=Loc()))
    brick.fails(errno.EINVAL, fops.Lookup(loc=Loc(name=b"x")))
    brick.fails(errno.EBADF, fops.Fstat(fd=Fd(ROOT_GFID, 0)))
    _, file = brick.create(b"f")
    brick.fails(errno.ENOTDIR, fops.Lookup(loc=Loc(pargfid=file, name=b"x")))
    brick.fails(errno.ENOTDIR, fops.Opendir(loc=Loc(gfid=file), fd=Fd(file, 0)))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (b"a/b", errno.EINVAL),
        (b"a\0b", errno.EINVAL),
        (b"..", errno.EINVAL),
        (b".", errno.EINVAL),
        (b"", errno.EINVAL),
        (b"n" * 256, errno.ENAMETOOLONG),
        (b".glusterfs", errno.EPERM),
    ],
)
def test_names_that_are_refused(brick: Brick, name: bytes, number: int) -> None:
    _, gfid = brick.create(b"f")
    before = brick.tree()
    loc = Loc(pargfid=ROOT_GFID, name=name)
    brick.fails(number, brick.creation(name))
    brick.fails(number, fops.Mkdir(loc=loc, mode=0o755, xdata=birth()))
    brick.fails(number, fops.Symlink(loc=loc, linkname=b"x", xdata=birth()))
    brick.fails(number, fops.Mknod(loc=loc, mode=0o644, xdata=birth()))
    brick.fails(number, fops.Unlink(loc=loc))
    brick.fails(number, fops.Rmdir(loc=loc, xflags=1))
    brick.fails(number, fops.Rename(oldloc=Loc(pargfid=ROOT_GFID, name=b"f"), newloc=loc))
    brick.fails(number, fops.Rename(oldloc=loc, newloc=Loc(pargfid=ROOT_GFID, name=b"g")))
    brick.fails(number, fops.Link(oldloc=Loc(gfid=gfid), newloc=loc))
    assert brick.tree() == before


def test_lookup_of_dots_and_of_the_bricks_own(brick: Brick) -> None:
    inner = brick.mkdir(b"d")
    for name in (b".", b".."):
        assert brick.lookup(name).stat.gfid == ROOT_GFID
    assert brick.lookup(b".", inner).stat.gfid == inner
    brick.fails(errno.EINVAL, fops.Lookup(loc=Loc(pargfid=inner, name=b"..")))
    brick.fails(errno.ENOENT, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b".glusterfs")))
    brick.fails(errno.EINVAL, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"d/../..")))
    assert brick.names() == [b".", b"..", b"d"]


def test_symlinks_never_lead_anywhere(brick: Brick, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    os.chmod(outside / "secret", 0o600)
    link = fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"l"), linkname=os.fsencode(outside), xdata=birth())
    gfid = brick.do(link).stat.gfid
    brick.fails(errno.ENOTDIR, fops.Lookup(loc=Loc(pargfid=gfid, name=b"secret")))
    brick.fails(errno.ELOOP, fops.Open(loc=Loc(gfid=gfid), fd=Fd(gfid, 0), flags=0))
    # One that looks like the handle of a directory.
    target = f"../../00/00/{ROOT_TEXT}/l".encode()
    hostile = brick.do(fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"h"), linkname=target, xdata=birth())).stat.gfid
    restarted(brick)
    assert stat.S_ISLNK(brick.do(fops.Stat(loc=Loc(gfid=hostile))).stat.mode)
    brick.fails(errno.ESTALE, fops.Lookup(loc=Loc(pargfid=hostile, name=b"secret")))
    secret = brick.do(
        fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"s"), linkname=os.fsencode(outside / "secret"), xdata=birth())
    ).stat.gfid
    brick.do(fops.Setattr(loc=Loc(gfid=secret), stat=Iatt(mode=0o777), valid=SET_MODE))
    brick.fails(errno.EINVAL, fops.Truncate(loc=Loc(gfid=secret), offset=0))
    assert (outside / "secret").read_text() == "s"
    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0o600


def test_a_handle_that_is_another_objects_is_not_believed(brick: Brick) -> None:
    _, gfid = brick.create(b"f")
    stranger = new_gfid()
    path = brick.handle(stranger)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.link(brick.folder / "f", path)
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=stranger)))
    assert brick.do(fops.Stat(loc=Loc(gfid=gfid))).stat.gfid == gfid


def test_a_repeated_lookup_asks_for_no_xattr(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
    fd, _ = brick.create(b"f", xdata=gift({b"user.colour": b"blue"}))
    brick.write(fd, b"content")
    first = brick.lookup(b"f")
    assert first.xdata[b"user.colour"] == b"blue" and first.xdata[CONTENT] == b"content"
    assert len(first.xdata[MDATA_KEY]) == 57 and b"security.ima" not in first.xdata

    def never(*args: Any, **kwargs: Any) -> bytes:
        raise AssertionError("getxattr in a repeated LOOKUP")

    monkeypatch.setattr(os, "getxattr", never)
    again = brick.lookup(b"f")
    assert again == first and again.xdata is first.xdata
    assert again.postparent.gfid == ROOT_GFID


def test_changes_from_outside_are_seen(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"before")
    path = brick.folder / "f"
    assert brick.lookup(b"f").xdata[CONTENT] == b"before"
    os.setxattr(path, "user.colour", b"red")
    assert brick.lookup(b"f").xdata[b"user.colour"] == b"red"
    os.chmod(path, 0o600)
    assert stat.S_IMODE(brick.do(fops.Stat(loc=Loc(gfid=gfid))).stat.mode) == 0o600
    path.write_bytes(b"after")
    assert brick.lookup(b"f").xdata[CONTENT] == b"after"
    assert brick.do(fops.Fstat(fd=fd)).stat.size == 5
    os.removexattr(path, "user.colour")
    assert b"user.colour" not in brick.lookup(b"f").xdata
    brick.set_xattr(
        path, "trusted.glusterfs.mdata", bytes.fromhex("010000000000000000" + "00000000000000070000000000000008" * 3)
    )
    assert brick.lookup(b"f").stat.mtime_ns == 7 * 10**9 + 8
    os.rename(path, brick.folder / "g")
    brick.fails(errno.ENOENT, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"f")))
    assert brick.lookup(b"g").stat.gfid == gfid


def test_our_own_changes_are_in_the_next_answer(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    for number in range(20):
        brick.do(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({b"user.colour": b"%d" % number})))
        brick.write(fd, b"%d" % number)
        found = brick.lookup(b"f")
        assert found.xdata[b"user.colour"] == b"%d" % number
        assert found.xdata[CONTENT][: len(b"%d" % number)] == b"%d" % number
        assert found.xdata[MDATA_KEY] == brick.xattr(brick.folder / "f", "trusted.glusterfs.mdata")
        brick.do(fops.Fremovexattr(fd=fd, key=b"user.colour"))
        assert b"user.colour" not in brick.lookup(b"f").xdata


def test_a_reused_inode_number_is_another_file(brick: Brick) -> None:
    gfids, inos = set(), set()
    for _ in range(5):
        path = brick.folder / "f"
        path.write_bytes(b"from outside")
        inos.add(path.stat().st_ino)
        gfids.add(brick.lookup(b"f", xdata=birth()).stat.gfid)
        handle = brick.handle(brick.lookup(b"f").stat.gfid)
        path.unlink()
        handle.unlink()
    assert len(gfids) == 5
    if len(inos) == 5:
        pytest.skip("the file system gave no inode number twice")


def test_contents_kept_in_memory_are_bounded(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glustx.xlators.storage.posix_lookup._CONTENT_KEPT", 10_000)
    for number in range(30):
        fd, _ = brick.create(b"f%d" % number)
        brick.write(fd, b"%02d" % number * 500)
        assert brick.lookup(b"f%d" % number).xdata[CONTENT] == b"%02d" % number * 500
    held = [o for o in brick.posix._inos.values() if o.plan is not None and CONTENT in o.reply]
    assert 0 < len(held) <= 10


def test_keys_that_no_xattr_can_have_are_passed_over(brick: Brick) -> None:
    _, gfid = brick.create(b"f")
    odd = {b"user.a\0b": 0, b"user." + b"n" * 300: 0, b"trusted.x": 0}
    assert dict(brick.lookup(b"f", xdata=Xdata(odd)).xdata) == {}
    loc = Loc(gfid=gfid)
    brick.fails(errno.ENODATA, fops.Getxattr(loc=loc, key=b"user.a\0b"))
    brick.fails(errno.EINVAL, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.a\0b": b"1"})))
    brick.fails(errno.EINVAL, fops.Removexattr(loc=loc, key=b"user.a\0b"))
    brick.fails(errno.EINVAL, fops.Xattrop(loc=loc, flags=0, xattrs=Xdata({b"trusted.a\0b": b"\0\0\0\1"})))
    for number in range(40):
        brick.lookup(b"f", xdata=Xdata({b"user.%d-%d" % (number, n): 0 for n in range(20)}))
    assert len(brick.posix.find(gfid)[0].xattrs) < 300


def test_an_open_file_is_known_as_open_however_much_is_forgotten(brick: Brick) -> None:
    brick.graph.inodes._half = 2
    brick.posix._inos_half = 2
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"data")
    others = [brick.create(b"o%d" % number) for number in range(20)]
    for other, _ in others:
        brick.release(other)
    again = Fd(NULL_GFID, os.O_RDWR)
    for number in range(60):
        brick.lookup(b"o%d" % (number % 20))
        if number == 30:
            brick.do(brick.creation(b"f", fd=again, flags=os.O_RDWR))
            brick.fds.append(again)
    assert brick.lookup(b"f", xdata=Xdata({b"glusterfs.open-fd-count": 1})).xdata[b"glusterfs.open-fd-count"] == 2
    brick.unlink(b"f")
    assert brick.read(fd).data == b"data"
    assert (brick.folder / ".glusterfs/unlink" / gfid_text(gfid)).exists()
    brick.release(fd)
    assert brick.read(again).data == b"data"


def test_plan_takes_what_names_an_xattr(brick: Brick) -> None:
    plan = Plan(Xdata({b"trusted.afr.*": 0, b"user.a": 0, CONTENT: uint(9), b"link-count": "x", b"trusted.gfid": 0}))
    assert (plan.keys, plan.patterns, plan.content) == ([b"user.a"], ["trusted.afr.*"], 9)
    _, gfid = brick.create(b"f", xdata=gift({b"trusted.afr.v-client-0": b"\0" * 12, b"user.a": b"1"}))
    found = brick.lookup(b"f", xdata=Xdata({b"trusted.afr.*": 0})).xdata
    assert dict(found) == {b"trusted.afr.v-client-0": b"\0" * 12}
    listed = set(brick.lookup(b"f", xdata=Xdata({b"list-xattr": 1})).xdata)
    assert listed == {b"trusted.afr.v-client-0", b"user.a", MDATA_KEY}
    counts = Xdata({b"glusterfs.open-fd-count": uint(4)})
    assert brick.lookup(b"f", xdata=counts).xdata[b"glusterfs.open-fd-count"] == 1
    brick.open(gfid)
    assert brick.lookup(b"f", xdata=counts).xdata[b"glusterfs.open-fd-count"] == 2
