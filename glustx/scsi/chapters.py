"""The chapters of the opcode table: importing this module fills it."""

from __future__ import annotations

from types import ModuleType

from glustx.scsi import (
    condition,
    diagnostics,
    inquiry,
    logs,
    modes,
    naming,
    provisioning,
    read_write,
    report,
)

ALL: tuple[ModuleType, ...] = (
    inquiry,
    report,
    naming,
    condition,
    diagnostics,
    modes,
    logs,
    read_write,
    provisioning,
)
