"""A session of any type: sequence numbers, NOP, text, logout, asynchronous messages, rejects (RFC 7143 4.2, 11).

A session has one connection, so what arrives is in order but for what an initiator leaves out; `held` keeps what comes
behind such a gap. `tasks.py` adds SCSI.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from glustx.iscsi import discovery
from glustx.iscsi.digest import Piece, digest
from glustx.iscsi.pdu import (
    BHS,
    CONTINUE,
    DATA_OUT_PDU,
    FINAL,
    IMMEDIATE,
    LOGOUT,
    NO_TAG,
    NOP_OUT,
    SNACK,
    TEXT,
    AsyncMessage,
    LogoutRequest,
    LogoutResponse,
    NopIn,
    NopOut,
    Reason,
    RejectPdu,
    TextRequest,
    TextResponse,
    _Answered,
)
from glustx.iscsi.text import Inbox, Outbox, TextError, encode

if TYPE_CHECKING:
    from glustx.iscsi.connection import Connection
    from glustx.iscsi.login import Login

log = logging.getLogger("glustx.iscsi")

WINDOW = 128
HELD_DATA = 64 << 10  # of a request that comes too early
TEXT_LIMIT = 64 << 10
MASK = 0xFFFFFFFF
EVENT_SCSI, EVENT_LOGOUT, EVENT_DROP, EVENT_DROP_ALL = 0, 1, 2, 3

PADS = (b"", b"\0\0\0", b"\0\0", b"\0")
Handler = Callable[[memoryview, int, memoryview], None]


class Session:
    """What a login has made.

    Args:
        connection: the one connection.
        login: who it is, and what was negotiated.
        tsih: the session's handle.

    Attributes:
        exp_cmd_sn: CmdSN of the next command.
        max_send: longest data segment that the initiator takes.
        room: commands that may still come; MaxCmdSN follows from it and never goes back.
        stat_sn: of the next status.
        handlers: by opcode, called with (buffer, where the header begins, data).
    """

    def __init__(self, connection: Connection, login: Login, tsih: int) -> None:
        self.connection = connection
        self.server = connection.portal.server
        self.parameters = login.parameters
        self.initiator = login.initiator
        self.port_name = login.port_name
        self.isid = login.isid
        self.cid = login.cid
        self.tsih = tsih
        self.discovery = login.discovery
        self.address = login.address
        self.target_name = login.target.name if login.target is not None else ""
        self.exp_cmd_sn = connection.cmd_sn
        self.stat_sn = connection.stat_sn
        self.room = WINDOW
        self.max_send = login.parameters.max_send
        self.held: dict[int, tuple[bytes, memoryview]] = {}
        self.skipped: set[int] = set()
        self.closed = False
        self.leaving = False
        self.ping: int | None = None  # transfer tag of a NOP-In that awaits its answer
        self.handlers: list[Handler] = [self._unknown] * 64
        self.handlers[NOP_OUT] = self._nop
        self.handlers[TEXT] = self._text
        self.handlers[LOGOUT] = self._logout
        self.handlers[SNACK] = self._snack
        self._tags = 0
        self._inbox = Inbox(TEXT_LIMIT)
        self._texts = Outbox()
        self._text_tag = NO_TAG

    def __repr__(self) -> str:
        return f"<session {self.tsih} of {self.port_name} from {self.address}>"

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, pdu: _Answered, *data: Piece, consume: bool = True) -> None:
        """Send a PDU; its sequence numbers are set here. `consume` tells whether it carries a status."""
        pdu.stat_sn = self.stat_sn
        pdu.exp_cmd_sn = self.exp_cmd_sn
        pdu.max_cmd_sn = (self.exp_cmd_sn + self.room - 1) & MASK
        if consume:
            self.stat_sn = (self.stat_sn + 1) & MASK
        pdu.data_length = sum(map(len, data))
        self.emit(pdu.encode(), data, pdu.data_length)

    def emit(self, head: bytes, data: Sequence[Piece], size: int) -> None:
        """Queue a header and its data with padding and digests."""
        connection = self.connection
        out = connection.out
        out.append(head)
        if self.parameters.header_digest:
            out.append(digest(head))
        if size:
            out.extend(data)
            pad = PADS[size & 3]
            if pad:
                out.append(pad)
            if self.parameters.data_digest:
                out.append(digest(*data, pad))
            connection.weight += size
        if not connection.in_turn:
            connection.flush_soon()

    def reject(self, reason: int, view: memoryview, pos: int) -> None:
        """Refuse a PDU; its header goes back."""
        self.server.statistics.rejects += 1
        self.send(RejectPdu(reason=reason), bytes(view[pos : pos + BHS]))

    def new_tag(self) -> int:
        """Return a transfer tag that is not in use."""
        self._tags = (self._tags + 1) % NO_TAG
        return self._tags

    # -- order -------------------------------------------------------------------------------------------------------

    def admit(self, view: memoryview, pos: int, data: memoryview) -> bool:
        """Tell whether a request is next (it is counted then) or immediate. Others are held, or dropped when they are
        outside the window (RFC 7143 4.2.2.1)."""
        if view[pos] & IMMEDIATE:
            return True
        cmd_sn = int.from_bytes(view[pos + 24 : pos + 28], "big")
        if cmd_sn == self.exp_cmd_sn and self.room:
            self.exp_cmd_sn = (cmd_sn + 1) & MASK
            return True
        self.out_of_order(cmd_sn, view, pos, data)
        return False

    def out_of_order(self, cmd_sn: int, view: memoryview, pos: int, data: memoryview) -> None:
        """Hold a request that comes behind a gap; drop any other one without a word."""
        ahead = (cmd_sn - self.exp_cmd_sn) & MASK
        # Unsolicited data of a command that is not taken yet would belong to nothing.
        awaits_data = view[pos] & 0x3F == 1 and not view[pos + 1] & FINAL
        if ahead < self.room and cmd_sn not in self.held and not awaits_data and len(data) <= HELD_DATA:
            size = BHS + view[pos + 4] * 4
            self.held[cmd_sn] = (bytes(view[pos : pos + size]), memoryview(bytes(data)))

    def go_on(self) -> None:
        """Take what was held and is next by now, and pass over what will never come."""
        while True:
            if self.exp_cmd_sn in self.skipped:
                self.skipped.discard(self.exp_cmd_sn)
                self.held.pop(self.exp_cmd_sn, None)
                self.exp_cmd_sn = (self.exp_cmd_sn + 1) & MASK
                continue
            found = self.held.pop(self.exp_cmd_sn, None)
            if found is None or self.closed:
                return
            head, data = found
            self.handlers[head[0] & 0x3F](memoryview(head), 0, data)

    def spoiled(self, view: memoryview, pos: int, size: int) -> None:
        """The data of a PDU did not fit their digest: it is rejected, and its number is used up."""
        self.reject(Reason.DATA_DIGEST, view, pos)
        if not view[pos] & IMMEDIATE and view[pos] & 0x3F != DATA_OUT_PDU:
            cmd_sn = int.from_bytes(view[pos + 24 : pos + 28], "big")
            if cmd_sn == self.exp_cmd_sn and self.room:
                self.exp_cmd_sn = (cmd_sn + 1) & MASK

    # -- requests ----------------------------------------------------------------------------------------------------

    def _unknown(self, view: memoryview, pos: int, data: memoryview) -> None:
        opcode = view[pos] & 0x3F
        reason = Reason.UNSUPPORTED if opcode < 0x20 else Reason.PROTOCOL
        self.complain(f"sends opcode {opcode:#x}")
        self.reject(reason, view, pos)

    def _snack(self, view: memoryview, pos: int, data: memoryview) -> None:
        self.reject(Reason.SNACK, view, pos)

    def _nop(self, view: memoryview, pos: int, data: memoryview) -> None:
        if not self.admit(view, pos, data):
            return
        pdu = NopOut.decode(view, pos)
        if pdu.itt == NO_TAG:
            if pdu.ttt == self.ping:
                self.ping = None
        else:
            echo = bytes(data[: self.max_send])
            self.send(NopIn(lun=pdu.lun, itt=pdu.itt), echo)
        if self.held or self.skipped:
            self.go_on()

    def _text(self, view: memoryview, pos: int, data: memoryview) -> None:
        if not self.admit(view, pos, data):
            return
        pdu = TextRequest.decode(view, pos)
        try:
            self._answer_text(pdu, bytes(data))
        except TextError as error:
            self._inbox, self._texts, self._text_tag = Inbox(TEXT_LIMIT), Outbox(), NO_TAG
            self.complain(f"sends a text that is refused: {error}")
            self.reject(Reason.FIELD, view, pos)
        if self.held or self.skipped:
            self.go_on()

    def _answer_text(self, pdu: TextRequest, data: bytes) -> None:
        if pdu.ttt == NO_TAG:  # a new exchange, whatever became of the last one
            self._inbox, self._texts = Inbox(TEXT_LIMIT), Outbox()
        elif pdu.ttt != self._text_tag:
            raise TextError("a transfer tag that we did not give")
        response = TextResponse(lun=pdu.lun, itt=pdu.itt)
        if not len(self._texts):
            pairs = self._inbox.add(data, bool(pdu.flags & CONTINUE))
            if pairs is None:
                self._text_tag = response.ttt = self.new_tag()
                response.flags = 0
                self.send(response)
                return
            self._texts.put(encode(discovery.answer(self, pairs)))
        elif data:
            raise TextError("keys while an answer was under way")
        piece, more = self._texts.take(self.max_send)
        self._text_tag = NO_TAG
        if more:
            self._text_tag = response.ttt = self.new_tag()
            response.flags = CONTINUE
        self.send(response, piece)

    def _logout(self, view: memoryview, pos: int, data: memoryview) -> None:
        if not self.admit(view, pos, data):
            return
        pdu = LogoutRequest.decode(view, pos)
        reason = pdu.flags & 0x7F
        if reason == 1 and pdu.cid != self.cid:
            self.send(LogoutResponse(itt=pdu.itt, response=1))
        elif reason > 1:
            self.send(LogoutResponse(itt=pdu.itt, response=2))
        else:
            self.end()
            self.send(LogoutResponse(itt=pdu.itt))
            self.connection.close()

    # -- what we begin -----------------------------------------------------------------------------------------------

    def send_ping(self) -> None:
        """Ask an initiator that has been silent whether it is there."""
        self.ping = self.new_tag()
        self.send(NopIn(itt=NO_TAG, ttt=self.ping), consume=False)

    def ask_for_logout(self, seconds: int) -> None:
        """Ask the initiator to log out within so many seconds (asynchronous event 1)."""
        if not self.leaving:
            self.leaving = True
            self.send(AsyncMessage(event=EVENT_LOGOUT, parameter3=seconds))

    def drop(self, why: str, *, tell: bool = True) -> None:
        """End the session from our side, with a word (asynchronous event 3) unless nobody may be there to hear it."""
        if self.closed:
            return
        log.info("%r: %s", self, why)
        self.end()
        if not tell:
            self.connection.abort(why)
            return
        if not self.discovery:
            self.send(AsyncMessage(event=EVENT_DROP_ALL))
        self.connection.close()

    def end(self) -> None:
        """The session is over: nothing of it stays but what belongs to the initiator by its name."""
        if not self.closed:
            self.closed = True
            self.held.clear()
            self.server.forget(self)

    def complain(self, text: str) -> None:
        """Warn of the initiator, now and then."""
        self.server.complaints.say(self.connection.peer, f"{self.initiator} {text}")
