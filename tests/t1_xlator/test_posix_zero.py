"""ZEROFILL, FALLOCATE and DISCARD on a disk with room: contents, sizes, errors, steps, threads, and faults put in."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx import linux
from glustx.xlators.storage import posix_claim
from glustx.xlators.storage.posix_zero import METHODS, discard, fallocate, probe, zerofill, zerofill_steps
from tests.kit import ROOT, Stopwatch, need_peer

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(params=["temporary folder", "tmpfs"])
def folder(request, tmp_path):
    """A folder on whatever the temporary folder is, and one on a tmpfs."""
    if request.param == "temporary folder":
        yield tmp_path
        return
    shm = Path("/dev/shm")
    if probe(shm).fstype != "tmpfs":
        pytest.skip("needs a tmpfs on /dev/shm")
    place = shm / f"glustx-{os.getpid()}-{time.monotonic_ns()}"
    place.mkdir()
    yield place
    for path in place.iterdir():
        path.unlink()
    place.rmdir()


@pytest.fixture(params=METHODS)
def method(request, folder):
    """Each method that the folder's file system has."""
    best = probe(folder).method
    if METHODS.index(request.param) < METHODS.index(best):
        pytest.skip(f"{request.param} is not there; {best} is the best")
    return request.param


@pytest.fixture
def fd(folder):
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT, 0o600)
    yield fd
    os.close(fd)


@contextlib.contextmanager
def opened(folder: Path, flags: int):
    fd = os.open(folder / "file", flags)
    try:
        yield fd
    finally:
        os.close(fd)


def can_direct(path: Path) -> bool:
    """tmpfs has O_DIRECT since Linux 6.6."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def errno_of(call, *args, **kwargs) -> int:
    """The errno that `call` raises; 0 when it succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        return error.errno
    return 0


def usage(fd: int) -> tuple[int, int]:
    os.fsync(fd)
    status = os.fstat(fd)
    return status.st_size, status.st_blocks


def test_unaligned_range_over_a_pattern(fd, method, seeded):
    pattern = seeded.randbytes(20000)
    os.pwrite(fd, pattern, 0)
    zerofill(fd, 3, 10001, method=method, sync=False)
    assert content(fd) == pattern[:3] + bytes(10001) + pattern[10004:]


def test_past_eof_with_a_gap(fd, method):
    os.pwrite(fd, b"\xff" * 11000, 0)
    zerofill(fd, 50000, 4096, method=method, sync=False)
    assert content(fd) == b"\xff" * 11000 + bytes(54096 - 11000)


def test_over_the_end(fd, method):
    os.pwrite(fd, b"\xff" * 10000, 0)
    zerofill(fd, 9000, 2000, method=method, sync=False)
    assert content(fd) == b"\xff" * 9000 + bytes(2000)


def test_blocks_are_allocated(fd, method):
    os.ftruncate(fd, 4 * MIB)
    os.pwrite(fd, b"\xff" * 100000, MIB)
    zerofill(fd, 0, 6 * MIB, method=method, sync=True)
    size, blocks = usage(fd)
    assert size == 6 * MIB
    assert blocks * 512 >= 6 * MIB
    assert not any(content(fd))


def test_dirty_pages_over_preallocated_blocks(fd, method):
    """Data that is only in the page cache, over blocks that the disk still has as unwritten."""
    linux.fallocate(fd, 0, 0, MIB)
    os.pwrite(fd, b"\xff" * MIB, 0)
    zerofill(fd, 1000, MIB - 2000, method=method, sync=False)
    assert content(fd) == b"\xff" * 1000 + bytes(MIB - 2000) + b"\xff" * 1000


def test_file_with_many_holes(fd, method, monkeypatch):
    monkeypatch.setattr(posix_claim, "_MANY_HOLES", 8)
    expected = bytearray(39 * 8192 + 4096)
    for index in range(40):
        os.pwrite(fd, b"\xff" * 4096, index * 8192)
        expected[index * 8192 : index * 8192 + 4096] = b"\xff" * 4096
    for offset, size in ((5000, 30000), (100, 39 * 8192)):
        zerofill(fd, offset, size, method=method, sync=False)
        expected[offset : offset + size] = bytes(size)
        assert content(fd) == expected


