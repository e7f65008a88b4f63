"""A brick's tie to the volume server it belongs to: its volfile, its place in the portmap, and word of changes.

Source: stock's GETSPEC, SIGNIN and SIGNOUT, and FETCHSPEC on the same connection. A volume server forgets a brick
that signed in only when that signs out, and knows none when it was away, so both are done again.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Sequence

from glustx.mgmt.state import ServeError
from glustx.rpc import dict_v1
from glustx.rpc import programs as p
from glustx.rpc.channel import Address, Network
from glustx.rpc.connection import RpcConnection
from glustx.rpc.getspec import OP_VERSIONS, Dialled, connect, own_credential
from glustx.rpc.message import Call
from glustx.rpc.xdr import XdrError
from glustx.runtime import Reactor, TimedOut, Waiter, sleep, wait_for

log = logging.getLogger("glustx.brick")

Ports = Sequence[tuple[str, int]]
"""The bricks of a process, each with the port it is served on."""

_RETRY = 3.0
_TIMEOUT = 10.0


class Manager:
    """The connection to a volume server. Its coroutines run in the graph's world, where only waiters are awaited.

    Args:
        address: where it listens.
        key: what to ask GETSPEC for.
        changed: called with the volfile whenever it may be another one.
    """

    def __init__(
        self, network: Network, reactor: Reactor, address: Address, key: str, changed: Callable[[str], None]
    ) -> None:
        self.address = address
        self.key = key
        self._network = network
        self._reactor = reactor
        self._changed = changed
        self._link: Dialled | None = None
        self._stale = False
        self._news: Waiter[None] = Waiter()
        self._gone: Exception | None = None

    async def volfile(self, key: str = "") -> str:
        """Return a volfile, the brick's own unless another `key` is given; ServeError when there is none."""
        key = key or self.key
        question = p.GetspecRequest(0, key, dict_v1.pack_all(OP_VERSIONS)).encode()
        try:
            link = await self._linked()
            asked = link.ask(p.HANDSHAKE, p.HNDSK_GETSPEC, question, own_credential(), p.GetspecReply.decode)
            reply = await wait_for(self._reactor, asked, _TIMEOUT)
        except (OSError, XdrError, TimedOut) as error:
            raise ServeError(f"no volfile {key} from {self.address}: {error or 'no answer'}") from None
        if reply.op_ret < 0:
            name = errno.errorcode.get(reply.op_errno, str(reply.op_errno))
            raise ServeError(f"{self.address} has no volfile {key} ({name})")
        return str(reply.spec)

    async def sign_in(self, ports: Ports) -> None:
        """Tell where the bricks are served; ServeError when that is refused or cannot be said."""
        for brick, port in ports:
            try:
                reply = await self._tell(p.PMAP_SIGNIN, p.SignInRequest(brick, port, os.getpid()).encode())
            except (OSError, XdrError, TimedOut) as error:
                raise ServeError(f"cannot sign {brick} in at {self.address}: {error or 'no answer'}") from None
            if reply.op_ret < 0:
                raise ServeError(f"{self.address} refuses the sign-in of {brick} on port {port}")

    async def stay(self, ports: Callable[[], Ports]) -> None:
        """Hear of changes, and sign in again whenever the volume server has been away; ends by cancellation only."""
        while True:
            await self._hear()
            log.warning("the connection to %s is lost: %s", self.address, self._gone or "closed")
            while True:
                await sleep(self._reactor, _RETRY)
                try:
                    await self.sign_in(ports())
                    break
                except ServeError as error:
                    log.warning("%s", error)
            self._stale = True

    async def sign_out(self, ports: Ports) -> None:
        """Tell that the bricks are served no longer."""
        for brick, port in ports:
            try:
                await self._tell(p.PMAP_SIGNOUT, p.SignOutRequest(brick, port).encode())
            except (OSError, XdrError, TimedOut) as error:
                log.info("no sign-out of %s: %s", brick, error)

    async def _hear(self) -> None:
        """Fetch the volfile at every FETCHSPEC, until the connection is lost."""
        while self._link is not None and self._link.channel is not None:
            if not self._stale:
                # Nothing is awaited between this look and the wait, so no news is missed.
                self._news = Waiter()
                await self._news
                continue
            self._stale = False
            try:
                text = await self.volfile()
            except ServeError as error:
                log.error("the volfile may have changed, but %s", error)
                continue
            self._changed(text)

    async def _linked(self) -> Dialled:
        link = self._link
        if link is None or link.channel is None:
            link = self._link = await connect(self._network, self._reactor, self.address, _TIMEOUT)
            link.programs = {(p.CALLBACK.number, p.CALLBACK.version): self._called}
            link.lost = self._lost
        return link

    def _called(self, connection: RpcConnection, call: Call, body: bytes) -> bytes | None:
        """Hear a callback; nobody answers one."""
        if call.proc == p.CBK_FETCHSPEC:
            self._stale = True
            self._news.set(None)
        return None

    def _lost(self, error: Exception | None) -> None:
        self._gone = error
        self._news.set(None)

    async def _tell(self, proc: int, body: bytes) -> p.StatusReply:
        link = await self._linked()
        asked = link.ask(p.PORTMAP, proc, body, own_credential(), p.StatusReply.decode)
        return await wait_for(self._reactor, asked, _TIMEOUT)
