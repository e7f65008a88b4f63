"""Conformance of fops on attributes: STAT, SETATTR, times and stamps, xattrs, XATTROP, STATFS, others."""

from __future__ import annotations

import errno
import stat
import struct

import pytest

from glustx import fops
from glustx.fops import (
    Fgetxattr,
    Fremovexattr,
    Fsetattr,
    Fsetxattr,
    Getxattr,
    Removexattr,
    Setattr,
    Setxattr,
    Xattrop,
)
from glustx.inode import Fd
from glustx.values import (
    ROOT_GFID,
    SET_ATIME,
    SET_ATIME_NOW,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_MTIME_NOW,
    SET_UID,
    STAMP_ATIME,
    STAMP_CTIME,
    STAMP_MTIME,
    STAMP_PARENT_CTIME,
    STAMP_PARENT_MTIME,
    XATTROP_ADD_ARRAY,
    XATTROP_ADD_ARRAY64,
    XATTROP_AND,
    XATTROP_GET_AND_SET,
    XATTROP_OR,
    Iatt,
    Loc,
)
from glustx.xdata import CONTENT, GET_SIZE, LIST_XATTR, OPEN_FD_COUNT, Xdata, uint
from tests.conformance.brick import O_RDWR, Brick
from tests.conformance.suite_names import STRANGER, named

GIGA = 1_000_000_000
# In the year 2065: no clock is past it, and stock compares seconds in 32 bits, so that 68 years are the most.
LATER = 3_000_000_000 * GIGA + 123_456_789


