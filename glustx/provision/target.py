"""What provisioning works on: a file of a volume, reached over the network or through a brick in this process."""

from __future__ import annotations

import os
from typing import Any, Protocol

import msgspec

from glustx.graph import Graph
from glustx.xlators.protocol.client import Client

NO_SPACE_ERRNOS = ("ENOSPC", "EDQUOT")


class Stat(Protocol):
    """Attributes of a file, as `os.stat_result` names them."""

    @property
    def st_size(self) -> int:
        """Bytes."""

    @property
    def st_blocks(self) -> int:
        """Units of 512 bytes."""

    @property
    def st_mode(self) -> int:
        """Type and permissions."""

    @property
    def st_uid(self) -> int:
        """Owner."""

    @property
    def st_gid(self) -> int:
        """Group."""

    @property
    def gfid(self) -> str:
        """Gfid as text."""


class Space(Protocol):
    """Figures of a volume."""

    @property
    def free(self) -> int:
        """Bytes that may still be filled."""

    @property
    def total(self) -> int:
        """Bytes of the whole volume."""


class File(Protocol):
    """The part of gfapi's blocking file that provisioning uses; safe for several threads at a time."""

    @property
    def gfid(self) -> str:
        """Gfid as text, also of a closed file."""

    def pread(self, size: int, offset: int) -> bytes:
        """Read."""

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write."""

    def zerofill(self, offset: int, length: int) -> None:
        """Zero a range on the brick."""

    def discard(self, offset: int, length: int) -> None:
        """Punch a hole."""

    def allocate(self, offset: int, length: int, *, keep_size: bool = False) -> None:
        """Allocate a range."""

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""

    def seek_data(self, offset: int) -> int:
        """Find data."""

    def seek_hole(self, offset: int) -> int:
        """Find a hole."""

    def stat(self) -> Stat:
        """Attributes."""

    def chown(self, uid: int, gid: int) -> None:
        """Set owner and group."""

    def chmod(self, mode: int) -> None:
        """Set the permissions."""

    def fsync(self, *, data_only: bool = False) -> None:
        """Make durable."""

    def close(self) -> None:
        """Close."""


class Volume(Protocol):
    """The part of gfapi's blocking volume that provisioning uses."""

    @property
    def graph(self) -> Graph:
        """The graph that serves it."""

    def open(self, path: str, flags: int | str = ..., mode: int = ...) -> Any:
        """Open a file."""

    def using(self, *, umask: int | None = ...) -> Volume:
        """The same with another umask."""

    def lexists(self, path: str) -> bool:
        """Tell whether a path names something."""

    def getxattr(self, path: str, key: bytes) -> bytes:
        """Return an extended attribute."""

    def statvfs(self, path: str = "/") -> Space:
        """Figures of the volume."""

    def link(self, source: str | File, link_name: str) -> None:
        """Give a file another name."""

    def rename(self, src: str, dst: str) -> None:
        """Move a name."""

    def unlink(self, path: str) -> None:
        """Remove a name."""


class Wire(msgspec.Struct, frozen=True):
    """RPCs and bytes that all connections to bricks have carried since their handshakes."""

    rpcs: int = 0
    sent: int = 0
    received: int = 0

    def since(self, earlier: Wire) -> Wire:
        """Return what came after `earlier`."""
        return Wire(self.rpcs - earlier.rpcs, self.sent - earlier.sent, self.received - earlier.received)


def wire(volume: Volume) -> Wire:
    """Return the counters of a volume's connections; all zero for a brick in this process."""
    dumps = [x.statedump() for x in volume.graph.xlators.values() if isinstance(x, Client)]
    return Wire(
        sum(dump["rpcs"] for dump in dumps),
        sum(dump["bytes_sent"] for dump in dumps),
        sum(dump["bytes_received"] for dump in dumps),
    )


def parent_of(path: str) -> str:
    """Return the directory of a path in a volume."""
    return os.path.dirname(path.rstrip("/")) or "/"
