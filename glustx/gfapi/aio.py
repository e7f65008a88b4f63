"""The face for asyncio: AsyncVolume and AsyncFile, whose methods are coroutines. See `sync` for the blocking twins.

A call runs at once, inside the event loop's thread; only one that has to wait makes a future. Cancelling the task
cancels the call and waits until it has undone what it began.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from glustx.errors import FopCancelled
from glustx.gfapi.entries import AsyncScandir, join
from glustx.gfapi.file import Buffer, FileCore
from glustx.gfapi.flags import mode_text
from glustx.gfapi.namei import PathLike, to_text
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source, SourceLike
from glustx.gfapi.tables import FileTable, VolumeTable
from glustx.gfapi.twins import Asynchronous
from glustx.gfapi.volume import VolumeCore, make_caller
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor
from glustx.runtime import Run, TimedOut, drive, turn
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
        self.late = True
        if self.run is not None:
            self.run.cancel()

    def finish(self, value: Any, error: BaseException | None) -> None:
        self.value = value
        self.error = error
        self.done = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


async def run_in_loop(co: Coroutine[Any, Any, R], timeout: float | None = None) -> R:
    """Drive a coroutine of the runtime from an asyncio task and return its value or raise its error.

    Args:
        timeout: seconds after which it is cancelled and TimedOut raised.
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
            raise stop
    error = call.error
    if error is not None:
        if call.late and isinstance(error, FopCancelled):
            error = TimedOut(f"no answer in {timeout:g} s")
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


