"""A volume mounted with stock `mount -t glusterfs`: what people do with a file system, and what the brick looks like
afterwards. Every test leaves an empty mount, and its brick must then be empty too, with no handle left behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import filecmp
import hashlib
import mmap
import os
import random
import re
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import need_peer
from tests.peers import Volume, stock_mount, wait_until

RESERVED_GFID = re.compile(r"00000000-0000-0000-0000-0000000000[0-9a-f]{2}")


@pytest.fixture
def mount(peer_volume: Volume, tmp_path: Path) -> Iterator[Path]:
    """The volume mounted; whatever the test leaves is removed, and nothing of it may stay on the brick."""
    need_peer("mount.glusterfs", "/dev/fuse")
    point = tmp_path / "mnt"
    point.mkdir()
    with stock_mount(peer_volume, point) as mounted:
        yield mounted
        for entry in os.scandir(os.fsencode(mounted)):
            if entry.name != b".trashcan":  # stock makes it on every volume and refuses to remove it
                subprocess.run(["rm", "-rf", "--", entry.path], check=True)
    expect_empty_brick(peer_volume.folder)


@pytest.fixture
def second_mount(peer_volume: Volume, mount: Path, tmp_path: Path) -> Iterator[Path]:
    """The same volume by another client."""
    point = tmp_path / "mnt2"
    point.mkdir()
    with stock_mount(peer_volume, point) as mounted:
        yield mounted


def expect_empty_brick(brick: Path) -> None:
    """No name but .glusterfs is left, and in there no handle but those of the fixed gfids, nothing waiting."""
    assert {entry.name for entry in os.scandir(brick)} <= {".glusterfs", ".trashcan"}
    handles = brick / ".glusterfs"
    wait_until("the brick has let go of unlinked files", lambda: not leftovers(handles))


def leftovers(handles: Path) -> list[str]:
    found = [str(path) for path in handles.glob("[0-9a-f][0-9a-f]/[0-9a-f][0-9a-f]/*")]
    found = [path for path in found if not RESERVED_GFID.fullmatch(os.path.basename(path))]
    return found + [str(path) for name in ("unlink", "landfill") for path in (handles / name).glob("*")]


def make_tree(root: Path, files: int, seed: int) -> None:
    """`files` files of 0 to 4 KiB in folders up to three deep, some of them executable, with a few symbolic links."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    folders = [root]
    root.mkdir()
    while len(folders) < files // 100 + 1:
        parent = rng.choice(folders)
        if len(parent.relative_to(root).parts) < 3:
            folder = parent / f"folder {len(folders)}"
            folder.mkdir()
            folders.append(folder)
    for number in range(files):
        path = rng.choice(folders) / f"file-{number:05}"
        path.write_bytes(rng.randbytes(rng.randrange(4097)))
        if number % 50 == 0:
            path.chmod(0o755)
        if number % 100 == 0:
            path.with_suffix(".link").symlink_to(path.name)


def same_tree(one: Path, other: Path) -> None:
    done = subprocess.run(["diff", "-r", "--no-dereference", one, other], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[:2000] + done.stderr[:2000]


def answers(path: Path) -> bool:
    """Does the brick answer? statvfs is the call that no cache on the way answers."""
    try:
        os.statvfs(path)
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ENOENT, errno.EIO):
            raise
        return False
    return True


