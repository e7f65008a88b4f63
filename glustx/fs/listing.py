"""What is there: rows of `ls` and `stat`, trees, space taken, space free."""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_from_bytes

import msgspec

from glustx.fs.sides import Place, Stat
from glustx.fs.steps import StepError, step
from glustx.fs.trees import entries

_TYPES = {
    _stat.S_IFREG: "file",
    _stat.S_IFDIR: "directory",
    _stat.S_IFLNK: "link",
    _stat.S_IFIFO: "fifo",
    _stat.S_IFSOCK: "socket",
    _stat.S_IFBLK: "block",
    _stat.S_IFCHR: "char",
}

Failed = Callable[[StepError], None]


class Row(msgspec.Struct, frozen=True):
    """One file; sizes in bytes, times in nanoseconds since 1970, `url` as a command takes it, `target` of a link."""

    name: str
    path: str
    url: str
    type: str
    mode: str
    links: int
    uid: int
    gid: int
    size: int
    allocated: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    gfid: str
    target: str | None = None


class Branch(msgspec.Struct):
    """A file of a tree and, for a directory, what is in it."""

    name: str
    type: str
    size: int
    target: str | None = None
    children: list[Branch] | None = None


class Usage(msgspec.Struct, frozen=True):
    """What a tree takes; bytes. A file with several names in it counts once."""

    path: str
    url: str
    allocated: int
    size: int
    files: int
    directories: int


class Space(msgspec.Struct, frozen=True):
    """Figures of a volume; bytes and inodes."""

    volume: str
    url: str
    total: int
    used: int
    free: int
    inodes: int
    inodes_free: int
    name_max: int


def type_of(mode: int) -> str:
    """Return what kind of file a mode is of."""
    return _TYPES.get(_stat.S_IFMT(mode), "unknown")


def url_of(place: Place) -> str:
    """Return a URL that names a place whatever bytes its path has."""
    return place.base + quote_from_bytes(os.fsencode(place.path), safe="/") + place.suffix


def row_of(place: Place, there: Any) -> Row:
    """Return the row of a file, from a gfapi stat result."""
    target = None
    if _stat.S_ISLNK(there.st_mode):
        with step(place, "readlink"):
            target = place.side.readlink(place.path)
    return Row(
        place.leaf or "/",
        place.path,
        url_of(place),
        type_of(there.st_mode),
        f"{_stat.S_IMODE(there.st_mode):04o}",
        there.st_nlink,
        there.st_uid,
        there.st_gid,
        there.st_size,
        there.st_blocks * 512,
        there.st_atime_ns,
        there.st_mtime_ns,
        there.st_ctime_ns,
        there.gfid,
        target,
    )


def status(place: Place, *, follow: bool = False) -> Row:
    """Return the row of what a place names. StepError when there is nothing."""
    with step(place, "lookup"):
        there = place.side.stat(place.path, follow_symlinks=follow)
    return row_of(place, there)


def listing(place: Place, *, recursive: bool, failed: Failed) -> Iterator[tuple[Place, list[Row]]]:
    """Yield each directory with the rows of what is in it, beginning at `place`; below it only when `recursive`.

    Args:
        failed: hears of directories below `place` that cannot be read.
    """
    todo = [place]
    while todo:
        folder = todo.pop()
        try:
            found = entries(folder)
        except StepError as error:
            if folder is place:
                raise
            failed(error)
            continue
        rows: list[Row] = []
        below: list[Place] = []
        for inner, there in found:
            try:
                rows.append(row_of(inner, there))
            except StepError as error:
                failed(error)  # removed meanwhile
            if recursive and _stat.S_ISDIR(there.st_mode):
                below.append(inner)
        yield folder, rows
        todo.extend(reversed(below))


def tree(place: Place, *, depth: int, failed: Failed) -> Branch:
    """Return what is below a place.

    Args:
        depth: levels to go down; 0 for no limit.
        failed: hears of directories that cannot be read.
    """
    with step(place, "lookup"):
        there = place.side.stat(place.path)
    top = _branch(place, there)
    todo = [(place, top, 1)]
    while todo:
        folder, branch, level = todo.pop()
        if branch.children is None or (depth and level > depth):
            continue
        try:
            found = entries(folder)
        except StepError as error:
            failed(error)
            continue
        for inner, stat in found:
            below = _branch(inner, stat)
            branch.children.append(below)
            todo.append((inner, below, level + 1))
    return top


def _branch(place: Place, there: Stat) -> Branch:
    target = None
    if _stat.S_ISLNK(there.st_mode):
        with step(place, "readlink"):
            target = place.side.readlink(place.path)
    folder = _stat.S_ISDIR(there.st_mode)
    return Branch(place.leaf or "/", type_of(there.st_mode), there.st_size, target, [] if folder else None)


def usage(place: Place, *, failed: Failed) -> Iterator[Usage]:
    """Yield what each directory of a tree takes, with all below it, the deepest first and `place` last."""
    with step(place, "lookup"):
        there = place.side.lstat(place.path)
    seen: set[str] = set()
    # A directory is on the stack until all below it is summed up; sums go to the one below on the stack.
    stack = [_Sum(place, there, seen)]
    while stack:
        top = stack[-1]
        if top.todo is None:
            try:
                found = entries(top.place) if top.folder else []
            except StepError as error:
                failed(error)
                found = []
            top.todo = []
            for inner, stat in found:
                if _stat.S_ISDIR(stat.st_mode):
                    top.todo.append(_Sum(inner, stat, seen))
                else:
                    top.add(_Sum(inner, stat, seen))
            top.todo.reverse()
        if top.todo:
            stack.append(top.todo.pop())
            continue
        stack.pop()
        if stack:
            stack[-1].add(top)
        if top.folder or top.place is place:
            where = top.place
            yield Usage(where.path, url_of(where), top.allocated, top.size, top.files, top.directories)


class _Sum:
    def __init__(self, place: Place, there: Any, seen: set[str]) -> None:
        self.place = place
        self.folder = _stat.S_ISDIR(there.st_mode)
        self.todo: list[_Sum] | None = None
        known = there.st_nlink > 1 and not self.folder and there.gfid in seen
        if there.st_nlink > 1 and not self.folder:
            seen.add(there.gfid)
        self.allocated = 0 if known else there.st_blocks * 512
        self.size = 0 if known or self.folder else there.st_size
        self.files = int(not self.folder)
        self.directories = int(self.folder)

    def add(self, other: _Sum) -> None:
        self.allocated += other.allocated
        self.size += other.size
        self.files += other.files
        self.directories += other.directories


def space(place: Place) -> Space:
    """Return the figures of the volume of a place."""
    with step(place, "statfs"):
        found = place.side.statvfs(place.path)
    return Space(
        place.base.rpartition("/")[2],
        place.base + place.suffix,
        found.total,
        (found.f_blocks - found.f_bfree) * found.f_frsize,
        found.free,
        found.f_files,
        found.f_ffree,
        found.f_namemax,
    )
