"""One RPC connection, without a socket: records in, calls and replies out, in either role.

A connection is a `Receiver` (see `channel`). As a server it looks each call up in its programs; as a client it matches
replies to calls by xid. What is sent during one receive turn leaves in one gathered write at its end.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import ClassVar

from glustx.rpc import message
from glustx.rpc.channel import Channel, Piece
from glustx.rpc.record import BURST, RECORD_LIMIT, Budget, RecordBuffer, frame
from glustx.rpc.xdr import XdrError

log = logging.getLogger("glustx.rpc")

# From here on a peer that does not read what it asked for is not read from either.
SEND_HIGH = 16 << 20
# The same for peers of which nothing is known.
SEND_FEW = 256 << 10

_TYPE = struct.Struct(">II")
_REPLY = struct.Struct(">IIIIII")


class ProcUnavail(Exception):
    """The program has no such procedure (RFC 5531 PROC_UNAVAIL)."""


class CallRefused(Exception):
    """Answer the call with an accept_stat other than SUCCESS."""

    def __init__(self, stat: int) -> None:
        super().__init__(stat)
        self.stat = stat


Handler = Callable[["RpcConnection", message.Call, bytes], "bytes | None"]
"""Answers one call of a cold program: (connection, header, arguments) -> results, or None when it replies itself later.

Raises ProcUnavail, CallRefused, or XdrError (answered GARBAGE_ARGS).
"""

ReplyTo = Callable[["memoryview | None", int, int, "Exception | None"], None]
"""Called with a reply's results as (buffer, pos, end, None), or with (None, 0, 0, error)."""


class RpcError(OSError):
    """A call that was refused at the RPC level, with an errno, before it began; or, with none, one that was not
    answered before its connection ended."""


# What a refusal at the RPC level means to who called: the peer lacks it, does not take the arguments, broke, or denies.
_REFUSALS = {
    message.PROG_UNAVAIL: errno.EOPNOTSUPP,
    message.PROG_MISMATCH: errno.EOPNOTSUPP,
    message.PROC_UNAVAIL: errno.EOPNOTSUPP,
    message.GARBAGE_ARGS: errno.EINVAL,
    message.SYSTEM_ERR: errno.EIO,
}


def _lasts(piece: Piece) -> bool:
    """Tell whether a piece may wait: the buffer of another is its owner's again once the call is given up."""
    return isinstance(piece, bytes) or (isinstance(piece, memoryview) and isinstance(piece.obj, bytes))


