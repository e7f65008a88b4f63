"""features/selinux: the label of clients is kept under another name, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.runtime import run_now
from glustx.values import ROOT_GFID, ROOT_LOC
from glustx.xdata import Xdata
from glustx.xlators.features.selinux import KEPT, LABEL, Selinux
from tests.fakes import ALL_FOPS, Storage, sample_request, stack


class Labelled(Storage):
    """Keeps the xattrs of one file."""

    kept: dict[bytes, Any]

    async def getxattr(self, req: fops.Getxattr | fops.Fgetxattr) -> fops.XattrReply:
        if not req.key:
            return fops.XattrReply(size=0, xattrs=Xdata(self.kept))
        if req.key not in self.kept:
            raise FopError(61, "no such xattr")
        return fops.XattrReply(size=len(self.kept[req.key]), xattrs=Xdata({req.key: self.kept[req.key]}))

    async def setxattr(self, req: fops.Setxattr | fops.Fsetxattr) -> fops.Done:
        self.kept.update(req.xattrs.items())
        return fops.Done()

    fgetxattr = getxattr
    fsetxattr = setxattr


def labelled() -> tuple[Graph, dict[bytes, Any]]:
    graph = stack(Labelled, (Selinux, {"selinux": "on"}))
    storage: Any = graph.xlators["fake"]
    storage.kept = {}
    run_now(graph.start())
    return graph, storage.kept


@pytest.mark.parametrize("on_fd", [False, True])
def test_the_label_is_kept_apart(on_fd: bool) -> None:
    graph, kept = labelled()
    kept[LABEL] = b"the host's"
    fd = Fd(ROOT_GFID, 2)
    value = Xdata({LABEL: b"the client's", b"user.x": b"y"})
    run_now(graph.top(fops.Fsetxattr(fd, value) if on_fd else fops.Setxattr(ROOT_LOC, value)))
    assert kept == {LABEL: b"the host's", KEPT: b"the client's", b"user.x": b"y"}
    reply = run_now(graph.top(fops.Fgetxattr(fd, LABEL) if on_fd else fops.Getxattr(ROOT_LOC, LABEL)))
    assert dict(reply.xattrs.items()) == {LABEL: b"the client's"} and reply.size == len(b"the client's")
    other = run_now(graph.top(fops.Fgetxattr(fd, b"user.x") if on_fd else fops.Getxattr(ROOT_LOC, b"user.x")))
    assert dict(other.xattrs.items()) == {b"user.x": b"y"}


def test_without_a_label_there_is_none() -> None:
    graph, kept = labelled()
    kept[LABEL] = b"the host's"
    with pytest.raises(FopError, match="ENODATA"):
        run_now(graph.top(fops.Getxattr(ROOT_LOC, LABEL)))


def test_turned_off_it_passes_everything() -> None:
    graph = stack(Storage, (Selinux, {"selinux": "off"}))
    storage: Any = graph.xlators["fake"]
    run_now(graph.start())
    for cls in ALL_FOPS:
        run_now(graph.top(sample_request(cls)))
    run_now(graph.top(fops.Getxattr(ROOT_LOC, LABEL)))
    run_now(graph.top(fops.Setxattr(ROOT_LOC, Xdata({LABEL: b"x"}))))
    assert storage.seen[-2].key == LABEL and LABEL in storage.seen[-1].xattrs
