"""PERSISTENT RESERVE IN and OUT (SPC-5 6.16, 6.17)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from glustx.errors import FopError
from glustx.scsi.commands import Access, allocation, command, list_length
from glustx.scsi.pr_state import Conflict, Kind, Port, State
from glustx.scsi.reservations import port_of
from glustx.scsi.sense import ILLEGAL_REQUEST, check, invalid_field, invalid_parameter, parameter_length
from glustx.scsi.task import CONFLICT, DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_SPEC_I_PT, _ALL_TG_PT, _APTPL, _UNREG = 0x08, 0x04, 0x01, 0x02
_BASIC = 24  # bytes of the parameter list
_TYPES = sum(1 << (kind + 8 if kind < 8 else 0) for kind in Kind)
_FULL = (errno.E2BIG, errno.ENOSPC, errno.EDQUOT, errno.ERANGE)
_ISCSI = 0x05  # protocol identifier


# -- IN ---------------------------------------------------------------------------------------------------------------


async def _read(unit: LogicalUnit) -> State:
    return await unit.reservations.current()


def _answer(state: State, body: bytes, task: Task) -> Result:
    # The length is that of all there is, whatever the allocation length lets through.
    return data_in(struct.pack(">II", state.generation, len(body)) + body, allocation(task.cdb))


@command("PERSISTENT RESERVE IN, READ KEYS", "5e 00 00000000 00 ffff 07", Access.PERSISTENT, service_action=0)
async def read_keys(unit: LogicalUnit, task: Task) -> Result:
    """List the registered keys."""
    state = await _read(unit)
    return _answer(state, b"".join(each.key.to_bytes(8, "big") for each in state.registrations), task)


@command("PERSISTENT RESERVE IN, READ RESERVATION", "5e 01 00000000 00 ffff 07", Access.PERSISTENT, service_action=1)
async def read_reservation(unit: LogicalUnit, task: Task) -> Result:
    """Show the reservation's type and its holder's key."""
    state = await _read(unit)
    body = struct.pack(">QIBBH", state.holder_key, 0, 0, state.kind, 0) if state.kind else b""
    return _answer(state, body, task)


@command("PERSISTENT RESERVE IN, REPORT CAPABILITIES", "5e 02 00000000 00 ffff 07", Access.PERSISTENT, service_action=2)
async def report_capabilities(unit: LogicalUnit, task: Task) -> Result:
    """Say which types and options there are: all types, CRH, SIP_C, ATP_C, PTPL_C."""
    state = await _read(unit)
    # Type mask valid; ALLOW COMMANDS 001b: TEST UNIT READY passes, no more is promised.
    body = struct.pack(">HBBHH", 8, 0x1D, 0x90 | state.persists, _TYPES, 0)
    return data_in(body, allocation(task.cdb))


@command("PERSISTENT RESERVE IN, READ FULL STATUS", "5e 03 00000000 00 ffff 07", Access.PERSISTENT, service_action=3)
async def read_full_status(unit: LogicalUnit, task: Task) -> Result:
    """Show every registration: key, initiator port, and whether it holds the reservation."""
    state = await _read(unit)
    parts = []
    for each in state.registrations:
        port = each.port
        holds = state.holds(port)
        transport = transport_id(port.initiator)
        flags = (0x02 if port.relative == 0 else 0) | holds
        parts.append(
            struct.pack(">QIBB4xHI", each.key, 0, flags, state.kind if holds else 0, port.relative, len(transport))
        )
        parts.append(transport)
    return _answer(state, b"".join(parts), task)


def transport_id(initiator: str) -> bytes:
    """Return the iSCSI TransportID of an initiator port, `iqn...,i,0x...` (SPC-5 7.6.4.6, format 01b)."""
    name = initiator.encode() + b"\0"
    name = name.ljust(max(20, (len(name) + 3) & ~3), b"\0")
    return struct.pack(">BBH", 0x40 | _ISCSI, 0, len(name)) + name


def initiator_of(transport: bytes, where: int) -> str:
    """Return the initiator port that a TransportID names.

    Args:
        transport: whole TransportID.
        where: its offset in the parameter list, for the sense.

    Raises CheckCondition for another protocol, a name without a port (format 00b), or what is not well formed.
    """
    if transport[0] != 0x40 | _ISCSI:
        raise invalid_parameter(where, text="a TransportID that is not that of an iSCSI initiator port")
    name = transport[4:].partition(b"\0")
    try:
        text = name[0].decode().lower()
    except UnicodeDecodeError:
        text = ""
    _, comma, isid = text.partition(",i,0x")
    if not comma or not isid or not name[1] or name[2].strip(b"\0"):
        raise invalid_parameter(where + 4, text="a TransportID without an initiator port's name")
    return text


# -- OUT --------------------------------------------------------------------------------------------------------------

_OUT = "PERSISTENT RESERVE OUT, "


def _usage(action: int) -> str:
    return f"5f {action:02x} ff 0000 ffffffff 07"


def _parameters(task: Task, *, least: int = _BASIC) -> tuple[int, int, bytes]:
    """Return key, service action key and the whole parameter list."""
    length = int.from_bytes(task.cdb[5:9], "big")
    data = bytes(task.data)
    if length < least or len(data) < length:
        raise parameter_length(f"{length} bytes of parameters, {len(data)} came")
    return (*struct.unpack_from(">QQ", data), data[:length])


def _basic(task: Task) -> tuple[int, int, bytes]:
    key, action_key, data = _parameters(task)
    if data[20] & _SPEC_I_PT:
        raise invalid_field(1, text="SPEC_I_PT goes with REGISTER only")
    if len(data) != _BASIC:
        raise parameter_length(f"{len(data)} bytes of parameters instead of {_BASIC}")
    return key, action_key, data


def _kind(task: Task) -> Kind:
    if task.cdb[2] >> 4:
        raise invalid_field(2, 7, f"scope {task.cdb[2] >> 4}")
    try:
        return Kind(task.cdb[2] & 0x0F)
    except ValueError:
        raise invalid_field(2, 3, f"reservation type {task.cdb[2] & 0x0F}") from None


async def _change(
    unit: LogicalUnit, action: Callable[[State], bool], *, restricts: bool = False, drains: bool = False
) -> Result:
    try:
        await unit.reservations.change(action, restricts=restricts, drains=drains)
    except Conflict:
        return CONFLICT
    except FopError as error:
        if error.errno in _FULL:
            raise check(ILLEGAL_REQUEST, 0x55, 0x04, f"the record of reservations has no room: {error}") from None
        raise
    return DONE


def _others(data: bytes, target: str, relative: int) -> list[Port]:
    """Return the nexuses that SPEC_I_PT names."""
    if len(data) < _BASIC + 4:
        raise parameter_length("SPEC_I_PT without a list of TransportIDs")
    length = int.from_bytes(data[24:28], "big")
    if length != len(data) - 28:
        raise parameter_length(f"TransportIDs of {length} bytes in {len(data) - 28}")
    found = []
    at = 28
    while at < len(data):
        if at + 24 > len(data):
            raise invalid_parameter(at, text="a TransportID that is cut off")
        size = 4 + int.from_bytes(data[at + 2 : at + 4], "big")
        if size < 24 or size % 4 or at + size > len(data):
            raise invalid_parameter(at + 2, text=f"a TransportID of {size} bytes")
        found.append(Port(initiator_of(data[at : at + size], at), target, relative))
        at += size
    return found


async def _register(unit: LogicalUnit, task: Task, ignore: bool) -> Result:
    nexus = port_of(task.nexus)
    others: list[Port] = []
    if ignore:
        key, new, data = _basic(task)
    else:
        key, new, data = _parameters(task)
        if data[20] & _SPEC_I_PT:
            others = _others(data, nexus.target, nexus.relative)
        elif len(data) != _BASIC:
            raise parameter_length(f"{len(data)} bytes of parameters instead of {_BASIC}")
    persists, every_port = bool(data[20] & _APTPL), bool(data[20] & _ALL_TG_PT)

    def action(state: State) -> bool:
        return state.register(nexus, key, new, ignore=ignore, persists=persists, every_port=every_port, others=others)

    # Ending a registration can take the right to write from its own nexus alone.
    return await _change(unit, action)


@command(_OUT + "REGISTER", _usage(0), Access.PERSISTENT, service_action=0, data_out=list_length(5, 8))
async def register(unit: LogicalUnit, task: Task) -> Result:
    """Register the nexus with a key, give it another one, or end its registration."""
    return await _register(unit, task, ignore=False)


@command(_OUT + "RESERVE", _usage(1), Access.PERSISTENT, service_action=1, data_out=list_length(5, 8))
async def reserve(unit: LogicalUnit, task: Task) -> Result:
    """Take the reservation for a registered nexus."""
    key, _, _ = _basic(task)
    nexus, kind = port_of(task.nexus), _kind(task)
    return await _change(unit, lambda state: state.reserve(nexus, key, kind), restricts=True)


@command(_OUT + "RELEASE", _usage(2), Access.PERSISTENT, service_action=2, data_out=list_length(5, 8))
async def release(unit: LogicalUnit, task: Task) -> Result:
    """Give the reservation back."""
    key, _, _ = _basic(task)
    nexus, kind = port_of(task.nexus), _kind(task)
    return await _change(unit, lambda state: state.release(nexus, key, kind))


@command(_OUT + "CLEAR", _usage(3), Access.PERSISTENT, service_action=3, data_out=list_length(5, 8))
async def clear(unit: LogicalUnit, task: Task) -> Result:
    """End the reservation and all registrations."""
    key, _, _ = _basic(task)
    nexus = port_of(task.nexus)
    return await _change(unit, lambda state: state.clear(nexus, key))


async def _preempt(unit: LogicalUnit, task: Task, abort: bool) -> Result:
    key, victim, _ = _basic(task)
    nexus, kind = port_of(task.nexus), _kind(task)
    return await _change(
        unit, lambda state: state.preempt(nexus, key, victim, kind, abort=abort), restricts=True, drains=abort
    )


@command(_OUT + "PREEMPT", _usage(4), Access.PERSISTENT, service_action=4, data_out=list_length(5, 8))
async def preempt(unit: LogicalUnit, task: Task) -> Result:
    """End the registrations with a key, and take the reservation where one of them holds it."""
    return await _preempt(unit, task, abort=False)


@command(_OUT + "PREEMPT AND ABORT", _usage(5), Access.PERSISTENT, service_action=5, data_out=list_length(5, 8))
async def preempt_and_abort(unit: LogicalUnit, task: Task) -> Result:
    """As PREEMPT, and abort the tasks of those whose registration ends."""
    return await _preempt(unit, task, abort=True)


@command(
    _OUT + "REGISTER AND IGNORE EXISTING KEY",
    _usage(6),
    Access.PERSISTENT,
    service_action=6,
    data_out=list_length(5, 8),
)
async def register_and_ignore(unit: LogicalUnit, task: Task) -> Result:
    """As REGISTER, whatever the nexus's key is."""
    return await _register(unit, task, ignore=True)


@command(_OUT + "REGISTER AND MOVE", _usage(7), Access.PERSISTENT, service_action=7, data_out=list_length(5, 8))
async def register_and_move(unit: LogicalUnit, task: Task) -> Result:
    """Hand the reservation to another nexus."""
    key, new, data = _parameters(task, least=_BASIC)
    size = int.from_bytes(data[20:24], "big")
    if size < 24 or size % 4 or _BASIC + size != len(data):
        raise parameter_length(f"a TransportID of {size} bytes in {len(data)}")
    if task.cdb[2] >> 4:
        raise invalid_field(2, 7, f"scope {task.cdb[2] >> 4}")
    nexus = port_of(task.nexus)
    relative = int.from_bytes(data[18:20], "big")
    if relative not in (nexus.relative, task.nexus.target.config.portal_group):
        raise invalid_parameter(18, text=f"there is no target port {relative}")
    to = Port(initiator_of(data[_BASIC:], _BASIC), nexus.target, relative)
    unregister, persists = bool(data[17] & _UNREG), bool(data[17] & _APTPL)
    return await _change(
        unit,
        lambda state: state.move(nexus, key, new, to, unregister=unregister, persists=persists),
        restricts=True,
    )