class AttrsSuite:
    """Fops on attributes."""

    # -- STAT and SETATTR --------------------------------------------------------------------------------------------

    def test_stat(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc", mode=0o640)
        by_gfid = brick.stat(file.gfid)
        assert by_gfid == brick(fops.Fstat(fd=file.fd)).stat
        assert by_gfid.flags & 0x17FF == 0x17FF
        assert (by_gfid.size, by_gfid.nlink, by_gfid.mode) == (3, 1, stat.S_IFREG | 0o640)
        assert by_gfid.blksize > 0 and by_gfid.mtime > 0
        brick.fails(fops.Stat(loc=Loc(gfid=STRANGER)), errno.ESTALE)
        brick.fails(fops.Stat(loc=Loc()), errno.EINVAL)

    def test_setattr(self, brick: Brick) -> None:
        file = brick.make(b"f", mode=0o644)
        new = Iatt(mode=0o4711, uid=11, gid=22)
        reply = brick(Setattr(loc=Loc(gfid=file.gfid), stat=new, valid=SET_MODE))
        assert (reply.pre.mode & 0o7777, reply.post.mode) == (0o644, stat.S_IFREG | 0o4711)
        assert (reply.post.uid, reply.post.gid) == (reply.pre.uid, reply.pre.gid)
        reply = brick(Fsetattr(fd=file.fd, stat=new, valid=SET_UID | SET_GID))
        assert (reply.post.uid, reply.post.gid) == (11, 22)
        reply = brick(Fsetattr(fd=file.fd, stat=Iatt(gid=33), valid=SET_GID))
        assert (reply.post.uid, reply.post.gid) == (11, 33)
        brick.fails(Setattr(loc=Loc(gfid=STRANGER), stat=new, valid=SET_MODE), errno.ESTALE)

    def test_setting_times(self, brick: Brick) -> None:
        file = brick.make(b"f")
        new = Iatt(atime=1_000_000_001, atime_nsec=5, mtime=999_999_999, mtime_nsec=7)
        reply = brick(Setattr(loc=Loc(gfid=file.gfid), stat=new, valid=SET_ATIME | SET_MTIME))
        assert (reply.post.atime_ns, reply.post.mtime_ns) == (new.atime_ns, new.mtime_ns)
        reply = brick(Setattr(loc=Loc(gfid=file.gfid), stat=Iatt(mtime=5), valid=SET_MTIME))
        assert (reply.post.atime_ns, reply.post.mtime_ns) == (new.atime_ns, 5 * GIGA)
        assert brick.stat(file.gfid).mtime == 5
        both = SET_ATIME | SET_ATIME_NOW | SET_MTIME | SET_MTIME_NOW
        reply = brick(Setattr(loc=Loc(gfid=file.gfid), stat=new, valid=both))  # as distribute heals a directory
        assert (reply.post.atime_ns, reply.post.mtime_ns) == (new.atime_ns, new.mtime_ns)

    def test_setting_times_to_now(self, brick: Brick) -> None:
        file = brick.make(b"f")
        made = brick.stat(file.gfid).ctime_ns
        brick(Setattr(loc=Loc(gfid=file.gfid), stat=Iatt(atime=5, mtime=5), valid=SET_ATIME | SET_MTIME))
        reply = brick(Setattr(loc=Loc(gfid=file.gfid), stat=Iatt(), valid=SET_ATIME_NOW | SET_MTIME_NOW))
        assert min(reply.post.atime_ns, reply.post.mtime_ns) > made - 10 * GIGA

    def test_stamps_of_the_client(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        before = brick.stat(file.gfid)
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=LATER, stamp=STAMP_CTIME | STAMP_MTIME))
        after = brick.stat(file.gfid)
        assert (after.ctime_ns, after.mtime_ns, after.atime_ns) == (LATER, LATER, before.atime_ns)
        brick(fops.Zerofill(fd=file.fd, offset=0, size=1, ctime=LATER + GIGA, stamp=STAMP_MTIME | STAMP_ATIME))
        after = brick.stat(file.gfid)
        assert (after.ctime_ns, after.mtime_ns, after.atime_ns) == (LATER, LATER + GIGA, LATER + GIGA)

    def test_stamps_never_go_back(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        flags = STAMP_CTIME | STAMP_MTIME
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=LATER, stamp=flags))
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=LATER - GIGA, stamp=flags))
        assert brick.stat(file.gfid).mtime_ns == LATER

    def test_stamps_of_the_parent(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        flags = STAMP_CTIME | STAMP_MTIME | STAMP_ATIME | STAMP_PARENT_CTIME | STAMP_PARENT_MTIME
        request = fops.Mkdir(loc=named(b"e", folder.gfid), mode=0o755, xdata=brick.fresh(), ctime=LATER, stamp=flags)
        reply = brick(request)
        assert (reply.stat.mtime_ns, reply.stat.atime_ns) == (LATER, LATER)
        assert (reply.postparent.ctime_ns, reply.postparent.mtime_ns) == (LATER, LATER)
        parent = brick.stat(folder.gfid)
        assert (parent.ctime_ns, parent.mtime_ns) == (LATER, LATER)
        assert parent.atime_ns < LATER
        alone = fops.Mkdir(
            loc=named(b"f", folder.gfid), mode=0o755, xdata=brick.fresh(), ctime=LATER + GIGA, stamp=STAMP_CTIME
        )
        assert brick(alone).postparent.ctime_ns == LATER

    # -- xattrs ------------------------------------------------------------------------------------------------------

    def test_xattrs(self, brick: Brick) -> None:
        file = brick.make(b"f")
        value = bytes(range(256))
        brick(Setxattr(loc=file.loc, xattrs=Xdata({b"user.a": value, b"user.b": b""})))
        reply = brick(Getxattr(loc=file.loc, key=b"user.a"))
        assert (reply.xattrs[b"user.a"], reply.size) == (value, 256)
        assert brick(Getxattr(loc=file.loc, key=b"user.b")).xattrs[b"user.b"] == b""
        everything = brick(Getxattr(loc=file.loc)).xattrs
        assert {key for key in everything if key.startswith(b"user.")} == {b"user.a", b"user.b"}
        assert b"trusted.gfid" not in everything
        brick(Removexattr(loc=file.loc, key=b"user.a"))
        brick.fails(Getxattr(loc=file.loc, key=b"user.a"), errno.ENODATA)
        brick.fails(Removexattr(loc=file.loc, key=b"user.a"), errno.ENODATA)

    def test_removing_many_xattrs_as_a_heal_does(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(Setxattr(loc=file.loc, xattrs=Xdata({b"user.a": b"1", b"user.b": b"2", b"user.c": b"3"})))
        brick(Removexattr(loc=file.loc, key=b"", xdata=Xdata({b"user.a": b"1", b"user.b": b"2"})))
        left = [key for key in brick(Getxattr(loc=file.loc)).xattrs if key.startswith(b"user.")]
        assert left == [b"user.c"]
        brick(Removexattr(loc=file.loc, key=b"", xdata=Xdata({b"user.a": b"1"})))  # gone already
        own = Xdata({b"user.c": b"3", b"trusted.gfid": b""})
        brick.fails(Removexattr(loc=file.loc, key=b"", xdata=own), errno.EPERM)
        assert bytes(brick(Getxattr(loc=file.loc, key=b"user.c")).xattrs[b"user.c"]) == b"3"

    def test_setxattr_without_a_time_leaves_the_times(self, brick: Brick) -> None:
        """Stock's clients send none, and a brick's own time would make replicas differ."""
        file = brick.make(b"f", b"abc")
        brick(fops.Write(fd=file.fd, offset=0, data=b"x", ctime=LATER, stamp=STAMP_CTIME))
        for request in (
            Setxattr(loc=file.loc, xattrs=Xdata({b"user.a": b"1"})),
            Fsetxattr(fd=file.fd, xattrs=Xdata({b"user.a": b"2"})),
        ):
            brick(request)
            assert brick.stat(file.gfid).ctime_ns == LATER

    def test_xattrs_of_an_open_file(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(Fsetxattr(fd=file.fd, xattrs=Xdata({b"user.a": b"1"})))
        assert brick(Fgetxattr(fd=file.fd, key=b"user.a")).xattrs[b"user.a"] == b"1"
        brick(Fremovexattr(fd=file.fd, key=b"user.a"))
        brick.fails(Fgetxattr(fd=file.fd, key=b"user.a"), errno.ENODATA)
        brick.fails(Fremovexattr(fd=file.fd, key=b"user.a"), errno.ENODATA)

    def test_xattrs_of_a_directory(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        brick(Setxattr(loc=folder, xattrs=Xdata({b"user.a": b"1"})))
        assert brick(Getxattr(loc=folder, key=b"user.a")).xattrs[b"user.a"] == b"1"

    def test_xattr_flags(self, brick: Brick) -> None:
        file = brick.make(b"f")
        one, two = Xdata({b"user.a": b"1"}), Xdata({b"user.a": b"2"})
        brick.fails(Setxattr(loc=file.loc, xattrs=one, flags=2), errno.ENODATA)
        brick(Setxattr(loc=file.loc, xattrs=one, flags=1))
        brick.fails(Setxattr(loc=file.loc, xattrs=two, flags=1), errno.EEXIST)
        brick(Setxattr(loc=file.loc, xattrs=two, flags=2))
        assert brick(Getxattr(loc=file.loc, key=b"user.a")).xattrs[b"user.a"] == b"2"

    def test_xattr_errors(self, brick: Brick) -> None:
        xattrs = Xdata({b"user.a": b"1"})
        brick.fails(Setxattr(loc=Loc(gfid=STRANGER), xattrs=xattrs), errno.ESTALE)
        brick.fails(Getxattr(loc=Loc(gfid=STRANGER), key=b"user.a"), errno.ESTALE)
        file = brick.make(b"f")
        brick.fails(
            Setxattr(loc=file.loc, xattrs=Xdata({b"user." + b"x" * 300: b"1"})), errno.ERANGE, errno.ENAMETOOLONG
        )
        brick.fails(
            Setxattr(loc=file.loc, xattrs=Xdata({b"user.big": bytes(70000)})), errno.E2BIG, errno.ENOSPC, errno.ERANGE
        )
        brick.fails(Setxattr(loc=file.loc, xattrs=Xdata({b"strange.key": b"1"})), errno.EOPNOTSUPP)
        brick.fails(Fgetxattr(fd=Fd(file.gfid, O_RDWR), key=b"user.a"), errno.EBADF, errno.EBADFD)

    def test_the_gfid_cannot_be_set(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(Setxattr(loc=file.loc, xattrs=Xdata({b"trusted.gfid": STRANGER})))
        assert brick.lookup(b"f").stat.gfid == file.gfid

    def test_xattrs_of_what_is_made(self, brick: Brick) -> None:
        xdata = brick.fresh().plus({b"trusted.glusterfs.dht": b"\1" * 16})
        gfid = brick(fops.Mkdir(loc=named(b"d"), mode=0o755, xdata=xdata)).stat.gfid
        reply = brick(Getxattr(loc=Loc(gfid=gfid), key=b"trusted.glusterfs.dht"))
        assert reply.xattrs[b"trusted.glusterfs.dht"] == b"\1" * 16

    def test_lookup_brings_xattrs(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        brick(Setxattr(loc=file.loc, xattrs=Xdata({b"user.a": b"1", b"user.ab": b"2"})))

        def asked(**pairs: object) -> Xdata:
            keys = {key.replace("__", ".").encode(): value for key, value in pairs.items()}
            return brick(fops.Lookup(loc=named(b"f"), xdata=Xdata(keys))).xdata

        assert dict(asked(user__a=0, user__gone=0)) == {b"user.a": b"1"}
        assert {b"user.a", b"user.ab"} <= set(brick(fops.Lookup(loc=named(b"f"), xdata=Xdata({b"user.*": 0}))).xdata)
        content = brick(fops.Lookup(loc=named(b"f"), xdata=Xdata({CONTENT: uint(65536)}))).xdata
        assert content[CONTENT] == b"abc"
        assert CONTENT not in brick(fops.Lookup(loc=named(b"f"), xdata=Xdata({CONTENT: uint(2)}))).xdata
        listed = brick(fops.Lookup(loc=named(b"f"), xdata=Xdata({LIST_XATTR: 1}))).xdata
        assert listed[b"user.ab"] == b"2" and b"trusted.gfid" not in listed
        more = brick(fops.Lookup(loc=named(b"f"), xdata=Xdata({GET_SIZE: 1, OPEN_FD_COUNT: uint(4)}))).xdata
        assert (more.number(GET_SIZE), more.number(OPEN_FD_COUNT)) == (3, 1)

    # -- XATTROP -----------------------------------------------------------------------------------------------------

    def _xattrop(self, brick: Brick, loc: Loc, flags: int, key: bytes, value: bytes) -> bytes | None:
        reply = brick(Xattrop(loc=loc, flags=flags, xattrs=Xdata({key: value})))
        found: bytes | None = reply.xattrs.get(key)
        return found

    def test_xattrop_adds(self, brick: Brick) -> None:
        file = brick.make(b"f")
        key = b"trusted.afr.vol-client-0"
        one, two = struct.pack(">3i", 1, 0, -1), struct.pack(">3i", 1, 5, -1)
        assert self._xattrop(brick, file.loc, XATTROP_ADD_ARRAY, key, one) == one
        assert self._xattrop(brick, file.loc, XATTROP_ADD_ARRAY, key, two) == struct.pack(">3i", 2, 5, -2)
        assert brick(Getxattr(loc=file.loc, key=key)).xattrs[key] == struct.pack(">3i", 2, 5, -2)
        reply = brick(fops.Fxattrop(fd=file.fd, flags=XATTROP_ADD_ARRAY, xattrs=Xdata({key: one})))
        assert reply.xattrs[key] == struct.pack(">3i", 3, 5, -3)

    def test_xattrop_adds_64_bits(self, brick: Brick) -> None:
        file = brick.make(b"f")
        key = b"trusted.glusterfs.shard.file-size"
        value = struct.pack(">4q", 1 << 40, 0, -8, 0)
        assert self._xattrop(brick, file.loc, XATTROP_ADD_ARRAY64, key, value) == value
        twice = struct.pack(">4q", 1 << 41, 0, -16, 0)
        assert self._xattrop(brick, file.loc, XATTROP_ADD_ARRAY64, key, value) == twice

    def test_xattrop_of_nothing_changes_nothing(self, brick: Brick) -> None:
        file = brick.make(b"f")
        key = b"trusted.afr.dirty"
        assert self._xattrop(brick, file.loc, XATTROP_ADD_ARRAY, key, bytes(12)) == bytes(12)
        brick.fails(Getxattr(loc=file.loc, key=key), errno.ENODATA)

    def test_xattrop_gets_and_sets(self, brick: Brick) -> None:
        file = brick.make(b"f")
        key = b"trusted.some.value"
        assert self._xattrop(brick, file.loc, XATTROP_GET_AND_SET, key, b"1234") is None
        assert self._xattrop(brick, file.loc, XATTROP_GET_AND_SET, key, b"5678") == b"1234"
        assert brick(Getxattr(loc=file.loc, key=key)).xattrs[key] == b"5678"
        brick.fails(Xattrop(loc=file.loc, flags=XATTROP_GET_AND_SET, xattrs=Xdata({key: b"9"})), errno.ERANGE)

    @pytest.mark.parametrize("flags", [XATTROP_OR, XATTROP_AND, 9])
    def test_xattrop_of_an_unknown_kind(self, brick: Brick, flags: int) -> None:
        file = brick.make(b"f")
        brick.fails(Xattrop(loc=file.loc, flags=flags, xattrs=Xdata({b"trusted.x": b"\1" * 4})), errno.EINVAL)

    # -- others ------------------------------------------------------------------------------------------------------

    def test_statfs(self, brick: Brick) -> None:
        figures = brick.statfs()
        assert figures.bsize > 0 and figures.frsize > 0
        assert figures.blocks >= figures.bfree >= figures.bavail > 0
        assert figures.namemax >= 255
        brick.fails(fops.Statfs(loc=Loc(gfid=STRANGER)), errno.ESTALE)

    def test_access(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(fops.Access(loc=file.loc, mask=6))
        brick.fails(fops.Access(loc=Loc(gfid=STRANGER), mask=0), errno.ESTALE)

    def test_fsyncdir(self, brick: Brick) -> None:
        fd = brick.opendir(ROOT_GFID)
        brick(fops.Fsyncdir(fd=fd))
        brick(fops.Releasedir(fd=fd))

    def test_leases_are_off(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick.fails(fops.Lease(loc=file.loc, lease=fops.LeaseInfo(cmd=2, type=1)), errno.ENOSYS, errno.EOPNOTSUPP)

    def test_an_unknown_ipc(self, brick: Brick) -> None:
        brick.fails(fops.Ipc(op=12345), errno.EOPNOTSUPP)
