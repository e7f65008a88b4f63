"""Extended attributes and directory listings of storage/posix."""

from __future__ import annotations

import errno
import struct

import pytest

from glustx import fops
from glustx.values import (
    ROOT_GFID,
    Caller,
    Loc,
)
from glustx.xdata import (
    CONTENT,
    MDATA_KEY,
    Xdata,
    uint,
)
from glustx.xlators.storage.posix_xattr import combine
from tests.t1_xlator.posix.kit import (
    WANTED,
    Brick,
    birth,
    gift,
    restarted,
)


def test_the_bricks_own_xattrs_are_out_of_reach(brick: Brick) -> None:
    _, gfid = brick.create(b"f")
    loc = Loc(gfid=gfid)
    before = {k: brick.xattr(brick.folder / "f", k) for k in brick.xattrs(brick.folder / "f")}
    brick.do(fops.Setxattr(loc=loc, xattrs=Xdata({b"trusted.gfid": b"x" * 16})))
    key = next(k for k in before if "gfid2path" in k).encode()
    brick.fails(errno.EOPNOTSUPP, fops.Setxattr(loc=loc, xattrs=Xdata({key: b"/etc"})))
    brick.fails(errno.EOPNOTSUPP, fops.Removexattr(loc=loc, key=key))
    brick.fails(errno.EPERM, fops.Removexattr(loc=loc, key=b"trusted.gfid"))
    brick.fails(errno.EPERM, fops.Removexattr(loc=loc, key=MDATA_KEY))
    brick.fails(errno.EINVAL, fops.Setxattr(loc=loc, xattrs=Xdata({MDATA_KEY: b"short"})))
    brick.fails(errno.EPERM, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.glustx.trusted.gfid": b"x" * 16})))
    brick.fails(errno.EPERM, fops.Xattrop(loc=loc, flags=4, xattrs=Xdata({b"trusted.gfid": b"x" * 16})))
    brick.fails(errno.EOPNOTSUPP, fops.Setxattr(loc=loc, xattrs=Xdata({b"nonsense": b"1"})))
    after = {k: brick.xattr(brick.folder / "f", k) for k in brick.xattrs(brick.folder / "f")}
    assert {k: v for k, v in after.items() if k != "trusted.glusterfs.mdata"} == {
        k: v for k, v in before.items() if k != "trusted.glusterfs.mdata"
    }
    assert dict(brick.do(fops.Getxattr(loc=loc)).xattrs) == {}
    brick.fails(errno.ENODATA, fops.Getxattr(loc=loc, key=MDATA_KEY))
    assert set(brick.do(fops.Getxattr(loc=loc, caller=Caller(pid=-6))).xattrs) == {MDATA_KEY}
    assert dict(brick.do(fops.Getxattr(loc=loc, key=b"trusted.gfid")).xattrs) == {}
    brick.fails(errno.ENODATA, fops.Getxattr(loc=loc, key=key))


def test_setxattr_is_all_or_nothing(brick: Brick) -> None:
    _, gfid = brick.create(b"f", xdata=gift({b"user.a": b"old"}))
    loc = Loc(gfid=gfid)
    both = Xdata({b"user.a": b"new", b"user.b": b"1", b"nonsense": b"2"})
    brick.fails(errno.EOPNOTSUPP, fops.Setxattr(loc=loc, xattrs=both))
    assert dict(brick.do(fops.Getxattr(loc=loc)).xattrs) == {b"user.a": b"old"}
    brick.fails(errno.EEXIST, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.a": b"x"}), flags=1))
    brick.fails(errno.ENODATA, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.c": b"x"}), flags=2))
    reply = brick.do(fops.Setxattr(loc=loc, xattrs=Xdata({b"user.a": b"xyz", b"user.c": b"9"})))
    assert reply.xdata[b"virt-gf-poststat"].gfid == gfid
    got = brick.do(fops.Getxattr(loc=loc, key=b"user.a"))
    assert (got.size, got.xattrs[b"user.a"]) == (3, b"xyz")
    brick.do(fops.Removexattr(loc=loc, key=b"user.a"))
    brick.fails(errno.ENODATA, fops.Getxattr(loc=loc, key=b"user.a"))
    brick.fails(errno.ENODATA, fops.Removexattr(loc=loc, key=b"user.a"))


def test_virtual_xattrs(brick: Brick) -> None:
    folder = brick.mkdir(b"d")
    _, gfid = brick.create(b"f", folder)
    text = brick.do(fops.Getxattr(loc=Loc(gfid=gfid), key=b"glusterfs.pathinfo")).xattrs[b"glusterfs.pathinfo"]
    assert text == f"<POSIX({brick.folder}):host.example:{brick.folder}/d/f>".encode()
    text = brick.do(fops.Getxattr(loc=Loc(gfid=ROOT_GFID), key=b"trusted.glusterfs.pathinfo")).xattrs
    assert text[b"trusted.glusterfs.pathinfo"].endswith(f":{brick.folder}>".encode())
    node = "40169439-ebd4-494f-91f6-ca9438168d54"
    restarted(brick, glusterd_uuid=node)
    key = b"trusted.glusterfs.node-uuid"
    assert brick.do(fops.Getxattr(loc=Loc(gfid=gfid), key=key)).xattrs[key] == node.encode()


def test_xattrop_on_disk(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    loc = Loc(gfid=gfid)
    dirty = b"trusted.afr.dirty"
    one = struct.pack(">3I", 1, 0, 0)
    assert brick.do(fops.Xattrop(loc=loc, flags=0, xattrs=Xdata({dirty: bytes(12)}))).xattrs[dirty] == bytes(12)
    assert "trusted.afr.dirty" not in brick.xattrs(brick.folder / "f")
    pending = b"trusted.afr.v-client-1"
    both = Xdata({dirty: one, pending: bytes(12)})
    answer = brick.do(fops.Fxattrop(fd=fd, flags=0, xattrs=both)).xattrs
    assert dict(answer) == {dirty: one, pending: bytes(12)}
    assert brick.xattr(brick.folder / "f", "trusted.afr.dirty") == one
    minus = struct.pack(">3i", -1, 0, 2)
    brick.do(fops.Fxattrop(fd=fd, flags=0, xattrs=Xdata({dirty: minus})))
    assert brick.xattr(brick.folder / "f", "trusted.afr.dirty") == struct.pack(">3I", 0, 0, 2)
    assert brick.lookup(b"f", xdata=Xdata({dirty: uint(12)})).xdata[dirty] == struct.pack(">3I", 0, 0, 2)
    brick.fails(errno.EINVAL, fops.Xattrop(loc=loc, flags=2, xattrs=Xdata({dirty: one})))
    brick.fails(errno.ERANGE, fops.Xattrop(loc=loc, flags=4, xattrs=Xdata({dirty: b"short"})))
    old = brick.do(fops.Xattrop(loc=loc, flags=4, xattrs=Xdata({dirty: bytes(12)}))).xattrs
    assert old[dirty] == struct.pack(">3I", 0, 0, 2)


def test_xattrop_arithmetic() -> None:
    q = struct.Struct(">2q").pack
    assert combine(1, q(5, -7), q(-6, 1)) == (q(-1, -6), q(-1, -6))
    assert combine(1, None, q(1, 2)) == (q(1, 2), q(1, 2))
    wrapped = combine(0, b"\xff" * 4, b"\0\0\0\1")
    assert wrapped == (b"\0" * 4, b"\0" * 4)
    # The second half of the delta is what a missing or zero value starts from.
    assert combine(6, None, q(1, 1) + q(0, 1)) == (q(1, 2), q(1, 2))
    assert combine(6, q(3, 0), q(1, 1) + q(9, 1)) == (q(4, 2), q(4, 2))
    assert combine(5, b"\0\0\0\4", b"\0\0\0\1\0\0\0\7") == (b"\0\0\0\5", b"\0\0\0\5")
    assert combine(4, None, b"new") == (None, b"new")
    with pytest.raises(OSError, match="longer"):
        combine(4, b"longer", b"new")


def listing(brick: Brick, gfid: bytes, size: int, plus: bool, start: int = 0) -> list[fops.DirEntry]:
    found: list[fops.DirEntry] = []
    fd = brick.opendir(gfid)
    offset = start
    while True:
        if plus:
            reply = brick.do(fops.Readdirp(fd=fd, offset=offset, size=size, xdata=WANTED))
        else:
            reply = brick.do(fops.Readdir(fd=fd, offset=offset, size=size))
        if not reply.entries:
            assert reply.eof
            break
        found += reply.entries
        offset = found[-1].off
    brick.do(fops.Releasedir(fd=fd))
    return found


@pytest.mark.parametrize("plus", [False, True])
def test_listings_page_and_resume_anywhere(brick: Brick, plus: bool) -> None:
    folder = brick.mkdir(b"d")
    names = {b"file-%04d" % number for number in range(700)}
    for name in names:
        brick.release(brick.create(name, folder)[0])
    whole = listing(brick, folder, 1 << 20, plus)
    assert {e.name for e in whole} == names | {b".", b".."} and len(whole) == 702
    small = listing(brick, folder, 600, plus)
    assert [e.name for e in small] == [e.name for e in whole]
    cookie, rest = whole[333].off, [e.name for e in whole[334:]]
    assert [e.name for e in listing(brick, folder, 4096, plus, cookie)] == rest
    restarted(brick)
    assert [e.name for e in listing(brick, folder, 4096, plus, cookie)] == rest
    fd = brick.opendir(folder)
    kind = fops.Readdirp if plus else fops.Readdir
    assert len(brick.do(kind(fd=fd, offset=0, size=300)).entries) in (1, 2, 6, 7)
    assert len(brick.do(kind(fd=fd, offset=0, size=1)).entries) == 1


def test_readdirp_says_what_lookup_says(brick: Brick) -> None:
    folder = brick.mkdir(b"d")
    fd, _ = brick.create(b"f", folder, xdata=gift({b"user.colour": b"blue"}))
    brick.write(fd, b"content")
    brick.mkdir(b"sub", folder)
    brick.do(fops.Symlink(loc=Loc(pargfid=folder, name=b"l"), linkname=b"x", xdata=birth()))
    (brick.folder / "d/foreign").write_bytes(b"")
    for _ in range(2):
        entries = {e.name: e for e in listing(brick, folder, 4096, True)}
        for name in (b"f", b"sub", b"l"):
            found = brick.lookup(name, folder)
            assert entries[name].stat == found.stat and entries[name].xattrs == found.xdata
            assert entries[name].gfid == found.stat.gfid
        assert entries[b"f"].xattrs[CONTENT] == b"content" and entries[b"f"].xattrs[b"user.colour"] == b"blue"
        assert entries[b"."].gfid == folder and entries[b".."].gfid == ROOT_GFID
        assert entries[b"foreign"].stat is None
        restarted(brick)
    assert {e.name for e in listing(brick, ROOT_GFID, 4096, True)} == {b".", b"..", b"d"}
