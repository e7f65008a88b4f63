"""Mode pages of a unit: what they say, what may be changed, what is kept; MODE SENSE and MODE SELECT (SPC-5 6.14)."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

import msgspec

from glustx.errors import FopError
from glustx.runtime import Lock
from glustx.scsi.commands import Access, command, list_length
from glustx.scsi.config import LunConfig
from glustx.scsi.mode_pages import (
    D_SENSE,
    LBPERE,
    NUAR,
    PAGES,
    QAM,
    RCD,
    SITUA,
    SWP,
    TAS,
    WCE,
    Threshold,
    thresholds,
)
from glustx.scsi.sense import (
    ILLEGAL_REQUEST,
    MODE_CHANGED,
    check,
    invalid_field,
    invalid_parameter,
    parameter_length,
)
from glustx.scsi.task import DONE, Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

log = logging.getLogger("glustx.scsi")

Key = tuple[int, int]

_RECORD = "trusted.glustx.scsi-modes"
_ALL_PAGES, _ALL_SUBPAGES = 0x3F, 0xFF
_CURRENT, _CHANGEABLE, _DEFAULT, _SAVED = range(4)
_CONTROL, _CACHING, _RECOVERY, _EXCEPTIONS, _PROVISIONING = (0x0A, 0), (0x08, 0), (0x01, 0), (0x1C, 0), (0x1C, 2)
_WP, _DPOFUA = 0x80, 0x10


class ModePages:
    """The settings of one unit.

    Args:
        unit: whose they are.

    Attributes:
        current, default, saved: body of each page, by (code, subcode).
        descriptor_sense: D_SENSE: sense in descriptor format.
        software_protected: SWP.
        write_cache: WCE; without it every write is durable before it is answered.
        read_cache_disabled: RCD.
        quiet_release: NUAR: no unit attention when a reservation is released.
        report_aborts: TAS: tasks that another nexus aborts end with TASK ABORTED, rather than without an answer.
        thin_attentions: LBPERE: thresholds and a full pool are reported.
        single_attention: SITUA: one nexus is told of a threshold, not each.
        thresholds: the enabled ones.
    """

    def __init__(self, unit: LogicalUnit) -> None:
        self.unit = unit
        self.default = {key: page.default(unit.config, 0) for key, page in PAGES.items()}
        self.saved = dict(self.default)
        self.current: dict[Key, bytes] = {}
        self._changing = Lock()
        self.reset()

    @property
    def savable(self) -> bool:
        """Whether settings can be kept: not with a file that is not to be changed."""
        return not self.unit.config.readonly

    @property
    def protected(self) -> bool:
        """WP: whether the unit is write-protected by option or by SWP."""
        return self.unit.config.readonly or self.software_protected

    def reset(self) -> None:
        """Go back to what is saved, or to the defaults."""
        self.set(self.saved)

    def set(self, bodies: dict[Key, bytes]) -> None:
        """Take new bodies of some pages, at once for all commands that come now."""
        self.current.update(bodies)

        def bit(key: Key, where: tuple[int, int]) -> bool:
            return bool(self.current[key][where[0]] & where[1])

        self.descriptor_sense = bit(_CONTROL, D_SENSE)
        self.software_protected = bit(_CONTROL, SWP)
        self.quiet_release = bit(_CONTROL, NUAR)
        self.report_aborts = bit(_CONTROL, TAS)
        self.write_cache = bit(_CACHING, WCE)
        self.read_cache_disabled = bit(_CACHING, RCD)
        self.thin_attentions = bit(_RECOVERY, LBPERE)
        self.single_attention = bit(_PROVISIONING, SITUA)
        self.thresholds: tuple[Threshold, ...] = thresholds(self.current[_PROVISIONING])
        self.unit.order.restricted = not bit(_CONTROL, QAM)
        self.unit.exceptions.configure(self.current[_EXCEPTIONS])

    # -- what is kept --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read what is kept with the file. An option that says other than its default is worth more than that."""
        config = self.unit.config
        try:
            pool = (await self.unit.backing.usage()).pool_size
            record = await self.unit.backing.get_record(_RECORD)
        except FopError as error:
            log.warning("%r: its saved mode pages cannot be read: %s", self.unit, error)
            return
        self.default = {key: page.default(config, pool) for key, page in PAGES.items()}
        plain = msgspec.structs.replace(LunConfig(path=config.path), block_size=config.block_size)
        kept = _decode(record) if record is not None else {}
        self.saved = dict(self.default)
        for key, body in kept.items():
            page, default = PAGES[key], self.default[key]
            said = _said(key, default, page.default(plain, pool))
            mixed = bytes(
                (value & may & ~by_option) | (other & (by_option | ~may & 0xFF))
                for value, other, may, by_option in zip(body, default, page.changeable, said, strict=True)
            )
            if page.wrong(mixed) is None:
                self.saved[key] = mixed
        self.reset()

    async def save(self, bodies: dict[Key, bytes]) -> None:
        """Keep the bodies of all pages with the file."""
        record = b"".join(PAGES[key].encode(body, False) for key, body in sorted(bodies.items()))
        await self.unit.backing.set_record(_RECORD, record)
        self.saved = dict(bodies)

    # -- MODE SENSE ----------------------------------------------------------------------------------------------------

    def encode(self, code: int, subcode: int, control: int) -> bytes:
        """Return pages with their headers, ascending.

        Args:
            code, subcode: 3Fh and FFh mean all.
            control: 0 current, 1 changeable, 2 default, 3 saved.

        Raises CheckCondition for a page that there is not, or saved ones where none can be saved.
        """
        if control == _SAVED and not self.savable:
            raise check(ILLEGAL_REQUEST, 0x39, 0x00, "saved mode pages of a read-only unit")
        keys = sorted(
            key for key in PAGES if code in (_ALL_PAGES, key[0]) and (subcode == _ALL_SUBPAGES or key[1] == subcode)
        )
        if not keys and code != _ALL_PAGES:
            raise invalid_field(2, 5, f"mode page {code:#04x}/{subcode:#04x}")
        if code == _ALL_PAGES and subcode not in (0, _ALL_SUBPAGES):
            raise invalid_field(3, text=f"subpage {subcode:#04x} of all mode pages")
        return b"".join(PAGES[key].encode(self._body(key, control), self.savable) for key in keys)

    def _body(self, key: Key, control: int) -> bytes:
        if control == _CHANGEABLE:
            return PAGES[key].changeable
        return (self.current, self.current, self.default, self.saved)[control][key]

    # -- MODE SELECT ---------------------------------------------------------------------------------------------------

    def parse(self, data: bytes, at: int) -> dict[Key, bytes]:
        """Return the bodies of the pages in a parameter list from byte `at` on; CheckCondition for what cannot be."""
        found: dict[Key, bytes] = {}
        while at < len(data):
            long = bool(data[at] & 0x40)
            head = 4 if long else 2
            if at + head > len(data):
                raise parameter_length("the list ends in a page's header")
            key = (data[at] & 0x3F, data[at + 1] if long else 0)
            page = PAGES.get(key)
            if page is None or long != bool(page.subcode):
                raise invalid_parameter(at, 5, f"mode page {key[0]:#04x}/{key[1]:#04x}")
            current = self.current[key]
            length = int.from_bytes(data[at + 2 : at + 4], "big") if long else data[at + 1]
            if length != len(current):
                raise invalid_parameter(at + head - (2 if long else 1), text=f"a {page.name} page of {length} bytes")
            body = data[at + head : at + head + length]
            if len(body) < length:
                raise parameter_length(f"the list ends in the {page.name} page")
            for index, (new, old, may) in enumerate(zip(body, current, page.changeable, strict=True)):
                fixed = (new ^ old) & ~may & 0xFF
                if fixed:
                    raise invalid_parameter(at + head + index, fixed.bit_length() - 1, f"a fixed bit of {page.name}")
            wrong = page.wrong(body)
            if wrong is not None:
                raise invalid_parameter(at + head + wrong, text=f"a value of {page.name}")
            found[key] = body
            at += head + length
        return found

    async def change(self, bodies: dict[Key, bytes], task: Task, save: bool) -> None:
        """Take new bodies, keep all pages if told so, and tell the other nexuses.

        A failure to empty a cache that is switched off, or to keep the pages, leaves all as it was.
        """
        async with self._changing:
            before, cached = dict(self.current), self.write_cache
            changed = {key: body for key, body in bodies.items() if before[key] != body}
            self.set(changed)
            try:
                if cached and not self.write_cache and self.unit.backing.written:
                    await self.unit.backing.flush()
                if save:
                    await self.save(before | bodies)
            except FopError:
                self.set(before)
                raise
        if changed:
            self.unit.tell_all(MODE_CHANGED, but=task.nexus)


