"""What the portals of a gateway share: targets and rules, sessions, limits, and looking after silent initiators."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from glustx.iscsi.connection import Connection
from glustx.iscsi.keys import Settings
from glustx.iscsi.login import (
    AUTHORISATION,
    NO_RESOURCES,
    NO_SESSION,
    NOT_FOUND,
    TOO_MANY,
    UNAVAILABLE,
    Login,
    LoginRefused,
)
from glustx.iscsi.memory import Memory
from glustx.iscsi.session import Session
from glustx.iscsi.tasks import NormalSession
from glustx.rpc.channel import Address
from glustx.rpc.complaints import Complaints
from glustx.rpc.strangers import Strangers
from glustx.runtime import Reactor, TimerHandle
from glustx.scsi.config import AclConfig, TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.target import Target

log = logging.getLogger("glustx.iscsi")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What initiators may take.

    Attributes:
        sessions: of all initiators together.
        strangers, login_timeout: connections that have not logged in, and seconds that each has for it.
        memory, session_memory: bytes of data-out on its way, of all sessions and of one.
        ping_interval: seconds of silence after which an initiator is asked whether it is there; it has as long again to
            answer. 0 for never.
    """

    sessions: int = 4096
    strangers: int = 1024
    login_timeout: float = 15.0
    memory: int = 1 << 30
    session_memory: int = 128 << 20
    ping_interval: float = 15.0


class Statistics:
    """Counts since the start."""

    def __init__(self) -> None:
        self.logins = 0
        self.refused = 0
        self.rejects = 0


class Portal:
    """One address that initiators connect to.

    Args:
        server: what it belongs to.
        number: from 1, for people.
        advertised: what SendTargets tells of it; the address that the initiator reached by default.
    """

    def __init__(self, server: Server, number: int = 1, advertised: Address | None = None) -> None:
        self.server = server
        self.number = number
        self.advertised = advertised
        self.address: Address | None = None
        server.portals.append(self)

    def make_receiver(self) -> Connection:
        """Return the receiver of a new connection."""
        return Connection(self)

    def told(self, connection: Connection) -> str:
        """Return the address for an initiator that is connected to this portal, or could be."""
        if self.advertised is not None:
            return str(self.advertised)
        local: str = getattr(connection.channel, "local", "")
        if local and connection.portal is self:
            return local
        if local and self.address is not None and self.address.host in ("", "0.0.0.0", "::"):
            # All addresses of this machine: the one that the initiator has reached is surely of use to it.
            return f"{local.rpartition(':')[0]}:{self.address.port}"
        return str(self.address or "")


