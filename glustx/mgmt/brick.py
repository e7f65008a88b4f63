"""The brick process: one graph with protocol/server on top, in an event loop of its own, until it is told to stop.

It takes its volfile from a file or from a volume server (GETSPEC), signs in there with its port, and signs out when it
ends. The same process serves under `glustx serve` and wherever else a brick has to run.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from glustx import fops
from glustx.errors import FopCancelled, FopError, GraphError, OptionError
from glustx.graph import Graph, Surroundings
from glustx.linux import keep_freed_memory
from glustx.mgmt import control
from glustx.mgmt.state import ServeError
from glustx.rpc import dict_v1
from glustx.rpc import programs as p
from glustx.rpc.channel import Address, Listener
from glustx.rpc.getspec import OP_VERSIONS, Dialled, connect, own_credential
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.rpc.xdr import XdrError
from glustx.runtime import Run, TimedOut, Waiter, drive, sleep, turn, wait_for
from glustx.values import ROOT_LOC, gfid_text
from glustx.volfile import VolfileError
from glustx.xlators.protocol.server import Server

log = logging.getLogger("glustx.brick")

VOLUME_ID_XATTR = b"trusted.glusterfs.volume-id"
_RETRY = 3.0
_TIMEOUT = 10.0
# Python's own 5 ms let a worker thread keep the loop waiting for as long.
_SWITCH_INTERVAL = 0.0005


class BrickConfig(msgspec.Struct, frozen=True):
    """What a brick process is told.

    Args:
        volfile: a file to read, or None to ask `manager`.
        manager: the volume server to sign in at, or None.
        key: what to ask GETSPEC for.
        control: where the control socket goes, or None.
        supervised: end when stdin does, as whoever started the process is then gone.
    """

    volfile: Path | None = None
    manager: Address | None = None
    key: str = ""
    control: Path | None = None
    supervised: bool = False


def run_brick(config: BrickConfig, volume: str = "") -> None:
    """Serve a brick until SIGTERM or SIGINT (or the end of stdin); ServeError when it cannot be brought up."""
    sys.setswitchinterval(_SWITCH_INTERVAL)
    keep_freed_memory()
    loop = _new_loop()
    try:
        loop.run_until_complete(_Brick(config, volume, loop).run())
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
    def __init__(self, config: BrickConfig, volume: str, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self.volume = volume
        self.loop = loop
        self.network = AsyncioNetwork(loop)
        self.reactor = AsyncioReactor(loop)
        self.ended = asyncio.Event()
        self.graph: Graph
        self.volume_id = ""
        self.link: Dialled | None = None
        self.listener: Listener | None = None

    async def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.ended.set)
        if self.config.supervised:
            self.loop.add_reader(0, self._stdin)
        try:
            self.graph = await self._load()
            try:
                await self._drive(self.graph.start())
            except (GraphError, OptionError) as error:
                raise ServeError(str(error)) from None
            except OSError as error:
                raise ServeError(f"the brick cannot be brought up: {error}") from None
            try:
                await self._serve()
            finally:
                await self._drive(self.graph.stop())
        finally:
            if self.listener is not None:
                self.listener.close()
            await self.network.close()

    async def _drive(self, co: Coroutine[Any, Any, Any]) -> Any:
        return await drive_in_loop(co, self.loop)

    def _stdin(self) -> None:
        if not os.read(0, 4096):
            self.loop.remove_reader(0)
            log.warning("whoever started this brick is gone: stopping")
            self.ended.set()

    # -- coming up -------------------------------------------------------------------------------------------------

    async def _load(self) -> Graph:
        config = self.config
        if config.volfile is not None:
            try:
                text, source = config.volfile.read_text("utf-8", "surrogateescape"), str(config.volfile)
            except OSError as error:
                raise ServeError(f"cannot read volfile {config.volfile}: {error.strerror or error}") from None
        else:
            text, source = await self._drive(self._getspec()), f"volfile {config.key} from {config.manager}"
        surroundings = Surroundings(self.reactor, self.network, volume=self.volume)
        try:
            graph = Graph.load(text, surroundings, source=source)
        except (VolfileError, OptionError, GraphError) as error:
            raise ServeError(str(error)) from None
        if not isinstance(graph.root, Server):
            raise ServeError(f"{source}: the root {graph.root.name} is a {graph.root.type_name}, not a protocol/server")
        return graph

    async def _getspec(self) -> str:
        """Ask the volume server for the volfile; runs in the graph's world, where only waiters are awaited."""
        manager = self.config.manager
        if manager is None:
            raise ServeError("a brick needs a volfile, or a volume server to ask for one")
        question = p.GetspecRequest(0, self.config.key, dict_v1.pack_all(OP_VERSIONS)).encode()
        try:
            self.link = await connect(self.network, self.reactor, manager, _TIMEOUT)
            asked = self.link.ask(p.HANDSHAKE, p.HNDSK_GETSPEC, question, own_credential(), p.GetspecReply.decode)
            reply = await wait_for(self.reactor, asked, _TIMEOUT)
        except (OSError, XdrError, TimedOut) as error:
            raise ServeError(f"no volfile {self.config.key} from {manager}: {error or 'no answer'}") from None
        if reply.op_ret < 0:
            name = errno.errorcode.get(reply.op_errno, str(reply.op_errno))
            raise ServeError(f"{manager} has no volfile {self.config.key} ({name})")
        return str(reply.spec)

    # -- being up --------------------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        self.volume_id = await self._drive(self._read_volume_id())
        if self.config.control is not None:
            await self._listen_control(self.config.control)
        if self.config.manager is None:
            await self.ended.wait()
            return
        keepers: list[Run | None] = []
        turn(lambda: keepers.append(drive(self._stay_signed_in(), self._signed_in_no_more)))
        await self.ended.wait()
        for keeper in keepers:
            if keeper is not None:
                keeper.cancel()
        await self._drive(self._sign_out())

    def _signed_in_no_more(self, value: None, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, FopCancelled):
            log.error("the brick no longer tells the volume server of its port", exc_info=error)

    async def _read_volume_id(self) -> str:
        for brick in self.graph.root.children:
            try:
                reply = await brick(fops.Getxattr(ROOT_LOC, VOLUME_ID_XATTR))
            except FopError:
                continue
            value = reply.xattrs.get(VOLUME_ID_XATTR)
            if isinstance(value, bytes) and len(value) == 16:
                return gfid_text(value)
        return ""

    async def _listen_control(self, path: Path) -> None:
        try:
            _make_way(path)
            self.listener = await self._drive(
                _value(self.network.listen(Address(path=str(path)), self._control_receiver))
            )
            os.chmod(path, 0o600)
        except OSError as error:
            raise ServeError(f"no control socket at {path}: {error.strerror or error}") from None

    def _control_receiver(self) -> Any:
        return control.make_receiver(self.graph.statedump, self._facts)

    def _facts(self) -> dict[str, str]:
        limits = {key.replace("_", "-"): str(value) for key, value in self.graph.root.limits().items()}
        return {"volume-id": self.volume_id, **limits}

    # -- the portmap -----------------------------------------------------------------------------------------------

    def _ports(self) -> list[tuple[str, int]]:
        server = self.graph.root
        address = server.address if isinstance(server, Server) else None
        return [(child.name, address.port if address else 0) for child in server.subvolumes]

    async def _stay_signed_in(self) -> None:
        """Sign in, and again whenever the volume server has been away."""
        manager = self.config.manager
        assert manager is not None
        while True:
            try:
                if self.link is None or self.link.channel is None:
                    self.link = await connect(self.network, self.reactor, manager, _TIMEOUT)
                gone: Waiter[Exception | None] = Waiter()
                self.link.lost = gone.set
                for brick, port in self._ports():
                    reply = await self._tell(p.PMAP_SIGNIN, p.SignInRequest(brick, port, os.getpid()).encode())
                    if reply.op_ret < 0:
                        log.error("%s refuses the sign-in of %s", manager, brick)
                log.warning("the connection to %s is lost: %s", manager, await gone or "closed")
            except (OSError, XdrError, TimedOut) as error:
                log.warning("cannot sign in at %s: %s", manager, error)
            await sleep(self.reactor, _RETRY)

    async def _sign_out(self) -> None:
        try:
            for brick, port in self._ports():
                await self._tell(p.PMAP_SIGNOUT, p.SignOutRequest(brick, port).encode())
        except (OSError, XdrError, TimedOut) as error:
            log.info("no sign-out: %s", error)

    async def _tell(self, proc: int, body: bytes) -> p.StatusReply:
        if self.link is None:
            raise ConnectionResetError("not connected")
        asked = self.link.ask(p.PORTMAP, proc, body, own_credential(), p.StatusReply.decode)
        return await wait_for(self.reactor, asked, _TIMEOUT)


def _make_way(socket: Path) -> None:
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)


async def _value(waiter: Waiter[Listener]) -> Listener:
    return await waiter
