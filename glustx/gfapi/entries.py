"""Entries of a directory and the iterators over them, for both faces.

As in `os`, a directory that is named by bytes has entries whose names are bytes.
"""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, AnyStr, Generic, cast, overload

from glustx.fops import DirEntry as WireEntry
from glustx.gfapi.folder import DirCore, Found
from glustx.gfapi.namei import PathLike, to_text
from glustx.gfapi.results import Dirent, StatResult
from glustx.runtime import turn
from glustx.values import Iatt

if TYPE_CHECKING:
    from glustx.gfapi.aio import AsyncVolume
    from glustx.gfapi.sync import Volume


def join(folder: AnyStr, name: AnyStr) -> AnyStr:
    """Return the path of a name in a folder."""
    if isinstance(folder, str):
        return folder + name if folder.endswith("/") else folder + "/" + name
    return folder + name if folder.endswith(b"/") else folder + b"/" + name


@overload
def alike(model: str, raw: bytes) -> str: ...


@overload
def alike(model: bytes, raw: bytes) -> bytes: ...


@overload
def alike(model: str | bytes, raw: bytes) -> str | bytes: ...


def alike(model: str | bytes, raw: bytes) -> str | bytes:
    """Return a name or a path as text when `model` is text, as bytes when that is bytes."""
    return to_text(raw) if isinstance(model, str) else raw


class _Entry(Generic[AnyStr]):
    """What an entry knows without asking.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_found", "name", "path")

    def __init__(self, folder: AnyStr, found: Found) -> None:
        self._found = found
        self.name: AnyStr = alike(folder, found.name)
        self.path: AnyStr = join(folder, self.name)

    def __fspath__(self) -> AnyStr:
        return self.path

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name!r}>"

    def inode(self) -> int:
        """Return the inode number."""
        return self._found.stat.ino

    def is_symlink(self) -> bool:
        """Tell whether it is a symbolic link."""
        return self._found.stat.is_lnk()

    def _is_dir(self) -> bool:
        return self._found.stat.is_dir()

    def _is_file(self) -> bool:
        return _stat.S_ISREG(self._found.stat.mode)

    def _stat(self) -> StatResult:
        return StatResult(self._found.stat)


class DirEntry(_Entry[AnyStr]):
    """An entry of a directory with the attributes that came with it.

    As in libgfapi-python, and unlike `os.DirEntry`, symbolic links are followed on request only: it costs a call.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_volume",)

    def __init__(self, volume: Volume, folder: AnyStr, found: Found) -> None:
        super().__init__(cast(Any, folder), found)
        self._volume = volume

    def is_dir(self, follow_symlinks: bool = False) -> bool:
        """Tell whether it is a directory, or leads to one."""
        return self._volume.isdir(self.path) if follow_symlinks and self.is_symlink() else self._is_dir()

    def is_file(self, follow_symlinks: bool = False) -> bool:
        """Tell whether it is a regular file, or leads to one."""
        return self._volume.isfile(self.path) if follow_symlinks and self.is_symlink() else self._is_file()

    def stat(self, follow_symlinks: bool = False) -> StatResult:
        """Return the attributes; a symbolic link that is followed costs a call, all else none."""
        return self._volume.stat(self.path) if follow_symlinks and self.is_symlink() else self._stat()


class AsyncDirEntry(_Entry[AnyStr]):
    """An entry of a directory with the attributes that came with it; links are followed on request only.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_volume",)

    def __init__(self, volume: AsyncVolume, folder: AnyStr, found: Found) -> None:
        super().__init__(cast(Any, folder), found)
        self._volume = volume

    async def is_dir(self, follow_symlinks: bool = False) -> bool:
        """Tell whether it is a directory, or leads to one."""
        return await self._volume.isdir(self.path) if follow_symlinks and self.is_symlink() else self._is_dir()

    async def is_file(self, follow_symlinks: bool = False) -> bool:
        """Tell whether it is a regular file, or leads to one."""
        return await self._volume.isfile(self.path) if follow_symlinks and self.is_symlink() else self._is_file()

    async def stat(self, follow_symlinks: bool = False) -> StatResult:
        """Return the attributes; a symbolic link that is followed costs a call, all else none."""
        return await self._volume.stat(self.path) if follow_symlinks and self.is_symlink() else self._stat()


class _Blocking:
    """An open directory of a Volume; closed at its end, by `close`, or by a `with`."""

    def __init__(self, volume: Volume, path: PathLike, core: DirCore) -> None:
        self._volume = volume
        self._path = os.fspath(path)
        self._core: DirCore | None = core
        self._batch: Iterator[Any] = iter(())

    def _next(self, raw: bool) -> Any:
        for found in self._batch:
            return found
        if self._core is None:
            raise StopIteration
        batch: list[Any] = self._volume._do(self._core.raw() if raw else self._core.batch(), self._path)
        if not batch:
            self.close()
            raise StopIteration
        self._batch = iter(batch)
        return next(self._batch)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. A second call does nothing."""
        core, self._core = getattr(self, "_core", None), None
        if core is not None:
            try:
                self._volume._pump.post(core.give_back)
            except RuntimeError:
                pass  # closed before: the graph is gone


