"""gfapi's files over storage/memory: positional and sequential I/O, space, holes, locks; io's own classes on top."""

from __future__ import annotations

import errno
import io
import os
import shutil
import tarfile
import zipfile

import pytest

from glustx.gfapi import File, Volume
from tests.t2_graph.gfapi_faces import fails, open_faces

PATTERN = bytes(range(256)) * 1024


@pytest.fixture(params=["blocking", "async"])
def vol(request):
    yield from open_faces(request.param)


@pytest.fixture
def memory():
    with Volume.memory() as volume:
        yield volume


def test_positional_io(vol):
    with vol.create("/f") as file:
        assert file.pwrite(PATTERN, 10) == len(PATTERN)
        assert file.pread(5, 0) == bytes(5)
        assert file.pread(20, 10) == PATTERN[:20]
        assert file.pread(100, 10 + len(PATTERN)) == b""
        buffer = bytearray(300)
        assert file.preadinto(buffer, 10) == 300
        assert buffer == PATTERN[:300]
        assert file.tell() == 0
        assert file.pread(0, 0) == b""
        for bad in (lambda: file.pread(-1, 0), lambda: file.pread(1, -1), lambda: file.pwrite(b"x", -1)):
            with fails(errno.EINVAL):
                bad()


def test_sequential_io(vol):
    with vol.create("/f") as file:
        assert file.write(b"hello ") == 6
        assert file.write(bytearray(b"world")) == 5
        assert file.tell() == 11
        assert file.seek(0) == 0
        assert file.read(5) == b"hello"
        assert file.read() == b" world"
        assert file.read() == b"" and file.read(5) == b""
        assert file.seek(-5, os.SEEK_END) == 6
        assert file.seek(1, os.SEEK_CUR) == 7
        buffer = bytearray(100)
        assert file.readinto(buffer) == 4 and buffer[:4] == b"orld"
        assert file.truncate(3) == 3 and file.stat().st_size == 3
        file.seek(2)
        assert file.truncate() == 2
        for bad in (lambda: file.seek(-1), lambda: file.seek(0, 99)):
            with fails(errno.EINVAL):
                bad()


def test_more_than_one_request_at_a_time(vol):
    data = PATTERN * 20  # 5 MiB
    with vol.create("/f") as file:
        assert file.pwrite(data, 3) == len(data)
        assert file.pread(len(data), 3) == data
        file.seek(3)
        assert file.read() == data
        buffer = bytearray(len(data))
        assert file.preadinto(buffer, 3) == len(data) and buffer == data


@pytest.mark.parametrize(
    ("mode", "before", "after", "readable", "writable"),
    [
        ("rb", b"old", b"old", True, False),
        ("r+b", b"old", b"NEW", True, True),
        ("wb", b"old", b"NEW", False, True),
        ("w+b", b"old", b"NEW", True, True),
        ("ab", b"old", b"oldNEW", False, True),
        ("a+b", b"old", b"oldNEW", True, True),
        ("xb", None, b"NEW", False, True),
    ],
)
def test_modes(memory, mode, before, after, readable, writable):
    if before is not None:
        with memory.create("/f") as file:
            file.write(before)
    with memory.open("/f", mode) as file:
        assert (file.readable(), file.writable(), file.seekable()) == (readable, writable, True)
        if writable:
            file.write(b"NEW")
            assert file.tell() == len(after)
        else:
            with fails(errno.EBADF):
                file.write(b"NEW")
        if not readable:
            with fails(errno.EBADF):
                file.pread(1, 0)
    with memory.open("/f") as file:
        assert file.read() == after


@pytest.mark.parametrize("mode", ["", "rw", "r+w", "b", "rt", "rbb", "U", "+"])
def test_modes_that_are_none(memory, mode):
    with pytest.raises(ValueError, match="invalid mode"):
        memory.open("/f", mode)


def test_a_mode_for_text_says_how_to_have_text(memory):
    with pytest.raises(ValueError, match=r"io\.TextIOWrapper"):
        memory.open("/f", "rt")


def test_appending_from_two_files(vol):
    with vol.open("/log", "ab") as one, vol.open("/log", "ab") as two:
        for i in range(5):
            one.write(b"a%d" % i)
            two.write(b"b%d" % i)
    with vol.open("/log") as file:
        assert file.read() == b"a0b0a1b1a2b2a3b3a4b4"


def test_zerofill_discard_fallocate(vol):
    with vol.create("/f") as file:
        file.write(PATTERN)
        file.zerofill(3, 10001)
        assert file.pread(10010, 0) == PATTERN[:3] + bytes(10001) + PATTERN[10004:10010]
        assert file.tell() == len(PATTERN)
        file.zerofill(len(PATTERN), 1 << 20)
        assert file.stat().st_size == len(PATTERN) + (1 << 20)
        before = file.stat().st_blocks
        file.discard(0, 1 << 17)
        assert file.stat().st_blocks == before - 256
        file.fallocate(0, 0, 1 << 17)
        assert file.stat().st_blocks == before
        file.fallocate(1, 1 << 21, 1 << 20)
        assert file.stat().st_size == len(PATTERN) + (1 << 20)
        file.fallocate(0, 1 << 21, 1 << 20)
        assert file.stat().st_size == 3 << 20
        for call in (file.zerofill, file.discard, file.allocate):
            for offset, length, code in ((0, 0, errno.EINVAL), (-1, 5, errno.EINVAL), (1 << 62, 5, errno.EFBIG)):
                with fails(code):
                    call(offset, length)


