"""storage/posix alone: what it writes to disk, what it remembers and when it looks again, what a failure leaves, how it
refuses. The golden values are stock GlusterFS 10's."""

from __future__ import annotations

import errno
import gc
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError, GraphError, OptionError
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    SEEK_DATA,
    SEEK_HOLE,
    SET_ATIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_UID,
    Caller,
    Iatt,
    Loc,
    gfid_from_text,
    gfid_text,
    new_gfid,
)
from glustx.xdata import (
    CONTENT,
    GFID_REQ,
    MDATA,
    MDATA_KEY,
    PREOP_CHECK_FAILED,
    PREOP_PARENT_KEY,
    SET_CTIME_MDATA,
    STR,
    WRITE_IS_APPEND,
    MdataTimes,
    Typed,
    Xdata,
    gfuuid,
    uint,
)
from glustx.xlators.storage.posix import prepare_brick
from glustx.xlators.storage.posix_brick import parse_reserve
from glustx.xlators.storage.posix_lookup import Plan
from glustx.xlators.storage.posix_xattr import combine
from tests.conftest import ExpectedLogs
from tests.kit import loop_filesystem

T0 = 0x6B0D9BE2 * 10**9 + 0x35DAFCC6  # the time in the fact sheet's mdata example
BIRTH = 31
ROOT_TEXT = "00000000-0000-0000-0000-000000000001"
WANTED = Xdata({MDATA_KEY: 1, CONTENT: uint(65536), b"security.ima": 0, b"user.colour": 0})


def trusted_allowed(folder: Path) -> bool:
    try:
        os.setxattr(folder, "trusted.glustx-test", b"1")
        os.removexattr(folder, "trusted.glustx-test")
    except OSError:
        return False
    return True