@pytest.mark.timeout(900)
@pytest.mark.parametrize("files", [1_500, pytest.param(20_000, marks=pytest.mark.long)])
def test_tree_survives_a_brick_restart(make_volume, files: int, tmp_path: Path, seeded: random.Random) -> None:
    need_peer("mount.glusterfs", "/dev/fuse", "diff")
    brick, source, point = tmp_path / "brick", tmp_path / "source", tmp_path / "mnt"
    brick.mkdir()
    point.mkdir()
    make_tree(source, files, seed=seeded.randrange(2**32))
    with make_volume(brick) as volume, stock_mount(volume, point, deadline=800) as mounted:
        copy = mounted / "copy"
        subprocess.run(["cp", "-a", source, copy], check=True)
        same_tree(source, copy)
        for path in [source, *list(source.rglob("*.link"))[:20], *list(source.rglob("*0"))[:200]]:
            ours, theirs = path.lstat(), (copy / path.relative_to(source)).lstat()
            assert (theirs.st_mode, theirs.st_uid, theirs.st_mtime_ns) == (ours.st_mode, ours.st_uid, ours.st_mtime_ns)
        volume.crash()
        with pytest.raises(OSError, match="not connected"):
            (mounted / "new").mkdir()
        volume.restart()
        wait_until("the mount has reconnected", lambda: answers(copy))
        same_tree(source, copy)
        # Another client, with nothing in its caches, and the brick itself say the same.
        other = tmp_path / "other"
        other.mkdir()
        with stock_mount(volume, other, deadline=800) as fresh:
            same_tree(source, fresh / "copy")
        same_tree(source, brick / "copy")
        subprocess.run(["rm", "-rf", copy], check=True)
        assert [name for name in os.listdir(mounted) if name != ".trashcan"] == []
    expect_empty_brick(brick)
    for folder in (source, brick):
        shutil.rmtree(folder)


@pytest.mark.timeout(300)
def test_an_open_file_survives_a_brick_restart(make_volume, tmp_path: Path) -> None:
    need_peer("mount.glusterfs", "/dev/fuse")
    brick, point = tmp_path / "brick", tmp_path / "mnt"
    brick.mkdir()
    point.mkdir()
    with make_volume(brick) as volume, stock_mount(volume, point, deadline=250) as mounted:
        with open(mounted / "open", "wb+", buffering=0) as file:
            file.write(b"before")
            os.fsync(file.fileno())
            volume.crash()
            volume.restart()
            wait_until("the mount has reconnected", lambda: answers(mounted / "open"))
            assert os.pread(file.fileno(), 100, 0) == b"before"
            file.write(b" and after")
            os.fsync(file.fileno())
        assert (brick / "open").read_bytes() == b"before and after"


def test_hard_links(mount: Path, peer_volume: Volume) -> None:
    first, second = mount / "first", mount / "folder" / "second"
    second.parent.mkdir()
    first.write_bytes(b"one body")
    os.link(first, second)
    assert first.stat().st_nlink == second.stat().st_nlink == 2
    assert first.stat().st_ino == second.stat().st_ino
    # The brick has the handle below .glusterfs as one more link.
    assert (peer_volume.folder / "first").stat().st_nlink == 3
    second.write_bytes(b"another body")
    assert first.read_bytes() == b"another body"
    first.unlink()
    assert second.read_bytes() == b"another body"
    assert second.stat().st_nlink == 1
    with pytest.raises(FileExistsError):
        os.link(second, second)
    # Each name is one more xattr of the inode on the brick: ext4 holds about 45.
    for number in range(20):
        os.link(second, mount / f"link{number}")
    assert second.stat().st_nlink == 21


def test_symbolic_links(mount: Path) -> None:
    (mount / "folder").mkdir()
    (mount / "folder" / "file").write_text("target")
    (mount / "relative").symlink_to("folder/file")
    (mount / "dangling").symlink_to("nowhere")
    (mount / "loop").symlink_to("loop")
    long = "/".join(["x" * 200] * 20)
    (mount / "long").symlink_to(long)
    assert (mount / "relative").read_text() == "target"
    assert os.readlink(mount / "long") == long
    assert (mount / "long").lstat().st_size == len(long)
    assert stat.S_ISLNK((mount / "dangling").lstat().st_mode)
    with pytest.raises(FileNotFoundError):
        (mount / "dangling").read_text()
    with pytest.raises(OSError, match="symbolic links") as caught:
        (mount / "loop").read_text()
    assert caught.value.errno == errno.ELOOP
    (mount / "folder" / "file").unlink()
    assert not (mount / "relative").exists()


