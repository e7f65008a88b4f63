"""Small file systems that tests may fill up: ext4, ext3, xfs and btrfs in loop images, and a tmpfs of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glustx import linux
from tests.kit import loop_filesystem, need_peer

MIB = 1 << 20
# The smallest that mkfs makes without asking for special options, or less than a second to fill.
SIZES = {"ext4": 100 * MIB, "ext3": 100 * MIB, "xfs": 300 * MIB, "btrfs": 128 * MIB, "tmpfs": 64 * MIB}
KINDS = tuple(SIZES)


@dataclass
class Disk:
    """A mounted file system: its root, its type, and a ballast file that takes the space a test wants gone."""

    root: Path
    kind: str

    @property
    def block(self) -> int:
        return os.statvfs(self.root).f_frsize

    def free(self) -> int:
        """Free bytes once nothing is pending: delayed allocation, blocks freed by an uncommitted transaction."""
        fd = os.open(self.root, os.O_RDONLY)
        try:
            linux.syncfs(fd)
            if self.kind == "btrfs":
                linux.syncfs(fd)  # what the first commit freed is counted by the second
        finally:
            os.close(fd)
        vfs = os.statvfs(self.root)
        return vfs.f_bfree * vfs.f_frsize

    def usage(self, fd: int) -> tuple[int, int, int]:
        """Size and blocks of an open file and the free bytes, as they are when all is on disk."""
        free = self.free()
        status = os.fstat(fd)
        return status.st_size, status.st_blocks, free

    def leave(self, free: int) -> None:
        """Let the ballast take all space, then give `free` bytes of it back (rounded down to blocks)."""
        fd = os.open(self.root / "ballast", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            size = os.fstat(fd).st_size
            chunk = max(self.free(), self.block)
            while chunk >= self.block:
                try:
                    size += self._take(fd, size, chunk)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    os.ftruncate(fd, size)
                    chunk //= 2
            os.ftruncate(fd, max(0, size - free // self.block * self.block))
        finally:
            os.close(fd)
        self.free()

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
