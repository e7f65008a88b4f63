"""storage/posix: a brick on a POSIX file system, with stock GlusterFS's on-disk layout.

The bodies are in siblings by topic: posix_handle (gfid to object), posix_attr, posix_lookup, posix_names,
posix_data, posix_readdir, posix_xattr, posix_range, posix_unlink, posix_whole, posix_brick; posix_zero zeroes ranges.
"""

from __future__ import annotations

import errno
from typing import Any

from glustx.errors import FopError
from glustx.fops import LOCKS, Fop, Reply
from glustx.options import OptionSet, Percent, Seconds, option
from glustx.xlator import Event, Xlator, handles
from glustx.xlators.storage.posix_brick import PosixBrick, prepare_brick
from glustx.xlators.storage.posix_zero import METHODS

__all__ = ["Posix", "prepare_brick"]


class Posix(PosixBrick, Xlator):
    """Files, directories and xattrs of one brick folder."""

    class Options(OptionSet):
        """Stock's keys where stock has them."""

        directory: str = option(..., "Absolute path of the brick folder.")
        volume_id: str = option("", "UUID of the volume that the folder must carry (trusted.glusterfs.volume-id).")
        ctime: bool = option(True, "Keep times that all bricks agree on in trusted.glusterfs.mdata.")
        gfid2path: bool = option(True, "Record a file's names in trusted.gfid2path.* xattrs.")
        gfid2path_separator: str = option(":", "What stands between paths in the answer to glusterfs.gfidtopath.")
        fips_mode_rchecksum: bool = option(False, "RCHECKSUM with SHA-256 instead of MD5.", live=True)
        shared_brick_count: int = option(1, "Bricks on this file system; STATFS divides by it.", low=0, live=True)
        update_link_count_parent: bool = option(False, "Keep trusted.pgfid.<parent> link counts (quota needs them).")
        glusterd_uuid: str = option("", "UUID of the node, for trusted.glusterfs.node-uuid.", live=True)
        reserve: Percent = option(
            Percent(1.0), "Share of the file system that only internal clients may use up.", low=0, high=100, live=True
        )
        health_check_interval: Seconds = option(
            Seconds(30), "Seconds between writes to .glusterfs/health_check; 0 for none.", low=0, live=True
        )
        xattr_namespace: str = option(
            "trusted",
            "Where trusted.* xattrs are kept: there, as stock does and root can, or mapped to user.glustx.*. Chosen "
            "when the folder becomes a brick.",
            choices=("trusted", "user"),
        )
        zero_method: str = option(
            "auto", "How ZEROFILL zeroes; auto tries what the file system has.", choices=("auto", *METHODS)
        )

        accepted = (
            "background-unlink",
            "batch-fsync-*",
            "brick-gid",
            "brick-uid",
            "health-check-timeout",
            "janitor-sleep-duration",
            "linux-*",
            "max-hardlinks",
            "node-uuid-pathinfo",
            "o-direct",
            "reserve-check-interval",
            "time-logging",
            "update-atime",
        )

    subvolume_count = (0, 0)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self._init_handles()
        self._init_lookup()
        self._init_data()
        self._init_readdir()

    async def start(self) -> None:
        """Open the brick folder; GraphError when it is not there or is another volume's."""
        self.open_brick()
        self.watch()

    async def stop(self) -> None:
        """Close what is open but for clients' files, which close with their fds."""
        self.unwatch()
        self.close_brick()

    def tell_health(self, up: bool) -> None:
        """Tell the translators above whether the brick can be used."""
        self.tell_parents(Event.CHILD_UP if up else Event.CHILD_DOWN)

    @handles(LOCKS)
    async def without_locks(self, req: Fop) -> Reply:
        """Refuse locks and leases: features/locks above answers them."""
        raise FopError(errno.ENOSYS, f"{req.name} needs features/locks above {self.name}")

    def limits(self) -> dict[str, Any]:
        """Return how the brick zeroes, and its file system's block size."""
        return {"zero_method": self.zero_method, "block_size": self.zero.block_size}

    def statedump(self) -> dict[str, Any]:
        """Return what is open and remembered."""
        return {
            "brick": self.brick,
            "fstype": self.zero.fstype,
            "zero_method": self.zero_method,
            "health": self.health,
            "low_on_space": self.low_on_space,
            "cached_directories": len(self._dirs) + len(self._old_dirs),
            "cached_objects": len(self._inos) + len(self._old_inos),
            "anonymous_fds": len(self._anonymous),
            "reads_on_workers": self._reads_out,
        }
