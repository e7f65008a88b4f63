"""Who a logical unit is: serial number and designators, derived from volume and file and so the same everywhere."""

from __future__ import annotations

import hashlib
import struct

import msgspec

from glustx.scsi.backing import Backing
from glustx.scsi.config import LunConfig

_BINARY, _ASCII, _UTF8 = 1, 2, 3
_T10_VENDOR, _EUI, _NAA, _RELATIVE_PORT, _PORT_GROUP, _SCSI_NAME, _UUID = 1, 2, 3, 4, 5, 8, 10
_UNIT, _PORT, _TARGET = 0x00, 0x10, 0x20  # association
_PIV = 0x80
_ISCSI = 5  # protocol identifier

PORT_GROUP = 1  # all target ports reach all units alike


class Identity(msgspec.Struct, frozen=True):
    """A unit's names: `serial` and `device_id` as text, the others as bytes, empty where there is none."""

    serial: str
    device_id: str
    naa: bytes
    eui: bytes
    uuid: bytes

    @classmethod
    def of(cls, config: LunConfig, backing: Backing) -> Identity:
        """Return the names that the options give, the rest from the volume and the file's gfid (never its path)."""
        digest = hashlib.sha256(backing.volume_id + b"\0" + backing.gfid).digest()
        serial = config.serial or digest[:8].hex()
        # NAA 6 (IEEE registered extended) would need an OUI of our own; 3 is assigned locally (SPC-5 7.7.6.6.4).
        naa = bytes([0x30 | digest[8] & 0x0F]) + digest[9:16]
        return cls(
            serial=serial,
            device_id=config.device_id or serial,
            naa=bytes.fromhex(config.naa.removeprefix("0x")) if config.naa else naa,
            eui=bytes.fromhex(config.eui.removeprefix("0x")),
            uuid=bytes.fromhex(config.uuid.replace("-", "")),
        )

    def designators(self, vendor: str) -> bytes:
        """Return the unit's designation descriptors (SPC-5 7.7.6), NAA first, since most initiators take the first.

        Args:
            vendor: T10 vendor identification.
        """
        parts = [_designator(_BINARY, _UNIT | _NAA, self.naa)]
        if self.eui:
            parts.append(_designator(_BINARY, _UNIT | _EUI, self.eui))
        if self.uuid:
            # A locally assigned UUID (7.7.6.12): type 1 and a reserved byte in front.
            parts.append(_designator(_BINARY, _UNIT | _UUID, b"\x10\0" + self.uuid))
        parts.append(_designator(_ASCII, _UNIT | _T10_VENDOR, f"{vendor:<8}{self.device_id}".encode()))
        return b"".join(parts)


def port_name(target: str, relative_port: int) -> str:
    """Return the SCSI name of a target port (RFC 7143 4.4.7): target name and portal group tag."""
    return f"{target},t,0x{relative_port:04x}"


def port_designators(target: str, relative_port: int) -> bytes:
    """Return the designation descriptors of a target port and its target: relative port, port group, SCSI names."""
    return (
        _designator(_BINARY, _PIV | _PORT | _RELATIVE_PORT, struct.pack(">I", relative_port))
        + _designator(_BINARY, _PIV | _PORT | _PORT_GROUP, struct.pack(">I", PORT_GROUP))
        + port_name_designator(target, relative_port)
        + _designator(_UTF8, _PIV | _TARGET | _SCSI_NAME, _padded(target))
    )


def port_name_designator(target: str, relative_port: int) -> bytes:
    """Return the designation descriptor of a target port's SCSI name."""
    return _designator(_UTF8, _PIV | _PORT | _SCSI_NAME, _padded(port_name(target, relative_port)))


def _padded(name: str) -> bytes:
    raw = name.encode() + b"\0"
    return raw.ljust(-(-len(raw) // 4) * 4, b"\0")


def _designator(code_set: int, what: int, value: bytes) -> bytes:
    protocol = _ISCSI << 4 if what & _PIV else 0
    return bytes([protocol | code_set, what, 0, len(value)]) + value
