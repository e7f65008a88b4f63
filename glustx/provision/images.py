"""The verbs: create, zero, info, verify. Each takes a mounted volume and a path in it and returns a report."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator

import msgspec

from glustx.fs.newfile import Exists, new_file
from glustx.fs.parallel import chunks, in_parallel
from glustx.progress import Progress
from glustx.provision.target import File, Volume, parent_of, wire
from glustx.provision.zeroing import METHODS, Limits, Zeroed, zero_range
from glustx.units import human
from glustx.xdata import ZERO_METHOD

PREALLOCATIONS = ("off", "falloc", "full")
_READ_CHUNK = 4 << 20
_SET_ID = stat.S_ISUID | stat.S_ISGID


class NoSpace(OSError):
    """The volume has less free space than the image needs; nothing was changed."""


class CreateRequest(msgspec.Struct, frozen=True):
    """How an image shall be made.

    Args:
        size: bytes.
        prealloc: `off` leaves it sparse, `falloc` allocates, `full` fills with zeroes.
        zero_method: how `full` does that; one of METHODS.
        limits: for the method `writes`.
        replace: replace a file that has the name; otherwise it is an error.
        owner: (uid, gid), or None for the caller's.
        mode: permission bits.
        fsync: make the image durable before it gets its name.
        dry_run: check everything and change nothing.
    """

    size: int
    prealloc: str = "off"
    zero_method: str = "auto"
    limits: Limits = Limits()
    replace: bool = False
    owner: tuple[int, int] | None = None
    mode: int = 0o600
    fsync: bool = True
    dry_run: bool = False


class Report(msgspec.Struct, frozen=True):
    """What a verb did and what it cost.

    `method_used` is zerofill, punch, writes, fallocate, sparse or none; `fallback` why it is writes although zerofill
    was tried first, else None; `brick_zero_method` how the brick zeroes (zero-range, punch, writes), None when it does
    not tell. Wire figures count from the end of the handshake and are 0 for a brick in this process.
    """

    verb: str
    path: str
    size: int
    method_used: str
    seconds: float
    rpcs: int
    wire_bytes_sent: int
    wire_bytes_received: int
    bytes_zeroed_offloaded: int = 0
    bytes_written: int = 0
    brick_zero_method: str | None = None
    dry_run: bool = False
    fallback: str | None = None


class Info(msgspec.Struct, frozen=True):
    """What is known of an image and of the space around it; sizes in bytes."""

    path: str
    size: int
    allocated: int
    mode: str
    uid: int
    gid: int
    gfid: str
    free: int
    total: int
    brick_zero_method: str | None


class Verified(msgspec.Struct, frozen=True):
    """Whether a range reads as zeroes: `first_nonzero` is the offset of the first byte that does not, or None.

    `bytes_read` were read back, `bytes_skipped` are holes that were not.
    """

    path: str
    offset: int
    size: int
    zero: bool
    first_nonzero: int | None
    bytes_read: int
    bytes_skipped: int
    seconds: float


class _Meter:
    """Time and wire figures between its making and `report`."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        # Asked first: once an image has its name there is nothing left to fail or to be interrupted.
        self.brick_method = brick_zero_method(volume)
        self.began = time.monotonic()
        self.wire = wire(volume)

    def report(self, verb: str, path: str, size: int, done: Zeroed, *, dry_run: bool = False) -> Report:
        seconds = time.monotonic() - self.began
        cost = wire(self.volume).since(self.wire)
        return Report(
            verb,
            path,
            size,
            done.method,
            seconds,
            cost.rpcs,
            cost.sent,
            cost.received,
            done.offloaded,
            done.written,
            self.brick_method,
            dry_run,
            done.fallback or None,
        )