class Scandir(_Blocking, Generic[AnyStr]):
    """Iterator over a directory; closed at its end, by `close`, or by a `with`."""

    def __iter__(self) -> Scandir[AnyStr]:
        return self

    def __next__(self) -> DirEntry[AnyStr]:
        return DirEntry(self._volume, cast(AnyStr, self._path), self._next(raw=False))

    def __enter__(self) -> Scandir[AnyStr]:
        return self


class Dir(_Blocking):
    """Iterator over an open directory that yields each entry as a Dirent, `.` and `..` included, or, with
    `readdirplus`, as a pair of Dirent and StatResult. Closed at its end, by `close`, or by a `with`.

    Attributes:
        readdirplus: whether attributes come along.
        path: from the root, without symbolic links.
    """

    def __init__(self, volume: Volume, path: PathLike, core: DirCore, readdirplus: bool) -> None:
        super().__init__(volume, path, core)
        self.readdirplus = readdirplus
        self.path = core.path

    def __iter__(self) -> Dir:
        return self

    def __next__(self) -> Any:
        return _dirent(self._next(raw=True), self.readdirplus)

    def __enter__(self) -> Dir:
        return self


class _Asynchronous:
    """An open directory of an AsyncVolume; closed at its end, by `close`, or by an `async with`."""

    def __init__(self, volume: AsyncVolume, path: PathLike) -> None:
        self._volume = volume
        self._path = os.fspath(path)
        self._core: DirCore | None = None
        self._begun = False
        self._batch: Iterator[Any] = iter(())

    async def _begin(self) -> None:
        self._begun = True
        self._core = await self._volume._opendir_core(self._path)

    async def _next(self, raw: bool) -> Any:
        for found in self._batch:
            return found
        if not self._begun:
            await self._begin()
        if self._core is None:
            raise StopAsyncIteration
        batch: list[Any] = await self._volume._do(self._core.raw() if raw else self._core.batch(), self._path)
        if not batch:
            await self.close()
            raise StopAsyncIteration
        self._batch = iter(batch)
        return next(self._batch)

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the directory back. A second call does nothing."""
        core, self._core = self._core, None
        self._begun = True
        if core is not None:
            turn(core.give_back)


class AsyncScandir(_Asynchronous, Generic[AnyStr]):
    """Asynchronous iterator over a directory; closed at its end, by `close`, or by an `async with`."""

    def __aiter__(self) -> AsyncScandir[AnyStr]:
        return self

    async def __anext__(self) -> AsyncDirEntry[AnyStr]:
        return AsyncDirEntry(self._volume, cast(AnyStr, self._path), await self._next(raw=False))

    async def __aenter__(self) -> AsyncScandir[AnyStr]:
        return self


class AsyncDir(_Asynchronous):
    """Asynchronous iterator over an open directory, otherwise as Dir."""

    def __init__(self, volume: AsyncVolume, path: PathLike, readdirplus: bool) -> None:
        super().__init__(volume, path)
        self.readdirplus = readdirplus

    def __aiter__(self) -> AsyncDir:
        return self

    async def __anext__(self) -> Any:
        return _dirent(await self._next(raw=True), self.readdirplus)

    async def __aenter__(self) -> AsyncDir:
        return self


def _dirent(item: tuple[WireEntry, Iatt], plus: bool) -> Dirent | tuple[Dirent, StatResult]:
    entry, stat = item
    found = Dirent(entry.ino, entry.off, entry.type, entry.name)
    return (found, StatResult(stat)) if plus else found
