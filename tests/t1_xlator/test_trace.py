"""debug/trace: two lines for every fop, the lists, and what must never be shown."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError, OptionError
from glustx.graph import Graph
from glustx.inode import Fd
from glustx.runtime import Waiter, run_now
from glustx.values import ROOT_GFID, Caller, Iatt, Loc
from glustx.xdata import Xdata
from glustx.xlators.debug.trace import Trace
from tests.fakes import ALL_FOPS, Call, Storage, sample_request, stack


def traced(**options: str) -> tuple[Graph, Any]:
    graph = stack(Storage, (Trace, {key.replace("_", "-"): text for key, text in options.items()}))
    run_now(graph.start())
    return graph, graph.xlators["fake"]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "glustx.trace")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "glustx.trace"]


def test_one_line_in_and_one_out_for_every_fop(said: Any) -> None:
    graph, _ = traced()
    for cls in ALL_FOPS:
        Call(graph.top(sample_request(cls))).result()
    lines = said()
    assert len(lines) == 2 * len(ALL_FOPS)
    for number, cls in enumerate(ALL_FOPS, 1):
        assert lines[2 * number - 2].startswith(f"trace: {number}: {cls.name}(")
        assert lines[2 * number - 1].startswith(f"trace: {number}: {cls.name} => (")


def test_what_a_line_shows(said: Any) -> None:
    graph, storage = traced()
    storage.answer = lambda req: fops.LookupReply(
        stat=Iatt(gfid=b"\x07" * 16, mode=0o100640, size=5, nlink=1, uid=3, gid=4, blocks=8), postparent=Iatt()
    )
    loc = Loc(pargfid=ROOT_GFID, name=b"caf\xc3\xa9\xff")
    caller = Caller(pid=7, uid=1000, gid=100, lk_owner=b"\xab")
    Call(graph.top(fops.Lookup(loc, caller=caller, xdata=Xdata({b"glusterfs.content": 5})))).result()
    down, up = said()
    assert down == (
        "trace: 1: lookup(loc=<00000000-0000-0000-0000-000000000001>/café\\xff gfid "
        "00000000-0000-0000-0000-000000000000, flags=0, xdata={glusterfs.content}, "
        "caller={pid=7, uid=1000, gid=100, lk_owner=ab})"
    )
    assert up.startswith(
        "trace: 1: lookup => (stat={gfid=07070707-0707-0707-0707-070707070707, mode=0o100640, nlink=1, uid=3, gid=4, "
        "size=5, blocks=8}, postparent={"
    )


def test_data_and_values_are_never_shown(said: Any) -> None:
    graph, storage = traced()
    storage.answer = lambda req: fops.XattrReply(size=6, xattrs=Xdata({b"user.pass": b"SECRET"}))
    fd = Fd(ROOT_GFID, 2)
    secret = Xdata({b"user.pass": b"SECRET"})
    Call(graph.top(fops.Setxattr(Loc(gfid=ROOT_GFID), secret, xdata=secret))).result()
    Call(graph.top(fops.Write(fd, 0, b"SECRET" * 100))).result()
    Call(graph.top(fops.Write(fd, 0, memoryview(b"SECRET")))).result()
    Call(graph.top(fops.Write(fd, 0, b"SECRET"))).result()
    text = "\n".join(said())
    assert "SECRET" not in text
    assert "user.pass" in text
    assert "data=<600 bytes>" in text
    assert "data=<6 bytes>" in text


def test_errors_and_cancellations(said: Any) -> None:
    graph, storage = traced()
    storage.answer = _fails
    Call(graph.top(fops.Stat(Loc(gfid=ROOT_GFID))))
    storage.answer = lambda req: Waiter()
    Call(graph.top(fops.Stat(Loc(gfid=ROOT_GFID)))).cancel()
    assert said()[1] == "trace: 1: stat => ENOENT: gone xdata={glusterfs.preop.check.failed}"
    assert said()[3] == "trace: 2: stat => FopCancelled"


def _fails(req: Any) -> Any:
    raise FopError(2, "gone", Xdata({b"glusterfs.preop.check.failed": 1}))


def test_include_and_exclude(said: Any) -> None:
    graph, _ = traced(include_ops="READV, stat")
    for cls in (fops.Read, fops.Stat, fops.Fstat):
        Call(graph.top(sample_request(cls))).result()
    assert [line.split(": ")[2].split("(")[0] for line in said() if "=>" not in line] == ["read", "stat"]
    graph, _ = traced(exclude_ops="fstat")
    trace: Any = graph.xlators["trace"]
    Call(graph.top(sample_request(fops.Fstat))).result()
    assert len(said()) == 4
    old, trace.options = trace.options, Trace.Options()
    trace.options_changed(old)
    Call(graph.top(sample_request(fops.Fstat))).result()
    assert len(said()) == 6


def test_a_name_that_is_no_fops_is_refused() -> None:
    with pytest.raises(
        OptionError, match="volume trace, option include-ops: 'lokup' is not a fop; the nearest is lookup"
    ):
        traced(include_ops="lokup")
    with pytest.raises(OptionError, match="exclude-ops"):
        traced(exclude_ops="stat,,nothing")


def test_the_level_can_be_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glustx.trace")
    graph, _ = traced(force_log_level="DEBUG")
    Call(graph.top(sample_request(fops.Stat))).result()
    assert caplog.records == []
