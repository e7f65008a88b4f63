"""Copying, removing and walking trees, written once over a volume whose methods are coroutines; `twins.over` makes the
methods of both faces of it.

Each step is a call of its own, so a time limit holds for steps, Ctrl-C comes in between, and callbacks may use the
volume.
"""

from __future__ import annotations

import errno
import os
import stat as _stat
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Union

from glustx.gfapi.entries import alike, join
from glustx.gfapi.exceptions import Error
from glustx.gfapi.namei import PathLike

Ignore = Callable[[Any, list[Any]], Iterable[Any]]
OnError = Callable[[Callable[..., Any], Union[str, bytes], OSError], object]

_STEP = 64 << 20
_CHUNK = 4 << 20
# What a brick, a file system or a translator says that cannot copy or find holes.
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.ENOTTY})


def _named(path: PathLike, other: PathLike) -> tuple[Any, Any]:
    """Return two paths as text, or as bytes when the first is bytes."""
    one, two = os.fspath(path), os.fspath(other)
    if type(one) is type(two):
        return one, two
    return one, os.fsencode(two) if isinstance(one, bytes) else os.fsdecode(two)


# -- files -----------------------------------------------------------------------------------------------------------


async def copyfile(volume: Any, src: PathLike, dst: PathLike) -> None:
    """Copy the content of a file to `dst`, which is made or replaced; holes stay holes, and the brick does the copying
    where it can.

    Raises:
        Error: both are one file, or `src` is a device, fifo or socket.
        OSError: IsADirectoryError, FileNotFoundError, ENOSPC and so on; what was copied until then stays.
    """
    found = await volume.stat(src)
    if not _stat.S_ISREG(found.st_mode) and not _stat.S_ISDIR(found.st_mode):
        raise Error(errno.EINVAL, f"{os.fspath(src)!r} is neither a file nor a directory")
    source = await volume.open(src, os.O_RDONLY)
    try:
        try:
            same = (await volume.stat(dst)).gfid == source.gfid
        except FileNotFoundError:
            same = False
        if same:
            raise Error(errno.EINVAL, f"{os.fspath(src)!r} and {os.fspath(dst)!r} are the same file")
        target = await volume.open(dst, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            await _copy_data(source, target)
        finally:
            await target.close()
    finally:
        await source.close()


async def _copy_data(source: Any, target: Any) -> None:
    size = (await source.stat()).st_size
    at, offload = 0, True
    while at < size:
        begin, end = await _extent(source, at, size)
        while begin < end:
            step = min(_STEP if offload else _CHUNK, end - begin)
            if offload:
                try:
                    done = await source.copy_file_range(target, step, begin, begin)
                except OSError as error:
                    if error.errno not in _CANNOT:
                        raise
                    offload = False
                    continue
            else:
                done = await _copy_through(source, target, begin, step)
            if not done:
                return  # it was cut short meanwhile
            begin += done
        at = end
    await target.truncate(size)


async def _extent(source: Any, at: int, size: int) -> tuple[int, int]:
    """Return the next range of data at or behind `at`; (size, size) when only a hole is left."""
    try:
        begin = await source.seek_data(at)
        return begin, min(size, await source.seek_hole(begin))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        if error.errno in _CANNOT:
            return at, size
        raise


async def _copy_through(source: Any, target: Any, at: int, step: int) -> int:
    data = memoryview(await source.pread(step, at))
    done = 0
    while done < len(data):
        done += await target.pwrite(data[done:], at + done)
    return done


async def copymode(volume: Any, src: PathLike, dst: PathLike) -> None:
    """Give `dst` the permission bits of `src`."""
    await volume.chmod(dst, _stat.S_IMODE((await volume.stat(src)).st_mode))


async def copystat(volume: Any, src: PathLike, dst: PathLike) -> None:
    """Give `dst` the permission bits and times of `src`, to the nanosecond."""
    found = await volume.stat(src)
    await volume.utime(dst, ns=(found.st_atime_ns, found.st_mtime_ns))
    await volume.chmod(dst, _stat.S_IMODE(found.st_mode))


async def _target(volume: Any, src: PathLike, dst: PathLike) -> Any:
    if not await volume.isdir(dst):
        return dst
    folder, name = _named(dst, src)
    return join(folder, os.path.basename(name))


async def copy(volume: Any, src: PathLike, dst: PathLike) -> None:
    """Copy a file with its permission bits to the file `dst`, or into the directory `dst`; errors as `copyfile`."""
    dst = await _target(volume, src, dst)
    await copyfile(volume, src, dst)
    await copymode(volume, src, dst)


async def copy2(volume: Any, src: PathLike, dst: PathLike) -> None:
    """Copy a file with its permission bits and times to the file `dst`, or into the directory `dst`; errors as
    `copyfile`."""
    dst = await _target(volume, src, dst)
    await copyfile(volume, src, dst)
    await copystat(volume, src, dst)


# -- trees -----------------------------------------------------------------------------------------------------------


async def copytree(
    volume: Any, src: PathLike, dst: PathLike, symlinks: bool = False, ignore: Ignore | None = None
) -> None:
    """Copy a directory and all that is in it to `dst`, which must not be there, with permission bits and times.

    Args:
        symlinks: make symbolic links of symbolic links; by default what they lead to is copied.
        ignore: called with each directory and the names in it; returns the names to leave out, as
            `shutil.ignore_patterns` does.

    Raises:
        Error: a list of (source, target, reason) of what could not be copied; the rest was.
        OSError: `src` cannot be read, or `dst` cannot be made.
    """
    todo: list[tuple[Any, Any]] = [_named(src, dst)]
    made: list[tuple[Any, Any]] = []
    failed: list[tuple[Any, Any, str]] = []
    top = ""
    while todo:
        folder, target = todo.pop()
        try:
            entries = await volume.listdir_with_stat(folder)
            left_out = set(ignore(folder, [name for name, _ in entries])) if ignore is not None else set()
            await (volume.mkdir if made else volume.makedirs)(target)
        except OSError as error:
            if not made:
                raise
            failed.append((folder, target, str(error)))
            continue
        made.append((folder, target))
        top = top or (await volume.stat(target)).gfid
        for name, found in entries:
            # The copy itself, when it grows inside of what is copied, is none of it.
            if name in left_out or found.gfid == top:
                continue
            old, new = join(folder, name), join(target, name)
            try:
                is_link = _stat.S_ISLNK(found.st_mode)
                if is_link and symlinks:
                    await volume.symlink(await volume.readlink(old), new)
                elif _stat.S_ISDIR(found.st_mode) or (is_link and await volume.isdir(old)):
                    todo.append((old, new))
                else:
                    await copyfile(volume, old, new)
                    await copystat(volume, old, new)
            except OSError as error:
                failed.append((old, new, str(error)))
    # Last, because what is made in a directory changes its times.
    for folder, target in reversed(made):
        try:
            await copystat(volume, folder, target)
        except OSError as error:
            failed.append((folder, target, str(error)))
    if failed:
        raise Error(failed)


async def rmtree(volume: Any, path: PathLike, ignore_errors: bool = False, onerror: OnError | None = None) -> None:
    """Remove a directory and all that is in it; symbolic links are removed, not followed. Of the root only the content.

    Args:
        ignore_errors: go on, and say nothing.
        onerror: called with the method that failed, the path and the OSError, then go on; by default it is raised.

    Raises:
        OSError: ENOTDIR when `path` is not a directory, be it a symbolic link to one.
    """
    face = getattr(volume, "face", volume)

    def failed(method: Callable[..., Any], where: str | bytes, error: OSError) -> None:
        if ignore_errors:
            return
        if onerror is None:
            raise error
        onerror(method, where, error)

    top: Any = os.fspath(path)
    if await volume.islink(top):
        return failed(face.rmtree, top, NotADirectoryError(errno.ENOTDIR, "rmtree of a symbolic link", top))
    todo: list[tuple[Any, bool]] = [(top, False)]
    while todo:
        folder, emptied = todo.pop()
        if emptied:
            if folder.strip(alike(folder, b"/")):
                try:
                    await volume.rmdir(folder)
                except OSError as error:
                    failed(face.rmdir, folder, error)
            continue
        todo.append((folder, True))
        try:
            entries = await volume._entries(folder)
        except OSError as error:
            failed(face.scandir, folder, error)
            continue
        for entry in entries:
            inner = join(folder, alike(folder, entry.name))
            if entry.stat.is_dir():
                todo.append((inner, False))
                continue
            try:
                await volume.unlink(inner)
            except OSError as error:
                failed(face.unlink, inner, error)


async def walk(
    volume: Any,
    top: PathLike,
    topdown: bool = True,
    onerror: Callable[[OSError], object] | None = None,
    followlinks: bool = False,
) -> AsyncIterator[tuple[Any, list[Any], list[Any]]]:
    """Yield (directory, names of directories, names of others) of a tree."""
    todo: list[Any] = [os.fspath(top)]
    while todo:
        folder = todo.pop()
        if isinstance(folder, tuple):
            yield folder
            continue
        folders: list[Any] = []
        others: list[Any] = []
        try:
            for entry in await volume._entries(folder):
                name = alike(folder, entry.name)
                deeper = entry.stat.is_dir()
                if followlinks and entry.stat.is_lnk():
                    deeper = await volume.isdir(join(folder, name))
                (folders if deeper else others).append(name)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            continue
        if topdown:
            yield folder, folders, others
        else:
            todo.append((folder, folders, others))
        todo.extend(join(folder, name) for name in reversed(folders))
