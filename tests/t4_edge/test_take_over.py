"""A brick folder goes from stock's hands into ours and back, and the other way round: no file, gfid, link, xattr or
time is lost, and both leave the same on disk."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import stat
import struct
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from glustx import linux
from glustx.graph import Graph, Surroundings
from glustx.runtime import ManualReactor
from glustx.xlators.storage.posix import prepare_brick
from tests.brick_check import Layout, content, names
from tests.every_fop import Script
from tests.kit import NetNamespace, need_peer
from tests.peers import BRICK_VOLFILE, ServedVolume, StockBrick, StockVolume, Volume, stock_mount

NEEDS = ("root", "namespaces", "glusterd", "glusterfsd", "gluster", "mount.glusterfs", "/dev/fuse", "getfattr")
ODD = (
    *(b"new\nline", b"\xff\xfe not text", b"-rf", b" blank ", b"*?[a]", b"n" * 255, "d\u00fcr".encode(), b"a\tb"),
    *(b".hidden", b"'quoted\"", b"back\\slash", b"$HOME", b"...", b"~"),
)
MIB = 1 << 20
# Owner rw, user 1000 r, group r, mask rw, others r.
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, may, who)
    for tag, may, who in (
        (1, 6, 0xFFFFFFFF),
        (2, 4, 1000),
        (4, 4, 0xFFFFFFFF),
        (16, 6, 0xFFFFFFFF),
        (32, 4, 0xFFFFFFFF),
    )
)


def fill(root: bytes, files: int) -> None:
    """Make files of all kinds on a mount: odd names, links, holes, xattrs, owners, modes and times."""
    rng = random.Random(files)
    folders = [root]
    for number in range(max(4, files // 60)):
        folders.append(os.path.join(rng.choice(folders), b"dir%d" % number))
        os.mkdir(folders[-1])
    for number in range(files):
        path = os.path.join(rng.choice(folders), b"f%d" % number)
        with open(path, "wb") as file:
            file.write(b"%d " % number * rng.choice((0, 1, 3, 2000)))
        if number % 10 == 0:
            os.link(path, os.path.join(rng.choice(folders), b"link%d" % number))
            os.setxattr(path, "user.number", b"%d" % number)
        if number % 10 == 3:
            os.chmod(path, rng.choice((0o600, 0o4711, 0o1444, 0)))
            os.chown(path, number, number + 1)
        if number % 10 == 5:
            os.utime(path, ns=(number * 10**9 + 1, number * 10**9 + 2))
        if number % 10 == 7:
            os.symlink(b"../f%d" % number, os.path.join(rng.choice(folders), b"sym%d" % number))
    odd = os.path.join(root, b"odd")
    os.mkdir(odd)
    for name in ODD:
        os.mkdir(os.path.join(odd, name))
        with open(os.path.join(odd, name, name), "wb") as file:
            file.write(name)
    with open(os.path.join(root, b"sparse"), "wb") as file:
        for offset in (3 * MIB, 40 * MIB):
            file.seek(offset)
            file.write(b"data")
        file.truncate(64 * MIB)
    os.mknod(os.path.join(root, b"null"), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mkfifo(os.path.join(root, b"fifo"))
    os.symlink(b"/etc/passwd", os.path.join(root, b"away"))
    os.setxattr(root, "user.of-the-root", b"\0\xff binary")
    os.setxattr(folders[1], "user.of-a-folder", b"x" * 1000)
    for name in (b"doomed", b"over", b"under", b"twin"):
        with open(os.path.join(root, name), "wb") as file:
            file.write(name * 100)
    os.link(os.path.join(root, b"twin"), os.path.join(root, b"twin2"))
    os.mkdir(os.path.join(root, b"doomed-dir"))
    guarded = os.path.join(root, b"guarded")
    os.mkdir(guarded)
    os.setxattr(guarded, "system.posix_acl_default", ACL)
    for name in (b"heir", b"own"):
        with open(os.path.join(guarded, name), "wb") as file:
            file.write(name)
    os.mkdir(os.path.join(guarded, b"heirs"))
    os.setxattr(os.path.join(guarded, b"own"), "system.posix_acl_access", ACL)
    os.setxattr(os.path.join(guarded, b"own"), "trusted.of-root", b"only")
    os.makedirs(os.path.join(root, b"moves/inner/most"))


def linked(root: bytes) -> list[list[bytes]]:
    """The names of each file that has several, but for the twins, in order."""
    found: dict[int, list[bytes]] = {}
    for top, _, names_ in os.walk(root):
        for name in names_:
            path = os.path.join(top, name)
            st = os.lstat(path)
            if stat.S_ISREG(st.st_mode) and st.st_nlink > 1 and not name.startswith(b"twin"):
                found.setdefault(st.st_ino, []).append(path)
    return sorted(map(sorted, found.values()))


def relink(root: bytes, mark: bytes) -> None:
    """What can happen to one name of several; a name more is there afterwards."""
    moved, same, again, third = linked(root)[:4]
    os.rename(moved[0], os.path.join(root, mark + b"-moved"))
    os.rename(same[0], same[1])  # both stay: they are the same file
    os.unlink(again[0])
    os.link(again[1], os.path.join(root, mark + b"-again"))
    os.link(third[0], os.path.join(root, mark + b"-third"))
    os.rename(os.path.join(root, mark + b"-third"), os.path.join(root, b"odd", mark + b"-third"))


def replace_one_of_several(root: bytes) -> None:
    """Take a name from a file that has another. Stock's bricks forget to take it out of its gfid2path xattrs."""
    names_ = linked(root)[4]
    with open(os.path.join(root, b"new"), "wb") as file:
        file.write(b"new")
    os.rename(os.path.join(root, b"new"), names_[1])


