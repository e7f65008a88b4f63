"""Provisioning over a brick in memory: what create, zero, info and verify leave behind, in success and in failure."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glustx.fs.newfile import Exists
from glustx.fs.parallel import Throttle, chunks, in_parallel
from glustx.gfapi import Volume
from glustx.progress import Moment, Progress
from glustx.provision import images, zeroing
from glustx.provision.images import CreateRequest, NoSpace
from glustx.provision.zeroing import Limits, zero_range
from glustx.units import human
from tests.t2_graph.troubles import Interrupting, faulty

MIB = 1 << 20
SMALL = "volume s\n type storage/memory\n option capacity 16MB\nend-volume\n" + (
    "volume small\n type features/locks\n subvolumes s\nend-volume\n"
)


@pytest.fixture
def volume() -> Iterator[Volume]:
    with Volume.memory() as made:
        yield made


@pytest.fixture
def small() -> Iterator[Volume]:
    """A volume of 16 MiB."""
    with Volume(SMALL) as made:
        yield made


def make(volume: Any, path: str, size: int, **wishes: Any) -> images.Report:
    return images.create(volume, path, CreateRequest(size, **wishes), Progress())


def pattern(volume: Volume, path: str, size: int) -> bytes:
    data = bytes(range(1, 256)) * (size // 255 + 1)
    with volume.open(path, "wb") as file:
        file.pwrite(data[:size], 0)
    return data[:size]


def content(volume: Volume, path: str) -> bytes:
    with volume.open(path) as file:
        return file.read()


# -- create ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prealloc", "method", "used", "allocated"),
    [
        ("off", "auto", "sparse", 0),
        ("falloc", "auto", "fallocate", 3 * MIB),
        ("full", "auto", "zerofill", 3 * MIB),
        ("full", "zerofill", "zerofill", 3 * MIB),
        ("full", "punch", "punch", 0),
        ("full", "writes", "writes", 3 * MIB),
    ],
)
def test_every_way_gives_zeroes_of_the_size(
    volume: Volume, prealloc: str, method: str, used: str, allocated: int
) -> None:
    report = make(volume, "/a.img", 3 * MIB, prealloc=prealloc, zero_method=method, mode=0o640)
    assert (report.method_used, report.size) == (used, 3 * MIB)
    assert report.bytes_zeroed_offloaded == (3 * MIB if used in ("zerofill", "punch") else 0)
    assert report.bytes_written == (3 * MIB if used == "writes" else 0)
    assert report.brick_zero_method == "zero-range"
    assert (report.rpcs, report.wire_bytes_sent) == (0, 0)  # the brick is in this process
    stat = volume.stat("/a.img")
    assert (stat.st_size, stat.st_blocks * 512, stat.st_mode & 0o7777) == (3 * MIB, allocated, 0o640)
    assert content(volume, "/a.img") == bytes(3 * MIB)
    assert volume.listdir("/") == ["a.img"]


def test_empty_image(volume: Volume) -> None:
    assert make(volume, "/a", 0, prealloc="full").method_used == "none"
    assert volume.stat("/a").st_size == 0


def test_mode_owner_and_umask(volume: Volume) -> None:
    make(volume, "/a", MIB, mode=0o4666, owner=(36, 37))
    stat = volume.stat("/a")
    assert (stat.st_mode & 0o7777, stat.st_uid, stat.st_gid) == (0o4666, 36, 37)


def test_a_file_that_is_there_is_kept(volume: Volume) -> None:
    old = pattern(volume, "/a", 5000)
    with pytest.raises(Exists, match="--force"):
        make(volume, "/a", MIB)
    assert content(volume, "/a") == old
    report = make(volume, "/a", MIB, replace=True)
    assert report.method_used == "sparse" and content(volume, "/a") == bytes(MIB)
    assert volume.listdir("/") == ["a"]


def test_a_symlink_that_leads_nowhere_is_a_name_that_is_there(volume: Volume) -> None:
    volume.symlink("/nowhere", "/a")
    with pytest.raises(Exists):
        make(volume, "/a", MIB)
    assert volume.readlink("/a") == "/nowhere"


def test_somebody_else_makes_the_file_meanwhile(volume: Volume) -> None:
    late = Late(volume, lambda: pattern(volume, "/a", 5000))
    with pytest.raises(Exists, match="meanwhile"):
        make(late, "/a", MIB, prealloc="full")
    assert volume.listdir("/") == ["a"] and len(content(volume, "/a")) == 5000


def test_a_long_name(volume: Volume) -> None:
    name = "/" + "ä" * 127 + "x"
    make(volume, name, MIB)
    assert volume.listdir("/") == [name[1:]]


def test_dry_run_changes_nothing(volume: Volume, small: Volume) -> None:
    report = make(volume, "/a", MIB, prealloc="full", dry_run=True)
    assert report.dry_run and report.method_used == "zerofill"
    assert volume.listdir("/") == []
    with pytest.raises(NoSpace):
        make(small, "/a", 1 << 30, prealloc="full", dry_run=True)


@pytest.mark.parametrize(("wish", "value"), [("prealloc", "metadata"), ("zero_method", "write")])
def test_words_that_do_not_exist(volume: Volume, wish: str, value: str) -> None:
    with pytest.raises(ValueError, match=value):
        make(volume, "/a", MIB, **{wish: value})


@pytest.mark.parametrize(("prealloc", "method"), [("falloc", "auto"), ("full", "auto"), ("full", "writes")])
def test_space_is_checked_first(small: Volume, prealloc: str, method: str) -> None:
    with pytest.raises(NoSpace, match=r"1 GiB \(1073741824 bytes\) are needed and .* are free") as caught:
        make(small, "/a", 1 << 30, prealloc=prealloc, zero_method=method)
    assert caught.value.errno == errno.ENOSPC
    assert small.listdir("/") == []


def test_sparse_images_need_no_space(small: Volume) -> None:
    make(small, "/a", 1 << 30, prealloc="off")
    make(small, "/b", 1 << 30, prealloc="full", zero_method="punch")
    assert {small.stat(path).st_size for path in ("/a", "/b")} == {1 << 30}


# -- failures on the way -----------------------------------------------------------------------------------------------


class Late:
    """A volume on which something happens between an image's last byte and its name."""

    def __init__(self, volume: Any, happens: Any) -> None:
        self._volume = volume
        self._happens = happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)

    def link(self, src: str, dst: str) -> None:
        self._happens()
        self._volume.link(src, dst)