class RpcConnection:
    """A connection in both roles.

    Args:
        programs: (prog, vers) to handler, for calls that arrive; None for a pure client.
        limit: longest record that is accepted.
        budget: what large records may take; the process's own when None.

    Class attributes:
        throttles: whether a peer that does not take what is sent is not read from either. A client must not do so:
            two ends that both wait for the other to read would wait for ever.
        long_turn: seconds that this connection should leave to others after; the number of records that are dealt with
            in one go follows from how long they take. None for the same number always.
    """

    throttles: ClassVar[bool] = True
    long_turn: ClassVar[float | None] = None

    def __init__(
        self,
        programs: Mapping[tuple[int, int], Handler] | None = None,
        limit: int = RECORD_LIMIT,
        budget: Budget | None = None,
    ) -> None:
        self.programs: Mapping[tuple[int, int], Handler] = programs if programs is not None else {}
        self.channel: Channel | None = None
        self.records = RecordBuffer(limit, budget)
        self.out: list[Piece] = []
        self.waiting: dict[int, ReplyTo] = {}
        self.calls = 0
        self._in_turn = False
        self._broken = False
        self._pauses: set[str] = set()
        self.last_xid = 1
        # How to go on in a later turn, so that others get theirs before one who sends thousands of calls at once.
        self.post: Callable[[Callable[[], None]], None] | None = None
        # How to send a little later. While several calls are under way, those made until then leave in one write.
        self.soon: Callable[[Callable[[], None]], object] | None = None
        self._flush_due = False
        # Hot programs hook in here: called with (view, pos of the xid, end, xid), True when the call was theirs.
        self.hot_call: Callable[[memoryview, int, int, int], bool] | None = None

    @property
    def peer(self) -> str:
        """The other end's address, for messages."""
        return self.channel.peer if self.channel is not None else "?"

    # -- Receiver ---------------------------------------------------------------------------------------------------

    def connection_made(self, channel: Channel) -> None:
        """The stream is there."""
        self.channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        try:
            return self.records.room()
        except XdrError as error:
            self.broken(str(error))
            return memoryview(bytearray(4096))

    def buffer_updated(self, nbytes: int) -> None:
        """Take the records that have become whole."""
        if self.channel is None or self._broken:
            return
        records = self.records
        self._in_turn = True
        try:
            while self._feed(nbytes):
                nbytes = 0
                if self.out:
                    self.flush()
                if records.held:
                    break
                if self.post is not None:
                    self.pause("turn")
                    self.post(self._next_turn)
                    break
        except XdrError as error:
            self.broken(str(error))
        except Exception:
            log.exception("%s: a record could not be dealt with", self.peer)
            self.broken("a fault of this side")
        finally:
            self._in_turn = False
            if self.out:
                self.flush()

    def _feed(self, nbytes: int) -> bool:
        records, long = self.records, self.long_turn
        if long is None:
            return records.feed(nbytes, self._record)
        began = perf_counter()
        more = records.feed(nbytes, self._record)
        took = perf_counter() - began
        if took > long:
            records.burst = max(1, records.burst // 2)
        elif more and took < long / 4:
            records.burst = min(BURST, records.burst * 2)
        return more

    def connection_lost(self, error: Exception | None) -> None:
        """The stream is gone: every call that waits fails."""
        self.channel = None
        self.records.close()
        self.out.clear()
        waiting, self.waiting = self.waiting, {}
        for reply_to in waiting.values():
            reply_to(None, 0, 0, error or ConnectionResetError("the connection was closed"))

    # -- sending ----------------------------------------------------------------------------------------------------

    def send(self, *pieces: Piece) -> None:
        """Send the pieces of one or more whole records, with the rest of this turn's output if there is a turn."""
        if self.channel is None or self._broken:
            return
        self.out += pieces
        if self._in_turn:
            return
        if self.soon is None or len(self.waiting) < 2 or not all(map(_lasts, pieces)):
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self.soon(self._flush_gathered)

    def _flush_gathered(self) -> None:
        self._flush_due = False
        if self.out and not self._in_turn:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        channel = self.channel
        out, self.out = self.out, []
        if channel is None:
            return
        channel.write(out)
        queued = channel.queued()
        if queued and self.throttles and queued > self.send_high():
            self.pause("queue")

    def send_high(self) -> int:
        """Return how many bytes may wait to be sent; with more of them the peer is not read from until three quarters
        have gone. Not below 256 KiB: channels tell when they are down to a quarter of that."""
        return SEND_HIGH

    def resume_writing(self) -> None:
        """The channel has sent most of its queue: read again."""
        if "queue" in self._pauses and self.channel is not None and self.channel.queued() <= self.send_high() // 4:
            self.resume("queue")

    def pause(self, reason: str) -> None:
        """Stop reading, and dealing with what has been read, until every reason is taken back with `resume`."""
        if self.channel is not None:
            if not self._pauses:
                self.channel.pause_reading()
            self._pauses.add(reason)
            self.records.held = True

    def resume(self, reason: str) -> None:
        """Take a reason back; with the last one gone, records that have arrived meanwhile come first."""
        if reason not in self._pauses:
            return
        self._pauses.discard(reason)
        if self._pauses:
            return
        self.records.held = False
        if not self._in_turn:
            self.buffer_updated(0)
        if not self._pauses and self.channel is not None:
            self.channel.resume_reading()

    def _next_turn(self) -> None:
        self.resume("turn")

    def broken(self, reason: str) -> None:
        """The peer does not speak the protocol: log it once and close."""
        channel = self.channel
        if channel is not None and not self._broken:
            self._broken = True
            self.records.held = True
            self.out.clear()
            self.complain(channel.peer, f"{reason}; connection closed")
            channel.abort(reason)

    def complain(self, peer: str, text: str) -> None:
        """Warn of a peer; a server that anybody may connect to says less."""
        log.warning("%s: %s", peer, text)

    # -- calls and replies ------------------------------------------------------------------------------------------

    def next_xid(self) -> int:
        """Return a fresh xid (the first is 2, as stock's)."""
        self.last_xid = self.last_xid + 1 if self.last_xid < 0xFFFFFFFF else 2
        return self.last_xid

    def call(self, prog: int, vers: int, proc: int, cred: bytes, body: bytes, reply_to: ReplyTo) -> int:
        """Send a call and have `reply_to` called once with its results or its failure; return the xid.

        Args:
            cred: credential and its flavor as `message.encode_auth_*` returns them.
        """
        if self.channel is None:
            reply_to(None, 0, 0, ConnectionResetError("not connected"))
            return 0
        xid = self.next_xid()
        self.calls += 1
        self.waiting[xid] = reply_to
        self.send(frame(message.encode_call(xid, prog, vers, proc, cred) + body))
        return xid

    def notify(self, message: bytes) -> None:
        """Send a message that nobody answers (a callback)."""
        self.send(frame(message))

    def _record(self, view: memoryview, pos: int, end: int) -> None:
        if end - pos < 8:
            raise XdrError(f"a record of {end - pos} bytes")
        xid, kind = _TYPE.unpack_from(view, pos)
        if kind == message.CALL:
            hot = self.hot_call
            if hot is None or not hot(view, pos, end, xid):
                self._call(view, pos, end, xid)
        elif kind == message.REPLY:
            self._reply(view, pos, end, xid)
        else:
            raise XdrError(f"message type {kind}")

    def _call(self, view: memoryview, pos: int, end: int, xid: int) -> None:
        try:
            call = message.parse_call(view, pos, end)
        except XdrError:
            # Stock answers a header it cannot read with xid 0.
            self.send(frame(message.encode_reply(0, message.GARBAGE_ARGS)))
            return
        handler = self.programs.get((call.prog, call.vers))
        if handler is None:
            known = any(prog == call.prog for prog, _ in self.programs)
            stat = message.PROG_MISMATCH if known else message.PROG_UNAVAIL
            self.send(frame(message.encode_reply(xid, stat)))
            return
        try:
            results = handler(self, call, bytes(view[call.pos : end]))
        except ProcUnavail:
            self.send(frame(message.encode_reply(xid, message.PROC_UNAVAIL)))
        except CallRefused as refusal:
            self.send(frame(message.encode_reply(xid, refusal.stat)))
        except XdrError as error:
            log.info("%s: garbage in a call of program %d, procedure %d: %s", self.peer, call.prog, call.proc, error)
            self.send(frame(message.encode_reply(xid, message.GARBAGE_ARGS)))
        except Exception:
            log.exception("%s: program %d, procedure %d failed", self.peer, call.prog, call.proc)
            self.send(frame(message.encode_reply(xid, message.SYSTEM_ERR)))
        else:
            if results is not None:
                self.reply(xid, results)

    def reply(self, xid: int, results: bytes) -> None:
        """Answer a call with success."""
        self.send(frame(message.encode_reply(xid) + results))

    def _reply(self, view: memoryview, pos: int, end: int, xid: int) -> None:
        reply_to = self.waiting.pop(xid, None)
        if reply_to is None:
            log.debug("%s: reply to unknown call %d", self.peer, xid)
            return
        if end - pos >= 24:
            _, _, stat, _, verf, accept = _REPLY.unpack_from(view, pos)
            if stat == 0 and verf == 0 and accept == 0:
                reply_to(view, pos + 24, end, None)
                return
        try:
            header = message.parse_reply(view, pos, end)
        except XdrError:
            reply_to(None, 0, 0, RpcError("a reply that is none"))
            raise
        if header.accepted and header.stat == message.SUCCESS:
            reply_to(view, header.pos, end, None)
            return
        if header.accepted and header.stat in _REFUSALS:
            name, code = message.ACCEPT_NAMES[header.stat], _REFUSALS[header.stat]
        else:
            name, code = "MSG_DENIED", errno.EACCES
        reply_to(None, 0, 0, RpcError(code, f"the peer answered {name}"))