def brick_zero_method(volume: Volume) -> str | None:
    """Return how the bricks below a volume zero a range (zero-range, punch, writes, mixed), None when unknown.

    A brick in this process tells; one across the network is asked for a virtual xattr, which stock's do not have.
    """
    method = volume.graph.root.limits().get("zero_method")
    if method:
        return str(method)
    try:
        return volume.getxattr("/", ZERO_METHOD).rstrip(b"\0").decode() or None
    except (OSError, UnicodeDecodeError):
        return None


def create(volume: Volume, path: str, request: CreateRequest, progress: Progress) -> Report:
    """Make an image.

    It grows under a temporary name beside `path` and gets its own when it is whole; on every failure, Ctrl-C included,
    the temporary file is removed.

    Raises:
        Exists: `path` is there and `request.replace` is not set.
        NoSpace: the volume's free space is less than what would be allocated.
        Unsupported: the volume does not have the method that was named.
        OSError: what the volume says.
        ValueError: a preallocation or method that does not exist.
    """
    if request.prealloc not in PREALLOCATIONS:
        raise ValueError(f"preallocation {request.prealloc!r} is none of {', '.join(PREALLOCATIONS)}")
    if request.zero_method not in METHODS:
        raise ValueError(f"method {request.zero_method!r} is none of {', '.join(METHODS)}")
    meter = _Meter(volume)
    if not request.replace and volume.lexists(path):
        raise Exists(errno.EEXIST, "EEXIST: the file is there already; --force replaces it", path)
    if request.prealloc == "falloc" or (request.prealloc == "full" and request.zero_method != "punch"):
        _check_space(volume, path, request.size)
    if request.dry_run:
        return meter.report("create", path, request.size, Zeroed(_planned(request)), dry_run=True)
    with new_file(volume, path, request.mode) as new:
        file: File = new.file
        done = _fill(file, request, progress)
        if request.owner is not None:
            file.chown(*request.owner)
            if request.mode & _SET_ID:
                file.chmod(request.mode)  # chown takes these bits away
        if request.fsync:
            progress.phase("syncing")
            file.fsync()
        new.commit(replace=request.replace)
    return meter.report("create", path, request.size, done)


def _planned(request: CreateRequest) -> str:
    if request.prealloc == "full":
        return "zerofill" if request.zero_method == "auto" else request.zero_method
    return "fallocate" if request.prealloc == "falloc" else "sparse"


def _fill(file: File, request: CreateRequest, progress: Progress) -> Zeroed:
    if not request.size:
        return Zeroed("none")
    if request.prealloc == "full":
        return zero_range(file, 0, request.size, request.zero_method, request.limits, progress, fresh=True)
    if request.prealloc == "falloc":
        progress.phase("allocating", request.size, "fallocate")
        file.allocate(0, request.size)
        progress.add(request.size)
        return Zeroed("fallocate")
    file.truncate(request.size)
    return Zeroed("sparse")


def _check_space(volume: Volume, path: str, size: int, have: int = 0) -> None:
    free = volume.statvfs(parent_of(path)).free
    if size - have > free:
        need = f"{human(size - have)} ({size - have} bytes) are needed"
        raise NoSpace(errno.ENOSPC, f"ENOSPC: {need} and {human(free)} ({free} bytes) are free", path)


def zero(
    volume: Volume,
    path: str,
    offset: int,
    size: int | None,
    method: str,
    limits: Limits,
    progress: Progress,
    *,
    fsync: bool = True,
    dry_run: bool = False,
) -> Report:
    """Make a range of an existing image read as zeroes.

    Args:
        offset, size: the range in bytes; size None reaches to the end of the file.
        method: one of METHODS.
        dry_run: check and change nothing.

    Raises:
        NoSpace: the part of the range beyond the file needs more than is free.
        OSError: what the volume says. ValueError: a method that does not exist, or a range that begins past the end.
    """
    if method not in METHODS:
        raise ValueError(f"method {method!r} is none of {', '.join(METHODS)}")
    meter = _Meter(volume)
    file: File = volume.open(path, os.O_RDWR)
    try:
        have = file.stat().st_size
        if size is None:
            if offset > have:
                raise ValueError(f"offset {offset} is past the end of the file, which has {have} bytes")
            size = have - offset
        if method != "punch":
            _check_space(volume, path, max(0, offset + size - have))
        if dry_run:
            planned = "zerofill" if method == "auto" else method
            return meter.report("zero", path, size, Zeroed(planned), dry_run=True)
        done = zero_range(file, offset, size, method, limits, progress)
        if fsync:
            progress.phase("syncing")
            file.fsync()
    finally:
        file.close()
    return meter.report("zero", path, size, done)


