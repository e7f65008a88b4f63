"""protocol/server: offers the translators below to clients of GlusterFS's RPC programs.

Sits on top of a brick's graph. It listens, takes each connection through SETVOLUME, and turns calls into requests for
the subvolume the client named. What a connection holds (its fds, its fops under way) lives in `server_session.py`;
when the last connection of a client is gone, the translators below hear CLIENT_GONE and drop its locks.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from glustx.errors import GraphError, OptionError
from glustx.options import OptionSet, Seconds, Size, option, wildcard
from glustx.rpc.callbacks import body_of, encode_callback
from glustx.rpc.channel import Address, Listener, Receiver
from glustx.rpc.complaints import Complaints
from glustx.rpc.fop_programs import FOPS_400
from glustx.rpc.record import Budget
from glustx.rpc.strangers import Strangers
from glustx.rpc.tls import Tls, TlsError
from glustx.runtime import TimedOut, Waiter, wait_for
from glustx.values import Caller
from glustx.xlator import Event, Xlator
from glustx.xlators.protocol.server_auth import ACCEPT, NOBODY, authorise, by_login, host_names, squashed
from glustx.xlators.protocol.server_descriptors import Descriptors
from glustx.xlators.protocol.server_groups import Groups
from glustx.xlators.protocol.server_session import ServerSession
from glustx.xlators.protocol.tls_options import TlsOptions

if TYPE_CHECKING:
    from glustx.rpc.tls_stream import TlsAcceptor

log = logging.getLogger("glustx.protocol.server")

STOP_TIMEOUT = 10.0
_LEAST = 1 << 20
_SET_NAMES = frozenset(
    f"server.{name}" for name in ("root-squash", "all-squash", "anonuid", "anongid", "manage-gids", "gid-timeout")
)


class Server(Xlator):
    """The server end of the wire."""

    subvolume_count: ClassVar[tuple[int, int | None]] = (1, None)

    class Options(TlsOptions):
        """Where to listen, whom to let in, how much one client may have under way."""

        transport_type: str = option(
            "tcp", "Transport: tcp (or its alias socket), or unix.", choices=("tcp", "socket", "unix")
        )
        listen_port: int = option(
            0, "Port to listen on; 0 takes a free one.", key="transport.socket.listen-port", low=0, high=65535
        )
        listen_port_short: int = option(0, "Another spelling of the port.", key="listen-port", low=0, high=65535)
        bind_address: str = option("127.0.0.1", "Address to listen on.", key="transport.socket.bind-address")
        listen_path: str = option("", "Unix socket to listen on.", key="transport.socket.listen-path")
        auth_path: str = option("", "Name of the brick in the auth options; the subvolume's name by default.")
        auth: dict[str, str] = wildcard(
            "auth.*",
            "Who may use a brick: auth.addr.BRICK.allow, auth.login.BRICK.allow, ...; by the common names in"
            " certificates: auth.login.BRICK.ssl-allow, or auth.ssl-allow.",
            live=True,
        )
        strict_auth_accept: bool = option(False, "Refuse clients that bring no known user.", live=True)
        allow_insecure: bool = option(
            True, "Accept clients by address whose port is not below 1024.", key="rpc-auth-allow-insecure", live=True
        )
        root_squash: bool = option(False, "Take root for anonuid, and group 0 for anongid.", live=True)
        all_squash: bool = option(False, "Take everybody for anonuid and anongid, in no other group.", live=True)
        anonuid: int = option(NOBODY, "The user that is put in another's place.", low=0, high=0xFFFFFFFF, live=True)
        anongid: int = option(NOBODY, "The group that is put in another's place.", low=0, high=0xFFFFFFFF, live=True)
        manage_gids: bool = option(
            False, "Take a user's supplementary groups from this machine, not from the client.", live=True
        )
        gid_timeout: Seconds = option(Seconds(300), "Time that such groups are believed.", low=0, live=True)
        outstanding_rpc_limit: int = option(
            64,
            "Fops of one client that may be under way before it is not read from; 0 means no limit.",
            key="rpc.outstanding-rpc-limit",
            low=0,
            high=65536,
            live=True,
        )
        outstanding_short: int = option(
            -1, "Another spelling of the limit.", key="server.outstanding-rpc-limit", low=-1, high=65536, live=True
        )
        fds_per_client: int = option(
            65536,
            "Fds that one connection may hold; half of what the process may have at most.",
            low=1,
            high=1 << 20,
            live=True,
        )
        memory_per_connection: Size = option(
            Size(256 << 20),
            "Bytes that the records of one connection may take beyond 1.25 MiB; one that needs more is closed.",
            low=1 << 20,
            live=True,
        )
        memory_limit: Size = option(
            Size(1 << 30),
            "The same for all connections together, and what they may have under way and unsent; 1 MiB each at least.",
            low=1 << 20,
            live=True,
        )
        stranger_limit: int = option(
            1024,
            "Connections that have not come through SETVOLUME; with one more the oldest is closed.",
            low=1,
            high=65536,
            live=True,
        )
        stranger_timeout: Seconds = option(
            Seconds(30), "Seconds that a connection has for SETVOLUME; 0 for no end.", low=0, live=True
        )
        volume_id: str = option("", "Volume id that SETVOLUME must name, when it names one.")
        grace_timeout: Seconds = option(0, "Accepted for stock volfiles; a client that is gone is gone at once.")
        accepted = (
            "transport.*",
            "rpc-auth*",
            "rpc-auth.*",
            "inode-lru-limit",
            "event-threads",
            "statedump-path",
            "lk-heal",
            "dynamic-auth",
            "ssl-*",
            "ping-timeout",
            "tcp-window-size",
            "server.*",
            "strict-auth",
        )

        @classmethod
        def parse(cls, xlator: str, texts: Mapping[str, str], *, strict: bool = True) -> tuple[OptionSet, list[str]]:
            """Parse, knowing the options on callers also by the names that `gluster volume set` has for them."""
            named = {key.removeprefix("server.") if key in _SET_NAMES else key: text for key, text in texts.items()}
            return super().parse(xlator, named, strict=strict)

    def check_options(self, options: Any) -> None:
        """Refuse what a user relies on and would not get."""
        if options.transport_type == "unix" and not options.listen_path:
            raise OptionError(self.name, "transport.socket.listen-path", "is required with transport-type unix")
        for key, text in options.auth.items():
            names = host_names(text) if key.endswith(".reject") and not key.startswith("auth.login.") else []
            if names:
                raise OptionError(self.name, key, f"{names[0]} is no address; names are not resolved")

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.uuid = str(uuid.uuid4())
        self.sessions: set[ServerSession] = set()
        self.clients: dict[str, set[ServerSession]] = {}
        self.listener: Listener | None = None
        self.tls: TlsAcceptor | None = None
        self.stopping = False
        self._empty: Waiter[None] | None = None
        self.budget = Budget()
        self.descriptors = Descriptors()
        self.complaints = Complaints(log, lambda: self.graph.reactor.time())
        self.groups: Groups | None = None
        self.strangers = Strangers(
            lambda: self.graph.reactor, lambda: (self.options.stranger_limit, self.options.stranger_timeout)
        )
        self._set_budget()
        self.closed_rpcs = self.closed_received = self.closed_sent = 0

    @property
    def address(self) -> Address | None:
        """Where the server listens, once it is started."""
        return self.listener.address if self.listener is not None else None

    @property
    def outstanding_limit(self) -> int:
        """Fops of one client that may be under way; 0 means no limit."""
        short: int = self.options.outstanding_short
        limit: int = self.options.outstanding_rpc_limit
        return short if short >= 0 else limit

    def share(self, most: int) -> int:
        """Return how much of `most` bytes one connection may have: less than all of it once there are so many that the
        memory limit would not do, and 1 MiB at least, which is one usual READ or WRITE."""
        each: int = self.options.memory_limit // max(1, len(self.sessions))
        return max(_LEAST, min(most, each))

    async def start(self) -> None:
        """Listen, when there is a network to listen on."""
        self.stopping = False
        self._set_groups()
        self.descriptors.measure()
        network = self.graph.surroundings.network
        if network is None or not hasattr(network, "listen"):
            return
        for codec in FOPS_400.codecs.values():
            codec.compile()  # the first client shall not wait for it
        options = self.options
        port = options.listen_port or options.listen_port_short
        address = Address(options.bind_address, port, options.listen_path)
        try:
            self.listener = await network.listen(address, self._secured(address))
        except TlsError as error:
            raise GraphError(f"{self.name} cannot listen on {address}: {error.strerror}") from None
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "error")
            raise GraphError(f"{self.name} cannot listen on {address}: {name} ({error.strerror or error})") from error
        log.info("%s listens on %s", self.name, self.listener.address)

    async def stop(self) -> None:
        """Stop listening, drop every connection, and wait until what they had under way has ended."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        if self.tls is not None:
            self.tls.close()
        self.stopping = True
        self.strangers.close()
        self.complaints.flush()
        for session in list(self.sessions):
            session.drop("the server is going down")
        if self.sessions:
            self._empty = Waiter()
            try:
                await wait_for(self.graph.reactor, self._empty, STOP_TIMEOUT)
            except TimedOut:
                log.warning("%s: %d connections have fops that do not end", self.name, len(self.sessions))

    def _secured(self, address: Address) -> Callable[[], Receiver]:
        """Return what makes the receivers of connections: behind TLS, where that is on."""
        options = self.options
        if not options.ssl or address.path:
            return self.make_receiver
        from glustx.rpc.tls_stream import TlsAcceptor  # few need the ssl module

        tls, reactor = Tls.of_options(options), self.graph.reactor
        self.tls = TlsAcceptor(self.make_receiver, tls, reactor, lambda peer, text: self.complaints.say(peer, text))
        return self.tls.make_receiver

    def make_receiver(self) -> ServerSession:
        """Return the receiver of a new connection."""
        return ServerSession(self)

    # -- clients ----------------------------------------------------------------------------------------------------

    def subvolume(self, name: str) -> Xlator | None:
        """Return the child a client may mean by `remote-subvolume`."""
        for child in self.subvolumes:
            if child.name == name or (self.options.auth_path and name == self.options.auth_path):
                return child
        return None

    def admit(self, child: Xlator, peer: str, user: str, password: str, identity: str | None = None) -> bool:
        """Tell whether the auth options let a client in; `identity` is the common name in its certificate."""
        brick = self.options.auth_path or child.name
        options = self.options
        strict, insecure = options.strict_auth_accept, options.allow_insecure
        return authorise(brick, peer, user, password, options.auth, strict, insecure, identity)

    def trusts(self, child: Xlator, user: str, password: str) -> bool:
        """Tell whether a client has logged in, as those of the trusted pool do."""
        brick = self.options.auth_path or child.name
        return by_login(brick, user, password, self.options.auth, False) == ACCEPT

    def squash(self, caller: Caller, trusted: bool) -> Caller:
        """Return the caller that the squash options put in a caller's place."""
        options = self.options
        if not (options.root_squash or options.all_squash):
            return caller
        return squashed(caller, options.all_squash, options.anonuid, options.anongid, trusted)

    def options_changed(self, old: Any) -> None:
        """Judge clients and callers anew; connections that take too much by now keep it until it is dealt with."""
        self._set_budget()
        self._set_groups()
        for session in list(self.sessions):
            session.judge_anew()
            session.forget_callers()

    def _set_groups(self) -> None:
        self.groups = Groups(self.graph, self.options.gid_timeout) if self.options.manage_gids else None

    def _set_budget(self) -> None:
        self.budget.limit, self.budget.each = self.options.memory_limit, self.options.memory_per_connection

    def joined(self, session: ServerSession) -> None:
        """A connection has come through SETVOLUME."""
        self.clients.setdefault(session.client, set()).add(session)

    def left(self, session: ServerSession) -> None:
        """A connection is gone, and what it had under way has ended."""
        self.sessions.discard(session)
        if not self.sessions and self._empty is not None:
            self._empty.set(None)
        channel = session.last_channel
        self.closed_rpcs += session.served
        if channel is not None:
            self.closed_received += channel.received
            self.closed_sent += channel.sent
        peers = self.clients.get(session.client)
        if peers is None:
            return
        peers.discard(session)
        if not peers:
            del self.clients[session.client]
            for child in self.subvolumes:
                child.notify(Event.CLIENT_GONE, self, session.client)

    # -- what comes from below, what people see ---------------------------------------------------------------------

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        """Send upcalls to the client they are for; pass the rest on."""
        if event is Event.UPCALL:
            body = body_of(data)
            if body is not None:
                for session in self.clients.get(getattr(data, "client", ""), ()):
                    session.notify(encode_callback(session.next_xid(), body))
            return
        super().notify(event, source, data)

    def statedump(self) -> dict[str, Any]:
        """Connections, clients and wire counters."""
        channels = [s.channel for s in self.sessions if s.channel is not None]
        return {
            "address": str(self.address or ""),
            "connections": len(self.sessions),
            "strangers": len(self.strangers),
            "clients": len(self.clients),
            "warnings": self.complaints.total,
            "memory_of_large_records": self.budget.used,
            "fds": sum(len(s.fds) for s in self.sessions),
            "under_way": sum(len(s.runs) for s in self.sessions),
            "rpcs": self.closed_rpcs + sum(s.served for s in self.sessions),
            "bytes_received": self.closed_received + sum(c.received for c in channels),
            "bytes_sent": self.closed_sent + sum(c.sent for c in channels),
        }
