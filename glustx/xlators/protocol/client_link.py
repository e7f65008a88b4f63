"""The connection of protocol/client to its brick: coming up, staying up, coming back.

    portmap (when the port is not pinned) -> DUMP -> SETVOLUME -> fds and locks (client_restore.py) -> up
                     ^                                                                               |
                     +------------------------------ wait, then again -------------------------------+

A `session` number counts the times the link has come up; what a brick gave out in an earlier session is void. While the
link is down fops fail at once with ENOTCONN, as stock's do: nothing is queued for a brick that may never come back.
"""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
import socket
import struct
import uuid
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from glustx.errors import FopCancelled, FopError, told
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.rpc import callbacks, dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address, Channel
from glustx.rpc.connection import ReplyTo, RpcConnection
from glustx.rpc.fop_programs import FOPS_400, choose
from glustx.rpc.getspec import OP_VERSIONS, Dialled, brick_port, connect, own_credential
from glustx.rpc.tls import Tls
from glustx.rpc.xdr import XdrError
from glustx.runtime import Run, TimedOut, TimerHandle, Waiter, drive, wait_for
from glustx.upcall import LocksLost
from glustx.values import Caller
from glustx.xlator import Event
from glustx.xlators.protocol.client_restore import Restore

if TYPE_CHECKING:
    from glustx.xlators.protocol.client import Client

log = logging.getLogger("glustx.protocol.client")

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
_HEAD = struct.Struct(">IIIIIII")  # mark, xid, CALL, rpcvers, prog, vers, proc
_CRED = struct.Struct(">IIQ")  # flags, ctime nsec, ctime sec
_NULL_VERF = bytes(8)
_MAX_CREDS = 1024


def text_of(error: BaseException | None) -> str:
    """Return what an error says, without the number that Python writes in front of it."""
    if isinstance(error, FopError):
        return error.text
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error or "no answer")


def _errno_of(error: BaseException) -> int:
    if isinstance(error, socket.gaierror):
        return errno.EHOSTUNREACH  # a resolver's numbers are its own
    if isinstance(error, FileNotFoundError):
        return errno.ECONNREFUSED  # a unix socket that nobody has made
    if isinstance(error, (FopError, OSError)):
        return error.errno or errno.ECONNRESET
    if isinstance(error, Refused):
        return error.code
    return errno.ETIMEDOUT if isinstance(error, TimedOut) else errno.EPROTO


