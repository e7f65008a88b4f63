"""One client connection of protocol/server: its handshake, its fds, and the way of a call to a request and back.

The hot path is `_fop`: decode, start the coroutine, and when it does not suspend (the usual case) encode its reply in
place. A fop that does suspend is a `Run` in `runs`; it is cancelled when the connection is lost, and its fd survives
until it has ended.
"""

from __future__ import annotations

import errno
import functools
import heapq
import logging
import struct
from typing import TYPE_CHECKING, Any, ClassVar

from glustx import fops
from glustx.errors import FopCancelled, FopError
from glustx.fops import Fop
from glustx.inode import ANONYMOUS_FD, Fd
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Channel
from glustx.rpc.codec import FopCodec
from glustx.rpc.connection import SEND_FEW, SEND_HIGH, CallRefused, Handler, ProcUnavail, RpcConnection
from glustx.rpc.fop_programs import FOPS_330, FOPS_400, FopProgram
from glustx.rpc.record import RECORD_LIMIT, Buffer, frame
from glustx.rpc.xdr import XdrError
from glustx.runtime import Run, drive
from glustx.values import ROOT_LOC, Caller
from glustx.xdata_memo import XdataMemo
from glustx.xlators.protocol.server_descriptors import Descriptors

if TYPE_CHECKING:
    from glustx.xlator import Xlator
    from glustx.xlators.protocol.server import Server

log = logging.getLogger("glustx.protocol.server")

_HEAD = struct.Struct(">5I")  # prog, vers, proc, cred flavor, cred length
_V3 = struct.Struct(
    ">12sIIQ"
)  # v3 credential: pid, uid and gid; flags, ctime nsec, ctime sec; then groups and lk_owner
_FOP_PROG, _FOP_VERS, _OLD_VERS = p.FOP_400.number, p.FOP_400.version, p.FOP_330.version
_FLAVOR = struct.Struct(">I")
_MEMOISED = (message.AUTH_GLUSTERFS_V2, message.AUTH_GLUSTERFS_V3)
_NULL_VERF = bytes(8)
_DUMPED = p.DumpReply(programs=(p.FOP_400, p.FOP_330, p.DUMP, p.HANDSHAKE)).encode()
_MAX_CREDS = 1024

# A client that has not been let in has nothing longer to say than its SETVOLUME.
STRANGER_LIMIT = 64 << 10
# Calls of a new connection that are dealt with in one go, until it is known how long they take.
FIRST_BURST = 16
# From here on a client whose READs and WRITEs wait, each with its buffer, is not read from.
PAYLOAD_HIGH = 64 << 20


class FdTable:
    """The fds of one connection by number, lowest free number first, as stock gives them."""

    __slots__ = ("_fds", "_free", "_shared", "limit")

    def __init__(self, limit: int, shared: Descriptors) -> None:
        self._shared = shared
        self._fds: dict[int, Fd] = {}
        self._free: list[int] = []
        self.limit = limit

    def __len__(self) -> int:
        return len(self._fds)

    def add(self, fd: Fd) -> int:
        """Keep an fd and return its number; FopError EMFILE when there are too many."""
        if len(self._fds) >= self.limit:
            raise FopError(errno.EMFILE, f"the client holds {self.limit} fds")
        self._shared.take(len(self._fds))
        number = heapq.heappop(self._free) if self._free else len(self._fds)
        self._fds[number] = fd
        return number

    def get(self, number: int) -> Fd | None:
        """Return the fd of a number."""
        return self._fds.get(number)

    def pop(self, number: int) -> Fd | None:
        """Take an fd out."""
        fd = self._fds.pop(number, None)
        if fd is not None:
            heapq.heappush(self._free, number)
            self._shared.give(1)
        return fd

    def by_number(self) -> dict[int, Fd]:
        """Return a copy of the table."""
        return dict(self._fds)

    def clear(self) -> list[Fd]:
        """Take all fds out."""
        fds = list(self._fds.values())
        self._shared.give(len(fds))
        self._fds.clear()
        self._free.clear()
        return fds


