"""A mounted volume below its two faces: the graph, what is remembered of its directories, and how it comes and goes.

Everything here is coroutines of the runtime; `aio` and `sync` drive them, each in its own way.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Coroutine
from typing import Any

from glustx.errors import FopError
from glustx.fops import Lookup
from glustx.gfapi.errors import mount_error
from glustx.gfapi.source import Source
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd, Inode
from glustx.rpc.channel import Network
from glustx.runtime import Reactor, TimedOut, Waiter, drive, wait_for
from glustx.values import ROOT_LOC
from glustx.workers import Workers
from glustx.xlator import Event, Wind

log = logging.getLogger("glustx.gfapi")

ENTRY_TIMEOUT = 1.0
_DENTRIES_MAX = 16384
_DRAIN_SECONDS = 10.0
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

    graph: Graph
    top: Wind

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
        self.mounted = False

    def __str__(self) -> str:
        return f"volume {self.volume} at {self.host}"

    async def mount(self) -> None:
        """Get the volfile, build the graph and bring it up until the root answers.

        Raises:
            MountError: the servers or bricks cannot be reached, do not know the volume, refuse, do not answer in time,
                or hand out a volfile that cannot be run.
            VolfileError, OptionError, GraphError: a volfile of the user's own that cannot be run.
        """
        try:
            text = self.source.text
            if not text:
                from glustx.rpc.getspec import fetch_volfile

                text = await fetch_volfile(self.network, self.reactor, self.source.addresses, self.volume)
            graph = await self._bring_up(text)
        except FopError as error:
            raise mount_error(error, self.volume) from None
        except ValueError as error:
            if self.source.trusted:
                raise
            raise mount_error(FopError(errno.EOPNOTSUPP, str(error)), self.volume) from None
        self.graph = graph
        self.top = graph.top
        self.mounted = True

    async def _bring_up(self, text: str) -> Graph:
        """Return the running graph of a volfile, once its root answers."""
        surroundings = Surroundings(self.reactor, self.network, self.workers, host=self.host, volume=self.volume)
        graph = Graph.load(text, surroundings, source=self.source.origin, strict=self.source.trusted)
        up: Waiter[None] = Waiter()

        def listen(event: Event, data: Any) -> None:
            if event is Event.CHILD_UP:
                up.set(None)
            elif event is Event.CHILD_DOWN and isinstance(data, FopError) and data.errno not in _PASSING:
                up.fail(data)

        graph.listeners.append(listen)
        await graph.start()
        try:
            await self._root_answers(graph, up)
        except BaseException:
            await graph.stop()
            raise
        finally:
            graph.listeners.remove(listen)
        return graph

    async def _root_answers(self, graph: Graph, up: Waiter[None]) -> None:
        """Return when the root has been looked up; at once with the reason when a brick has said no."""
        end = self.reactor.time() + self.timeout
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

    async def unmount(self) -> None:
        """Wait a moment for what is under way, then take the graph down."""
        if not self.mounted:
            return
        self.mounted = False
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

    def aside(self, co: Coroutine[Any, Any, Any]) -> None:
        """Drive a coroutine whose outcome nobody waits for; unmounting waits for its end."""
        graph = self.graph
        graph.enter()

        def finish(value: Any, error: BaseException | None) -> None:
            graph.leave()
            if error is not None:
                log.debug("%s: %s", self, error)

        drive(co, finish)
