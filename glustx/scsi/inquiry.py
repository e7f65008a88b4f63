"""INQUIRY: what a unit is, and which vital product data pages it has (SPC-5 6.7)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from glustx.scsi import vpd
from glustx.scsi.commands import KEEPS_ATTENTION, WITHOUT_UNIT, Access, allocation, command
from glustx.scsi.identity import port_designators
from glustx.scsi.sense import invalid_field
from glustx.scsi.task import Result, Task, data_in

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

_DISK = 0x00
_NO_UNIT = 0x7F  # no unit can be at this LUN, of no known type
_SPC_4 = 0x06
# SAM-5, SPC-4, SBC-3, iSCSI (SPC-5 annex on version descriptors). Initiators look for these very ones.
_STANDARDS = (0x00A0, 0x0460, 0x04C0, 0x0960)
_IMPLICIT_ALUA, _COPY = 0x10, 0x08
_MULTIP, _CMDQUE = 0x10, 0x02
_HISUP, _FORMAT = 0x10, 0x02


@command("INQUIRY", "12 01 ff ffff 07", Access.ANY, WITHOUT_UNIT | KEEPS_ATTENTION)
async def inquiry(unit: LogicalUnit | None, task: Task) -> Result:
    """Standard INQUIRY data, or a vital product data page."""
    cdb = task.cdb
    size = allocation(cdb)
    if cdb[1] & 1:
        return data_in(_page(unit, task, cdb[2]), size)
    if cdb[2]:
        raise invalid_field(2, text=f"page code {cdb[2]:#04x} without EVPD")
    return data_in(standard(unit), size)


def standard(unit: LogicalUnit | None) -> bytes:
    """Return standard INQUIRY data (SPC-5 6.7.2), 96 bytes."""
    data = bytearray(96)
    data[0] = _DISK if unit is not None else _NO_UNIT
    data[2] = _SPC_4
    data[3] = _HISUP | _FORMAT
    data[4] = len(data) - 5
    data[5] = _IMPLICIT_ALUA | _COPY
    data[6] = _MULTIP
    data[7] = _CMDQUE
    vendor, product, revision = ("", "", "")
    if unit is not None:
        config = unit.config
        data[1] = 0x80 if config.removable else 0
        vendor, product, revision = config.vendor, config.product, config.revision
    data[8:36] = f"{vendor:<8}{product:<16}{revision:<4}".encode()
    struct.pack_into(f">{len(_STANDARDS)}H", data, 58, *_STANDARDS)
    return bytes(data)


def _page(unit: LogicalUnit | None, task: Task, code: int) -> bytes:
    kind = _DISK if unit is not None else _NO_UNIT
    if unit is None:
        nexus = task.nexus
        if code == 0x00:
            data = b"\x00\x83"
        elif code == 0x83:
            data = port_designators(nexus.target.name, nexus.relative_port)
        else:
            raise invalid_field(2, text=f"VPD page {code:#04x} of a LUN without a unit")
    elif code == 0x00:
        data = vpd.supported()
    else:
        page = vpd.PAGES.get(code)
        if page is None:
            raise invalid_field(2, text=f"VPD page {code:#04x}")
        data = page.build(unit, task.nexus)
    return struct.pack(">BBH", kind, code, len(data)) + data