class Faulty:
    """A volume whose files fail at one method."""

    def __init__(self, volume: Any, method: str, error: BaseException) -> None:
        self._volume = volume
        self._method = method
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)

    def using(self, **how: Any) -> Faulty:
        return Faulty(self._volume.using(**how), self._method, self._error)

    def open(self, *args: Any) -> Any:
        file, method, error = self._volume.open(*args), self._method, self._error

        class File:
            def __getattr__(self, name: str) -> Any:
                if name == method:

                    def fail(*args: Any, **kwargs: Any) -> None:
                        raise error

                    return fail
                return getattr(file, name)

        return File()


@pytest.mark.parametrize("method", ["zerofill", "fsync", "chown"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()], ids=["EIO", "Ctrl-C"])
def test_a_failure_leaves_nothing_behind(volume: Volume, method: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        make(Faulty(volume, method, error), "/a", MIB, prealloc="full", owner=(1, 1))
    assert volume.listdir("/") == []


def test_a_failure_while_replacing_keeps_the_old_file(volume: Volume) -> None:
    old = pattern(volume, "/a", 5000)
    with pytest.raises(OSError, match="broken"):
        make(Faulty(volume, "zerofill", OSError(errno.EIO, "broken")), "/a", MIB, prealloc="full", replace=True)
    assert volume.listdir("/") == ["a"] and content(volume, "/a") == old


@pytest.mark.parametrize("code", ["EOPNOTSUPP", "ENOSYS"])
def test_auto_writes_where_no_server_zeroes_and_says_so(code: str) -> None:
    with Volume(faulty("ZEROFILL", code)) as volume:
        report = make(volume, "/a", MIB + 3, prealloc="full")
        assert (report.method_used, report.bytes_written) == ("writes", MIB + 3)
        assert report.fallback and report.fallback.startswith("the server has no ZEROFILL: ")
        assert content(volume, "/a") == bytes(MIB + 3)
        old = pattern(volume, "/b", 5000)
        done = images.zero(volume, "/b", 10, 100, "auto", Limits(), Progress())
        assert done.method_used == "writes" and done.fallback
        assert content(volume, "/b") == old[:10] + bytes(100) + old[110:]


@pytest.mark.parametrize(("method", "fop"), [("zerofill", "ZEROFILL"), ("punch", "DISCARD")])
def test_a_named_method_is_never_replaced(method: str, fop: str) -> None:
    with Volume(faulty(fop, "EOPNOTSUPP")) as volume:
        old = pattern(volume, "/a", 5000)
        said = f"method {method} was asked for, and the server has no {fop}: "
        with pytest.raises(zeroing.Unsupported, match=said) as caught:
            images.zero(volume, "/a", 0, None, method, Limits(), Progress())
        assert caught.value.errno == errno.EOPNOTSUPP and content(volume, "/a") == old
        if method == "zerofill":
            with pytest.raises(zeroing.Unsupported, match=said):
                make(volume, "/b", MIB, prealloc="full", zero_method="zerofill")
        assert volume.listdir("/") == ["a"]


@pytest.mark.parametrize(("fop", "method"), [("ZEROFILL", "auto"), ("WRITE", "writes"), ("FALLOCATE", "")])
def test_no_space_in_the_middle_leaves_nothing(fop: str, method: str) -> None:
    # The space was there when it was looked at.
    with Volume(faulty(fop, "ENOSPC", every=3 if fop == "WRITE" else 1)) as volume:
        wishes = {"prealloc": "full", "zero_method": method} if method else {"prealloc": "falloc"}
        with pytest.raises(OSError, match="ENOSPC") as caught:
            make(volume, "/a", 9 * MIB, **wishes)
        assert caught.value.errno == errno.ENOSPC and volume.listdir("/") == []


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("late", [False, True], ids=["during", "after"])
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a file that was opened just when the interrupt came
def test_an_interrupt_at_every_call(volume: Volume, late: bool, replace: bool) -> None:
    outcomes = set()
    for method in ("zerofill", "writes"):
        for call in range(1, 30):
            old = pattern(volume, "/a", 5000) if replace else b""
            side = Interrupting(volume, [call], late)
            request = {"prealloc": "full", "zero_method": method, "owner": (1, 1), "replace": replace}
            try:
                make(side, "/a", 3 * MIB, **request)
                whole = True
            except KeyboardInterrupt:
                whole = False
            outcomes.add(whole)
            names = volume.listdir("/")
            if whole or (names and content(volume, "/a") != old):
                assert names == ["a"] and content(volume, "/a") == bytes(3 * MIB), f"{method}, call {call}"
            else:
                assert names == (["a"] if replace else []), f"{method}, call {call}"
            for name in names:
                volume.unlink("/" + name)
    assert outcomes == {False, True}


def test_the_first_error_of_many_threads_stops_all() -> None:
    done: list[int] = []
    stop = threading.Event()

    def work(start: int, end: int) -> None:
        if start == 3:
            raise OSError(errno.ENOSPC, "full")
        done.append(start)

    with pytest.raises(OSError, match="full"):
        in_parallel(work, chunks(0, 1_000_000, 1), 4, stop)
    assert stop.is_set() and len(done) < 1_000_000


# -- zero --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "zerofill", "punch", "writes"])
@pytest.mark.parametrize(
    ("offset", "size"), [(3, 10001), (0, 20000), (0, None), (19999, 1), (15000, 90000), (50000, 4096), (20000, None)]
)
def test_only_the_range_is_zeroed(volume: Volume, method: str, offset: int, size: int | None) -> None:
    old = pattern(volume, "/a", 20000)
    report = images.zero(volume, "/a", offset, size, method, Limits(chunk=4096), Progress())
    end = 20000 if size is None else offset + size
    expected = bytearray(old.ljust(max(end, 20000), b"\0"))
    expected[offset:end] = bytes(end - offset)
    assert content(volume, "/a") == expected
    assert report.size == end - offset


def test_zero_refuses(volume: Volume, small: Volume) -> None:
    pattern(volume, "/a", 10)
    with pytest.raises(ValueError, match="past the end"):
        images.zero(volume, "/a", 11, None, "auto", Limits(), Progress())
    with pytest.raises(ValueError, match="none of"):
        images.zero(volume, "/a", 0, None, "magic", Limits(), Progress())
    with pytest.raises(FileNotFoundError):
        images.zero(volume, "/b", 0, None, "auto", Limits(), Progress())
    pattern(small, "/a", 10)
    with pytest.raises(NoSpace):
        images.zero(small, "/a", 5, 1 << 30, "auto", Limits(), Progress())
    assert small.stat("/a").st_size == 10


def test_zero_dry_run(volume: Volume) -> None:
    old = pattern(volume, "/a", 5000)
    report = images.zero(volume, "/a", 0, None, "auto", Limits(), Progress(), dry_run=True)
    assert report.dry_run and report.size == 5000
    assert content(volume, "/a") == old


# -- info and verify ---------------------------------------------------------------------------------------------------


def test_info(volume: Volume) -> None:
    make(volume, "/a", 2 * MIB, prealloc="full", mode=0o600)
    found = images.info(volume, "/a")
    assert (found.size, found.allocated, found.mode) == (2 * MIB, 2 * MIB, "0600")
    assert found.gfid == volume.stat("/a").gfid and found.brick_zero_method == "zero-range"
    assert 0 < found.free < found.total


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(1, 9 * MIB),
    spots=st.lists(st.integers(0, 9 * MIB - 1), max_size=4),
    begin=st.integers(0, 9 * MIB),
    full=st.booleans(),
    jobs=st.integers(1, 5),
)
def test_verify_finds_the_first_byte(size: int, spots: list[int], begin: int, full: bool, jobs: int) -> None:
    begin %= size
    with Volume.memory() as volume:
        with volume.open("/a", "wb") as file:
            file.truncate(size)
            for spot in spots:
                file.pwrite(b"\1", spot % size)
        found = images.verify(volume, "/a", begin, None, Progress(), full=full, jobs=jobs)
        wrong = sorted(spot % size for spot in spots if spot % size >= begin)
        assert found.first_nonzero == (wrong[0] if wrong else None)
        assert found.zero is not bool(wrong)
        if not wrong:
            assert found.bytes_read + found.bytes_skipped == size - begin
            assert not full or found.bytes_skipped == 0


