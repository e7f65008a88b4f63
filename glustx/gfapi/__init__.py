"""Client API: volumes and files for programs, blocking (Volume, File) and for asyncio (AsyncVolume, AsyncFile).

from glustx.gfapi import Volume

with Volume("gluster://storage1/vm") as vol:
    with vol.create("/disk.img") as image:
        image.zerofill(0, 20 << 30)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glustx.errors import MountError
from glustx.gfapi.entries import AsyncDirEntry, DirEntry
from glustx.gfapi.results import StatResult, StatvfsResult
from glustx.gfapi.source import Source
from glustx.gfapi.sync import File, Volume
from glustx.gfapi.url import GlusterURL, parse_url

if TYPE_CHECKING:
    from glustx.gfapi.aio import AsyncFile, AsyncVolume

__all__ = [
    "AsyncDirEntry",
    "AsyncFile",
    "AsyncVolume",
    "DirEntry",
    "File",
    "GlusterURL",
    "MountError",
    "Source",
    "StatResult",
    "StatvfsResult",
    "Volume",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    # asyncio is imported by those who use it only.
    if name in ("AsyncFile", "AsyncVolume"):
        from glustx.gfapi import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
