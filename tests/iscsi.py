"""A small iSCSI initiator over any channel, a disk in memory that commands can be held in, and a world of both."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from glustx.iscsi import pdu as p
from glustx.iscsi.digest import digest
from glustx.iscsi.keys import KEYS, Parameters, Rule, Settings, accept, offer
from glustx.iscsi.login import FULL_FEATURE, OPERATIONAL, SECURITY, stage_flags
from glustx.iscsi.server import Limits, Portal, Server
from glustx.iscsi.text import encode, parse
from glustx.rpc.channel import Address
from glustx.rpc.memory_pair import MemoryNetwork
from glustx.runtime import ManualReactor
from glustx.scsi.config import AclConfig, LunConfig, TargetConfig
from glustx.scsi.sense import Sense
from glustx.scsi.target import Target
from glustx.scsi.task import CHECK_CONDITION, DONE, Result, Task
from glustx.scsi.unit import LogicalUnit

INITIATOR = "iqn.2026-12.org.example:host"
TARGET = "iqn.2026-12.org.example:disks"
BLOCK = 512
MASK = 0xFFFFFFFF


def read_10(lba: int, blocks: int) -> bytes:
    return struct.pack(">BBIBHB", 0x28, 0, lba, 0, blocks, 0)


def write_10(lba: int, blocks: int) -> bytes:
    return struct.pack(">BBIBHB", 0x2A, 0, lba, 0, blocks, 0)


TEST_UNIT_READY = bytes(6)
BAD_CDB = b"\xc1" + bytes(9)


class Pdu:
    """What has arrived: the header's value and the data."""

    def __init__(self, head: Any, data: bytes) -> None:
        self.head = head
        self.data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self.head, name)

    def __repr__(self) -> str:
        return f"{self.head!r} {self.data[:32]!r}"


class Answer:
    """What a command came to."""

    def __init__(self, status: int, data: bytes, sense: bytes, flags: int, residual: int, pdus: list[Pdu]) -> None:
        self.status = status
        self.data = data
        self.sense = sense
        self.residual = residual
        self.overflow = bool(flags & p.OVERFLOW)
        self.underflow = bool(flags & p.UNDERFLOW)
        self.pdus = pdus

    @property
    def code(self) -> str:
        """Sense key, code and qualifier."""
        return f"{self.sense[2] & 15:x}/{self.sense[12]:02x}/{self.sense[13]:02x}" if self.sense else ""


