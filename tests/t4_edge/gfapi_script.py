"""Runs in a volume's network: gfapi, both faces, against whoever serves it. Usage: gfapi_script.py URL-OF-A-FOLDER"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import stat
import sys
import tarfile
import threading
import time

from glustx.gfapi import AsyncVolume, Volume, parse_url

GIB = 1 << 30
DATA = os.urandom(1 << 20) * 5


def code_of(call, *args, **kwargs) -> str:
    """The name of the errno that a call fails with."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "none"


def names(vol: Volume, top: str) -> None:
    vol.makedirs(f"{top}/a/b")
    with vol.create(f"{top}/a/b/f") as file:
        file.write(b"hello")
    vol.link(f"{top}/a/b/f", f"{top}/a/g")
    vol.symlink("b/f", f"{top}/a/l")
    assert vol.stat(f"{top}/a/l").st_nlink == 2 and vol.readlink(f"{top}/a/l") == "b/f"
    assert {e.name: e.is_dir() for e in vol.scandir(f"{top}/a")} == {"b": True, "g": False, "l": False}
    vol.rename(f"{top}/a/g", f"{top}/a/b/f2")
    assert sorted(vol.listdir(f"{top}/a/b")) == ["f", "f2"]
    strange = f"{top}/" + os.fsdecode(b"\xff\xfe") + "x" * 200
    vol.mkdir(strange)
    assert os.path.basename(strange) in vol.listdir(top)
    for i in range(300):
        vol.mknod(f"{strange}/{i:03}")
    assert sorted(vol.listdir(strange)) == [f"{i:03}" for i in range(300)]
    found = [
        code_of(vol.open, f"{top}/gone"),
        code_of(vol.mkdir, f"{top}/a"),
        code_of(vol.rmdir, f"{top}/a"),
        code_of(vol.unlink, f"{top}/a"),
        code_of(vol.listdir, f"{top}/a/b/f"),
        code_of(vol.getxattr, f"{top}/a", "user.none"),
        code_of(vol.stat, f"{top}/" + "x" * 256),
    ]
    assert found == ["ENOENT", "EEXIST", "ENOTEMPTY", "EISDIR", "ENOTDIR", "ENODATA", "ENAMETOOLONG"], found
    vol.rmtree(strange)
    assert not vol.exists(strange)


def attributes(vol: Volume, top: str) -> None:
    path = f"{top}/attrs"
    began = time.time_ns()
    vol.create(path).close()
    # Times are the client's: a brick that stamped none would show the epoch, or its own file's.
    assert abs(vol.stat(path).st_mtime_ns - began) < 60 * 10**9
    vol.chmod(path, 0o640)
    vol.chown(path, 11, 22)
    vol.utime(path, ns=(10**18 + 1, 10**18 + 2))
    found = vol.stat(path)
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o640, 11, 22)
    assert (found.st_atime_ns, found.st_mtime_ns) == (10**18 + 1, 10**18 + 2)
    with vol.open(path, "r+b") as file:
        file.write(b"x")
    assert abs(vol.stat(path).st_mtime_ns - time.time_ns()) < 60 * 10**9
    vol.setxattr(path, "user.a", b"1\0\xff")
    assert vol.getxattr(path, b"user.a") == b"1\0\xff" and "user.a" in vol.listxattr(path)
    vol.removexattr(path, "user.a")
    assert code_of(vol.getxattr, path, "user.a") == "ENODATA"
    assert vol.statvfs(path).total > 0


def data(vol: Volume, top: str) -> dict[str, float]:
    path = f"{top}/data"
    with vol.create(path) as file:
        assert file.pwrite(DATA, 3) == len(DATA) and file.pread(len(DATA), 3) == DATA
        file.zerofill(10, 10001)
        assert file.pread(10100, 0) == bytes(3) + DATA[:7] + bytes(10001) + DATA[10008:10097]
        file.discard(1 << 20, 1 << 20)
        assert file.pread(1 << 20, 1 << 20) == bytes(1 << 20)
        file.truncate(0)
        file.fallocate(1, 0, 1 << 20)
        assert file.stat().st_size == 0
        file.truncate(4 << 20)
        file.pwrite(b"x" * 65536, 1 << 20)
        file.fsync()
        assert file.seek_data(file.seek_hole(0)) == 1 << 20
        with vol.create(f"{path}2") as target:
            assert file.copy_file_range(target, 65536, 1 << 20, 5) == 65536
            assert target.pread(65540, 0) == bytes(5) + b"x" * 65535
        assert code_of(file.zerofill, 0, 0) == "EINVAL"
        assert code_of(file.seek_data, 4 << 20) == "ENXIO"
    with vol.open(path) as file:
        assert code_of(file.zerofill, 0, 1) == "EBADF"
    with vol.open(path, "ab") as one, vol.open(path, "ab") as two:
        one.truncate(0)
        for i in range(3):
            one.write(b"a%d" % i)
            two.write(b"b%d" % i)
    with vol.open(path) as file:
        assert file.read() == b"a0b0a1b1a2b2"
    with vol.create(f"{path}.tar") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
        member = tarfile.TarInfo("inner")
        member.size = len(DATA)
        tar.addfile(member, io.BytesIO(DATA))
    with vol.open(f"{path}.tar") as raw, tarfile.open(fileobj=io.BufferedReader(raw)) as tar:
        assert tar.extractfile("inner").read() == DATA
    with vol.create(f"{path}.img") as file:
        began = time.monotonic()
        file.zerofill(0, GIB)
        seconds = time.monotonic() - began
        assert file.stat().st_size == GIB and file.stat().st_blocks * 512 >= GIB
        vol.unlink(f"{path}.img")
        assert file.pread(10, GIB - 5) == bytes(5)
    return {"zerofill_1gib_seconds": round(seconds, 4)}


