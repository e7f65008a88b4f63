"""ZEROFILL and FALLOCATE where space runs out: nearly full ext4, xfs, btrfs, tmpfs and ext3, each on a small disk.

After ENOSPC the size, the file's blocks and the free space are compared with what they were, with nothing pending, and
every byte of the file. What a file system keeps for itself is allowed by name in `Disk.same_usage`.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from glustx import linux
from glustx.xlators.storage.posix_zero import METHODS, fallocate, probe, zerofill, zerofill_steps
from tests.kit import Stopwatch
from tests.loopfs import KINDS, MIB, SIZES, Disk, small_disk

STOPPED = -1
NATIVE = {"ext4": "zero-range", "xfs": "zero-range", "btrfs": "zero-range", "tmpfs": "punch", "ext3": "writes"}


@pytest.fixture(scope="module", params=KINDS)
def disk(request, tmp_path_factory):
    with small_disk(request.param, tmp_path_factory.mktemp("disk")) as disk:
        yield disk


@pytest.fixture
def fd(disk: Disk):
    """A new file on a disk with 40 MiB of free space."""
    disk.leave(40 * MIB)
    fd = os.open(disk.root, os.O_TMPFILE | os.O_RDWR, 0o600)
    yield fd
    os.close(fd)


@pytest.fixture(params=["native", "writes"])
def method(request, disk: Disk) -> str:
    if request.param == "native":
        return NATIVE[disk.kind]
    if NATIVE[disk.kind] == "writes":
        pytest.skip("writes is this file system's native method")
    return "writes"


def content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def errno_of(call, *args, **kwargs) -> int:
    """The errno that `call` raises; 0 when it succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as error:
        return error.errno
    return 0


def test_the_method_of_each_file_system(disk):
    support = probe(disk.root)
    assert (support.method, support.fstype, support.block_size) == (NATIVE[disk.kind], disk.kind, disk.block)
    disk.leave(0)
    assert probe(disk.root) == support  # as it must be: a brick starts on a full disk, too
    assert sorted(path.name for path in disk.root.iterdir() if path.name != "lost+found") == ["ballast"]


def test_as_large_as_the_disk(disk, fd, method):
    os.pwrite(fd, b"\xff" * MIB, 0)
    before = disk.usage(fd)
    size = SIZES[disk.kind] + (disk.kind == "tmpfs")  # all others need some of it for themselves
    assert errno_of(zerofill, fd, 0, size, method=method, sync=False) == errno.ENOSPC
    assert disk.same_usage(before, disk.usage(fd))
    assert content(fd) == b"\xff" * MIB


