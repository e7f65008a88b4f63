"""The mode pages as a table: what each says by default and which of its bits may be changed (SPC-5 7.5, SBC-4 6.5)."""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from glustx.scsi.config import LunConfig

# Thresholds and the log page of the space count in pieces of 2^11 blocks: 1 MiB of 512-byte blocks.
THRESHOLD_EXPONENT = 11
AVAILABLE, USED, POOL_AVAILABLE, POOL_USED = 0x01, 0x02, 0xF1, 0xF2

# -- bits, as (byte of the page's body, mask); the body is what follows page code and length -----------------------

LBPERE = (5, 0x80)
WCE, RCD = (0, 0x04), (0, 0x01)
D_SENSE = (0, 0x04)
QAM, NUAR = (1, 0xF0), (1, 0x08)
SWP = (2, 0x08)
TAS = (3, 0x40)
EWASC, DEXCPT, TEST = (0, 0x10), (0, 0x08), (0, 0x04)
MRIE = (1, 0x0F)
SITUA = (0, 0x01)

_UNRESTRICTED = 0x10  # of QAM
_THRESHOLDS_AT = 12
_ENABLED, _ARMING = 0x80, 0x07
_RISING, _FALLING = 1, 2
_THRESHOLD = struct.Struct(">BBHI")
_BUSY_TIMEOUT = 300  # of 100 ms


class Threshold(msgspec.Struct, frozen=True):
    """One enabled threshold descriptor.

    Attributes:
        offset: of the descriptor in the mode page, which the unit attention's INFORMATION names.
        resource: AVAILABLE, USED, POOL_AVAILABLE, POOL_USED.
        rising: fires when the count rises to `count` or above; else when it falls to it or below.
        count: in pieces of 2^THRESHOLD_EXPONENT blocks.
    """

    offset: int
    resource: int
    rising: bool
    count: int


class ModePage(msgspec.Struct, frozen=True):
    """One page.

    Attributes:
        code, subcode: where it is found; subcode 0 is a page without subpages.
        name: in SPC or SBC.
        changeable: mask of the bits that MODE SELECT may change.
        default: the body by a unit's options and its pool's size in bytes.
        wrong: takes a body whose unchangeable bits are right, returns the first byte whose value is not supported.
    """

    code: int
    subcode: int
    name: str
    changeable: bytes
    default: Callable[[LunConfig, int], bytes]
    wrong: Callable[[bytes], int | None]

    @property
    def key(self) -> tuple[int, int]:
        """Code and subcode."""
        return self.code, self.subcode

    def encode(self, body: bytes, savable: bool) -> bytes:
        """Return the page with its header."""
        first = self.code | (0x80 if savable else 0)
        if self.subcode:
            return struct.pack(">BBH", first | 0x40, self.subcode, len(body)) + body
        return bytes([first, len(body)]) + body


def _anything(body: bytes) -> int | None:
    return None


def _mask(size: int, *bits: tuple[int, int]) -> bytes:
    out = bytearray(size)
    for byte, mask in bits:
        out[byte] |= mask
    return bytes(out)


def _error_recovery(config: LunConfig, pool: int) -> bytes:
    # AWRE, ARRE: what reassigns bad sectors is below the brick.
    return _mask(10, (0, 0xC0), LBPERE)


def _caching(config: LunConfig, pool: int) -> bytes:
    body = bytearray(18)
    body[0] = 0x10  # DISC: read-ahead may cross what a cylinder would be
    if config.writecache:
        body[WCE[0]] |= WCE[1]
    if not config.readcache:
        body[RCD[0]] |= RCD[1]
    struct.pack_into(">HHHH", body, 2, 0xFFFF, 0, 0xFFFF, 0xFFFF)
    return bytes(body)


def _control(config: LunConfig, pool: int) -> bytes:
    body = bytearray(10)
    if config.reordering == "unrestricted":
        body[QAM[0]] |= _UNRESTRICTED
    body[TAS[0]] |= TAS[1]
    struct.pack_into(">H", body, 6, _BUSY_TIMEOUT)
    return bytes(body)


def _wrong_control(body: bytes) -> int | None:
    return QAM[0] if body[QAM[0]] & QAM[1] not in (0, _UNRESTRICTED) else None


def _control_extension(config: LunConfig, pool: int) -> bytes:
    # TCMOS, SCSIP: SET TIMESTAMP wins over the clock of the gateway; IALUAE: access states change by themselves.
    return bytes([0x04 | 0x02 | 0x01, 0, 252]) + bytes(25)


def _exceptions(config: LunConfig, pool: int) -> bytes:
    return bytes(10)


def _wrong_exceptions(body: bytes) -> int | None:
    return MRIE[0] if body[MRIE[0]] & MRIE[1] not in (0, 2, 3, 4, 5, 6) else None


def _provisioning(config: LunConfig, pool: int) -> bytes:
    body = bytes(_THRESHOLDS_AT)
    for resource, value, arming in (
        (AVAILABLE, config.avail_threshold, _FALLING),
        (USED, config.used_threshold, _RISING),
        (POOL_AVAILABLE, config.pool_avail_threshold, _FALLING),
        (POOL_USED, config.pool_used_threshold, _RISING),
    ):
        size = pool * value // 100 if value <= 100 else value
        count = min(size // (config.block_size << THRESHOLD_EXPONENT), 0xFFFFFFFF)
        body += _THRESHOLD.pack((_ENABLED if size else 0) | arming, resource, 0, count)
    return body


def _wrong_provisioning(body: bytes) -> int | None:
    for at in range(_THRESHOLDS_AT, len(body), _THRESHOLD.size):
        if body[at] & _ARMING not in (_RISING, _FALLING):
            return at
    return None


def thresholds(body: bytes) -> tuple[Threshold, ...]:
    """Return the enabled thresholds of the body of page 1Ch/02h."""
    found = []
    for at in range(_THRESHOLDS_AT, len(body), _THRESHOLD.size):
        flags, resource, _, count = _THRESHOLD.unpack_from(body, at)
        if flags & _ENABLED:
            found.append(Threshold(at + 4, resource, flags & _ARMING == _RISING, count))
    return tuple(found)


_PROVISIONING_MASK = _mask(_THRESHOLDS_AT, SITUA) + 4 * _THRESHOLD.pack(_ENABLED | _ARMING, 0, 0, 0xFFFFFFFF)

PAGES: dict[tuple[int, int], ModePage] = {
    page.key: page
    for page in (
        ModePage(0x01, 0, "Read-write error recovery", _mask(10, LBPERE), _error_recovery, _anything),
        ModePage(0x07, 0, "Verify error recovery", bytes(10), lambda config, pool: bytes(10), _anything),
        ModePage(0x08, 0, "Caching", _mask(18, WCE, RCD), _caching, _anything),
        ModePage(0x0A, 0, "Control", _mask(10, D_SENSE, QAM, NUAR, SWP, TAS), _control, _wrong_control),
        ModePage(0x0A, 1, "Control extension", bytes(28), _control_extension, _anything),
        ModePage(
            0x1C,
            0,
            "Informational exceptions control",
            _mask(2, EWASC, DEXCPT, TEST, MRIE) + b"\xff" * 8,
            _exceptions,
            _wrong_exceptions,
        ),
        ModePage(0x1C, 2, "Logical block provisioning", _PROVISIONING_MASK, _provisioning, _wrong_provisioning),
    )
}
