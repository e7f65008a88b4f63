"""Fakes that stand in for what is not under test: a storage-like translator that records and answers, graphs built by
hand, and a driver of fops that keeps each one's outcome."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from glustx import fops
from glustx.errors import FopCancelled
from glustx.fops import FOPS, Fop, Reply
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.options import OptionSet
from glustx.runtime import ManualReactor, Run, Waiter, drive, turn
from glustx.values import ROOT_GFID, Caller, Flock, Iatt, LeaseInfo, Loc, Statvfs
from glustx.volfile import Volfile, VolumeSpec
from glustx.xdata import EMPTY
from glustx.xlator import Event, Wind, Xlator, handles

Answer = Callable[[Any], Any]

_SAMPLES: dict[str, Any] = {
    "stat": Iatt(gfid=ROOT_GFID, mode=0o100644),
    "pre": Iatt(gfid=ROOT_GFID, mode=0o100644),
    "post": Iatt(gfid=ROOT_GFID, mode=0o100644),
    "data": b"",
    "count": 0,
    "path": b"",
    "statfs": Statvfs(),
    "size": 0,
    "xattrs": EMPTY,
    "entries": (),
    "offset": 0,
    "flags": 0,
    "weak": 0,
    "strong": b"",
    "locks": (),
}


def sample_reply(cls: type[Fop]) -> Reply:
    """A reply of the class that a fop answers with, its fields as empty as they can be."""
    values: dict[str, Any] = {}
    for name in cls.reply.__struct_fields__:
        if name == "flock":
            values[name] = Flock(type=2)
        elif name == "lease":
            values[name] = LeaseInfo()
        elif name in _SAMPLES:
            values[name] = _SAMPLES[name]
        elif name not in ("xdata", "eof"):
            values[name] = Iatt(gfid=ROOT_GFID, mode=0o40755)
    return cls.reply(**values)


_REQUEST: dict[str, Any] = {
    "loc": Loc(gfid=ROOT_GFID),
    "oldloc": Loc(gfid=ROOT_GFID, name=b"a", pargfid=ROOT_GFID),
    "newloc": Loc(name=b"b", pargfid=ROOT_GFID),
    "data": b"data",
    "flock": Flock(type=1),
    "lease": LeaseInfo(),
    "stat": Iatt(),
    "xattrs": EMPTY,
    "locks": (),
    "linkname": b"target",
    "key": b"user.k",
    "domain": b"domain",
    "basename": b"name",
}


def sample_request(cls: type[Fop], **changes: Any) -> Any:
    """A request of class `cls` with plausible fields, `changes` over them."""
    values: dict[str, Any] = {}
    for name in cls.__struct_fields__:
        if name in Fop.__struct_fields__:
            continue
        if name in ("fd", "fd_in", "fd_out"):
            values[name] = Fd(ROOT_GFID, 2)
        else:
            values[name] = _REQUEST.get(name, 0)
    return cls(**{**values, **changes})


class Storage(Xlator):
    """Answers every fop: what `answer(req)` returns or raises, or what the Waiter it returns is set to.

    `seen` keeps the requests in order of arrival, `events` what was notified from above.
    """

    type_name = "storage/fake"
    subvolume_count = (0, 0)

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.seen: list[Any] = []
        self.events: list[tuple[Event, Any]] = []
        self.answer: Answer = lambda req: sample_reply(type(req))

    @handles(fops.ALL_EFFECTS)
    async def recorded(self, req: Fop) -> Any:
        self.seen.append(req)
        answer = self.answer(req)
        return await answer if isinstance(answer, Waiter) else answer

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        self.events.append((event, data))
        super().notify(event, source, data)


class Parent(Xlator):
    """A translator above the one under test: keeps the events that come up."""

    type_name = "test/parent"

    def __init__(self, name: str, options: OptionSet, subvolumes: list[Xlator]) -> None:
        super().__init__(name, options, subvolumes)
        self.events: list[tuple[Event, Any]] = []

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        self.events.append((event, data))
        super().notify(event, source, data)


def stack(*kinds: type[Xlator] | tuple[type[Xlator], Mapping[str, str]]) -> Graph:
    """A graph of translators one above the other, the lowest first, wired and not started; named after their types.

    kinds: classes, or (class, options as texts).
    """
    graph = Graph(Volfile((), "<test>"), Surroundings(ManualReactor()))
    top: list[Xlator] = []
    specs = []
    for kind in kinds:
        cls, texts = kind if isinstance(kind, tuple) else (kind, {})
        name = cls.type_name.rpartition("/")[2]
        options, notes = cls.Options.parse(name, texts)
        graph.notes.extend(notes)
        xlator = cls(name, options, top)
        specs.append(VolumeSpec(name, cls.type_name, dict(texts), tuple(x.name for x in top)))
        graph.xlators[name] = xlator
        top = [xlator]
    graph.spec = Volfile(tuple(specs), "<test>")
    for xlator in graph.xlators.values():
        xlator.check_options(xlator.options)
        xlator.wire(graph)
    graph.root = top[0]
    graph.top = Wind(graph.root)
    return graph


class Call:
    """A coroutine under way: `done`, then `value` or `error`; `cancel` calls it off."""

    def __init__(self, co: Coroutine[Any, Any, Any]) -> None:
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.run: Run | None = None
        turn(self._start, co)

    def _start(self, co: Coroutine[Any, Any, Any]) -> None:
        self.run = drive(co, self._finish)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        assert not self.done, "a coroutine ended twice"
        self.done, self.value, self.error = True, value, error

    def cancel(self) -> None:
        """Call it off."""
        if self.run is not None:
            self.run.cancel()

    def close(self) -> None:
        """Drop it, as a teardown does."""
        if self.run is not None:
            self.run.close()

    @property
    def cancelled(self) -> bool:
        """Whether it ended by being called off."""
        return isinstance(self.error, FopCancelled)

    @property
    def errno(self) -> int:
        """The errno it failed with; 0 when it succeeded, -1 while it is under way."""
        if not self.done:
            return -1
        if self.error is None:
            return 0
        return int(getattr(self.error, "errno", -2))

    def result(self) -> Any:
        """Its value; raises its error, and AssertionError when it is still under way."""
        assert self.done, "still under way"
        if self.error is not None:
            raise self.error
        return self.value


def who(name: str, client: str = "", pid: int = 0) -> Caller:
    """A caller with an lk_owner of its own."""
    return Caller(lk_owner=name.encode(), client=client, pid=pid)


ALL_FOPS = list(FOPS.values())