def test_fallocate_of_twice_the_free_space(disk, fd):
    os.pwrite(fd, b"\xff" * 10000, 0)
    before = disk.usage(fd)
    expected = errno.EOPNOTSUPP if disk.kind == "ext3" else errno.ENOSPC
    for keep_size in (False, True):
        assert errno_of(fallocate, fd, 0, 2 * before.free, keep_size=keep_size) in (expected, errno.ENOSPC)
        assert errno_of(fallocate, fd, 5000, before.free // 4, keep_size=keep_size) in (expected, 0)
        os.ftruncate(fd, 10000)
    assert disk.same_usage(before, disk.usage(fd))
    assert content(fd) == b"\xff" * 10000


def test_holes_data_and_growth_that_do_not_fit(disk, fd, method, seeded):
    """The range has data, a hole, preallocated blocks and a growth; one MiB too little is free."""
    old = bytearray(8 * MIB)
    for at in (0, 3 * MIB + 123, 5 * MIB):
        old[at : at + MIB] = seeded.randbytes(MIB)
        os.pwrite(fd, old[at : at + MIB], at)
    os.ftruncate(fd, 8 * MIB)
    if disk.kind not in ("ext3", "tmpfs"):
        linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 6 * MIB, MIB)
        linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 9 * MIB, MIB)
        linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 20 * MIB, MIB)
    disk.leave(4 * MIB)
    before = disk.usage(fd)
    for offset, size in ((MIB // 2 + 1, 11 * MIB), (7 * MIB, 8 * MIB), (9 * MIB, 9 * MIB + 7)):
        assert errno_of(zerofill, fd, offset, size, method=method, sync=True) == errno.ENOSPC
        assert content(fd) == old
        assert disk.same_usage(before, disk.usage(fd))


def test_own_data_needs_no_space(disk, fd, method):
    """Zeroing what the file has already works on a full disk and keeps the blocks, except where writing is copying."""
    os.pwrite(fd, b"\xff" * (4 * MIB), 0)
    os.fsync(fd)
    disk.leave(0)
    before = disk.usage(fd)
    result = errno_of(zerofill, fd, 100, 3 * MIB, method=method, sync=True)
    if disk.kind == "btrfs":
        assert result == errno.ENOSPC
        assert disk.usage(fd)[:3] == before[:3]
        return
    assert result == 0
    assert disk.usage(fd) == before
    assert content(fd) == b"\xff" * 100 + bytes(3 * MIB) + b"\xff" * (MIB - 100)


def test_what_fits_is_had(disk, fd, method):
    """Nearly all of the free space can be zerofilled; nothing is refused early."""
    disk.leave(16 * MIB)
    zerofill(fd, 12345, 12 * MIB, method=method, sync=True)
    after = disk.usage(fd)
    assert after.size == 12345 + 12 * MIB
    assert after.data >= 12 * MIB
    assert not any(content(fd))


def test_stopped_half_way(disk, fd):
    os.pwrite(fd, b"\xff" * 10000, 10000)
    if disk.kind not in ("ext3", "tmpfs"):
        linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, 30 * MIB, MIB)
    disk.leave(24 * MIB)
    before = disk.usage(fd)
    for stop in (0, 1, 3):
        steps = zerofill_steps(fd, 40000, 8 * MIB, method="writes", sync=False, step=2 * MIB)
        for _ in range(stop):
            assert next(steps) < 8 * MIB
        steps.close()
        assert disk.same_usage(before, disk.usage(fd)), stop
        assert content(fd) == bytes(10000) + b"\xff" * 10000


def test_huge_offsets_are_answered_at_once(disk, fd, method):
    """The kernel's own answer to fallocate; ext3, which has none, can hold 16 GiB in blocks of 1 KiB."""
    for offset, size in ((2**62, 4096), (2**44, 4096), (2**42, 1), (0, 2**62), (0, 2**63 - 1), (2**63 - 4097, 4096)):
        watch = Stopwatch()
        mine = errno_of(zerofill, fd, offset, size, method=method, sync=False)
        assert watch.seconds() < 5
        os.ftruncate(fd, 0)
        kernel = errno_of(linux.fallocate, fd, linux.FALLOC_FL_KEEP_SIZE, offset, size)
        os.ftruncate(fd, 0)
        assert mine == kernel, (offset, size)
        if disk.kind.startswith("ext"):
            assert mine == errno.EFBIG


def test_threads_write_disjoint_ranges_of_one_fd(disk, fd, seeded):
    """8 threads, 300 rounds, method writes: only their ranges are zero. Holes and growth are in it, too."""
    threads, part = 8, 4096 + 1000
    with ThreadPoolExecutor(threads) as pool:
        for number in range(300):
            expected = bytearray(threads * part)
            os.ftruncate(fd, 0)
            for _ in range(3):
                at = seeded.randrange(threads * part)
                data = b"\xff" * min(seeded.randrange(part), threads * part - at)
                expected[at : at + len(data)] = data
                os.pwrite(fd, data, at)
            length = os.fstat(fd).st_size
            ends = []

            def one(index: int, start: int, end: int) -> None:
                zerofill(fd, index * part + start, end - start, method="writes", sync=False)

            cuts = [sorted(seeded.sample(range(part + 1), 2)) for _ in range(threads)]
            list(pool.map(one, range(threads), *zip(*cuts, strict=True)))
            for index, (start, end) in enumerate(cuts):
                expected[index * part + start : index * part + end] = bytes(end - start)
                ends.append(index * part + end)
            assert content(fd) == expected[: max(length, *ends)], number


def test_threads_race_for_the_last_space(disk, fd, method):
    """Who fails leaves nothing behind, who succeeds loses nothing to the undo of the others."""
    threads, size = 8, 2 * MIB
    for _ in range(3):
        os.ftruncate(fd, 0)
        disk.leave(32 * MIB)
        mark = b"mark" * 25
        for index in range(threads):
            os.pwrite(fd, mark, index * 3 * MIB)
        disk.leave(8 * MIB)
        before = disk.usage(fd)

        def one(index: int) -> int:
            return errno_of(zerofill, fd, index * 3 * MIB + 50000, size, method=method, sync=False)

        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(one, range(threads)))
        assert set(results) <= {0, errno.ENOSPC}
        assert errno.ENOSPC in results
        done = [index for index, result in enumerate(results) if not result]
        after = disk.usage(fd)
        found = content(fd)
        for index in range(threads):
            assert found[index * 3 * MIB : index * 3 * MIB + 100] == mark
        assert found.count(0xFF) == 0
        assert len(found) == after.size == max([before.size, *(index * 3 * MIB + 50000 + size for index in done)])
        assert not any(found.replace(mark, b""))
        if disk.kind in ("ext3", "tmpfs"):
            assert after.data - before.data >= len(done) * size
        else:
            assert not any(holes(fd, index * 3 * MIB + 50000, index * 3 * MIB + 50000 + size) for index in done)
        assert after.blocks - before.blocks <= len(done) * size + 64 * disk.block  # indirect blocks, leaves of extents