def test_extended_attributes(mount: Path) -> None:
    for path in (mount / "file", mount / "folder"):
        path.mkdir() if path.name == "folder" else path.write_bytes(b"")
        os.setxattr(path, "user.one", b"1")
        os.setxattr(path, "user.binary", bytes(range(256)))
        os.setxattr(path, "user.empty", b"")
        os.setxattr(path, "trusted.mine", b"root's")
        assert os.getxattr(path, "user.binary") == bytes(range(256))
        assert os.getxattr(path, "user.empty") == b""
        names = set(os.listxattr(path))
        assert {"user.one", "user.binary", "user.empty", "trusted.mine"} <= names
        assert not {name for name in names if "gfid" in name or "mdata" in name}
        with pytest.raises(FileExistsError):
            os.setxattr(path, "user.one", b"2", os.XATTR_CREATE)
        with pytest.raises(OSError, match="No data") as caught:
            os.setxattr(path, "user.new", b"2", os.XATTR_REPLACE)
        assert caught.value.errno == errno.ENODATA
        os.setxattr(path, "user.one", b"two", os.XATTR_REPLACE)
        assert os.getxattr(path, "user.one") == b"two"
        os.removexattr(path, "user.one")
        for gone in ("user.one", "user.never"):
            with pytest.raises(OSError, match="No data"):
                os.getxattr(path, gone)
        with pytest.raises(OSError, match="No data"):
            os.removexattr(path, "user.one")


def test_sparse_files(mount: Path, peer_volume: Volume) -> None:
    path = mount / "sparse"
    with open(path, "wb+", buffering=0) as file:
        file.truncate(1 << 30)
        os.pwrite(file.fileno(), b"middle", 512 << 20)
        os.fsync(file.fileno())
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 512 << 20
        assert 512 << 20 < os.lseek(file.fileno(), 512 << 20, os.SEEK_HOLE) < 513 << 20
        with pytest.raises(OSError, match="No such device or address"):
            os.lseek(file.fileno(), 600 << 20, os.SEEK_DATA)
        assert os.pread(file.fileno(), 16, (512 << 20) - 5) == b"\0\0\0\0\0middle\0\0\0\0\0"
    for info in (path.stat(), (peer_volume.folder / "sparse").stat()):
        assert info.st_size == 1 << 30
        assert info.st_blocks * 512 < 1 << 20
    subprocess.run(["cp", "--sparse=always", path, mount / "copy"], check=True)
    assert (mount / "copy").stat().st_blocks * 512 < 1 << 20
    os.truncate(path, 100)
    assert path.read_bytes() == bytes(100)


def test_fallocate_and_punched_holes(mount: Path, peer_volume: Volume) -> None:
    need_peer("fallocate")
    path = mount / "file"
    data = random.Random(1).randbytes(4 << 20)
    path.write_bytes(data)
    subprocess.run(["fallocate", "--punch-hole", "--offset", "1048576", "--length", "1048576", path], check=True)
    assert path.read_bytes() == data[: 1 << 20] + bytes(1 << 20) + data[2 << 20 :]
    subprocess.run(["fallocate", "--length", "8388608", path], check=True)
    assert path.stat().st_size == 8 << 20
    subprocess.run(["fallocate", "--keep-size", "--offset", "8388608", "--length", "8388608", path], check=True)
    assert path.stat().st_size == 8 << 20
    assert (peer_volume.folder / "file").stat().st_blocks * 512 >= 16 << 20


def test_rename_over(mount: Path) -> None:
    old, new = mount / "old", mount / "new"
    new.write_bytes(b"is replaced")
    old.write_bytes(b"replaces")
    with open(new, "rb") as still_open:
        os.rename(old, new)
        assert still_open.read() == b"is replaced"
        assert os.fstat(still_open.fileno()).st_nlink == 0
    assert new.read_bytes() == b"replaces"
    assert not old.exists()
    # Two names of one file: a rename between them does nothing.
    os.link(new, mount / "twin")
    os.rename(new, mount / "twin")
    assert new.read_bytes() == (mount / "twin").read_bytes() == b"replaces"


