"""One request of every fop of a program, in an order that makes sense on a fresh brick, and what became of each."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import Fd
from glustx.values import (
    ENTRYLK_LOCK_NB,
    ENTRYLK_UNLOCK,
    ENTRYLK_WRLCK,
    F_SETLK,
    F_UNLCK,
    F_WRLCK,
    NULL_GFID,
    ROOT_GFID,
    SET_MODE,
    Caller,
    Flock,
    Iatt,
    LeaseInfo,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, Typed, Xdata, gfuuid

CALLER = Caller(pid=4711, lk_owner=b"one-own8")
DATA = bytes(range(256)) * 40

# What a stock brick must not be sent: it dies of these (PUT it has no procedure for).
NOT_FOR_STOCK = ("icreate", "namelink", "setactivelk", "put")


def _req(gfid: bytes) -> Xdata:
    return Xdata({GFID_REQ: gfuuid(gfid)})


class Script:
    """Sends a request of every fop and keeps the outcomes: "ok", the name of an errno, or "by-hand" for what was done
    and a client does not send by itself.

    Args:
        call: sends a request and returns its reply, or raises its FopError.
        by_hand: the same for what protocol/client does not send by itself; None leaves that out.
    """

    def __init__(self, call: Callable[[Fop], Any], by_hand: Callable[[Fop], Any] | None) -> None:
        self.call = call
        self.by_hand = by_hand
        self.outcomes: dict[str, str] = {}

    def do(self, request: Fop, send: Callable[[Fop], Any] | None = None) -> Any:
        """Send one request; its fop's outcome is that of the first one."""
        try:
            reply = (send or self.call)(request)
        except FopError as error:
            self.outcomes.setdefault(request.name, errno.errorcode.get(error.errno, str(error.errno)))
            return None
        self.outcomes.setdefault(request.name, "by-hand" if send else "ok")
        return reply

    def run(self) -> dict[str, str]:
        """Return the outcomes by fop."""
        root, d, f = ROOT_GFID, new_gfid(), new_gfid()
        do = self.do
        do(fops.Lookup(Loc(gfid=root)))
        do(fops.Statfs(Loc(gfid=root)))
        do(fops.Mkdir(Loc(pargfid=root, name=b"d"), 0o755, xdata=_req(d)))
        fd = Fd(NULL_GFID, 2)
        at = Loc(pargfid=d, name=b"f")
        do(fops.Create(at, fd, 0o302, 0o644, xdata=_req(f)))
        here = Loc(gfid=f)
        self._data(fd, here)
        self._attributes(fd, here)
        self._locks(fd, here, Loc(gfid=d))
        self._names(d, here)
        do(fops.Release(fd))
        do(fops.Unlink(at))
        do(fops.Rmdir(Loc(pargfid=root, name=b"d")))
        if self.by_hand is not None:
            self._hand(self.by_hand)
        return self.outcomes

    def _data(self, fd: Fd, here: Loc) -> None:
        do = self.do
        do(fops.Write(fd, 0, DATA, 2, caller=CALLER))
        do(fops.Read(fd, 100, 5000))
        do(fops.Ftruncate(fd, 9000))
        do(fops.Truncate(here, 10_000))
        do(fops.Fallocate(fd, 0, 64 << 10, 1))
        do(fops.Zerofill(fd, 4096, 4096))
        do(fops.Discard(fd, 0, 4096))
        do(fops.Seek(fd, 0, 0))
        do(fops.Rchecksum(fd, 0, 8192))
        do(fops.CopyFileRange(fd, fd, 8192, 0, 1000))
        do(fops.Fsync(fd, 1))
        do(fops.Flush(fd, caller=CALLER))
        other = Fd(here.gfid, 0)
        do(fops.Open(here, other, 0))
        do(fops.Release(other))

    def _attributes(self, fd: Fd, here: Loc) -> None:
        do = self.do
        do(fops.Stat(here))
        do(fops.Fstat(fd))
        do(fops.Access(here, 4))
        do(fops.Setattr(here, Iatt(mode=0o100600), SET_MODE))
        do(fops.Fsetattr(fd, Iatt(mode=0o100640), SET_MODE))
        do(fops.Setxattr(here, Xdata({b"user.a": b"1"})))
        do(fops.Getxattr(here, b"user.a"))
        do(fops.Removexattr(here, b"user.a"))
        do(fops.Fsetxattr(fd, Xdata({b"user.b": b"2"})))
        do(fops.Fgetxattr(fd, b"user.b"))
        do(fops.Fremovexattr(fd, b"user.b"))
        array = Xdata({b"trusted.afr.dirty": bytes(11) + b"\1"})
        do(fops.Xattrop(here, 0, array))
        do(fops.Fxattrop(fd, 0, array))
        # To the translator that tells clients of changes: which xattrs this one wants to hear of.
        do(fops.Ipc(2, xdata=Xdata({b"security.ima": 0, b"security.capability": 0})))

    def _locks(self, fd: Fd, here: Loc, folder: Loc) -> None:
        do = self.do
        take = Flock(F_WRLCK, 0, 10, 20, CALLER.pid, CALLER.lk_owner)
        give = Flock(F_UNLCK, 0, 10, 20, CALLER.pid, CALLER.lk_owner)
        do(fops.Lk(fd, F_SETLK, F_WRLCK, take, caller=CALLER))
        do(fops.Getactivelk(here))
        do(fops.Lk(fd, F_SETLK, F_UNLCK, give, caller=CALLER))
        for kind, flock in ((F_WRLCK, take), (F_UNLCK, give)):
            do(fops.Inodelk(here, b"domain", F_SETLK, kind, flock, caller=CALLER))
            do(fops.Finodelk(fd, b"domain", F_SETLK, kind, flock, caller=CALLER))
        dirfd = Fd(folder.gfid, 0, directory=True)
        do(fops.Opendir(folder, dirfd))
        for cmd in (ENTRYLK_LOCK_NB, ENTRYLK_UNLOCK):
            do(fops.Entrylk(folder, b"domain", cmd, ENTRYLK_WRLCK, b"name", caller=CALLER))
            do(fops.Fentrylk(dirfd, b"domain", cmd, ENTRYLK_WRLCK, b"name", caller=CALLER))
        do(fops.Lease(here, LeaseInfo(2, 1, b"lease-id-16bytes"), caller=CALLER))
        do(fops.Releasedir(dirfd))

    def _names(self, d: bytes, here: Loc) -> None:
        do = self.do
        do(fops.Mknod(Loc(pargfid=d, name=b"fifo"), 0o010644, xdata=_req(new_gfid())))
        link = new_gfid()
        do(fops.Symlink(Loc(pargfid=d, name=b"sym"), b"points/there", xdata=_req(link)))
        do(fops.Readlink(Loc(gfid=link), 4096))
        do(fops.Link(here, Loc(pargfid=d, name=b"second")))
        do(fops.Rename(Loc(pargfid=d, name=b"second"), Loc(pargfid=d, name=b"third")))
        dirfd = Fd(d, 0, directory=True)
        do(fops.Opendir(Loc(gfid=d), dirfd))
        do(fops.Readdir(dirfd, 0, 4096))
        do(fops.Readdirp(dirfd, 0, 4096))
        do(fops.Fsyncdir(dirfd))
        do(fops.Releasedir(dirfd))
        for name in (b"fifo", b"sym", b"third"):
            do(fops.Unlink(Loc(pargfid=d, name=name)))

    def _hand(self, send: Callable[[Fop], Any]) -> None:
        root, whole, made = ROOT_GFID, new_gfid(), new_gfid()
        xattrs = Xdata({b"user.x": Typed(6, b"y")})
        self.do(fops.Put(Loc(pargfid=root, name=b"put"), 0o644, 0, 0, 0, DATA, xattrs, xdata=_req(whole)), send)
        self.do(fops.Icreate(Loc(gfid=made), 0o100644), send)
        self.do(fops.Namelink(Loc(pargfid=root, name=b"named"), xdata=_req(made)), send)
        lock = fops.ActiveLock(Flock(F_WRLCK, 0, 0, 1, 1, b"other"), "another-client", 0)
        mknod = fops.Mknod(Loc(pargfid=root, name=b"locked"), 0o100644, xdata=_req(locked := new_gfid()))
        self.do(mknod, send)
        self.do(fops.Setactivelk(Loc(gfid=locked), (lock,)), send)
        for name in (b"put", b"named", b"locked"):
            self.do(fops.Unlink(Loc(pargfid=root, name=name)))
