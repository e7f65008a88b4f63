"""Who a logical unit is: serial number and designators, derived from volume and file and so the same everywhere."""

from __future__ import annotations

import hashlib

import msgspec

from glustx.scsi.backing import Backing
from glustx.scsi.config import LunConfig


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
