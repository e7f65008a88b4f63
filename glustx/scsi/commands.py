"""The opcode table: every SCSI command, declared once where it is done.

    @command("READ(10)", "28 fa ffffffff 3f ffff 07", Access.READ, MEDIUM, extent=extent_10)
    async def read_10(unit: LogicalUnit, task: Task) -> Result: ...

From the table follow the dispatch, the checks in front of a command, what REPORT SUPPORTED OPERATION CODES answers, and
docs/scsi.md. The text is the CDB usage map: the opcode, then 1 bits where the device looks at a CDB's bits. A service
action's bits hold its value.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from glustx.scsi.sense import invalid_field
from glustx.scsi.task import Result, Task

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

Handler = Callable[["LogicalUnit", Task], Awaitable[Result]]
Extent = Callable[[bytes], "tuple[int, int]"]
Length = Callable[["LogicalUnit", bytes], int]


class Access(enum.Enum):
    """What a command is to somebody's reservation (SPC-5 5.14, SBC-4 4.19)."""

    ANY = "allowed whoever holds what"
    READ = "reads the medium or the unit's settings"
    WRITE = "changes the medium or the unit's settings"
    RESERVE = "RESERVE and RELEASE, which judge for themselves"
    PERSISTENT = "PERSISTENT RESERVE IN and OUT, which judge for themselves"


MEDIUM = 1  # needs a medium that is there and started
CHANGES = 2  # refused on a write-protected unit
WITHOUT_UNIT = 4  # answered for a LUN that has no unit, too
KEEPS_ATTENTION = 8  # runs with a unit attention pending
TO_END = 16  # no blocks means all from the LBA to the end

_LONGEST_LIST = 1 << 16  # bytes


class Command(msgspec.Struct, frozen=True):
    """One row of the table; see `command` for the fields. `forbidden` are the bits that a CDB must not have set."""

    name: str
    usage: bytes
    service_action: int | None
    access: Access
    flags: int
    handler: Any
    extent: Any
    data_out: Any
    timeout: int
    doc: str
    forbidden: int
    offered: Any

    @property
    def opcode(self) -> int:
        """The first byte of the CDB."""
        return self.usage[0]


COMMANDS: dict[tuple[int, int | None], Command] = {}
_FAST: list[Command | None] = [None] * 256
_SERVICE: list[dict[int, Command] | None] = [None] * 256


def command(
    name: str,
    usage: str,
    access: Access,
    flags: int = 0,
    *,
    service_action: int | None = None,
    extent: Extent | None = None,
    data_out: Length | None = None,
    timeout: int = 30,
    offered: Callable[[LogicalUnit], bool] | None = None,
) -> Callable[[Handler], Handler]:
    """Declare the function below as the answer to a command.

    Args:
        name: as in SPC or SBC.
        usage: CDB usage map in hex, blanks allowed; its length is the CDB's.
        access: how reservations see it.
        flags: MEDIUM, CHANGES, WITHOUT_UNIT, KEEPS_ATTENTION, TO_END.
        service_action: for opcodes that have them; in the low five bits of byte 1.
        extent: takes a CDB, returns (LBA, blocks) that the command touches; overlapping ones are kept in order.
        data_out: takes the unit and a CDB, returns how many bytes the initiator must send; None means none.
        timeout: recommended time-out in seconds.
        offered: tells whether a unit has the command at all; None means that every unit has it.

    Raises ValueError at import for a row that is there already, or a usage map of an impossible length.
    """

    def declare(handler: Handler) -> Handler:
        usage_bytes = bytes.fromhex(usage)
        if len(usage_bytes) not in (6, 10, 12, 16):
            raise ValueError(f"{name}: a CDB has 6, 10, 12 or 16 bytes, not {len(usage_bytes)}")
        key = (usage_bytes[0], service_action)
        if key in COMMANDS or (_FAST[key[0]] is not None) or (service_action is None and _SERVICE[key[0]]):
            raise ValueError(f"{name}: opcode {key[0]:#04x} is declared already")
        doc = " ".join((handler.__doc__ or "").split("\n\n")[0].split())
        forbidden = ~int.from_bytes(usage_bytes, "big") & ((1 << 8 * len(usage_bytes)) - 1)
        if service_action is not None:
            forbidden &= ~(0x1F << 8 * (len(usage_bytes) - 2))
        forbidden &= ~(0xFF << 8 * (len(usage_bytes) - 1))
        forbidden |= 0x04  # NACA: a bit that is looked at, and refused
        row = Command(
            name,
            usage_bytes,
            service_action,
            access,
            flags,
            handler,
            extent,
            data_out,
            timeout,
            doc,
            forbidden,
            offered,
        )
        COMMANDS[key] = row
        if service_action is None:
            _FAST[key[0]] = row
        else:
            actions = _SERVICE[key[0]]
            if actions is None:
                _SERVICE[key[0]] = {service_action: row}
            else:
                actions[service_action] = row
        return handler

    return declare


