"""The brick process: one graph with protocol/server on top, in an event loop of its own, until it is told to stop.

It takes its volfile from a file or from a volume server (GETSPEC), signs in there with its port, and signs out when it
ends. The same process serves under `glustx serve`, under stock's management daemon (`glusterfsd.py`), and wherever else
a brick has to run.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec

from glustx import fops, volfile
from glustx.errors import FopCancelled, FopError, GraphError, OptionError
from glustx.graph import Graph, Surroundings
from glustx.linux import keep_freed_memory
from glustx.mgmt import control
from glustx.mgmt.manager import Manager
from glustx.mgmt.operations import Operations
from glustx.mgmt.state import ServeError
from glustx.rpc.channel import Address, Listener
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import Run, Waiter, drive, turn
from glustx.values import ROOT_LOC, gfid_text
from glustx.volfile import Volfile, VolfileError
from glustx.xlator import Event
from glustx.xlators.protocol.server import Server
from glustx.xlators.storage.posix import Posix

log = logging.getLogger("glustx.brick")

VOLUME_ID_XATTR = b"trusted.glusterfs.volume-id"
# Python's own 5 ms let a worker thread keep the loop waiting for as long.
_SWITCH_INTERVAL = 0.0005
_PATIENT_PAUSE = 0.1
_EDGES = ("protocol/server", "export/iscsi")  # what a graph can have on top that serves others


class BrickConfig(msgspec.Struct, frozen=True):
    """What a brick process is told.

    Args:
        volfile: a file to read, or None to ask `manager`.
        manager: the volume server to sign in at, or None.
        key: what to ask GETSPEC for.
        control: where the control socket goes, or None.
        supervised: end when stdin does, as whoever started the process is then gone.
        strict: False takes unknown options of a volfile for those of a newer stock, and only notes them.
        amend: what to make of each volfile before it is used; ServeError refuses it.
        refuse: volfile key of the volume's clients and what judges that volfile (ServeError refuses), or None.
        brick: the name to sign in under where that is not the name of the volume below protocol/server.
        host: this host's name, for messages.
        patience: seconds to wait for a brick folder that another process has, which may be about to end.
    """

    volfile: Path | None = None
    manager: Address | None = None
    key: str = ""
    control: Path | None = None
    supervised: bool = False
    strict: bool = True
    amend: Callable[[Volfile], Volfile] | None = None
    refuse: tuple[str, Callable[[str], None]] | None = None
    brick: str = ""
    host: str = "localhost"
    patience: float = 0.0


OnSignal = Mapping[int, Callable[["Graph | None"], None]]
"""What to do at signals other than SIGTERM and SIGINT, given the graph once there is one."""


def run_brick(
    config: BrickConfig, volume: str = "", ready: Callable[[], None] | None = None, on_signal: OnSignal | None = None
) -> None:
    """Serve a brick until SIGTERM or SIGINT (or the end of stdin); ServeError when it cannot be brought up.

    Args:
        volume: the volume's name, for messages.
        ready: called when clients can come.
        on_signal: what to do at other signals.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    keep_freed_memory()
    loop = _new_loop()
    try:
        loop.run_until_complete(_Brick(config, volume, loop, ready).run(on_signal or {}))
    finally:
        loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _Brick:
    def __init__(
        self, config: BrickConfig, volume: str, loop: asyncio.AbstractEventLoop, ready: Callable[[], None] | None
    ) -> None:
        self.config = config
        self.volume = volume
        self.loop = loop
        self.ready = ready
        self.network = AsyncioNetwork(loop)
        self.reactor = AsyncioReactor(loop)
        self.ended = asyncio.Event()
        self.graph: Graph | None = None
        self.volume_id = ""
        self.manager = (
            Manager(self.network, self.reactor, config.manager, config.key, self._volfile_changed)
            if config.manager is not None
            else None
        )
        self.listener: Listener | None = None
        self.put_off: list[str] = []
        self.sick = ""

    async def run(self, on_signal: OnSignal) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.ended.set)
        for other, action in on_signal.items():
            self.loop.add_signal_handler(other, self._on_signal, action)
        if self.config.supervised:
            self.loop.add_reader(0, self._stdin)
        try:
            graph = self.graph = await self._bring_up()
            graph.listeners.append(self._heard)
            try:
                await self._serve(graph)
            finally:
                await self._drive(graph.stop())
            if self.sick:
                raise ServeError(f"brick {self.sick} is down: it failed its health check")
        finally:
            if self.listener is not None:
                self.listener.close()
            await self.network.close()

    async def _drive(self, co: Coroutine[Any, Any, Any]) -> Any:
        return await drive_in_loop(co, self.loop)

    def _heard(self, event: Event, data: Any) -> None:
        """A brick whose disk fails ends, so that clients go elsewhere instead of waiting for it, as stock's does."""
        if event is Event.CHILD_DOWN and self.graph is not None:
            stores = [xlator for xlator in self.graph.xlators.values() if isinstance(xlator, Posix)]
            if stores and all(store.health == "failed" for store in stores):
                self.sick = ", ".join(store.brick for store in stores)
                self.ended.set()

    def _on_signal(self, action: Callable[[Graph | None], None]) -> None:
        action(self.graph)

    def _stdin(self) -> None:
        if not os.read(0, 4096):
            self.loop.remove_reader(0)
            log.warning("whoever started this brick is gone: stopping")
            self.ended.set()

    # -- coming up -------------------------------------------------------------------------------------------------

    async def _bring_up(self) -> Graph:
        """Start a graph; while the folder is another's, who may be about to end, try again."""
        deadline = self.loop.time() + self.config.patience
        while True:
            graph = await self._load()
            try:
                await self._drive(graph.start())
                return graph
            except (GraphError, OptionError) as error:
                failure = ServeError(str(error))
                failure.__cause__ = error
            except OSError as error:
                raise ServeError(f"the brick cannot be brought up: {error}") from error
            if failure.number != errno.EBUSY or self.loop.time() >= deadline or self.ended.is_set():
                raise failure
            log.info("%s; waiting for it", failure)
            await asyncio.sleep(_PATIENT_PAUSE)

    async def _load(self) -> Graph:
        config = self.config
        if config.volfile is not None:
            try:
                text, source = config.volfile.read_text("utf-8", "surrogateescape"), str(config.volfile)
            except OSError as error:
                raise ServeError(f"cannot read volfile {config.volfile}: {error.strerror or error}") from None
        elif self.manager is not None:
            text, source = await self._drive(self.manager.volfile()), self._source()
            if config.refuse is not None:
                key, judge = config.refuse
                judge(await self._drive(self.manager.volfile(key)))
        else:
            raise ServeError("a brick needs a volfile, or a volume server to ask for one")
        surroundings = Surroundings(self.reactor, self.network, host=config.host, volume=self.volume)
        try:
            graph = Graph.build(self._parse(text, source), surroundings, strict=config.strict)
        except (VolfileError, OptionError, GraphError) as error:
            raise ServeError(str(error)) from None
        if graph.root.type_name not in _EDGES or (self.manager is not None and not isinstance(graph.root, Server)):
            wanted = "a protocol/server" if self.manager is not None else " or ".join(_EDGES)
            raise ServeError(f"{source}: the root {graph.root.name} is a {graph.root.type_name}, not {wanted}")
        return graph

    def _source(self) -> str:
        return f"volfile {self.config.key} from {self.config.manager}"

    def _parse(self, text: str, source: str) -> Volfile:
        spec = volfile.parse(text, source, strict=self.config.strict)
        return spec if self.config.amend is None else self.config.amend(spec)

    # -- being up --------------------------------------------------------------------------------------------------

    async def _serve(self, graph: Graph) -> None:
        self.volume_id = await self._drive(self._read_volume_id(graph))
        if self.config.control is not None:
            await self._listen_control(graph, self.config.control)
        manager = self.manager
        if manager is None:
            self._tell_ready()
            await self.ended.wait()
            return
        await self._drive(manager.sign_in(self._ports()))
        self._tell_ready()
        keepers: list[Run | None] = []
        turn(lambda: keepers.append(drive(manager.stay(self._ports), self._signed_in_no_more)))
        await self.ended.wait()
        for keeper in keepers:
            if keeper is not None:
                keeper.cancel()
        await self._drive(manager.sign_out(self._ports()))

    def _tell_ready(self) -> None:
        if self.ready is not None:
            self.ready()

    def _signed_in_no_more(self, value: None, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, FopCancelled):
            log.error("the brick no longer tells the volume server of its port", exc_info=error)

    async def _read_volume_id(self, graph: Graph) -> str:
        for brick in graph.root.children:
            try:
                reply = await brick(fops.Getxattr(ROOT_LOC, VOLUME_ID_XATTR))
            except FopError:
                continue
            value = reply.xattrs.get(VOLUME_ID_XATTR)
            if isinstance(value, bytes) and len(value) == 16:
                return gfid_text(value)
        return ""

    def _ports(self) -> list[tuple[str, int]]:
        assert self.graph is not None
        server = self.graph.root
        address = server.address if isinstance(server, Server) else None
        port = address.port if address else 0
        if self.config.brick and len(server.subvolumes) == 1:
            return [(self.config.brick, port)]
        return [(child.name, port) for child in server.subvolumes]

    def _volfile_changed(self, text: str) -> None:
        """Follow a volfile in two phases: all of it is checked before anything changes, or it is told why not.

        What cannot change while the brick is up waits for its next start; the rest does not wait for that.
        """
        graph = self.graph
        if graph is None:
            return
        try:
            spec = self._parse(text, self._source())
            later: list[str] = []
            changes = graph.reconfigure(
                volfile.format(spec), source=self._source(), strict=self.config.strict, later=later
            )
        except (VolfileError, OptionError, GraphError, ServeError) as error:
            log.error("the new volfile is not followed, the brick stays as it is until it is started anew: %s", error)
            return
        for change in changes:
            log.info("%s", change)
        for sentence in later:
            if sentence not in self.put_off:
                log.warning("%s: it waits until the brick is started anew", sentence)
        self.put_off = later

    # -- its own socket --------------------------------------------------------------------------------------------

    async def _listen_control(self, graph: Graph, path: Path) -> None:
        operations = Operations(graph, self.ended.set)

        make_receiver = control.receivers(
            self.reactor, graph.statedump, lambda: self._facts(graph), operations.programs()
        )
        try:
            _make_way(path)
            waiter = self.network.listen(Address(path=str(path)), make_receiver, mode=0o600)
            self.listener = await self._drive(_value(waiter))
        except OSError as error:
            raise ServeError(f"no control socket at {path}: {error.strerror or error}") from None

    def _facts(self, graph: Graph) -> dict[str, str]:
        limits = {key.replace("_", "-"): str(value) for key, value in graph.root.limits().items()}
        return {"volume-id": self.volume_id, **limits}


def _make_way(socket: Path) -> None:
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)


async def _value(waiter: Waiter[Listener]) -> Listener:
    return await waiter