class Server:
    """All sessions of a gateway.

    Args:
        gateway: the targets.
        reactor: clock.
        settings: what is negotiated.
        limits: what initiators may take.
        discovery_rule: what discovery sessions must show; anybody may ask without.
    """

    def __init__(
        self,
        gateway: Gateway,
        reactor: Reactor,
        settings: Settings | None = None,
        limits: Limits | None = None,
        discovery_rule: AclConfig | None = None,
    ) -> None:
        self.gateway = gateway
        self.reactor = reactor
        self.settings = settings or Settings()
        self.limits = limits or Limits()
        self.discovery_rule = discovery_rule or AclConfig()
        self.portals: list[Portal] = []
        self.connections: set[Connection] = set()
        self.sessions: dict[int, Session] = {}
        self.statistics = Statistics()
        self.memory = Memory(self.limits.memory, self.limits.session_memory)
        self.complaints = Complaints(log, reactor.time)
        self.strangers = Strangers(lambda: reactor, lambda: (self.limits.strangers, self.limits.login_timeout))
        self.serving = True
        self.soon: Callable[[Callable[[], None]], object] = getattr(reactor, "soon", reactor.post)
        self._tsih = 0
        self._timer: TimerHandle | None = None

    # -- connections -------------------------------------------------------------------------------------------------

    def enter(self, connection: Connection) -> None:
        """Somebody has connected."""
        self.connections.add(connection)
        self.strangers.enter(connection)
        if self._timer is None and self.limits.ping_interval:
            self._timer = self.reactor.call_later(self.limits.ping_interval, self._look)

    def leave(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self.strangers.leave(connection)

    def _look(self) -> None:
        """Ask those who have said nothing since the last look; drop those who did not answer."""
        self._timer = None
        if not self.connections:
            return
        for connection in list(self.connections):
            session, channel = connection.session, connection.channel
            if session is None or channel is None:
                continue
            if session.closed:
                # It was told, and had its time to close.
                if connection.ending:
                    connection.abort("the session is over")
                connection.ending = True
            elif channel.received != connection.seen:
                connection.seen, session.ping = channel.received, None
            elif session.ping is None:
                session.send_ping()
            else:
                self.complaints.say(connection.peer, f"{session.initiator} does not answer; session dropped")
                session.end()
                channel.abort("no answer to a NOP-In")
        self._timer = self.reactor.call_later(self.limits.ping_interval, self._look)

    # -- logins ------------------------------------------------------------------------------------------------------

    def look_up(self, name: str) -> TargetConfig:
        """Return the target of a name; LoginRefused when there is none, or none yet (initiators try again then)."""
        target = self.gateway.targets.get(name)
        if target is None:
            raise LoginRefused(NOT_FOUND if self.serving else UNAVAILABLE, f"there is no target {name}")
        return target.config

    def admit(self, connection: Connection, login: Login) -> Session:
        """Make the session of a login that has come through.

        One that the same initiator port has already is over then: session reinstatement (RFC 7143 6.3.5). LoginRefused
        when a session handle is named that is not there, or would take a second connection.
        """
        before = self._before(login)
        if before is None and len(self.sessions) >= self.limits.sessions:
            raise LoginRefused(NO_RESOURCES, f"{len(self.sessions)} sessions are enough")
        tsih = self._next_tsih()
        session: Session
        if login.discovery:
            session = Session(connection, login, tsih)
        else:
            target = self.gateway.targets.get(login.target.name) if login.target is not None else None
            if target is None:
                raise LoginRefused(NOT_FOUND, "the target has gone meanwhile")
            rule = target.config.rule(login.initiator, login.address)
            if rule is None:
                raise LoginRefused(AUTHORISATION, f"{login.initiator} may not use {target.name} any more")
            if before is not None:
                before.drop("taken over by a new login", tell=False)
            # A target port is a target with its portal group (RFC 7143 4.2.4), whichever portal leads to it.
            nexus = target.login(login.port_name, target.config.portal_group, rule.luns, connection.peer)
            session = NormalSession(connection, login, tsih, target, nexus)
        self.sessions[tsih] = session
        self.strangers.leave(connection)
        self.statistics.logins += 1
        log.info("%r logged in at %s", session, session.target_name or "discovery")
        return session

    def _before(self, login: Login) -> Session | None:
        """Return the session that a login takes the place of."""
        name = login.target.name if login.target is not None else ""
        same = None
        for session in self.sessions.values():
            if session.port_name == login.port_name and session.target_name == name:
                same = session
        if login.tsih:
            if same is None or same.tsih != login.tsih:
                raise LoginRefused(NO_SESSION, f"there is no session {login.tsih}")
            if same.cid != login.cid:
                raise LoginRefused(TOO_MANY, "a second connection of one session")
        return same if not login.discovery else None

    def _next_tsih(self) -> int:
        for _ in range(0xFFFF):
            self._tsih = self._tsih % 0xFFFF + 1
            if self._tsih not in self.sessions:
                return self._tsih
        raise LoginRefused(NO_RESOURCES, "no session handle is free")

    def forget(self, session: Session) -> None:
        """A session is over."""
        self.sessions.pop(session.tsih, None)

    # -- discovery ---------------------------------------------------------------------------------------------------

    def targets_for(self, initiator: str, address: str) -> Iterable[TargetConfig]:
        """Return the targets that an initiator may use."""
        for target in self.gateway.targets.values():
            if target.config.rule(initiator, address) is not None:
                yield target.config

    def portal_addresses(self, connection: Connection) -> list[str]:
        """Return the addresses of all portals, as an initiator at the other end of `connection` should know them."""
        found = (portal.told(connection) for portal in self.portals)
        return list(dict.fromkeys(address for address in found if address))

    # -- by hand -----------------------------------------------------------------------------------------------------

    def of_target(self, target: Target) -> list[NormalSession]:
        """Return the sessions of a target."""
        found = self.sessions.values()
        return [each for each in found if isinstance(each, NormalSession) and each.target is target]

    def drop_sessions(self, target: Target, why: str) -> None:
        """End all sessions of a target."""
        for session in self.of_target(target):
            session.drop(why)

    def judge_anew(self) -> None:
        """End the sessions of initiators that the targets' rules no longer let in, and of targets that are gone."""
        for session in list(self.sessions.values()):
            if isinstance(session, NormalSession):
                target = self.gateway.targets.get(session.target_name)
                if target is not session.target:
                    session.drop("its target is gone")
                elif target.config.rule(session.initiator, session.address) is None:
                    session.drop("it is not let in any more")

    def facts(self) -> list[dict[str, Any]]:
        """Return what there is to say of each session."""
        shown = []
        for session in self.sessions.values():
            each: dict[str, Any] = {
                "tsih": session.tsih, "initiator": session.initiator, "isid": session.isid.hex(),
                "target": session.target_name, "peer": session.connection.peer,
                "portal": session.connection.portal.number,
            }  # fmt: skip
            if isinstance(session, NormalSession):
                each.update(
                    tasks=len(session.tasks), commands=session.commands, read_bytes=session.read_bytes,
                    written_bytes=session.written_bytes,
                )  # fmt: skip
            shown.append(each)
        return shown

    def stop(self) -> None:
        """Tell every initiator that its session ends, and end it; no connection stays."""
        self.serving = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.strangers.close()
        for session in list(self.sessions.values()):
            session.drop("the gateway stops")
        for connection in list(self.connections):
            connection.close()
        self.complaints.flush()
