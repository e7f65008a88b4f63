"""Small file systems that tests may fill up: ext4, ext3, xfs and btrfs in loop images, and a tmpfs of its own."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from glustx import linux
from tests.kit import loop_filesystem, need_peer

MIB = 1 << 20
# The smallest that mkfs makes without asking for special options, or less than a second to fill.
SIZES = {"ext4": 100 * MIB, "ext3": 100 * MIB, "xfs": 300 * MIB, "btrfs": 128 * MIB, "tmpfs": 64 * MIB}
KINDS = tuple(SIZES)
EXTENT = MIB // 4
BTRFS_IOC_FS_INFO = 0x8400941F


class Usage(NamedTuple):
    """Bytes that a file uses, and those that nobody does."""

    size: int
    blocks: int  # of all its blocks
    data: int  # of those that its extents map; where a file system does not tell, of all
    free: int


@dataclass
class Disk:
    """A mounted file system: its root, its type, and a ballast file that takes the space a test wants gone."""

    root: Path
    kind: str
    floor: int | None = None  # what `free` says when nothing more can be had

    @property
    def block(self) -> int:
        return os.statvfs(self.root).f_frsize

    def free(self) -> int:
        """Free bytes once nothing is pending: delayed allocation, blocks freed by an uncommitted transaction.

        On btrfs the free bytes for data, by its own count: statvfs mixes them with its trees, which grow by themselves.
        """
        fd = os.open(self.root, os.O_RDONLY)
        try:
            linux.syncfs(fd)
            if self.kind != "btrfs":
                vfs = os.fstatvfs(fd)
                return vfs.f_bfree * vfs.f_frsize
            linux.syncfs(fd)  # what the first commit freed is counted by the second
            info = bytearray(1024)
            fcntl.ioctl(fd, BTRFS_IOC_FS_INFO, info)
            used = Path(f"/sys/fs/btrfs/{uuid.UUID(bytes=bytes(info[16:32]))}/allocation/data/bytes_used")
            return SIZES[self.kind] - int(used.read_text())
        finally:
            os.close(fd)

    def usage(self, fd: int) -> Usage:
        """What an open file uses, as it is when all is on disk."""
        free = self.free()
        status = os.fstat(fd)
        data = status.st_blocks * 512
        if self.kind in ("ext3", "ext4", "xfs"):
            data = sum(extent.length for extent in linux.fiemap(fd, 0, 1 << 62))
        return Usage(status.st_size, status.st_blocks * 512, data, free)

    def same_usage(self, before: Usage, after: Usage, *, copied: bool = False) -> bool:
        """Whether what a file uses has stayed the same, but for what the file system keeps for itself.

        The size, the blocks of its data, and that every byte the file has more or less is one that the disk has less or
        more: these never differ. What may differ is ext4's tree of extents: it may have one leaf more, because a range
        that is given back again can leave one extent in two, and any number less, because what was given back may let
        those on either side become one. btrfs rewrites the last block of a file before it looks for space past it, and
        the extent that the block was in stays whole. copied: data was overwritten on btrfs, which keeps the old extents
        of the parts that were not.
        """
        if self.kind == "btrfs":
            lost = before.free - after.free
            return after[:3] == before[:3] and (copied or lost in (0, self.block))
        grown = after.blocks - before.blocks
        most = self.block if self.kind == "ext4" else 0
        least = before.data - before.blocks if self.kind == "ext4" else 0
        same = (after.size, after.data, after.free) == (before.size, before.data, before.free - grown)
        return same and least <= grown <= most

    def leave(self, free: int) -> None:
        """Let the ballast grow or shrink until about `free` bytes can still be had."""
        fd = os.open(self.root / "ballast", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if self.floor is None:
                self._grow(fd, self.free())
                self.floor = self.free()
            excess = self.free() - self.floor - free
            if excess > 0:
                self._grow(fd, excess)
            else:
                # btrfs gives back only whole extents.
                step = EXTENT if self.kind == "btrfs" else self.block
                os.ftruncate(fd, max(0, os.fstat(fd).st_size - -excess // step * step))
        finally:
            os.close(fd)
        self.free()

    def _grow(self, fd: int, size: int) -> None:
        """Let the ballast take `size` bytes, or what is there of them."""
        end = os.fstat(fd).st_size
        chunk = EXTENT if self.kind == "btrfs" else size // self.block * self.block
        target = end + size
        while chunk >= self.block and end < target:
            chunk = min(chunk, target - end)
            try:
                end += self._take(fd, end, chunk)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                os.ftruncate(fd, end)
                chunk //= 2

    def _take(self, fd: int, size: int, chunk: int) -> int:
        if self.kind == "ext3":
            return os.pwrite(fd, b"\xff" * chunk, size)
        linux.fallocate(fd, 0, size, chunk)
        return chunk


@contextlib.contextmanager
def small_disk(kind: str, work: Path) -> Iterator[Disk]:
    """A new file system of `kind` below `work`, unmounted and gone at the end; skips where that needs more rights."""
    if kind != "tmpfs":
        with loop_filesystem(work, kind, SIZES[kind]) as root:
            yield Disk(root, kind)
        return
    need_peer("root")
    root = work / "tmpfs.root"
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZES[kind]}", "glustx-test", root], check=True)
    try:
        yield Disk(root, kind)
    finally:
        subprocess.run(["umount", root], check=True)
        root.rmdir()