class _Entry:
    """What the hot path needs for one procedure."""

    __slots__ = ("cls", "codec", "decode", "encode", "locks", "memo", "method", "opens", "payload", "releases")

    def __init__(self, codec: FopCodec, method: Any, memo: XdataMemo) -> None:
        cls = codec.cls
        self.memo = memo
        self.cls = cls
        self.codec = codec
        self.decode = codec.decode_call
        self.encode = codec.encode_reply
        self.method = method
        self.opens = cls in (fops.Open, fops.Opendir, fops.Create)
        self.releases = cls in (fops.Release, fops.Releasedir)
        self.payload = cls in (fops.Write, fops.Put)
        self.locks = bool(cls.effects & fops.LOCKS)


class ServerSession(RpcConnection):
    """A connection from a client.

    Args:
        server: the translator it belongs to.
    """

    long_turn: ClassVar[float | None] = 0.005

    def __init__(self, server: Server) -> None:
        super().__init__(self._cold_programs(), STRANGER_LIMIT, server.budget)
        self.records.burst = FIRST_BURST
        self.server = server
        self.client = ""
        self.bound: dict[int, _Entry] = {}
        self.bound_old: dict[int, _Entry] = {}  # those of version 330, once the client has called one
        self.trusted = False  # logged in
        self.login = ("", "")  # as whom: user and password
        self.program = ""  # what the client says it is: fuse, gfapi, ...
        self.op_version = 0  # the newest that it knows
        self.fds = FdTable(server.options.fds_per_client, server.descriptors)
        self.runs: dict[Run, Fop] = {}
        self.counted = 0
        self.payloads = 0  # bytes of buffers that fops under way keep alive
        self.served = 0
        self.last_channel: Channel | None = None
        self._callers: dict[tuple[bytes, bytes], Caller] = {}
        self.child: Xlator | None = None  # what the client uses, once it has come through SETVOLUME
        self._lost = False
        self._joining = False
        self.hot_call = self._fop
        self.post = server.graph.reactor.post

    # -- life -------------------------------------------------------------------------------------------------------

    def connection_made(self, channel: Channel) -> None:
        """The client is connected."""
        super().connection_made(channel)
        self.last_channel = channel
        self.server.sessions.add(self)
        if self.server.stopping:  # it was accepted just before the listener was closed
            self.drop("the server is going down")
        else:
            self.server.strangers.enter(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone: call off what it has under way, give its fds back, then tell the others."""
        super().connection_lost(error)
        if self._lost:
            return
        self._lost = True
        self.server.strangers.leave(self)
        for run in list(self.runs):
            run.cancel()
        self._gone_when_idle()

    def drop(self, reason: str) -> None:
        """End the connection from this side."""
        if self.channel is not None:
            self.channel.abort(reason)

    def turn_away(self, why: str) -> None:
        """End the connection of somebody who has not come through SETVOLUME."""
        self.broken(why)

    def send_high(self) -> int:
        """Return what may wait to be sent: a share of what all may have, and little for who has not logged in."""
        return self.server.share(SEND_HIGH) if self.bound else SEND_FEW

    def complain(self, peer: str, text: str) -> None:
        """Warn of the peer, as often as its host deserves."""
        self.server.complaints.say(peer, text)

    def _gone_when_idle(self) -> None:
        if self.runs or not self._lost:
            return
        for fd in self.fds.clear():
            self._release(fd)
        self.server.left(self)

    def _release(self, fd: Fd) -> None:
        cls = fops.Releasedir if fd.directory else fops.Release
        entry = self.bound.get(cls.procnum)
        if entry is not None:
            drive(entry.method(cls(fd, caller=Caller(client=self.client))), self._released)

    @staticmethod
    def _released(value: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, (FopError, FopCancelled)):
            log.error("releasing an fd failed", exc_info=error)

    # -- fops -------------------------------------------------------------------------------------------------------

    def find_fd(self, gfid: bytes, number: int) -> Fd:
        """Return the fd a client means; FopError EBADF when it holds none of that number."""
        fd = self.fds.get(number)
        if fd is not None:
            return fd
        if number == ANONYMOUS_FD:
            return Fd(gfid, 2, anonymous=True, client=self.client)
        raise FopError(errno.EBADF, f"fd {number} is not open")

    def _caller(self, view: memoryview, pos: int, flavor: int, size: int) -> tuple[Caller, int, int]:
        """Return the memoised caller, the stamp flags and the ctime (ns) of a credential and its verifier.

        Raises XdrError for a body that its flavor does not explain, and for a verifier: nobody sends one.
        """
        if flavor == message.AUTH_GLUSTERFS_V3 and size >= 36:
            who, stamp, nsec, sec = _V3.unpack_from(view, pos)
            key = (who, bytes(view[pos + 28 : pos + size + 8]))
            caller = self._callers.get(key)
            if caller is not None:
                return caller, stamp, sec * 1_000_000_000 + nsec
        else:
            key = (_FLAVOR.pack(flavor), bytes(view[pos : pos + size + 8]))
            caller = self._callers.get(key)
            if caller is not None:
                return caller, 0, 0
        after = pos + size
        if size % 4 or view[after : after + 8] != _NULL_VERF:
            raise XdrError("a credential that does not end, or one with a verifier")
        cred = message.decode_cred(flavor, bytes(view[pos:after]), self.client)
        caller = self.server.squash(cred.caller, self.trusted)
        if flavor in _MEMOISED:  # too short a body has failed to decode already
            if len(self._callers) >= _MAX_CREDS:
                self._callers.clear()
            self._callers[key] = caller
        return caller, cred.stamp, cred.ctime

    def let_in(self, child: Xlator) -> bool:
        """Tell whether the auth options let the client use `child`, by its address and what it brought."""
        identity = self.channel.identity if self.channel is not None else None
        return self.server.admit(child, self.peer, *self.login, identity)

    def judge_anew(self) -> None:
        """The auth options have changed: end the connection of a client that they no longer let in."""
        if self.child is None or self.channel is None:
            return
        self.trusted = self.server.trusts(self.child, *self.login)
        if not self.let_in(self.child):
            log.warning("%s: client %s is no longer let in", self.peer, self.client)
            self.drop("the auth options have changed")

    def forget_callers(self) -> None:
        """Decode the credentials anew: what the options make of them has changed."""
        self._callers.clear()

    def _bind(self, spoken: FopProgram, child: Any) -> dict[int, _Entry]:
        memo = spoken.memo()
        return {number: _Entry(codec, child.table[codec.cls], memo) for number, codec in spoken.codecs.items()}

    def _fop(self, view: memoryview, pos: int, end: int, xid: int) -> bool:
        if end - pos < 40:
            return False
        prog, vers, proc, flavor, cred_size = _HEAD.unpack_from(view, pos + 12)
        if prog != _FOP_PROG:
            return False
        if vers == _FOP_VERS:
            bound = self.bound
        elif vers == _OLD_VERS and self.child is not None:
            bound = self.bound_old = self.bound_old or self._bind(FOPS_330, self.child)
        else:
            return False
        body = pos + 40 + cred_size  # behind the credential and an empty verifier
        entry = bound.get(proc)
        if entry is None or body > end or cred_size > message.MAX_AUTH_BYTES:
            return False
        try:
            caller, stamp, ctime = self._caller(view, pos + 32, flavor, cred_size)
            req = entry.decode(view, body, end, self.find_fd, entry.memo, caller, ctime, stamp)
        except FopError as error:
            self.send(entry.codec.encode_error(xid, error))
            return True
        except XdrError as error:
            log.info("%s: garbage in %s: %s", self.peer, entry.codec.name, error)
            self.send(frame(message.encode_reply(xid, message.GARBAGE_ARGS)))
            return True
        self.served += 1
        if entry.releases:
            self._forget(view, body)
        groups = self.server.groups
        co = entry.method(req) if groups is None else groups.wind(entry.method, req)
        try:
            waiter = co.send(None)
        except StopIteration as stop:
            if entry.opens:
                self._finish(entry, xid, req, stop.value, None)
                return True
            try:
                pieces = entry.encode(xid, stop.value, 0)
            except Exception as error:
                self._finish(entry, xid, req, None, error)
                return True
            self.out += pieces
            if len(pieces) > 1:
                self.flush()  # a large payload leaves at once: requests are short, and a buffer holds thousands
        except BaseException as error:
            self._finish(entry, xid, req, None, error)
        else:
            self._suspended(entry, xid, req, co, waiter)
        return True

    def _suspended(self, entry: _Entry, xid: int, req: Fop, co: Any, waiter: Any) -> None:
        buffer = None
        size = 0
        if entry.payload:
            buffer = self.records.pin()
            size = len(req.data)  # type: ignore[attr-defined]
        elif entry.cls is fops.Read:
            size = min(req.size, PAYLOAD_HIGH)  # type: ignore[attr-defined]
        if size:
            self.payloads += size
            if self.payloads > self.server.share(PAYLOAD_HIGH):
                self.pause("payloads")
        box: list[Run] = []
        run = Run(co, functools.partial(self._run_ended, box, entry, xid, req, buffer, size), waiter)
        if run.done:
            return
        box.append(run)
        self.runs[run] = req
        self.server.graph.enter()
        if not entry.locks:
            # Lock fops are left out: what frees a waiting one must still be read.
            self.counted += 1
            limit = self.server.outstanding_limit
            if limit and self.counted > limit:
                self.pause("outstanding")

    def _run_ended(
        self,
        box: list[Run],
        entry: _Entry,
        xid: int,
        req: Fop,
        buffer: Buffer | None,
        size: int,
        value: Any,
        error: BaseException | None,
    ) -> None:
        # The system call of a fop that was called off may still be reading: its buffer is left to it.
        if buffer is not None and not isinstance(error, FopCancelled):
            self.records.unpin(buffer)
        if box:
            del self.runs[box[0]]
            self.server.graph.leave()
            self.counted -= not entry.locks
        self._finish(entry, xid, req, value, error)
        if self._lost:
            self._gone_when_idle()
            return
        self.payloads -= size
        if self._pauses:
            limit = self.server.outstanding_limit
            if self.counted <= limit or not limit:
                self.resume("outstanding")
            if self.payloads <= self.server.share(PAYLOAD_HIGH):
                self.resume("payloads")

    def _finish(self, entry: _Entry, xid: int, req: Fop, value: Any, error: BaseException | None) -> None:
        if error is None and entry.opens:
            fd: Fd = req.fd  # type: ignore[attr-defined]
            if self._lost:
                self._release(fd)
                return
            if entry.cls is fops.Create:
                fd.gfid = value.stat.gfid
            try:
                number = self.fds.add(fd)
            except FopError as full:
                self._release(fd)
                error = full
            else:
                self.send(*entry.encode(xid, value, number))
                return
        if error is None:
            try:
                self.send(*entry.encode(xid, value, 0))
                return
            except Exception as fault:
                error = fault
        if isinstance(error, FopError):
            self.send(entry.codec.encode_error(xid, error))
        elif not isinstance(error, FopCancelled):
            log.error("%s from %s failed", entry.codec.name, self.peer, exc_info=error)
            self.send(entry.codec.encode_error(xid, FopError(errno.EIO)))

    def _forget(self, view: memoryview, body: int) -> None:
        (number,) = struct.unpack_from(">q", view, body + 16)
        self.fds.pop(number)

    # -- cold programs ----------------------------------------------------------------------------------------------

    def _cold_programs(self) -> dict[tuple[int, int], Handler]:
        return {
            (p.DUMP.number, p.DUMP.version): self._dump,
            (p.HANDSHAKE.number, p.HANDSHAKE.version): self._handshake,
            (_FOP_PROG, _FOP_VERS): self._cold_fop,
            (_FOP_PROG, _OLD_VERS): self._cold_fop,
        }

    def _dump(self, _: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
        if call.proc == p.DUMP_DUMP:
            p.DumpRequest.decode(body)
            return _DUMPED
        if call.proc == p.DUMP_PING:
            return p.PingReply().encode()
        raise ProcUnavail

    def _cold_fop(self, _: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
        if call.proc == 0:
            return bytes(12)
        spoken = FOPS_400 if call.vers == _FOP_VERS else FOPS_330
        if not self.bound or call.proc == 49:
            raise CallRefused(message.GARBAGE_ARGS)
        if call.proc in spoken.codecs:
            raise CallRefused(message.GARBAGE_ARGS)
        raise ProcUnavail

    def _handshake(self, _: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
        if call.proc == p.HNDSK_SETVOLUME:
            self._setvolume(call, p.SetvolumeRequest.decode(body).pairs)
            return None
        if call.proc == p.HNDSK_GETSPEC:
            return p.GetspecReply(op_ret=-1, op_errno=errno.ENOSYS, spec="a brick has no volfiles").encode()
        if call.proc == p.HNDSK_SET_LK_VER:
            request = p.SetLkVerRequest.decode(body)
            return p.SetLkVerReply(0, 0, request.lk_ver).encode()
        if call.proc == p.HNDSK_PING:
            return bytes(12)
        raise ProcUnavail

    def _setvolume(self, call: message.Call, pairs: dict[bytes, bytes]) -> None:
        """Take a client in or say why not; the reply follows a LOOKUP of the root, as in stock."""
        text = functools.partial(dict_v1.text, pairs)
        name = text(b"remote-subvolume")
        child = self.server.subvolume(name)
        if self._joining or self.bound:
            return self._refuse(call.xid, errno.EINVAL, "SETVOLUME came on this connection before")
        if not text(b"process-uuid"):
            return self._refuse(call.xid, errno.EINVAL, "UUID not specified")
        if text(b"fops-version") != str(_FOP_PROG):
            return self._refuse(call.xid, errno.EINVAL, f"fops-version is not {_FOP_PROG}")
        if child is None:
            known = ", ".join(x.name for x in self.server.subvolumes)
            return self._refuse(call.xid, errno.ENOENT, f"no brick {name!r} here, but {known}")
        wanted, own = text(b"volume-id"), self.server.options.volume_id
        if wanted and own and wanted.lower() != own.lower():
            return self._refuse(call.xid, errno.EINVAL, "Volume-ID different, possible case of same brick re-used")
        self.login = text(b"username"), text(b"password")
        if not self.let_in(child):
            identity = self.channel.identity if self.channel is not None else None
            named = f" of the common name {identity!r}" if identity is not None else ""
            return self._refuse(call.xid, errno.EACCES, f"Authentication failed{named}")
        if text(b"subdir-mount"):
            # The whole volume in place of a folder would be more than the client asked for, and than auth may allow.
            return self._refuse(call.xid, errno.ENOENT, "mounts of a subdirectory are not offered")
        self.trusted = self.server.trusts(child, *self.login)
        self.program = text(b"process-name")
        self.op_version = dict_v1.number(pairs, b"opversion")
        self._joining = True
        self.server.strangers.leave(self)
        looked = fops.Lookup(ROOT_LOC, caller=Caller(client=text(b"process-uuid")))
        drive(
            child.table[fops.Lookup](looked), functools.partial(self._looked_up, call.xid, child, text(b"process-uuid"))
        )

    def _refuse(self, xid: int, code: int, why: str) -> None:
        self.complain(self.peer, f"SETVOLUME refused: {why}")
        pairs = dict_v1.pack_all({"ERROR": why})
        self.reply(xid, p.SetvolumeReply(-1, code, pairs).encode())

    def _looked_up(self, xid: int, child: Any, client: str, value: Any, error: BaseException | None) -> None:
        self._joining = False
        if self._lost:
            return
        if error is not None:
            self.server.strangers.enter(self)
            code = error.errno if isinstance(error, FopError) else errno.EIO
            return self._refuse(xid, code, f"the brick's root does not answer: {error}")
        self.client = client
        self.records.limit = RECORD_LIMIT
        self._callers.clear()
        self.child = child
        self.bound = self._bind(FOPS_400, child)
        self.server.joined(self)
        log.info("%s: client %s uses %s", self.peer, client, child.name)
        answer = {
            "ERROR": "Success",
            "process-uuid": self.server.uuid,
            "child_up": "1",
            "clnt-lk-version": "0",
            "transport-ptr": "0",
        }
        if self.server.options.volume_id:
            answer["volume-id"] = self.server.options.volume_id
        self.reply(xid, p.SetvolumeReply(0, 0, dict_v1.pack_all(answer)).encode())