def change_again(root: bytes) -> None:
    """Move and remove what `change` has made and moved: who does it finds it by what the other has written."""
    relink(root, b"again")
    os.rename(os.path.join(root, b"made"), os.path.join(root, b"odd/moved/inner/made"))
    os.rename(os.path.join(root, b"odd/moved/inner"), os.path.join(root, b"inner"))
    os.unlink(os.path.join(root, b"twin2"))
    os.rename(os.path.join(root, b"twin3"), os.path.join(root, b"guarded/heirs/twin"))
    os.setxattr(os.path.join(root, b"guarded/heir"), "system.posix_acl_access", ACL)
    shutil.rmtree(os.path.join(root, b"odd/moved"))
    os.unlink(os.path.join(root, b"inner/made/file"))


def change(root: bytes) -> None:
    """Do to files that `fill` made, and to new ones, everything that a client can do."""

    def at(name: bytes) -> bytes:
        return os.path.join(root, name)

    os.unlink(at(b"doomed"))
    os.rmdir(at(b"doomed-dir"))
    os.rename(at(b"over"), at(b"under"))
    os.rename(at(b"moves"), at(b"odd/moved"))
    os.unlink(at(b"twin"))
    os.link(at(b"twin2"), at(b"twin3"))
    os.mkdir(at(b"made"), 0o1750)
    os.symlink(b"made", at(b"made/sym"))
    os.mkfifo(at(b"made/fifo"))
    os.mknod(at(b"made/zero"), stat.S_IFCHR | 0o600, os.makedev(1, 5))
    with open(at(b"made/file"), "xb", buffering=0) as file:
        file.write(b"abc" * 100_000)
        linux.fallocate(file.fileno(), 0, 300_000, 100_000)
        linux.fallocate(file.fileno(), linux.FALLOC_FL_PUNCH_HOLE | linux.FALLOC_FL_KEEP_SIZE, 8192, 65536)
        linux.fallocate(file.fileno(), linux.FALLOC_FL_ZERO_RANGE, 100_000, 5000)
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), 0o2755)
        os.fchown(file.fileno(), 7, 8)
    with open(at(b"sparse"), "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"more", 20 * MIB)
        os.ftruncate(file.fileno(), 50 * MIB)
    os.truncate(at(b"under"), 10)
    os.setxattr(at(b"under"), "user.new", b"value")
    os.setxattr(root, "user.of-the-root", b"changed")
    os.setxattr(at(b"odd/moved"), "user.gone", b"x")
    os.removexattr(at(b"odd/moved"), "user.gone")
    os.chmod(at(b"odd/moved/inner"), 0o700)
    os.chown(at(b"away"), 5, 6, follow_symlinks=False)
    os.utime(at(b"odd/moved/inner/most"), ns=(10**18, 10**18 + 1))
    relink(root, b"changed")


Seen = dict[bytes, tuple[object, ...]]


def seen(root: bytes) -> Seen:
    """What a mount shows of everything: inode number (which is the gfid's), attributes, times, content, xattrs."""
    found: Seen = {}
    todo = [root]
    while todo:
        path = todo.pop()
        st = os.lstat(path)
        inner: object = None
        if stat.S_ISDIR(st.st_mode):
            todo += [os.path.join(path, name) for name in os.listdir(path)]
        elif stat.S_ISREG(st.st_mode):
            with open(path, "rb") as file:
                inner = hashlib.sha256(file.read()).hexdigest()
        elif stat.S_ISLNK(st.st_mode):
            inner = os.readlink(path)
        # Stock counts no more blocks than the size needs.
        blocks = min(st.st_blocks, (st.st_size + 511) // 512)
        xattrs = {
            key: os.getxattr(path, key, follow_symlinks=False) for key in os.listxattr(path, follow_symlinks=False)
        }
        found[os.path.relpath(path, root)] = (
            st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_rdev, blocks,
            st.st_atime_ns, st.st_mtime_ns, st.st_ctime_ns, inner, xattrs,
        )  # fmt: skip
    return found


def holes(folder: Path) -> dict[str, list[tuple[int, int]]]:
    """Where the data is in every file of a brick that has holes."""
    found = {}
    for path in names(folder):
        st = path.lstat()
        if stat.S_ISREG(st.st_mode) and st.st_blocks * 512 < st.st_size:
            with open(path, "rb") as file:
                at, parts = 0, []
                while at < st.st_size:
                    try:
                        start = os.lseek(file.fileno(), at, os.SEEK_DATA)
                    except OSError:  # ENXIO: no more
                        break
                    at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
                    parts.append((start, at))
            found[str(path.relative_to(folder))] = parts
    return found


def dump(folder: Path) -> dict[str, list[str]]:
    """`getfattr -d -m . -e hex` of everything that has a name, and of the root."""
    paths = [folder, *names(folder)]
    lines: dict[str, list[str]] = {}
    for start in range(0, len(paths), 500):
        command = [
            "getfattr",
            "-h",
            "-d",
            "-m",
            ".",
            "-e",
            "hex",
            "--absolute-names",
            "--",
            *paths[start : start + 500],
        ]
        done = subprocess.run(command, capture_output=True, check=True)
        for block in done.stdout.decode(errors="surrogateescape").split("\n\n"):
            head, *rest = block.strip("\n").split("\n")
            if head:
                lines[head.removeprefix("# file: ")] = sorted(rest)
    assert len(lines) == len(paths)
    return lines


def settled(folder: Path) -> None:
    """A brick that nobody serves: all is as it must be, and nothing is left of what was on its way out."""
    assert Layout(folder).problems() == []
    indices = folder / ".glusterfs/indices"
    for kind in ("xattrop", "dirty", "entry-changes"):
        left = os.listdir(indices / kind) if (indices / kind).exists() else []
        assert [name for name in left if not re.fullmatch(rf"{kind}-[0-9a-f-]{{36}}", name)] == []


def mounted(volume: Volume, work: Path, visit: Callable[[bytes], object]) -> Seen:
    """Mount a volume, do something there, and return what is to be seen afterwards.

    By another mount: after a ZEROFILL the kernel's and stock's caches of this one may still hold what was there before.
    """
    point = work / "mnt"
    point.mkdir(exist_ok=True)
    if visit is not nothing:
        with stock_mount(volume, point, ["acl"], deadline=500) as root:
            visit(os.fsencode(root))
    with stock_mount(volume, point, ["acl"], deadline=500) as root:
        return seen(os.fsencode(root))


def nothing(root: bytes) -> None:
    """Look only."""


def every_fop(folder: Path) -> None:
    """Send a request of every fop to the folder's storage/posix; what they made they remove."""
    reactor = ManualReactor()
    text = f"volume store\ntype storage/posix\noption directory {folder}\nend-volume\n"
    graph = Graph.load(text, Surroundings(reactor))
    reactor.wait(graph.start())
    outcomes = Script(lambda req: reactor.wait(graph.top(req)), lambda req: reactor.wait(graph.top(req))).run()
    reactor.wait(graph.stop())
    refused = {name for name, outcome in outcomes.items() if outcome not in ("ok", "by-hand")}
    assert refused <= {"lk", "inodelk", "finodelk", "entrylk", "fentrylk", "lease", "getactivelk", "setactivelk", "ipc"}


def stock_again(folder: Path, volume_id: bytes) -> StockBrick:
    """A stock brick that insists on the volume id."""
    option = f"    option volume-id {uuid.UUID(bytes=volume_id)}\n"
    text = BRICK_VOLFILE.replace("    option shared-brick-count 1\n", "    option shared-brick-count 1\n" + option)
    return StockBrick(folder, "v1", text)


def compare(before: Seen, after: Seen) -> None:
    """Two looks agree; the first name that does not is named."""
    assert before.keys() == after.keys()
    for name, facts in before.items():
        assert after[name] == facts, name


@pytest.fixture
def brick(tmp_path: Path) -> Path:
    need_peer(*NEEDS)
    folder = tmp_path / "brick"
    folder.mkdir(mode=0o755)
    return folder


def there_and_back(brick: Path, work: Path, files: int) -> None:
    """Stock fills a folder, we take it over and change it, and stock takes it over again."""
    with NetNamespace() as netns, StockVolume(brick, "v1", netns) as volume:
        filled = mounted(volume, work, lambda root: fill(root, files))
    volume_id = os.getxattr(brick, "trusted.glusterfs.volume-id")
    settled(brick)
    by_stock, disk, data = content(Layout(brick)), dump(brick), holes(brick)
    assert len(data["sparse"]) == 2
    with ServedVolume(brick, "v1") as volume:
        compare(filled, mounted(volume, work, nothing))
    assert dump(brick) == disk and content(Layout(brick)) == by_stock, "being served has changed something"
    assert holes(brick) == data
    every_fop(brick)
    settled(brick)
    assert {path: facts for path, facts in dump(brick).items() if path != str(brick)} == {
        path: facts for path, facts in disk.items() if path != str(brick)
    }
    with ServedVolume(brick, "v1") as volume:
        changed = mounted(volume, work, lambda root: (change(root), replace_one_of_several(root)))
    settled(brick)
    assert len(changed) == len(filled) - 4 + 6 + 1 and changed != filled
    disk, data = dump(brick), holes(brick)
    with stock_again(brick, volume_id) as volume:
        compare(changed, mounted(volume, work, nothing))
    assert dump(brick) == disk, "stock has had something to repair"
    assert holes(brick) == data
    assert os.getxattr(brick, "trusted.glusterfs.volume-id") == volume_id
    settled(brick)
    with stock_again(brick, volume_id) as volume:
        changed = mounted(volume, work, change_again)
    settled(brick)
    with ServedVolume(brick, "v1") as volume:
        compare(changed, mounted(volume, work, nothing))
    settled(brick)


def test_from_stock_to_us_and_back(brick: Path, tmp_path: Path) -> None:
    there_and_back(brick, tmp_path, 200)


@pytest.mark.long
def test_from_stock_to_us_and_back_with_5000_files(brick: Path, tmp_path: Path) -> None:
    there_and_back(brick, tmp_path, 5000)


def test_a_folder_of_ours_becomes_a_brick_of_stocks(brick: Path, tmp_path: Path) -> None:
    volume_id = uuid.uuid4()
    prepare_brick(str(brick), str(volume_id))
    with ServedVolume(brick, "v1") as volume:
        filled = mounted(volume, tmp_path, lambda root: fill(root, 100))
    settled(brick)
    disk = dump(brick)
    with stock_again(brick, volume_id.bytes) as volume:
        compare(filled, mounted(volume, tmp_path, nothing))
    assert dump(brick) == disk
    # glusterd gives the folder to a volume of its own, and changes what is in it.
    with NetNamespace() as netns, StockVolume(brick, "v1", netns) as volume:
        compare(filled, mounted(volume, tmp_path, nothing))
        changed = mounted(volume, tmp_path, change)
    assert os.getxattr(brick, "trusted.glusterfs.volume-id") != volume_id.bytes
    settled(brick)
    with ServedVolume(brick, "v1") as volume:
        compare(changed, mounted(volume, tmp_path, nothing))
    settled(brick)


def keys_of(folder: Path) -> dict[str, list[str]]:
    """The xattrs of everything on a brick: names, and values that are not an object's own."""
    found = {}
    for path, lines in dump(folder).items():
        kept = []
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith("trusted.gfid2path."):
                key, value = "trusted.gfid2path", ""
            elif key in ("trusted.gfid", "trusted.glusterfs.volume-id"):
                value = str(len(value))
            elif key == "trusted.glusterfs.mdata":
                value = value[:20] + str(len(value))  # version and flags
            kept.append(f"{key}={value}")
        found[path.removeprefix(str(folder))] = sorted(kept)
    return found


def test_both_leave_the_same_on_disk(brick: Path, tmp_path: Path) -> None:
    other = tmp_path / "stock"
    other.mkdir(mode=0o755)
    with ServedVolume(brick, "v1") as volume:
        mounted(volume, tmp_path, lambda root: (fill(root, 60), change(root)))
    with StockBrick(other, "v1") as volume:
        mounted(volume, tmp_path, lambda root: (fill(root, 60), change(root)))
    ours, theirs = keys_of(brick), keys_of(other)
    ours[""].remove("trusted.glusterfs.volume-id=34")  # which this bare stock brick has not been given
    assert ours == theirs
    inside = {name for name in os.listdir(brick / ".glusterfs") if not re.fullmatch("[0-9a-f]{2}", name)}
    stocks = {name for name in os.listdir(other / ".glusterfs") if not re.fullmatch("[0-9a-f]{2}", name)}
    assert stocks - inside == set() and inside - stocks <= {"glustx.intent", "health_check", "changelogs"}
