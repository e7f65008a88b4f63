"""The chapters of the opcode table: importing this module fills it."""

from __future__ import annotations

from types import ModuleType

ALL: tuple[ModuleType, ...] = ()
