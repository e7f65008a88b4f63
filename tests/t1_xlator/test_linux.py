"""glustx.linux: each system call against a real file, and clean ENOSYS where there is no such call."""

from __future__ import annotations

import errno
import os
import platform
import sys
from pathlib import Path

import pytest

from glustx import linux


def errno_of(call, *args, **kwargs) -> int:
    """The errno that `call` raises; 0 when it succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        return error.errno
    return 0


@pytest.fixture
def fd(tmp_path: Path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


def test_fallocate_modes(fd):
    linux.fallocate(fd, 0, 0, 8192)
    assert os.fstat(fd).st_size == 8192
    linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 8192, 1 << 20)
    assert os.fstat(fd).st_size == 8192
    assert os.fstat(fd).st_blocks * 512 >= (1 << 20) + 8192
    os.pwrite(fd, b"\xff" * 8192, 0)
    linux.fallocate(fd, linux.FALLOC_FL_PUNCH_HOLE | linux.FALLOC_FL_KEEP_SIZE, 100, 50)
    assert os.pread(fd, 8192, 0) == b"\xff" * 100 + bytes(50) + b"\xff" * 8042


def test_fallocate_errors(fd, tmp_path):
    assert errno_of(linux.fallocate, fd, 0, 0, 0) == errno.EINVAL
    assert errno_of(linux.fallocate, fd, 0, -1, 1) == errno.EINVAL
    assert errno_of(linux.fallocate, fd, 0, 0, -(2**70)) == errno.EINVAL
    assert errno_of(linux.fallocate, fd, 0, 2**63 - 1, 1) == errno.EFBIG
    assert errno_of(linux.fallocate, fd, 0, 2**70, 1) == errno.EFBIG
    assert errno_of(linux.fallocate, 2**30, 0, 0, 1) == errno.EBADF
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    assert errno_of(linux.fallocate, read_only, 0, 0, 1) == errno.EBADF
    os.close(read_only)


def extents(fd: int, offset: int, length: int, **kwargs) -> list[linux.Extent]:
    try:
        return list(linux.fiemap(fd, offset, length, **kwargs))
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("the file system of the temporary folder has no FIEMAP")


def covered(found: list[linux.Extent]) -> set[int]:
    """The 64 KiB blocks that extents cover, which is the same however a file system cuts them."""
    return {at >> 16 for extent in found for at in range(extent.logical, extent.end, 4096)}


def test_fiemap_shows_data_holes_and_preallocation(fd):
    block = 1 << 16
    assert extents(fd, 0, 2**63 - 1) == []
    os.pwrite(fd, b"x" * block, block)
    linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 3 * block, block)
    assert covered(extents(fd, 0, 8 * block)) == {1, 3}  # the data is still in the page cache
    found = extents(fd, 0, 2**63 - 1, flags=linux.FIEMAP_FLAG_SYNC)
    assert covered(found) == {1, 3}
    for extent in found:
        assert bool(extent.flags & linux.FIEMAP_EXTENT_UNWRITTEN) == (extent.logical >= 3 * block)
    assert found[-1].flags & linux.FIEMAP_EXTENT_LAST
    assert extents(fd, 2 * block, block) == []
    assert covered(extents(fd, 3 * block + 100, 1)) == {3}


def test_fiemap_pages(fd, monkeypatch):
    block = 1 << 16
    for index in range(0, 40, 2):
        os.pwrite(fd, b"x" * block, index * block)
    whole = extents(fd, 0, 40 * block, flags=linux.FIEMAP_FLAG_SYNC)
    assert covered(whole) == set(range(0, 40, 2))
    monkeypatch.setattr(linux, "_FIEMAP_EXTENTS_PER_CALL", 3)
    assert extents(fd, 0, 40 * block) == whole
    part = extents(fd, 5 * block, 12 * block)
    assert covered(part) == set(range(6, 17, 2))


def test_fiemap_bad_fd():
    assert errno_of(lambda: list(linux.fiemap(2**30, 0, 1))) == errno.EBADF


def test_renameat2(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1")
    two.write_text("2")
    with pytest.raises(FileExistsError) as caught:
        linux.renameat2(None, one, None, two, linux.RENAME_NOREPLACE)
    assert (caught.value.filename, caught.value.filename2) == (one, two)
    folder = os.open(tmp_path, os.O_RDONLY)
    linux.renameat2(folder, b"one", folder, "two", linux.RENAME_EXCHANGE)
    assert (one.read_text(), two.read_text()) == ("2", "1")
    linux.renameat2(folder, "one", None, tmp_path / "three", linux.RENAME_NOREPLACE)
    assert not one.exists()
    assert (tmp_path / "three").read_text() == "2"
    os.close(folder)
    with pytest.raises(ValueError, match="null"):
        linux.renameat2(None, b"a\0b", None, two, 0)


def test_openat2(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside").write_text("secret")
    (folder / "link").symlink_to("../outside")
    at = os.open(folder, os.O_RDONLY)
    try:
        fd = linux.openat2(at, "new", os.O_CREAT | os.O_RDWR, 0o640, resolve=linux.RESOLVE_BENEATH)
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_mode & 0o777 == 0o640 & ~_umask()
        os.close(fd)
        for path in ("../outside", "link", b"/etc/passwd"):
            with pytest.raises(OSError, match=r"\[Errno 18\]") as caught:  # EXDEV
                linux.openat2(at, path, os.O_RDONLY, resolve=linux.RESOLVE_BENEATH)
            assert caught.value.filename == path
        assert errno_of(linux.openat2, at, "link", os.O_RDONLY, resolve=linux.RESOLVE_NO_SYMLINKS) == errno.ELOOP
        assert errno_of(linux.openat2, at, "none", os.O_RDONLY) == errno.ENOENT
    finally:
        os.close(at)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_syncfs_and_magic():
    proc = os.open("/proc/self/status", os.O_RDONLY)
    linux.syncfs(proc)
    assert linux.fs_magic(proc) == 0x9FA0
    os.close(proc)
    assert errno_of(linux.syncfs, proc) == errno.EBADF


def test_enosys_on_other_platforms_and_machines(monkeypatch, fd, tmp_path):
    rename = (linux.renameat2, None, tmp_path / "a", None, tmp_path / "b", 0)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "machine", lambda: "pdp11")
        assert errno_of(*rename) == errno.ENOSYS
        assert errno_of(linux.openat2, None, tmp_path, os.O_RDONLY) == errno.ENOSYS
    linux._libc.cache_clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    for call in (
        rename,
        (linux.openat2, None, tmp_path, os.O_RDONLY),
        (linux.fallocate, fd, 0, 0, 1),
        (lambda: list(linux.fiemap(fd, 0, 1)),),
        (linux.syncfs, fd),
        (linux.fs_magic, fd),
    ):
        assert errno_of(*call) == errno.ENOSYS