def test_rename_folders(mount: Path) -> None:
    one, two, full = mount / "one", mount / "two", mount / "full"
    for folder in (one, two, full, one / "deep"):
        folder.mkdir()
    (one / "deep" / "file").write_text("inside")
    (full / "file").write_text("in the way")
    os.rename(one, two)
    assert (two / "deep" / "file").read_text() == "inside"
    assert not one.exists()
    with pytest.raises(OSError, match="not empty") as caught:
        os.rename(two, full)
    assert caught.value.errno in (errno.ENOTEMPTY, errno.EEXIST)
    with pytest.raises(NotADirectoryError):
        os.rename(two, full / "file")
    with pytest.raises(IsADirectoryError):
        os.rename(full / "file", two)
    with pytest.raises(OSError, match="Invalid argument"):
        os.rename(two, two / "deep" / "itself")
    os.rename(two / "deep", full / "deep")
    assert (full / "deep" / "file").read_text() == "inside"
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(full)


def test_names_of_255_bytes(mount: Path, peer_volume: Volume) -> None:
    root, brick = os.fsencode(mount), os.fsencode(peer_volume.folder)
    names = [
        b"n" * 255,
        "é".encode() * 127 + b"x",
        b"\xff\xfe" * 127 + b"z",
        b" leading and trailing ",
        b"new\nline",
        b"\\",
    ]
    for name in names:
        path = os.path.join(root, name)
        with open(path, "wb") as file:
            file.write(name)
        assert os.path.exists(os.path.join(brick, name))
        other = os.path.join(root, b"o" * len(name))
        os.rename(path, other)
        os.rename(other, path)
        with open(path, "rb") as file:
            assert file.read() == name
    assert set(names) <= set(os.listdir(root))
    os.mkdir(os.path.join(root, b"d" * 255))
    os.symlink(b"s" * 255, os.path.join(root, b"l" * 255))
    for too_long in (b"n" * 256, b"n" * 300):
        for make in (os.mkdir, lambda path: os.open(path, os.O_CREAT), lambda path: os.symlink("x", path), os.stat):
            with pytest.raises(OSError, match="name too long"):
                make(os.path.join(root, too_long))


def test_open_unlinked_files(mount: Path, peer_volume: Volume) -> None:
    path = mount / "file"
    with open(path, "wb+", buffering=0) as file:
        file.write(b"still here")
        path.unlink()
        assert not path.exists()
        assert not (peer_volume.folder / "file").exists()
        path.write_bytes(b"someone else")
        assert os.pread(file.fileno(), 100, 0) == b"still here"
        os.pwrite(file.fileno(), b"x" * 100_000, 5)
        os.ftruncate(file.fileno(), 50_000)
        os.fsync(file.fileno())
        assert os.fstat(file.fileno()).st_size == 50_000
        assert os.pread(file.fileno(), 100, 0) == b"still" + b"x" * 95
    assert path.read_bytes() == b"someone else"