class AsyncVolume(VolumeTable, _InLoop):
    """A volume for asyncio: `async with AsyncVolume("gluster://host/vm") as vol:`, or `mount` and `close` it.

    It belongs to the event loop in which it is mounted.

    Args:
        source: a URL `gluster://host[:port][,host2]/volume`, a host or hosts, the path of a volfile, a volfile's text,
            or the path of a brick's folder, whose graph then runs in this process.
        volume: the volume's name, where the source does not say it.
        uid, gid, groups: who asks; the user of this process by default.
        umask: bits taken from the mode of what is made.
        timeout: seconds that a call may take; without limit by default.
        mount_timeout: seconds to wait for the volume to answer.

    Raises:
        ValueError: a source that cannot be used.
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
        self._source = Source.of(source, volume)
        self._caller = make_caller(uid, gid, groups)
        self._umask = umask
        self._timeout = timeout
        self._mount_timeout = mount_timeout
        self._loop = None
        self._network: AsyncioNetwork | None = None
        self._owner = True

    @classmethod
    def memory(cls, **options: Any) -> AsyncVolume:
        """A volume in this process's memory, for tests; `options` as for the class."""
        return cls(Source.memory(), **options)

    def __repr__(self) -> str:
        return f"<AsyncVolume {self._source.volume} at {self._source.host}{'' if self.mounted else ', not mounted'}>"

    async def mount(self) -> AsyncVolume:
        """Get the volfile, bring the graph up, and return the volume itself.

        Raises:
            OSError: ENOTCONN when no server or brick answers, ENOENT when the servers know no such volume.
            ValueError: a volfile that cannot be run.
        """
        if self.mounted:
            return self
        loop = asyncio.get_running_loop()
        network = AsyncioNetwork(loop)
        session = Session(self._source, AsyncioReactor(loop), network, timeout=self._mount_timeout)
        self._loop = loop
        self._network = network
        self._core = VolumeCore(session, self._caller, self._umask)
        try:
            await self._do(session.mount())
        except BaseException:
            await network.close()
            raise
        return self

    async def close(self) -> None:
        """Take the graph down. Files that are still open can only be closed then. A second call does nothing."""
        if not self._owner or not self.mounted:
            return
        session: Session = self._core.session
        try:
            await run_in_loop(session.unmount())
        finally:
            if self._network is not None:
                await self._network.close()

    async def __aenter__(self) -> AsyncVolume:
        return await self.mount()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_owner", False) and self.mounted:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    @property
    def mounted(self) -> bool:
        """True between `mount` and `close`."""
        core = getattr(self, "_core", None)
        return core is not None and bool(core.session.mounted)

    @property
    def name(self) -> str:
        """The volume's name."""
        return self._source.volume

    @property
    def host(self) -> str:
        """The host that serves the volfile."""
        return self._source.host

    @property
    def graph(self) -> Any:
        """The running graph, for status and statedumps."""
        return self._core.session.graph

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
        view._core = self._core.using(uid, gid, groups, umask)
        return view

    # -- files -------------------------------------------------------------------------------------------------------

    async def open(self, path: PathLike, how: int | str = os.O_RDONLY, mode: int = 0o666) -> AsyncFile:
        """Open a file for raw bytes.

        Args:
            how: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask.
        """
        core = await self._open_core(path, how, mode)
        return AsyncFile(core, self)

    async def create(self, path: PathLike, mode: int = 0o666, *, exclusive: bool = False) -> AsyncFile:
        """Make a file and open it for reading and writing; one that is there is emptied, or refused if `exclusive`."""
        how = os.O_RDWR | os.O_CREAT | (os.O_EXCL if exclusive else os.O_TRUNC)
        return await self.open(path, how, mode)

    # -- directories -------------------------------------------------------------------------------------------------

    def scandir(self, path: PathLike = "/") -> AsyncScandir:
        """Return an asynchronous iterator of AsyncDirEntry, attributes included; a context manager as well."""
        return AsyncScandir(self, path)

    async def walk(
        self,
        top: PathLike = "/",
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> AsyncIterator[tuple[str, list[str], list[str]]]:
        """Yield (folder, names of folders, names of others) of a tree, as `os.walk` does."""
        given = os.fspath(top)
        folder = to_text(given) if isinstance(given, bytes) else given
        folders: list[str] = []
        others: list[str] = []
        links: set[str] = set()
        try:
            async for entry in self.scandir(folder):
                (folders if await entry.is_dir() else others).append(entry.name)
                if entry.is_symlink():
                    links.add(entry.name)
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        if topdown:
            yield folder, folders, others
        for name in folders:
            if followlinks or name not in links:
                async for found in self.walk(join(folder, name), topdown, onerror, followlinks):
                    yield found
        if not topdown:
            yield folder, folders, others


class AsyncFile(FileTable, _InLoop):
    """An open file: `async with await vol.open(path) as file:`.

    Tasks may share it; those that read and write at the position take turns.
    """

    def __init__(self, core: FileCore, volume: AsyncVolume) -> None:
        self._core = core
        self._loop = volume._loop
        self._timeout = volume._timeout
        self.name = os.fspath(cast("str | bytes", core.path))
        self.mode = mode_text(core.flags)

    def __repr__(self) -> str:
        return f"<AsyncFile {self.name!r} mode {self.mode!r}{' closed' if self.closed else ''}>"

    def _live(self) -> FileCore:
        core: FileCore = self._core
        if not core.open:
            raise ValueError("I/O operation on closed file")
        return core

    @property
    def gfid(self) -> str:
        """The file's gfid as text."""
        return gfid_text(self._core.fd.gfid)

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return not self._core.open

    async def read(self, size: int = -1) -> bytes:
        """Read up to `size` bytes at the position, all that is left by default; b"" at the end."""
        return await self._do(self._live().read(size))

    async def readinto(self, buffer: Buffer) -> int:
        """Read into `buffer` at the position; return how many bytes came, 0 at the end."""
        return await self._do(self._live().readinto(buffer))

    async def write(self, data: Buffer) -> int:
        """Write `data` at the position (at the end in append mode); return how many bytes were written."""
        return await self._do(self._live().write(data))

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position and return it; `whence` may be os.SEEK_DATA or os.SEEK_HOLE as well."""
        return await self._do(self._live().seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return self._live().pos

    async def truncate(self, size: int | None = None) -> int:
        """Set the file's size, to the position by default, and return it."""
        return await self._do(self._live().truncate(size))

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
        if core is not None and core.open and core.session.mounted:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            try:
                core.session.reactor.post(core.give_back)
            except RuntimeError:
                pass  # the loop is closed
