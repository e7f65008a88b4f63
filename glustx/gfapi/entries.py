"""Entries of a directory and the iterators over them, for both faces."""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from glustx.gfapi.folder import DirCore, Found
from glustx.gfapi.namei import PathLike, to_text
from glustx.gfapi.results import StatResult
from glustx.runtime import turn

if TYPE_CHECKING:
    from glustx.gfapi.aio import AsyncVolume
    from glustx.gfapi.sync import Volume


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return folder + name if folder.endswith("/") else f"{folder}/{name}"


def _text(path: PathLike) -> str:
    given = os.fspath(path)
    return to_text(given) if isinstance(given, bytes) else given


class _Entry:
    """What an entry knows without asking.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_found", "name", "path")

    def __init__(self, folder: str, found: Found) -> None:
        self._found = found
        self.name = to_text(found.name)
        self.path = join(folder, self.name)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

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


class DirEntry(_Entry):
    """An entry of a directory with the attributes that came with it, as `os.DirEntry`.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_volume",)

    def __init__(self, volume: Volume, folder: str, found: Found) -> None:
        super().__init__(folder, found)
        self._volume = volume

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a directory or leads to one."""
        return self._volume.isdir(self.path) if follow_symlinks and self.is_symlink() else self._is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a regular file or leads to one."""
        return self._volume.isfile(self.path) if follow_symlinks and self.is_symlink() else self._is_file()

    def stat(self, *, follow_symlinks: bool = True) -> StatResult:
        """Return the attributes; a symbolic link that is followed costs a call, all else none."""
        return self._volume.stat(self.path) if follow_symlinks and self.is_symlink() else self._stat()


class AsyncDirEntry(_Entry):
    """An entry of a directory with the attributes that came with it.

    Attributes:
        name: the name alone.
        path: the directory's path, as given, and the name.
    """

    __slots__ = ("_volume",)

    def __init__(self, volume: AsyncVolume, folder: str, found: Found) -> None:
        super().__init__(folder, found)
        self._volume = volume

    async def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a directory or leads to one."""
        return await self._volume.isdir(self.path) if follow_symlinks and self.is_symlink() else self._is_dir()

    async def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a regular file or leads to one."""
        return await self._volume.isfile(self.path) if follow_symlinks and self.is_symlink() else self._is_file()

    async def stat(self, *, follow_symlinks: bool = True) -> StatResult:
        """Return the attributes; a symbolic link that is followed costs a call, all else none."""
        return await self._volume.stat(self.path) if follow_symlinks and self.is_symlink() else self._stat()


class Scandir:
    """Iterator over a directory; closed at its end, by `close`, or by a `with`."""

    def __init__(self, volume: Volume, path: PathLike, core: DirCore) -> None:
        self._folder = _text(path)
        self._volume = volume
        self._core: DirCore | None = core
        self._batch: Iterator[Found] = iter(())

    def __iter__(self) -> Scandir:
        return self

    def __next__(self) -> DirEntry:
        for found in self._batch:
            return DirEntry(self._volume, self._folder, found)
        if self._core is None:
            raise StopIteration
        batch = self._volume._do(self._core.batch(), self._folder)
        if not batch:
            self.close()
            raise StopIteration
        self._batch = iter(batch)
        return DirEntry(self._volume, self._folder, next(self._batch))

    def __enter__(self) -> Scandir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the directory back. A second call does nothing."""
        core, self._core = self._core, None
        if core is not None:
            try:
                self._volume._pump.post(core.give_back)
            except RuntimeError:
                pass  # closed before: the graph is gone


class AsyncScandir:
    """Asynchronous iterator over a directory; closed at its end, by `close`, or by an `async with`."""

    def __init__(self, volume: AsyncVolume, path: PathLike) -> None:
        self._folder = _text(path)
        self._volume = volume
        self._core: DirCore | None = None
        self._begun = False
        self._batch: Iterator[Found] = iter(())

    def __aiter__(self) -> AsyncScandir:
        return self

    async def __anext__(self) -> AsyncDirEntry:
        for found in self._batch:
            return AsyncDirEntry(self._volume, self._folder, found)
        if not self._begun:
            self._begun = True
            self._core = await self._volume._opendir_core(self._folder)
        if self._core is None:
            raise StopAsyncIteration
        batch = await self._volume._do(self._core.batch(), self._folder)
        if not batch:
            await self.close()
            raise StopAsyncIteration
        self._batch = iter(batch)
        return AsyncDirEntry(self._volume, self._folder, next(self._batch))

    async def __aenter__(self) -> AsyncScandir:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the directory back. A second call does nothing."""
        core, self._core = self._core, None
        self._begun = True
        if core is not None:
            turn(core.give_back)
