"""`glustx serve`: the volume server and its bricks, from the first listen to the last process gone."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
from collections.abc import Callable
from typing import Any

import msgspec

from glustx.mgmt import control
from glustx.mgmt.server import VolumeServer
from glustx.mgmt.state import Folders, ServeError
from glustx.mgmt.supervisor import BrickProcess
from glustx.mgmt.volumes import Volume, Volumes
from glustx.rpc.channel import Address, Listener, Receiver
from glustx.rpc.tls import TlsError
from glustx.rpc.transport import AsyncioNetwork, AsyncioReactor, drive_in_loop
from glustx.runtime import Waiter

log = logging.getLogger("glustx.mgmt")

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class ReadyBrick(msgspec.Struct, frozen=True):
    """A brick that serves: its name, TCP port, process, and control socket."""

    name: str
    port: int
    pid: int
    control: str


class ReadyVolume(msgspec.Struct, frozen=True):
    """A volume that is served."""

    name: str
    id: str
    bricks: list[ReadyBrick]


class Ready(msgspec.Struct, frozen=True):
    """What `glustx serve --json` prints when clients may come; `volume` and `bricks` are those of the first volume."""

    volume: str
    host: str
    port: int
    bricks: list[ReadyBrick]
    pid: int
    volumes: list[ReadyVolume]
    ready: bool = True


def serve(
    volumes: list[Volume],
    address: Address,
    advertised: str,
    places: Folders,
    ready: Callable[[Ready], None],
    *,
    restart: bool = False,
    log_options: list[str] | None = None,
    tls_options: list[str] | None = None,
) -> None:
    """Serve volumes until SIGTERM or SIGINT.

    Args:
        volumes: at least one.
        address: where the volume server listens, behind its `tls`.
        advertised: the host clients are told.
        places: where the control sockets go.
        ready: called once, when every brick has signed in.
        restart: start a brick again that ended by itself.
        log_options: words of the command line for the bricks' logs.
        tls_options: the same for their connections with the volume server.

    Raises ServeError when something cannot be brought up; whatever was up by then has ended.
    """
    words = (tls_options or [], log_options or [])
    asyncio.run(_Serve(volumes, address, advertised, places, ready, restart, words).run())


class _Serve:
    def __init__(
        self,
        volumes: list[Volume],
        address: Address,
        advertised: str,
        places: Folders,
        ready: Callable[[Ready], None],
        restart: bool,
        words: tuple[list[str], list[str]],
    ) -> None:
        self.volumes = Volumes()
        for volume in volumes:
            self.volumes.add(volume)
        self.address = address
        self.advertised = advertised
        self.places = places
        self.ready = ready
        self.restart = restart
        self.words = words
        self.processes: dict[str, BrickProcess] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        network = AsyncioNetwork(loop)
        listener = await self._listen(network, loop)
        try:
            self._make_processes(listener.address.port)
            start: asyncio.Future[Any] = asyncio.gather(*(process.start() for process in self.processes.values()))
            stop: asyncio.Future[Any] = asyncio.ensure_future(ended.wait())
            await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
            if start.done():
                await start
                self.ready(await self._describe(listener.address.port))
                await stop
            else:
                start.cancel()
        finally:
            await asyncio.gather(*(process.stop() for process in self.processes.values()))
            listener.close()
            self.server.close()
            await network.close()

    async def _listen(self, network: AsyncioNetwork, loop: asyncio.AbstractEventLoop) -> Listener:
        async def bound(waiter: Waiter[Listener]) -> Listener:
            return await waiter

        self.server = VolumeServer(AsyncioReactor(loop), self.volumes, self._signed_in)
        make_receiver: Callable[[], Receiver] = self.server.make_receiver
        try:
            if self.address.tls is not None:
                from glustx.rpc.tls_stream import TlsAcceptor  # few need the ssl module

                make_receiver = TlsAcceptor(make_receiver, self.address.tls, AsyncioReactor(loop)).make_receiver
            listener: Listener = await drive_in_loop(bound(network.listen(self.address, make_receiver)), loop)
        except TlsError as error:
            raise ServeError(f"cannot listen on {self.address}: {error.strerror}") from None
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")
            why = f"{name} ({os.strerror(error.errno)})" if error.errno and name else str(error)
            hint = "; another volume server has that port, so give a different --port" if name == "EADDRINUSE" else ""
            raise ServeError(f"cannot listen on {self.address}: {why}{hint}") from None
        return listener

    def _make_processes(self, port: int) -> None:
        manager = Address(_ANY.get(self.address.host, self.address.host), port)
        for volume in self.volumes.by_name.values():
            for brick in volume.bricks:
                path = self.places.socket(volume.name, brick.name)
                self.processes[brick.name] = BrickProcess(
                    brick.name, brick.key, volume.name, manager, path, self.words, self.restart, self._brick_ended
                )

    def _signed_in(self, brick: str, port: int, pid: int) -> bool:
        process = self.processes.get(brick)
        return process is not None and process.signed_in(pid)

    def _brick_ended(self, process: BrickProcess) -> None:
        self.volumes.portmap.pop(process.brick, None)

    async def _describe(self, port: int) -> Ready:
        listed: list[ReadyVolume] = []
        for volume in self.volumes.by_name.values():
            bricks = []
            for brick in volume.bricks:
                process = self.processes[brick.name]
                try:
                    facts = await control.ask_facts(process.control)
                except (OSError, ValueError) as error:
                    raise ServeError(f"brick {brick.name} does not answer at {process.control}: {error}") from None
                volume.id = volume.id or facts.get("volume-id", "")
                bricks.append(ReadyBrick(brick.name, brick.port, process.pid, str(process.control)))
            listed.append(ReadyVolume(volume.name, volume.id, bricks))
        first = listed[0]
        return Ready(first.name, self.advertised, port, first.bricks, os.getpid(), listed)
