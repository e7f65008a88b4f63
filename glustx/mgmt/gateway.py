"""The gateway process: volumes mounted as gfapi mounts them, and an iSCSI export over all of them, until told to stop.

A volume's graph is followed when its servers hand out another one, as in any program that uses gfapi; sessions and LUNs
do not notice.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from glustx.errors import GraphError, MountError, OptionError
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source
from glustx.iscsi.exporter import Exporter
from glustx.linux import keep_freed_memory
from glustx.mgmt import gateway_control
from glustx.mgmt.state import ServeError
from glustx.mgmt.targets import Saved, Store
from glustx.rpc.channel import Address, Listener
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import Waiter
from glustx.scsi.sense import Sense
from glustx.scsi.unit import Injection, LogicalUnit
from glustx.volfile import VolfileError

log = logging.getLogger("glustx.gateway")

_SWITCH_INTERVAL = 0.0005  # as in a brick: a worker thread keeps the loop waiting for no longer
_ERRORS = {
    "aborted": Sense(0x0B, 0x45),
    "medium-error": Sense(0x03, 0x11),
    "attention": Sense(0x06, 0x29),
}


class Ready(msgspec.Struct, frozen=True):
    """What is told when initiators may come."""

    portals: list[str]
    targets: list[str]
    pid: int
    control: str
    ready: bool = True


def run_gateway(store: Store, socket: Path, ready: Callable[[Ready], None], *, portals: tuple[str, ...] = ()) -> None:
    """Run the gateway until SIGTERM or SIGINT; ServeError when it cannot be brought up.

    Args:
        store: what it offers.
        socket: where its control socket goes.
        ready: called when initiators may come.
        portals: where to listen in place of what is kept.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL)
    keep_freed_memory()
    try:
        import uvloop
    except ImportError:
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(_Gateway(store, socket, ready, portals, loop).run())
    finally:
        loop.close()