offsets = st.one_of(st.integers(0, 2 * MIB), st.integers(0, 512).map(lambda number: number * 4096))
lengths = st.one_of(st.integers(1, 3 * MIB), st.integers(1, 768).map(lambda number: number * 4096))
layouts = st.lists(st.tuples(st.sampled_from("wwk"), offsets, st.integers(1, MIB // 2)), max_size=4)
rooms = st.one_of(st.integers(0, 2 * MIB), st.just(6 * MIB))
verbs = st.sampled_from(["zerofill", "zerofill", "zerofill", "stopped", "fallocate"])


def check(disk: Disk, layout, room: int, verb: str, method: str, offset: int, size: int, flags: int) -> None:
    """Lay a file out, fill the disk up to `room` bytes, do `verb` on a range, and see that it was all or nothing."""
    disk.leave(8 * MIB)
    fd = os.open(disk.root, os.O_TMPFILE | os.O_RDWR, 0o600)
    mine = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | flags)
    try:
        for number, (kind, at, length) in enumerate(layout):
            if kind == "w":
                os.pwrite(fd, bytes([number + 1]) * length, at)
            elif disk.kind not in ("ext3", "tmpfs"):
                linux.fallocate(fd, linux.FALLOC_FL_KEEP_SIZE, at, length)
        disk.leave(room)
        before, old = disk.usage(fd), content(fd)
        end = offset + size
        result = 0
        if verb == "stopped":
            steps = zerofill_steps(mine, offset, size, method="writes", sync=False, step=MIB)
            try:
                result = 0 if next(steps, None) is None else STOPPED
            except OSError as error:
                result = error.errno
            steps.close()
        elif verb == "zerofill":
            result = errno_of(zerofill, mine, offset, size, method=method, sync=False)
        else:
            result = errno_of(fallocate, mine, offset, size, keep_size=bool(flags))
        assert os.lseek(mine, 0, os.SEEK_CUR) == 0
        after, new = disk.usage(fd), content(fd)
        event(f"{verb} {errno.errorcode.get(result, result)}")
        if result == 0:
            grown = max(before.size, end) if verb != "fallocate" or not flags else before.size
            expected = bytearray(old.ljust(grown, b"\0"))
            if verb != "fallocate":
                expected[offset:end] = bytes(size)
            assert new == expected
            assert disk.kind in ("ext3", "tmpfs") or not holes(fd, offset, end)
            return
        copied = disk.kind == "btrfs" and (method == "writes" or verb == "stopped")
        assert disk.same_usage(before, after, copied=copied), (before, after)
        assert (len(new), new[:offset], new[end:]) == (len(old), old[:offset], old[end:])
        if result == STOPPED or disk.kind == "btrfs":
            assert all(now in (0, was) for now, was in zip(new, old, strict=True))
        else:
            assert new == old
        if disk.kind == "ext3" and verb == "fallocate":
            assert result in (errno.EOPNOTSUPP, errno.ENOSPC)
        else:
            assert result in (STOPPED, errno.ENOSPC)
        if disk.kind in ("ext4", "xfs", "tmpfs") and result != STOPPED:
            kernel = errno_of(linux.fallocate, fd, linux.FALLOC_FL_KEEP_SIZE, offset, size)
            assert kernel == errno.ENOSPC, "refused what the kernel would have given"
    finally:
        os.close(mine)
        os.close(fd)


def holes(fd: int, offset: int, end: int) -> list[tuple[int, int]]:
    found = []
    for extent in linux.fiemap(fd, offset, end - offset):
        if extent.logical > offset:
            found.append((offset, extent.logical))
        offset = extent.end
    return found if offset >= end else [*found, (offset, end)]


def property_test(examples: int):
    @settings(max_examples=examples, database=None)
    @given(
        layout=layouts,
        room=rooms,
        verb=verbs,
        method=st.sampled_from(METHODS),
        offset=offsets,
        size=lengths,
        flags=st.sampled_from([0, os.O_APPEND, os.O_DSYNC]),
    )
    def run(disk, layout, room, verb, method, offset, size, flags):
        best = METHODS.index(NATIVE[disk.kind])
        check(disk, layout, room, verb, METHODS[max(best, METHODS.index(method))], offset, size, flags)

    return run


def test_all_or_nothing(disk):
    property_test(25)(disk)


@pytest.mark.long
def test_all_or_nothing_long(disk):
    property_test(600)(disk)
