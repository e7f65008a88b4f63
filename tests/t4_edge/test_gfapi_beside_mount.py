"""gfapi beside a stock mount of the same volume, on a brick of glustx and on a stock one: whatever one of them changes,
the other sees at once, times and owners and xattrs included, one after the other and at the same time."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from glustx import volfile
from glustx.gfapi import Volume
from glustx.volfile import Volfile, VolumeSpec
from tests.kit import NetNamespace, need_peer
from tests.peers import ServedVolume, StockVolume, stock_mount

# The kernel and stock's caches (md-cache, quick-read, ...) believe what they have seen for a second. Here nothing is
# left to that: the kernel asks each time, and the mount's graph is the volume's without its performance translators.
FRESH = ["direct-io-mode=enable", "attribute-timeout=0", "entry-timeout=0", "negative-timeout=0"]
TIMES = ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
BLOCK = 4096


class Both:
    """The volume from two sides: `vol` by gfapi, `root` by the mount."""

    def __init__(self, vol: Volume, root: Path, stock: bool) -> None:
        self.vol = vol
        self.root = root
        self.stock = stock

    def at(self, path: str) -> str:
        """The path of a file in the mount."""
        return f"{self.root}{path}"

    def xattr(self, path: str, key: str) -> bytes:
        """The value of an xattr by gfapi, as bytes."""
        return os.fsencode(self.vol.getxattr(path, key))

    def lstat(self, path: str) -> os.stat_result:
        """Attributes by the mount. Stock's client says ESTALE, once, of a name that another client gave a new file."""
        try:
            return os.lstat(self.at(path))
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            return os.lstat(self.at(path))

    def names(self, folder: str) -> list[str]:
        """The names in a folder, which both sides must see alike."""
        ours, theirs = sorted(self.vol.listdir(folder)), sorted(os.listdir(self.at(folder)))
        assert ours == theirs
        return [name for name in ours if name != ".trashcan"]

    def same(self, path: str) -> Any:
        """What both sides say of one file must be alike; returns it."""
        ours, theirs = self.vol.lstat(path), self.lstat(path)
        for field in ("st_mode", "st_uid", "st_gid", "st_nlink", "st_ino", "st_size", "st_blocks", *TIMES):
            assert getattr(ours, field) == getattr(theirs, field), f"{field} of {path}"
        if stat.S_ISLNK(ours.st_mode):
            assert self.vol.readlink(path) == os.readlink(self.at(path))
            return ours
        mine = {key: self.xattr(path, key) for key in self.vol.listxattr(path) if key.startswith("user.")}
        others = {key: os.getxattr(self.at(path), key) for key in os.listxattr(self.at(path)) if key[:5] == "user."}
        assert mine == others
        if stat.S_ISREG(ours.st_mode):
            with self.vol.open(path) as file, open(self.at(path), "rb", buffering=0) as other:
                assert file.read() == other.read()
        return ours

    def same_tree(self, folder: str) -> set[str]:
        """Everything below a folder must be alike; returns the paths."""
        found = {folder}
        self.same(folder)
        for name in self.names(folder):
            path = f"{folder}/{name}"
            if stat.S_ISDIR(self.vol.lstat(path).st_mode):
                found |= self.same_tree(path)
            else:
                self.same(path)
                found.add(path)
        return found


def without_performance(text: str) -> str:
    """A client volfile without its performance translators."""
    tree = volfile.parse(text, strict=False)
    below: dict[str, str] = {}
    kept: list[VolumeSpec] = []
    for volume in tree.volumes:
        subvolumes = tuple(below.get(name, name) for name in volume.subvolumes)
        if volume.type.startswith("performance/"):
            below[volume.name] = subvolumes[0]
        else:
            kept.append(msgspec.structs.replace(volume, subvolumes=subvolumes))
    return volfile.format(Volfile(tuple(kept)))


