"""One file's data: its holes stay holes, and within a volume the brick copies by itself."""

from __future__ import annotations

import errno
import os
import stat as _stat
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from glustx.fs.newfile import NewFile, new_file
from glustx.fs.parallel import Throttle, chunks, in_parallel
from glustx.fs.sides import Place, Stat, same_volume
from glustx.fs.steps import Stopped, refused, step
from glustx.progress import Progress

SPARSE = ("auto", "always", "never")
BLOCK = 4 << 20
GRAIN = 64 << 10
_OFFLOAD_STEP = 64 << 20
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EINVAL)
_SET_ID = _stat.S_ISUID | _stat.S_ISGID


class CopyOptions(msgspec.Struct, frozen=True):
    """How copies are made.

    Args:
        recursive: directories too.
        preserve: keep mode and times, and the owner where that is allowed.
        clobber: replace files that are there; otherwise they are left alone.
        sparse: `auto` keeps holes, `always` makes some of blocks of zeroes too, `never` writes them out.
        fsync: make each file durable before it gets its name.
        jobs: requests in flight.
        bwlimit: bytes per second; 0 means no limit.
        umask: bits that new files do not get when `preserve` is not set.
    """

    recursive: bool = False
    preserve: bool = False
    clobber: bool = True
    sparse: str = "auto"
    fsync: bool = False
    jobs: int = 4
    bwlimit: int = 0
    umask: int = 0o022


class Moved(msgspec.Struct):
    """Bytes of files: sent or received, copied by a brick, and left as holes."""

    copied: int = 0
    offloaded: int = 0
    holes: int = 0


