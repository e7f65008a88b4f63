"""The blocking face: Volume and File, for scripts and threads. See `aio` for the same with an event loop."""

from __future__ import annotations

import atexit
import io
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast

from glustx.gfapi.entries import Scandir, join
from glustx.gfapi.file import Buffer, FileCore
from glustx.gfapi.flags import mode_text
from glustx.gfapi.namei import PathLike, to_text
from glustx.gfapi.pump import Pump
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source, SourceLike
from glustx.gfapi.tables import FileTable, VolumeTable
from glustx.gfapi.twins import Blocking
from glustx.gfapi.volume import VolumeCore, make_caller
from glustx.inode import O_ACCMODE

_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


class Volume(VolumeTable, Blocking):
    """A mounted volume; use it in a `with`, or `close` it.

    Threads may share it. After `fork` only the parent may go on using it.

    Args:
        source: a URL `gluster://host[:port][,host2]/volume`, a host or hosts, the path of a volfile, a volfile's text,
            or the path of a brick's folder, whose graph then runs in this process.
        volume: the volume's name, where the source does not say it.
        uid, gid, groups: who asks; the user of this process by default.
        umask: bits taken from the mode of what is made.
        timeout: seconds that a call may take; without limit by default.
        mount_timeout: seconds to wait for the volume to answer.

    Raises:
        ValueError: a source or a volfile that cannot be used.
        OSError: ENOTCONN when no server or brick answers, ENOENT when the servers know no such volume.
    """

    def __init__(
        self,
        source: SourceLike,
        volume: str = "",
        *,
        uid: int | None = None,
        gid: int | None = None,
        groups: tuple[int, ...] | None = None,
        umask: int = 0o022,
        timeout: float | None = None,
        mount_timeout: float = 30.0,
    ) -> None:
        self._owner = False
        found = Source.of(source, volume)
        self._pump = Pump()
        self._timeout = timeout
        session = Session(found, self._pump, self._pump, timeout=mount_timeout)
        self._core = VolumeCore(session, make_caller(uid, gid, groups), umask)
        try:
            self._do(session.mount())
        except BaseException:
            self._pump.close()
            raise
        self._pump.start_background()
        self._owner = True
        _open_volumes.add(self)

    @classmethod
    def memory(cls, **options: Any) -> Volume:
        """A volume in this process's memory, for tests; `options` as for the class."""
        return cls(Source.memory(), **options)

    def __repr__(self) -> str:
        session = self._core.session
        return f"<Volume {session.volume} at {session.host}{'' if session.mounted else ', closed'}>"

    def __enter__(self) -> Volume:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", False) and self._core.session.mounted:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            try:
                # Not here: collection can come in the middle of a call, and taking a graph down may wait.
                threading.Thread(target=_take_down, args=(self._pump, self._core.session), daemon=True).start()
            except RuntimeError:
                pass  # the interpreter ends

    @property
    def name(self) -> str:
        """The volume's name."""
        return str(self._core.session.volume)

    @property
    def host(self) -> str:
        """The host that served the volfile."""
        return str(self._core.session.host)

    @property
    def graph(self) -> Any:
        """The running graph, for status and statedumps."""
        return self._core.session.graph

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return not self._core.session.mounted

    def close(self) -> None:
        """Take the graph down. Files that are still open can only be closed then. A second call does nothing."""
        session: Session = self._core.session
        if not self._owner or not session.mounted or not self._pump.usable:
            return
        try:
            _take_down(self._pump, session)
        finally:
            _open_volumes.discard(self)

    def using(
        self,
        *,
        uid: int | None = None,
        gid: int | None = None,
        groups: tuple[int, ...] | None = None,
        umask: int | None = None,
        timeout: float | None = None,
    ) -> Volume:
        """Return the same mounted volume as another user, or with another limit: `vol.using(uid=1000).mkdir(...)`.

        What is not given stays as it is. The view needs no closing.
        """
        view = object.__new__(Volume)
        view._owner = False
        view._pump = self._pump
        view._timeout = self._timeout if timeout is None else timeout
        view._core = self._core.using(uid, gid, groups, umask)
        return view

    # -- files -------------------------------------------------------------------------------------------------------

    def open(self, path: PathLike, how: int | str = os.O_RDONLY, mode: int = 0o666) -> File:
        """Open a file for raw bytes; wrap it in `io.BufferedReader` or `io.TextIOWrapper` as needed.

        Args:
            how: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask.
        """
        core = self._open_core(path, how, mode)
        return File(core, self._pump, self._timeout)

    def create(self, path: PathLike, mode: int = 0o666, *, exclusive: bool = False) -> File:
        """Make a file and open it for reading and writing; one that is there is emptied, or refused if `exclusive`."""
        how = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
        return self.open(path, how, mode)

    # -- directories -------------------------------------------------------------------------------------------------

    def scandir(self, path: PathLike = "/") -> Scandir:
        """Return an iterator of DirEntry, attributes included; a context manager, as `os.scandir`."""
        return Scandir(self, path, self._opendir_core(path))

    def walk(
        self,
        top: PathLike = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield (folder, names of folders, names of others) of a tree, as `os.walk` does."""
        folder = os.fspath(top) if not isinstance(top, bytes) else to_text(top)
        if isinstance(folder, bytes):
            folder = to_text(folder)
        try:
            with self.scandir(folder) as entries:
                found = list(entries)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        folders = [entry.name for entry in found if entry.is_dir(follow_symlinks=True)]
        known = set(folders)
        others = [entry.name for entry in found if entry.name not in known]
        links = {entry.name for entry in found if entry.is_symlink()}
        if topdown:
            yield folder, folders, others
        for name in folders:
            if followlinks or name not in links:
                yield from self.walk(join(folder, name), topdown, onerror, followlinks)
        if not topdown:
            yield folder, folders, others


class File(FileTable, Blocking, io.RawIOBase):
    """An open file, raw and unbuffered: `io.BufferedReader`, `shutil.copyfileobj`, `tarfile` and others take it.

    Threads may share it; those that read and write at the position take turns.
    """

    def __init__(self, core: FileCore, pump: Pump, timeout: float | None) -> None:
        self._core = core
        self._pump = pump
        self._timeout = timeout
        path = core.path
        self.name = os.fspath(cast("str | bytes", path))
        self.mode = mode_text(core.flags)

    def __repr__(self) -> str:
        return f"<File {self.name!r} mode {self.mode!r}{' closed' if self.closed else ''}>"

    def _live(self) -> FileCore:
        core: FileCore = self._core
        if not core.open:
            raise ValueError("I/O operation on closed file")
        return core

    @property
    def gfid(self) -> str:
        """The file's gfid as text."""
        from glustx.values import gfid_text

        return gfid_text(self._core.fd.gfid)

    def readable(self) -> bool:
        """Tell whether the file was opened for reading."""
        return self._live().flags & O_ACCMODE != os.O_WRONLY

    def writable(self) -> bool:
        """Tell whether the file was opened for writing."""
        return self._live().flags & O_ACCMODE != os.O_RDONLY

    def seekable(self) -> bool:
        """Tell that the position can be moved."""
        self._live()
        return True

    def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes at the position, all that is left by default; b"" at the end."""
        return self._do(self._live().read(-1 if size is None else size))

    def readall(self) -> bytes:
        """Read all that is left."""
        return self._do(self._live().read(-1))

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer` at the position; return how many bytes came, 0 at the end."""
        return self._do(self._live().readinto(buffer))

    def write(self, data: Buffer) -> int:  # type: ignore[override]
        """Write `data` at the position (at the end in append mode); return how many bytes were written."""
        return self._do(self._live().write(data))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it; `whence` may be os.SEEK_DATA or os.SEEK_HOLE as well."""
        core = self._live()
        if whence == os.SEEK_SET and offset >= 0:
            core.pos = offset
            return offset
        return self._do(core.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return self._live().pos

    def truncate(self, size: int | None = None) -> int:
        """Set the file's size, to the position by default, and return it."""
        return self._do(self._live().truncate(size))

    def copy_file_range(self, target: File, count: int, offset: int = 0, target_offset: int = 0) -> int:
        """Copy `count` bytes at `offset` to `target_offset` of another open file of the volume, on the brick.

        Returns how many bytes were copied: fewer at the end of this file.
        """
        return self._do(self._live().copy_range(target._live(), count, offset, target_offset))

    def flush(self) -> None:
        """Nothing is held back here; see `fsync` for what makes data durable."""
        self._live()

    def close(self) -> None:
        """Close the file. An error of a write that was held back below is raised here. A second call does nothing."""
        core = getattr(self, "_core", None)
        if core is None or not core.open:
            return
        super().close()
        if core.session.mounted and self._pump.usable:
            self._do(core.close())
        else:
            core.open = False  # its fd went with the volume

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        core = getattr(self, "_core", None)
        return core is None or not core.open

    def __enter__(self) -> File:
        self._live()
        return self

    def __del__(self) -> None:
        # No call may block here: collection can come in the middle of another call of this thread.
        core = getattr(self, "_core", None)
        if core is not None and core.open:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            try:
                self._pump.post(core.give_back)
            except RuntimeError:
                pass  # the volume is closed, and its fds with it


def _take_down(pump: Pump, session: Session) -> None:
    try:
        pump.run(session.unmount())
    finally:
        pump.close()


def _close_all() -> None:
    for volume in list(_open_volumes):
        try:
            volume.close()
        except Exception:
            pass  # the process ends; nobody is left to hear of it


atexit.register(_close_all)
