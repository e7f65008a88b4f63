"""Directories of storage/posix: OPENDIR, READDIR, READDIRP and what belongs to them.

The kernel's own cookies (d_off of getdents64) go to the client, so a listing continues after a reconnect, on another fd
or after a restart. Python's scandir hides them, hence the system call by ctypes here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from functools import cache
from typing import Any

from glustx import fops
from glustx.fops import DirEntry, Done, ReaddirReply
from glustx.values import ROOT_GFID
from glustx.xdata import EMPTY
from glustx.xlators.storage.posix_data import PosixData, _sync
from glustx.xlators.storage.posix_lookup import Plan
from glustx.xlators.storage.posix_object import (
    Dir,
    OpenFile,
)

_SYS_GETDENTS64 = {
    "x86_64": 217,
    "aarch64": 61,
    "riscv64": 61,
    "loongarch64": 61,
    "ppc64": 202,
    "ppc64le": 202,
    "s390x": 220,
}
_HEAD = struct.Struct("=QqHB")
_BUFFER = 64 << 10
_DT_DIR = 4
# Bytes on the wire besides the name: 4 mark, 8 ino, 8 off, 4 length, 4 type, 4 name length, padding.
_PLAIN = 34
_WITH_STAT = _PLAIN + 148 + 12
_REPLY_MAX = 1 << 20


@cache
def _syscall() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    return libc.syscall


def getdents(fd: int, buffer: Any, size: int) -> list[tuple[int, int, int, bytes]]:
    """Return the next entries of an open directory as (ino, off, type, name); an empty list at the end.

    Raises OSError as getdents64(2).
    """
    number = _SYS_GETDENTS64.get(platform.machine()) if sys.maxsize > 2**32 else None
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    got = _syscall()(number, fd, buffer, size)
    if got < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    raw = ctypes.string_at(buffer, got)
    entries = []
    at = 0
    unpack = _HEAD.unpack_from
    while at < got:
        ino, off, length, kind = unpack(raw, at)
        entries.append((ino, off, kind, raw[at + 19 : raw.index(b"\0", at + 19)]))
        at += length
    return entries


class Listing:
    """Where a reader of a directory is: entries that were read from the kernel and not yet sent."""

    __slots__ = ("ended", "entries", "next", "offset")

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int, bytes]] = []
        self.next = 0
        self.offset = 0
        self.ended = False


class PosixReaddir(PosixData):
    """The fops on open directories."""

    def _init_readdir(self) -> None:
        self._dents = ctypes.create_string_buffer(_BUFFER)

    async def opendir(self, req: fops.Opendir) -> Done:
        """OPENDIR; ENOTDIR for anything else."""
        try:
            found = self.dir(req.loc.gfid)
            if not os.fstat(found.fd).st_nlink:
                self.forget(found.obj)
                raise OSError(errno.ESTALE, "the directory is gone")
            number = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=found.fd)
        except OSError as error:
            raise self.failed(req, error) from error
        f = self.held(number, found.obj)
        f.listing = Listing()
        self.bind(req.fd, f)
        return Done()

    async def releasedir(self, req: fops.Releasedir) -> Done:
        """RELEASEDIR."""
        f = self._fds.pop(req.fd)
        if f is not None and f.inode is not None:
            f.obj.fds -= 1
            f.obj.plan = None
            self.graph.inodes.drop(f.inode)
        return Done()

    async def fsyncdir(self, req: fops.Fsyncdir) -> Done:
        """FSYNCDIR, on a worker."""
        try:
            await self.work(_sync, self._directory(req.fd), bool(req.datasync))
        except OSError as error:
            raise self.failed(req, error) from error
        return Done()

    async def readdir(self, req: fops.Readdir) -> ReaddirReply:
        """READDIR: entries behind cookie `offset` whose encoding fits into `size`, at least one."""
        try:
            f = self._directory(req.fd)
            listing = self._seek(f, req.offset)
            room = min(req.size, _REPLY_MAX)
            found: list[DirEntry] = []
            at_root = f.obj.gfid == ROOT_GFID
            while True:
                entry = self._peek(f, listing)
                if entry is None:
                    break
                ino, off, kind, name = entry
                if not (at_root and name == b".glusterfs"):
                    room -= _PLAIN + len(name)
                    if room < 0 and found:
                        break
                    found.append(DirEntry(ino=ino, off=off, type=kind, name=name))
                listing.next += 1
                listing.offset = off
        except OSError as error:
            raise self.failed(req, error) from error
        return ReaddirReply(entries=tuple(found), eof=listing.ended and listing.next >= len(listing.entries))

    async def readdirp(self, req: fops.Readdirp) -> ReaddirReply:
        """READDIRP: READDIR with attributes and the xattrs that xdata asks for.

        An entry that has no gfid, or is gone by now, comes without attributes or not at all.
        """
        plan: Plan | None = req.xdata.template.plan
        if plan is None:
            plan = req.xdata.template.plan = Plan(req.xdata)
        try:
            f = self._directory(req.fd)
            parent = self._dirs.get(f.obj.gfid) or self.dir(f.obj.gfid)
            listing = self._seek(f, req.offset)
            room = min(req.size, _REPLY_MAX)
            found: list[DirEntry] = []
            at_root = f.obj.gfid == ROOT_GFID
            inos, fd = self._inos, parent.fd
            idle = plan.idle
            lstat = os.stat
            while True:
                entry = self._peek(f, listing)
                if entry is None:
                    break
                _, off, kind, name = entry
                if name[0] == 46 and (name in (b".", b"..") or (at_root and name == b".glusterfs")):
                    if name != b".glusterfs":
                        room -= _WITH_STAT + 2
                        if room < 0 and found:
                            break
                        found.append(self._dot(parent, off, name))
                    listing.next += 1
                    listing.offset = off
                    continue
                try:
                    st = lstat(name, dir_fd=fd, follow_symlinks=False)
                    obj = inos.get(st.st_ino)
                    if obj is None or obj.ctime != st.st_ctime_ns:
                        obj, st = self.named(parent, name, st)
                        inos = self._inos
                    if idle:
                        xattrs, weight = EMPTY, 0
                    else:
                        if obj.plan is plan and obj.reply_fds == obj.fds:
                            xattrs = obj.reply
                        else:
                            at = self.at_name(parent, name, st) if obj.is_dir else obj.xpath
                            xattrs = self.fill(obj, st, plan, at)
                        weight = obj.weight
                    stat_ = obj.iatt
                    if stat_ is None or stat_.blocks != st.st_blocks or stat_.size != st.st_size:
                        stat_ = self.iatt(obj, st)
                    made = DirEntry(obj.ino, off, kind, name, stat_, xattrs, obj.gfid)
                except FileNotFoundError:
                    listing.next += 1
                    listing.offset = off
                    continue
                except OSError:
                    made, weight = DirEntry(entry[0], off, kind, name), 0
                room -= _WITH_STAT + len(name) + weight
                if room < 0 and found:
                    break
                found.append(made)
                listing.next += 1
                listing.offset = off
        except OSError as error:
            raise self.failed(req, error) from error
        return ReaddirReply(entries=tuple(found), eof=listing.ended and listing.next >= len(listing.entries))

    def _directory(self, fd: Any) -> OpenFile:
        f = self.opened(fd)
        if f.listing is None:
            raise OSError(errno.ENOTDIR, "the fd is not a directory's")
        return f

    def _dot(self, parent: Dir, off: int, name: bytes) -> DirEntry:
        """The entry of a directory itself, or of its parent (the root's is the root: what is above is no part)."""
        obj = parent.obj
        try:
            if name == b".." and obj.gfid != ROOT_GFID:
                obj, st = self.find(self.dir_place(obj.gfid)[0])
            else:
                st = os.fstat(parent.fd)
            stat_ = self.seen(obj, st, self.dir(obj.gfid).fd)
        except OSError:
            return DirEntry(obj.ino, off, _DT_DIR, name)
        return DirEntry(obj.ino, off, _DT_DIR, name, stat_, EMPTY, obj.gfid)

    def _seek(self, f: OpenFile, offset: int) -> Listing:
        """Return the listing, set to go on behind cookie `offset`."""
        listing: Listing = f.listing
        if offset != listing.offset or not offset:
            if offset >= 1 << 63:
                raise OSError(errno.EINVAL, "not a cookie")
            os.lseek(f.fd, offset, os.SEEK_SET)
            listing.entries = []
            listing.next = 0
            listing.offset = offset
            listing.ended = False
        return listing

    def _peek(self, f: OpenFile, listing: Listing) -> tuple[int, int, int, bytes] | None:
        """Return the entry that comes next without passing over it; None at the end."""
        if listing.next >= len(listing.entries):
            if listing.ended:
                return None
            listing.entries = getdents(f.fd, self._dents, _BUFFER)
            listing.next = 0
            if not listing.entries:
                listing.ended = True
                return None
        return listing.entries[listing.next]
