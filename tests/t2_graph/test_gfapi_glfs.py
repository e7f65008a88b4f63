"""libgfapi's names: each does what its C namesake does."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading

import pytest

from glustx.gfapi import glfs as g
from tests.t2_graph.gfapi_faces import MEMORY, fails


@pytest.fixture
def fs(tmp_path):
    path = tmp_path / "test.vol"
    path.write_text(MEMORY)
    fs = g.glfs_new("test")
    g.glfs_set_volfile(fs, str(path))
    g.glfs_init(fs)
    yield fs
    g.glfs_fini(fs)


def test_life(tmp_path):
    fs = g.glfs_new("vm")
    with pytest.raises(RuntimeError, match="glfs_init comes first"):
        g.glfs_stat(fs, "/")
    with pytest.raises(ValueError, match="neither"):
        g.glfs_init(fs)
    with pytest.raises(ValueError, match="rdma"):
        g.glfs_set_volfile_server(fs, "rdma", "h", 0)
    g.glfs_set_volfile_server(fs, "tcp", "h")
    g.glfs_set_volfile_server(fs, "unix", "/run/x")
    assert [(a.host, a.port, a.path) for a in fs.servers] == [("h", 24007, ""), ("127.0.0.1", 0, "/run/x")]
    g.glfs_fini(fs)


def test_files(fs):
    fd = g.glfs_creat(fs, "/f", os.O_RDWR, 0o644)
    assert g.glfs_write(fd, b"hello world") == 11
    assert g.glfs_lseek(fd, 6, os.SEEK_SET) == 6
    assert g.glfs_read(fd, 100) == b"world"
    assert (g.glfs_pwrite(fd, b"J", 0), g.glfs_pread(fd, 5, 0)) == (1, b"Jello")
    g.glfs_zerofill(fd, 0, 3)
    assert g.glfs_pread(fd, 5, 0) == b"\0\0\0lo"
    g.glfs_fallocate(fd, 1, 1 << 20, 4096)
    assert g.glfs_fstat(fd).st_size == 11
    g.glfs_fallocate(fd, 0, 1 << 20, 4096)
    assert g.glfs_fstat(fd).st_size == (1 << 20) + 4096
    g.glfs_discard(fd, 0, 4096)
    assert g.glfs_lseek(fd, 0, os.SEEK_HOLE) == 0
    g.glfs_ftruncate(fd, 5)
    g.glfs_fsync(fd)
    g.glfs_fdatasync(fd)
    other = g.glfs_creat(fs, "/g", os.O_RDWR, 0o644)
    assert g.glfs_copy_file_range(fd, 0, other, 1, 100) == 5
    assert g.glfs_fstat(other).st_size == 6
    g.glfs_fchmod(fd, 0o600)
    g.glfs_fchown(fd, 5, 6)
    g.glfs_futimens(fd, (7, 8))
    found = g.glfs_stat(fs, "/f")
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid, found.st_mtime_ns) == (0o600, 5, 6, 8)
    g.glfs_fsetxattr(fd, "user.a", b"1")
    assert (g.glfs_fgetxattr(fd, "user.a"), g.glfs_flistxattr(fd)) == (b"1", ["user.a"])
    g.glfs_fremovexattr(fd, "user.a")
    assert g.glfs_fd_path(fd) == "/f"
    g.glfs_close(fd)
    g.glfs_close(other)
    with fails(errno.EEXIST):
        g.glfs_creat(fs, "/f", os.O_RDWR | os.O_EXCL, 0o644)
    with fails(errno.ENOENT):
        g.glfs_open(fs, "/gone", os.O_RDWR | os.O_CREAT)


def test_names(fs):
    g.glfs_mkdir(fs, "/d", 0o755)
    g.glfs_mknod(fs, "/d/f", stat.S_IFREG | 0o644)
    g.glfs_link(fs, "/d/f", "/d/g")
    g.glfs_symlink(fs, "f", "/d/l")
    assert (g.glfs_readlink(fs, "/d/l"), g.glfs_realpath(fs, "/d/l")) == ("f", "/d/f")
    assert stat.S_ISLNK(g.glfs_lstat(fs, "/d/l").st_mode)
    g.glfs_chmod(fs, "/d/f", 0o600)
    g.glfs_chown(fs, "/d/f", 1, 2)
    g.glfs_lchown(fs, "/d/l", 3, 4)
    g.glfs_utimens(fs, "/d/f", (5, 6))
    g.glfs_lutimens(fs, "/d/l", (7, 8))
    assert (g.glfs_stat(fs, "/d/f").st_mtime_ns, g.glfs_lstat(fs, "/d/l").st_mtime_ns) == (6, 8)
    g.glfs_setxattr(fs, "/d/f", "user.a", b"1")
    assert (g.glfs_getxattr(fs, "/d/f", "user.a"), g.glfs_listxattr(fs, "/d/f")) == (b"1", ["user.a"])
    g.glfs_removexattr(fs, "/d/f", "user.a")
    g.glfs_truncate(fs, "/d/f", 100)
    folder = g.glfs_opendir(fs, "/d")
    sizes = {}
    while (entry := g.glfs_readdirplus(folder)) is not None:
        sizes[entry[0].d_name] = entry[1].st_size
    g.glfs_closedir(folder)
    assert set(sizes) == {b".", b"..", b"f", b"g", b"l"}
    assert (sizes[b"f"], sizes[b"g"], sizes[b"l"]) == (100, 100, 1)
    g.glfs_access(fs, "/d/f", os.R_OK)
    with fails(errno.ENOENT):
        g.glfs_access(fs, "/gone", os.F_OK)
    g.glfs_rename(fs, "/d/f", "/f")
    for name in ("/d/g", "/d/l", "/f"):
        g.glfs_unlink(fs, name)
    g.glfs_rmdir(fs, "/d")
    assert g.glfs_statvfs(fs).f_bsize > 0
    with fails(errno.ENODATA):
        g.glfs_get_volumeid(fs)


def test_directories_and_where_paths_start(fs):
    g.glfs_mkdir(fs, "/d", 0o777)
    assert stat.S_IMODE(g.glfs_stat(fs, "/d").st_mode) == 0o777  # as in C, no umask is taken off
    g.glfs_mkdir(fs, "/d/e", 0o755)
    assert g.glfs_getcwd(fs) == "/"
    g.glfs_chdir(fs, "d")
    assert g.glfs_getcwd(fs) == "/d" and stat.S_ISDIR(g.glfs_stat(fs, "e").st_mode)
    folder = g.glfs_opendir(fs, "e")
    names = set()
    while (entry := g.glfs_readdir(folder)) is not None:
        names.add(entry.d_name)
    assert names == {b".", b".."}
    g.glfs_fchdir(fs, folder)
    g.glfs_closedir(folder)
    assert g.glfs_getcwd(fs) == "/d/e"


def test_links_have_attributes_of_their_own(fs):
    g.glfs_mknod(fs, "/f", stat.S_IFREG | 0o644)
    g.glfs_symlink(fs, "f", "/l")
    g.glfs_setxattr(fs, "/l", "trusted.of", b"file")
    g.glfs_lsetxattr(fs, "/l", "trusted.of", b"link\0")
    assert g.glfs_getxattr(fs, "/l", "trusted.of") == b"file"
    assert g.glfs_lgetxattr(fs, "/l", "trusted.of") == b"link\0"
    assert g.glfs_llistxattr(fs, "/l") == g.glfs_listxattr(fs, "/l") == ["trusted.of"]
    g.glfs_lremovexattr(fs, "/l", "trusted.of")
    with fails(errno.ENODATA):
        g.glfs_lgetxattr(fs, "/l", "trusted.of")
    assert g.glfs_getxattr(fs, "/f", "trusted.of") == b"file"
    assert g.glfs_readlink(fs, b"/l") == b"f" and g.glfs_realpath(fs, b"/l") == b"/f"


def test_dup_and_locks(fs):
    fd = g.glfs_creat(fs, "/f", os.O_RDWR, 0o644)
    g.glfs_write(fd, b"0123")
    twin = g.glfs_dup(fd)
    assert g.glfs_read(twin, 2) == b"01" and g.glfs_lseek(fd, 0, os.SEEK_CUR) == 4
    g.glfs_close(twin)
    other = g.glfs_open(fs, "/f", os.O_RDWR)
    read_lock, write_lock, no_lock = 0, 1, 2
    g.glfs_posix_lock(fd, write_lock, 0, 10, False)
    with pytest.raises(BlockingIOError):
        g.glfs_posix_lock(other, read_lock, 5, 10, False)
    found = g.glfs_test_lock(other, read_lock, 0, 0)
    assert found is not None and (found.exclusive, found.start, found.length) == (True, 0, 10)
    g.glfs_posix_lock(fd, no_lock, 0, 10, False)
    assert g.glfs_test_lock(other, write_lock, 0, 0) is None
    g.glfs_file_lock(fd, write_lock, 0, 10, False, True)
    with pytest.raises(BlockingIOError):
        g.glfs_file_lock(other, read_lock, 5, 1, False, False)
    g.glfs_file_lock(fd, no_lock, 0, 10, False, False)
    with pytest.raises(OSError, match="ENOSYS"):
        g.glfs_lease(fd, 2, b"an id".ljust(16, b"\0"), None)  # the volume has leases off
    g.glfs_lease(fd, 0, b"", None)
    g.glfs_close(fd)
    g.glfs_close(other)


def test_who_asks_is_the_threads_own(fs):
    def work():
        g.glfs_setfsuid(1000)
        g.glfs_setfsgid(1001)
        g.glfs_setfsgroups([1002])
        g.glfs_mknod(fs, "/theirs", stat.S_IFREG | 0o644)
        groups.append(fs.volume._core.caller.groups)

    groups: list[tuple[int, ...]] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    g.glfs_mknod(fs, "/mine", stat.S_IFREG | 0o644)
    theirs, mine = g.glfs_stat(fs, "/theirs"), g.glfs_stat(fs, "/mine")
    assert (theirs.st_uid, theirs.st_gid, mine.st_uid) == (1000, 1001, os.geteuid()) and groups == [(1002,)]


def test_logging_and_servers(fs, tmp_path):
    logger = logging.getLogger("glustx")
    level = logger.level
    try:
        g.glfs_set_logging(fs, str(tmp_path / "log"), 7)
        logger.info("heard")
        g.glfs_set_logging(fs, "/dev/null", 7)
        assert "heard" in (tmp_path / "log").read_text()
    finally:
        logger.setLevel(level)
    other = g.glfs_new("vm")
    g.glfs_set_logging(other, str(tmp_path / "other"), 5)
    g.glfs_set_volfile_server(other, "tcp", "a")
    g.glfs_set_volfile_server(other, "tcp", "b", 5)
    g.glfs_unset_volfile_server(other, "tcp", "a")
    assert [str(address) for address in other.servers] == ["b:5"] and not (tmp_path / "other").exists()
    with pytest.raises(ValueError, match="a:24007 is none of its servers"):
        g.glfs_unset_volfile_server(other, "tcp", "a")
