"""The face for asyncio: AsyncVolume and AsyncFile, whose methods are coroutines. See `sync` for the blocking twins.

A call runs at once, inside the event loop's thread; only one that has to wait makes a future. Cancelling the task
cancels the call and waits until it has undone what it began.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast, overload

from glustx.errors import FopCancelled
from glustx.gfapi import trees
from glustx.gfapi.attrs import Buffer
from glustx.gfapi.description import describe
from glustx.gfapi.entries import AsyncDir, AsyncScandir, alike
from glustx.gfapi.errors import UNDO_SECONDS, late
from glustx.gfapi.exceptions import ClosedFile, VolumeNotMounted
from glustx.gfapi.file import FileCore
from glustx.gfapi.flags import mode_text
from glustx.gfapi.logfile import LogFile
from glustx.gfapi.namei import BytesPath, PathLike, StrPath, Whereabouts, to_text
from glustx.gfapi.persona import Personas
from glustx.gfapi.results import StatResult
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source, SourceLike
from glustx.gfapi.tables import FileTable, VolumeTable
from glustx.gfapi.twins import Asynchronous
from glustx.gfapi.url import DEFAULT_PORT
from glustx.gfapi.volume import VolumeCore, make_caller
from glustx.rpc.tls import Tls
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor
from glustx.runtime import Run, drive, turn
from glustx.values import gfid_text

R = TypeVar("R")


class _Call:
    """One call under way."""

    __slots__ = ("done", "error", "future", "late", "run", "value")

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.run: Run | None = None
        self.future: asyncio.Future[None] | None = None
        self.late = False

    def begin(self, co: Coroutine[Any, Any, Any]) -> None:
        self.run = drive(co, self.finish)

    def expire(self) -> None:
        if self.run is not None and not self.done:
            self.late = True
            self.run.cancel()
            asyncio.get_running_loop().call_later(UNDO_SECONDS, self.let_go)

    def let_go(self) -> None:
        """End for the caller, though the coroutine still undoes what it began."""
        self.finish(None, FopCancelled())

    def finish(self, value: Any, error: BaseException | None) -> None:
        if self.done:
            return
        self.value = value
        self.error = error
        self.done = True
        self.run = None  # it knows us: the two would keep the value until the next collection
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


async def run_in_loop(co: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
    """Drive a coroutine of the runtime from an asyncio task and return its value or raise its error.

    Args:
        timeout: seconds after which it is cancelled and TimedOut raised. What it has to undo by then goes on without
            the caller when it takes longer than a moment.
    """
    call = _Call()
    turn(call.begin, co)
    if not call.done:
        loop = asyncio.get_running_loop()
        timer = None
        run = call.run
        assert run is not None
        if timeout is not None:
            timer = loop.call_later(timeout, turn, call.expire)
        stop: asyncio.CancelledError | None = None
        try:
            while not call.done:
                call.future = loop.create_future()
                try:
                    await call.future
                except asyncio.CancelledError as cancelled:
                    stop = cancelled
                    turn(run.cancel)
        finally:
            if timer is not None:
                timer.cancel()
        if stop is not None:
            try:
                raise stop
            finally:
                del stop, call
    error = call.error
    if error is not None:
        if call.late and isinstance(error, FopCancelled):
            error = late(error, co, timeout)
        try:
            raise error
        finally:
            del error, call
    value: R = call.value
    return value


class _InLoop(Asynchronous):
    _timeout: float | None
    _loop: asyncio.AbstractEventLoop | None

    async def _call(self, co: Coroutine[Any, Any, R]) -> R:
        if asyncio.get_running_loop() is not self._loop:
            co.close()
            raise RuntimeError("the volume is not mounted, or was mounted in another event loop")
        return await run_in_loop(co, self._timeout)


class AsyncVolume(Personas, VolumeTable, _InLoop):
    """A volume for asyncio: `async with AsyncVolume("gluster://host/vm") as vol:`, or `mount` and `close` it.

    It belongs to the event loop in which it is mounted, and to the process: after `fork` a child opens its own.

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
        ValueError: a source that cannot be used.
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
        self._ids: weakref.WeakKeyDictionary[asyncio.Task[Any], dict[str, Any]] = weakref.WeakKeyDictionary()
        self._timeout = timeout
        self._mount_timeout = mount_timeout
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._network: AsyncioNetwork | None = None
        self._owner = True

    def _own(self) -> dict[str, Any] | None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            return None
        return None if task is None else self._ids.setdefault(task, {})

    @classmethod
    def memory(cls, **options: Any) -> AsyncVolume:
        """A volume in this process's memory, for tests; `options` as for the class."""
        return cls(Source.memory(), **options)

    def __repr__(self) -> str:
        return f"<AsyncVolume {self.name} at {self.host}{'' if self.mounted else ', not mounted'}>"

    async def mount(self) -> AsyncVolume:
        """Get the volfile, bring the graph up, and return the volume itself. A second call does nothing.

        Raises:
            MountError: no server or brick answers, or the servers know no such volume.
            LibgfapiException: the log file cannot be written.
            ValueError: a volfile that cannot be run.
        """
        if self.mounted or not self._owner:
            return self
        self._log.begin()
        loop = asyncio.get_running_loop()
        network = AsyncioNetwork(loop)
        session = Session(self._source, AsyncioReactor(loop), network, timeout=self._mount_timeout)
        self._loop = loop
        self._network = network
        self._begin(VolumeCore(session, self._caller, self._umask, self._here))
        try:
            await run_in_loop(session.mount())  # the limit of a call is not that of mounting
        except BaseException:
            self._end()
            self._log.end()
            await network.close()
            raise
        self._session = session
        return self

    async def close(self) -> None:
        """Take the graph down. Files that are still open can only be closed then. A second call does nothing."""
        session = self._session
        if not self._owner or session is None or not session.mounted:
            return
        try:
            await run_in_loop(session.unmount())
        finally:
            self._end()
            self._here.path = b"/"
            self._log.end()
            if self._network is not None:
                await self._network.close()

    async def umount(self) -> None:
        """Take the graph down, as `close`; `mount` brings it up again."""
        await self.close()

    async def __aenter__(self) -> AsyncVolume:
        return await self.mount()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", False) and self.mounted:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

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

    async def get_volume_id(self) -> uuid.UUID:
        """Return the volume's id, which its bricks keep on their root."""
        if self.volid is None:
            self.volid = await self._volume_id()
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
    ) -> AsyncVolume:
        """Return the same mounted volume as another user, or with another limit: `vol.using(uid=1000).mkdir(...)`.

        What is not given stays as it is. The view needs no closing.
        """
        view = object.__new__(AsyncVolume)
        view.__dict__.update(self.__dict__)
        view._owner = False
        view._timeout = self._timeout if timeout is None else timeout
        view._ids = weakref.WeakKeyDictionary()
        view._personal = False
        view._begin(self._core.using(uid, gid, groups, umask))
        return view

    # -- files -------------------------------------------------------------------------------------------------------

    async def open(self, path: PathLike, flags: int | str = os.O_RDONLY, mode: int | None = None) -> AsyncFile:
        """Open a file for raw bytes.

        Args:
            flags: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask; by default 0o777 with flags, as `os.open` has it,
                and 0o666 with a mode string.
        """
        return AsyncFile._of(await self._open_core(path, flags, mode), self)

    async def fopen(self, path: PathLike, mode: str = "r") -> AsyncFile:
        """Open a file for raw bytes, whatever the mode says of text.

        Args:
            mode: `r`, `w`, `a`, `x`, with `+` and `b` as wanted; the file's `mode` is just that.

        Raises:
            ValueError: a mode that is none; TypeError: it is not a string. OSError: as `open`.
        """
        if not isinstance(mode, str):
            raise TypeError(f"mode {mode!r} is not a string")
        return AsyncFile(await self.open(path, mode), mode=mode)

    async def create(self, path: PathLike, mode: int = 0o666, *, exclusive: bool = False) -> AsyncFile:
        """Make a file and open it for reading and writing; one that is there is emptied, or refused if `exclusive`."""
        how = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
        return await self.open(path, how, mode)

    @staticmethod
    async def copyfileobj(fsrc: Any, fdst: Any, length: int = 128 << 10) -> None:
        """Copy what is left of one open file to another, `length` bytes at a time; either may be any
        object with such coroutines."""
        buffer = memoryview(bytearray(length))
        while count := await fsrc.readinto(buffer):
            done = 0
            while done < count:
                done += await fdst.write(buffer[done:count])

    @overload
    async def getxattr(self, path: PathLike, key: str, size: int = 0, *, follow_symlinks: bool = True) -> str: ...

    @overload
    async def getxattr(self, path: PathLike, key: bytes, size: int = 0, *, follow_symlinks: bool = True) -> bytes: ...

    async def getxattr(
        self, path: PathLike, key: str | bytes, size: int = 0, *, follow_symlinks: bool = True
    ) -> str | bytes:
        """Return the value of an extended attribute: text for a key that is text, bytes for one that is bytes.

        Text is UTF-8, with surrogates for what is none, so no byte is lost: `os.fsencode` gives them back.

        Args:
            size: the most bytes that the value may have; 0 for any.

        Raises:
            OSError: ENODATA when there is no such attribute, ERANGE when it has more bytes than `size`.
        """
        return alike(key, await self._getxattr(path, key, size, follow_symlinks=follow_symlinks))

    @overload
    async def readlink(self, path: StrPath) -> str: ...

    @overload
    async def readlink(self, path: BytesPath) -> bytes: ...

    async def readlink(self, path: PathLike) -> str | bytes:
        """Return what a symbolic link says, as bytes for a path of bytes; OSError EINVAL when it is none."""
        return alike(os.fspath(path), await self._readlink(path))

    @overload
    async def realpath(self, path: StrPath) -> str: ...

    @overload
    async def realpath(self, path: BytesPath) -> bytes: ...

    async def realpath(self, path: PathLike) -> str | bytes:
        """Return the path without symbolic links and dots, as bytes for one of bytes; what it names must exist."""
        return alike(os.fspath(path), await self._realpath(path))

    # -- directories -------------------------------------------------------------------------------------------------

    @overload
    async def listdir(self, path: StrPath = "/") -> list[str]: ...

    @overload
    async def listdir(self, path: BytesPath) -> list[bytes]: ...

    async def listdir(self, path: PathLike = "/") -> Any:
        """Return the names in a directory, without `.` and `..`, as bytes for a path of bytes."""
        text = os.fspath(path)
        return [alike(text, entry.name) for entry in await self._entries(path)]

    @overload
    async def listdir_with_stat(self, path: StrPath = "/") -> list[tuple[str, StatResult]]: ...

    @overload
    async def listdir_with_stat(self, path: BytesPath) -> list[tuple[bytes, StatResult]]: ...

    async def listdir_with_stat(self, path: PathLike = "/") -> Any:
        """Return pairs of name and attributes (a link's own) of all in a directory, without `.` and `..`."""
        text = os.fspath(path)
        return [(alike(text, entry.name), StatResult(entry.stat)) for entry in await self._entries(path)]

    @overload
    def scandir(self, path: StrPath = "/") -> AsyncScandir[str]: ...

    @overload
    def scandir(self, path: BytesPath) -> AsyncScandir[bytes]: ...

    def scandir(self, path: PathLike = "/") -> Any:
        """Return an asynchronous iterator of AsyncDirEntry, attributes included; a context manager as well."""
        return AsyncScandir(self, path)

    async def opendir(self, path: PathLike, readdirplus: bool = False) -> AsyncDir:
        """Open a directory, to iterate over its entries as they come from the brick, `.` and `..` included.

        Args:
            readdirplus: yield pairs of entry and attributes.
        """
        folder = AsyncDir(self, path, readdirplus)
        await folder._begin()
        return folder

    @overload
    def walk(
        self,
        top: StrPath = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> AsyncIterator[tuple[str, list[str], list[str]]]: ...

    @overload
    def walk(
        self,
        top: BytesPath,
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> AsyncIterator[tuple[bytes, list[bytes], list[bytes]]]: ...

    def walk(
        self,
        top: PathLike = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> AsyncIterator[tuple[Any, list[Any], list[Any]]]:
        """Yield (directory, names of directories, names of others) of a tree.

        A symbolic link to a directory is one of the others, unless `followlinks`.

        Args:
            topdown: a directory before what is in it; names taken from the second list are then not entered.
            onerror: called with the OSError of a directory that cannot be read; by default it is passed over.
        """
        return trees.walk(self, top, topdown, onerror, followlinks)


class AsyncFile(FileTable, _InLoop):
    """An open file: `async with await vol.open(path) as file:`.

    Tasks may share it; those that read and write at the position take turns.
    """

    _core: FileCore
    _view = False
    name: str | bytes
    mode: str

    def __new__(cls, fd: AsyncFile, path: PathLike | None = None, mode: str | None = None) -> AsyncFile:
        if not isinstance(fd, AsyncFile):
            raise ValueError(f"{fd!r} is not what AsyncVolume.open returns")
        return fd

    def __init__(self, fd: AsyncFile, path: PathLike | None = None, mode: str | None = None) -> None:
        if path is not None:
            self.name = os.fspath(path)
        if mode is not None:
            self.mode = mode

    @classmethod
    def _of(cls, core: FileCore, volume: AsyncVolume | AsyncFile) -> AsyncFile:
        file = super().__new__(cls)
        file._core = core
        file._loop = volume._loop
        file._timeout = volume._timeout
        file.name = os.fspath(cast(PathLike, core.path))
        file.mode = mode_text(core.flags)
        return file

    def using(self, *, timeout: float) -> AsyncFile:
        """Return the same open file with another limit for each call: `await file.using(timeout=0.5).pread(4096, 0)`.

        The view needs no closing.
        """
        view = AsyncFile._of(self._live(), self)
        view.name, view.mode, view._timeout, view._view = self.name, self.mode, timeout, True
        return view

    def __repr__(self) -> str:
        return f"<AsyncFile {self.name!r} mode {self.mode!r}{' closed' if self.closed else ''}>"

    def _live(self) -> FileCore:
        core: FileCore = self._core
        if not core.open:
            raise ClosedFile()
        return core

    @property
    def gfid(self) -> str:
        """The file's gfid as text."""
        return gfid_text(self._core.fd.gfid)

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return not self._core.open

    async def read(self, size: int | None = -1) -> bytes:
        """Read up to `size` bytes at the position, all that is left by default; b"" at the end."""
        return await self._do(self._live().read(-1 if size is None else size))

    async def readinto(self, buffer: Buffer) -> int:
        """Read into `buffer` at the position; return how many bytes came, 0 at the end."""
        return await self._do(self._live().readinto(buffer))

    async def readline(self, size: int | None = -1, /) -> bytes:
        """Read to the end of a line, and not more than `size` bytes; b"" at the end of the file."""
        return await self._do(self._live().readline(-1 if size is None else size))

    async def write(self, data: Buffer | str, flags: int = 0) -> int:
        """Write `data` at the position (at the end in append mode); return how many bytes were written.

        Text is written as UTF-8. `flags` go to the brick with the data; os.O_DIRECT, for one, keeps caches out of it.
        """
        return await self._do(self._live().write(data.encode() if isinstance(data, str) else data, flags))

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it; `whence` may be os.SEEK_DATA or os.SEEK_HOLE as well."""
        return await self._do(self._live().seek(offset, whence))

    async def lseek(self, pos: int, how: int) -> int:
        """Move the position and return it; `how` is os.SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE."""
        return await self.seek(pos, how)

    def tell(self) -> int:
        """Return the position."""
        return self._live().pos

    async def truncate(self, size: int | None = None) -> int:
        """Set the file's size, to the position by default, and return it."""
        return await self._do(self._live().truncate(size))

    async def ftruncate(self, length: int) -> None:
        """Set the file's size."""
        await self.truncate(length)

    @overload
    async def getxattr(self, key: str, size: int = 0) -> str: ...

    @overload
    async def getxattr(self, key: bytes, size: int = 0) -> bytes: ...

    async def getxattr(self, key: str | bytes, size: int = 0) -> str | bytes:
        """Return the value of an extended attribute: text for a key that is text, bytes for one that is bytes.

        Raises:
            OSError: ENODATA when there is no such attribute, ERANGE when it has more bytes than `size` (0 for any).
        """
        return alike(key, await self._getxattr(key, size))

    fgetxattr = getxattr

    async def dup(self) -> AsyncFile:
        """Return another file object on the same open file, with a position of its own, which starts at 0."""
        self._live()
        return AsyncFile(AsyncFile._of(await self._dup_core(), self), self.name, self.mode)

    @property
    def originalpath(self) -> str | bytes:
        """The path, as `name`."""
        return self.name

    async def copy_file_range(self, target: AsyncFile, count: int, offset: int = 0, target_offset: int = 0) -> int:
        """Copy `count` bytes at `offset` to `target_offset` of another open file of the volume, on the brick.

        Returns how many bytes were copied: fewer at the end of this file.
        """
        return await self._do(self._live().copy_range(target._live(), count, offset, target_offset))

    async def close(self) -> None:
        """Close the file. An error of a write that was held back below is raised here. A second call does nothing."""
        core: FileCore = self._core
        if core.open and core.session.mounted:
            await self._do(core.close())
        core.open = False

    async def __aenter__(self) -> AsyncFile:
        self._live()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is not None and core.open and core.session.mounted and not self._view:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