def test_posix_locks_from_two_mounts(mount: Path, second_mount: Path) -> None:
    (mount / "locked").write_bytes(bytes(100))
    with open(mount / "locked", "rb+") as ours, open(second_mount / "locked", "rb+") as theirs:
        fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 20, 5)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 9)
        fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)

        granted = threading.Event()
        waiter = threading.Thread(target=lambda: (fcntl.lockf(theirs, fcntl.LOCK_EX, 5, 0), granted.set()), daemon=True)
        waiter.start()
        assert not granted.wait(0.5)
        fcntl.lockf(ours, fcntl.LOCK_UN, 10, 0)
        assert granted.wait(60)
        waiter.join()
        with pytest.raises(BlockingIOError):
            fcntl.lockf(ours, fcntl.LOCK_SH | fcntl.LOCK_NB, 5, 0)
        fcntl.lockf(ours, fcntl.LOCK_SH | fcntl.LOCK_NB, 5, 5)
    with open(mount / "locked", "rb+") as again:
        fcntl.lockf(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_shared_locks_and_flock_from_two_mounts(mount: Path, second_mount: Path) -> None:
    (mount / "locked").write_bytes(bytes(100))
    with open(mount / "locked", "rb+") as ours, open(second_mount / "locked", "rb+") as theirs:
        for file in (ours, theirs):
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for file in (ours, theirs):
            fcntl.lockf(file, fcntl.LOCK_UN)
        fcntl.flock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(ours, fcntl.LOCK_UN)
        fcntl.flock(theirs, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_locks_go_with_their_client(peer_volume: Volume, mount: Path, tmp_path: Path) -> None:
    (mount / "locked").write_bytes(bytes(10))
    point = tmp_path / "mnt2"
    point.mkdir()
    with open(mount / "locked", "rb+") as ours:
        with stock_mount(peer_volume, point) as mounted:
            theirs = os.open(mounted / "locked", os.O_RDWR)
            try:
                fcntl.lockf(theirs, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with pytest.raises(BlockingIOError):
                    fcntl.lockf(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Nobody unlocks: the brick must see the client go.
                mounted.kill_client()
                fcntl.lockf(ours, fcntl.LOCK_EX)
            finally:
                with contextlib.suppress(OSError):
                    os.close(theirs)


def test_two_mounts_see_each_other(peer_volume: Volume, mount: Path, second_mount: Path) -> None:
    (mount / "folder").mkdir()
    (mount / "folder" / "file").write_bytes(b"from the first")
    assert (second_mount / "folder" / "file").read_bytes() == b"from the first"
    (second_mount / "folder" / "other").write_bytes(b"from the second")
    assert (mount / "folder" / "other").read_bytes() == b"from the second"
    with open(mount / "log", "ab", buffering=0) as ours, open(second_mount / "log", "ab", buffering=0) as theirs:
        for number in range(50):
            for file in (ours, theirs):
                file.write(b"%03d\n" % number)
                os.fsync(file.fileno())
    wanted = sorted(b"%03d" % number for number in range(50) for _ in range(2))
    assert sorted((peer_volume.folder / "log").read_bytes().split()) == wanted
    # A mount may show the other's last line late: it keeps attributes for a second.
    wait_until("both see all lines", lambda: sorted((mount / "log").read_bytes().split()) == wanted)


def test_owner_mode_and_times(mount: Path) -> None:
    path = mount / "file"
    path.write_bytes(b"x")
    os.chown(path, 1234, 5678)
    path.chmod(0o4751)
    os.utime(path, ns=(1_000_000_000_123_456_789, 1_500_000_000_987_654_321))
    info = path.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (1234, 5678, 0o4751)
    assert (info.st_atime_ns, info.st_mtime_ns) == (1_000_000_000_123_456_789, 1_500_000_000_987_654_321)
    changed = info.st_ctime_ns
    with open(path, "ab") as file:
        file.write(b"y")
    wait_until("mtime has moved", lambda: path.stat().st_mtime_ns > changed)
    old = os.umask(0o027)
    try:
        (mount / "masked").mkdir()
        assert stat.S_IMODE((mount / "masked").stat().st_mode) == 0o750
    finally:
        os.umask(old)


def as_nobody(script: str, folder: Path) -> int:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode


def test_permissions_of_other_users(mount: Path) -> None:
    (mount / "private").mkdir(0o700)
    (mount / "private" / "file").write_text("secret")
    (mount / "public").mkdir()
    (mount / "public").chmod(0o777)
    (mount / "readable").write_text("text")
    # The mount point's parents may be closed to others, so the user starts inside.
    assert as_nobody("cat readable", mount) == 0
    assert as_nobody("echo x >readable", mount) != 0
    assert as_nobody("cat private/file", mount) != 0
    assert as_nobody("ls private", mount) != 0
    assert as_nobody("touch new", mount) != 0
    assert as_nobody("touch public/new && ln -s x public/link && mkdir public/folder", mount) == 0
    for name in ("new", "link", "folder"):
        assert (mount / "public" / name).lstat().st_uid == 65534
    assert (mount / "readable").read_text() == "text"
    (mount / "public").chmod(0o1777)
    (mount / "public" / "roots").write_text("")
    assert as_nobody("rm -f public/roots", mount) != 0
    assert as_nobody("rm public/new", mount) == 0


def test_special_files(mount: Path) -> None:
    os.mkfifo(mount / "fifo", 0o640)
    os.mknod(mount / "socket", stat.S_IFSOCK | 0o600)
    os.mknod(mount / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert stat.S_ISFIFO((mount / "fifo").stat().st_mode)
    assert stat.S_ISSOCK((mount / "socket").stat().st_mode)
    info = (mount / "null").stat()
    assert stat.S_ISCHR(info.st_mode)
    assert info.st_rdev == os.makedev(1, 3)


def test_large_file_and_mmap(mount: Path, peer_volume: Volume, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(random.Random(2).randbytes(64 << 20))
    shutil.copyfile(local, mount / "large")
    assert filecmp.cmp(local, mount / "large", shallow=False)
    digest = hashlib.sha256((peer_volume.folder / "large").read_bytes()).digest()
    assert digest == hashlib.sha256(local.read_bytes()).digest()
    with open(mount / "large", "rb+") as file:
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[10_000_000:10_000_005] = b"mmap!"
            memory.flush()
    with open(peer_volume.folder / "large", "rb") as file:
        assert os.pread(file.fileno(), 5, 10_000_000) == b"mmap!"
    fd = os.open(mount / "large", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, 1 << 20) as page:
            assert os.preadv(fd, [page], 1 << 20) == 1 << 20
            assert page[:] == local.read_bytes()[1 << 20 : 2 << 20]
    finally:
        os.close(fd)


def test_a_folder_with_many_entries(mount: Path) -> None:
    folder = mount / "many"
    folder.mkdir()
    names = {f"entry-{number}-{'x' * (number % 100)}" for number in range(1500)}
    for name in names:
        (folder / name).touch()
    listed = os.listdir(folder)
    assert len(listed) == len(names)
    assert set(listed) == names
    assert {entry.name for entry in os.scandir(folder) if entry.is_file() and entry.stat().st_size == 0} == names


def test_deep_folders(mount: Path) -> None:
    path = mount
    for depth in range(100):
        path = path / f"level{depth}"
        path.mkdir()
    (path / "bottom").write_text("here")
    os.rename(mount / "level0" / "level1", mount / "moved")
    parts = path.relative_to(mount).parts[2:]
    assert (mount / "moved").joinpath(*parts, "bottom").read_text() == "here"


def test_statfs(mount: Path, peer_volume: Volume) -> None:
    ours, brick = os.statvfs(mount), os.statvfs(peer_volume.folder)
    assert ours.f_namemax == 255
    assert ours.f_blocks * ours.f_frsize == brick.f_blocks * brick.f_frsize


def test_open_flags(mount: Path) -> None:
    path = mount / "file"
    path.write_bytes(b"content")
    with pytest.raises(FileExistsError):
        os.open(path, os.O_CREAT | os.O_EXCL)
    with pytest.raises(IsADirectoryError):
        os.open(mount, os.O_WRONLY)
    with pytest.raises(NotADirectoryError):
        os.open(path / "below", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        os.open(mount / "none", os.O_RDWR)
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
    assert path.stat().st_size == 0
    fd = os.open(path, os.O_WRONLY | os.O_SYNC)
    try:
        assert os.write(fd, b"on disk") == 7
    finally:
        os.close(fd)
    reader = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(reader, b"x")
    finally:
        os.close(reader)
    assert path.read_bytes() == b"on disk"


def test_rename_without_replacing(mount: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    (mount / "one").write_bytes(b"1")
    (mount / "two").write_bytes(b"2")
    result = libc.renameat2(-100, os.fsencode(mount / "one"), -100, os.fsencode(mount / "two"), 1)
    # Stock's mount does not offer the flag (EINVAL); whoever does must keep both files.
    assert result == -1
    assert ctypes.get_errno() in (errno.EEXIST, errno.EINVAL)
    assert (mount / "one").read_bytes() + (mount / "two").read_bytes() == b"12"
