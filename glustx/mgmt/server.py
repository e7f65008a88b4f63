"""The RPC programs of the volume server: DUMP, Handshake and Portmap, as stock's management daemon answers them.

A client takes the other side for a management daemon when Portmap is in its DUMP, so it must be here and may not be in
a brick's.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from glustx.mgmt.volumes import Volumes
from glustx.rpc import dict_v1
from glustx.rpc import programs as p
from glustx.rpc.connection import Handler, ProcUnavail, RpcConnection
from glustx.rpc.message import Call

log = logging.getLogger("glustx.mgmt")

_WANTS_ID = 1


class VolumeServer:
    """Answers clients and bricks out of `volumes`.

    Args:
        volumes: what is served; SIGNIN and SIGNOUT change its portmap.
        signed_in: called with (brick, port, pid) for each SIGNIN.
    """

    def __init__(self, volumes: Volumes, signed_in: Callable[[str, int, int], None] | None = None) -> None:
        self.volumes = volumes
        self._signed_in = signed_in
        self._programs: dict[tuple[int, int], Handler] = {
            (p.DUMP.number, p.DUMP.version): self._dump,
            (p.HANDSHAKE.number, p.HANDSHAKE.version): self._handshake,
            (p.PORTMAP.number, p.PORTMAP.version): self._portmap,
        }

    def make_receiver(self) -> RpcConnection:
        """Return the receiver of a new connection."""
        return RpcConnection(self._programs, limit=1 << 20)

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
            return self._volume_info(p.GetVolumeInfoRequest.decode(body)).encode()
        if call.proc == p.HNDSK_PING:
            return p.PingReply().encode()
        raise ProcUnavail

    def _getspec(self, connection: RpcConnection, request: p.GetspecRequest) -> p.GetspecReply:
        if len(request.key.encode("utf-8", "surrogateescape")) > p.MAX_KEY:
            return p.GetspecReply.failed(errno.EINVAL)
        text = self.volumes.spec(request.key)
        if text is None:
            known = ", ".join(self.volumes.by_name) or "none"
            log.warning("%s asks for volfile %r; the volumes here: %s", connection.peer, request.key, known)
            return p.GetspecReply.failed(errno.ENOENT)
        return p.GetspecReply.found(text)

    def _volume_info(self, request: p.GetVolumeInfoRequest) -> p.GetVolumeInfoReply:
        name = dict_v1.text(request.pairs, b"volname")
        volume = self.volumes.by_name.get(name)
        if volume is None:
            return p.GetVolumeInfoReply(-1, errno.ENOENT, f"no volume {name!r} here")
        if not dict_v1.number(request.pairs, b"flags") & _WANTS_ID:
            return p.GetVolumeInfoReply(-1, errno.EINVAL, "flags ask for nothing that is known")
        return p.GetVolumeInfoReply(pairs=dict_v1.pack_all({"volume_id": volume.id}))

    def _portmap(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        portmap = self.volumes.portmap
        if call.proc == p.PMAP_PORTBYBRICK:
            port = portmap.get(p.PortByBrickRequest.decode(body).brick)
            return p.PortByBrickReply(op_ret=-1 if port is None else 0, port=port or 0).encode()
        if call.proc == p.PMAP_SIGNIN:
            new = p.SignInRequest.decode(body)
            if not 0 < new.port < 65536:
                return p.StatusReply(-1, errno.EINVAL).encode()
            log.info("%s: brick %s is on port %d", connection.peer, new.brick, new.port)
            portmap[new.brick] = new.port
            if self._signed_in is not None:
                self._signed_in(new.brick, new.port, new.pid)
            return p.StatusReply().encode()
        if call.proc == p.PMAP_SIGNOUT:
            gone = p.SignOutRequest.decode(body)
            if portmap.get(gone.brick) != gone.port:
                return p.StatusReply(-1, errno.EINVAL).encode()
            del portmap[gone.brick]
            return p.StatusReply().encode()
        raise ProcUnavail