def test_range_is_refused(fd, method):
    os.pwrite(fd, b"data", 0)
    for call in (
        lambda offset, size: zerofill(fd, offset, size, method=method, sync=False),
        lambda offset, size: fallocate(fd, offset, size, keep_size=False),
        lambda offset, size: discard(fd, offset, size),
    ):
        assert errno_of(call, 0, 0) == errno.EINVAL
        assert errno_of(call, 100, 0) == errno.EINVAL
        assert errno_of(call, -1, 10) == errno.EINVAL
        assert errno_of(call, 0, -10) == errno.EINVAL
        assert errno_of(call, -(2**63), -(2**63)) == errno.EINVAL
        assert errno_of(call, 2**63 - 1, 1) == errno.EFBIG
        assert errno_of(call, 1, 2**63 - 1) == errno.EFBIG
        assert errno_of(call, 2**64, 2**64) == errno.EFBIG
    assert content(fd) == b"data"


def test_fd_is_refused(folder, fd, method):
    os.pwrite(fd, b"data", 0)
    for flags in (os.O_RDONLY, os.O_PATH):
        with opened(folder, flags) as other:
            assert errno_of(zerofill, other, 0, 4, method=method, sync=False) == errno.EBADF
            assert errno_of(fallocate, other, 0, 4, keep_size=True) == errno.EBADF
            assert errno_of(discard, other, 0, 4) == errno.EBADF
    assert errno_of(zerofill, 2**30, 0, 4, method=method, sync=False) == errno.EBADF
    reader, writer = os.pipe()
    assert errno_of(zerofill, writer, 0, 4, method=method, sync=False) == errno.ENODEV
    os.close(reader)
    os.close(writer)
    assert content(fd) == b"data"


def test_method_is_refused(fd):
    with pytest.raises(ValueError, match="'zero' is none of zero-range, punch, writes"):
        zerofill(fd, 0, 1, method="zero", sync=False)


def test_open_flags_and_offset(folder, fd, method):
    """The kernel's file offset is neither used nor moved; O_APPEND, O_DIRECT and O_WRONLY make no difference."""
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_WRONLY | os.O_DIRECT):
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"\xff" * 9000, 0)
        if flags & os.O_DIRECT and not can_direct(folder / "file"):
            continue
        other = os.open(folder / "file", flags)
        os.lseek(other, 7777, os.SEEK_SET)
        zerofill(other, 101, 5000, method=method, sync=False)
        zerofill(other, 20000, 10, method=method, sync=False)
        assert os.lseek(other, 0, os.SEEK_CUR) == 7777
        os.close(other)
        assert content(fd) == b"\xff" * 101 + bytes(5000) + b"\xff" * 3899 + bytes(20010 - 9000)


def test_unlinked_file(folder, fd, method):
    os.pwrite(fd, b"\xff" * 9000, 0)
    (folder / "file").unlink()
    zerofill(fd, 10, 10000, method=method, sync=False)
    assert content(fd) == b"\xff" * 10 + bytes(10000)


def test_fallocate_keeps_content_and_size(fd):
    os.pwrite(fd, b"\xff" * 5000, 3000)
    fallocate(fd, 0, MIB, keep_size=True)
    assert content(fd) == bytes(3000) + b"\xff" * 5000
    assert os.fstat(fd).st_blocks * 512 >= MIB
    fallocate(fd, 1000, MIB, keep_size=False)
    assert content(fd) == bytes(3000) + b"\xff" * 5000 + bytes(MIB + 1000 - 8000)