def find(cdb: bytes) -> Command | None:
    """Return the row of a CDB, None for an opcode or service action that there is not."""
    row = _FAST[cdb[0]]
    if row is not None:
        return row
    actions = _SERVICE[cdb[0]]
    return actions.get(cdb[1] & 0x1F) if actions is not None else None


def rows_of(opcode: int) -> list[Command]:
    """Return the commands of an opcode, by service action."""
    return [COMMANDS[key] for key in sorted((key for key in COMMANDS if key[0] == opcode), key=lambda key: key[1] or 0)]


def refuse_reserved(row: Command, cdb: bytes) -> None:
    """Raise INVALID FIELD IN CDB for a bit that the usage map lacks."""
    strange = int.from_bytes(cdb[: len(row.usage)], "big") & row.forbidden
    if strange:
        bit = strange.bit_length() - 1
        raise invalid_field(len(row.usage) - 1 - (bit >> 3), bit & 7, f"{row.name}: a reserved bit")


def cdb_length(opcode: int) -> int:
    """Return the length of a CDB by its opcode's group (SPC-5 4.2.5.1)."""
    return (6, 10, 10, 10, 16, 12, 6, 6)[opcode >> 5]


# -- fields that most CDBs of a length share ----------------------------------------------------------------------


def extent_6(cdb: bytes) -> tuple[int, int]:
    """LBA and blocks of READ(6) and WRITE(6); 0 blocks means 256."""
    return int.from_bytes(cdb[1:4], "big") & 0x1FFFFF, cdb[4] or 256


def extent_10(cdb: bytes) -> tuple[int, int]:
    """LBA and blocks of a 10-byte CDB."""
    return int.from_bytes(cdb[2:6], "big"), cdb[7] << 8 | cdb[8]


def extent_12(cdb: bytes) -> tuple[int, int]:
    """LBA and blocks of a 12-byte CDB."""
    return int.from_bytes(cdb[2:6], "big"), int.from_bytes(cdb[6:10], "big")


def extent_16(cdb: bytes) -> tuple[int, int]:
    """LBA and blocks of a 16-byte CDB."""
    return int.from_bytes(cdb[2:10], "big"), int.from_bytes(cdb[10:14], "big")


_EXTENTS = (extent_6, extent_10, extent_10, extent_10, extent_16, extent_12, extent_6, extent_6)


def extent_of(cdb: bytes) -> tuple[int, int]:
    """LBA and blocks by the CDB's own length."""
    return _EXTENTS[cdb[0] >> 5](cdb)


def list_length(first: int, last: int) -> Length:
    """Return a `data_out` for a parameter list whose length stands in bytes `first` to `last` of the CDB.

    Of a list longer than any can be no more is taken than tells so.
    """

    def length(unit: LogicalUnit, cdb: bytes) -> int:
        return min(int.from_bytes(cdb[first : last + 1], "big"), _LONGEST_LIST)

    return length


def allocation(cdb: bytes) -> int:
    """Return the allocation length where SPC puts it: bytes 3-4, 7-8, 6-9 or 10-13 by the CDB's length."""
    group = cdb[0] >> 5
    if group == 0:
        return cdb[3] << 8 | cdb[4]
    if group in (1, 2):
        return cdb[7] << 8 | cdb[8]
    return int.from_bytes(cdb[6:10] if group == 5 else cdb[10:14], "big")