class Refused(Exception):
    """The brick answered and does not want us; trying again at once would not help."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Unanswered(FopError):
    """A fop of which the brick said nothing: it was not sent, or its answer did not come. Never sent a second time."""


class ClientLink:
    """The link of one protocol/client.

    Attributes:
        up: True while fops may be sent.
        why: what keeps it from being up, for messages.
        failure: the same with the brick's name and an errno: what CHILD_DOWN carries up.
        session: how often it has come up.
        fds: the fds to reopen when it comes up again.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.reactor = client.graph.reactor
        self.network = client.graph.surroundings.network
        self.up = False
        self.why = "not connected yet"
        self.failure = FopError(errno.ENOTCONN, self.why)
        self.session = 0
        self.fds: weakref.WeakSet[Fd] = weakref.WeakSet()
        self.connection = Dialled()
        self.brick: Address | None = None
        self._stopped = False
        self._pause = FIRST_PAUSE
        self._timer: TimerHandle | None = None
        self._pinger: TimerHandle | None = None
        self.pings = 0  # that were answered
        self.patient: weakref.WeakSet[ReplyTo] = weakref.WeakSet()  # calls that may wait for another client
        self._seen = -1
        self._asked = -1.0  # when the oldest ping was sent that nothing has come after
        self._sent: deque[tuple[float, int]] = deque()  # at some times, the last xid that had been given out
        self._first: Waiter[None] = Waiter()
        self._attempt: Run | None = None
        self._context = str(uuid.uuid4())
        self._introduced = 0
        self.spoken = FOPS_400
        self._creds: dict[Caller, tuple[bytes, bytes]] = {}
        self._channel: Channel | None = None
        self._past = [0, 0, 0]  # calls, bytes received, bytes sent on earlier connections
        self._base = (0, 0, 0)  # what of the present one belongs to its handshake
        self._begin()

    @property
    def _own_tls(self) -> Tls | None:
        return self.client.graph.surroundings.tls

    @property
    def options(self) -> Any:
        """The client's options; live ones may change."""
        return self.client.options

    @property
    def where(self) -> str:
        """The brick, for messages: host, port and name."""
        options = self.options
        address: object = self.brick or Address(options.remote_host, options.remote_port, options.remote_path)
        if self.brick is None and not options.remote_port and not options.remote_path:
            address = options.remote_host  # the portmap has not told the port yet
        return f"{address} brick {options.remote_subvolume}"

    # -- life -------------------------------------------------------------------------------------------------------

    async def first_outcome(self) -> None:
        """Wait until the first attempt has succeeded or failed."""
        await self._first

    def stop(self) -> None:
        """Hang up for good."""
        self._stopped = True
        self._down("stopped", quiet=True)
        for timer in (self._timer, self._pinger):
            if timer is not None:
                timer.cancel()
        if self._attempt is not None:
            self._attempt.cancel()
        self.connection.hang_up()

    def _begin(self) -> None:
        self._timer = None
        if not self._stopped:
            self._attempt = drive(self._come_up(), self._attempted)

    def _attempted(self, value: Any, error: BaseException | None) -> None:
        self._attempt = None
        if error is None:
            self._pause = FIRST_PAUSE
            self._first.set(None)
            return
        if isinstance(error, FopCancelled):
            self._first.set(None)
            return
        if not isinstance(error, (OSError, FopError, XdrError, Refused, TimedOut)):
            log.error("%s: connecting failed", self.client.name, exc_info=error)
        self.why = text_of(error) or "no answer in time"
        self.failure = FopError(_errno_of(error), f"{self.where}: {self.why}")
        if self.connection.channel is not None:
            self.connection.channel.abort("the handshake failed")
        if not self._first.done:
            self._first.set(None)
        elif isinstance(error, Refused):
            self.client.tell_parents(Event.CHILD_DOWN, self.failure)  # who waits for the graph need not wait longer
        self._again()

    def _again(self) -> None:
        if not self._stopped and self._timer is None:
            self._timer = self.reactor.call_later(self._pause, self._begin)
            self._pause = min(self._pause * 2, LONGEST_PAUSE)

    async def _come_up(self) -> None:
        options = self.options
        limit = options.connect_timeout
        if options.remote_path:
            address = Address(path=options.remote_path)
        else:
            port = options.remote_port
            if not port:
                portmap = Address(options.remote_host, options.remote_portmap, tls=self._own_tls)
                port = await brick_port(self.network, self.reactor, portmap, options.remote_subvolume, limit)
            tls = (self._own_tls or Tls()).over(Tls.of_options(options)) if options.ssl else None
            address = Address(options.remote_host, port, tls=tls)
        self.brick = address
        connection = await connect(self.network, self.reactor, address, limit)
        connection.programs = {(p.CALLBACK.number, p.CALLBACK.version): self._callback}
        connection.lost = functools.partial(self._lost, connection)
        connection.soon = getattr(self.reactor, "soon", None)
        self.connection = connection
        self._channel = connection.channel
        self._base = (0, 0, 0)
        cred = own_credential()
        asking = connection.ask(p.DUMP, p.DUMP_DUMP, p.DumpRequest().encode(), cred, p.DumpReply.decode)
        try:
            dumped = await wait_for(self.reactor, asking, limit)
        except ConnectionResetError:
            if address.tls is not None:
                raise
            why = "it hangs up on the first call; it may want TLS, and transport.socket.ssl-enabled is off"
            raise ConnectionResetError(errno.ECONNRESET, why) from None
        spoken = choose(dumped, options.old_protocol)
        if spoken is None:
            raise Refused(errno.EPROTONOSUPPORT, "the brick offers neither version 400 nor 330 of the fop program")
        self.spoken = spoken
        self._creds.clear()
        asked = connection.ask(
            p.HANDSHAKE,
            p.HNDSK_SETVOLUME,
            p.SetvolumeRequest(dict_v1.pack_all(self._introduction())).encode(),
            spoken.encode_cred(Caller(pid=os.getpid())),
            p.SetvolumeReply.decode,
        )
        answer = await wait_for(self.reactor, asked, limit)
        if answer.op_ret < 0:
            reason = dict_v1.text(answer.pairs, b"ERROR") or os.strerror(answer.op_errno)
            raise Refused(told(answer.op_errno or errno.EACCES).errno, f"the brick refuses this client: {reason}")
        if dict_v1.text(answer.pairs, b"child_up", "1") == "0":
            raise Refused(errno.ENOTCONN, "the brick's storage is down")
        self.session += 1
        await Restore(self, connection).run()
        self.up = True
        self.why = ""
        self._base = self._wire()
        self._watch()
        log.info("%s: connected to %s", self.client.name, self.where)
        self.client.tell_parents(Event.CHILD_UP)

    def _introduction(self) -> dict[str, str | int]:
        options = self.options
        host = socket.gethostname()
        name = (
            f"CTX_ID:{self._context}-GRAPH_ID:0-PID:{os.getpid()}-HOST:{host}-"
            f"PC_NAME:{self.client.name}-RECON_NO:-{self._introduced}"
        )
        # Its own for each connection: a brick that still buries the last one must not take this one for it.
        self._introduced += 1
        pairs: dict[str, str | int] = {
            "process-uuid": name,
            "remote-subvolume": options.remote_subvolume,
            "fops-version": p.FOP_400.number,
            "client-version": "10.3",
            "process-name": "glustx",
            "opversion": OP_VERSIONS["max-op-version"],
            "clnt-lk-version": 1,
            "volfile-checksum": 0,
            "ping-timeout": int(options.ping_timeout),
        }
        if options.username:
            pairs["username"] = options.username
            pairs["password"] = options.password
        if options.volume_id:
            pairs["volume-id"] = options.volume_id
        return pairs

    def _down(self, why: str, quiet: bool = False) -> None:
        was_up, self.up = self.up, False
        self.why = why
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        if was_up:
            inodelks, entrylks = self.client.book.connection_lost()
        if was_up and not quiet:
            log.info("%s: lost %s: %s", self.client.name, self.where, why)
            if inodelks or entrylks:
                text = "%s: %d inodelks and %d entrylks held on %s are lost with the connection"
                log.warning(text, self.client.name, inodelks, entrylks, self.where)
                told = LocksLost(self.where, inodelks=inodelks, entrylks=entrylks)
                self.client.tell_parents(Event.UPCALL, told)
            self.failure = FopError(errno.ENOTCONN, f"{self.where}: {why}")
            self.client.tell_parents(Event.CHILD_DOWN, self.failure)

    def _lost(self, connection: RpcConnection, error: Exception | None) -> None:
        if connection is not self.connection:
            return
        if self.up:
            now = self._wire()
            self._past = [past + count - base for past, count, base in zip(self._past, now, self._base, strict=True)]
            self._base = now
            self._down(text_of(error) if error is not None else "the brick closed the connection")
        if self._attempt is None:
            self._again()

    # -- pings ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Ask for a sign of life twice in a ping timeout; hang up when nothing at all came for the whole of one."""
        self._seen = -1
        self._asked = -1.0
        self._sent.clear()
        self._rest()

    def _rest(self) -> None:
        options = self.options
        halves = [limit / 2 for limit in (options.ping_timeout, options.frame_timeout) if limit]
        if halves:
            self._pinger = self.reactor.call_later(min(halves), self._tick)

    def _tick(self) -> None:
        channel = self.connection.channel
        if channel is None or not self.up:
            return
        limit = self.options.ping_timeout
        now = self.reactor.time()
        if channel.received != self._seen:
            self._seen = channel.received
            if limit:
                self._asked = now
                self.connection.call(p.DUMP.number, p.DUMP.version, p.DUMP_PING, own_credential(), b"", self._pong)
        elif limit and now - self._asked >= limit:
            channel.abort(f"no answer for {limit:g} s")
            return
        self._give_up_old(now)
        self._rest()

    def _pong(self, view: memoryview | None, pos: int, end: int, error: Exception | None) -> None:
        if view is not None:
            self.pings += 1

    def _give_up_old(self, now: float) -> None:
        """Fail the calls that the brick has not answered for the frame timeout, though it is there.

        Source: stock's call bail; like there, locks may take as long as their holders do.
        """
        limit = self.options.frame_timeout
        if not limit:
            self._sent.clear()
            return
        last = -1
        while self._sent and now - self._sent[0][0] >= limit:
            last = self._sent.popleft()[1]
        self._sent.append((now, self.connection.last_xid))
        if last < 0:
            return
        waiting = self.connection.waiting
        # Calls stand in the order in which they were sent; xids start again from the bottom some day.
        sent = itertools.takewhile(lambda xid: (last - xid) & 0xFFFFFFFF < 1 << 31, waiting)
        for xid in [xid for xid in sent if waiting[xid] not in self.patient]:
            waiting.pop(xid)(None, 0, 0, TimeoutError(errno.ETIMEDOUT, f"no reply for {limit:g} s"))

    # -- fops -------------------------------------------------------------------------------------------------------

    def call_fop(self, proc: int, req: Fop, body: bytes, payload: Any, reply_to: ReplyTo) -> None:
        """Send one call of the fop program with the request's credential."""
        connection = self.connection
        caller = req.caller
        parts = self._creds.get(caller)
        if parts is None:
            try:
                raw = self.spoken.encode_cred(caller)
            except XdrError as error:
                raise FopError(errno.EINVAL, f"{req.name} on {self.where}: {error}") from None
            if len(self._creds) >= _MAX_CREDS:
                self._creds.clear()
            # Flavor, length, pid, uid, gid; then flags, nsec and sec, which change; then groups and lk_owner.
            parts = self._creds[caller] = (raw[:20], raw[36:]) if self.spoken.stamps else (raw, b"")
        if self.spoken.stamps:
            sec, nsec = divmod(req.ctime, 1_000_000_000)
            cred = parts[0] + _CRED.pack(req.stamp, nsec, sec) + parts[1]
        else:
            cred = parts[0]
        xid = connection.next_xid()
        size = 24 + len(cred) + 8 + len(body) + (len(payload) if payload is not None else 0)
        program = self.spoken.program
        head = _HEAD.pack(size | 0x80000000, xid, 0, 2, program.number, program.version, proc)
        connection.calls += 1
        connection.waiting[xid] = reply_to
        if payload is None:
            connection.send(b"".join((head, cred, _NULL_VERF, body)))
        else:
            connection.send(b"".join((head, cred, _NULL_VERF, body)), payload)

    async def bounded(self, waiter: Waiter[T], req: Fop) -> T:
        """Wait for a reply until the request's deadline; Unanswered ETIMEDOUT after it (the brick may still do it)."""
        left = (req.deadline or 0) - self.reactor.time()
        try:
            return await wait_for(self.reactor, waiter, max(0.0, left))
        except TimedOut:
            raise Unanswered(errno.ETIMEDOUT, f"{req.name} on {self.where} was not answered in time") from None

    # -- callbacks and figures --------------------------------------------------------------------------------------

    def _callback(self, connection: RpcConnection, call: message.Call, body: bytes) -> bytes | None:
        """Hear what the brick says of its own; nobody answers a callback."""
        try:
            what = callbacks.decode_callback(call.proc, body)
        except XdrError as error:
            log.info("%s: unreadable callback %d: %s", self.where, call.proc, error)
            return None
        self.client.tell_parents(Event.UPCALL, callbacks.told_by(what))
        return None

    def _wire(self) -> tuple[int, int, int]:
        channel = self._channel
        if channel is None:
            return self._base
        return self.connection.calls, channel.received, channel.sent

    def statedump(self) -> dict[str, Any]:
        """State and counters; RPCs and bytes count from the end of the handshake."""
        calls, received, sent = self._wire()
        return {
            "remote": self.where,
            "up": self.up,
            "why": self.why,
            "session": self.session,
            "rpcs": self._past[0] + calls - self._base[0],
            "bytes_received": self._past[1] + received - self._base[1],
            "bytes_sent": self._past[2] + sent - self._base[2],
            "waiting": len(self.connection.waiting),
            "pings_answered": self.pings,
            "fds": len(self.fds),
            **self.client.book.counts(),
        }