class Brick:
    """A graph of storage/posix alone on a folder, and short ways to call it."""

    def __init__(self, folder: Path, namespace: str = "trusted", **options: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.fds: list[Fd] = []
        self.reactor = ManualReactor()
        lines = [f" option {key.replace('_', '-')} {value}" for key, value in options.items()]
        text = "\n".join(
            [
                "volume posix",
                " type storage/posix",
                f" option directory {folder}",
                f" option xattr-namespace {namespace}",
                *lines,
                "end-volume",
            ]
        )
        self.graph = Graph.load(text, Surroundings(self.reactor, host="host.example"))
        self.reactor.wait(self.graph.start())
        self.posix: Any = self.graph.root

    def close(self) -> None:
        for fd in self.fds:
            self.release(fd)
        self.fds = []
        self.reactor.wait(self.graph.stop())

    def do(self, req: fops.Fop) -> Any:
        return self.reactor.wait(self.graph.top(req))

    def fails(self, number: int, req: fops.Fop) -> FopError:
        with pytest.raises(FopError) as caught:
            self.do(req)
        assert errno.errorcode[caught.value.errno] == errno.errorcode[number], caught.value
        return caught.value

    # -- short ways

    def create(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> tuple[Fd, bytes]:
        fd = Fd(NULL_GFID, os.O_RDWR)
        reply = self.do(self.creation(name, parent, fd=fd, **more))
        self.fds.append(fd)
        return fd, reply.stat.gfid

    def creation(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> fops.Create:
        fields: dict[str, Any] = {
            "fd": Fd(NULL_GFID, os.O_RDWR),
            "flags": os.O_RDWR | os.O_EXCL,
            "mode": 0o644,
            "xdata": birth(),
            **more,
        }
        return fops.Create(loc=Loc(pargfid=parent, name=name), **fields)

    def mkdir(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> bytes:
        fields = {"mode": 0o755, "xdata": birth(), **more}
        gfid: bytes = self.do(fops.Mkdir(loc=Loc(pargfid=parent, name=name), **fields)).stat.gfid
        return gfid

    def lookup(self, name: bytes, parent: bytes = ROOT_GFID, xdata: Xdata = WANTED) -> Any:
        return self.do(fops.Lookup(loc=Loc(pargfid=parent, name=name), xdata=xdata))

    def write(self, fd: Fd, data: bytes, offset: int = 0, **more: Any) -> Any:
        return self.do(fops.Write(fd=fd, offset=offset, data=data, **more))

    def read(self, fd: Fd, size: int = 1 << 20, offset: int = 0) -> Any:
        return self.do(fops.Read(fd=fd, offset=offset, size=size))

    def open(self, gfid: bytes, flags: int = os.O_RDWR) -> Fd:
        fd = Fd(gfid, flags)
        self.do(fops.Open(loc=Loc(gfid=gfid), fd=fd, flags=flags))
        self.fds.append(fd)
        return fd

    def opendir(self, gfid: bytes) -> Fd:
        fd = Fd(gfid, 0, directory=True)
        self.do(fops.Opendir(loc=Loc(gfid=gfid), fd=fd))
        self.fds.append(fd)
        return fd

    def release(self, fd: Fd) -> None:
        self.do(fops.Release(fd=fd))

    def unlink(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> Any:
        return self.do(fops.Unlink(loc=Loc(pargfid=parent, name=name), **more))

    def rename(self, old: bytes, new: bytes, parent: bytes = ROOT_GFID, to: bytes = ROOT_GFID) -> Any:
        return self.do(fops.Rename(oldloc=Loc(pargfid=parent, name=old), newloc=Loc(pargfid=to, name=new)))

    def names(self, gfid: bytes = ROOT_GFID) -> list[bytes]:
        fd = self.opendir(gfid)
        found = [e.name for e in self.do(fops.Readdir(fd=fd, offset=0, size=1 << 20)).entries]
        self.do(fops.Releasedir(fd=fd))
        return sorted(found)

    # -- what is on disk

    def key(self, key: str) -> str:
        return key if self.namespace == "trusted" else f"user.glustx.{key}"

    def xattr(self, path: Path, key: str) -> bytes:
        return os.getxattr(path, self.key(key), follow_symlinks=False)

    def set_xattr(self, path: Path, key: str, value: bytes) -> None:
        os.setxattr(path, self.key(key), value, follow_symlinks=False)

    def xattrs(self, path: Path) -> set[str]:
        prefix = self.key("trusted.")
        found = os.listxattr(path, follow_symlinks=False)
        return {f"trusted.{name[len(prefix) :]}" for name in found if name.startswith(prefix)}

    def handle(self, gfid: bytes) -> Path:
        text = gfid_text(gfid)
        return self.folder / ".glusterfs" / text[:2] / text[2:4] / text

    def tree(self) -> dict[str, tuple[int, int]]:
        """Everything on the brick: mode and link count by path, without the health file and the folders of handles."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            st = path.lstat()
            text = str(path.relative_to(self.folder))
            fan = len(path.parts) - len(self.folder.parts) <= 3 and text.startswith(".glusterfs/") and path.is_dir()
            if not fan or path.is_symlink():
                found[text] = (st.st_mode, st.st_nlink)
        return found


def birth(**more: Any) -> Xdata:
    return Xdata({GFID_REQ: gfuuid(new_gfid())})


def gift(pairs: dict[bytes, object]) -> Xdata:
    return Xdata({GFID_REQ: gfuuid(new_gfid()), **pairs})


@pytest.fixture(params=["trusted", "user"])
def namespace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "trusted" and not trusted_allowed(tmp_path):
        pytest.skip("trusted.* xattrs are refused here (not root, or the file system has none)")
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "brick"
    made.mkdir()
    return made


@pytest.fixture
def brick(folder: Path, namespace: str) -> Iterator[Brick]:
    made = Brick(folder, namespace)
    yield made
    made.close()


@pytest.fixture
def stock(folder: Path, tmp_path: Path) -> Iterator[Brick]:
    """A brick with stock's layout."""
    if not trusted_allowed(tmp_path):
        pytest.skip("trusted.* xattrs are refused here (not root, or the file system has none)")
    made = Brick(folder)
    yield made
    made.close()


def restarted(brick: Brick, **options: str) -> Brick:
    """The same folder under a graph that has seen nothing of it."""
    brick.close()
    fresh = Brick(brick.folder, brick.namespace, **options)
    brick.graph, brick.reactor, brick.posix = fresh.graph, fresh.reactor, fresh.posix
    return brick


# -- layout ------------------------------------------------------------------------------------------------------------


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
    assert brick.lookup(b"keep").stat.nlink == 3


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


# -- resolution --------------------------------------------------------------------------------------------------------


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


# -- what is remembered ------------------------------------------------------------------------------------------------


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


# -- what a failure leaves ---------------------------------------------------------------------------------------------


class Faulty:
    """Makes the nth call of a function of `os` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int = errno.ENOSPC) -> None:
        self.real = getattr(os, name)
        self.left = nth
        self.number = number
        self.struck = False
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.struck = True
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*args, **kwargs)


def failure(brick: Brick, req: fops.Fop) -> FopError | None:
    """The error of a fop, None when it did not fail."""
    try:
        brick.do(req)
    except FopError as error:
        return error
    return None


def attempts(brick: Brick, name: bytes = b"new") -> dict[str, fops.Fop]:
    root = ROOT_GFID
    return {
        "create": brick.creation(name),
        "mkdir": fops.Mkdir(loc=Loc(pargfid=root, name=name), mode=0o755, xdata=birth()),
        "mknod": fops.Mknod(loc=Loc(pargfid=root, name=name), mode=stat.S_IFIFO | 0o644, xdata=birth()),
        "symlink": fops.Symlink(loc=Loc(pargfid=root, name=name), linkname=b"x", xdata=birth()),
        "put": fops.Put(
            loc=Loc(pargfid=root, name=name),
            mode=0o644,
            umask=0,
            flags=0,
            offset=0,
            data=b"data",
            xattrs=Xdata({b"user.a": b"1"}),
            xdata=birth(),
        ),
    }


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


# -- identity of the brick ---------------------------------------------------------------------------------------------


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


@pytest.mark.logs("failed its health check: Input/output error")
def test_the_health_file_is_written_and_a_failure_is_told(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
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


# -- times and attributes ----------------------------------------------------------------------------------------------


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


# -- data --------------------------------------------------------------------------------------------------------------


def test_reads_and_their_ends(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"0123456789")
    assert (brick.read(fd, 4).data, brick.read(fd, 4).eof) == (b"0123", False)
    assert (brick.read(fd, 4, 6).data, brick.read(fd, 4, 6).eof) == (b"6789", True)
    past = brick.read(fd, 4, 100)
    assert (past.data, past.eof, past.stat.size) == (b"", True, 10)
    assert brick.read(fd, 0xFFFFFFFF).data == b"0123456789"
    brick.fails(errno.EINVAL, fops.Read(fd=fd, offset=1 << 63, size=1))
    brick.fails(errno.EINVAL, fops.Write(fd=fd, offset=1 << 63, data=b"x"))
    reader, writer = brick.open(gfid, os.O_RDONLY), brick.open(gfid, os.O_WRONLY)
    brick.fails(errno.EBADF, fops.Write(fd=reader, offset=0, data=b"x"))
    brick.fails(errno.EBADF, fops.Zerofill(fd=reader, offset=0, size=1))
    brick.fails(errno.EBADF, fops.Read(fd=writer, offset=0, size=1))
    appender = brick.open(gfid, os.O_WRONLY | os.O_APPEND)
    brick.write(appender, b"AB", 2)
    assert brick.read(fd).data == b"01AB456789"
    brick.release(fd)
    brick.fails(errno.EBADF, fops.Read(fd=fd, offset=0, size=1))


def test_reads_that_miss_the_cache_go_to_a_worker(brick: Brick, monkeypatch: pytest.MonkeyPatch) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, bytes(range(256)) * 64)
    tries = []

    def preadv(*args: Any) -> int:
        tries.append(args[2])
        raise BlockingIOError(errno.EAGAIN, "not in the cache")

    monkeypatch.setattr(os, "preadv", preadv)
    brick.posix._nowait = True
    cold = brick.open(gfid)
    for number in range(70):
        assert brick.read(cold, 256, 256 * (number % 64)).data == bytes(range(256))
    assert len(tries) == 2  # one miss sends 64 reads without asking


def test_large_and_synchronous_writes_end_when_the_data_is_there(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    block = os.urandom(1 << 20)
    reply = brick.write(fd, memoryview(block))
    assert (reply.count, reply.pre.size, reply.post.size) == (1 << 20, 0, 1 << 20)
    assert (brick.folder / "f").read_bytes() == block
    sync = brick.open(gfid, os.O_RDWR | os.O_SYNC)
    assert brick.write(sync, b"s", 5).count == 1
    assert brick.write(fd, b"t", 6, flags=os.O_DSYNC).count == 1
    assert brick.read(fd, 2, 5).data == b"st"
    brick.do(fops.Fsync(fd=fd))
    brick.do(fops.Fsync(fd=fd, datasync=1))
    asked = Xdata({WRITE_IS_APPEND: uint(1)})
    assert brick.write(fd, b"x", 1 << 20, xdata=asked).xdata[WRITE_IS_APPEND] == 1
    assert brick.write(fd, b"x", 1 << 20, xdata=asked).xdata[WRITE_IS_APPEND] == 0


def test_ranges(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"A" * 10000)
    reply = brick.do(fops.Zerofill(fd=fd, offset=9000, size=2000))
    assert (reply.pre.size, reply.post.size) == (10000, 11000)
    assert brick.read(fd, 3000, 8000).data == b"A" * 1000 + bytes(2000)
    assert brick.do(fops.Zerofill(fd=fd, offset=50000, size=4096)).post.size == 54096
    for offset, size in [(0, 0), (1 << 63, 10), (0, (1 << 64) - 1)]:
        brick.fails(errno.EINVAL, fops.Zerofill(fd=fd, offset=offset, size=size))
        brick.fails(errno.EINVAL, fops.Discard(fd=fd, offset=offset, size=size))
        brick.fails(errno.EINVAL, fops.Fallocate(fd=fd, offset=offset, size=size))
    brick.fails(errno.EFBIG, fops.Zerofill(fd=fd, offset=(1 << 63) - 1, size=1 << 20))
    before = (brick.folder / "f").stat()
    brick.fails(errno.EOPNOTSUPP, fops.Fallocate(fd=fd, offset=0, size=1 << 20, keep_size=2))
    assert (brick.folder / "f").stat() == before
    kept = brick.do(fops.Fallocate(fd=fd, offset=0, size=1 << 20, keep_size=1)).post
    assert kept.size == 54096 and kept.blocks >= 2048
    assert brick.do(fops.Fallocate(fd=fd, offset=0, size=1 << 20)).post.size == 1 << 20
    holed = brick.do(fops.Discard(fd=fd, offset=0, size=8192)).post
    assert holed.size == 1 << 20 and brick.read(fd, 8193, 0).data == bytes(8192) + b"A"
    assert brick.do(fops.Seek(fd=fd, offset=0, what=SEEK_DATA)).offset == 8192
    assert brick.do(fops.Seek(fd=fd, offset=0, what=SEEK_HOLE)).offset == 0
    brick.fails(errno.ENXIO, fops.Seek(fd=fd, offset=1 << 20, what=SEEK_HOLE))
    brick.fails(errno.EINVAL, fops.Seek(fd=fd, offset=0, what=7))
    assert brick.do(fops.Truncate(loc=Loc(gfid=gfid), offset=3)).post.size == 3
    assert brick.do(fops.Ftruncate(fd=fd, offset=5)).post.size == 5
    big = brick.do(fops.Zerofill(fd=fd, offset=0, size=64 << 20)).post
    assert big.size == 64 << 20 and big.blocks >= 64 << 11
    assert brick.do(fops.Ftruncate(fd=fd, offset=1)).pre.size == 64 << 20


@pytest.mark.parametrize("method", ["zero-range", "punch", "writes"])
def test_zerofill_by_every_method(folder: Path, namespace: str, method: str) -> None:
    brick = Brick(folder, namespace, zero_method=method)
    assert brick.posix.limits()["zero_method"] == method
    fd, _ = brick.create(b"f")
    brick.write(fd, b"A" * 100_000)
    reply = brick.do(fops.Zerofill(fd=fd, offset=1000, size=200_000))
    assert reply.post.size == 201_000
    assert brick.read(fd, 201_000).data == b"A" * 1000 + bytes(200_000)
    brick.close()


def test_copy_file_range_and_checksums(brick: Brick) -> None:
    import hashlib
    import zlib

    data = os.urandom(300_000)
    source, _ = brick.create(b"a")
    target, gfid = brick.create(b"b")
    brick.write(source, data)
    reply = brick.do(fops.CopyFileRange(fd_in=source, fd_out=target, offset_in=0, offset_out=10, size=300_000))
    assert (reply.count, reply.pre.size, reply.post.size, reply.stat.gfid) == (300_000, 0, 300_010, gfid)
    assert brick.read(target, 300_000, 10).data == data
    brick.fails(
        errno.EINVAL,
        fops.CopyFileRange(fd_in=source, fd_out=target, offset_in=0, offset_out=0, size=1, flags=9),
    )
    sums = brick.do(fops.Rchecksum(fd=source, offset=7, size=100_000))
    assert (sums.weak, sums.strong) == (zlib.adler32(data[7:100_007], 0), hashlib.md5(data[7:100_007]).digest())
    restarted(brick, fips_mode_rchecksum="on")
    anonymous = Fd(gfid, 0, anonymous=True)
    sums = brick.do(fops.Rchecksum(fd=anonymous, offset=10, size=300_000, xdata=Xdata({b"check-zero-filled": 1})))
    assert sums.strong == hashlib.sha256(data).digest() and sums.flags == 1
    assert sums.xdata[b"fips-mode-rchecksum"] == 1 and b"buf-has-zeroes" not in sums.xdata
    zero = brick.do(fops.Rchecksum(fd=anonymous, offset=0, size=10, xdata=Xdata({b"check-zero-filled": 1})))
    assert zero.xdata[b"buf-has-zeroes"] == 1


def test_create_on_a_name_that_is_there(brick: Brick) -> None:
    fd, gfid = brick.create(b"f")
    brick.write(fd, b"data")
    brick.fails(errno.EEXIST, brick.creation(b"f"))
    again = Fd(NULL_GFID, os.O_RDWR)
    reply = brick.do(brick.creation(b"f", fd=again, flags=os.O_RDWR))
    assert reply.stat.gfid == gfid and reply.stat.size == 4 and again.gfid == gfid
    assert brick.read(again).data == b"data"
    emptied = brick.do(brick.creation(b"f", flags=os.O_RDWR | os.O_TRUNC))
    assert emptied.stat.size == 0
    brick.mkdir(b"d")
    brick.fails(errno.EISDIR, brick.creation(b"d", flags=os.O_RDWR))
    brick.do(fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"l"), linkname=b"nowhere", xdata=birth()))
    brick.fails(errno.EEXIST, brick.creation(b"l", flags=os.O_RDWR))
    assert brick.do(brick.creation(b"echo")).xdata[GFID_REQ] == brick.lookup(b"echo").stat.gfid


def test_wrong_kinds(brick: Brick) -> None:
    folder = brick.mkdir(b"d")
    _, gfid = brick.create(b"f")
    root = ROOT_GFID
    brick.fails(errno.EISDIR, fops.Unlink(loc=Loc(pargfid=root, name=b"d")))
    brick.fails(errno.ENOTDIR, fops.Rmdir(loc=Loc(pargfid=root, name=b"f")))
    brick.fails(errno.EISDIR, fops.Open(loc=Loc(gfid=folder), fd=Fd(folder, 0), flags=0))
    brick.fails(errno.EISDIR, fops.Truncate(loc=Loc(gfid=folder), offset=0))
    brick.fails(errno.EINVAL, fops.Readlink(loc=Loc(gfid=gfid), size=10))
    brick.fails(errno.EPERM, fops.Link(oldloc=Loc(gfid=folder), newloc=Loc(pargfid=root, name=b"e")))
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"f"), newloc=Loc(pargfid=root, name=b"d"))
    brick.fails(errno.EISDIR, move)
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"d"), newloc=Loc(pargfid=root, name=b"f"))
    brick.fails(errno.ENOTDIR, move)
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"d"), newloc=Loc(pargfid=folder, name=b"in"))
    brick.fails(errno.EINVAL, move)
    brick.create(b"x", folder)
    brick.mkdir(b"e")
    move = fops.Rename(oldloc=Loc(pargfid=root, name=b"e"), newloc=Loc(pargfid=root, name=b"d"))
    brick.fails(errno.ENOTEMPTY, move)
    lock = fops.Lease(loc=Loc(gfid=gfid), lease=None)  # type: ignore[arg-type]
    brick.fails(errno.ENOSYS, lock)
    brick.fails(errno.EOPNOTSUPP, fops.Ipc(op=1))
    fd = brick.opendir(folder)
    brick.fails(errno.EISDIR, fops.Read(fd=fd, offset=0, size=1))


def test_two_step_creation(brick: Brick) -> None:
    gfid = new_gfid()
    made = brick.do(fops.Icreate(loc=Loc(gfid=gfid), mode=stat.S_IFREG | 0o600, ctime=T0, stamp=BIRTH)).stat
    assert made.gfid == gfid and made.nlink == 0
    xdata = Xdata({GFID_REQ: gfuuid(gfid)})
    brick.do(fops.Namelink(loc=Loc(pargfid=ROOT_GFID, name=b"f"), xdata=xdata))
    assert brick.lookup(b"f").stat.gfid == gfid and brick.lookup(b"f").stat.nlink == 1
    reply = brick.do(attempts(brick)["put"])
    assert reply.stat.size == 4 and (brick.folder / "new").read_bytes() == b"data"
    assert os.getxattr(brick.folder / "new", "user.a") == b"1"


# -- xattrs ------------------------------------------------------------------------------------------------------------


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


# -- directories -------------------------------------------------------------------------------------------------------


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


# -- full disks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Brick]:
    with loop_filesystem(tmp_path, "ext4", 48 << 20, ["-N", "400"]) as root:
        folder = root / "brick"
        folder.mkdir()
        made = Brick(folder, reserve="0")
        yield made
        made.close()
        gc.collect()  # an fd in a cycle would keep the file system busy


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