def test_discard(fd):
    os.pwrite(fd, b"\xff" * (256 * KIB), 0)
    _, blocks = usage(fd)
    discard(fd, 100, 192 * KIB)
    assert content(fd) == b"\xff" * 100 + bytes(192 * KIB) + b"\xff" * (64 * KIB - 100)
    assert os.fstat(fd).st_blocks <= blocks - (128 * KIB) // 512
    discard(fd, 256 * KIB, MIB)
    assert os.fstat(fd).st_size == 256 * KIB


def test_steps_of_writes(fd):
    os.pwrite(fd, b"\xff" * 300000, 0)
    steps = zerofill_steps(fd, 100, 7 * MIB, method="writes", sync=False, step=2 * MIB)
    assert os.fstat(fd).st_size == 300000  # nothing before the first step
    assert list(steps) == [2 * MIB - 100 + MIB, 5 * MIB - 100, 7 * MIB - 100]
    assert content(fd) == b"\xff" * 100 + bytes(7 * MIB)


def test_native_methods_have_no_steps(folder, fd):
    best = probe(folder).method
    if best == "writes":
        pytest.skip("this file system has no native method")
    assert list(zerofill_steps(fd, 0, 300 * MIB, method=best, sync=False)) == []
    assert os.fstat(fd).st_size == 300 * MIB


@pytest.mark.parametrize("stop", range(5))
def test_stopped_between_steps(fd, stop):
    """The undo covers all steps: size and blocks as before, bytes outside the range as before."""
    os.ftruncate(fd, 2 * MIB)
    os.pwrite(fd, b"\xff" * 100000, 200000)
    before = usage(fd)
    steps = zerofill_steps(fd, 123456, 5 * MIB, method="writes", sync=False, step=MIB)
    for _ in range(stop):
        next(steps)
    steps.close()
    assert usage(fd) == before
    kept = bytes(2 * MIB - 200000 - 100000)
    inside = content(fd)[200000:300000]
    assert content(fd) == bytes(200000) + inside + kept
    assert set(inside) <= {0, 0xFF}
    assert stop or inside == b"\xff" * 100000


def test_stopped_after_others_wrote_before_the_range(fd):
    """What somebody else wrote between the old end and the range, after the file had grown past it, stays."""
    os.pwrite(fd, b"\xff" * 5000, 0)
    steps = zerofill_steps(fd, 3 * MIB + 7, 3 * MIB, method="writes", sync=False, step=MIB)
    next(steps)
    assert os.fstat(fd).st_size > 3 * MIB
    os.pwrite(fd, b"other", MIB)
    steps.close()
    found = content(fd)
    assert MIB + 5 <= len(found) <= 3 * MIB + 7
    assert found[MIB : MIB + 5] == b"other"
    assert os.fstat(fd).st_blocks * 512 < MIB


def test_stopped_after_others_made_the_file_longer(fd):
    os.pwrite(fd, b"\xff" * 5000, 0)
    steps = zerofill_steps(fd, MIB, 3 * MIB, method="writes", sync=False, step=MIB)
    next(steps)
    os.pwrite(fd, b"longer", 10 * MIB)
    steps.close()
    assert content(fd) == b"\xff" * 5000 + bytes(10 * MIB - 5000) + b"longer"
    assert usage(fd)[1] * 512 < MIB


def no_fallocate(patch: pytest.MonkeyPatch, punch: bool = True) -> None:
    """Let the file system look as if it had no fallocate, as ext3 has none, and no hole punching either."""
    real = linux.fallocate

    def fake(fd: int, mode: int, offset: int, length: int) -> None:
        if not punch or not mode & linux.FALLOC_FL_PUNCH_HOLE:
            raise OSError(errno.EOPNOTSUPP, "no such mode here")
        real(fd, mode, offset, length)

    patch.setattr(linux, "fallocate", fake)


def full_after(patch: pytest.MonkeyPatch, room: int) -> None:
    """Let all writes take `room` bytes together, the last one short, and then answer ENOSPC."""
    real, left = os.pwrite, [room]

    def fake(fd: int, data: memoryview, offset: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "full")
        wrote = real(fd, data[: min(len(data), left[0])], offset)
        left[0] -= wrote
        return wrote

    patch.setattr(os, "pwrite", fake)


