"""Times, owners and modes of storage/posix."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

from glustx import fops
from glustx.values import (
    ROOT_GFID,
    SET_ATIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_UID,
    Caller,
    Iatt,
    Loc,
)
from glustx.xdata import (
    MDATA,
    MDATA_KEY,
    SET_CTIME_MDATA,
    MdataTimes,
    Typed,
    Xdata,
)
from tests.t1_xlator.posix.kit import (
    BIRTH,
    T0,
    Brick,
    birth,
    restarted,
)


def test_times_come_from_the_client_and_never_go_back(brick: Brick) -> None:
    fd, gfid = brick.create(b"f", ctime=T0, stamp=BIRTH)
    later = T0 + 5 * 10**9
    post = brick.write(fd, b"x", ctime=later, stamp=3).post
    assert (post.atime_ns, post.mtime_ns, post.ctime_ns) == (T0, later, later)
    assert brick.write(fd, b"x", ctime=T0 - 1, stamp=3).post.mtime_ns == later
    assert brick.write(fd, b"x", ctime=later + 9, stamp=0).post.mtime_ns == later
    raw = brick.xattr(brick.folder / "f", "trusted.glusterfs.mdata")
    assert struct.unpack(">BQ6q", raw) == (1, 0, *divmod(later, 10**9), *divmod(later, 10**9), *divmod(T0, 10**9))
    filled = brick.do(fops.Zerofill(fd=fd, offset=0, size=4096, ctime=later + 7, stamp=6)).post
    assert (filled.atime_ns, filled.mtime_ns, filled.ctime_ns) == (later + 7, later + 7, later)
    old = Iatt(atime=5, atime_nsec=6, mtime=7, mtime_nsec=8)
    req = fops.Setattr(loc=Loc(gfid=gfid), stat=old, valid=SET_ATIME | SET_MTIME, ctime=later + 20, stamp=0)
    after = brick.do(req).post
    assert (after.atime_ns, after.mtime_ns, after.ctime_ns) == (5 * 10**9 + 6, 7 * 10**9 + 8, later + 20)
    restarted(brick)
    assert brick.lookup(b"f").stat == after


def test_parents_are_stamped(brick: Brick) -> None:
    folder = brick.mkdir(b"d", ctime=T0, stamp=BIRTH)
    later = T0 + 10**9
    reply = brick.do(brick.creation(b"f", folder, ctime=later, stamp=BIRTH))
    assert (reply.preparent.mtime_ns, reply.postparent.mtime_ns, reply.postparent.ctime_ns) == (T0, later, later)
    assert reply.postparent.atime_ns == T0
    post = brick.unlink(b"f", folder, ctime=later + 1, stamp=25).post
    assert post.mtime_ns == later + 1


def test_without_a_time_from_the_client_the_bricks_clock_counts(brick: Brick) -> None:
    fd, _ = brick.create(b"f")
    first = brick.do(fops.Fstat(fd=fd)).stat
    second = brick.write(fd, b"x").post
    assert first.mtime_ns < second.mtime_ns == second.ctime_ns
    assert second.atime_ns == first.atime_ns


def test_ctime_off_shows_the_file_systems_times(folder: Path, namespace: str) -> None:
    brick = Brick(folder, namespace, ctime="off")
    fd, _ = brick.create(b"f", ctime=T0, stamp=BIRTH)
    brick.write(fd, b"x")
    st = (folder / "f").stat()
    seen = brick.lookup(b"f")
    assert (seen.stat.mtime_ns, seen.stat.ctime_ns) == (st.st_mtime_ns, st.st_ctime_ns)
    assert "trusted.glusterfs.mdata" not in brick.xattrs(folder / "f")
    assert MDATA_KEY not in seen.xdata
    brick.close()


def test_set_ctime_mdata_gives_times_to_a_legacy_file(brick: Brick) -> None:
    (brick.folder / "old").write_bytes(b"")
    gfid = brick.lookup(b"old", xdata=birth()).stat.gfid
    times = MdataTimes(1, 2, 3, 4, 5, 6)
    brick.do(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({SET_CTIME_MDATA: Typed(MDATA, times)})))
    found = brick.lookup(b"old").stat
    assert (found.atime_ns, found.mtime_ns, found.ctime_ns) == (1 * 10**9 + 4, 2 * 10**9 + 5, 3 * 10**9 + 6)
    older = MdataTimes(0, 9, 0, 0, 0, 0)
    brick.do(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({SET_CTIME_MDATA: older})))
    found = brick.lookup(b"old").stat
    assert (found.atime_ns, found.mtime_ns, found.ctime_ns) == (1 * 10**9 + 4, 9 * 10**9, 3 * 10**9 + 6)


def test_owner_mode_and_umask(stock: Brick) -> None:
    alice = Caller(uid=1001, gid=1002)
    old = os.umask(0o077)
    try:
        fd, gfid = stock.create(b"f", mode=0o6777, umask=0o022, caller=alice)
        st = (stock.folder / "f").stat()
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (1001, 1002, 0o6755)
        shared = stock.mkdir(b"shared", mode=0o2775)
        stock.do(fops.Setattr(loc=Loc(gfid=shared), stat=Iatt(gid=77), valid=SET_GID))
        inner = stock.do(fops.Mkdir(loc=Loc(pargfid=shared, name=b"in"), mode=0o755, caller=alice, xdata=birth())).stat
        assert (inner.uid, inner.gid, stat.S_IMODE(inner.mode)) == (1001, 77, 0o2755)
        stock.create(b"g", shared, mode=0o600, caller=alice)
        assert (stock.folder / "shared/g").stat().st_gid == 77
    finally:
        os.umask(old)
    reply = stock.do(fops.Fsetattr(fd=fd, stat=Iatt(uid=5, gid=6, mode=0o640), valid=SET_UID | SET_GID | SET_MODE))
    assert (reply.post.uid, reply.post.gid, reply.post.mode & 0o7777) == (5, 6, 0o640)
    assert reply.pre.uid == 1001
    for caller, mask, fine in [
        (Caller(uid=5, gid=9), 6, True),
        (Caller(uid=5, gid=9), 1, False),
        (Caller(uid=9, gid=6), 4, True),
        (Caller(uid=9, gid=9, groups=(3, 6)), 4, True),
        (Caller(uid=9, gid=6), 2, False),
        (Caller(uid=9, gid=9), 4, False),
        (Caller(), 6, True),
        (Caller(), 1, False),
    ]:
        req = fops.Access(loc=Loc(gfid=gfid), mask=mask, caller=caller)
        if fine:
            stock.do(req)
        else:
            stock.fails(errno.EACCES, req)


def test_masks_modes_and_owners_from_options(folder: Path, namespace: str) -> None:
    owner = {"brick_uid": "107", "brick_gid": "108"} if os.geteuid() == 0 else {}
    brick = Brick(folder, namespace, create_mask="0770", force_directory_mode="0005", max_hardlinks="2", **owner)
    brick.create(b"f", mode=0o666, umask=0)
    assert stat.S_IMODE((folder / "f").stat().st_mode) == 0o660
    brick.mkdir(b"d", mode=0o700)
    assert stat.S_IMODE((folder / "d").stat().st_mode) == 0o705
    if owner:
        assert (folder.stat().st_uid, folder.stat().st_gid) == (107, 108)
    gfid = brick.lookup(b"f").stat.gfid
    brick.do(fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"g")))
    brick.fails(errno.EMLINK, fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"h")))
    brick.close()


def test_modes_that_keep_the_owner_out(folder: Path) -> None:
    """The kernel lets a brick that is not root's write xattrs only where its owner may write."""
    brick = Brick(folder, "user")
    for mode in (0o444, 0o222, 0o000):
        fd, gfid = brick.create(b"f%o" % mode, mode=mode)
        brick.write(fd, b"data")
        brick.do(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({b"user.a": b"1"})))
        restarted(brick)
        found = brick.lookup(b"f%o" % mode, xdata=Xdata({b"user.a": 1}))
        assert stat.S_IMODE(found.stat.mode) == mode and found.xdata[b"user.a"] == b"1"
        assert stat.S_IMODE((folder / f"f{mode:o}").stat().st_mode) == mode
    brick.close()


def test_a_default_acl_replaces_the_umask(stock: Brick) -> None:
    folder = stock.mkdir(b"d")
    entries = [(1, 7, -1), (4, 5, -1), (16, 5, -1), (32, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    stock.do(fops.Setxattr(loc=Loc(gfid=folder), xattrs=Xdata({b"system.posix_acl_default": acl})))
    stock.create(b"f", folder, mode=0o666, umask=0o077)
    assert stat.S_IMODE((stock.folder / "d/f").stat().st_mode) == 0o640
    stock.do(fops.Removexattr(loc=Loc(gfid=folder), key=b"system.posix_acl_default"))
    stock.create(b"g", folder, mode=0o666, umask=0o077)
    assert stat.S_IMODE((stock.folder / "d/g").stat().st_mode) == 0o600
