"""Conformance of fops that lock, between owners of one client; for graphs with features/locks below the wire."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from glustx import fops
from glustx.fops import Entrylk, Fentrylk, Finodelk, Inodelk, Lk
from glustx.values import (
    ENTRYLK_LOCK,
    ENTRYLK_LOCK_NB,
    ENTRYLK_RDLCK,
    ENTRYLK_UNLOCK,
    ENTRYLK_WRLCK,
    F_GETLK,
    F_RDLCK,
    F_SETLK,
    F_SETLKW,
    F_UNLCK,
    F_WRLCK,
    ROOT_GFID,
    Caller,
    Flock,
    Loc,
    new_gfid,
)
from tests.conformance.brick import Brick

ANN, BOB = Caller(pid=8, lk_owner=b"ann-----"), Caller(pid=9, lk_owner=b"bob-----")


def flock(who: Caller, kind: int, start: int = 0, length: int = 0) -> Flock:
    return Flock(kind, 0, start, length, who.pid, who.lk_owner)


class LocksSuite:
    """Fops that lock."""

    def test_posix_locks(self, brick: Brick) -> None:
        file = brick.make(b"f", b"abc")

        def lk(who: Caller, kind: int, start: int, length: int, cmd: int = F_SETLK) -> Lk:
            return Lk(fd=file.fd, cmd=cmd, type=kind, flock=flock(who, kind, start, length), caller=who)

        taken = brick(lk(ANN, F_WRLCK, 0, 10)).flock
        assert (taken.type, taken.start, taken.len) == (F_WRLCK, 0, 10)
        brick.fails(lk(BOB, F_WRLCK, 9, 1), errno.EAGAIN)
        brick.fails(lk(BOB, F_RDLCK, 0, 0), errno.EAGAIN)
        brick(lk(BOB, F_WRLCK, 10, 10, F_SETLKW))
        found = brick(lk(BOB, F_WRLCK, 0, 20, F_GETLK)).flock
        assert (found.type, found.start, found.len, found.lk_owner) == (F_WRLCK, 0, 10, ANN.lk_owner)
        assert brick(lk(BOB, F_WRLCK, 20, 5, F_GETLK)).flock.type == F_UNLCK
        brick(lk(ANN, F_UNLCK, 0, 5))  # the middle is cut out of a lock, and what is left still holds
        brick(lk(BOB, F_RDLCK, 0, 5))
        brick.fails(lk(BOB, F_RDLCK, 5, 1), errno.EAGAIN)
        brick(lk(ANN, F_RDLCK, 0, 5))  # shared
        brick(fops.Flush(fd=file.fd, caller=ANN))
        brick(lk(BOB, F_WRLCK, 0, 0))

    def test_a_release_gives_posix_locks_back(self, brick: Brick) -> None:
        file = brick.make(b"f")
        other = brick.open(file.gfid)
        brick(Lk(fd=other, cmd=F_SETLK, type=F_WRLCK, flock=flock(ANN, F_WRLCK), caller=ANN))
        mine = Lk(fd=file.fd, cmd=F_SETLK, type=F_WRLCK, flock=flock(BOB, F_WRLCK), caller=BOB)
        brick.fails(mine, errno.EAGAIN)
        brick(fops.Release(fd=other))
        brick(mine)

    @pytest.mark.parametrize("by", ["loc", "fd"])
    def test_inodelk(self, brick: Brick, by: str) -> None:
        file = brick.make(b"f")

        def lk(who: Caller, kind: int, start: int, length: int, domain: bytes = b"a") -> fops.Fop:
            rest: dict[str, Any] = {"domain": domain, "cmd": F_SETLK, "type": kind, "caller": who}
            rest["flock"] = flock(who, kind, start, length)
            return Inodelk(loc=file.loc, **rest) if by == "loc" else Finodelk(fd=file.fd, **rest)

        brick(lk(ANN, F_WRLCK, 0, 10))
        brick.fails(lk(BOB, F_WRLCK, 5, 10), errno.EAGAIN)
        brick(lk(BOB, F_WRLCK, 5, 10, b"b"))  # another domain
        brick(lk(BOB, F_RDLCK, 10, 10))
        brick(lk(ANN, F_RDLCK, 10, 10))
        brick(lk(ANN, F_UNLCK, 0, 10))
        brick(lk(BOB, F_WRLCK, 0, 10))
        for who, start, domain in ((BOB, 0, b"a"), (BOB, 10, b"a"), (ANN, 10, b"a"), (BOB, 5, b"b")):
            brick(lk(who, F_UNLCK, start, 10, domain))

    @pytest.mark.parametrize("by", ["loc", "fd"])
    def test_entrylk(self, brick: Brick, by: str) -> None:
        folder = brick.mkdir(b"d")
        fd = brick.opendir(folder.gfid)

        def lk(who: Caller, name: bytes, cmd: int = ENTRYLK_LOCK_NB, kind: int = ENTRYLK_WRLCK) -> fops.Fop:
            rest: dict[str, Any] = {"domain": b"a", "basename": name, "cmd": cmd, "type": kind, "caller": who}
            return Entrylk(loc=folder, **rest) if by == "loc" else Fentrylk(fd=fd, **rest)

        brick(lk(ANN, b"x", ENTRYLK_LOCK))
        brick.fails(lk(BOB, b"x"), errno.EAGAIN)
        brick.fails(lk(BOB, b""), errno.EAGAIN)  # all names
        brick(lk(BOB, b"y"))
        brick(lk(ANN, b"x", ENTRYLK_UNLOCK))
        brick(lk(BOB, b"x"))
        for name in (b"x", b"y"):
            brick(lk(BOB, name, ENTRYLK_UNLOCK))
        brick(lk(ANN, b""))
        brick.fails(lk(BOB, b"z"), errno.EAGAIN)
        brick(lk(ANN, b"", ENTRYLK_UNLOCK))
        brick(lk(ANN, b"x", kind=ENTRYLK_RDLCK))
        brick(lk(ANN, b"x", ENTRYLK_UNLOCK, ENTRYLK_RDLCK))

    def test_active_locks(self, brick: Brick) -> None:
        """Migration reads them; it may not set them over the wire, because a stock brick dies of that."""
        file = brick.make(b"f")
        brick(Lk(fd=file.fd, cmd=F_SETLK, type=F_WRLCK, flock=flock(ANN, F_WRLCK, 5, 10), caller=ANN))
        found = brick(fops.Getactivelk(loc=file.loc)).locks
        assert [(lock.flock.start, lock.flock.len, lock.flock.lk_owner) for lock in found] == [(5, 10, ANN.lk_owner)]
        brick.fails(fops.Setactivelk(loc=file.loc, locks=found), errno.EOPNOTSUPP)

    def test_what_is_not_sent(self, brick: Brick) -> None:
        brick.fails(fops.Icreate(loc=Loc(gfid=new_gfid()), mode=0o644), errno.EOPNOTSUPP)
        brick.fails(fops.Namelink(loc=Loc(pargfid=ROOT_GFID, name=b"n")), errno.EOPNOTSUPP)
        assert brick.names() == []
