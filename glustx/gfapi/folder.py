"""An open directory as coroutines: entries batch by batch, with their attributes."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import NamedTuple

from glustx.errors import FopError
from glustx.fops import DirEntry, Readdirp, Releasedir
from glustx.gfapi.namei import Walker
from glustx.inode import Fd
from glustx.values import Iatt

MISSING = (errno.ENOENT, errno.ENOTDIR)
DOTS = (b".", b"..")
_READDIR_SIZE = 128 << 10


class Found(NamedTuple):
    """One entry of a directory, with what READDIRP brought along."""

    name: bytes
    stat: Iatt


class DirCore:
    """An open directory.

    Args:
        volume: whose call opened it.
        fd: open.
        path: from the root, without symbolic links.
    """

    _open = False

    def __init__(self, volume: Walker, fd: Fd, path: bytes) -> None:
        self.volume = volume
        self.session = volume.session
        self.fd = fd
        self.path = path
        self._offset = 0
        self._eof = False
        self._inode = self.session.hold(fd)
        self._open = True

    async def batch(self) -> list[Found]:
        """Return the next entries, without `.` and `..`; an empty list at the end."""
        while entries := await self.raw():
            found = [Found(entry.name, stat) for entry, stat in entries if entry.name not in DOTS]
            if found:
                return found
        return []

    async def raw(self) -> list[tuple[DirEntry, Iatt]]:
        """Return the next entries as the brick gives them, with their attributes; an empty list at the end."""
        found: list[tuple[DirEntry, Iatt]] = []
        while not found and not self._eof:
            request = Readdirp(fd=self.fd, offset=self._offset, size=_READDIR_SIZE, caller=self.volume.caller)
            reply = await self.session.top(request)
            entries: Sequence[DirEntry] = reply.entries
            if not entries:
                self._eof = True
                break
            if entries[-1].off == self._offset:
                raise FopError(errno.EIO, f"the brick lists {self.path!r} over and over")
            self._offset = entries[-1].off
            self._eof = reply.eof
            for entry in entries:
                if not entry.name or b"/" in entry.name or b"\0" in entry.name:
                    # Whoever copies a tree joins names to paths: this one would lead out of it.
                    raise FopError(errno.EIO, f"the brick lists {entry.name!r}, which can be no name")
                stat = entry.stat
                if stat is None or not stat.mode:
                    # The brick could not say: it was removed meanwhile, or must be asked.
                    try:
                        stat = (await self.volume.find(self.path.rstrip(b"/") + b"/" + entry.name, False))[1]
                    except FopError as error:
                        if error.errno in MISSING:
                            continue
                        raise
                found.append((entry, stat))
        return found

    def give_back(self) -> None:
        """Release the fd; nobody waits for the answer. A second call does nothing."""
        if self._open:
            self._open = False
            if self.session.mounted:
                self.session.aside(self._release())

    def __del__(self) -> None:
        # Iterators that were left half way, and outcomes of calls that were interrupted as they ended.
        if self._open and self.session.mounted:
            try:
                self.session.reactor.post(self.give_back)
            except RuntimeError:
                pass  # the volume or its loop is closed, and its fds with it

    async def _release(self) -> None:
        try:
            await self.session.top(Releasedir(fd=self.fd, caller=self.volume.caller))
        finally:
            self.session.graph.inodes.drop(self._inode)
