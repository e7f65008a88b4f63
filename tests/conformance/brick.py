"""What the conformance suite needs of a graph: one call, and short ways to make, look at and compare files."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.values import NULL_GFID, ROOT_GFID, Iatt, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid

O_RDONLY, O_WRONLY, O_RDWR = 0, 1, 2
O_CREAT, O_EXCL, O_TRUNC, O_APPEND = 0o100, 0o200, 0o1000, 0o2000


def errno_name(code: int) -> str:
    """The name of an errno, for messages of failing tests."""
    return errno.errorcode.get(code, str(code)) if code else "success"


class File:
    """A file of a test: its gfid, the loc it was made at, and an open fd."""

    def __init__(self, gfid: bytes, loc: Loc, fd: Fd) -> None:
        self.gfid = gfid
        self.loc = loc
        self.fd = fd


class Brick:
    """A graph under test.

    Args:
        call: sends a request and returns its reply, or raises its FopError.

    Attributes:
        gone: errnos of a fop on a gfid that was removed a moment ago.
        renames_to_itself: a RENAME of a name to that same name may be sent.
        far: what a range at 2^62 gets: an errno, or 0 where the file system takes it.
        graph: the graph, where it is in this process.
        counts_folders: a folder's link count is two more than the folders in it; on btrfs it is 1.
    """

    renames_to_itself = True

    gone: tuple[int, ...] = (errno.ESTALE,)

    far = errno.EFBIG

    counts_folders = True

    graph: Graph | None = None

    def __init__(self, call: Callable[[Fop], Any]) -> None:
        self.call = call

    def __call__(self, request: Fop) -> Any:
        return self.call(request)

    def outcome(self, request: Fop) -> tuple[int, Any]:
        """The errno of a request (0 when it succeeds) and its reply (None when it fails)."""
        try:
            return 0, self.call(request)
        except FopError as error:
            return error.errno, None

    def fails(self, request: Fop, *errnos: int) -> None:
        """The request must fail with one of `errnos`."""
        code, reply = self.outcome(request)
        assert code in errnos, (
            f"{request.name}: {errno_name(code)}, not {' or '.join(map(errno_name, errnos))}; {reply}"
        )

    # -- making ------------------------------------------------------------------------------------------------------

    @staticmethod
    def fresh(gfid: bytes | None = None) -> Xdata:
        """The xdata of a fop that makes an inode."""
        return Xdata({GFID_REQ: gfuuid(gfid or new_gfid())})

    def make(
        self, name: bytes, data: bytes = b"", parent: bytes = ROOT_GFID, flags: int = O_RDWR, mode: int = 0o644
    ) -> File:
        """Make a file that holds `data`, open with `flags`."""
        gfid = new_gfid()
        fd = Fd(NULL_GFID, O_RDWR)
        loc = Loc(pargfid=parent, name=name)
        self(fops.Create(loc=loc, fd=fd, flags=O_RDWR | O_CREAT | O_EXCL, mode=mode, xdata=self.fresh(gfid)))
        if data:
            assert self(fops.Write(fd=fd, offset=0, data=data)).count == len(data)
        if flags != O_RDWR:
            self(fops.Release(fd=fd))
            fd = self.open(gfid, flags)
        return File(gfid, Loc(gfid=gfid, pargfid=parent, name=name), fd)

    def mkdir(self, name: bytes, parent: bytes = ROOT_GFID, mode: int = 0o755) -> Loc:
        """Make a directory."""
        gfid = new_gfid()
        self(fops.Mkdir(loc=Loc(pargfid=parent, name=name), mode=mode, xdata=self.fresh(gfid)))
        return Loc(gfid=gfid, pargfid=parent, name=name)

    def open(self, gfid: bytes, flags: int = O_RDWR) -> Fd:
        """Open a file by its gfid."""
        fd = Fd(gfid, flags)
        self(fops.Open(loc=Loc(gfid=gfid), fd=fd, flags=flags))
        return fd

    def opendir(self, gfid: bytes) -> Fd:
        """Open a directory by its gfid."""
        fd = Fd(gfid, 0, directory=True)
        self(fops.Opendir(loc=Loc(gfid=gfid), fd=fd))
        return fd

    # -- looking -----------------------------------------------------------------------------------------------------

    def lookup(self, name: bytes, parent: bytes = ROOT_GFID, **xdata: object) -> Any:
        """Look a name up."""
        return self(fops.Lookup(loc=Loc(pargfid=parent, name=name)))

    def stat(self, gfid: bytes) -> Iatt:
        """Attributes by gfid."""
        stat: Iatt = self(fops.Stat(loc=Loc(gfid=gfid))).stat
        return stat

    def read(self, fd: Fd, offset: int = 0, size: int = 1 << 20) -> bytes:
        """Bytes of an open file."""
        return bytes(self(fops.Read(fd=fd, offset=offset, size=size)).data)

    def content(self, gfid: bytes) -> bytes:
        """All bytes of a file, through an fd of its own."""
        fd = self.open(gfid, O_RDONLY)
        try:
            parts = []
            while data := self.read(fd, sum(map(len, parts))):
                parts.append(data)
            return b"".join(parts)
        finally:
            self(fops.Release(fd=fd))

    def entries(self, gfid: bytes = ROOT_GFID, size: int = 4096, **fields: Any) -> list[fops.DirEntry]:
        """All entries of a directory, read in pieces of `size`, `.` and `..` among them."""
        fd = self.opendir(gfid)
        found: list[fops.DirEntry] = []
        offset = 0
        while True:
            reply = self(fops.Readdirp(fd=fd, offset=offset, size=size, **fields))
            found.extend(reply.entries)
            if not reply.entries:
                break
            offset = reply.entries[-1].off
            assert len(found) < 100_000, "the listing does not end"
        self(fops.Releasedir(fd=fd))
        return found

    def names(self, gfid: bytes = ROOT_GFID) -> list[bytes]:
        """The names in a directory, sorted."""
        return sorted(entry.name for entry in self.entries(gfid) if entry.name not in (b".", b".."))

    def folder_links(self, folders: int) -> int:
        """The link count of a folder with so many folders in it."""
        return 2 + folders if self.counts_folders else 1

    def statfs(self) -> Any:
        """Figures of the file system."""
        return self(fops.Statfs(loc=Loc(gfid=ROOT_GFID))).statfs
