"""A logical unit under commands that make no sense: any CDB with any data-out, by two initiators."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from glustx.scsi.commands import COMMANDS, Command
from glustx.scsi.sense import INTERNAL_FAILURE
from glustx.scsi.task import CHECK_CONDITION, CONDITION_MET, GOOD, RESERVATION_CONFLICT
from glustx.scsi.vpd import MAX_SENSE
from tests.scsi_kit import Rig

OTHER = "iqn.2026-12.org.example:two,i,0x000000000002"
_STATUSES = (GOOD, CHECK_CONDITION, CONDITION_MET, RESERVATION_CONFLICT)
_STEPS = 64
_MOST_DATA = 4096
_LARGEST = 64 << 20
_OTHER, _RAW = 0x01, 0x02


def _rows() -> list[Command]:
    return [COMMANDS[key] for key in sorted(COMMANDS, key=lambda key: (key[0], key[1] or 0))]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("glustx.scsi")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def scsi(data: bytes) -> None:
    """Every command ends, with a status of SAM and no more data than it means; none fails inside."""
    if not data:
        return
    options, data = data[0], data[1:]
    rig = Rig(
        size=64 << 10,
        block_size=4096 if options & 1 else 512,
        removable=bool(options & 2),
        readonly=bool(options & 4),
        unmap=not options & 8,
        writecache=not options & 16,
    )
    try:
        with _quiet():
            _converse(rig, data)
    finally:
        rig.close()


def _converse(rig: Rig, data: bytes) -> None:
    rows = _rows()
    other = rig.login(OTHER)
    at = 0
    for _ in range(_STEPS):
        if at + 2 > len(data):
            break
        flags, row = data[at], rows[data[at + 1] % len(rows)]
        at += 2
        cdb = bytearray(data[at : at + 16].ljust(16, b"\0"))
        at += 16
        if not flags & _RAW:
            cdb = bytearray(one & may for one, may in zip(cdb, row.usage, strict=False))
            cdb[0] = row.opcode
            if row.service_action is not None:
                cdb[1] = cdb[1] & 0xE0 | row.service_action
            cdb[-1] = 0
        size = int.from_bytes(data[at : at + 2], "big") % (_MOST_DATA + 1)
        out = data[at + 2 : at + 2 + size]
        at += 2 + size
        _one(rig, rig.nexus if not flags & _OTHER else other, bytes(cdb), out)
    assert not len(rig.unit.order), "places that nobody gives back"
    assert not rig.nexus.tasks and not other.tasks


def _one(rig: Rig, nexus: object, cdb: bytes, out: bytes) -> None:
    wanted = rig.target.data_out_length(nexus, 0, cdb)  # type: ignore[arg-type]
    assert 0 <= wanted <= _LARGEST, f"{cdb.hex()} wants {wanted} bytes"
    result = rig.run(cdb, out, nexus=nexus)
    assert result.status in _STATUSES, f"{cdb.hex()}: status {result.status:#x}"
    assert (result.status == CHECK_CONDITION) == (result.sense is not None)
    assert sum(map(len, result.data)) <= result.length <= _LARGEST
    if result.sense is not None:
        sense = result.sense
        assert (sense.key, sense.asc) != (INTERNAL_FAILURE.key, INTERNAL_FAILURE.asc), f"{cdb.hex()} {out.hex()}"
        assert len(sense.encode(False)) == 18 and len(sense.encode(True)) <= MAX_SENSE


def scsi_seeds() -> Iterator[tuple[Callable[[bytes], None], bytes]]:
    """Each command with all of its bits, and with a length that many have."""
    for index in range(len(_rows())):
        for fill in (b"\xff" * 16, bytes([0, 0, 0, 0, 0, 0, 0, 0, 24, 1]).ljust(16, b"\0")):
            yield scsi, bytes([0, 0, index % 256]) + fill + (1024).to_bytes(2, "big") + bytes(1024)


__all__ = ["scsi", "scsi_seeds"]
