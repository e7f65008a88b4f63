"""What a failed or interrupted fop of storage/posix leaves: nothing, or what the next LOOKUP or start completes."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

import pytest

from glustx import fops
from glustx.inode import Fd
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    Loc,
    gfid_text,
    new_gfid,
)
from glustx.xdata import (
    GFID_REQ,
    Xdata,
    gfuuid,
    uint,
)
from tests.conftest import ExpectedLogs
from tests.t1_xlator.posix.kit import (
    ROOT_TEXT,
    Brick,
    Faulty,
    attempts,
    failure,
    gift,
    restarted,
)


@pytest.mark.parametrize("call", ["setxattr", "link", "symlink", "pwrite", "chmod"])
@pytest.mark.parametrize("what", ["create", "mkdir", "mknod", "symlink", "put"])
def test_a_creation_that_fails_leaves_nothing(
    brick: Brick, monkeypatch: pytest.MonkeyPatch, expected_logs: ExpectedLogs, what: str, call: str
) -> None:
    if call == "setxattr":
        expected_logs.expect("cannot store the times of [0-9a-f]+: No space left")
    before = brick.tree()
    fds = len(os.listdir("/proc/self/fd"))
    struck = 0
    for nth in range(1, 8):
        with monkeypatch.context() as patch:
            fault = Faulty(patch, call, nth)
            req = attempts(brick)[what]
            error = failure(brick, req)
            if error is not None:
                assert error.errno == errno.ENOSPC
                struck += 1
            elif isinstance(req, fops.Create):
                brick.release(req.fd)
            if not fault.struck:
                break
        if brick.tree() != before:
            # Stamping the parent is not worth a failure: the object is there, whole.
            assert brick.lookup(b"new").stat.gfid != NULL_GFID
            loc = Loc(pargfid=ROOT_GFID, name=b"new")
            brick.do(fops.Rmdir(loc=loc) if what == "mkdir" else fops.Unlink(loc=loc))
            assert brick.tree() == before
    else:
        pytest.fail(f"{call} is called without end")
    if call == "setxattr":
        assert struck >= 2
    brick.posix.dir(ROOT_GFID)
    assert len(os.listdir("/proc/self/fd")) <= fds + 2


def test_a_gfid_that_is_taken_is_refused_and_nothing_is_left(brick: Brick) -> None:
    fd, gfid = brick.create(b"a")
    brick.write(fd, b"mine")
    before = brick.tree()
    taken = Xdata({GFID_REQ: gfuuid(gfid)})
    brick.fails(errno.EEXIST, brick.creation(b"b", xdata=taken))
    brick.fails(errno.EEXIST, fops.Mkdir(loc=Loc(pargfid=ROOT_GFID, name=b"b"), mode=0o755, xdata=taken))
    assert brick.tree() == before
    assert brick.do(fops.Stat(loc=Loc(gfid=gfid))).stat.size == 4


def test_creations_need_a_gfid(brick: Brick) -> None:
    before = brick.tree()
    for xdata in (Xdata(), Xdata({GFID_REQ: gfuuid(NULL_GFID)})):
        brick.fails(errno.EINVAL, brick.creation(b"x", xdata=xdata))
        brick.fails(errno.EINVAL, fops.Mkdir(loc=Loc(pargfid=ROOT_GFID, name=b"x"), mode=0o755, xdata=xdata))
    assert brick.tree() == before


@pytest.mark.parametrize("held", [False, True])
def test_an_unlink_that_fails_puts_the_handle_back(brick: Brick, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"data")
    if not held:
        brick.release(fd)
    before = brick.tree()
    with monkeypatch.context() as patch:
        real = os.unlink

        def unlink(path: Any, **kwargs: Any) -> None:
            if path == b"f":
                raise PermissionError(errno.EPERM, "immutable")
            real(path, **kwargs)

        patch.setattr(os, "unlink", unlink)
        brick.fails(errno.EPERM, fops.Unlink(loc=Loc(pargfid=ROOT_GFID, name=b"f")))
    assert brick.tree() == before
    assert brick.do(fops.Stat(loc=Loc(gfid=gfid))).stat.size == 4
    brick.unlink(b"f")


@pytest.mark.parametrize("victim", [None, "file", "held", "linked"])
def test_a_rename_that_fails_changes_nothing(brick: Brick, monkeypatch: pytest.MonkeyPatch, victim: str | None) -> None:
    _, gfid = brick.create(b"a")
    if victim:
        fd, other = brick.create(b"b")
        if victim != "held":
            brick.release(fd)
        if victim == "linked":
            brick.do(fops.Link(oldloc=Loc(gfid=other), newloc=Loc(pargfid=ROOT_GFID, name=b"c")))
    before, xattrs = brick.tree(), brick.xattrs(brick.folder / "a")
    with monkeypatch.context() as patch:
        real = os.rename

        def rename(old: Any, new: Any, **kwargs: Any) -> None:
            if old == b"a":
                raise OSError(errno.ENOSPC, "full")
            real(old, new, **kwargs)

        patch.setattr(os, "rename", rename)
        brick.fails(
            errno.ENOSPC,
            fops.Rename(oldloc=Loc(pargfid=ROOT_GFID, name=b"a"), newloc=Loc(pargfid=ROOT_GFID, name=b"b")),
        )
    assert brick.tree() == before and brick.xattrs(brick.folder / "a") == xattrs
    assert brick.lookup(b"a").stat.gfid == gfid


def test_lookup_completes_what_a_crash_or_a_stranger_left(brick: Brick) -> None:
    (brick.folder / "foreign").write_bytes(b"x")
    brick.fails(errno.ENODATA, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"foreign")))
    gfid = new_gfid()
    found = brick.lookup(b"foreign", xdata=Xdata({GFID_REQ: gfuuid(gfid)}))
    assert found.stat.gfid == gfid and found.stat.nlink == 1
    assert brick.handle(gfid).samefile(brick.folder / "foreign")
    assert any(key.startswith("trusted.gfid2path.") for key in brick.xattrs(brick.folder / "foreign"))
    # The handle is missing.
    brick.handle(gfid).unlink()
    restarted(brick)
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=gfid)))
    brick.lookup(b"foreign")
    assert brick.do(fops.Stat(loc=Loc(gfid=gfid))).stat.size == 1
    # A directory was renamed and its handle not yet.
    folder = brick.mkdir(b"d")
    brick.create(b"inside", folder)
    os.rename(brick.folder / "d", brick.folder / "e")
    restarted(brick)
    brick.fails(errno.ESTALE, fops.Opendir(loc=Loc(gfid=folder), fd=Fd(folder, 0)))
    assert brick.lookup(b"e").stat.gfid == folder
    assert os.readlink(brick.handle(folder)) == f"../../00/00/{ROOT_TEXT}/e"
    assert b"inside" in brick.names(folder)


def test_a_copied_gfid_does_not_pass_for_the_original(brick: Brick) -> None:
    fd, gfid = brick.create(b"a")
    brick.write(fd, b"original")
    (brick.folder / "copy").write_bytes(b"no")
    brick.set_xattr(brick.folder / "copy", "trusted.gfid", gfid)
    brick.fails(errno.EIO, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"copy")))
    assert brick.lookup(b"a").stat.size == 8
    brick.unlink(b"copy")
    assert brick.read(fd).data == b"original" and brick.handle(gfid).exists()


def test_a_copied_directory_does_not_take_the_originals_handle(brick: Brick) -> None:
    gfid = brick.mkdir(b"d")
    brick.create(b"inside", gfid)
    (brick.folder / "copy").mkdir()
    brick.set_xattr(brick.folder / "copy", "trusted.gfid", gfid)
    restarted(brick)
    brick.fails(errno.EIO, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"copy")))
    assert b"inside" in brick.names(gfid)


def test_removing_one_of_two_names_of_a_file_that_lost_its_handle(brick: Brick) -> None:
    fd, gfid = brick.create(b"a")
    brick.write(fd, b"data")
    brick.do(fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"b")))
    brick.release(fd)
    brick.handle(gfid).unlink()
    restarted(brick)
    brick.unlink(b"a")
    assert brick.lookup(b"b").stat.nlink == 1 and brick.handle(gfid).samefile(brick.folder / "b")


def test_start_clears_what_a_crash_left(brick: Brick) -> None:
    _, gfid = brick.create(b"f")
    brick.fds = []  # as a crash would have it
    brick.unlink(b"f")
    aside = brick.folder / ".glusterfs/unlink" / gfid_text(gfid)
    assert aside.exists()
    folder = brick.mkdir(b"tree")
    _, inner = brick.create(b"file", folder)
    os.rename(brick.folder / "tree", brick.folder / ".glusterfs/landfill" / gfid_text(new_gfid()))
    restarted(brick)
    assert not aside.exists()
    landfill = brick.folder / ".glusterfs/landfill"
    brick.reactor.run_until(lambda: os.listdir(landfill) == [], timeout=30)
    assert not os.path.lexists(brick.handle(inner))


def test_an_unlinked_file_lives_until_its_last_fd(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    other = brick.open(gfid)
    brick.write(fd, b"data")
    reply = brick.unlink(b"f", xdata=Xdata({b"get-link-count": uint(0)}))
    assert reply.xdata[b"get-link-count"] == 1
    for each in (fd, other):
        assert brick.read(each).data == b"data"
        assert brick.do(fops.Fstat(fd=each)).stat.nlink == 0
    brick.fails(errno.ENOENT, fops.Lookup(loc=Loc(gfid=gfid)))
    assert brick.do(fops.Lookup(loc=Loc(gfid=gfid), xdata=Xdata({b"unlinked-lookup": uint(1)}))).stat.gfid == gfid
    brick.do(fops.Fsetxattr(fd=fd, xattrs=Xdata({b"user.a": b"1"})))
    brick.write(fd, b"more", 4)
    aside = brick.folder / ".glusterfs/unlink" / gfid_text(gfid)
    brick.release(fd)
    assert aside.exists()
    brick.release(other)
    assert not aside.exists()
    assert os.listdir(brick.folder) == [".glusterfs"]


def test_unlink_conditions(brick: Brick) -> None:
    fd, _ = brick.create(b"f")
    loc = Loc(pargfid=ROOT_GFID, name=b"f")
    brick.fails(errno.EBUSY, fops.Unlink(loc=loc, xdata=Xdata({b"dont-unlink-for-open-fd": 1})))
    brick.release(fd)
    brick.fails(errno.EBUSY, fops.Unlink(loc=loc, xdata=Xdata({b"unlink-only-if-dht-linkto-file": 1})))
    brick.unlink(b"f", xdata=Xdata({b"dont-unlink-for-open-fd": 1}))
    linkto = gift({b"trusted.glusterfs.dht.linkto": b"v-client-1\0"})
    brick.do(fops.Mknod(loc=loc, mode=stat.S_IFREG | stat.S_ISVTX, xdata=linkto))
    brick.unlink(b"f", xdata=Xdata({b"unlink-only-if-dht-linkto-file": 1}))


def test_rmdir_of_a_whole_tree(brick: Brick) -> None:
    top = brick.mkdir(b"top")
    gfids = [top]
    here = top
    for level in range(1200):
        here = brick.mkdir(b"d%d" % (level % 7), here)
        gfids.append(here)
    fd, held = brick.create(b"held", here)
    brick.write(fd, b"open")
    _, linked = brick.create(b"linked", here)
    brick.do(fops.Link(oldloc=Loc(gfid=linked), newloc=Loc(pargfid=ROOT_GFID, name=b"stays")))
    brick.fails(errno.ENOTEMPTY, fops.Rmdir(loc=Loc(pargfid=ROOT_GFID, name=b"top")))
    brick.do(fops.Rmdir(loc=Loc(pargfid=ROOT_GFID, name=b"top"), xflags=1))
    brick.reactor.run()
    assert brick.names() == [b".", b"..", b"stays"]
    assert os.listdir(brick.folder / ".glusterfs/landfill") == []
    assert not [g for g in gfids if os.path.lexists(brick.handle(g))]
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=here)))
    brick.fails(errno.ESTALE, brick.creation(b"late", here))
    assert brick.read(fd).data == b"open" and brick.do(fops.Fstat(fd=fd)).stat.nlink == 0
    assert brick.do(fops.Stat(loc=Loc(gfid=linked))).stat.nlink == 1
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=held)))
    brick.release(fd)
    assert os.listdir(brick.folder / ".glusterfs/unlink") == []