class Initiator:
    """One connection. `run` makes the world go round until nothing moves."""

    def __init__(self, run: Callable[[], None], name: str = INITIATOR, isid: bytes = b"\x80\0\0\0\0\x01") -> None:
        self.run = run
        self.name = name
        self.isid = isid
        self.channel: Any = None
        self.lost: list[Exception | None] = []
        self.buffer = bytearray()
        self.pdus: list[Pdu] = []
        self.parameters = Parameters()
        self.settings = Settings()
        self.login_pairs: list[tuple[str, str]] = []
        self.login_responses: list[Pdu] = []
        self.head_digest = self.data_digest = False
        self.cmd_sn = 1
        self.exp_stat_sn = 0
        self.max_cmd_sn = 0
        self.tsih = 0
        self.itt = 100
        self.numbers: Counter[int] = Counter()  # Data-Ins and R2Ts by task tag
        self._room = memoryview(bytearray(1 << 16))

    # -- receiver ---------------------------------------------------------------------------------------------------

    def connection_made(self, channel: Any) -> None:
        self.channel = channel

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.buffer += self._room[:nbytes]
        while len(self.buffer) >= p.BHS:
            (lengths,) = struct.unpack_from(">I", self.buffer, 4)
            size, head = lengths & 0xFFFFFF, p.BHS + (4 if self.head_digest else 0)
            total = head + size + (-size & 3) + (4 if self.data_digest and size else 0)
            if len(self.buffer) < total:
                return
            raw = bytes(self.buffer[:total])
            del self.buffer[:total]
            if self.head_digest:
                assert digest(raw[:48]) == raw[48:52], "header digest"
            if self.data_digest and size:
                assert digest(raw[head:-4]) == raw[-4:], "data digest"
            assert not any(raw[head + size : head + size + (-size & 3)]), "padding"
            got = p.decode(raw)
            if hasattr(got, "max_cmd_sn"):
                assert not self.max_cmd_sn or (got.max_cmd_sn - self.max_cmd_sn) & MASK < 1 << 31, "MaxCmdSN went back"
                self.max_cmd_sn = got.max_cmd_sn
            carries = (p.DATA_IN_PDU, p.R2T_PDU)
            if (got.opcode not in carries and not (got.opcode == p.NOP_IN and got.itt == p.NO_TAG)) or (
                got.opcode == p.DATA_IN_PDU and got.flags & p.STATUS
            ):
                self.see(got.stat_sn)
            self.pdus.append(Pdu(got, raw[head : head + size]))

    def see(self, stat_sn: int) -> None:
        if self.exp_stat_sn:
            assert stat_sn == self.exp_stat_sn, f"StatSN {stat_sn}, not {self.exp_stat_sn}"
        self.exp_stat_sn = (stat_sn + 1) & MASK

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    @property
    def gone(self) -> bool:
        self.run()
        return bool(self.lost)

    # -- sending ----------------------------------------------------------------------------------------------------

    def raw(self, pdu: p.Pdu, data: bytes = b"", ahs: bytes = b"", spoil: str = "") -> bytes:
        """The bytes of a PDU; `spoil` names a digest to get wrong."""
        pdu.data_length, pdu.ahs_length = len(data), len(ahs)
        out = pdu.encode() + ahs
        if self.head_digest:
            out += bytes(4) if spoil == "header" else digest(out)
        if data:
            padded = data + bytes(-len(data) & 3)
            out += padded
            if self.data_digest:
                out += bytes(4) if spoil == "data" else digest(padded)
        return out

    def send(self, pdu: p.Pdu, data: bytes = b"", **more: Any) -> None:
        self.channel.write([self.raw(pdu, data, **more)])

    def take(self, opcode: int | None = None) -> Pdu:
        """The next PDU that has come, which must be of an opcode if one is given."""
        self.run()
        assert self.pdus, "nothing came"
        got = self.pdus.pop(0)
        assert opcode is None or got.opcode == opcode, got
        return got

    def nothing(self) -> bool:
        self.run()
        return not self.pdus

    def next_sn(self) -> int:
        sn, self.cmd_sn = self.cmd_sn, (self.cmd_sn + 1) & MASK
        return sn

    def tag(self) -> int:
        self.itt += 1
        return self.itt

    # -- login ------------------------------------------------------------------------------------------------------

    def login_pdu(self, flags: int, data: bytes, **changes: Any) -> Pdu:
        values: dict[str, Any] = {
            "immediate": True, "flags": flags, "isid": self.isid, "tsih": self.tsih, "itt": 7, "cmd_sn": self.cmd_sn,
            "exp_stat_sn": self.exp_stat_sn,
        }  # fmt: skip
        self.send(p.LoginRequest(**(values | changes)), data)
        got = self.take(p.LOGIN_RESPONSE)
        self.login_responses.append(got)
        self.login_pairs += parse(got.data)
        return got

    def names(self, target: str | None = TARGET, discovery: bool = False) -> list[tuple[str, str]]:
        found = [("InitiatorName", self.name), ("SessionType", "Discovery" if discovery else "Normal")]
        return found + ([("TargetName", target)] if target and not discovery else [])

    def login(
        self, target: str | None = TARGET, discovery: bool = False, offers: Mapping[str, str] | None = None, **want: Any
    ) -> Pdu:
        """Log in without authentication, offering every key; `want` are Settings, `offers` texts of keys."""
        self.settings = Settings(**{"auth_methods": ("None",), **want})
        keys = [key for key in KEYS.values() if key.setting and key.name != "AuthMethod"]
        texts = {key.name: offer(key, self.settings) for key in keys if key.discovery or not discovery}
        texts.update(offers or {})
        pairs = self.names(target, discovery) + list(texts.items())
        got = self.login_pdu(stage_flags(OPERATIONAL, FULL_FEATURE), encode(pairs))
        if got.status_class == 0 and got.flags & p.FINAL:
            self.agree()
            self.tsih = got.tsih
        return got

    def agree(self) -> None:
        """Note what was negotiated."""
        for name, said in self.login_pairs:
            key = KEYS.get(name)
            if key is None or not key.setting or name == "AuthMethod":
                continue
            value = accept(key, said, self.settings)
            if value is not None:
                self.parameters.take(name, value)
        assert {name for name, _ in self.login_pairs if KEYS[name].rule is not Rule.DECLARED} <= set(KEYS)
        self.head_digest, self.data_digest = self.parameters.header_digest, self.parameters.data_digest

    # -- commands ---------------------------------------------------------------------------------------------------

    def start(
        self, cdb: bytes, *, data: bytes | None = None, read: int | None = None, length: int | None = None,
        immediate_data: bytes = b"", lun: int = 0, final: bool = True, attribute: int = 1, **changes: Any,
    ) -> int:  # fmt: skip
        """Send a SCSI Command and return its tag; data-out is for the caller (or `finish`) to send."""
        itt = changes.pop("itt", None) or self.tag()
        self.numbers[itt] = 0
        flags = attribute | (p.FINAL if final else 0) | (p.READ if read is not None else 0)
        flags |= p.WRITE if data is not None or immediate_data else 0
        if length is None:
            length = read if read is not None else len(data or b"")
        more = {name: changes.pop(name) for name in ("ahs", "spoil") if name in changes}
        values = {"flags": flags, "lun": p.lun_field(lun), "itt": itt, "length": length, "cdb": cdb.ljust(16, b"\0")}
        if not changes.get("immediate") and "cmd_sn" not in changes:
            changes["cmd_sn"] = self.next_sn()
        changes.setdefault("cmd_sn", self.cmd_sn)
        self.send(p.ScsiCommand(**(values | changes)), immediate_data, **more)
        return itt

    def data_out(self, itt: int, ttt: int, sn: int, offset: int, data: bytes, final: bool, **more: Any) -> None:
        self.send(p.DataOut(flags=p.FINAL if final else 0, itt=itt, ttt=ttt, data_sn=sn, offset=offset), data, **more)

    def sequence(self, itt: int, ttt: int, offset: int, data: bytes) -> None:
        """Send one sequence of Data-Outs, each as long as the target takes."""
        most = self.parameters.max_send
        for sn, at in enumerate(range(0, len(data), most)):
            part = data[at : at + most]
            self.data_out(itt, ttt, sn, offset + at, part, at + len(part) == len(data))

    def finish(self, itt: int, data: bytes = b"") -> Answer:
        """Answer R2Ts with `data`, collect Data-Ins, and return how the command ended."""
        got, seen = bytearray(), []
        while True:
            pdu = self.take()
            seen.append(pdu)
            assert pdu.itt == itt, f"{pdu} is not for {itt:#x}"
            if pdu.opcode == p.R2T_PDU:
                assert pdu.length <= self.parameters.max_burst
                self.sequence(itt, pdu.ttt, pdu.offset, data[pdu.offset : pdu.offset + pdu.length])
            elif pdu.opcode == p.DATA_IN_PDU:
                assert pdu.offset == len(got)
                assert len(pdu.data) <= self.settings.max_recv
                got += pdu.data
                if pdu.flags & p.STATUS:
                    assert pdu.flags & p.FINAL
                    return Answer(pdu.status, bytes(got), b"", pdu.flags, pdu.residual, seen)
            else:
                assert pdu.opcode == p.SCSI_RESPONSE, pdu
                size = int.from_bytes(pdu.data[:2], "big")
                return Answer(pdu.status, bytes(got), pdu.data[2 : 2 + size], pdu.flags, pdu.residual, seen)

    def do(self, cdb: bytes, **what: Any) -> Answer:
        """A command from its start to its end."""
        return self.finish(self.start(cdb, **what), what.get("data") or b"")

    def read(self, lba: int, blocks: int, **what: Any) -> Answer:
        return self.do(read_10(lba, blocks), read=what.pop("length", blocks * BLOCK), **what)

    def write(self, lba: int, data: bytes, **what: Any) -> Answer:
        """Write as the negotiated parameters have it: immediate data first, then unsolicited, then by R2T."""
        own = self.parameters
        first = min(own.first_burst, len(data))
        head = min(first, own.max_send) if own.immediate_data else 0
        burst = first if not own.initial_r2t else head
        cdb = write_10(lba, len(data) // BLOCK)
        itt = self.start(cdb, data=data, immediate_data=data[:head], final=burst <= head, **what)
        if burst > head:
            self.sequence(itt, p.NO_TAG, head, data[head:burst])
        return self.finish(itt, data)

    def manage(self, function: int, lun: int = 0, tag: int = p.NO_TAG, immediate: bool = True, **more: Any) -> int:
        """A task management function; returns the response code."""
        itt = self.tag()
        self.send(
            p.TaskManagement(
                immediate=immediate, flags=p.FINAL | function, lun=p.lun_field(lun), itt=itt, ref_itt=tag,
                cmd_sn=self.cmd_sn if immediate else self.next_sn(), **more,
            )
        )  # fmt: skip
        got = self.take(p.TASK_MANAGEMENT_RESPONSE)
        assert got.itt == itt
        return int(got.response)

    def text(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]] | None:
        """A text exchange with all its continuations; None when it is rejected."""
        itt, ttt, whole, data = self.tag(), p.NO_TAG, b"", encode(pairs)
        while True:
            self.send(p.TextRequest(itt=itt, ttt=ttt, cmd_sn=self.next_sn()), data)
            got = self.take()
            if got.opcode == p.REJECT:
                return None
            assert got.opcode == p.TEXT_RESPONSE and got.itt == itt
            assert len(got.data) <= self.settings.max_recv
            whole, data, ttt = whole + got.data, b"", got.ttt
            if got.flags & p.FINAL:
                assert ttt == p.NO_TAG
                return parse(whole)

    def ping(self, data: bytes = b"ping") -> Pdu:
        itt = self.tag()
        self.send(p.NopOut(immediate=True, itt=itt, cmd_sn=self.cmd_sn), data)
        got = self.take(p.NOP_IN)
        assert got.itt == itt and got.ttt == p.NO_TAG
        return got


