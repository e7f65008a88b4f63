"""Bytes as people read them."""

from __future__ import annotations


def human(size: float) -> str:
    """Return bytes as people read them: 20 GiB, 1.5 MiB, 312 B."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    index = 0
    while abs(size) >= 1024 and index < len(units) - 1:
        size /= 1024
        index += 1
    return f"{size:.4g} {units[index]}"
