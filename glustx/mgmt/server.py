"""The RPC programs of the volume server: DUMP, Handshake and Portmap, as stock's management daemon answers them.

A client takes the other side for a management daemon when Portmap is in its DUMP, so it must be here and may not be in
a brick's.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from glustx.mgmt.guests import Guest, Guests
from glustx.mgmt.volumes import Volumes
from glustx.rpc import dict_v1
from glustx.rpc import programs as p
from glustx.rpc.connection import Handler, ProcUnavail, RpcConnection
from glustx.rpc.message import Call
from glustx.runtime import Reactor

log = logging.getLogger("glustx.mgmt")

SignedIn = Callable[[str, int, int], bool]
"""Told of (brick, port, pid); False when that is not the process that should serve the brick."""

_WANTS_ID = 1


class VolumeServer:
    """Answers clients and bricks out of `volumes`.

    Args:
        reactor: tells the time, and gives others their turn.
        volumes: what is served; SIGNIN and SIGNOUT change its portmap.
        signed_in: asked at each SIGNIN.
        descriptors: how many the process may have; None to find out.
    """

    def __init__(
        self, reactor: Reactor, volumes: Volumes, signed_in: SignedIn | None = None, descriptors: int | None = None
    ) -> None:
        self.guests = Guests(reactor, descriptors)
        self.volumes = volumes
        self._signed_in = signed_in
        self._owners: dict[str, RpcConnection] = {}  # who signed a brick in
        self._programs: dict[tuple[int, int], Handler] = {
            (p.DUMP.number, p.DUMP.version): self._dump,
            (p.HANDSHAKE.number, p.HANDSHAKE.version): self._handshake,
            (p.PORTMAP.number, p.PORTMAP.version): self._portmap,
        }

    def make_receiver(self) -> Guest:
        """Return the receiver of a new connection."""
        return Guest(self.guests, self._programs)

    def close(self) -> None:
        """No call follows."""
        self.guests.close()

    def _dump(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        if call.proc == p.DUMP_DUMP:
            p.DumpRequest.decode(body)
            return p.DumpReply(programs=(p.DUMP, p.HANDSHAKE, p.PORTMAP)).encode()
        if call.proc == p.DUMP_PING:
            return p.PingReply().encode()
        raise ProcUnavail

    def _handshake(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        if call.proc == p.HNDSK_GETSPEC:
            return self._getspec(connection, p.GetspecRequest.decode(body)).encode()
        if call.proc == p.HNDSK_GET_VOLUME_INFO:
            return self._volume_info(connection, p.GetVolumeInfoRequest.decode(body)).encode()
        if call.proc == p.HNDSK_PING:
            return p.PingReply().encode()
        raise ProcUnavail

    def _getspec(self, connection: RpcConnection, request: p.GetspecRequest) -> p.GetspecReply:
        if len(request.key.encode("utf-8", "surrogateescape")) > p.MAX_KEY:
            return p.GetspecReply.failed(errno.EINVAL)
        text = self.volumes.spec(request.key)
        if text is None:
            known = ", ".join(self.volumes.by_name) or "none"
            connection.complain(connection.peer, f"asks for volfile {request.key!r}; the volumes here: {known}")
            return p.GetspecReply.failed(errno.ENOENT)
        _served(connection)
        return p.GetspecReply.found(text)

    def _volume_info(self, connection: RpcConnection, request: p.GetVolumeInfoRequest) -> p.GetVolumeInfoReply:
        name = dict_v1.text(request.pairs, b"volname")
        volume = self.volumes.by_name.get(name)
        if volume is None:
            return p.GetVolumeInfoReply(-1, errno.ENOENT, f"no volume {name!r} here")
        if not dict_v1.number(request.pairs, b"flags") & _WANTS_ID:
            return p.GetVolumeInfoReply(-1, errno.EINVAL, "flags ask for nothing that is known")
        _served(connection)
        return p.GetVolumeInfoReply(pairs=dict_v1.pack_all({"volume_id": volume.id}))

    def _portmap(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        portmap = self.volumes.portmap
        if call.proc == p.PMAP_PORTBYBRICK:
            port = portmap.get(p.PortByBrickRequest.decode(body).brick)
            if port is not None:
                _served(connection)
            return p.PortByBrickReply(op_ret=-1 if port is None else 0, port=port or 0).encode()
        if call.proc == p.PMAP_SIGNIN:
            return p.StatusReply(*self._sign_in(connection, p.SignInRequest.decode(body))).encode()
        if call.proc == p.PMAP_SIGNOUT:
            gone = p.SignOutRequest.decode(body)
            if portmap.get(gone.brick) != gone.port or self._owners.get(gone.brick) is not connection:
                return p.StatusReply(-1, errno.EINVAL).encode()
            del portmap[gone.brick], self._owners[gone.brick]
            return p.StatusReply().encode()
        raise ProcUnavail

    def _sign_in(self, connection: RpcConnection, new: p.SignInRequest) -> tuple[int, int]:
        """Note where a brick is; op_ret and op_errno.

        Anybody may say so. What is believed is what cannot lead clients elsewhere: a brick of these volumes, on the
        port that was given to it; and the first who said so alone may take it back, for as long as it is connected.
        """
        if self.volumes.port_of(new.brick) != new.port:
            connection.complain(connection.peer, f"signs in {new.brick!r} on port {new.port}, which is no brick here")
            return -1, errno.EINVAL
        if self._signed_in is not None and not self._signed_in(new.brick, new.port, new.pid):
            connection.complain(
                connection.peer, f"signs in {new.brick!r} as process {new.pid}, which is not the brick's"
            )
            return -1, errno.EINVAL
        log.info("%s: brick %s is on port %d", connection.peer, new.brick, new.port)
        self.volumes.portmap[new.brick] = new.port
        owner = self._owners.get(new.brick)
        if owner is None or owner.channel is None:
            self._owners[new.brick] = connection
        _served(connection)
        return 0, 0


def _served(connection: RpcConnection) -> None:
    if isinstance(connection, Guest):
        connection.served()