class Disk(Target):
    """A target whose commands are done at once in a bytearray, or held until `let_go`."""

    def __init__(self, gateway: Any, config: TargetConfig, blocks: int = 8192, luns: Sequence[int] = (0,)) -> None:
        units = {lun: _unit(gateway, gateway.reactor, lun) for lun in luns}
        super().__init__(gateway, config, units)
        self.bytes = bytearray(blocks * BLOCK)
        self.holding = False
        self.held: list[Task] = []
        self.ran: list[Task] = []

    def data_out_length(self, nexus: Any, lun: int, cdb: bytes) -> int:
        if lun not in nexus.luns or cdb[0] != 0x2A:
            return 0
        return int.from_bytes(cdb[7:9], "big") * BLOCK

    def submit(self, task: Task) -> None:
        if self.holding:
            self.held.append(task)
        else:
            self.run(task)

    def let_go(self) -> None:
        """Do what was held, as far as it was not aborted."""
        self.holding = False
        held, self.held = self.held, []
        for task in held:
            if not task.aborted:
                self.run(task)

    def run(self, task: Task) -> None:
        del task.nexus.tasks[task.lun, task.tag]
        self.ran.append(task)
        assert task.done is not None
        task.done(task, self.result(task))

    def result(self, task: Task) -> Result:
        at = int.from_bytes(task.cdb[2:6], "big") * BLOCK
        size = int.from_bytes(task.cdb[7:9], "big") * BLOCK
        if task.lun not in task.nexus.luns:
            return Result(CHECK_CONDITION, sense=Sense(5, 0x25))
        if task.cdb[0] == 0x28:
            data = bytes(self.bytes[at : at + size])
            return Result(data=(data[:700], data[700:]) if at == 7 * BLOCK else (data,) if data else ())
        if task.cdb[0] == 0x2A:
            self.bytes[at : at + len(task.data)] = task.data
            return DONE
        return DONE if task.cdb[0] == 0 else Result(CHECK_CONDITION, sense=Sense(5, 0x20))