@pytest.mark.parametrize("room", [0, 1, 5000, 300000, 850000])
def test_writes_without_fallocate_undone(fd, monkeypatch, seeded, room):
    """A hole, data and the growth: holes and growth come first, so the data is whole when they do not fit."""
    pattern = seeded.randbytes(200001)
    os.pwrite(fd, pattern, 300000)
    before = usage(fd)
    with monkeypatch.context() as patch:
        no_fallocate(patch)
        full_after(patch, room)
        assert errno_of(zerofill, fd, 10001, 1000000, method="writes", sync=False) == errno.ENOSPC
    assert usage(fd) == before
    found = content(fd)
    if room < 790000:
        assert found == bytes(300000) + pattern
    else:
        assert len(found) == 500001
        assert not any(found[:300000])
        assert all(now in (0, was) for now, was in zip(found[300000:], pattern, strict=True))


def test_writes_without_fallocate_or_punch_cut_the_growth(fd, monkeypatch):
    os.pwrite(fd, b"\xff" * 200000, 300000)
    with monkeypatch.context() as patch:
        no_fallocate(patch, punch=False)
        full_after(patch, 700000)
        assert errno_of(zerofill, fd, 10001, 1000000, method="writes", sync=False) == errno.ENOSPC
    assert content(fd) == bytes(300000) + b"\xff" * 200000


def test_writes_without_fallocate_refuse_what_cannot_fit(folder, fd, monkeypatch):
    free = os.statvfs(folder)
    size = min((free.f_bfree + 1) * free.f_frsize * 2, 2**62)
    no_fallocate(monkeypatch)
    full_after(monkeypatch, 0)
    expected = (errno.ENOSPC, errno.EFBIG)
    assert errno_of(zerofill, fd, 0, size, method="writes", sync=False) in expected
    assert usage(fd) == (0, 0)


def test_short_writes_are_continued(fd, monkeypatch):
    os.pwrite(fd, b"\xff" * 500000, 0)
    real = os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[: min(len(data), 70001)], at))
        zerofill(fd, 5, 490000, method="writes", sync=False)
    assert content(fd) == b"\xff" * 5 + bytes(490000) + b"\xff" * 9995


def test_writes_without_fallocate(fd, monkeypatch):
    os.pwrite(fd, b"\xff" * 200000, 300000)
    no_fallocate(monkeypatch)
    zerofill(fd, 10001, 400000, method="writes", sync=True)
    zerofill(fd, 600000, 1, method="writes", sync=False)
    assert content(fd) == bytes(410001) + b"\xff" * (500000 - 410001) + bytes(100001)


def test_native_method_that_is_not_there_changes_nothing(fd, monkeypatch):
    os.pwrite(fd, b"\xff" * 5000, 0)
    before = usage(fd)
    no_fallocate(monkeypatch)
    for method in ("zero-range", "punch"):
        assert errno_of(zerofill, fd, 4000, 100000, method=method, sync=False) == errno.EOPNOTSUPP
    assert errno_of(fallocate, fd, 4000, 100000, keep_size=False) == errno.EOPNOTSUPP
    assert usage(fd) == before
    assert content(fd) == b"\xff" * 5000


def test_failed_sync_is_an_error_and_undone(fd, method, monkeypatch):
    os.pwrite(fd, b"\xff" * 5000, 0)
    before = usage(fd)
    with monkeypatch.context() as patch:

        def fdatasync(fd: int) -> None:
            raise OSError(errno.EIO, "disk gone")

        patch.setattr(os, "fdatasync", fdatasync)
        assert errno_of(zerofill, fd, 8192, 300000, method=method, sync=True) == errno.EIO
    assert usage(fd) == before
    assert content(fd) == b"\xff" * 5000


@pytest.mark.logs(r"giving back \[0, 1048576\) failed: .* disk gone")
def test_failed_undo_is_logged(fd, monkeypatch):
    steps = zerofill_steps(fd, 0, MIB, method="writes", sync=False, step=64 * KIB)
    next(steps)

    def ftruncate(fd: int, size: int) -> None:
        raise OSError(errno.EIO, "disk gone")

    monkeypatch.setattr(os, "ftruncate", ftruncate)
    steps.close()


