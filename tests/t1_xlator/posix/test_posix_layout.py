"""What storage/posix writes to disk; the golden values are stock GlusterFS 10's."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from glustx import fops
from glustx.values import (
    ROOT_GFID,
    Loc,
    gfid_from_text,
    gfid_text,
)
from glustx.xdata import (
    GFID_REQ,
    PREOP_CHECK_FAILED,
    PREOP_PARENT_KEY,
    STR,
    Typed,
    Xdata,
    gfuuid,
)
from tests.t1_xlator.posix.kit import (
    BIRTH,
    ROOT_TEXT,
    T0,
    Brick,
    birth,
    gift,
    restarted,
)


def test_a_new_brick_has_the_skeleton_of_stock(stock: Brick) -> None:
    inside = stock.folder / ".glusterfs"
    assert {f"{n:02x}" for n in range(256)} < set(os.listdir(inside))
    assert {"indices", "changelogs", "landfill", "unlink"} < set(os.listdir(inside))
    assert stat.S_IMODE(inside.stat().st_mode) == 0o600
    assert stat.S_IMODE((inside / "ff").stat().st_mode) == 0o700
    assert os.readlink(inside / "00/00" / ROOT_TEXT) == "../../.."
    assert os.getxattr(stock.folder, "trusted.gfid") == ROOT_GFID
    assert len(os.getxattr(stock.folder, "trusted.glusterfs.mdata")) == 57


def test_a_file_on_disk_is_what_stock_writes(stock: Brick) -> None:
    gfid = gfid_from_text("c86e4a85-a39a-4aa6-b0d0-06cf4cc4ea50")
    xdata = Xdata({GFID_REQ: gfuuid(gfid)})
    fd, made = stock.create(b"x.img", xdata=xdata, ctime=T0, stamp=BIRTH)
    assert made == gfid and fd.gfid == gfid
    path = stock.folder / "x.img"
    mdata = bytes.fromhex("010000000000000000" + "000000006b0d9be20000000035dafcc6" * 3)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == {
        "trusted.gfid": gfid,
        "trusted.gfid2path.5f1befa89614443c": f"{ROOT_TEXT}/x.img".encode(),
        "trusted.glusterfs.mdata": mdata,
    }
    handle = stock.folder / ".glusterfs/c8/6e/c86e4a85-a39a-4aa6-b0d0-06cf4cc4ea50"
    assert handle.samefile(path) and path.stat().st_nlink == 2
    assert stock.lookup(b"x.img").stat.nlink == 1


def test_gfid2path_of_a_file_in_a_directory(stock: Brick) -> None:
    parent = gfid_from_text("40169439-ebd4-494f-91f6-ca9438168d54")
    stock.mkdir(b"d", xdata=Xdata({GFID_REQ: gfuuid(parent)}))
    stock.create(b"q3", parent)
    key = "trusted.gfid2path.32b8ffc4d4d86032"
    assert os.getxattr(stock.folder / "d/q3", key) == b"40169439-ebd4-494f-91f6-ca9438168d54/q3"


def test_a_directory_has_a_symlink_for_a_handle(brick: Brick) -> None:
    gfid = brick.mkdir(b"keep")
    inner = brick.mkdir(b"in\nner", gfid)
    assert os.readlink(brick.handle(gfid)) == f"../../00/00/{ROOT_TEXT}/keep"
    text = gfid_text(gfid)
    assert os.readlink(brick.handle(inner)) == f"../../{text[:2]}/{text[2:4]}/{text}/in\nner"
    assert brick.xattrs(brick.folder / "keep") == {"trusted.gfid", "trusted.glusterfs.mdata"}
    assert brick.lookup(b"keep").stat.nlink == (brick.folder / "keep").stat().st_nlink


def test_links_and_special_files_have_hard_linked_handles(brick: Brick) -> None:
    made = brick.do(fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"l"), linkname=b"/etc/passwd", xdata=birth())).stat
    assert stat.S_ISLNK(made.mode) and made.nlink == 1 and made.size == 11
    assert os.readlink(brick.handle(made.gfid)) == "/etc/passwd"
    assert brick.handle(made.gfid).lstat().st_nlink == 2
    fifo = brick.do(fops.Mknod(loc=Loc(pargfid=ROOT_GFID, name=b"p"), mode=stat.S_IFIFO | 0o640, xdata=birth())).stat
    assert stat.S_ISFIFO(fifo.mode) and stat.S_IMODE(fifo.mode) == 0o640
    restarted(brick)
    assert brick.do(fops.Readlink(loc=Loc(gfid=made.gfid), size=4096)).path == b"/etc/passwd"
    assert brick.do(fops.Readlink(loc=Loc(gfid=made.gfid), size=4)).path == b"/etc"
    assert brick.lookup(b"l").stat == made
    assert brick.lookup(b"p").stat == fifo
    brick.unlink(b"l")
    brick.unlink(b"p")
    assert not os.path.lexists(brick.handle(made.gfid)) and not os.path.lexists(brick.handle(fifo.gfid))
    if brick.namespace == "user":
        assert os.listdir(brick.folder / ".glusterfs/xattrs") == []


def test_link_rename_and_unlink_keep_the_names_in_xattrs(brick: Brick) -> None:
    folder = brick.mkdir(b"d")
    fd, gfid = brick.create(b"a")
    brick.do(fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=folder, name=b"b")))
    assert brick.lookup(b"a").stat.nlink == 2

    def recorded() -> set[bytes]:
        path = brick.handle(gfid)
        return {brick.xattr(path, k) for k in brick.xattrs(path) if k.startswith("trusted.gfid2path.")}

    root, inner = ROOT_TEXT.encode(), gfid_text(folder).encode()
    assert recorded() == {root + b"/a", inner + b"/b"}
    both = brick.do(fops.Getxattr(loc=Loc(gfid=gfid), key=b"glusterfs.gfidtopath")).xattrs[b"glusterfs.gfidtopath"]
    assert sorted(both.split(b":")) == [b"/a", b"/d/b"]
    brick.rename(b"b", b"c", folder, ROOT_GFID)
    assert recorded() == {root + b"/a", root + b"/c"}
    brick.unlink(b"a")
    assert recorded() == {root + b"/c"}
    assert brick.handle(gfid).lstat().st_nlink == 2
    brick.release(fd)
    brick.unlink(b"c")
    assert not os.path.lexists(brick.handle(gfid))
    brick.fails(errno.ESTALE, fops.Stat(loc=Loc(gfid=gfid)))


def test_a_renamed_directory_is_found_by_gfid_with_all_that_is_in_it(brick: Brick) -> None:
    a, b = brick.mkdir(b"a"), brick.mkdir(b"b")
    inner = brick.mkdir(b"inner", a)
    _, file = brick.create(b"file", inner)
    brick.rename(b"a", b"moved", ROOT_GFID, b)
    text = gfid_text(b)
    assert os.readlink(brick.handle(a)) == f"../../{text[:2]}/{text[2:4]}/{text}/moved"
    for _ in range(2):
        assert brick.do(fops.Getxattr(loc=Loc(gfid=file), key=b"glusterfs.gfidtopath")).xattrs[
            b"glusterfs.gfidtopath"
        ] == (b"/b/moved/inner/file")
        assert brick.lookup(b"file", inner).stat.gfid == file
        restarted(brick)
    victim = brick.mkdir(b"victim")
    brick.rename(b"b", b"victim")
    assert not os.path.lexists(brick.handle(victim))
    assert brick.lookup(b"victim").stat.gfid == b


def test_rename_over_a_file_takes_the_victims_handle(brick: Brick) -> None:
    _, one = brick.create(b"one")
    held, two = brick.create(b"two")
    brick.write(held, b"still there")
    brick.rename(b"one", b"two")
    assert brick.lookup(b"two").stat.gfid == one
    assert not os.path.lexists(brick.handle(two))
    aside = brick.folder / ".glusterfs/unlink" / gfid_text(two)
    assert aside.exists()
    assert brick.read(held).data == b"still there"
    brick.release(held)
    assert not aside.exists()


def test_rename_between_two_names_of_one_file_does_nothing(brick: Brick) -> None:
    _, gfid = brick.create(b"a")
    brick.do(fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"b")))
    before = brick.tree()
    brick.rename(b"a", b"b")
    assert brick.tree() == before


def test_a_link_over_the_files_own_name_leaves_the_record_of_it(brick: Brick) -> None:
    _, gfid = brick.create(b"a")
    for number in (None, errno.EEXIST):
        request = fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"b"))
        brick.do(request) if number is None else brick.fails(number, request)
    recorded = [brick.xattr(brick.folder / "a", k) for k in brick.xattrs(brick.folder / "a") if "gfid2path" in k]
    assert sorted(recorded) == [f"{ROOT_TEXT}/a".encode(), f"{ROOT_TEXT}/b".encode()]


def test_pgfid_counts_links_when_quota_wants_them(folder: Path, namespace: str) -> None:
    brick = Brick(folder, namespace, update_link_count_parent="on")
    _, gfid = brick.create(b"a")
    key = f"trusted.pgfid.{ROOT_TEXT}"
    assert brick.xattr(folder / "a", key) == b"\0\0\0\1"
    brick.do(fops.Link(oldloc=Loc(gfid=gfid), newloc=Loc(pargfid=ROOT_GFID, name=b"b")))
    assert brick.xattr(folder / "a", key) == b"\0\0\0\2"
    inner = brick.mkdir(b"d")
    brick.rename(b"b", b"c", ROOT_GFID, inner)
    assert brick.xattr(folder / "a", key) == b"\0\0\0\1"
    brick.unlink(b"a")
    assert key not in brick.xattrs(folder / "d/c")
    brick.close()


def test_xattrs_in_xdata_are_set_on_the_new_object(brick: Brick) -> None:
    linkto = Typed(STR, b"vol-client-0")
    brick.create(
        b"f", xdata=gift({b"trusted.glusterfs.dht.linkto": linkto, b"user.colour": b"blue", b"security.ima": 0})
    )
    path = brick.folder / "f"
    assert brick.xattr(path, "trusted.glusterfs.dht.linkto") == b"vol-client-0\0"
    assert os.getxattr(path, "user.colour") == b"blue"
    brick.mkdir(b"d", xdata=gift({b"trusted.glusterfs.dht.mds": b"\0\0\0\0", b"trusted.gfid": b"x" * 16}))
    assert brick.xattr(brick.folder / "d", "trusted.glusterfs.dht.mds") == b"\0\0\0\0"
    assert brick.xattr(brick.folder / "d", "trusted.gfid") == brick.lookup(b"d").stat.gfid


def test_mkdir_checks_the_parent_as_the_client_believes_it(brick: Brick) -> None:
    parent = brick.mkdir(b"d", xdata=gift({b"trusted.glusterfs.dht": b"L" * 16}))
    check = {PREOP_PARENT_KEY: "trusted.glusterfs.dht", b"trusted.glusterfs.dht": b"L" * 16}
    made = brick.mkdir(b"good", parent, xdata=gift(check))
    assert "trusted.glusterfs.dht" not in brick.xattrs(brick.folder / "d/good")
    assert brick.lookup(b"good", parent).stat.gfid == made
    stale = {**check, b"trusted.glusterfs.dht": b"M" * 16}
    error = brick.fails(errno.EIO, fops.Mkdir(loc=Loc(pargfid=parent, name=b"bad"), mode=0o755, xdata=gift(stale)))
    assert error.xdata is not None and error.xdata[PREOP_CHECK_FAILED] == 1
    assert brick.names(parent) == [b".", b"..", b"good"]
