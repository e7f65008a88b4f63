"""gfapi under libgfapi-python's names, on both faces: how volumes are described, files, directories, logs, who asks;
and the standard library on its files."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import io
import json
import logging
import os
import pathlib
import pickle
import shutil
import stat
import threading
import zipfile

import pytest

from glustx.gfapi import AsyncVolume, Dirent, Error, File, LibgfapiException, StatResult, Volume, VolumeNotMounted
from glustx.gfapi.exceptions import ClosedFile
from tests.t2_graph.gfapi_faces import fails, open_faces

KINDS = pytest.mark.parametrize("kind", [Volume, AsyncVolume])


@pytest.fixture(params=["blocking", "async"])
def vol(request):
    yield from open_faces(request.param)


@pytest.fixture
def memory():
    with Volume.memory() as volume:
        yield volume


def write(vol, path, data=b""):
    with vol.create(path) as file:
        file.write(data)


# -- volumes ---------------------------------------------------------------------------------------------------------


@KINDS
def test_a_volume_described_by_hosts_is_not_mounted_yet(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server").mkdir()
    volume = kind("server", "vm", port=24008)
    assert (volume.hosts, volume.volname, volume.protocol, volume.port) == (["server"], "vm", "tcp", 24008)
    assert (volume.log_file, volume.log_level, volume.volid, volume.mounted) == ("/dev/null", 7, None, False)
    assert [str(address) for address in volume._source.addresses] == ["server:24008"]
    assert "not mounted" in repr(volume)
    with pytest.raises(VolumeNotMounted, match="volume vm is not mounted: mount comes first"):
        volume.graph  # noqa: B018
    with pytest.raises(VolumeNotMounted):
        volume.getcwd()
    # A host is a host, even where a folder has its name.
    assert os.listdir(tmp_path / "server") == []


@KINDS
def test_addresses(kind):
    def addresses(*args, **kwargs):
        return [str(address) for address in kind(*args, **kwargs)._source.addresses]

    assert addresses(["a", "b:5", "[::1]"], "vm", port=7) == ["a:7", "b:5", "[::1]:7"]
    assert addresses("a,b", "vm") == ["a:24007", "b:24007"]
    assert addresses(("a",), "vm") == ["a:24007"]
    assert kind("/run/glusterd.socket", "vm", "unix")._source.addresses[0].path == "/run/glusterd.socket"


@KINDS
@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((None, "vm"), {}, "None"),
        (("host", None), {}, "None"),
        (([], "vm"), {}, "at least one host"),
        (("host", "vm", "rdma"), {}, "rdma"),
        (("host", "vm"), {"port": "24007"}, "port"),
        (("host", "vm"), {"port": 0}, "port"),
    ],
)
def test_descriptions_that_cannot_be(kind, args, options, text):
    with pytest.raises(LibgfapiException, match=text) as caught:
        kind(*args, **options)
    assert isinstance(caught.value, ValueError)


def test_a_mount_that_fails_is_both_errors():
    volume = Volume("127.0.0.1", "vm", port=1, mount_timeout=5)
    with pytest.raises(LibgfapiException) as caught:
        volume.mount()
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOTCONN and not volume.mounted


def test_umount_and_mount_again():
    volume = Volume.memory()
    write(volume, "/f", b"1")
    volume.chdir("/")
    volume.umount()
    volume.umount()
    assert not volume.mounted and volume.closed
    with pytest.raises(VolumeNotMounted, match="it is closed"):
        volume.stat("/f")
    volume.mount()
    # A volume in memory begins anew.
    assert volume.mounted and volume.listdir("/") == []
    with volume:
        pass
    assert not volume.mounted


def test_umask_of_either_form():
    assert Volume("host", "vm")._umask == 0 and AsyncVolume("host", "vm")._umask == 0
    assert Volume("host", "vm", umask=0o077)._umask == 0o077
    with Volume.memory() as volume:
        volume.mkdir("/d")
        assert stat.S_IMODE(volume.stat("/d").st_mode) == 0o755
        with volume.open("/flags", os.O_CREAT | os.O_WRONLY), volume.open("/text", "wb"):
            assert stat.S_IMODE(volume.stat("/flags").st_mode) == 0o755
            assert stat.S_IMODE(volume.stat("/text").st_mode) == 0o644


@pytest.mark.logs("seen|in none")
def test_a_log_file(vol, tmp_path):
    log = logging.getLogger("glustx.gfapi.test")
    before = logging.getLogger("glustx").level
    path = tmp_path / "log"
    try:
        vol.set_logging(path, 5)
        assert (vol.log_file, vol.log_level) == (path, 5)
        log.warning("seen %s", "\udcff")
        log.info("not seen")
        vol.set_logging(str(tmp_path / "other"), 8)
        log.debug("in the other")
        vol.disable_logging()
        log.warning("in none")
        assert "seen \\udcff" in path.read_text() and "not seen" not in path.read_text()
        assert "in the other" in (tmp_path / "other").read_text() and "in none" not in (tmp_path / "other").read_text()
        with pytest.raises(LibgfapiException) as caught:
            vol.set_logging(tmp_path / "gone" / "log", 5)
        assert isinstance(caught.value, OSError) and caught.value.errno == errno.ENOENT
        with pytest.raises(ValueError, match="log level"):
            vol.set_logging(None, 10)
        assert vol.log_file == "/dev/null"
    finally:
        logging.getLogger("glustx").setLevel(before)


# -- files -----------------------------------------------------------------------------------------------------------


def test_fopen(vol):
    with vol.fopen("/f", "w+") as file:
        assert (file.mode, file.name, file.originalpath) == ("w+", "/f", "/f")
        assert file.write("caf\u00e9") == 5 and file.lseek(0, os.SEEK_SET) == 0
        assert file.read() == b"caf\xc3\xa9" and file.read() == b"" and file.read(5) == b""
        assert (file.ftruncate(3), file.fgetsize(), file.fstat().st_size) == (None, 3, 3)
        file.fchmod(0o600)
        file.fchown(7, 8)
        file.fsync()
        file.fdatasync()
        found = vol.stat("/f")
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o600, 7, 8)
        file.fsetxattr("user.a", "1")
        assert (file.fgetxattr("user.a"), file.fgetxattr(b"user.a"), file.flistxattr()) == ("1", b"1", ["user.a"])
        with fails(errno.ERANGE):
            file.flistxattr(3)
        file.fremovexattr("user.a")
        with fails(errno.ENODATA):
            file.fgetxattr("user.a")
    with pytest.raises(ValueError, match="invalid mode"):
        vol.fopen("/f", "rt")
    with pytest.raises(TypeError):
        vol.fopen("/f", os.O_RDONLY)


def test_fallocate_has_the_modes_of_the_system_call(vol):
    write(vol, "/f", b"x" * 8192)
    with vol.open("/f", "r+b") as file:
        file.fallocate(1, 8192, 1 << 20)
        assert file.stat().st_size == 8192
        file.fallocate(3, 0, 10)
        file.fallocate(16, 20, 10)
        assert file.pread(40, 0) == bytes(10) + b"x" * 10 + bytes(10) + b"x" * 10
        file.fallocate(0, 8192, 10)
        assert file.stat().st_size == 8202
        with fails(errno.EOPNOTSUPP):
            file.fallocate(8, 0, 4096)


def test_dup(vol):
    write(vol, "/f", b"0123456789")
    file = vol.open("/f", "r+b")
    file.seek(5)
    twin = file.dup()
    assert (twin.read(3), twin.tell(), file.tell(), twin.name) == (b"012", 3, 5, "/f")
    vol.unlink("/f")
    file.close()
    assert twin.read() == b"3456789" and twin.pwrite(b"x", 0) == 1
    again = twin.dup()
    twin.close()
    assert again.read(2) == b"x1"
    again.close()
    with fails(errno.EBADF):
        again.pread(1, 0)
    with pytest.raises(ClosedFile):
        again.dup()


def test_a_closed_file_is_both_errors(vol):
    file = vol.create("/f")
    file.close()
    file.close()
    for call in (file.read, lambda: file.write(b"x"), lambda: file.lseek(0, 0)):
        with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is below
            call()
        assert caught.value.errno == errno.EBADF and isinstance(caught.value, ValueError)
    for call in (file.fstat, file.fsync, lambda: file.zerofill(0, 1), lambda: file.fgetxattr("user.a")):
        with fails(errno.EBADF):
            call()


def test_a_file_of_a_file_is_the_same(memory):
    file = memory.open("/f", os.O_CREAT | os.O_RDWR)
    with File(file, path="other", mode="own") as same:
        assert same is file and (same.name, same.mode) == ("other", "own")
    with pytest.raises(ValueError, match=r"not what Volume\.open returns"):
        File(5)  # type: ignore[arg-type]


def test_lines(vol):
    long = b"y" * 10_000
    write(vol, "/f", b"one\n\ntwo\n" + long + b"\nend")
    with vol.open("/f") as file:
        assert [file.readline() for _ in range(6)] == [b"one\n", b"\n", b"two\n", long + b"\n", b"end", b""]
        file.seek(0)
        assert [file.readline(2), file.readline(2), file.readline(0)] == [b"on", b"e\n", b""]
        assert file.tell() == 4
        file.seek(9)
        assert file.readline(5000) == long[:5000]


# -- directories -----------------------------------------------------------------------------------------------------


def test_opendir(vol):
    vol.mkdir("/d")
    write(vol, "/d/f", b"abc")
    entries = {entry.d_name: entry for entry in vol.opendir("/d")}
    assert set(entries) == {b".", b"..", b"f"}
    file = entries[b"f"]
    assert isinstance(file, Dirent) and file.d_name[: file.d_reclen] == b"f" and file.d_type == b"\x08"
    assert file.d_ino == vol.stat("/d/f").st_ino and repr(file) == "<Dirent b'f'>"
    pairs = {entry.d_name: found for entry, found in vol.opendir("/d", readdirplus=True)}
    assert isinstance(pairs[b"f"], StatResult) and pairs[b"f"].st_size == 3
    assert pairs[b"."].gfid == vol.stat("/d").gfid and pairs[b".."].gfid == vol.stat("/").gfid
    with vol.opendir("/d") as folder:
        folder.close()
        assert list(folder) == []
    for path, code in (("/gone", errno.ENOENT), ("/d/f", errno.ENOTDIR)):
        with fails(code):
            vol.opendir(path)
    assert [(name, found.st_size) for name, found in vol.listdir_with_stat("/d")] == [("f", 3)]


def test_errors_in_the_way_of_names(vol):
    vol.makedirs("/full/d")
    write(vol, "/f")
    vol.symlink("loop", "/loop")
    for call, code in (
        (lambda: vol.rmdir("/full"), errno.ENOTEMPTY),
        (lambda: vol.rename("/full/d", "/full/d/e"), errno.EINVAL),
        (lambda: vol.open("/loop"), errno.ELOOP),
        (lambda: vol.listdir("/loop/x"), errno.ELOOP),
        (lambda: vol.open("/" + "n" * 300, "wb"), errno.ENAMETOOLONG),
        (lambda: vol.open("/full", "r+b"), errno.EISDIR),
        (lambda: vol.open("/full"), errno.EISDIR),
        (lambda: vol.link("/full", "/other"), errno.EPERM),
        (lambda: vol.utime("/gone", None), errno.ENOENT),
    ):
        with fails(code):
            call()
    with pytest.raises(IsADirectoryError) as caught:
        vol.open("/full")
    assert caught.value.filename == "/full"
    for wrong in ("x", 5, (1,), [1, 2]):
        with pytest.raises(TypeError):
            vol.utime("/f", wrong)


def test_files_of_two_volumes_are_no_copy_for_the_brick(memory):
    with Volume.memory() as other, memory.create("/f") as one, other.create("/g") as two:
        one.write(b"data")
        with fails(errno.EXDEV):
            one.copy_file_range(two, 4)
        one.seek(0)
        memory.copyfileobj(one, two, 3)
        assert two.pread(10, 0) == b"data"


# -- who asks --------------------------------------------------------------------------------------------------------


def test_who_asks_is_the_threads_own(memory):
    memory.mkdir("/d", 0o777)
    barrier = threading.Barrier(3)
    failures = []

    def work(number):
        try:
            memory.setfsuid(1000 + number)
            memory.setfsgid(2000 + number)
            memory.setfsgroups([3000 + number])
            for i in range(20):
                barrier.wait(60)
                memory.create(f"/d/{number}-{i}").close()
            found = memory._core.caller
            assert (found.uid, found.gid, found.groups) == (1000 + number, 2000 + number, (3000 + number,))
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    memory.create("/d/mine").close()
    owners = {name: (found.st_uid, found.st_gid) for name, found in memory.listdir_with_stat("/d")}
    assert owners.pop("mine") == (os.geteuid(), os.getegid())
    assert all(owner == (1000 + int(name[0]), 2000 + int(name[0])) for name, owner in owners.items())
    assert len(owners) == 60


def test_who_asks_is_the_tasks_own():
    async def main():
        async with AsyncVolume.memory() as volume:

            async def work(number):
                volume.setfsuid(1000 + number)
                for i in range(10):
                    await volume.mknod(f"/{number}-{i}")
                    await asyncio.sleep(0)

            await asyncio.gather(*(work(n) for n in range(5)))
            await volume.mknod("/mine")
            return {name: found.st_uid for name, found in await volume.listdir_with_stat("/")}

    owners = asyncio.run(main())
    assert owners.pop("mine") == os.geteuid() and len(owners) == 50
    assert all(uid == 1000 + int(name[0]) for name, uid in owners.items())


def test_who_asks_shares_the_directory(memory):
    vol = memory
    vol.makedirs("/a/b")
    vol.setfsuid(1000)
    vol.chdir("/a")
    assert vol.getcwd() == "/a" and vol.isdir("b")
    vol.setfsuid(os.geteuid())
    assert vol.getcwd() == "/a"
    with pytest.raises(RuntimeError, match="task"):
        AsyncVolume.memory().setfsuid(5)
    view = vol.using(uid=5)
    view.mknod("mine")
    assert vol.stat("mine").st_uid == 5 and view.getcwd() == "/a"


# -- the standard library --------------------------------------------------------------------------------------------


def test_paths_like(memory):
    path = pathlib.PurePosixPath("/d")
    memory.mkdir(path)
    write(memory, path / "f", b"1")
    assert memory.listdir(path) == ["f"] and memory.getsize(path / "f") == 1
    for entry in memory.scandir(path):
        assert memory.stat(entry).st_size == 1
    memory.copytree(path, path.with_name("e"))
    memory.rename(path / "f", pathlib.PurePosixPath("/g"))
    assert memory.exists("/e/f") and list(memory.walk(path)) == [("/d", [], [])]


def test_the_standard_library_takes_our_files(memory):
    with memory.fopen("/p", "w+") as file:
        pickle.dump({"a": [1, 2]}, file)
        pickle.dump("second", file)
        file.seek(0)
        assert (pickle.load(file), pickle.load(file)) == ({"a": [1, 2]}, "second")
    with memory.fopen("/j", "w+") as file:
        json.dump({"a": "caf\u00e9"}, file, ensure_ascii=False)
        file.seek(0)
        assert json.load(file) == {"a": "caf\u00e9"}
    with memory.fopen("/z", "w+") as file:
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("inner", b"z" * 100_000)
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            assert archive.read("inner") == b"z" * 100_000
    data = os.urandom(300_000)
    with memory.fopen("/c", "w+") as file:
        shutil.copyfileobj(io.BytesIO(data), file)
        file.seek(0)
        if hasattr(hashlib, "file_digest"):
            assert hashlib.file_digest(file, "sha256").digest() == hashlib.sha256(data).digest()
        file.seek(0)
        assert io.BufferedReader(file, 1000).read() == data
    with memory.fopen("/t", "w") as raw, io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as text:
        text.writelines(f"line {i}\n" for i in range(1000))
    with memory.open("/t") as file:
        assert sum(1 for _ in file) == 1000
    with memory.open("/t") as raw, io.TextIOWrapper(io.BufferedReader(raw), encoding="utf-8") as text:
        assert text.read().count("line") == 1000


def test_an_error_of_a_copy_is_an_oserror():
    assert issubclass(Error, OSError) and issubclass(VolumeNotMounted, LibgfapiException)