def test_verify_refuses_what_is_not_there(volume: Volume) -> None:
    make(volume, "/a", 100)
    with pytest.raises(ValueError, match="does not lie in the file"):
        images.verify(volume, "/a", 0, 101, Progress())
    with pytest.raises(FileNotFoundError):
        images.verify(volume, "/b", 0, None, Progress())


# -- parts -------------------------------------------------------------------------------------------------------------


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 300))
def test_chunks_cover_the_range_once(offset: int, size: int, step: int) -> None:
    parts = list(chunks(offset, size, step))
    assert [at for start, end in parts for at in range(start, end)] == list(range(offset, offset + size))
    assert all(0 < end - start <= step for start, end in parts)
    assert all(end % step == 0 for _, end in parts[:-1])


def test_throttle_keeps_the_rate() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    throttle = Throttle(1000, lambda: now, sleep)
    for _ in range(10):
        throttle.wait(500)
    assert now == pytest.approx(4.5)  # the first goes at once, each other after the one before it
    free = Throttle(0, lambda: now, sleep)
    free.wait(10**12)
    assert now == pytest.approx(4.5)


def test_writes_report_progress(volume: Volume) -> None:
    moments: list[Moment] = []
    with volume.open("/a", os.O_CREAT | os.O_RDWR) as file:
        done = zero_range(file, 5, 3 * MIB, "writes", Limits(chunk=MIB, jobs=3), Progress(moments.append))
    assert done == zeroing.Zeroed("writes", 0, 3 * MIB)
    assert [moments[0].transferred, moments[-1].transferred] == [0, 3 * MIB]
    assert {moment.phase for moment in moments} == {"zeroing"} and {moment.method for moment in moments} == {"writes"}
    counts = [moment.transferred for moment in moments]
    assert counts == sorted(counts)


def test_progress_is_bearable() -> None:
    now = 0.0
    moments: list[Moment] = []
    progress = Progress(moments.append, lambda: now)
    progress.phase("zeroing", 100_000, "writes")
    for _ in range(100_000):
        progress.add(1)
    assert len(moments) == 101  # its begin, and one at every percent
    now = 10.0
    progress.phase("more", 1000)
    now = 12.5
    progress.add(1)
    last = moments[-1]
    assert (last.phase, last.transferred, last.elapsed) == ("more", 1, 12.5)
    assert last.rate == pytest.approx(0.4) and last.eta == pytest.approx(999 / 0.4)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (20 << 30, "20 GiB"), (1 << 60, "1024 PiB")]
)
def test_human(size: int, text: str) -> None:
    assert human(size) == text
