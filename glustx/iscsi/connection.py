"""One iSCSI connection, without a socket: PDUs in, PDUs out (RFC 7143 11.1, 13.1).

PDUs are found in the receive buffer where they landed. Large data go from the socket straight to where the command that
they are for keeps them (`Session.landing`). What is sent during one receive turn leaves in one gathered write.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

from glustx.iscsi.digest import Piece, digest
from glustx.iscsi.login import INVALID, Login, LoginRefused
from glustx.iscsi.pdu import BHS, DATA_OUT_PDU, LOGIN, SCSI_COMMAND, LoginRequest, LoginResponse, PduError, Reason
from glustx.iscsi.session import MASK, WINDOW, Session
from glustx.iscsi.tasks import NormalSession
from glustx.rpc.channel import Channel

if TYPE_CHECKING:
    from glustx.iscsi.server import Portal

log = logging.getLogger("glustx.iscsi")

LOGIN_BUFFER = 9 << 10  # a login PDU of the longest kind
USUAL_BUFFER = 64 << 10
LAND = 8 << 10  # data from here on are worth a read of their own
NEXT_HEADER = 4 << 10  # read no more than this where a header with large data is expected
LOGIN_LIMIT = 8192
WEIGHT = 1 << 20  # bytes of answers that wait for the end of a turn
SEND_HIGH = 4 << 20  # an initiator that does not read what it asked for is not read from either
SEND_LOW = 1 << 20

_LENGTHS = struct.Struct(">I")
_NOTHING = memoryview(b"")


class SpoiledHeader(PduError):
    """A header digest that does not fit; at error recovery level 0 that ends the connection (RFC 7143 7.8)."""


class Connection:
    """A connection of a portal, from its first byte to its last.

    Args:
        portal: where it came in.

    Attributes:
        session: what the login made, None before.
        out: what waits for the end of the turn, and how many bytes of data it has (`weight`).
        in_turn: whether bytes are being taken.
        landed: whether the data of the present PDU lie where they belong already.
        bulk: what comes next is likely a Data-Out with large data.
        cmd_sn, stat_sn: where the numbers of a session begin.
    """

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self.channel: Channel | None = None
        self.session: Session | None = None
        self.login: Login | None = None
        self.out: list[Piece] = []
        self.weight = 0
        self.in_turn = False
        self.landed = False
        self.bulk = False
        self.cmd_sn = 0
        self.stat_sn = 0
        self.peer = "?"
        self.seen = 0  # bytes received when the server last looked
        self.ending = False  # whether its session was over then
        self._stopped = False
        self._paused = False
        self._flush_due = False
        self._limit = LOGIN_LIMIT
        self._head_digest = self._data_digest = 0
        self._landing: memoryview | None = None
        self._filled = 0
        self._start = self._end = 0
        self._needed = BHS
        self._fresh(LOGIN_BUFFER)

    def __repr__(self) -> str:
        return f"<connection from {self.peer}>"

    # -- Receiver ----------------------------------------------------------------------------------------------------

    def connection_made(self, channel: Channel) -> None:
        """The stream is there."""
        self.channel = channel
        self.peer = channel.peer
        self.login = Login(self.portal.server, self.address)
        self.portal.server.enter(self)

    @property
    def address(self) -> str:
        """The initiator's network address, without port."""
        return self.peer.rpartition(":")[0].strip("[]")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        landing = self._landing
        if landing is not None and self._filled < len(landing) and not self._stopped:
            return landing[self._filled :]
        start, end = self._start, self._end
        if start == end or self._stopped:
            self._start = self._end = 0
            if len(self._buf) != self._usual:
                self._fresh(self._usual)
            return self._brief if self.bulk else self._view
        size = len(self._buf)
        if start + self._needed > size:
            have = end - start
            if self._needed <= size:
                self._buf[:have] = bytes(self._view[start:end])
            else:
                # Memory follows the bytes that have arrived, not those that were announced.
                old = self._view
                self._fresh(min(self._needed, max(2 * size, 2 * have)))
                self._buf[:have] = old[start:end]
            self._start, self._end = 0, have
            return self._view[have:]
        return self._view[end:]

    def _fresh(self, size: int) -> None:
        self._usual = USUAL_BUFFER if self.session is not None else LOGIN_BUFFER
        self._buf = bytearray(size)
        self._view = memoryview(self._buf)
        self._brief = self._view[:NEXT_HEADER]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the PDUs that have become whole."""
        if self._stopped:
            return
        if self._landing is not None and self._filled < len(self._landing):
            self._filled += nbytes
        else:
            self._end += nbytes
        if not self.in_turn:
            self._take()

    def _take(self) -> None:
        self.in_turn = True
        try:
            self._parse()
        except SpoiledHeader as error:
            self._broken(str(error))  # nothing in it can be relied on, so nothing is rejected
        except PduError as error:
            session = self.session
            if session is not None and not session.closed:
                session.reject(Reason.PROTOCOL, self._view, self._start)
            self._broken(str(error))
        except Exception:
            log.exception("%s: a PDU could not be dealt with", self.peer)
            self._broken("a fault of this side")
        finally:
            self.in_turn = False
            if self.out:
                self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The stream is gone, and the session with it."""
        self.channel = None
        self._stopped = True
        self.out.clear()
        session = self.session
        if session is not None:
            if not session.closed:
                log.info("%r has lost its connection: %s", session, error or "closed by the initiator")
            session.end()
        self.portal.server.leave(self)

    # -- PDUs --------------------------------------------------------------------------------------------------------

    def _parse(self) -> None:
        while not self._stopped and not self._paused:
            start, buf = self._start, self._buf
            have = self._end - start
            if have < BHS:
                self._needed = BHS
                return
            (lengths,) = _LENGTHS.unpack_from(buf, start + 4)
            size = lengths & 0xFFFFFF
            head = BHS + (lengths >> 24) * 4 + self._head_digest
            tail = (-size & 3) + self._data_digest if size else 0
            landing = self._landing
            if landing is not None:
                self._needed = head + tail
                if self._filled < size or have < head + tail:
                    return
                self._landing, data, stop = None, landing, start + head + tail
            else:
                if size > self._limit:
                    raise PduError(f"a data segment of {size} bytes; it may send {self._limit}")
                if have < head + size + tail:
                    self._needed = head + size + tail
                    if size < LAND or have < head or not self._land(start, head, size):
                        return
                    continue
                data = self._view[start + head : start + head + size] if size else _NOTHING
                stop = start + head + size + tail
            self._start = stop
            self.landed = landing is not None
            session = self.session
            if session is None:
                self._before_login(start, bytes(data))
            elif (self._head_digest or self._data_digest) and not self._genuine(start, head, data, stop):
                session.spoiled(self._view, start, size)
            else:
                session.handlers[buf[start] & 0x3F](self._view, start, data)
            if self.weight > WEIGHT:
                self.flush()

    def _land(self, start: int, head: int, size: int) -> bool:
        """Let the data of a PDU whose header is there go where they belong; False when they go through the buffer."""
        session = self.session
        if session is None or self._buf[start] & 0x3F not in (SCSI_COMMAND, DATA_OUT_PDU):
            return False
        if not isinstance(session, NormalSession):
            return False
        self._check_header(start, head)
        landing = session.landing(self._view, start, size)
        if landing is None:
            return False
        begin = start + head
        got = min(self._end - begin, size)
        landing[:got] = self._view[begin : begin + got]
        rest = bytes(self._view[begin + got : self._end])  # of padding and digest
        self._buf[begin : begin + len(rest)] = rest
        self._end = begin + len(rest)
        self._landing, self._filled = landing, got
        return True

    def _check_header(self, start: int, head: int) -> None:
        if self._head_digest:
            stop = start + head
            if digest(self._view[start : stop - 4]) != self._view[stop - 4 : stop]:
                raise SpoiledHeader("a header that does not fit its digest")

    def _genuine(self, start: int, head: int, data: memoryview, stop: int) -> bool:
        """Check digests: PduError for the header's, False for the data's."""
        self._check_header(start, head)
        if not self._data_digest or not len(data):
            return True
        pad = self._view[stop - 4 - (-len(data) & 3) : stop - 4]
        return digest(data, pad) == self._view[stop - 4 : stop]

    def _before_login(self, start: int, data: bytes) -> None:
        opcode = self._buf[start] & 0x3F
        login = self.login
        if login is None:
            return
        if opcode != LOGIN or self._buf[start + 4]:
            itt = bytes(self._view[start + 16 : start + 20])
            request = LoginRequest(itt=int.from_bytes(itt, "big"))
            failure = LoginRefused(INVALID, f"opcode {opcode:#x} before login")
            self._send_login(*login.refusal(request, failure))
            self._refused(str(failure))
            return
        request = LoginRequest.decode(self._view, start)
        if not login.isid:
            self.cmd_sn, self.stat_sn = request.cmd_sn, request.exp_stat_sn
        response, text = login.request(request, data)
        session = None
        if login.done:
            try:
                session = self.portal.server.admit(self, login)
                response.tsih = session.tsih
            except LoginRefused as error:
                response, text = login.refusal(request, error)
        self._send_login(response, text)
        if login.refused:
            self._refused(login.refused)
        elif session is not None:
            self._begin(session)

    def _send_login(self, response: LoginResponse, text: bytes) -> None:
        response.stat_sn, response.exp_cmd_sn = self.stat_sn, self.cmd_sn
        response.max_cmd_sn = (self.cmd_sn + WINDOW - 1) & MASK
        self.stat_sn = (self.stat_sn + 1) & MASK
        response.data_length = len(text)
        self.out += (response.encode(), text, bytes(-len(text) & 3))

    def _begin(self, session: Session) -> None:
        """The login is over; from the next PDU on, digests and lengths are those of the session."""
        self.session = session
        session.stat_sn = self.stat_sn
        self.login = None
        self._limit = session.parameters.max_recv
        self._head_digest = 4 if session.parameters.header_digest else 0
        self._data_digest = 4 if session.parameters.data_digest else 0
        self._usual = USUAL_BUFFER

    def _refused(self, why: str) -> None:
        self.portal.server.statistics.refused += 1
        self.portal.server.complaints.say(self.peer, f"login refused: {why}")
        self.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Send what was queued outside of a receive turn: at once when nothing else is under way, else with the rest
        of what this round of the loop brings."""
        session = self.session
        if not isinstance(session, NormalSession) or not session.tasks:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self.portal.server.soon(self._flush_gathered)

    def _flush_gathered(self) -> None:
        self._flush_due = False
        if self.out and not self.in_turn:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered."""
        channel = self.channel
        out, self.out, self.weight = self.out, [], 0
        if channel is None:
            return
        channel.write(out)
        if not self._paused and channel.queued() > SEND_HIGH:
            self._paused = True
            channel.pause_reading()

    def resume_writing(self) -> None:
        """The channel has sent most of its queue: read again."""
        channel = self.channel
        if self._paused and channel is not None and channel.queued() <= SEND_LOW:
            self._paused = False
            if not self.in_turn:
                self._take()
            if not self._paused and self.channel is not None:
                channel.resume_reading()

    def close(self) -> None:
        """Send what is queued, then close; nothing more is taken."""
        self._stopped = True
        if self.channel is not None:
            if self.out:
                self.flush()
            self.channel.close()

    def abort(self, why: str) -> None:
        """Close at once."""
        self._stopped = True
        if self.channel is not None:
            self.channel.abort(why)

    def turn_away(self, why: str) -> None:
        """End the connection of somebody who has not logged in."""
        self.portal.server.complaints.say(self.peer, f"{why}; connection closed")
        self.abort(why)

    def _broken(self, why: str) -> None:
        """What came is no iSCSI: tell, and end it all."""
        self.portal.server.complaints.say(self.peer, f"{why}; connection closed")
        if self.session is not None:
            self.session.end()
        self.close()
