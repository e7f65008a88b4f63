"""The blocking face: Volume and File, for scripts and threads. See `aio` for the same with an event loop."""

from __future__ import annotations

import atexit
import io
import os
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, cast, overload

from glustx.gfapi import trees
from glustx.gfapi.attrs import Buffer
from glustx.gfapi.description import describe
from glustx.gfapi.entries import Dir, Scandir, alike
from glustx.gfapi.exceptions import ClosedFile, VolumeNotMounted
from glustx.gfapi.file import FileCore
from glustx.gfapi.flags import mode_text
from glustx.gfapi.logfile import LogFile
from glustx.gfapi.namei import BytesPath, PathLike, StrPath, Whereabouts, to_text
from glustx.gfapi.persona import Personas
from glustx.gfapi.pump import Pump
from glustx.gfapi.results import StatResult
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source, SourceLike
from glustx.gfapi.tables import FileTable, VolumeTable
from glustx.gfapi.twins import Blocking, Straight, straight_iter
from glustx.gfapi.url import DEFAULT_PORT
from glustx.gfapi.volume import VolumeCore, make_caller
from glustx.inode import O_ACCMODE
from glustx.rpc.tls import Tls
from glustx.values import gfid_text

_open_volumes: weakref.WeakSet[Volume] = weakref.WeakSet()


