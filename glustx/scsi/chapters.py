"""The chapters of the opcode table: importing this module fills it."""

from __future__ import annotations

from types import ModuleType

from glustx.scsi import condition, inquiry, modes, provisioning, read_write, report

ALL: tuple[ModuleType, ...] = (inquiry, report, condition, modes, read_write, provisioning)