@pytest.fixture(scope="module", params=["glustx", "stock"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    is_stock = request.param == "stock"
    need_peer("namespaces", "mount.glusterfs", "/dev/fuse", *(["glusterd", "gluster"] if is_stock else []))
    folder, point = tmp_path_factory.mktemp("brick"), tmp_path_factory.mktemp("mnt")
    folder.chmod(0o755)
    with NetNamespace() as netns, (StockVolume if is_stock else ServedVolume)(folder, "v1", netns) as volume:
        with netns.entered(), Volume(volume.url("")) as vol:
            bare = tmp_path_factory.mktemp("vol") / "bare.vol"
            bare.write_text(without_performance(vol._core.session._text))
            with stock_mount(volume, point, FRESH, volfile=bare) as root:
                yield Both(vol, root, is_stock)
    shutil.rmtree(folder)


@pytest.fixture
def top(both: Both) -> Iterator[str]:
    both.vol.mkdir("/top", 0o777)
    yield "/top"
    both.vol.rmtree("/top")
    both.vol._core.session.dentries.clear()


# What either side can do. Each is given the path of a file or, where it says so, of a name in a folder.


class Gfapi:
    """Changes by gfapi."""

    def __init__(self, both: Both) -> None:
        self.vol = both.vol

    def write(self, path: str, data: bytes, offset: int) -> None:
        with self.vol.open(path, os.O_RDWR | os.O_CREAT) as file:
            assert file.pwrite(data, offset) == len(data)

    def truncate(self, path: str, size: int) -> None:
        self.vol.truncate(path, size)

    def chmod(self, path: str, mode: int) -> None:
        self.vol.chmod(path, mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        self.vol.chown(path, uid, gid)

    def utime(self, path: str, times: tuple[int, int]) -> None:
        self.vol.utime(path, ns=times)

    def setxattr(self, path: str, key: str, value: bytes) -> None:
        self.vol.setxattr(path, key, value)

    def removexattr(self, path: str, key: str) -> None:
        self.vol.removexattr(path, key)

    def mkdir(self, path: str) -> None:
        self.vol.mkdir(path)

    def symlink(self, target: str, path: str) -> None:
        self.vol.symlink(target, path)

    def link(self, path: str, new: str) -> None:
        self.vol.link(path, new)

    def rename(self, path: str, new: str) -> None:
        self.vol.rename(path, new)

    def unlink(self, path: str) -> None:
        self.vol.unlink(path)

    def rmdir(self, path: str) -> None:
        self.vol.rmdir(path)


class Mount:
    """The same changes by the mount."""

    def __init__(self, both: Both) -> None:
        self.at = both.at

    def write(self, path: str, data: bytes, offset: int) -> None:
        fd = os.open(self.at(path), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            assert os.pwrite(fd, data, offset) == len(data)
        finally:
            os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(self.at(path), size)

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self.at(path), mode)

    def chown(self, path: str, uid: int, gid: int) -> None:
        os.chown(self.at(path), uid, gid)

    def utime(self, path: str, times: tuple[int, int]) -> None:
        os.utime(self.at(path), ns=times)

    def setxattr(self, path: str, key: str, value: bytes) -> None:
        os.setxattr(self.at(path), key, value)

    def removexattr(self, path: str, key: str) -> None:
        os.removexattr(self.at(path), key)

    def mkdir(self, path: str) -> None:
        os.mkdir(self.at(path), 0o755)

    def symlink(self, target: str, path: str) -> None:
        os.symlink(target, self.at(path))

    def link(self, path: str, new: str) -> None:
        os.link(self.at(path), self.at(new))

    def rename(self, path: str, new: str) -> None:
        os.rename(self.at(path), self.at(new))

    def unlink(self, path: str) -> None:
        os.unlink(self.at(path))

    def rmdir(self, path: str) -> None:
        os.rmdir(self.at(path))


Side = Gfapi | Mount


@pytest.mark.parametrize("side", [Gfapi, Mount])
def test_each_change_is_seen(both: Both, top: str, side: Callable[[Both], Side]) -> None:
    """What one side does shows on both, and moves the times that it should."""
    do = side(both)
    # A stock mount sends no time with SETXATTR, and a stock brick uses none that is sent.
    setxattr_moves: set[str] = set() if both.stock or side is Mount else {"st_ctime_ns"}
    path, other = f"{top}/f", f"{top}/g"

    def moved(before: Any, after: Any) -> set[str]:
        return {field for field in TIMES if getattr(after, field) > getattr(before, field)}

    was_top = both.same(top)
    do.write(path, b"x" * 5000, 0)
    was = both.same(path)
    assert was.st_size == 5000 and moved(was_top, both.same(top)) == {"st_mtime_ns", "st_ctime_ns"}
    changes: list[tuple[Callable[[], None], set[str]]] = [
        (lambda: do.write(path, b"y" * 100, 4990), {"st_mtime_ns", "st_ctime_ns"}),
        (lambda: do.truncate(path, 123), {"st_mtime_ns", "st_ctime_ns"}),
        (lambda: do.truncate(path, 12345), {"st_mtime_ns", "st_ctime_ns"}),
        (lambda: do.chmod(path, 0o4751), {"st_ctime_ns"}),
        (lambda: do.chown(path, 1234, 2345), {"st_ctime_ns"}),
        (lambda: do.setxattr(path, "user.a", b"\0\xff"), setxattr_moves),
        (lambda: do.setxattr(path, "user.b", b""), setxattr_moves),
        (lambda: do.removexattr(path, "user.a"), {"st_ctime_ns"}),
        (lambda: do.link(path, other), {"st_ctime_ns"}),
        (lambda: do.unlink(other), {"st_ctime_ns"}),
        (lambda: do.rename(path, other), {"st_ctime_ns"}),
        (lambda: do.rename(other, path), {"st_ctime_ns"}),
    ]
    for number, (change, expected) in enumerate(changes):
        change()
        both.names(top)
        now = both.same(path if both.vol.exists(path) else other)
        assert moved(was, now) == expected, f"change {number}"
        was = now
    do.utime(path, (1_000_000_001, 1_234_567_891_234_567_891))
    now = both.same(path)
    assert (now.st_atime_ns, now.st_mtime_ns) == (1_000_000_001, 1_234_567_891_234_567_891)
    do.mkdir(f"{top}/d")
    do.symlink("../f", f"{top}/d/l")
    strange = f"{top}/" + os.fsdecode(b"\xff\xfe") + "x" * 250
    do.write(strange, b"", 0)
    assert both.same_tree(top) == {top, path, f"{top}/d", f"{top}/d/l", strange}
    assert both.vol.stat(f"{top}/d").st_nlink == 2
    do.unlink(f"{top}/d/l")
    do.rmdir(f"{top}/d")
    assert both.same_tree(top) == {top, path, strange}


def test_a_name_moved_onto_itself(both: Both, top: str) -> None:
    """Nothing changes. (The kernel does not even ask; a stock brick that is asked loses the way to the file.)"""
    path = f"{top}/f"
    both.vol.create(path).close()
    before = both.same(path)
    both.vol.rename(path, path)
    both.vol.rename(path, f"{top}/../{path}")
    both.same(path)
    assert both.vol.stat(path) == before
    with pytest.raises(FileNotFoundError):
        both.vol.rename(f"{top}/gone", f"{top}/gone")


def test_seeded_changes_of_both_sides(both: Both, top: str, seeded: random.Random) -> None:
    """Eighty changes, each by a side drawn at random; after each both see the same, and what they should."""
    walk = Walk(both, top, seeded)
    for _ in range(80):
        walk.step()
        walk.check()
    walk.check_all()


class Walk:
    """Random changes to a folder of files and folders, and a model of their contents, owners and xattrs."""

    NAMES = ("a", "b", "c", "d", "ü", os.fsdecode(b"\xff"))

    def __init__(self, both: Both, top: str, rng: random.Random) -> None:
        self.both = both
        self.top = top
        self.rng = rng
        self.sides: tuple[Side, ...] = (Gfapi(both), Mount(both))
        self.files: dict[str, bytearray] = {}
        self.xattrs: dict[str, dict[str, bytes]] = {}
        self.touched = top
        self.log: list[str] = []

    def place(self) -> str:
        return f"{self.top}/{self.rng.choice(self.NAMES)}"

    def step(self) -> None:
        rng, do, path = self.rng, self.rng.choice(self.sides), self.place()
        self.touched = path
        what = rng.choice(["write", "write", "truncate", "chmod", "utime", "setxattr", "rename", "unlink", "replace"])
        self.log.append(f"{type(do).__name__} {what} {path!a}")
        if path not in self.files:
            do.write(path, b"", 0)
            self.files[path], self.xattrs[path] = bytearray(), {}
        elif what == "write":
            data, offset = rng.randbytes(rng.randrange(1, 9000)), rng.randrange(20000)
            do.write(path, data, offset)
            content = self.files[path]
            content.extend(bytes(max(0, offset + len(data) - len(content))))
            content[offset : offset + len(data)] = data
        elif what == "truncate":
            size = rng.randrange(20000)
            do.truncate(path, size)
            del self.files[path][size:]
            self.files[path].extend(bytes(size - len(self.files[path])))
        elif what == "chmod":
            do.chmod(path, rng.randrange(0o1000))
        elif what == "utime":
            do.utime(path, (rng.randrange(10**18), rng.randrange(10**18)))
        elif what == "setxattr":
            key, value = f"user.{rng.choice('ab')}", rng.randbytes(rng.randrange(50))
            do.setxattr(path, key, value)
            self.xattrs[path][key] = value
        elif what in ("rename", "replace"):
            new = self.place()
            do.rename(path, new)
            self.files[new], self.xattrs[new] = self.files.pop(path), self.xattrs.pop(path)
            self.touched = new
        else:
            do.unlink(path)
            del self.files[path], self.xattrs[path]

    def check(self) -> None:
        """Look at what was touched, from both sides."""
        try:
            assert set(self.both.names(self.top)) == {path.rpartition("/")[2] for path in self.files}
            self.both.same(self.top)
            if self.touched in self.files:
                self.both.same(self.touched)
                with self.both.vol.open(self.touched) as file:
                    assert file.read() == self.files[self.touched]
        except BaseException:
            print("\n".join(self.log[-20:]))
            raise

    def check_all(self) -> None:
        """Look at everything, from both sides."""
        assert self.both.same_tree(self.top) == {self.top, *self.files}
        for path, xattrs in self.xattrs.items():
            assert {key: self.both.xattr(path, key) for key in self.both.vol.listxattr(path)} == xattrs


def test_both_sides_at_one_time(both: Both, top: str, seeded: random.Random) -> None:
    """Rounds in which a thread of each side changes the same file, folder and xattrs at once, by blocks, names and keys
    of its own. Between the rounds both see the same, and all that both did."""
    seed = seeded.randrange(1 << 32)
    shared = f"{top}/shared"
    both.vol.create(shared).close()
    blocks: dict[int, bytes] = {}
    names: set[str] = set()
    xattrs: dict[str, bytes] = {}
    failures: list[BaseException] = []

    def turn(number: int, side: Side, rounds: int) -> None:
        rng = random.Random(seed * 1_000_003 + rounds * 2 + number)
        try:
            for _ in range(15):
                what = rng.randrange(4)
                if what < 2:
                    block = rng.randrange(30) * 2 + number
                    data = rng.randbytes(BLOCK)
                    side.write(shared, data, block * BLOCK)
                    blocks[block] = data
                elif what == 2:
                    name = f"{top}/{number}-{rng.randrange(8)}"
                    if name in names:
                        side.unlink(name)
                        names.discard(name)
                    else:
                        side.write(name, name.encode(), 0)
                        names.add(name)
                else:
                    key, value = f"user.{number}{rng.randrange(3)}", rng.randbytes(9)
                    side.setxattr(shared, key, value)
                    xattrs[key] = value
        except BaseException as error:
            failures.append(error)

    for rounds in range(5):
        threads = [
            threading.Thread(target=turn, args=(number, side, rounds))
            for number, side in enumerate((Gfapi(both), Mount(both)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        assert both.same_tree(top) == {top, shared, *names}
        with both.vol.open(shared) as file:
            content = file.read()
        size = (max(blocks) + 1) * BLOCK if blocks else 0
        assert content == b"".join(blocks.get(block, bytes(BLOCK)) for block in range(size // BLOCK))
        assert {key: both.xattr(shared, key) for key in both.vol.listxattr(shared)} == xattrs