def _said(key: Key, default: bytes, plain: bytes) -> bytes:
    """Return a mask of what an option, other than its default, says in a page."""
    mask = bytearray(0xFF if one != other else 0 for one, other in zip(default, plain, strict=True))
    if key == _PROVISIONING:
        for at in range(12, len(mask), 8):  # a threshold is one thing
            if any(mask[at : at + 8]):
                mask[at : at + 8] = b"\xff" * 8
    elif key == _CONTROL:
        mask[QAM[0]] &= QAM[1]
    elif key == _CACHING:
        mask[0] = default[0] ^ plain[0]
    return bytes(mask)


def _decode(record: bytes) -> dict[Key, bytes]:
    """Return the bodies of a kept record; what it does not understand it leaves out."""
    found: dict[Key, bytes] = {}
    at = 0
    while at + 4 <= len(record):
        long = bool(record[at] & 0x40)
        key = (record[at] & 0x3F, record[at + 1] if long else 0)
        length = int.from_bytes(record[at + 2 : at + 4], "big") if long else record[at + 1]
        at += 4 if long else 2
        body = record[at : at + length]
        if key in PAGES and len(body) == len(PAGES[key].changeable):
            found[key] = body
        at += length
    return found


# -- commands --------------------------------------------------------------------------------------------------------


