"""A gateway with its portals: what an export/iscsi translator and the gateway process have in common."""

from __future__ import annotations

import errno
import fnmatch
import os
from collections.abc import Mapping, Sequence
from typing import Any

from glustx.errors import GraphError
from glustx.iscsi.server import Portal, Server
from glustx.rpc.channel import Address, Listener
from glustx.runtime import Reactor
from glustx.scsi.config import TargetConfig
from glustx.scsi.gateway import Gateway


class Exporter:
    """Targets on the volumes of `gateway.volumes`, behind portals.

    Args:
        reactor: clock.
        network: how to listen (see `glustx.rpc.transport`); None for no portals.
        client: whose fds and locks these are on the bricks.
    """

    def __init__(self, reactor: Reactor, network: Any, client: str = "") -> None:
        self.gateway = Gateway({}, reactor, client)
        self.server = Server(self.gateway, reactor)
        self._network = network
        self._listeners: list[Listener] = []

    async def start(
        self, portals: Sequence[Address], targets: Sequence[TargetConfig], advertised: Mapping[str, Address]
    ) -> None:
        """Open all files, then listen; GraphError for what cannot be, and nothing stays open then.

        Args:
            portals: where to listen; their order numbers the target ports.
            targets: what to offer.
            advertised: what initiators are told of a portal instead, by the portal as text.
        """
        try:
            await self.gateway.start(targets)
            for number, address in enumerate(portals, 1):
                if self._network is None:
                    break
                portal = Portal(self.server, number, advertised.get(str(address)))
                try:
                    listener: Listener = await self._network.listen(address, portal.make_receiver)
                except OSError as error:
                    name = errno.errorcode.get(error.errno or 0, "error")
                    why = os.strerror(error.errno) if error.errno else str(error)
                    raise GraphError(f"cannot listen on portal {address}: {name} ({why})") from None
                portal.address = listener.address
                self._listeners.append(listener)
        except BaseException:
            await self.stop()
            raise

    async def apply(self, targets: Sequence[TargetConfig]) -> None:
        """Offer something else from now on (see `Gateway.apply`); sessions that may not go on are ended."""
        await self.gateway.apply(targets)
        self.server.judge_anew()

    async def stop(self) -> None:
        """Listen no more, end all sessions, make everything durable and give the files back."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self.server.stop()
        await self.gateway.stop()

    def addresses(self) -> list[Address]:
        """Return where it listens."""
        return [listener.address for listener in self._listeners]

    def sessions(self) -> list[dict[str, Any]]:
        """Return what there is to say of each session."""
        return self.server.facts()

    def logout(self, target: str, initiator: str) -> int:
        """End the sessions of the initiators whose name fits a pattern, and return how many."""
        found = self.gateway.targets.get(target)
        if found is None:
            raise ValueError(f"there is no target {target}")
        sessions = [s for s in self.server.of_target(found) if fnmatch.fnmatchcase(s.initiator, initiator.lower())]
        for session in sessions:
            session.drop("ended by the administrator")
        return len(sessions)