class FileCopier:
    """Copies files one at a time, or several from several threads.

    Args:
        options: see CopyOptions.
        progress: counts the bytes.
        stop: set when the work is to end early.
    """

    def __init__(self, options: CopyOptions, progress: Progress, stop: threading.Event) -> None:
        if options.sparse not in SPARSE:
            raise ValueError(f"sparse {options.sparse!r} is none of {', '.join(SPARSE)}")
        self.options = options
        self.progress = progress
        self.stop = stop
        self.moved = Moved()
        self._throttle = Throttle(options.bwlimit)
        self._lock = threading.Lock()
        self._no_offload: set[int] = set()

    def copy(self, src: Place, dst: Place, *, jobs: int, follow: bool) -> None:
        """Copy a regular file; `dst` is a file to make or to replace.

        Args:
            jobs: threads for this file's parts.
            follow: whether `src` may be a symbolic link.

        Raises:
            StepError: what a side says. Stopped: `stop` was set. Exists: see `NewFile.commit`.
        """
        with step(src, "open"):
            source = src.side.open(src.path, os.O_RDONLY | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
        try:
            with step(src, "stat"):
                there = source.stat()
            dst, old = self._target(dst)
            with step(dst, "create"), new_file(dst.side, dst.path, self._mode(there, old) & 0o777) as new:
                self._data(src, source, there.st_size, dst, new.file, jobs)
                self._finish(dst, new, there, old)
        finally:
            source.close()

    def receive(self, stream: BinaryIO, dst: Place) -> None:
        """Copy what a stream gives to its end; its zeroes become holes with `sparse` always."""
        dst, old = self._target(dst)
        mode = 0o666 & ~self.options.umask if old is None else old.st_mode & 0o777
        with step(dst, "create"), new_file(dst.side, dst.path, mode) as new:
            at = 0
            while data := stream.read(BLOCK):
                self._throttle.wait(len(data))
                self._put(dst, new.file, data, at)
                at += len(data)
            with step(dst, "truncate"):
                new.file.truncate(at)
            self._finish(dst, new, None, old)

    def send(self, src: Place, stream: BinaryIO) -> None:
        """Write a file to a stream."""
        with step(src, "open"):
            source = src.side.open(src.path, os.O_RDONLY)
        try:
            at = 0
            while True:
                with step(src, "read"):
                    data = source.pread(BLOCK, at)
                if not data:
                    return
                self._throttle.wait(len(data))
                stream.write(data)
                at += len(data)
                self._count(copied=len(data))
        finally:
            source.close()

    # -- the target --------------------------------------------------------------------------------------------------

    def _target(self, dst: Place) -> tuple[Place, Stat | None]:
        """Return where the file goes, behind a symbolic link, and what is there now."""
        with step(dst, "lookup"):
            try:
                old: Stat = dst.side.lstat(dst.path)
            except FileNotFoundError:
                return dst, None
            if _stat.S_ISLNK(old.st_mode):
                try:
                    old = dst.side.stat(dst.path)
                except FileNotFoundError:
                    raise refused(dst, "create", errno.EEXIST, "a symbolic link that leads nowhere") from None
                dst = dst.at(dst.side.realpath(dst.path))
        if _stat.S_ISDIR(old.st_mode):
            raise refused(dst, "create", errno.EISDIR, "a directory is there")
        return dst, old

    def _mode(self, there: Stat, old: Stat | None) -> int:
        if self.options.preserve:
            return _stat.S_IMODE(there.st_mode)
        if old is not None:
            return _stat.S_IMODE(old.st_mode)
        return _stat.S_IMODE(there.st_mode) & 0o777 & ~self.options.umask

    def _finish(self, dst: Place, new: NewFile, there: Stat | None, old: Stat | None) -> None:
        owner = there if self.options.preserve and there is not None else old
        mode = self._mode(there, old) if there is not None else None
        if owner is not None:
            with step(dst, "chown"):
                if not give_owner(new.file, owner) and mode is not None:
                    mode &= ~_SET_ID  # they would make others act as whoever copies
        if mode is not None and (dst.local or mode & 0o7000):
            # The process's umask has had its say locally, and a chown takes set-id bits away.
            with step(dst, "chmod"):
                new.file.chmod(mode)
        if self.options.preserve and there is not None:
            with step(dst, "utime"):
                new.file.utime(ns=(there.st_atime_ns, there.st_mtime_ns))
        if self.options.fsync:
            with step(dst, "fsync"):
                new.file.fsync()
        with step(dst, "rename"):
            new.commit(replace=self.options.clobber)

    # -- data --------------------------------------------------------------------------------------------------------

    def _data(self, src: Place, source: Any, size: int, dst: Place, target: Any, jobs: int) -> None:
        same = same_volume(src, dst)

        def part(start: int, end: int) -> None:
            if same and self.options.sparse != "always" and id(src.side) not in self._no_offload:
                start = self._offload(src, source, dst, target, start, end)
            while start < end:
                self._check()
                with step(src, "read"):
                    data = source.pread(min(BLOCK, end - start), start)
                if not data:
                    raise refused(
                        src, "read", errno.EIO, f"the file became shorter than {size} bytes while it was read"
                    )
                self._throttle.wait(len(data))
                self._put(dst, target, data, start)
                start += len(data)

        unit = _OFFLOAD_STEP if same else BLOCK
        parts = (part for start, end in self._ranges(src, source, size) for part in chunks(start, end - start, unit))
        if jobs > 1 and size > unit:
            # A stop of this file's own threads must not be taken for one of everything.
            in_parallel(part, parts, jobs, _Linked(self.stop))
        else:
            for each in parts:
                self._check()
                part(*each)
        self._check()
        with step(dst, "truncate"):
            target.truncate(size)

    def _check(self) -> None:
        if self.stop.is_set():
            raise Stopped

    def _ranges(self, src: Place, source: Any, size: int) -> Iterator[tuple[int, int]]:
        """Yield the (start, end) of what is no hole."""
        at = 0
        while at < size:
            start, end = at, size
            if self.options.sparse != "never":
                with step(src, "seek"):
                    start, end = next_data(source, at, size)
            if start > at:
                self._count(holes=start - at)
            if start < end:
                yield start, end
            at = end

    def _offload(self, src: Place, source: Any, dst: Place, target: Any, start: int, end: int) -> int:
        """Let the brick copy; return how far it came."""
        while start < end:
            self._check()
            self._throttle.wait(end - start)
            with step(dst, "copy_file_range"):
                try:
                    count = source.copy_file_range(target, end - start, start, start)
                except OSError as error:
                    if error.errno not in _UNSUPPORTED:
                        raise
                    self._no_offload.add(id(src.side))
                    return start
            if not count:
                return start  # reading will tell why
            start += count
            self._count(offloaded=count)
        return start

    def _put(self, dst: Place, target: Any, data: bytes, at: int) -> None:
        pieces = pieces_of(data) if self.options.sparse == "always" else [(0, len(data))]
        written = 0
        for start, end in pieces:
            view = memoryview(data)[start:end]
            while view:
                with step(dst, "write"):
                    count = target.pwrite(view, at + start)
                view = view[count:]
                start += count
                written += count
        self._count(copied=written, holes=len(data) - written)

    def _count(self, copied: int = 0, offloaded: int = 0, holes: int = 0) -> None:
        with self._lock:
            self.moved.copied += copied
            self.moved.offloaded += offloaded
            self.moved.holes += holes
        self.progress.add(copied + offloaded + holes)


class _Linked(threading.Event):
    """An event that is also set when another one is."""

    def __init__(self, other: threading.Event) -> None:
        super().__init__()
        self._other = other

    def is_set(self) -> bool:
        return super().is_set() or self._other.is_set()


def give_owner(file: Any, owner: Stat) -> bool:
    """Give an open file an owner, or its group alone, as far as that is allowed; tell whether it was."""
    for uid, gid in ((owner.st_uid, owner.st_gid), (-1, owner.st_gid)):
        try:
            file.chown(uid, gid)
        except PermissionError:
            continue
        return uid != -1
    return False


def next_data(source: Any, at: int, size: int) -> tuple[int, int]:
    """Return where data begins and ends at or behind `at`; (size, size) when only a hole is left."""
    try:
        start = min(source.seek_data(at), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno in _UNSUPPORTED:
            return at, size
        raise
    if start >= size:
        return size, size
    try:
        return start, min(source.seek_hole(start), size)
    except OSError as error:
        if error.errno == errno.ENXIO:  # cut off meanwhile: reading will tell
            return start, size
        raise


def pieces_of(data: bytes) -> list[tuple[int, int]]:
    """Return the (start, end) of what is not zero, in units of GRAIN."""
    zero = bytes(GRAIN)
    found: list[tuple[int, int]] = []
    for start in range(0, len(data), GRAIN):
        end = min(start + GRAIN, len(data))
        if data[start:end] == (zero if end - start == GRAIN else zero[: end - start]):
            continue
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