def test_fast_answer_to_huge_ranges(fd, method):
    """What the kernel says to a bare fallocate, at once, and the file is as it was."""
    for offset, size in (
        (2**62, 4096),
        (0, 2**62),
        (2**44, 4096),
        (2**63 - 4097, 4096),
        (1, 2**63 - 2),
        (2**62, 2**61),
    ):
        watch = Stopwatch()
        mine = errno_of(zerofill, fd, offset, size, method=method, sync=False)
        assert watch.seconds() < 5, (offset, size)
        os.ftruncate(fd, 0)
        kernel = errno_of(linux.fallocate, fd, linux.FALLOC_FL_KEEP_SIZE, offset, size)
        os.ftruncate(fd, 0)
        assert mine == kernel, (offset, size)


SYSCALLS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from glustx.xlators.storage.posix_zero import zerofill
folder, method, sync, flags = sys.argv[2], sys.argv[3], sys.argv[4] == "sync", int(sys.argv[5])
fd = os.open(folder + "/traced", os.O_RDWR | os.O_CREAT | flags, 0o600)
zerofill(fd, 0, 1, method=method, sync=False)
os.write(2, b"begin")
zerofill(fd, 4096, 1 << 24, method=method, sync=sync)
os.write(2, b"reply")
os.unlink(folder + "/traced")
"""


@pytest.mark.parametrize(("sync", "flags"), [("sync", 0), ("", os.O_SYNC), ("", os.O_DSYNC), ("", 0)])
def test_system_calls_in_order(folder, method, sync, flags):
    """fdatasync comes after the last change and before the return; a fresh range costs a handful of calls."""
    need_peer("strace")
    traced = subprocess.run(
        ["strace", "-f", "-o", "/dev/stdout", sys.executable, "-c", SYSCALLS, ROOT, folder, method, sync, str(flags)],
        check=True,
        capture_output=True,
        text=True,
    )
    calls = traced.stdout.partition('"begin"')[2].partition('"reply"')[0].splitlines()[1:-1]
    names = [re.split(r"\s+", call.partition("(")[0].strip())[-1] for call in calls]
    changes = [at for at, name in enumerate(names) if name in ("fallocate", "pwrite64")]
    syncs = [at for at, name in enumerate(names) if name == "fdatasync"]
    assert changes
    if sync or flags:
        assert len(syncs) == 1
        assert syncs[0] > changes[-1]
    else:
        assert not syncs
    assert len(names) - names.count("pwrite64") <= 16, calls


def test_threads_write_disjoint_ranges(fd, seeded):
    """8 threads, 1000 rounds, one fd, method writes: only their ranges are zero, whatever the order."""
    threads, part, rounds = 8, 8 * KIB, 1000
    with ThreadPoolExecutor(threads) as pool:
        for number in range(rounds):
            expected = bytearray(seeded.randbytes(1) * (threads * part)).replace(b"\0", b"\1")
            os.pwrite(fd, expected, 0)
            os.lseek(fd, number, os.SEEK_SET)
            ranges = []
            for index in range(threads):
                start, end = sorted(seeded.sample(range(part + 1), 2))
                ranges.append((index * part + start, end - start))
            barrier = threading.Barrier(threads)

            def run(offset: int, size: int, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                zerofill(fd, offset, size, method="writes", sync=False)

            list(pool.map(run, *zip(*ranges, strict=True)))
            for offset, size in ranges:
                expected[offset : offset + size] = bytes(size)
            assert os.pread(fd, threads * part + 1, 0) == expected, number
            assert os.lseek(fd, 0, os.SEEK_CUR) == number


def test_threads_grow_one_file(fd, method):
    """Each thread zeroes its own stretch past the end; all are there, and the file is as long as the last."""
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            os.ftruncate(fd, 0)
            list(pool.map(lambda at: zerofill(fd, at * 100001, 100001, method=method, sync=False), range(8)))
            assert os.fstat(fd).st_size == 800008
            assert os.fstat(fd).st_blocks * 512 >= 800008
            assert not any(content(fd))


def test_probe_leaves_nothing(folder):
    support = probe(folder)
    assert support.method in METHODS
    assert support.block_size == os.statvfs(folder).f_frsize
    assert list(folder.iterdir()) == []
    fd = os.open(folder, os.O_RDONLY)
    assert probe(fd) == probe(bytes(folder)) == support
    os.close(fd)
    assert list(folder.iterdir()) == []


def test_probe_names_the_type():
    assert probe("/dev/shm").fstype == "tmpfs"
    assert probe("/dev/shm").method == "punch"


def test_probe_without_nameless_files(folder, monkeypatch):
    support = probe(folder)
    real = os.open

    def fake(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "no nameless files")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", fake)
    assert probe(folder) == support
    assert list(folder.iterdir()) == []


def test_probe_errors(folder):
    with pytest.raises(FileNotFoundError):
        probe(folder / "none")
    (folder / "plain").touch()
    with pytest.raises(NotADirectoryError):
        probe(folder / "plain")


def test_probe_falls_down_the_ladder(tmp_path, monkeypatch):
    no_fallocate(monkeypatch)
    assert probe(tmp_path).method == "writes"


def test_probe_distrusts_a_mode_that_does_not_zero(tmp_path, monkeypatch):
    """A file system that takes ZERO_RANGE and does nothing is not believed."""
    if probe(tmp_path).method != "zero-range":
        pytest.skip("needs ZERO_RANGE in the temporary folder")
    real = linux.fallocate

    def fake(fd: int, mode: int, offset: int, length: int) -> None:
        if not mode & linux.FALLOC_FL_ZERO_RANGE:
            real(fd, mode, offset, length)

    monkeypatch.setattr(linux, "fallocate", fake)
    assert probe(tmp_path).method == "punch"


span = st.tuples(st.integers(0, 200000), st.integers(1, 100000))
aligned = st.tuples(st.integers(0, 50), st.integers(1, 25)).map(lambda pair: (pair[0] * 4096, pair[1] * 4096))
action = st.tuples(
    st.sampled_from(["write", "keep", "fallocate", "discard", "truncate", *METHODS]), st.one_of(span, aligned)
)


@settings(max_examples=150, database=None)
@given(data=st.lists(action, max_size=8))
@pytest.mark.parametrize("place", ["/dev/shm", "."])
def test_against_a_bytearray(place, tmp_path_factory, data):
    """Any order of changes on one fd reads like the same changes of a bytearray."""
    where = place if place != "." else tmp_path_factory.getbasetemp()
    best = METHODS.index(probe(where).method)
    fd = os.open(where, os.O_TMPFILE | os.O_RDWR, 0o600)
    model = bytearray()
    try:
        for number, (name, (offset, size)) in enumerate(data):
            end = offset + size
            if name == "truncate":
                os.ftruncate(fd, offset)
                model[offset:] = bytes(max(0, offset - len(model)))
            elif name == "discard":
                discard(fd, offset, size)
                model[offset:end] = bytes(max(0, min(end, len(model)) - offset))
            elif name in ("keep", "fallocate"):
                fallocate(fd, offset, size, keep_size=name == "keep")
                if name == "fallocate":
                    model.extend(bytes(max(0, end - len(model))))
            else:
                model.extend(bytes(max(0, end - len(model))))
                if name == "write":
                    model[offset:end] = bytes([number + 1]) * size
                    os.pwrite(fd, model[offset:end], offset)
                else:
                    method = METHODS[max(best, METHODS.index(name))]
                    model[offset:end] = bytes(size)
                    zerofill(fd, offset, size, method=method, sync=False)
            assert os.fstat(fd).st_size == len(model)
        assert content(fd) == model
    finally:
        os.close(fd)