def copies(vol: Volume, top: str) -> None:
    tib, folder = 1 << 40, f"{top}/copies"
    marks = {0: b"begin", 3 * tib + 12345: b"middle", 5 * tib - 7: b"the end"}
    vol.mkdir(folder)
    with vol.create(f"{folder}/sparse") as file:
        file.truncate(5 * tib)
        for at, data in marks.items():
            file.pwrite(data, at)
    vol.utime(f"{folder}/sparse", ns=(10**18 + 1, 10**18 + 2))
    for size in (0, 1, 4097):
        with vol.create(f"{folder}/{size}") as file:
            file.write(DATA[:size])
    vol.symlink("1", f"{folder}/link")
    vol.copytree(folder, f"{folder}-2", symlinks=True)
    with vol.open(f"{folder}-2/sparse") as file:
        found = file.stat()
        assert (found.st_size, found.st_mtime_ns) == (5 * tib, 10**18 + 2) and found.st_blocks * 512 < 1 << 20
        assert all(file.pread(len(data), at) == data for at, data in marks.items())
        assert file.seek_data(1 << 20) > 2 * tib and file.seek_hole(0) < 1 << 20
    for size in (0, 1, 4097):
        with vol.open(f"{folder}-2/{size}") as file:
            assert file.read() == DATA[:size] and file.read(5) == b""
    assert vol.readlink(f"{folder}-2/link") == "1"
    vol.rmtree(folder)
    vol.rmtree(f"{folder}-2")


def as_libgfapi_has_it(vol: Volume, top: str) -> None:
    folder = os.fsencode(top) + b"/\xff\xfe"
    vol.mkdir(folder)
    with vol.open(folder + b"/\xfd", "wb") as file:
        file.write(b"1")
    vol.rename(folder + b"/\xfd", folder + b"/\xfc")
    assert vol.listdir(folder) == [b"\xfc"] and vol.listdir(os.fsdecode(folder)) == ["\udcfc"]
    vol.chdir(folder)
    assert vol.getcwd() == os.fsdecode(folder) and vol.getsize("\udcfc") == 1
    file = vol.fopen(b"\xfc", "r+")
    twin = file.dup()
    file.close()
    assert twin.fgetsize() == 1 and twin.read() == b"1" and twin.read() == b""
    twin.close()
    vol.chdir("/")
    vol.utime(folder, None)
    assert abs(vol.getmtime(folder) - time.time()) < 60
    vol.setxattr(folder, "user.text", "caf\u00e9")
    assert vol.getxattr(folder, "user.text") == "caf\u00e9" and vol.getxattr(folder, b"user.text") == b"caf\xc3\xa9"
    assert code_of(vol.getxattr, folder, "user.text", 2) == "ERANGE"
    assert {entry.d_name for entry in vol.opendir(folder)} == {b".", b"..", b"\xfc"}
    vol.chmod(top, 0o777)
    vol.setfsuid(1000)
    vol.setfsgid(1001)
    vol.mkdir(f"{top}/theirs")
    found = vol.stat(f"{top}/theirs")
    vol.setfsuid(0)
    vol.setfsgid(0)
    assert (found.st_uid, found.st_gid) == (1000, 1001)
    assert vol.get_volume_id().version == 4


def locks(vol: Volume, other: Volume, top: str) -> None:
    path = f"{top}/locks"
    vol.create(path).close()
    with vol.open(path, "r+b") as mine, other.open(path, "r+b") as theirs:
        mine.lock(start=0, length=10)
        assert code_of(theirs.lock, blocking=False) == "EAGAIN"
        theirs.lock(start=10, length=10, blocking=False)
        assert theirs.test_lock().exclusive
        got = threading.Event()
        thread = threading.Thread(target=lambda: (theirs.lock(start=0, length=10), got.set()))
        thread.start()
        assert mine.stat().st_size == 0 and not got.wait(0.05)
        mine.unlock(0, 10)
        assert got.wait(60)
        thread.join()


def threads(vol: Volume, top: str) -> None:
    vol.mkdir(f"{top}/threads")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for i in range(20):
                with vol.create(f"{top}/threads/{number}-{i}") as file:
                    file.write(bytes([number]) * 5000)
                    assert file.pread(5000, 0) == bytes([number]) * 5000
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failures == [] and len(vol.listdir(f"{top}/threads")) == 120


async def asynchronous(url: object, top: str) -> None:
    async with AsyncVolume(url) as vol, await vol.create(f"{top}/async") as file:

        async def work(number: int) -> None:
            block = bytes([number + 1]) * 4096
            for i in range(number, 640, 32):
                await file.pwrite(block, i << 12)
                assert await file.pread(4096, i << 12) == block

        await asyncio.gather(*(work(n) for n in range(32)))
        assert (await file.stat()).st_size == 640 << 12
        assert [entry.name async for entry in vol.scandir(f"{top}/threads") if entry.name.startswith("5-1")]


def main() -> None:
    url = parse_url(sys.argv[1])
    with Volume(url) as vol, Volume(url) as other:
        vol.makedirs(url.path)
        names(vol, url.path)
        attributes(vol, url.path)
        report = data(vol, url.path)
        copies(vol, url.path)
        as_libgfapi_has_it(vol, url.path)
        locks(vol, other, url.path)
        threads(vol, url.path)
        asyncio.run(asynchronous(url, url.path))
        vol.rmtree(url.path)
        assert vol.listdir("/") == [], vol.listdir("/")
    print(json.dumps(report))


main()
