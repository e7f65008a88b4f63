"""gfapi's copies and trees, on both faces: content, holes, attributes, what is in the way, names that are not UTF-8."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import shutil
import stat
import sys

import pytest

from glustx.errors import FopError
from glustx.gfapi import AsyncVolume, Error, Volume
from glustx.gfapi.file import FileCore
from tests.t2_graph.gfapi_faces import Waited, fails, open_faces

TIB = 1 << 40
STRANGE = b"\xff\xfe\n caf\xe9"


@pytest.fixture(params=["blocking", "async"])
def vol(request):
    yield from open_faces(request.param)


@pytest.fixture(params=["blocking", "async"])
def disk(request, tmp_path):
    """A volume on a file system, for what needs real holes."""
    (tmp_path / "brick").mkdir()
    if request.param == "blocking":
        with Volume(tmp_path / "brick") as volume:
            yield volume
        return
    loop = asyncio.new_event_loop()
    with Waited(loop, AsyncVolume(tmp_path / "brick")) as volume:
        yield volume
    loop.close()


def write(vol, path, data=b""):
    with vol.create(path) as file:
        file.write(data)


def read(vol, path):
    with vol.open(path) as file:
        return file.read()


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 4097, (5 << 20) + 3])
def test_copies_of_all_sizes(vol, size):
    data = os.urandom(size)
    write(vol, "/f", data)
    vol.chmod("/f", 0o4750)
    vol.utime("/f", ns=(10**18 + 1, 10**18 + 2))
    vol.copyfile("/f", "/plain")
    vol.copy("/f", b"/mode")
    vol.copy2("/f", "/all")
    assert [read(vol, path) for path in ("/plain", "/mode", "/all")] == [data] * 3
    assert stat.S_IMODE(vol.stat("/mode").st_mode) == stat.S_IMODE(vol.stat("/all").st_mode) == 0o4750
    found = vol.stat("/all")
    assert (found.st_atime_ns, found.st_mtime_ns) == (10**18 + 1, 10**18 + 2)
    assert vol.stat("/mode").st_mtime_ns != 10**18 + 2
    write(vol, "/plain", data + b"longer")
    vol.copyfile("/f", "/plain")
    assert read(vol, "/plain") == data


def test_a_sparse_file_of_5_tib_stays_sparse(disk):
    marks = {0: b"begin", (1 << 30) + 5: b"x" * 100_000, 3 * TIB + 12345: b"middle", 5 * TIB - 7: b"the end"}
    with disk.create("/big") as file:
        file.truncate(5 * TIB)
        for at, data in marks.items():
            file.pwrite(data, at)
    disk.copy2("/big", "/copy")
    found = disk.stat("/copy")
    assert found.st_size == 5 * TIB and found.st_blocks * 512 < 1 << 20
    with disk.open("/copy") as file, disk.open("/big") as source:
        for at, data in marks.items():
            assert file.pread(len(data), at) == data
        for at in (0, 1 << 20, 4 * TIB):
            assert (file.seek_data(at), file.seek_hole(at)) == (source.seek_data(at), source.seek_hole(at))


def test_a_hole_at_the_end_and_nothing_else(disk):
    with disk.create("/tail") as file:
        file.write(b"data")
        file.truncate(1 << 30)
    with disk.create("/hole") as file:
        file.truncate(12345)
    disk.copyfile("/tail", "/tail2")
    disk.copyfile("/hole", "/hole2")
    with disk.open("/tail2") as file:
        assert file.pread(10, 0) == b"data" + bytes(6) and file.stat().st_size == 1 << 30
        assert file.stat().st_blocks * 512 <= 65536
    # A block of attributes is all it may have.
    assert disk.stat("/hole2").st_size == 12345 and disk.stat("/hole2").st_blocks <= 8


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV])
def test_a_brick_that_can_neither_copy_nor_seek(vol, monkeypatch, code):
    """Then the data goes through this process, and arrives all the same."""

    async def cannot(*args):
        raise FopError(code)

    monkeypatch.setattr(FileCore, "_seek", cannot)
    # The methods of the faces were made before: what they call is the request.
    asked = []
    top = FileCore.__init__

    def init(self, *args, **kwargs):
        top(self, *args, **kwargs)
        below = self.top

        async def send(request):
            if request.name in ("copy_file_range", "seek"):
                asked.append(request.name)
                raise FopError(code)
            return await below(request)

        self.top = send

    monkeypatch.setattr(FileCore, "__init__", init)
    data = os.urandom((9 << 20) + 11)
    write(vol, "/f", data)
    vol.copyfile("/f", "/g")
    assert read(vol, "/g") == data and "copy_file_range" in asked


def test_errors_of_a_copy_are_not_taken_for_a_brick_that_cannot(vol, monkeypatch):
    write(vol, "/f", b"data")
    top = FileCore.__init__

    def init(self, *args, **kwargs):
        top(self, *args, **kwargs)
        below = self.top

        async def send(request):
            if request.name == "copy_file_range":
                raise FopError(errno.ENOSPC)
            return await below(request)

        self.top = send

    monkeypatch.setattr(FileCore, "__init__", init)
    with fails(errno.ENOSPC):
        vol.copyfile("/f", "/g")


def test_what_cannot_be_copied(vol):
    write(vol, "/f", b"precious")
    vol.link("/f", "/same")
    vol.symlink("f", "/link")
    vol.mkdir("/d")
    vol.mknod("/pipe", stat.S_IFIFO | 0o600)
    for other in ("/f", "/same", "/link"):
        with pytest.raises(Error, match="same file"):
            vol.copyfile("/f", other)
    assert read(vol, "/f") == b"precious"
    with pytest.raises(Error, match="neither a file nor a directory"):
        vol.copyfile("/pipe", "/x")
    with fails(errno.EISDIR):
        vol.copyfile("/d", "/x")
    with fails(errno.EISDIR):
        vol.copyfile("/f", "/d")
    with fails(errno.ENOENT):
        vol.copyfile("/gone", "/x")
    with fails(errno.ENOENT):
        vol.copyfile("/f", "/gone/x")
    assert not vol.exists("/x")


# -- trees -----------------------------------------------------------------------------------------------------------


def plant(vol, top="/t"):
    vol.makedirs(f"{top}/one/deep")
    vol.mkdir(f"{top}/two", 0o711)
    for path in ("f", "one/g", "one/deep/h"):
        write(vol, f"{top}/{path}", path.encode())
    vol.symlink("one", f"{top}/link")
    vol.utime(f"{top}/two", (1000, 2000))
    vol.utime(f"{top}/one", (3000, 4000))


def shape(vol, top):
    return sorted((at[len(top) :], sorted(dirs), sorted(files)) for at, dirs, files in vol.walk(top))


def test_copytree(vol):
    plant(vol)
    vol.copytree("/t", "/new/copy", symlinks=True)
    assert shape(vol, "/new/copy") == shape(vol, "/t") and vol.readlink("/new/copy/link") == "one"
    assert read(vol, "/new/copy/one/deep/h") == b"one/deep/h"
    assert stat.S_IMODE(vol.stat("/new/copy/two").st_mode) == 0o711
    assert (vol.getmtime("/new/copy/two"), vol.getmtime("/new/copy/one")) == (2000, 4000)
    vol.copytree("/t", "/followed")
    assert not vol.islink("/followed/link") and read(vol, "/followed/link/g") == b"one/g"
    with fails(errno.EEXIST):
        vol.copytree("/t", "/followed")
    with fails(errno.ENOENT):
        vol.copytree("/gone", "/x")
    assert not vol.exists("/x")


def test_copytree_leaves_out_what_it_is_told(vol):
    plant(vol)
    seen = []

    def ignore(folder, names):
        seen.append(folder)
        return shutil.ignore_patterns("h", "two")(folder, names)

    vol.copytree("/t", "/c", ignore=ignore, symlinks=True)
    assert shape(vol, "/c") == [("", ["one"], ["f", "link"]), ("/one", ["deep"], ["g"]), ("/one/deep", [], [])]
    assert sorted(seen) == ["/t", "/t/one", "/t/one/deep"]


def test_copytree_into_itself_ends(vol):
    plant(vol)
    vol.copytree("/t", "/t/one/deep/copy", symlinks=True)
    assert sorted(vol.listdir("/t/one/deep/copy/one/deep")) == ["h"]


def test_copytree_goes_on_and_tells_all_that_failed(vol):
    plant(vol)
    vol.symlink("nowhere", "/t/dead")
    vol.mknod("/t/one/pipe", stat.S_IFIFO | 0o600)
    with pytest.raises(Error) as caught:
        vol.copytree("/t", "/c")
    failed = {source: reason for source, _, reason in caught.value.args[0]}
    # By the link too, which is followed.
    assert set(failed) == {"/t/dead", "/t/one/pipe", "/t/link/pipe"} and "ENOENT" in failed["/t/dead"]
    assert read(vol, "/c/one/deep/h") == b"one/deep/h"


def test_rmtree(vol):
    plant(vol)
    vol.symlink("/t", "/way")
    with pytest.raises(NotADirectoryError):
        vol.rmtree("/way")
    with pytest.raises(NotADirectoryError):
        vol.rmtree("/t/f")
    assert vol.exists("/t/one/deep/h")
    vol.rmtree("/t")
    assert vol.listdir("/") == ["way"]
    with pytest.raises(FileNotFoundError):
        vol.rmtree("/t")
    vol.rmtree("/t", ignore_errors=True)
    plant(vol)
    vol.rmtree("/")
    assert vol.listdir("/") == []


def test_rmtree_asks_what_to_do(vol):
    """The callback may use the volume: each step is a call of its own."""
    plant(vol)
    seen = []
    mine = getattr(vol, "_target", vol)

    def onerror(method, path, error):
        assert method.__self__ is mine
        seen.append((method.__name__, path, errno.errorcode[error.errno]))
        if mine is vol:
            assert vol.exists("/t")

    vol.rmtree("/t/gone", onerror=onerror)
    assert seen == [("scandir", "/t/gone", "ENOENT"), ("rmdir", "/t/gone", "ENOENT")]
    del seen[:]
    vol.rmtree("/t/f", onerror=onerror)
    assert seen == [("scandir", "/t/f", "ENOTDIR"), ("rmdir", "/t/f", "ENOTDIR")]


def test_a_deep_tree(vol):
    """Deeper than Python may recurse."""
    path = "/deep" + "/d" * 200
    vol.makedirs(path)
    write(vol, f"{path}/f", b"x")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 150)
    try:
        assert sum(1 for _ in vol.walk("/deep")) == 201
        assert sum(1 for _ in vol.walk("/deep", topdown=False)) == 201
        vol.copytree("/deep", "/copy")
        assert read(vol, f"/copy{path[5:]}/f") == b"x"
        vol.rmtree("/deep")
        vol.rmtree("/copy")
    finally:
        sys.setrecursionlimit(limit)
    assert vol.listdir("/") == []


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_names_that_are_not_utf_8(disk):
    text = os.fsdecode(STRANGE)
    disk.mkdir(b"/" + STRANGE)
    write(disk, b"/" + STRANGE + b"/" + STRANGE, b"1")
    disk.symlink(STRANGE, b"/" + STRANGE + b"/link")
    assert disk.listdir("/") == [text] and disk.listdir(b"/") == [STRANGE]
    assert sorted(disk.listdir(f"/{text}")) == sorted(["link", text])
    assert disk.readlink(f"/{text}/link") == text and disk.readlink(b"/" + STRANGE + b"/link") == STRANGE
    assert disk.realpath(b"/" + STRANGE + b"/link") == b"/" + STRANGE + b"/" + STRANGE
    assert disk.realpath(f"/{text}/link") == f"/{text}/{text}"
    assert {entry.path for entry in disk.scandir(b"/")} == {b"/" + STRANGE}
    assert [name for name, _ in disk.listdir_with_stat(b"/")] == [STRANGE]
    assert list(disk.walk(b"/", topdown=False))[-1] == (b"/", [STRANGE], [])
    disk.rename(f"/{text}/{text}", b"/" + STRANGE + b"2")
    assert read(disk, f"/{text}2") == b"1"
    disk.setxattr(f"/{text}2", os.fsdecode(b"user.\xfe"), b"\0\xff")
    assert disk.listxattr(b"/" + STRANGE + b"2") == [os.fsdecode(b"user.\xfe")]
    assert disk.getxattr(f"/{text}2", b"user.\xfe") == b"\0\xff"
    assert os.fsencode(disk.getxattr(f"/{text}2", os.fsdecode(b"user.\xfe"))) == b"\0\xff"
    with fails(errno.ENOENT):
        disk.open(b"/" + STRANGE + b"/gone")
    disk.copytree(b"/" + STRANGE, "/copy", symlinks=True)
    disk.copy(b"/" + STRANGE + b"2", "/copy")
    assert read(disk, b"/copy/" + STRANGE + b"2") == b"1"
    disk.rmtree(b"/")
    assert disk.listdir("/") == []


def test_paths_know_the_directory_they_start_from(vol):
    vol.makedirs("/a/b")
    write(vol, "/a/b/f", b"1")
    assert vol.getcwd() == "/"
    vol.chdir("a")
    assert vol.getcwd() == "/a" and vol.listdir(".") == ["b"] and read(vol, "b/f") == b"1"
    vol.makedirs("c/d")
    vol.symlink("b/f", "l")
    assert vol.isdir("/a/c/d") and vol.realpath("l") == "/a/b/f"
    other = vol.using()
    other.chdir("c")
    assert (vol.getcwd(), other.getcwd()) == ("/a", "/a/c")
    vol.chdir("..")
    assert vol.getcwd() == "/" and not vol.exists("b")
    with fails(errno.ENOTDIR):
        vol.chdir("/a/b/f")
    with fails(errno.ENOENT):
        vol.chdir("gone")
    assert vol.getcwd() == "/"
