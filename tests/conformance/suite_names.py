"""Conformance of fops on names: LOOKUP, making, linking, moving and removing, directories, opening."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from glustx import fops
from glustx.inode import Fd
from glustx.values import NULL_GFID, ROOT_GFID, ROOT_LOC, Caller, Loc, gfid_ino, new_gfid, st_rdev
from glustx.xdata import EMPTY, GET_LINK_COUNT, GFID_REQ, Xdata
from tests.conformance.brick import O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, Brick

STRANGER = bytes(range(16))
LONG = b"n" * 255


def named(name: bytes, parent: bytes = ROOT_GFID) -> Loc:
    return Loc(pargfid=parent, name=name)


class NamesSuite:
    """Fops on names."""

    # -- LOOKUP ------------------------------------------------------------------------------------------------------

    def test_lookup_of_the_root(self, brick: Brick) -> None:
        reply = brick(fops.Lookup(loc=ROOT_LOC))
        assert reply.stat.gfid == ROOT_GFID and reply.stat.is_dir() and reply.stat.ino == 1
        assert reply.postparent.gfid in (NULL_GFID, ROOT_GFID)

    def test_lookup_by_name_and_by_gfid(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        by_name = brick.lookup(b"f")
        by_gfid = brick(fops.Lookup(loc=Loc(gfid=file.gfid)))
        assert by_name.stat == by_gfid.stat
        assert by_name.stat.gfid == file.gfid and by_name.stat.size == 3
        assert by_name.stat.ino == gfid_ino(file.gfid)
        assert by_name.postparent.gfid == ROOT_GFID

    def test_lookup_with_another_gfid_finds_the_name(self, brick: Brick) -> None:
        file = brick.make(b"f")
        reply = brick(fops.Lookup(loc=Loc(gfid=STRANGER, pargfid=ROOT_GFID, name=b"f")))
        assert reply.stat.gfid == file.gfid

    def test_lookup_of_what_is_not_there(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick.fails(fops.Lookup(loc=named(b"gone")), errno.ENOENT)
        brick.fails(fops.Lookup(loc=Loc(gfid=STRANGER)), errno.ENOENT)
        brick.fails(fops.Lookup(loc=named(b"x", STRANGER)), errno.ESTALE)
        brick.fails(fops.Lookup(loc=Loc()), errno.EINVAL)
        brick.fails(fops.Lookup(loc=named(b"x", file.gfid)), errno.ENOTDIR)

    @pytest.mark.parametrize("name", [b".", b".."])
    def test_lookup_of_dots_at_the_root(self, brick: Brick, name: bytes) -> None:
        reply = brick.lookup(name)
        assert reply.stat.gfid == ROOT_GFID and reply.stat.is_dir()
        assert reply.stat.mode == brick(fops.Lookup(loc=ROOT_LOC)).stat.mode

    def test_lookup_of_dots_in_a_folder(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        assert brick.lookup(b".", folder.gfid).stat.gfid == folder.gfid
        # Nobody needs the way up, and a brick that knows none cannot be led out of its root.
        brick.fails(fops.Lookup(loc=named(b"..", folder.gfid)), errno.EINVAL)

    @pytest.mark.parametrize("name", [b"a/b", b"../x", b"a\0b", b"/"])
    def test_a_name_that_is_none_is_refused(self, brick: Brick, name: bytes) -> None:
        brick.fails(fops.Lookup(loc=named(name)), errno.EINVAL, errno.ENOENT)
        brick.fails(fops.Mkdir(loc=named(name), mode=0o755, xdata=brick.fresh()), errno.EINVAL)
        assert brick.names() == []

    def test_names_of_255_bytes_and_more(self, brick: Brick) -> None:
        brick.make(LONG)
        assert brick.lookup(LONG).stat.is_reg()
        assert brick.names() == [LONG]
        brick.fails(fops.Lookup(loc=named(LONG + b"x")), errno.ENAMETOOLONG)
        brick.fails(fops.Mkdir(loc=named(LONG + b"x"), mode=0o755, xdata=brick.fresh()), errno.ENAMETOOLONG)
        brick(fops.Unlink(loc=named(LONG)))
        assert brick.names() == []

    def test_names_are_bytes(self, brick: Brick) -> None:
        names = [b"\xff\xfe", "späť".encode(), b" ", b"new\nline", b"a\\b"]
        for name in names:
            brick.make(name)
        assert brick.names() == sorted(names)

    # -- making ------------------------------------------------------------------------------------------------------

    def test_create(self, brick: Brick) -> None:
        gfid = new_gfid()
        fd = Fd(NULL_GFID, O_RDWR)
        before = brick.stat(ROOT_GFID)
        reply = brick(
            fops.Create(
                loc=named(b"f"), fd=fd, flags=O_RDWR | O_CREAT, mode=0o666, umask=0o027, xdata=brick.fresh(gfid)
            )
        )
        assert fd.gfid == reply.stat.gfid == gfid
        assert reply.stat.mode == stat.S_IFREG | 0o640
        assert (reply.stat.nlink, reply.stat.size) == (1, 0)
        assert reply.preparent.gfid == reply.postparent.gfid == ROOT_GFID
        assert reply.preparent.mtime_ns == before.mtime_ns
        assert reply.postparent.mtime_ns >= before.mtime_ns
        brick(fops.Write(fd=fd, offset=0, data=b"x"))

    def test_create_of_what_is_there(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        again = Fd(NULL_GFID, O_RDWR)
        flags = O_RDWR | O_CREAT
        brick.fails(
            fops.Create(loc=file.loc, fd=Fd(NULL_GFID, 0), flags=flags | O_EXCL, mode=0o644, xdata=brick.fresh()),
            errno.EEXIST,
        )
        reply = brick(fops.Create(loc=named(b"f"), fd=again, flags=flags, mode=0o600, xdata=brick.fresh()))
        assert reply.stat.gfid == again.gfid == file.gfid
        assert (reply.stat.size, reply.stat.mode & 0o777) == (3, 0o644)
        assert brick.read(again) == b"abc"

    def test_make_without_a_gfid(self, brick: Brick) -> None:
        brick.fails(fops.Mkdir(loc=named(b"d"), mode=0o755), errno.EINVAL)
        brick.fails(fops.Create(loc=named(b"f"), fd=Fd(NULL_GFID, 0), flags=O_CREAT, mode=0o644), errno.EINVAL)
        brick.fails(fops.Symlink(loc=named(b"l"), linkname=b"x"), errno.EINVAL)
        brick.fails(fops.Mknod(loc=named(b"n"), mode=stat.S_IFREG | 0o644), errno.EINVAL)
        assert brick.names() == []

    def test_mkdir(self, brick: Brick) -> None:
        gfid = new_gfid()
        reply = brick(fops.Mkdir(loc=named(b"d"), mode=0o777, umask=0o022, xdata=brick.fresh(gfid)))
        assert reply.stat.gfid == gfid and reply.stat.mode == stat.S_IFDIR | 0o755
        assert reply.stat.nlink == brick.folder_links(0)
        assert reply.postparent.nlink - reply.preparent.nlink == brick.folder_links(1) - brick.folder_links(0)
        brick.fails(fops.Mkdir(loc=named(b"d"), mode=0o755, xdata=brick.fresh()), errno.EEXIST)
        brick.fails(fops.Mkdir(loc=named(b"x", STRANGER), mode=0o755, xdata=brick.fresh()), errno.ESTALE)

    def test_owner_and_setgid(self, brick: Brick) -> None:
        someone = Caller(uid=1234, gid=2345)
        file = brick(fops.Mknod(loc=named(b"f"), mode=stat.S_IFREG | 0o600, caller=someone, xdata=brick.fresh())).stat
        assert (file.uid, file.gid) == (1234, 2345)
        folder = brick.mkdir(b"d")
        change = brick.stat(folder.gfid)
        brick(fops.Setattr(loc=Loc(gfid=folder.gfid), stat=type(change)(mode=0o2777, gid=77), valid=0x1 | 0x4))
        inner = brick(fops.Mkdir(loc=named(b"s", folder.gfid), mode=0o755, caller=someone, xdata=brick.fresh())).stat
        assert (inner.uid, inner.gid) == (1234, 77)
        assert inner.mode & stat.S_ISGID
        inner = brick(
            fops.Mknod(loc=named(b"f", folder.gfid), mode=stat.S_IFREG | 0o644, caller=someone, xdata=brick.fresh())
        ).stat
        assert inner.gid == 77 and not inner.mode & stat.S_ISGID

    def test_mknod_kinds(self, brick: Brick) -> None:
        for name, kind in ((b"f", stat.S_IFREG), (b"p", stat.S_IFIFO), (b"s", stat.S_IFSOCK)):
            reply = brick(fops.Mknod(loc=named(name), mode=kind | 0o640, xdata=brick.fresh()))
            assert reply.stat.mode == kind | 0o640
            assert brick.lookup(name).stat.mode == kind | 0o640
        types = {entry.name: entry.type for entry in brick.entries()}
        assert (types[b"f"], types[b"p"], types[b"s"]) == (8, 1, 12)

    def test_device_numbers(self, brick: Brick) -> None:
        dev = os.makedev(259, 70000)
        if os.geteuid():
            pytest.skip("device nodes need root")
        made = brick(fops.Mknod(loc=named(b"n"), mode=stat.S_IFBLK | 0o600, rdev=dev, xdata=brick.fresh())).stat
        assert made.rdev == 259 << 32 | 70000
        assert st_rdev(made.rdev) == dev

    def test_symlink_and_readlink(self, brick: Brick) -> None:
        target = b"../some/where/\xff"
        reply = brick(fops.Symlink(loc=named(b"l"), linkname=target, xdata=brick.fresh()))
        assert reply.stat.is_lnk() and reply.stat.size == len(target)
        loc = Loc(gfid=reply.stat.gfid)
        assert brick(fops.Readlink(loc=loc, size=4096)).path == target
        assert brick(fops.Readlink(loc=loc, size=4)).path == target[:4]
        assert brick.lookup(b"l").stat.is_lnk()
        brick.fails(fops.Readlink(loc=Loc(gfid=brick.make(b"f").gfid), size=100), errno.EINVAL)
        brick(fops.Unlink(loc=named(b"l")))
        assert brick.names() == [b"f"]

    # -- linking and removing ----------------------------------------------------------------------------------------

    def test_link_counts(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        folder = brick.mkdir(b"d")
        reply = brick(fops.Link(oldloc=file.loc, newloc=named(b"g", folder.gfid)))
        assert (reply.stat.nlink, reply.stat.gfid) == (2, file.gfid)
        assert reply.postparent.gfid == folder.gfid
        assert brick.lookup(b"g", folder.gfid).stat.nlink == 2
        brick(fops.Unlink(loc=file.loc))
        assert brick.stat(file.gfid).nlink == 1
        assert brick.content(file.gfid) == b"abc"
        assert brick.names() == [b"d"]

    def test_link_errors(self, brick: Brick) -> None:
        file = brick.make(b"f")
        folder = brick.mkdir(b"d")
        brick.fails(fops.Link(oldloc=file.loc, newloc=named(b"f")), errno.EEXIST)
        brick.fails(fops.Link(oldloc=Loc(gfid=STRANGER), newloc=named(b"g")), errno.ESTALE)
        brick.fails(fops.Link(oldloc=file.loc, newloc=named(b"g", STRANGER)), errno.ESTALE)
        brick.fails(fops.Link(oldloc=folder, newloc=named(b"g")), errno.EPERM)

    def test_unlink(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        folder = brick.mkdir(b"d")
        reply = brick(fops.Unlink(loc=named(b"f"), xdata=Xdata({GET_LINK_COUNT: 1})))
        assert reply.pre.gfid == reply.post.gfid == ROOT_GFID
        assert reply.xdata.number(GET_LINK_COUNT, 1) == 1
        brick.fails(fops.Unlink(loc=named(b"f")), errno.ENOENT)
        brick.fails(fops.Unlink(loc=named(b"d")), errno.EISDIR)
        brick.fails(fops.Unlink(loc=named(b"x", STRANGER)), errno.ESTALE)
        brick(fops.Release(fd=file.fd))
        brick.fails(fops.Stat(loc=Loc(gfid=file.gfid)), errno.ESTALE)
        assert brick.stat(folder.gfid).nlink == brick.folder_links(0)

    def test_an_unlinked_file_lives_while_it_is_open(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        brick(fops.Unlink(loc=file.loc))
        assert brick(fops.Fstat(fd=file.fd)).stat.nlink == 0
        assert brick.read(file.fd) == b"abc"
        brick(fops.Write(fd=file.fd, offset=3, data=b"def"))
        assert brick.read(file.fd) == b"abcdef"
        brick.fails(fops.Lookup(loc=Loc(gfid=file.gfid)), errno.ENOENT)
        brick.fails(fops.Lookup(loc=named(b"f")), errno.ENOENT)
        other = brick.make(b"f", b"new")
        assert brick.read(file.fd) == b"abcdef"
        assert brick.content(other.gfid) == b"new"

    def test_rmdir(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        inner = brick.make(b"f", parent=folder.gfid)
        brick.fails(fops.Rmdir(loc=named(b"d")), errno.ENOTEMPTY)
        brick.fails(fops.Rmdir(loc=named(b"f", folder.gfid)), errno.ENOTDIR)
        brick.fails(fops.Rmdir(loc=named(b"gone")), errno.ENOENT)
        brick(fops.Unlink(loc=inner.loc))
        reply = brick(fops.Rmdir(loc=named(b"d")))
        assert reply.pre.nlink - reply.post.nlink == brick.folder_links(1) - brick.folder_links(0)
        brick.fails(fops.Lookup(loc=Loc(gfid=folder.gfid)), errno.ENOENT)
        assert brick.names() == []

    def test_rmdir_of_all_that_is_in_it(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        inner = brick.mkdir(b"e", folder.gfid)
        file = brick.make(b"f", b"x", parent=inner.gfid)
        brick(fops.Release(fd=file.fd))
        brick(fops.Rmdir(loc=named(b"d"), xflags=1))
        assert brick.names() == []
        for gfid in (folder.gfid, inner.gfid):
            brick.fails(fops.Lookup(loc=Loc(gfid=gfid)), errno.ENOENT)

    # -- RENAME ------------------------------------------------------------------------------------------------------

    def test_rename(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        folder = brick.mkdir(b"d")
        reply = brick(fops.Rename(oldloc=file.loc, newloc=named(b"g", folder.gfid)))
        assert reply.stat.gfid == file.gfid
        assert reply.preoldparent.gfid == reply.postoldparent.gfid == ROOT_GFID
        assert reply.prenewparent.gfid == reply.postnewparent.gfid == folder.gfid
        assert brick.names() == [b"d"] and brick.names(folder.gfid) == [b"g"]
        assert brick.content(file.gfid) == b"abc"

    def test_rename_over_a_file(self, brick: Brick) -> None:
        file, victim = brick.make(b"f", b"new"), brick.make(b"g", b"old")
        brick(fops.Rename(oldloc=file.loc, newloc=victim.loc))
        assert brick.names() == [b"g"]
        assert brick.lookup(b"g").stat.gfid == file.gfid
        assert brick.read(victim.fd) == b"old"
        assert brick(fops.Fstat(fd=victim.fd)).stat.nlink == 0
        brick(fops.Release(fd=victim.fd))
        brick.fails(fops.Lookup(loc=Loc(gfid=victim.gfid)), errno.ENOENT)

    def test_rename_over_another_name_of_the_same_file(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(fops.Link(oldloc=file.loc, newloc=named(b"g")))
        brick(fops.Rename(oldloc=file.loc, newloc=named(b"g")))
        assert brick.names() == [b"f", b"g"]
        assert brick.stat(file.gfid).nlink == 2

    def test_rename_of_a_folder(self, brick: Brick) -> None:
        a, b = brick.mkdir(b"a"), brick.mkdir(b"b")
        file = brick.make(b"f", b"abc", parent=a.gfid)
        reply = brick(fops.Rename(oldloc=a, newloc=named(b"c", b.gfid)))
        assert reply.preoldparent.nlink - reply.postoldparent.nlink == brick.folder_links(2) - brick.folder_links(1)
        assert reply.postnewparent.nlink == brick.folder_links(1)
        assert brick.names(a.gfid) == [b"f"]
        assert brick.lookup(b"f", a.gfid).stat.gfid == file.gfid
        assert brick.content(file.gfid) == b"abc"

    def test_rename_over_an_empty_folder(self, brick: Brick) -> None:
        a, b = brick.mkdir(b"a"), brick.mkdir(b"b")
        brick(fops.Rename(oldloc=a, newloc=b))
        assert brick.names() == [b"b"]
        assert brick.lookup(b"b").stat.gfid == a.gfid
        brick.fails(fops.Lookup(loc=Loc(gfid=b.gfid)), errno.ENOENT)

    def test_rename_errors(self, brick: Brick) -> None:
        file, folder = brick.make(b"f"), brick.mkdir(b"d")
        full = brick.mkdir(b"full")
        brick.make(b"x", parent=full.gfid)
        inner = brick.mkdir(b"e", folder.gfid)
        rename = fops.Rename
        brick.fails(rename(oldloc=named(b"gone"), newloc=named(b"z")), errno.ENOENT)
        brick.fails(rename(oldloc=file.loc, newloc=folder), errno.EISDIR)
        brick.fails(rename(oldloc=folder, newloc=file.loc), errno.ENOTDIR)
        brick.fails(rename(oldloc=folder, newloc=full), errno.ENOTEMPTY, errno.EEXIST)
        brick.fails(rename(oldloc=folder, newloc=named(b"z", inner.gfid)), errno.EINVAL)
        brick.fails(rename(oldloc=file.loc, newloc=named(b"z", STRANGER)), errno.ESTALE)
        brick.fails(rename(oldloc=named(b"f", STRANGER), newloc=named(b"z")), errno.ESTALE)
        brick.fails(rename(oldloc=file.loc, newloc=named(LONG + b"x")), errno.ENAMETOOLONG)
        assert brick.names() == [b"d", b"f", b"full"]

    # -- directories -------------------------------------------------------------------------------------------------

    def test_listing_has_dots_and_types(self, brick: Brick) -> None:
        brick.mkdir(b"d")
        brick.make(b"f")
        brick(fops.Symlink(loc=named(b"l"), linkname=b"x", xdata=brick.fresh()))
        fd = brick.opendir(ROOT_GFID)
        reply = brick(fops.Readdir(fd=fd, offset=0, size=65536))
        types = {entry.name: entry.type for entry in reply.entries}
        assert types == {b".": 4, b"..": 4, b"d": 4, b"f": 8, b"l": 10}
        assert brick(fops.Readdir(fd=fd, offset=reply.entries[-1].off, size=65536)).entries == ()
        brick(fops.Releasedir(fd=fd))

    @pytest.mark.parametrize("size", [1, 300, 1000, 65536])
    def test_a_listing_in_pieces_has_everything_once(self, brick: Brick, size: int) -> None:
        made = {b"%04d-%s" % (i, b"x" * (i % 50)): brick.make(b"%04d-%s" % (i, b"x" * (i % 50))) for i in range(60)}
        entries = brick.entries(size=size)
        names = [entry.name for entry in entries]
        assert sorted(names) == sorted([*made, b".", b".."])
        assert len({entry.off for entry in entries}) == len(entries)
        for entry in entries:
            if entry.name in made:
                assert entry.stat.gfid == made[entry.name].gfid and entry.stat.is_reg()

    def test_a_listing_while_names_come_and_go(self, brick: Brick) -> None:
        for i in range(40):
            brick.make(b"%03d" % i)
        fd = brick.opendir(ROOT_GFID)
        first = brick(fops.Readdirp(fd=fd, offset=0, size=1500))
        seen = [entry.name for entry in first.entries]
        assert 2 < len(seen) < 42
        for name in seen:
            if name not in (b".", b".."):
                brick(fops.Unlink(loc=named(name)))
        offset = first.entries[-1].off
        while entries := brick(fops.Readdirp(fd=fd, offset=offset, size=1500)).entries:
            seen.extend(entry.name for entry in entries)
            offset = entries[-1].off
        assert len(seen) == len(set(seen))
        assert set(seen) >= {b"%03d" % i for i in range(40)}

    def test_listing_brings_xattrs(self, brick: Brick) -> None:
        file = brick.make(b"f")
        brick(fops.Setxattr(loc=file.loc, xattrs=Xdata({b"user.k": b"v"})))
        (entry,) = [e for e in brick.entries(xdata=Xdata({b"user.k": 0})) if e.name == b"f"]
        assert entry.xattrs[b"user.k"] == b"v"

    def test_directory_errors(self, brick: Brick) -> None:
        file = brick.make(b"f")
        fd = Fd(file.gfid, 0, directory=True)
        brick.fails(fops.Opendir(loc=file.loc, fd=fd), errno.ENOTDIR)
        brick.fails(fops.Opendir(loc=Loc(gfid=STRANGER), fd=Fd(STRANGER, 0, directory=True)), errno.ESTALE)
        brick.fails(fops.Readdirp(fd=fd, offset=0, size=4096), errno.EBADF, errno.EBADFD)

    # -- opening -----------------------------------------------------------------------------------------------------

    def test_open_errors(self, brick: Brick) -> None:
        folder = brick.mkdir(b"d")
        link = brick(fops.Symlink(loc=named(b"l"), linkname=b"f", xdata=brick.fresh())).stat.gfid
        open_ = fops.Open
        brick.fails(open_(loc=folder, fd=Fd(folder.gfid, O_RDWR), flags=O_RDWR), errno.EISDIR)
        brick.fails(open_(loc=Loc(gfid=link), fd=Fd(link, O_RDONLY), flags=O_RDONLY), errno.ELOOP)
        brick.fails(open_(loc=Loc(gfid=STRANGER), fd=Fd(STRANGER, 0), flags=0), errno.ESTALE)
        brick.fails(open_(loc=Loc(), fd=Fd(NULL_GFID, 0), flags=0), errno.EINVAL)

    def test_open_with_truncation(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        fd = brick.open(file.gfid, O_RDWR | O_TRUNC)
        assert brick(fops.Fstat(fd=fd)).stat.size == 0

    def test_access_modes_of_an_fd(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        reader, writer = brick.open(file.gfid, O_RDONLY), brick.open(file.gfid, O_WRONLY)
        brick.fails(fops.Write(fd=reader, offset=0, data=b"x"), errno.EBADF)
        brick.fails(fops.Read(fd=writer, offset=0, size=1), errno.EBADF)
        brick(fops.Write(fd=writer, offset=0, data=b"x"))
        assert brick.read(reader) == b"xbc"

    def test_a_closed_fd(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        brick(fops.Flush(fd=file.fd))
        brick(fops.Release(fd=file.fd))
        brick.fails(fops.Read(fd=file.fd, offset=0, size=1), errno.EBADF, errno.EBADFD)
        brick.fails(fops.Fstat(fd=file.fd), errno.EBADF, errno.EBADFD)

    def test_an_anonymous_fd(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")
        fd = Fd(file.gfid, O_RDWR, anonymous=True)
        assert brick.read(fd) == b"abc"
        brick(fops.Write(fd=fd, offset=3, data=b"def"))
        assert brick(fops.Fstat(fd=fd)).stat.size == 6
        stranger = Fd(STRANGER, O_RDWR, anonymous=True)
        brick.fails(fops.Read(fd=stranger, offset=0, size=1), errno.ESTALE, errno.ENOENT)

    def test_create_answers_with_the_gfid(self, brick: Brick) -> None:
        gfid = new_gfid()
        fd = Fd(NULL_GFID, O_RDWR)
        reply = brick(fops.Create(loc=named(b"f"), fd=fd, flags=O_RDWR | O_CREAT, mode=0o644, xdata=brick.fresh(gfid)))
        assert reply.xdata is EMPTY or reply.xdata.get(GFID_REQ, gfid) == gfid
