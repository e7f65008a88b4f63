"""gfapi over storage/memory: names, attributes, directories and files, on both faces."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from glustx.gfapi import Source, Volume
from tests.t2_graph.gfapi_faces import fails, open_faces


@pytest.fixture(params=["blocking", "async"])
def vol(request):
    yield from open_faces(request.param)


def write(vol, path, data=b""):
    with vol.create(path) as file:
        file.write(data)


def read(vol, path):
    with vol.open(path) as file:
        return file.read()


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_tree(vol):
    vol.mkdir("/a")
    vol.makedirs("a/b/c")
    vol.makedirs("/a/b/c", exist_ok=True)
    write(vol, "/a/b/f", b"abc")
    assert sorted(vol.listdir("/a/b")) == ["c", "f"]
    assert vol.listdir() == ["a"]
    assert read(vol, "a//b/./c/../f") == b"abc"
    assert vol.getsize("/a/b/f") == 3
    vol.rename("/a/b/f", "/g")
    assert sorted(vol.listdir("/")) == ["a", "g"]
    vol.unlink("/g")
    vol.rmdir("/a/b/c/")
    assert vol.listdir("/a/b") == []
    vol.rmtree("/a")
    assert vol.listdir("/") == []


def test_paths_of_all_kinds(vol):
    strange = os.fsdecode(b"\xff\xfe name")
    write(vol, strange, b"1")
    assert vol.listdir("/") == [strange]
    assert read(vol, os.fsencode(strange)) == b"1"
    assert read(vol, Path("/") / strange) == b"1"
    assert vol.stat(b"/" + os.fsencode(strange)).st_size == 1
    with pytest.raises(ValueError, match="null byte"):
        vol.stat("a\0b")


def test_questions(vol):
    vol.mkdir("/d")
    write(vol, "/f")
    vol.symlink("f", "/l")
    vol.symlink("nowhere", "/dead")
    assert vol.exists("/f") and vol.exists("/l") and vol.exists("/")
    assert not vol.exists("/gone") and not vol.exists("/f/x") and not vol.exists("/dead")
    assert vol.lexists("/dead") and not vol.lexists("/gone")
    assert vol.isfile("/f") and vol.isfile("/l") and not vol.isfile("/d")
    assert vol.isdir("/d") and not vol.isdir("/f") and not vol.isdir("/gone")
    assert vol.islink("/l") and not vol.islink("/f")
    assert vol.samefile("/f", "/l") and not vol.samefile("/f", "/d")


def test_links(vol):
    write(vol, "/f", b"abc")
    vol.link("/f", "/g")
    assert vol.stat("/g").st_nlink == 2
    assert vol.stat("/f").gfid == vol.stat("/g").gfid
    vol.unlink("/f")
    assert (vol.stat("/g").st_nlink, read(vol, "/g")) == (1, b"abc")
    with vol.open("/g", "rb") as file:
        vol.link(file, "/h")
    vol.link(file, "/i")
    assert vol.stat("/i").st_nlink == 3 and vol.stat("/h").gfid == vol.stat("/g").gfid


def test_symbolic_links(vol):
    vol.makedirs("/a/b")
    write(vol, "/a/b/f", b"abc")
    vol.symlink("b/f", "/a/l")
    vol.symlink("/a", "/abs")
    vol.symlink("../a/./l", "/a/twice")
    assert vol.readlink("/a/l") == "b/f"
    for path in ("/a/l", "/abs/l", "/abs/twice", "/abs/b/../b/f"):
        assert read(vol, path) == b"abc"
        assert vol.realpath(path) == "/a/b/f"
    assert stat.S_ISLNK(vol.lstat("/a/l").st_mode)
    assert vol.stat("/a/l", follow_symlinks=False).st_mode == vol.lstat("/a/l").st_mode
    vol.unlink("/a/l")
    assert vol.exists("/a/b/f")


def test_a_file_is_made_where_a_link_leads(vol):
    vol.mkdir("/d")
    vol.symlink("d/new", "/l")
    write(vol, "/l", b"abc")
    assert read(vol, "/d/new") == b"abc"
    with pytest.raises(FileExistsError):
        vol.create("/l", exclusive=True)


def test_links_that_go_round(vol):
    vol.symlink("b", "/a")
    vol.symlink("a", "/b")
    for call in (vol.stat, vol.open, vol.listdir, vol.create):
        with fails(errno.ELOOP):
            call("/a")
    path = "/end"
    write(vol, path, b"x")
    for i in range(40):
        vol.symlink(path, f"/l{i}")
        path = f"/l{i}"
    assert read(vol, path) == b"x"
    vol.symlink(path, "/one-more")
    with fails(errno.ELOOP):
        vol.stat("/one-more")


def test_slashes_at_the_end(vol):
    vol.mkdir("/d/")
    assert vol.isdir("/d/") and vol.isdir("/d/.")
    write(vol, "/f")
    with pytest.raises(NotADirectoryError):
        vol.stat("/f/")
    with pytest.raises(IsADirectoryError):
        vol.create("/new/")
    vol.symlink("d", "/l")
    assert stat.S_ISDIR(vol.lstat("/l/").st_mode)


@pytest.mark.parametrize(
    ("call", "kind", "code"),
    [
        (lambda v: v.open("/gone"), FileNotFoundError, errno.ENOENT),
        (lambda v: v.stat(""), FileNotFoundError, errno.ENOENT),
        (lambda v: v.open("/d"), IsADirectoryError, errno.EISDIR),
        (lambda v: v.mkdir("/d"), FileExistsError, errno.EEXIST),
        (lambda v: v.mkdir("/"), FileExistsError, errno.EEXIST),
        (lambda v: v.makedirs("/d"), FileExistsError, errno.EEXIST),
        (lambda v: v.makedirs("/f", exist_ok=True), FileExistsError, errno.EEXIST),
        (lambda v: v.create("/f", exclusive=True), FileExistsError, errno.EEXIST),
        (lambda v: v.listdir("/f"), NotADirectoryError, errno.ENOTDIR),
        (lambda v: v.stat("/f/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda v: v.rmdir("/f"), NotADirectoryError, errno.ENOTDIR),
        (lambda v: v.unlink("/d"), IsADirectoryError, errno.EISDIR),
        (lambda v: v.rmdir("/"), OSError, errno.EEXIST),
        (lambda v: v.rename("/gone", "/x"), FileNotFoundError, errno.ENOENT),
        (lambda v: v.readlink("/f"), OSError, errno.EINVAL),
        (lambda v: v.getxattr("/f", "user.x"), OSError, errno.ENODATA),
        (lambda v: v.stat("/" + "x" * 256), OSError, errno.ENAMETOOLONG),
        (lambda v: v.stat("/x" * 3000), OSError, errno.ENAMETOOLONG),
        (lambda v: v.truncate("/f", -1), OSError, errno.EINVAL),
        (lambda v: v.open("/f", os.O_RDONLY | os.O_DIRECTORY), NotADirectoryError, errno.ENOTDIR),
    ],
)
def test_errors_are_those_of_os(vol, call, kind, code):
    vol.mkdir("/d")
    write(vol, "/f")
    with pytest.raises(kind) as caught:
        call(vol)
    assert caught.value.errno == code
    assert errno.errorcode[code] in caught.value.strerror
    assert "volume test at localhost" in caught.value.strerror


def test_errors_name_the_paths_as_given(vol):
    with pytest.raises(FileNotFoundError) as caught:
        vol.open("gone/x")
    assert caught.value.filename == "gone/x"
    with pytest.raises(FileNotFoundError) as caught:
        vol.rename("/gone", b"/new")
    assert (caught.value.filename, caught.value.filename2) == ("/gone", b"/new")
    with pytest.raises(FileNotFoundError) as caught:
        vol.mkdir(path="/no/such")
    assert caught.value.filename == "/no/such"
    with vol.create("/f") as file, pytest.raises(OSError, match="EINVAL") as caught:
        file.zerofill(0, 0)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/f")


# -- attributes ------------------------------------------------------------------------------------------------------


def test_stat_looks_like_os_stat(vol):
    write(vol, "/f", b"abc")
    found = vol.stat("/f")
    assert stat.S_ISREG(found.st_mode) and found.st_size == found[stat.ST_SIZE] == 3
    assert tuple(found)[:1] == (found.st_mode,) and len(found) == 10
    assert found.st_mtime == pytest.approx(found.st_mtime_ns / 1e9)
    assert len(found.gfid) == 36 and found.gfid in repr(found)
    assert (found.st_uid, found.st_gid) == (os.geteuid(), os.getegid())


def test_chmod_chown_utime(vol):
    write(vol, "/f")
    vol.symlink("f", "/l")
    vol.chmod("/l", 0o4711)
    vol.chown("/f", 11, -1)
    vol.chown("/f", -1, 22)
    vol.utime("/f", ns=(5, 1_500_000_000_123_456_789))
    found = vol.stat("/f")
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o4711, 11, 22)
    assert (found.st_atime_ns, found.st_mtime_ns) == (5, 1_500_000_000_123_456_789)
    vol.utime("/f", (1.5, 2.25))
    assert (vol.stat("/f").st_atime, vol.stat("/f").st_mtime) == (1.5, 2.25)
    vol.utime("/f")
    assert vol.stat("/f").st_mtime > 1_600_000_000
    with pytest.raises(ValueError, match="not both"):
        vol.utime("/f", (1, 2), ns=(1, 2))
    vol.chown("/l", 33, 33, follow_symlinks=False)
    assert vol.lstat("/l").st_uid == 33 and vol.stat("/l").st_uid == 11


def test_umask_and_users(vol):
    vol.mkdir("/open", 0o777)
    assert stat.S_IMODE(vol.stat("/open").st_mode) == 0o755
    other = vol.using(uid=1000, gid=1001, umask=0o077)
    other.mkdir("/mine")
    found = vol.stat("/mine")
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1000, 1001, 0o700)
    assert other.using(groups=(5,)).stat("/mine").st_uid == 1000


def test_xattrs(vol):
    write(vol, "/f")
    vol.setxattr("/f", "user.a", b"1")
    vol.setxattr("/f", b"user.b", b"\xff\0")
    assert (vol.getxattr("/f", "user.a"), vol.getxattr("/f", b"user.b")) == ("1", b"\xff\0")
    assert sorted(vol.listxattr("/f")) == ["user.a", "user.b"]
    with pytest.raises(FileExistsError):
        vol.setxattr("/f", "user.a", b"2", os.XATTR_CREATE)
    vol.setxattr("/f", "user.a", b"3", os.XATTR_REPLACE)
    vol.removexattr("/f", "user.b")
    assert vol.listxattr("/f") == ["user.a"]
    with vol.open("/f", "r+b") as file:
        file.setxattr("user.c", b"4")
        assert (file.getxattr(b"user.a"), file.getxattr("user.c")) == (b"3", "4")
        file.removexattr("user.a")
        assert file.listxattr() == ["user.c"]
    with pytest.raises(ValueError, match="no name"):
        vol.getxattr("/f", "")


def test_statvfs(vol):
    found = vol.statvfs()
    assert found.f_bsize > 0 and 0 < found.free <= found.total and found.f_namemax == 255


def test_truncate(vol):
    write(vol, "/f", b"abcdef")
    vol.truncate("/f", 3)
    assert read(vol, "/f") == b"abc"
    vol.truncate("/f", 5)
    assert read(vol, "/f") == b"abc\0\0"


def test_mknod(vol):
    vol.mknod("/f")
    vol.mknod("/p", stat.S_IFIFO | 0o640)
    assert vol.isfile("/f") and stat.S_ISFIFO(vol.stat("/p").st_mode)


# -- directories -----------------------------------------------------------------------------------------------------


def test_scandir(vol):
    vol.mkdir("/d")
    write(vol, "/f", b"abc")
    vol.symlink("f", "/l")
    vol.symlink("d", "/ld")
    with vol.scandir("/") as entries:
        found = {entry.name: entry for entry in entries}
    assert set(found) == {"d", "f", "l", "ld"}
    assert found["f"].path == "/f" and os.fspath(getattr(found["f"], "_target", found["f"])) == "/f"
    assert found["d"].is_dir() and not found["d"].is_file()
    assert found["f"].is_file() and found["f"].stat().st_size == 3
    assert found["f"].inode() == vol.stat("/f").st_ino
    assert found["l"].is_symlink() and found["l"].is_file(follow_symlinks=True) and not found["l"].is_file()
    assert found["ld"].is_dir(follow_symlinks=True) and not found["ld"].is_dir()
    assert found["l"].stat(follow_symlinks=True).st_size == 3 and stat.S_ISLNK(found["l"].stat().st_mode)
    with pytest.raises(FileNotFoundError):
        list(vol.scandir("/gone"))


def test_a_directory_of_many(vol):
    vol.mkdir("/d")
    for i in range(3000):
        vol.mknod(f"/d/{i:05}-{'x' * 40}")
    names = vol.listdir("/d")
    assert len(names) == 3000 and len(set(names)) == 3000
    some = []
    for entry in vol.scandir("/d"):
        some.append(entry.name)
        if len(some) == 10:
            break
    assert len(set(some)) == 10


def test_walk(vol):
    vol.makedirs("/a/b")
    vol.mkdir("/a/c")
    write(vol, "/a/f")
    vol.symlink("b", "/a/l")
    down = {top: (sorted(dirs), sorted(files)) for top, dirs, files in vol.walk("/a")}
    assert down == {"/a": (["b", "c"], ["f", "l"]), "/a/b": ([], []), "/a/c": ([], [])}
    assert [top for top, _, _ in vol.walk("/a", topdown=False)][-1] == "/a"
    followed = [top for top, _, _ in vol.walk("/a", followlinks=True)]
    assert sorted(followed) == ["/a", "/a/b", "/a/c", "/a/l"]
    errors = []
    assert list(vol.walk("/gone", onerror=errors.append)) == []
    assert [type(error) for error in errors] == [FileNotFoundError]
    pruned = []
    for top, dirs, _ in vol.walk("/a"):
        pruned.append(top)
        dirs[:] = [name for name in dirs if name != "b"]
    assert sorted(pruned) == ["/a", "/a/c"]


# -- the cache of directories ----------------------------------------------------------------------------------------


def test_a_directory_that_was_replaced(vol):
    vol.makedirs("/a/b")
    write(vol, "/a/b/f", b"old")
    assert read(vol, "/a/b/f") == b"old"
    vol.rename("/a/b", "/gone")
    vol.mkdir("/a/b")
    with pytest.raises(FileNotFoundError):
        vol.stat("/a/b/f")
    write(vol, "/a/b/f", b"new")
    assert (read(vol, "/a/b/f"), read(vol, "/gone/f")) == (b"new", b"old")


def test_a_directory_that_somebody_else_replaced(vol):
    vol.makedirs("/a/b")
    write(vol, "/a/b/f", b"old")
    session = vol._core.session
    known = dict(session.dentries._known)
    vol.rmtree("/a")
    vol.makedirs("/a/b")
    write(vol, "/a/b/f", b"new")
    # What another client did would leave the cache as it was.
    session.dentries._known.clear()
    session.dentries._known.update({key: (gfid, session.reactor.time() + 60) for key, (gfid, _) in known.items()})
    assert read(vol, "/a/b/f") == b"new"
    vol.mkdir("/a/b/c")
    assert vol.isdir("/a/b/c")


# -- opening a volume ------------------------------------------------------------------------------------------------


def test_sources(tmp_path):
    text = "volume store\n type storage/memory\nend-volume\n"
    path = tmp_path / "mine.vol"
    path.write_text(text)
    with Volume(path) as vol:
        vol.mkdir("/x")
        assert (vol.name, vol.listdir()) == ("mine", ["x"])
        assert not vol.closed
    assert vol.closed
    vol.close()
    with Volume(text, "other") as vol:
        assert vol.name == "other" and "other" in repr(vol)
    assert Source.of("gluster://h1,h2:5/vm/x").volume == "vm"
    assert Source.of(["h1", "h2"], "vm").addresses[1].host == "h2"
    with pytest.raises(ValueError, match="name the volume"):
        Source.of("somehost")
    with pytest.raises(FileNotFoundError):
        Source.of("/no/such/file.vol")
    with pytest.raises(ValueError, match="gluster://host/volume"):
        Source.of("http://host/vm")


def test_a_volfile_that_cannot_run():
    with pytest.raises(ValueError, match=r"capacty.*capacity"):
        Volume("volume store\n type storage/memory\n option capacty 5\nend-volume\n")


def test_calls_after_close():
    vol = Volume.memory()
    file = vol.create("/f")
    vol.close()
    with pytest.raises(RuntimeError, match="closed"):
        vol.stat("/f")
    with pytest.raises(RuntimeError, match="closed"):
        file.pread(1, 0)
    file.close()
    assert file.closed
