"""features/utime: the moment and the flags that each request is sent with."""

from __future__ import annotations

import time
from typing import Any

import pytest

from glustx import fops
from glustx.values import (
    SET_ATIME,
    SET_ATIME_NOW,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_MTIME_NOW,
    SET_UID,
    STAMP_ATIME,
)
from glustx.xlators.features.utime import Utime
from tests.fakes import ALL_FOPS, Call, Storage, sample_request, stack

# What stock's client was seen to send; all others send the time with no flag.
SEEN = {
    **dict.fromkeys(("create", "mkdir", "mknod", "symlink", "put", "icreate"), 31),
    **dict.fromkeys(("link", "unlink", "rename", "rmdir", "namelink"), 25),
    **dict.fromkeys(("write", "truncate", "ftruncate", "discard", "copy_file_range"), 3),
    **dict.fromkeys(("fallocate", "zerofill"), 6),
    **dict.fromkeys(("setxattr", "fsetxattr", "removexattr", "fremovexattr"), 1),
}


def sent(req: Any, **options: str) -> Any:
    graph = stack(Storage, (Utime, options))
    Call(graph.top(req)).result()
    return graph.xlators["fake"].seen[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", ALL_FOPS, ids=lambda cls: cls.name)
def test_flags_of_every_fop(cls: type[fops.Fop]) -> None:
    before = time.time_ns()
    req = sample_request(cls)
    got = sent(req)
    if cls is fops.Lookup or cls.effects & (fops.LOCKS | fops.INTERNAL):
        assert got is req
        return
    assert before <= got.ctime <= time.time_ns()
    assert got.stamp == SEEN.get(cls.name, 0)


@pytest.mark.parametrize("cls", [fops.Setattr, fops.Fsetattr])
@pytest.mark.parametrize(
    ("valid", "stamp"),
    [
        (SET_MODE, 1),
        (SET_UID | SET_GID, 1),
        (SET_ATIME | SET_MTIME, 0),
        (SET_ATIME | SET_MTIME | SET_ATIME_NOW | SET_MTIME_NOW, 0),
        (SET_MODE | SET_MTIME, 1),
    ],
)
def test_flags_of_setattr(cls: type[fops.Fop], valid: int, stamp: int) -> None:
    got = sent(sample_request(cls, valid=valid))
    assert got.ctime
    assert got.stamp == stamp


def test_access_times_when_wanted() -> None:
    for cls in (fops.Read, fops.Opendir):
        assert sent(sample_request(cls), noatime="off").stamp == STAMP_ATIME
        assert sent(sample_request(cls), noatime="on").stamp == 0
    assert sent(sample_request(fops.Stat), noatime="off").stamp == 0


def test_a_request_that_has_its_time_keeps_it() -> None:
    req = sample_request(fops.Write, ctime=5, stamp=0)
    assert sent(req) is req
    setattr_ = sample_request(fops.Setattr, valid=SET_MODE, ctime=5)
    assert sent(setattr_) is setattr_


def test_nothing_else_changes() -> None:
    req = sample_request(fops.Write, data=b"abc")
    got = sent(req)
    assert (got.fd, got.offset, got.data, got.caller, got.xdata) == (req.fd, 0, b"abc", req.caller, req.xdata)