class _Gateway:
    def __init__(
        self,
        store: Store,
        socket: Path,
        ready: Callable[[Ready], None],
        portals: tuple[str, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.store = store
        self.socket = socket
        self.ready = ready
        self.portals = portals
        self.loop = loop
        self.network = AsyncioNetwork(loop)
        self.reactor = AsyncioReactor(loop)
        self.sessions: dict[str, Session] = {}
        self.exporter = Exporter(self.reactor, self.network, client=f"glustx-gateway-{uuid.uuid4()}")
        self.listener: Listener | None = None
        self.changing = asyncio.Lock()
        self.level = logging.getLogger("glustx").level

    async def run(self) -> None:
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, ended.set)
        try:
            saved = self.store.load()
            await self._mount(saved)
            await self._drive(self._start(saved))
            await self._listen()
            self.ready(
                Ready(
                    [str(address) for address in self.exporter.addresses()],
                    list(saved.targets),
                    os.getpid(),
                    str(self.socket),
                )
            )
            await ended.wait()
        finally:
            if self.listener is not None:
                self.listener.close()
            await self._drive(self.exporter.stop())
            for session in self.sessions.values():
                await self._drive(session.unmount())
            await self.network.close()

    async def _drive(self, co: Any) -> Any:
        return await drive_in_loop(co, self.loop)

    async def _mount(self, saved: Saved) -> None:
        """Mount the volumes that are not yet; ServeError when one cannot be, and those before it stay."""
        for volume in saved.volumes():
            if volume in self.sessions:
                continue
            try:
                session = Session(Source.of(volume).secured(None), self.reactor, self.network)
                await self._drive(session.mount())
            except MountError as error:
                raise ServeError(str(error.strerror)) from None
            except (GraphError, OptionError, VolfileError, ValueError, OSError) as error:
                raise ServeError(f"{volume}: {error}") from None
            # A volfile may set a level for clients; this process's is that of its own command line.
            logging.getLogger("glustx").setLevel(self.level)
            self.sessions[volume] = session
            self.exporter.gateway.volumes[volume] = session.top

    async def _start(self, saved: Saved) -> None:
        portals = self.portals or saved.portals
        try:
            await self.exporter.start(
                [_address(portal) for portal in portals],
                list(saved.targets.values()),
                {portal: _address(advertised) for portal, advertised in saved.advertise.items()},
            )
        except GraphError as error:
            raise ServeError(str(error)) from None

    # -- its own socket ----------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        operations: dict[str, gateway_control.Operation] = {
            "reload": self._reload,
            "sessions": self._sessions,
            "statistics": self._statistics,
            "logout": self._logout,
            "inject": self._inject,
            "resize": self._resize,
        }

        async def bound(waiter: Waiter[Listener]) -> Listener:
            return await waiter

        try:
            self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            address = Address(path=str(self.socket))
            waiter = self.network.listen(address, lambda: gateway_control.make_receiver(operations), mode=0o600)
            self.listener = await self._drive(bound(waiter))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ServeError(f"another gateway runs behind {self.socket}") from None
            raise ServeError(f"no control socket at {self.socket}: {error.strerror or error}") from None

    async def _reload(self, arguments: dict[str, Any]) -> None:
        """Follow what is kept: all of it, or nothing."""
        saved = self.store.load()
        waiter: Waiter[None] = Waiter()

        def finish(task: asyncio.Task[None]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                waiter.fail(error)
            else:
                waiter.set(None)

        task = self.loop.create_task(self._follow(saved))
        task.add_done_callback(finish)
        await waiter

    async def _follow(self, saved: Saved) -> None:
        async with self.changing:
            await self._mount(saved)
            try:
                await self._drive(self.exporter.apply(list(saved.targets.values())))
            except GraphError as error:
                raise ServeError(str(error)) from None
            finally:
                used = {unit.backing.volume for unit in self.exporter.gateway.units.values()}
                for volume in [each for each in self.sessions if each not in used]:
                    del self.exporter.gateway.volumes[volume]
                    await self._drive(self.sessions.pop(volume).unmount())

    async def _sessions(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        return self.exporter.sessions()

    async def _statistics(self, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        rows = []
        for unit in self.exporter.gateway.units.values():
            counted = unit.statistics
            rows.append(
                {
                    "volume": unit.backing.volume,
                    "path": unit.backing.path,
                    "serial": unit.identity.serial,
                    "blocks": unit.blocks,
                    "block_size": unit.block_size,
                    "by_command": counted.by_command,
                    **{
                        name: getattr(counted, name)
                        for name in (
                            "reads",
                            "writes",
                            "read_bytes",
                            "write_bytes",
                            "read_seconds",
                            "write_seconds",
                            "errors",
                        )
                    },
                }
            )
        return rows

    async def _logout(self, arguments: dict[str, Any]) -> int:
        return self.exporter.logout(str(arguments["target"]), str(arguments["initiator"]))

    def _unit(self, arguments: dict[str, Any]) -> LogicalUnit:
        target = self.exporter.gateway.targets.get(str(arguments["target"]))
        unit = target.units.get(int(arguments["lun"])) if target is not None else None
        if unit is None:
            raise ServeError(f"the gateway has no target {arguments['target']} with LUN {arguments['lun']}")
        return unit

    async def _resize(self, arguments: dict[str, Any]) -> int:
        unit = self._unit(arguments)
        await self.exporter.gateway.resize(unit)
        return unit.blocks

    async def _inject(self, arguments: dict[str, Any]) -> None:
        unit = self._unit(arguments)
        name = str(arguments["error"])
        if name == "none":
            unit.injected.clear()
            return
        sense = _ERRORS.get(name)
        if sense is None:
            parts = name.split("/")
            if len(parts) != 3:
                raise ServeError(f"error {name!r} is none of {', '.join(_ERRORS)}, none, or KEY/ASC/ASCQ in hex")
            key, asc, ascq = (int(part, 16) & 0xFF for part in parts)
            sense = Sense(key, asc, ascq)
        unit.injected.append(
            Injection(
                sense,
                str(arguments["what"]),
                arguments["lba"],
                int(arguments["blocks"]),
                bool(arguments["continuous"]),
            )
        )


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ServeError(f"portal {text!r} is not HOST:PORT")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
