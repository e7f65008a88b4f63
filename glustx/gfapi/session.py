"""A mounted volume below its two faces: the graph, what is remembered of its directories, and how it comes and goes.

Everything here is coroutines of the runtime; `aio` and `sync` drive them, each in its own way.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from glustx.errors import FopCancelled, FopError, GraphError, OptionError
from glustx.fops import Lookup
from glustx.gfapi.active import Active
from glustx.gfapi.errors import mount_error
from glustx.gfapi.leases import LeaseBook
from glustx.gfapi.source import Source
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd, Inode
from glustx.rpc.channel import Network
from glustx.runtime import Reactor, Tasks, TimedOut, Waiter, drive, wait_for
from glustx.values import ROOT_LOC
from glustx.volfile import VolfileError
from glustx.workers import Workers
from glustx.xlator import Event, Wind

if TYPE_CHECKING:
    from glustx.rpc.getspec import VolumeServers

log = logging.getLogger("glustx.gfapi")

ENTRY_TIMEOUT = 1.0
_DENTRIES_MAX = 16384
_DRAIN_SECONDS = 10.0
_RETRY_SECONDS = 3.0
_STEP_SECONDS = 10.0  # for each step with a volume server
# What keeps a brick from being up and may be over in a moment: no answer yet, a storage or graph that is still coming.
_PASSING = (errno.ETIMEDOUT, errno.EAGAIN, errno.ENOTCONN)


class Dentries:
    """The directories that path walks have passed: (parent gfid, name) to gfid, believed for a second.

    Args:
        reactor: the clock.
        timeout: seconds that an entry is believed.
    """

    def __init__(self, reactor: Reactor, timeout: float = ENTRY_TIMEOUT) -> None:
        self._time = reactor.time
        self._timeout = timeout
        self._known: dict[tuple[bytes, bytes], tuple[bytes, float]] = {}

    def get(self, parent: bytes, name: bytes) -> bytes | None:
        """Return the gfid of a directory that was seen under this name a moment ago."""
        hit = self._known.get((parent, name))
        if hit is None:
            return None
        if hit[1] < self._time():
            del self._known[parent, name]
            return None
        return hit[0]

    def put(self, parent: bytes, name: bytes, gfid: bytes) -> None:
        """Remember a directory."""
        if len(self._known) >= _DENTRIES_MAX:
            self._known.clear()
        self._known[parent, name] = (gfid, self._time() + self._timeout)

    def drop(self, parent: bytes, name: bytes) -> None:
        """Forget a name."""
        self._known.pop((parent, name), None)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()


class Session:
    """One volume in use.

    Args:
        source: where its graph comes from.
        reactor, network: of the loop or pump that drives it.
        workers: threads for what blocks; the process's own by default.
        timeout: seconds that mounting may take.
    """

    top: Wind
    active: Active

    def __init__(
        self,
        source: Source,
        reactor: Reactor,
        network: Network,
        *,
        workers: Workers | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.source = source
        self.reactor = reactor
        self.network = network
        self.workers = workers
        self.timeout = timeout
        self.volume = source.volume
        self.host = source.host
        self.dentries = Dentries(reactor)
        self.leases = LeaseBook()
        self.mounted = False
        self._servers: VolumeServers | None = None
        self._text = ""
        self._tasks = Tasks(log)
        self._stale = False
        self._following = False

    def __str__(self) -> str:
        return f"volume {self.volume} at {self.host}"

    @property
    def graph(self) -> Graph:
        """The graph in use."""
        return self.active.graph

    async def mount(self) -> None:
        """Get the volfile, build the graph and bring it up until the root answers.

        Raises:
            MountError: the servers or bricks cannot be reached, do not know the volume, refuse, do not answer in time,
                or hand out a volfile that cannot be run.
            VolfileError, OptionError, GraphError: a volfile of the user's own that cannot be run.
        """
        try:
            text = self.source.text or await self._fetch()
            graph = await self._bring_up(text)
        except BaseException as error:
            if self._servers is not None:
                self._servers.close()
            if isinstance(error, FopError):
                raise mount_error(error, self.volume) from None
            if isinstance(error, ValueError) and not self.source.trusted:
                said = f"the volfile from {self.host} cannot be run: {error}"
                raise mount_error(FopError(errno.EOPNOTSUPP, said), self.volume) from None
            raise
        self._text = text
        self.active = Active(graph, self.reactor)
        # Only what servers hand out is ever replaced: others need not be counted.
        self.top = self.active.top if self._servers is not None else graph.top
        self.mounted = True
        if self._stale:
            self._changed()

    async def _fetch(self) -> str:
        if self._servers is None:
            from glustx.rpc.getspec import VolumeServers

            self._servers = VolumeServers(
                self.network,
                self.reactor,
                self.source.addresses,
                self.volume,
                changed=self._changed,
                timeout=min(_STEP_SECONDS, self.timeout),
            )
        text = await self._servers.volfile()
        answered = self._servers.addresses[0]
        self.host = answered.path or answered.host
        return text

    async def _bring_up(self, text: str) -> Graph:
        """Return the running graph of a volfile, once its root answers."""
        surroundings = Surroundings(
            self.reactor, self.network, self.workers, host=self.host, volume=self.volume, tls=self.source.tls
        )
        graph = Graph.load(text, surroundings, source=self.source.origin, strict=self.source.trusted)
        up: Waiter[None] = Waiter()

        def listen(event: Event, data: Any) -> None:
            if event is Event.CHILD_UP:
                up.set(None)
            elif event is Event.CHILD_DOWN and isinstance(data, FopError) and data.errno not in _PASSING:
                up.fail(data)

        graph.listeners.append(listen)
        end = self.reactor.time() + self.timeout
        try:
            await self._start(graph)
            await self._root_answers(graph, up, end)
        except BaseException:
            await graph.stop()
            raise
        finally:
            graph.listeners.remove(listen)
        graph.listeners.append(self.leases.hear)
        return graph

    async def _start(self, graph: Graph) -> None:
        """Bring the translators up; what has not come up when the time is over is called off."""
        ended: Waiter[None] = Waiter()
        late: list[FopError] = []

        def finish(value: Any, error: BaseException | None) -> None:
            if error is None:
                ended.set(None)
            else:
                ended.fail(late[0] if late and isinstance(error, FopCancelled) else error)

        run = drive(graph.start(), finish)
        if run is None:
            await ended
            return

        def expire() -> None:
            bricks = [x.options for x in graph.xlators.values() if x.type_name == "protocol/client"]
            named = ", ".join(f"{brick.remote_host} brick {brick.remote_subvolume}" for brick in bricks)
            late.append(FopError(errno.ETIMEDOUT, f"{named or graph.root.name}: no answer in {self.timeout:g} s"))
            run.cancel()

        timer = self.reactor.call_later(self.timeout, expire)
        try:
            await ended
        except FopCancelled:
            run.cancel()
            if not ended.done:
                await ended
            raise
        finally:
            timer.cancel()

    async def _root_answers(self, graph: Graph, up: Waiter[None], end: float) -> None:
        """Return when the root has been looked up; at once with the reason when a brick has said no."""
        while True:
            if up.done:
                await up
            try:
                await graph.top(Lookup(loc=ROOT_LOC))
                return
            except FopError as error:
                left = end - self.reactor.time()
                if error.errno != errno.ENOTCONN or up.done or left <= 0:
                    raise
                why = error
            try:
                await wait_for(self.reactor, up, left)
            except TimedOut:
                raise FopError(errno.ENOTCONN, f"no brick in {self.timeout:g} s: {why.text}") from None

    # -- another volfile ---------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Hear that the volfile may be another one now."""
        self._stale = True
        if self.mounted and not self._following:
            self._following = True
            self._tasks.start(self._follow())

    async def _follow(self) -> None:
        try:
            while self._stale and self.mounted:
                self._stale = False
                try:
                    text = await self._fetch()
                except FopError as error:
                    log.warning("%s: the new volfile cannot be had: %s", self, error)
                    return
                if text != self._text and await self._take(text):
                    self._text = text
        finally:
            self._following = False

    async def _take(self, text: str) -> bool:
        """Follow another volfile: change options where that is all, else change to a graph of its own."""
        try:
            for change in self.graph.reconfigure(text, source=self.source.origin, strict=False):
                log.info("%s: %s", self, change)
            return True
        except (GraphError, OptionError) as error:
            log.info("%s: %s", self, error)
        except VolfileError as error:
            log.error("%s: the new volfile is not followed: %s", self, error)
            return False
        try:
            graph = await self._bring_up(text)
        except ValueError as error:
            log.error("%s: the new volfile is not followed: %s", self, error)
            return False
        except FopError as error:
            log.warning("%s: the new graph does not come up; once more in %g s: %s", self, _RETRY_SECONDS, error)
            self.reactor.call_later(_RETRY_SECONDS, self._changed)
            return False
        try:
            end_old = await self.active.change(graph)
        except BaseException:
            await graph.stop()
            raise
        self.leases.lost()  # to the bricks this is another client
        log.info("%s: the graph has been replaced, with %d open fds", self, self.active.open_fds)
        self._tasks.start(end_old())
        return True

    async def unmount(self) -> None:
        """Wait a moment for what is under way, then take the graph down."""
        if not self.mounted:
            return
        self.mounted = False
        if self._servers is not None:
            self._servers.close()
        await self._tasks.stop()
        self.dentries.clear()
        if self.graph.winding:
            idle: Waiter[None] = Waiter()
            drive(self.graph.drain(), lambda value, error: idle.set(None))
            try:
                await wait_for(self.reactor, idle, _DRAIN_SECONDS)
            except TimedOut:
                log.warning("%s: %d calls are still under way at unmount", self, self.graph.winding)
        await self.graph.stop()

    def hold(self, fd: Fd) -> Inode:
        """Keep the inode of an open fd."""
        return self.graph.inodes.hold(fd.gfid)

    def aside(self, co: Coroutine[Any, Any, Any]) -> BaseException | None:
        """Drive a coroutine whose outcome nobody waits for; unmounting waits for its end.

        Returns the error of one that fails before it has to wait.
        """
        graph = self.graph
        graph.enter()
        known: list[BaseException] = []

        def finish(value: Any, error: BaseException | None) -> None:
            graph.leave()
            if error is not None:
                known.append(error)
                log.debug("%s: %s", self, error)

        drive(co, finish)
        return known[0] if known else None
