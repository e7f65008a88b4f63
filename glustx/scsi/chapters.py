"""The chapters of the opcode table: importing this module fills it."""

from __future__ import annotations

from types import ModuleType

from glustx.scsi import (
    atomic,
    condition,
    copy_results,
    diagnostics,
    extended_copy,
    inquiry,
    logs,
    modes,
    naming,
    odx,
    pr_commands,
    provisioning,
    read_write,
    report,
    reservations,
    sanitize,
    third_party_page,
    verify,
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
    verify,
    atomic,
    provisioning,
    sanitize,
    reservations,
    pr_commands,
    extended_copy,
    copy_results,
    odx,
    third_party_page,
)