def _unit(gateway: Any, reactor: Any, lun: int) -> LogicalUnit:
    """A real unit, for what is held per unit, on a file that nothing is done with."""
    backing: Any = SimpleNamespace(
        size=1 << 22, blksize=4096, limits={}, volume="v", volume_id=bytes(16), gfid=bytes([lun & 255]) * 16,
        path=f"/{lun}", written=False,
    )  # fmt: skip
    return LogicalUnit(gateway, LunConfig(path=backing.path), backing, reactor)


class World:
    """A server with one target, and initiators that come to it over streams in memory."""

    def __init__(
        self, acls: Sequence[AclConfig] = (), chunk: int = 1 << 16, settings: Settings | None = None,
        limits: Limits | None = None, luns: Sequence[int] = (0,), discovery_rule: AclConfig | None = None,
        blocks: int = 8192, **config: Any,
    ) -> None:  # fmt: skip
        self.reactor = ManualReactor()
        self.network = MemoryNetwork(self.reactor, chunk)
        self.gateway: Any = SimpleNamespace(targets={}, reactor=self.reactor)
        self.disk = Disk(self.gateway, TargetConfig(name=TARGET, acls=tuple(acls), **config), blocks, luns)
        self.gateway.targets[TARGET] = self.disk
        self.server = Server(self.gateway, self.reactor, settings, limits, discovery_rule)
        self.portal = self.open_portal(Address("127.0.0.1", 3260))

    def open_portal(self, address: Address) -> Portal:
        """Listen at one more address."""
        portal = Portal(self.server, len(self.server.portals) + 1)
        portal.address = address
        self.reactor.wait(_awaited(self.network.listen(address, portal.make_receiver)))
        return portal

    def initiator(self, name: str = INITIATOR, number: int = 1, at: Address | None = None) -> Initiator:
        """Somebody who has connected."""
        made = Initiator(self.reactor.run, name, bytes([0x80, 0, 0, 0, 0, number]))
        self.network.dial(at or Address("127.0.0.1", 3260), made)  # type: ignore[arg-type]
        self.reactor.run()
        return made

    def logged_in(self, name: str = INITIATOR, number: int = 1, at: Address | None = None, **want: Any) -> Initiator:
        """Somebody who has logged in."""
        made = self.initiator(name, number, at)
        assert made.login(**want).status_class == 0
        return made


async def _awaited(waiter: Any) -> Any:
    return await waiter


__all__ = ["BAD_CDB", "SECURITY", "TEST_UNIT_READY", "Disk", "Initiator", "World", "read_10", "write_10"]