class Volume(Personas, VolumeTable, Blocking):
    """A mounted volume; use it in a `with`, or `close` it.

    Made from a URL, a volfile or a folder it is mounted at once. Made from hosts and a name, as in libgfapi-python, it
    is mounted by `mount` or by a `with`.

    Threads may share it. After `fork` only the parent may go on using it: in the child each call raises RuntimeError,
    and closing does nothing; a child opens a volume of its own.

    Args:
        hosts: a URL `gluster://host[:port][,host2]/volume`, a host or hosts, the path of a volfile, a volfile's text,
            or the path of a brick's folder, whose graph then runs in this process.
        volname: the volume's name, where `hosts` does not say it.
        proto: `tcp`, or `unix` when `hosts` is the path of the volume server's socket.
        port: of hosts that name none.
        log_file: where the package logs to while the volume is mounted; `/dev/null` leaves that to `logging`.
        log_level: what is logged there, GlusterFS's numbers: 4 errors, 5 warnings, 7 what happens, 9 everything.
        uid, gid, groups: who asks; the user of this process by default.
        umask: bits taken from the mode of what is made; by default 0o022, and none with hosts and a name.
        timeout: seconds that a call may take before it raises TimeoutError; without limit by default. A brick may still
            do what it was asked. `using(timeout=...)` of a volume or a file sets another limit for some calls.
        mount_timeout: seconds to wait for the volume to answer.
        tls: what secures connections with volume servers: `Tls(own_cert=..., private_key=..., ca_list=...)`, True for
            stock's files in /etc/ssl, False for nothing; by default they are secured where stock's are, on machines
            with /var/lib/glusterd/secure-access. With bricks it is the volume's option client.ssl that decides; the
            files given here are used there as well.

    Raises:
        LibgfapiException: a protocol, port, host or name that cannot be.
        ValueError: a source or a volfile that cannot be used.
        MountError: an OSError: ENOTCONN when no server or brick answers, ENOENT when the servers know no such volume.
    """

    def __init__(
        self,
        hosts: SourceLike,
        volname: str = "",
        proto: str = "tcp",
        port: int = DEFAULT_PORT,
        log_file: StrPath | None = "/dev/null",
        log_level: int = 7,
        *,
        uid: int | None = None,
        gid: int | None = None,
        groups: tuple[int, ...] | None = None,
        umask: int | None = None,
        timeout: float | None = None,
        mount_timeout: float = 30.0,
        tls: Tls | bool | None = None,
    ) -> None:
        self._owner = False
        found = describe(hosts, volname, proto, port)
        self._source = found.source.secured(tls)
        self.hosts = list(found.hosts)
        self.volname = found.source.volume
        self.protocol = proto
        self.port = port
        self.volid: uuid.UUID | None = None
        self._log = LogFile(log_file, log_level)
        self._caller = make_caller(uid, gid, groups)
        self._umask = umask if umask is not None else 0 if found.by_hosts else 0o022
        self._here = Whereabouts()
        self._ids = threading.local()
        self._timeout = timeout
        self._mount_timeout = mount_timeout
        self._session: Session | None = None
        self._owner = True
        if not found.by_hosts:
            self.mount()

    def _own(self) -> dict[str, Any] | None:
        return self._ids.__dict__

    @classmethod
    def memory(cls, **options: Any) -> Volume:
        """A volume in this process's memory, for tests; `options` as for the class."""
        return cls(Source.memory(), **options)

    def __repr__(self) -> str:
        return f"<Volume {self.name} at {self.host}{'' if self.mounted else ', not mounted'}>"

    def __enter__(self) -> Volume:
        self.mount()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A forked child leaves the parent's volume alone.
        if getattr(self, "_owner", False) and self.mounted and self._pump.usable:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._log.end()
            try:
                # Not here: collection can come in the middle of a call, and taking a graph down may wait.
                threading.Thread(target=_take_down, args=(self._pump, self._session), daemon=True).start()
            except RuntimeError:
                pass  # the interpreter ends

    @property
    def name(self) -> str:
        """The volume's name."""
        return self.volname

    @property
    def host(self) -> str:
        """The host that serves the volfile."""
        return self._source.host if self._session is None else self._session.host

    @property
    def graph(self) -> Any:
        """The running graph, for status and statedumps."""
        if self._session is None:
            raise VolumeNotMounted(f"volume {self.volname} is not mounted: {self._why}")
        return self._session.graph

    @property
    def mounted(self) -> bool:
        """True between `mount` and `umount`."""
        session = getattr(self, "_session", None)
        return session is not None and bool(session.mounted)

    @property
    def closed(self) -> bool:
        """True when the volume is not mounted."""
        return not self.mounted

    def mount(self) -> None:
        """Get the volfile and bring the graph up. A second call does nothing.

        Raises:
            MountError: no server or brick answers, or the servers know no such volume.
            LibgfapiException: the log file cannot be written.
            ValueError: a volfile that cannot be run.
        """
        if self.mounted or not self._owner:
            return
        self._log.begin()
        self._pump = Pump()
        try:
            session = Session(self._source, self._pump, self._pump, timeout=self._mount_timeout)
            self._begin(VolumeCore(session, self._caller, self._umask, self._here))
            self._pump.run(session.mount())  # the limit of a call is not that of mounting
        except BaseException:
            self._end()
            self._pump.close()
            self._log.end()
            raise
        self._session = session
        self._pump.start_background()
        _open_volumes.add(self)

    def close(self) -> None:
        """Take the graph down. Files that are still open can only be closed then. A second call does nothing."""
        session = self._session
        if not self._owner or session is None or not session.mounted or not self._pump.usable:
            return
        try:
            _take_down(self._pump, session)
        finally:
            self._end()
            self._here.path = b"/"
            self._log.end()
            _open_volumes.discard(self)

    def umount(self) -> None:
        """Take the graph down, as `close`; `mount` brings it up again."""
        self.close()

    @property
    def log_file(self) -> StrPath | None:
        """Where the package logs to while the volume is mounted."""
        return self._log.path

    @property
    def log_level(self) -> int:
        """What is logged there, by GlusterFS's numbers."""
        return self._log.level

    def set_logging(self, log_file: StrPath | None, log_level: int) -> None:
        """Log to another file or at another level, at once when the volume is mounted.

        Args:
            log_file: `/dev/null` or None leaves the log to `logging`.
            log_level: GlusterFS's numbers, 0 to 9.

        Raises:
            LibgfapiException: the file cannot be written.
        """
        log = LogFile(log_file, log_level)
        if self.mounted:
            log.begin()
        self._log.end()
        self._log = log

    def disable_logging(self) -> None:
        """Log to no file any more."""
        self.set_logging("/dev/null", self.log_level)

    def get_volume_id(self) -> uuid.UUID:
        """Return the volume's id, which its bricks keep on their root."""
        if self.volid is None:
            self.volid = self._volume_id()
        return self.volid

    def getcwd(self) -> str:
        """Return the directory that paths without a leading slash start from."""
        return to_text(self._core.here.path)

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
        view.__dict__.update(self.__dict__)
        view._owner = False
        view._timeout = self._timeout if timeout is None else timeout
        view._ids = threading.local()
        view._personal = False
        view._begin(self._core.using(uid, gid, groups, umask))
        return view

    # -- files -------------------------------------------------------------------------------------------------------

    def open(self, path: PathLike, flags: int | str = os.O_RDONLY, mode: int | None = None) -> File:
        """Open a file for raw bytes; wrap it in `io.BufferedReader` or `io.TextIOWrapper` as needed.

        Args:
            flags: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask; by default 0o777 with flags, as `os.open` has it,
                and 0o666 with a mode string.
        """
        return File._of(self._open_core(path, flags, mode), self._pump, self._timeout)

    def fopen(self, path: PathLike, mode: str = "r") -> File:
        """Open a file for raw bytes, whatever the mode says of text.

        Args:
            mode: `r`, `w`, `a`, `x`, with `+` and `b` as wanted; the file's `mode` is just that.

        Raises:
            ValueError: a mode that is none; TypeError: it is not a string. OSError: as `open`.
        """
        if not isinstance(mode, str):
            raise TypeError(f"mode {mode!r} is not a string")
        return File(self.open(path, mode), mode=mode)

    def create(self, path: PathLike, mode: int = 0o666, *, exclusive: bool = False) -> File:
        """Make a file and open it for reading and writing; one that is there is emptied, or refused if `exclusive`."""
        how = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
        return self.open(path, how, mode)

    @staticmethod
    def copyfileobj(fsrc: Any, fdst: Any, length: int = 128 << 10) -> None:
        """Copy what is left of one open file to another, `length` bytes at a time; either may be any raw or buffered
        file."""
        buffer = memoryview(bytearray(length))
        while count := fsrc.readinto(buffer):
            done = 0
            while done < count:
                done += fdst.write(buffer[done:count])

    @overload
    def getxattr(self, path: PathLike, key: str, size: int = 0, *, follow_symlinks: bool = True) -> str: ...

    @overload
    def getxattr(self, path: PathLike, key: bytes, size: int = 0, *, follow_symlinks: bool = True) -> bytes: ...

    def getxattr(self, path: PathLike, key: str | bytes, size: int = 0, *, follow_symlinks: bool = True) -> str | bytes:
        """Return the value of an extended attribute: text for a key that is text, bytes for one that is bytes.

        Text is UTF-8, with surrogates for what is none, so no byte is lost: `os.fsencode` gives them back.

        Args:
            size: the most bytes that the value may have; 0 for any.

        Raises:
            OSError: ENODATA when there is no such attribute, ERANGE when it has more bytes than `size`.
        """
        return alike(key, self._getxattr(path, key, size, follow_symlinks=follow_symlinks))

    @overload
    def readlink(self, path: StrPath) -> str: ...

    @overload
    def readlink(self, path: BytesPath) -> bytes: ...

    def readlink(self, path: PathLike) -> str | bytes:
        """Return what a symbolic link says, as bytes for a path of bytes; OSError EINVAL when it is none."""
        return alike(os.fspath(path), self._readlink(path))

    @overload
    def realpath(self, path: StrPath) -> str: ...

    @overload
    def realpath(self, path: BytesPath) -> bytes: ...

    def realpath(self, path: PathLike) -> str | bytes:
        """Return the path without symbolic links and dots, as bytes for one of bytes; what it names must exist."""
        return alike(os.fspath(path), self._realpath(path))

    # -- directories -------------------------------------------------------------------------------------------------

    @overload
    def listdir(self, path: StrPath = "/") -> list[str]: ...

    @overload
    def listdir(self, path: BytesPath) -> list[bytes]: ...

    def listdir(self, path: PathLike = "/") -> Any:
        """Return the names in a directory, without `.` and `..`, as bytes for a path of bytes."""
        text = os.fspath(path)
        return [alike(text, entry.name) for entry in self._entries(path)]

    @overload
    def listdir_with_stat(self, path: StrPath = "/") -> list[tuple[str, StatResult]]: ...

    @overload
    def listdir_with_stat(self, path: BytesPath) -> list[tuple[bytes, StatResult]]: ...

    def listdir_with_stat(self, path: PathLike = "/") -> Any:
        """Return pairs of name and attributes (a link's own) of all in a directory, without `.` and `..`."""
        text = os.fspath(path)
        return [(alike(text, entry.name), StatResult(entry.stat)) for entry in self._entries(path)]

    @overload
    def scandir(self, path: StrPath = "/") -> Scandir[str]: ...

    @overload
    def scandir(self, path: BytesPath) -> Scandir[bytes]: ...

    def scandir(self, path: PathLike = "/") -> Any:
        """Return an iterator of DirEntry, attributes included; a context manager, as `os.scandir`."""
        return Scandir(self, path, self._opendir_core(path))

    def opendir(self, path: PathLike, readdirplus: bool = False) -> Dir:
        """Open a directory, to iterate over its entries as they come from the brick, `.` and `..` included.

        Args:
            readdirplus: yield pairs of entry and attributes.
        """
        return Dir(self, path, self._opendir_core(path), readdirplus)

    @overload
    def walk(
        self,
        top: StrPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]: ...

    @overload
    def walk(
        self,
        top: BytesPath,
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]: ...

    def walk(
        self,
        top: PathLike = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """Yield (directory, names of directories, names of others) of a tree.

        A symbolic link to a directory is one of the others, unless `followlinks`.

        Args:
            topdown: a directory before what is in it; names taken from the second list are then not entered.
            onerror: called with the OSError of a directory that cannot be read; by default it is passed over.
        """
        return straight_iter(trees.walk(Straight(self), top, topdown, onerror, followlinks))


class File(FileTable, Blocking, io.RawIOBase):
    """An open file, raw and unbuffered: `io.BufferedReader`, `shutil.copyfileobj`, `tarfile` and others take it.

    Threads may share it; those that read and write at the position take turns. `Volume.open` returns it; calling the
    class with one, as scripts for libgfapi-python do, gives the same object another name or mode to show.
    """

    _core: FileCore
    _view = False
    name: str | bytes
    mode: str

    def __new__(cls, fd: File, path: PathLike | None = None, mode: str | None = None) -> File:
        if not isinstance(fd, File):
            raise ValueError(f"{fd!r} is not what Volume.open returns")
        return fd

    def __init__(self, fd: File, path: PathLike | None = None, mode: str | None = None) -> None:
        if path is not None:
            self.name = os.fspath(path)
        if mode is not None:
            self.mode = mode

    @classmethod
    def _of(cls, core: FileCore, pump: Pump, timeout: float | None) -> File:
        file = super().__new__(cls)
        file.name = os.fspath(cast(PathLike, core.path))
        file.mode = mode_text(core.flags)
        file._pump = pump
        file._timeout = timeout
        file._core = core  # last: an interrupt before leaves a file that is closed
        return file

    def using(self, *, timeout: float) -> File:
        """Return the same open file with another limit for each call: `file.using(timeout=0.5).pread(4096, 0)`.

        The view needs no closing.
        """
        view = File._of(self._live(), self._pump, timeout)
        view.name, view.mode, view._view = self.name, self.mode, True
        return view

    def __repr__(self) -> str:
        return f"<File {self.name!r} mode {self.mode!r}{' closed' if self.closed else ''}>"

    def _live(self) -> FileCore:
        core: FileCore = self._core
        if not core.open:
            raise ClosedFile()
        return core

    @property
    def gfid(self) -> str:
        """The file's gfid as text."""
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

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read to the end of a line, and not more than `size` bytes; b"" at the end of the file."""
        return self._do(self._live().readline(-1 if size is None else size))

    def write(self, data: Buffer | str, flags: int = 0) -> int:  # type: ignore[override]
        """Write `data` at the position (at the end in append mode); return how many bytes were written.

        Text is written as UTF-8. `flags` go to the brick with the data; os.O_DIRECT, for one, keeps caches out of it.
        """
        return self._do(self._live().write(data.encode() if isinstance(data, str) else data, flags))

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it; `whence` may be os.SEEK_DATA or os.SEEK_HOLE as well."""
        core = self._live()
        if whence == os.SEEK_SET and offset >= 0:
            core.pos = offset
            return offset
        return self._do(core.seek(offset, whence))

    def lseek(self, pos: int, how: int) -> int:
        """Move the position and return it; `how` is os.SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE."""
        return self.seek(pos, how)

    def tell(self) -> int:
        """Return the position."""
        return self._live().pos

    def truncate(self, size: int | None = None) -> int:
        """Set the file's size, to the position by default, and return it."""
        return self._do(self._live().truncate(size))

    def ftruncate(self, length: int) -> None:
        """Set the file's size."""
        self.truncate(length)

    @overload
    def getxattr(self, key: str, size: int = 0) -> str: ...

    @overload
    def getxattr(self, key: bytes, size: int = 0) -> bytes: ...

    def getxattr(self, key: str | bytes, size: int = 0) -> str | bytes:
        """Return the value of an extended attribute: text for a key that is text, bytes for one that is bytes.

        Raises:
            OSError: ENODATA when there is no such attribute, ERANGE when it has more bytes than `size` (0 for any).
        """
        return alike(key, self._getxattr(key, size))

    fgetxattr = getxattr

    def dup(self) -> File:
        """Return another file object on the same open file, with a position of its own, which starts at 0."""
        self._live()
        return File(File._of(self._dup_core(), self._pump, self._timeout), self.name, self.mode)

    @property
    def originalpath(self) -> str | bytes:
        """The path, as `name`."""
        return self.name

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
        # The core gives its fd back by itself.
        core = getattr(self, "_core", None)
        if core is not None and core.open and not self._view:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)


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
