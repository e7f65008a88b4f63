"""storage/memory: a brick that lives in the process's memory, with the answers and errnos of storage/posix.

For tests of everything above storage and for volumes that need not outlive their process. Like a brick it checks no
permissions (system/posix-acl does) and takes no locks (features/locks does). No fop ever waits.
"""

from __future__ import annotations

import errno
import stat as _stat
import time
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.inode import PerFd
from glustx.options import OptionSet, Size, option
from glustx.values import (
    ROOT_GFID,
)
from glustx.xlator import Xlator
from glustx.xlators.storage.memory_attrs import Attrs
from glustx.xlators.storage.memory_data import Data
from glustx.xlators.storage.memory_names import Names
from glustx.xlators.storage.memory_nodes import STAMP_ALL, Node
from glustx.xlators.storage.memory_pages import PAGE
from glustx.xlators.storage.memory_store import (
    Held,
)


class Memory(Names, Data, Attrs, Xlator):
    """Keeps files, directories and xattrs in memory."""

    subvolume_count = (0, 0)

    class Options(OptionSet):
        """Options of storage/memory."""

        capacity: Size = option(Size(1 << 40), "Space of the brick; what does not fit gets ENOSPC.", low=PAGE)
        max_file_size: Size = option(
            Size((1 << 44) - PAGE), "Largest file, as a file system has one; beyond it EFBIG.", low=PAGE
        )

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        root = Node(ROOT_GFID, _stat.S_IFDIR | 0o755)
        root.touch(STAMP_ALL, time.time_ns())
        self._nodes: dict[bytes, Node] = {ROOT_GFID: root}
        self._used = 0
        self._slot: PerFd[Held] = PerFd()

    def statedump(self) -> dict[str, Any]:
        """Return how many inodes there are and how many bytes they take."""
        return {"inodes": len(self._nodes), "used": self._used * PAGE}

    def limits(self) -> dict[str, Any]:
        """Zeroing only marks pages, whatever the range."""
        return {"zero_method": "zero-range", "block_size": PAGE, "max_zerofill": int(self.options.max_file_size)}

    async def lease(self, req: fops.Lease) -> fops.LeaseReply:
        """Leases belong to features/leases; without it they are off."""
        raise FopError(errno.ENOSYS, f"{req.loc}: leases are off")
