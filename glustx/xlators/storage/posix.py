"""storage/posix: a brick on a POSIX file system, with stock GlusterFS's on-disk layout.

The bodies are in siblings by topic, each a mixin on the one before: posix_keys (xattr namespaces), posix_handle (gfid
to object), posix_entry (names on disk), posix_attr, posix_lookup, posix_names, posix_data, posix_readdir, posix_xattr,
posix_range, posix_unlink, posix_whole, posix_brick. posix_object holds what they share, posix_zero zeroes ranges,
posix_direct goes around the page cache.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from glustx.errors import FopError, OptionError
from glustx.fops import LOCKS, Fop, Reply
from glustx.options import OptionSet, Seconds, option
from glustx.xlator import Event, Xlator, handles
from glustx.xlators.storage.posix_brick import PosixBrick, parse_mode, prepare_brick
from glustx.xlators.storage.posix_reserve import parse_reserve
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
        reserve: str = option(
            "1", "Free space that only internal clients may use up: a percentage (1, 1%) or a size (10GB).", live=True
        )
        create_mask: str = option("0777", "Octal mode bits that a new file may have.", live=True)
        force_create_mode: str = option("0000", "Octal mode bits that a new file always has.", live=True)
        create_directory_mask: str = option("0777", "Octal mode bits that a new directory may have.", live=True)
        force_directory_mode: str = option("0000", "Octal mode bits that a new directory always has.", live=True)
        max_hardlinks: int = option(100, "Most names of one file; 0 for no limit but the kernel's.", low=0, live=True)
        brick_uid: int = option(-1, "Owner to give to the volume's root at start; -1 leaves it.", low=-1)
        brick_gid: int = option(-1, "Group to give to the volume's root at start; -1 leaves it.", low=-1)
        hostname: str = option("", "What pathinfo calls this host; the host's own name by default.", live=True)
        node_uuid_pathinfo: bool = option(False, "Use glusterd-uuid instead of the host name in pathinfo.", live=True)
        health_check_interval: Seconds = option(
            Seconds(30), "Seconds between writes to .glusterfs/health_check; 0 for none.", low=0, live=True
        )
        health_check_timeout: Seconds = option(
            Seconds(20),
            "Seconds after which a health check that has not ended has failed; 0 for none.",
            low=0,
            live=True,
        )
        janitor_sleep_duration: Seconds = option(
            Seconds(600),
            "Seconds between looks for removed trees that are still in .glusterfs/landfill.",
            low=1,
            live=True,
        )
        o_direct: bool = option(False, "Take every file as opened with O_DIRECT.", live=True)
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
            "disable-landfill-purge",
            "export-statfs-size",
            "linux-aio",
            "linux-io_uring",
            "mandate-attribute",
            "update-atime",
            "xattr-user-namespace-mode",
        )

    subvolume_count = (0, 0)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self._init_handles()
        self._init_lookup()
        self._init_data()
        self._init_readdir()

    def check_options(self, options: Any) -> None:
        """Refuse texts that are no mode, size or percentage."""
        parsers: dict[str, Callable[[str], object]] = {"reserve": parse_reserve}
        for kind in ("create_mask", "force_create_mode", "create_directory_mask", "force_directory_mode"):
            parsers[kind] = parse_mode
        for field, parse in parsers.items():
            try:
                parse(getattr(options, field))
            except ValueError as error:
                raise OptionError(self.name, field.replace("_", "-"), str(error)) from None

    def options_changed(self, old: Any) -> None:
        """Follow a live change."""
        self.follow_options()
        self.unwatch()
        self.watch()

    async def start(self) -> None:
        """Open the brick folder; GraphError when it is not there or is another volume's."""
        self.follow_options()
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
        """Return how the brick zeroes, its file system's block size, and whether copies can share blocks."""
        return {
            "zero_method": self.zero_method,
            "block_size": self.zero.block_size,
            "reflink": int(self.zero.reflink),
        }

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