def test_holes(vol):
    with vol.create("/f") as file:
        file.pwrite(b"x" * 4096, 8192)
        file.truncate(20000)
        assert (file.seek_data(0), file.seek_hole(0), file.seek_hole(8192)) == (8192, 0, 12288)
        assert file.seek(0, os.SEEK_DATA) == 8192 and file.tell() == 8192
        assert file.seek(8192, os.SEEK_HOLE) == 12288
        for call in (lambda: file.seek_data(12288), lambda: file.seek_hole(20000), lambda: file.seek_data(-1)):
            with fails(errno.ENXIO):
                call()


def test_copy_file_range(vol):
    with vol.create("/a") as source, vol.create("/b") as target:
        source.write(PATTERN)
        assert source.copy_file_range(target, 1 << 20, 100, 5) == len(PATTERN) - 100
        assert target.pread(1 << 20, 0) == bytes(5) + PATTERN[100:]
        assert source.copy_file_range(target, 10, 1 << 30, 0) == 0


def test_locks(vol):
    vol.create("/f").close()
    with vol.open("/f", "r+b") as one, vol.open("/f", "r+b") as two:
        assert two.test_lock() is None
        one.lock(start=10, length=5)
        found = two.test_lock()
        assert (found.exclusive, found.start, found.length) == (True, 10, 5)
        with pytest.raises(BlockingIOError):
            two.lock(blocking=False)
        two.lock(start=15, length=100, blocking=False)
        two.unlock(15, 100)
        one.unlock()
        two.lock(exclusive=False)
        one.lock(exclusive=False)
        assert one.test_lock(exclusive=False) is None
    with vol.open("/f", "r+b") as three:
        three.lock(blocking=False)  # closing gave the others back


def test_attributes_of_an_open_file(vol):
    with vol.create("/f") as file:
        file.chmod(0o600)
        file.chown(5, 6)
        file.utime(ns=(7, 8))
        found = file.stat()
        assert (found.st_mode & 0o777, found.st_uid, found.st_gid, found.st_atime_ns, found.st_mtime_ns) == (
            0o600,
            5,
            6,
            7,
            8,
        )
        assert found.gfid == file.gfid
        file.fsync()
        file.fsync(data_only=True)


def test_a_file_that_was_unlinked(vol):
    with vol.create("/f") as file:
        vol.unlink("/f")
        file.write(b"abc")
        assert file.pread(10, 0) == b"abc"
        assert file.stat().st_nlink == 0


def test_a_closed_file(vol):
    file = vol.create("/f")
    assert not file.closed
    file.close()
    file.close()
    assert file.closed
    for call in (lambda: file.read(1), lambda: file.write(b""), lambda: file.seek(0), lambda: file.tell()):
        with pytest.raises(ValueError, match="closed file"):
            call()
    with fails(errno.EBADF):
        file.pread(1, 0)


# -- what io and friends make of a File ------------------------------------------------------------------------------


def test_a_file_is_a_raw_io_base(memory):
    with memory.create("/f") as file:
        assert isinstance(file, io.RawIOBase)
        assert (file.name, file.mode, file.isatty()) == ("/f", "rb+", False)
        with pytest.raises(io.UnsupportedOperation):
            file.fileno()
        file.flush()
    with pytest.raises(ValueError, match="closed"):
        file.flush()


def test_buffered_and_text(memory):
    lines = [f"line {i}\n" for i in range(10_000)]
    with memory.create("/f") as raw, io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8") as file:
        file.writelines(lines)
    assert raw.closed
    with io.TextIOWrapper(io.BufferedReader(memory.open("/f")), encoding="utf-8") as file:
        assert list(file) == lines
    with io.BufferedRandom(memory.open("/f", "r+b")) as file:
        file.seek(5)
        file.write(b"X")
        file.seek(0)
        assert file.readline() == b"line X\n"
    with memory.open("/f") as file:
        assert file.readline() == b"line X\n"
        assert file.readlines(1) == [b"line 1\n"]


def test_copies_and_archives(memory, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(PATTERN)
    with memory.create("/t.tar") as raw, tarfile.open(fileobj=raw, mode="w") as tar:
        tar.add(source, "inner")
    with memory.open("/t.tar") as raw, tarfile.open(fileobj=raw) as tar:
        assert tar.extractfile("inner").read() == PATTERN
    with memory.create("/z.zip") as raw, zipfile.ZipFile(raw, "w") as archive:
        archive.write(source, "inner")
    with memory.open("/z.zip") as raw, zipfile.ZipFile(raw) as archive:
        assert archive.read("inner") == PATTERN
    with memory.create("/copy") as target, open(source, "rb") as file:
        shutil.copyfileobj(file, target)
    with memory.open("/copy") as file, open(tmp_path / "back", "wb") as target:
        shutil.copyfileobj(file, target)
    assert (tmp_path / "back").read_bytes() == PATTERN


def test_a_file_that_nobody_closed(memory):
    file = memory.create("/f")
    memory.unlink("/f")
    store = memory.graph.xlators["memory-store"]
    used = store.statedump()["used"]
    file.allocate(0, 1 << 20)
    assert store.statedump()["used"] == used + (1 << 20)
    with pytest.warns(ResourceWarning, match="unclosed <File '/f'"):
        del file
    memory.stat("/")  # whoever calls next runs what the collector left
    assert store.statedump()["used"] == used


def test_a_scan_that_nobody_finished(memory):
    for name in "abc":
        memory.mkdir(f"/{name}")
    entries = memory.scandir("/")
    next(entries)
    del entries
    assert sorted(memory.listdir()) == ["a", "b", "c"]


def test_types():
    assert issubclass(File, io.RawIOBase)
    assert File.zerofill.__doc__ and "reads as zeroes" not in File.discard.__name__
    assert Volume.mkdir.__name__ == "mkdir" and "Make a directory" in Volume.mkdir.__doc__