def info(volume: Volume, path: str) -> Info:
    """Return what is known of an image; OSError when there is none."""
    file: File = volume.open(path, os.O_RDONLY)
    try:
        there = file.stat()
    finally:
        file.close()
    space = volume.statvfs(path)
    return Info(
        path,
        there.st_size,
        there.st_blocks * 512,
        f"{there.st_mode & 0o7777:04o}",
        there.st_uid,
        there.st_gid,
        there.gfid,
        space.free,
        space.total,
        brick_zero_method(volume),
    )


def verify(
    volume: Volume, path: str, offset: int, size: int | None, progress: Progress, *, full: bool = False, jobs: int = 4
) -> Verified:
    """Read a range back and tell whether all of it is zero.

    Args:
        offset, size: the range in bytes; size None reaches to the end of the file.
        full: read holes too.
        jobs: threads that read.

    Raises:
        OSError: what the volume says. ValueError: a range that does not lie in the file.
    """
    began = time.monotonic()
    file: File = volume.open(path, os.O_RDONLY)
    try:
        have = file.stat().st_size
        size = have - offset if size is None else size
        if size < 0 or offset + size > have:
            raise ValueError(f"[{offset}, {offset + size}) does not lie in the file, which has {have} bytes")
        progress.phase("verifying", size, "read")
        check = _ZeroCheck(file, offset, size, progress, full)
        in_parallel(check.part, check.parts(), jobs, check.stop)
    finally:
        file.close()
    found = check.first
    seconds = time.monotonic() - began
    return Verified(path, offset, size, found is None, found, check.read, check.skipped, seconds)


class _ZeroCheck:
    """Looks for the first byte of a range that is not zero."""

    def __init__(self, file: File, offset: int, size: int, progress: Progress, full: bool) -> None:
        self.file = file
        self.offset = offset
        self.end = offset + size
        self.progress = progress
        self.full = full
        self.first: int | None = None
        self.read = self.skipped = 0
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._zeroes = bytes(_READ_CHUNK)

    def parts(self) -> Iterator[tuple[int, int]]:
        """Yield the parts to read, in order, until a fault was found before them."""
        for start, end in self._data():
            for part in chunks(start, end - start, _READ_CHUNK):
                if self.first is not None and part[0] > self.first:
                    return
                yield part

    def _data(self) -> Iterator[tuple[int, int]]:
        at = self.offset
        while at < self.end:
            start, end = (at, self.end) if self.full else self._next_data(at)
            if start > at:
                self.skipped += start - at
                self.progress.add(start - at)
            if start < end:
                yield start, end
            at = end

    def _next_data(self, at: int) -> tuple[int, int]:
        try:
            start = min(self.file.seek_data(at), self.end)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return self.end, self.end
            if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                return at, self.end
            raise
        return start, min(self.file.seek_hole(start), self.end) if start < self.end else self.end

    def part(self, start: int, end: int) -> None:
        """Read one part."""
        data = self.file.pread(end - start, start)
        if len(data) != end - start:
            raise OSError(errno.EIO, f"EIO: the file ends at {start + len(data)}, before the range does")
        fault = None
        if data != (self._zeroes if len(data) == _READ_CHUNK else self._zeroes[: len(data)]):
            fault = end - len(data.lstrip(b"\0"))
        with self._lock:
            self.read += len(data)
            if fault is not None and (self.first is None or fault < self.first):
                self.first = fault
        self.progress.add(len(data))
