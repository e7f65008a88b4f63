"""Vital product data: the pages that INQUIRY gives with EVPD (SPC-5 7.7, SBC-4 6.6)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from glustx.scsi.identity import port_designators, port_name_designator
from glustx.scsi.mode_pages import THRESHOLD_EXPONENT
from glustx.scsi.task import Nexus

if TYPE_CHECKING:
    from glustx.scsi.unit import LogicalUnit

MAX_SENSE = 252  # what the longest sense data may have

Build = Callable[["LogicalUnit", Nexus], bytes]
_LIMITS = struct.Struct(">BBHIIIIIIIQIIIII")


class Page(msgspec.Struct, frozen=True):
    """One page: `build` returns what follows the four bytes of its header."""

    code: int
    name: str
    build: Build


PAGES: dict[int, Page] = {}


def page(code: int, name: str) -> Callable[[Build], Build]:
    """Declare the function below as the content of a page."""

    def declare(build: Build) -> Build:
        if code in PAGES:
            raise ValueError(f"VPD page {code:#04x} is declared already")
        PAGES[code] = Page(code, name, build)
        return build

    return declare


def supported() -> bytes:
    """Return the codes of all pages, ascending."""
    return bytes(sorted({0x00, *PAGES}))


@page(0x80, "Unit serial number")
def _serial(unit: LogicalUnit, nexus: Nexus) -> bytes:
    return unit.identity.serial.encode()


@page(0x83, "Device identification")
def _identification(unit: LogicalUnit, nexus: Nexus) -> bytes:
    own = unit.identity.designators(unit.config.vendor)
    return own + port_designators(nexus.target.name, nexus.relative_port)


@page(0x86, "Extended INQUIRY data")
def _extended(unit: LogicalUnit, nexus: Nexus) -> bytes:
    data = bytearray(60)
    data[1] = 0x07  # HEADSUP, ORDSUP, SIMPSUP
    data[2] = 0x01  # V_SUP: the brick's page cache is volatile
    data[3] = 0x01  # LUICLR
    data[4] = 0x08  # RTD_SUP
    data[9] = MAX_SENSE
    return bytes(data)


@page(0x87, "Mode page policy")
def _policy(unit: LogicalUnit, nexus: Nexus) -> bytes:
    return b"\x3f\xff\x00\x00"  # all pages: shared by all nexuses


@page(0x88, "SCSI ports")
def _ports(unit: LogicalUnit, nexus: Nexus) -> bytes:
    name = port_name_designator(nexus.target.name, nexus.relative_port)
    return struct.pack(">HHHHHH", 0, nexus.relative_port, 0, 0, 0, len(name)) + name


@page(0xB0, "Block limits")
def _limits(unit: LogicalUnit, nexus: Nexus) -> bytes:
    limits, thin = unit.limits, unit.config.unmap
    return _LIMITS.pack(
        0,  # WSNZ: WRITE SAME with 0 blocks reaches to the end
        limits.max_compare,
        limits.optimal_granularity,
        limits.max_transfer,
        limits.optimal_transfer,
        0,
        limits.max_unmap if thin else 0,
        limits.unmap_descriptors if thin else 0,
        limits.unmap_granularity if thin else 0,
        0x80000000 | limits.unmap_alignment if thin else 0,
        limits.max_write_same,
        0,
        0,
        0,
        0,
        0,
    )


@page(0xB1, "Block device characteristics")
def _characteristics(unit: LogicalUnit, nexus: Nexus) -> bytes:
    data = bytearray(60)
    struct.pack_into(">H", data, 0, unit.config.rpm)
    data[3] = unit.config.formfactor & 0x0F
    if unit.config.sanitize and unit.config.unmap:
        data[3] |= 0x40  # WABEREQ 01b: after a BLOCK ERASE reads succeed
    data[4] = 0x03  # FUAB, VBULS
    return bytes(data)


@page(0xB2, "Logical block provisioning")
def _provisioning(unit: LogicalUnit, nexus: Nexus) -> bytes:
    if not unit.config.unmap:
        return bytes(4)
    # LBPU, LBPWS, LBPWS10; LBPRZ 001b: what is unmapped reads as zeroes; provisioning type 2: thin.
    return bytes([THRESHOLD_EXPONENT, 0x80 | 0x40 | 0x20 | 0x04, 0x02, 0])
