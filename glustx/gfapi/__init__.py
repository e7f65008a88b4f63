"""Client API: volumes and files for programs, blocking (Volume, File) and for asyncio (AsyncVolume, AsyncFile).

from glustx.gfapi import Volume

with Volume("gluster://storage1/vm") as vol:
    with vol.create("/disk.img") as image:
        image.zerofill(0, 20 << 30)

Scripts for libgfapi-python run unchanged but for the import; docs/gfapi.md lists what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glustx.gfapi.entries import AsyncDir, AsyncDirEntry, Dir, DirEntry
from glustx.gfapi.exceptions import Error, LibgfapiException, MountError, VolumeNotMounted
from glustx.gfapi.results import Dirent, LockInfo, StatResult, StatvfsResult
from glustx.gfapi.source import Source
from glustx.gfapi.sync import File, Volume
from glustx.gfapi.url import GlusterURL, parse_url
from glustx.rpc.tls import Tls

if TYPE_CHECKING:
    from glustx.gfapi.aio import AsyncFile, AsyncVolume

__all__ = [
    "AsyncDir",
    "AsyncDirEntry",
    "AsyncFile",
    "AsyncVolume",
    "Dir",
    "DirEntry",
    "Dirent",
    "Error",
    "File",
    "GlusterURL",
    "LibgfapiException",
    "LockInfo",
    "MountError",
    "Source",
    "StatResult",
    "StatvfsResult",
    "Tls",
    "Volume",
    "VolumeNotMounted",
    "parse_url",
]


def __getattr__(name: str) -> Any:
    # asyncio is imported by those who use it only.
    if name in ("AsyncFile", "AsyncVolume"):
        from glustx.gfapi import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