def _sense(unit: LogicalUnit, task: Task, long: bool) -> bytes:
    cdb = task.cdb
    pages = unit.modes.encode(cdb[2] & 0x3F, cdb[3], cdb[2] >> 6)
    wide = long and bool(cdb[1] & 0x10)
    block = b""
    if not cdb[1] & 0x08:
        if wide:
            block = struct.pack(">QII", unit.blocks, 0, unit.block_size)
        else:
            block = struct.pack(">II", min(unit.blocks, 0xFFFFFFFF), unit.block_size)
    special = (_WP if unit.modes.protected else 0) | _DPOFUA
    if long:
        length = 6 + len(block) + len(pages)
        return struct.pack(">HBBBBH", length, 0, special, wide, 0, len(block)) + block + pages
    return bytes([3 + len(block) + len(pages), 0, special, len(block)]) + block + pages


@command("MODE SENSE(6)", "1a 08 ff ff ff 07", Access.READ)
async def mode_sense_6(unit: LogicalUnit, task: Task) -> Result:
    """Mode pages, with an 8-byte block descriptor unless DBD."""
    return data_in(_sense(unit, task, False), task.cdb[4])


@command("MODE SENSE(10)", "5a 18 ff ff 000000 ffff 07", Access.READ)
async def mode_sense_10(unit: LogicalUnit, task: Task) -> Result:
    """Mode pages, with a block descriptor of 8 bytes, or with LLBAA 16, unless DBD."""
    return data_in(_sense(unit, task, True), int.from_bytes(task.cdb[7:9], "big"))


def _block_descriptor(unit: LogicalUnit, data: bytes, at: int, length: int, wide: bool, length_at: int) -> None:
    if not length:
        return
    size = 16 if wide else 8
    if length != size:
        raise invalid_parameter(length_at, text=f"{length} bytes of block descriptors")
    if at + length > len(data):
        raise parameter_length("the list ends in the block descriptor")
    if wide:
        blocks, block_size = struct.unpack_from(">Q4xI", data, at)
        same, top = unit.blocks, (1 << 64) - 1
    else:
        blocks, block_size = struct.unpack_from(">II", data, at)
        block_size &= 0xFFFFFF
        same, top = min(unit.blocks, 0xFFFFFFFF), 0xFFFFFFFF
    if blocks not in (0, same, top):
        raise invalid_parameter(at, text=f"{blocks} blocks, where the unit has {unit.blocks}")
    if block_size not in (0, unit.block_size):
        raise invalid_parameter(at + length - 3, text=f"blocks of {block_size} bytes")


async def _select(unit: LogicalUnit, task: Task, length: int, long: bool) -> Result:
    flags = task.cdb[1]
    save = bool(flags & 0x01)
    if save and not unit.modes.savable:
        raise invalid_field(1, 0, "mode pages of a read-only unit are not saved")
    if flags & 0x02:
        if length:
            raise invalid_field(1, 1, "a parameter list with RTD")
        await unit.modes.change(unit.modes.default, task, save)
        return DONE
    if not length:
        return DONE
    if not flags & 0x10:
        raise invalid_field(1, 4, "mode pages in a format of no standard (PF 0)")
    data = bytes(task.data[:length])
    header = 8 if long else 4
    if len(data) < length or length < header:
        raise parameter_length(f"{len(data)} bytes for a list of {length}")
    medium_at, length_at = (2, 6) if long else (1, 3)
    if data[medium_at]:
        raise invalid_parameter(medium_at, text=f"medium type {data[medium_at]:#04x}")
    blocks = int.from_bytes(data[6:8], "big") if long else data[3]
    _block_descriptor(unit, data, header, blocks, long and bool(data[4] & 1), length_at)
    await unit.modes.change(unit.modes.parse(data, header + blocks), task, save)
    return DONE


@command("MODE SELECT(6)", "15 13 0000 ff 07", Access.WRITE, data_out=list_length(4, 4))
async def mode_select_6(unit: LogicalUnit, task: Task) -> Result:
    """Change mode pages, all or none of them; RTD goes back to the defaults."""
    return await _select(unit, task, task.cdb[4], False)


@command("MODE SELECT(10)", "55 13 0000000000 ffff 07", Access.WRITE, data_out=list_length(7, 8))
async def mode_select_10(unit: LogicalUnit, task: Task) -> Result:
    """Change mode pages, all or none of them; RTD goes back to the defaults."""
    return await _select(unit, task, int.from_bytes(task.cdb[7:9], "big"), True)
