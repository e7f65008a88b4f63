"""Graphs: what is refused and how, order of start and stop, passing through, live changes, stand-ins, dumps."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError, GraphError, OptionError
from glustx.graph import Graph, Surroundings, find_type, known_types
from glustx.options import OptionSet, option
from glustx.runtime import ManualReactor, Waiter, run_now
from glustx.values import ROOT_LOC
from glustx.volfile import VolfileError
from glustx.xlator import Event, Xlator, handles
from glustx.xlators.standins import FIRST_ONLY, REFUSED, STAND_INS, StandIn
from tests.fakes import ALL_FOPS, Call, Storage, sample_request

GOLDEN = Path(__file__).parent.parent / "golden"

LOG: list[str] = []


class Logged(Xlator):
    """Notes its life, and passes everything through."""

    type_name = "test/logged"
    subvolume_count = (1, None)

    class Options(OptionSet):
        """Options."""

        colour: str = option("red", "A word.", choices=("red", "green"), live=True)
        size: int = option(1, "A number that must be even with green.", live=True)
        fixed: int = option(1, "A number that stays.")
        fails: bool = option(False, "Whether it refuses to start.")

    def check_options(self, options: Any) -> None:
        if options.colour == "green" and options.size % 2:
            raise OptionError(self.name, "size", "must be even with green")

    def options_changed(self, old: Any) -> None:
        LOG.append(f"{self.name} {old.colour} {old.size} -> {self.options.colour} {self.options.size}")

    async def start(self) -> None:
        LOG.append(f"start {self.name}")
        if self.options.fails:
            raise GraphError(f"{self.name} does not want to")

    async def stop(self) -> None:
        LOG.append(f"stop {self.name}")

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        LOG.append(f"{event.value} at {self.name}")
        super().notify(event, source, data)

    def statedump(self) -> dict[str, Any]:
        return {"subvolumes": len(self.subvolumes)}


class Leaf(Storage):
    """The bottom."""

    type_name = "test/leaf"
    Options = Logged.Options  # type: ignore[assignment]
    start = Logged.start  # type: ignore[assignment]
    stop = Logged.stop  # type: ignore[assignment]


class Stats(Xlator):
    """Cares about LOOKUP by name and about changes of data by effect."""

    type_name = "test/stats"

    async def lookup(self, req: fops.Lookup) -> Any:
        LOG.append("lookup")
        return await self.child(req)

    @handles(fops.WRITES_DATA)
    async def data(self, req: fops.Fop) -> Any:
        LOG.append(f"data {req.name}")
        return await self.child(req)


TYPES: dict[str, type[Xlator]] = {"test/logged": Logged, "test/leaf": Leaf, "test/stats": Stats}


def volume(name: str, kind: str, *subvolumes: str, **options: object) -> str:
    lines = [f"volume {name}", f"    type {kind}"]
    lines += [f"    option {key.replace('_', '-')} {text}" for key, text in options.items()]
    if subvolumes:
        lines.append(f"    subvolumes {' '.join(subvolumes)}")
    return "\n".join([*lines, "end-volume", ""])


def load(*volumes: str, strict: bool = True) -> Graph:
    return Graph.load("\n".join(volumes), Surroundings(ManualReactor()), source="test.vol", strict=strict, types=TYPES)


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    LOG.clear()


# -- what is refused


@pytest.mark.parametrize(
    ("volumes", "error", "why"),
    [
        ([""], VolfileError, "test.vol"),
        (
            [volume("a", "debug/io-stat")],
            GraphError,
            "unknown translator type debug/io-stat; the nearest is debug/io-st",
        ),
        ([volume("a", "debug/../os")], (GraphError, VolfileError), "debug/../os"),
        ([volume("a", "os/path")], GraphError, "unknown translator type os/path"),
        ([volume("a", "storage/posix_zero")], (GraphError, VolfileError), "storage/posix_zero"),
        (
            [volume("a", "test/leaf"), volume("b", "test/stats")],
            GraphError,
            "test.vol: volume b of type test/stats has 0",
        ),
        (
            [volume("a", "test/leaf"), volume("b", "test/leaf"), volume("c", "test/stats", "a", "b")],
            GraphError,
            "volume c of type test/stats has 2 subvolumes, not 1",
        ),
        ([volume("a", "test/leaf"), volume("b", "test/logged")], GraphError, "has 0 subvolumes, not 1 to any number"),
        ([volume("a", "test/leaf"), volume("b", "test/leaf", "a")], GraphError, "has 1 subvolumes, not 0"),
        (
            [volume("a", "test/leaf", colour="blue")],
            OptionError,
            "volume a, option colour: 'blue' is not one of red, g",
        ),
        (
            [volume("a", "test/leaf", color="red")],
            OptionError,
            "volume a, option color: no such option; the nearest is c",
        ),
        ([volume("a", "test/leaf"), volume("b", "test/logged", "z")], VolfileError, "z"),
        (
            [volume("a", "test/leaf"), volume("b", "test/logged", "a", colour="green")],
            OptionError,
            "must be even with green",
        ),
    ],
)
def test_what_cannot_be_built(volumes: list[str], error: Any, why: str) -> None:
    with pytest.raises(error) as caught:
        load(*volumes)
    assert why in str(caught.value)
    assert LOG == [], "nothing may have been started"


def test_text_from_a_peer_may_hold_unknown_options() -> None:
    graph = load(volume("a", "test/leaf", color="red"), strict=False)
    assert graph.notes == ["option color of a is unknown and ignored; the nearest is colour"]


# -- life


STACK = (volume("a", "test/leaf"), volume("b", "test/logged", "a"), volume("c", "test/logged", "b"))


def test_start_from_the_bottom_and_stop_from_the_top() -> None:
    graph = load(*STACK)
    heard: list[Event] = []
    graph.listeners.append(lambda event, data: heard.append(event))
    run_now(graph.start())
    assert LOG[:3] == ["start a", "start b", "start c"]
    assert LOG[3:] == ["parent-up at c", "parent-up at b", "child-up at b", "child-up at c"]
    assert heard == [Event.CHILD_UP]
    LOG.clear()
    run_now(graph.stop())
    assert LOG == ["parent-down at c", "parent-down at b", "stop c", "stop b", "stop a"]
    LOG.clear()
    run_now(graph.stop())
    assert LOG == []


def test_one_that_refuses_to_start_takes_those_below_down() -> None:
    graph = load(volume("a", "test/leaf"), volume("b", "test/logged", "a", fails="on"), volume("c", "test/logged", "b"))
    with pytest.raises(GraphError, match="b does not want to"):
        run_now(graph.start())
    assert [line for line in LOG if line.startswith("st")] == ["start a", "start b", "stop a"]


@pytest.mark.logs(r"b \(test/logged\) failed to stop")
def test_each_is_stopped_though_another_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load(*STACK)
    run_now(graph.start())
    monkeypatch.setattr(graph.xlators["b"], "stop", graph.xlators["b"]._unsupported.__func__, raising=False)  # type: ignore[attr-defined]
    LOG.clear()
    run_now(graph.stop())
    assert [line for line in LOG if line.startswith("stop")] == ["stop c", "stop a"]


def test_drain_waits_for_fops_under_way() -> None:
    graph = load(*STACK)
    assert Call(graph.drain()).done
    graph.enter()
    graph.enter()
    draining = Call(graph.drain())
    graph.leave()
    assert not draining.done
    graph.leave()
    assert draining.done


# -- resolution


def test_each_fop_goes_straight_to_the_next_that_cares() -> None:
    graph = load(
        volume("bottom", "test/leaf"),
        volume("low", "test/logged", "bottom"),
        volume("mid", "test/stats", "low"),
        volume("high", "test/logged", "mid"),
    )
    bottom, mid, top = graph.xlators["bottom"], graph.xlators["mid"], graph.root
    for cls in ALL_FOPS:
        if cls is fops.Lookup:
            expected = mid.lookup  # type: ignore[attr-defined]
        elif cls.effects & fops.WRITES_DATA:
            expected = mid.data  # type: ignore[attr-defined]
        else:
            expected = bottom.table[cls]
        assert top.table[cls] == expected, cls.name
        assert isinstance(Call(graph.top(sample_request(cls))).result(), cls.reply)
    written = [cls.name for cls in ALL_FOPS if cls.effects & fops.WRITES_DATA]
    assert [line for line in LOG if line.startswith("data")] == [f"data {name}" for name in written]


def test_a_fop_that_nobody_answers() -> None:
    graph = load(volume("a", "test/leaf"), volume("b", "test/leaf"), volume("c", "test/logged", "a", "b"))
    call = Call(graph.top(fops.Stat(ROOT_LOC)))
    assert call.errno == errno.EOPNOTSUPP
    assert "test/logged does not answer stat" in str(call.error)
    with pytest.raises(GraphError, match="no single child"):
        assert graph.root.child


def test_a_class_that_cannot_be_meant() -> None:
    with pytest.raises(TypeError, match="must be async"):

        class Sync(Xlator):
            def stat(self, req: fops.Stat) -> None: ...


def test_errors_and_waits_pass_through() -> None:
    graph = load(*STACK)
    leaf: Any = graph.xlators["a"]
    gate: Waiter[Any] = Waiter()
    leaf.answer = lambda req: gate
    call = Call(graph.top(fops.Stat(ROOT_LOC)))
    gate.fail(FopError(errno.ESTALE))
    assert call.errno == errno.ESTALE


# -- live changes


def test_reconfigure() -> None:
    graph = load(*STACK)
    run_now(graph.start())
    LOG.clear()
    done = graph.reconfigure(
        "".join((STACK[0], volume("b", "test/logged", "a", colour="green", size=2), STACK[2])), source="new.vol"
    )
    assert done == ["b: colour 'red' -> 'green'", "b: size 1 -> 2"]
    assert LOG == ["b red 1 -> green 2"]
    assert graph.spec.source == "new.vol"
    assert graph.reconfigure("".join(STACK)) == ["b: colour 'green' -> 'red'", "b: size 2 -> 1"]
    assert graph.reconfigure("".join(STACK)) == []


@pytest.mark.parametrize(
    ("volumes", "error", "why"),
    [
        ((STACK[0], volume("b", "test/logged", "a", fixed=2), STACK[2]), OptionError, "cannot be changed while the gr"),
        ((STACK[0], volume("b", "test/logged", "a", colour="blue"), STACK[2]), OptionError, "not one of red, green"),
        ((STACK[0], volume("b", "test/logged", "a", colour="green"), STACK[2]), OptionError, "must be even"),
        ((STACK[0], volume("b", "test/logged", "a", nothing=1), STACK[2]), OptionError, "no such option"),
        ((STACK[0], STACK[1]), GraphError, "a new graph is needed"),
        ((STACK[0], volume("b", "test/stats", "a"), STACK[2]), GraphError, "a new graph is needed"),
        (("volume",), VolfileError, "new.vol"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(volumes: tuple[str, ...], error: Any, why: str) -> None:
    graph = load(*STACK)
    # c would change as well, and comes after b; a comes before it.
    changed = [volume("a", "test/leaf", size=7), *volumes[1:-1], volume("c", "test/logged", "b", size=8)]
    before = [xlator.options.values() for xlator in graph.xlators.values()]
    for text in ("\n".join(volumes), "\n".join(changed) if len(volumes) == 3 else "\n".join(volumes)):
        with pytest.raises(error, match=why):
            graph.reconfigure(text, source="new.vol")
        assert [xlator.options.values() for xlator in graph.xlators.values()] == before
        assert graph.spec.source == "test.vol"
    assert LOG == []


# -- stand-ins


def test_stand_ins_pass_and_are_listed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glustx.graph")
    missing = sorted(kind for kind in STAND_INS if find_type(kind) is StandIn)
    assert missing, "all types have modules: the list of stand-ins can go"
    volumes, below = [volume("v", "test/leaf")], "v"
    for kind in missing:
        volumes.append(volume(kind.replace("/", "-"), kind, below, whatever="yes"))
        below = kind.replace("/", "-")
    graph = load(*volumes)
    run_now(graph.start())
    told = {kind: FIRST_ONLY.get(kind) for kind in missing}
    assert [record.getMessage() for record in caplog.records] == [
        f"{kind} ({kind.replace('/', '-')}) is a stand-in that passes everything through"
        + (f"; {unseen} are not seen" if unseen else "")
        for kind, unseen in told.items()
    ]
    assert graph.root.table == graph.xlators["v"].table
    assert graph.statedump().count("stand_in=True\n") == len(missing)


def test_a_stand_in_that_knows_its_first_subvolume_only() -> None:
    kind = "features/snapview-client"
    if find_type(kind) is not StandIn:
        return
    graph = load(volume("a", "test/leaf"), volume("b", "test/leaf"), volume("s", kind, "a", "b"))
    assert graph.root.table == graph.xlators["a"].table
    heard: list[Event] = []
    graph.listeners.append(lambda event, data: heard.append(event))
    run_now(graph.start())
    assert heard == [Event.CHILD_UP]
    graph.xlators["b"].tell_parents(Event.CHILD_DOWN)
    assert heard == [Event.CHILD_UP]
    graph.xlators["a"].tell_parents(Event.CHILD_DOWN)
    assert heard == [Event.CHILD_UP, Event.CHILD_DOWN]


def test_distribute_stands_in_for_one_brick_only() -> None:
    if find_type("cluster/distribute") is not StandIn:
        return
    with pytest.raises(GraphError, match=r"cluster/distribute \(d\) has 2 subvolumes; only volumes of one are offered"):
        load(volume("a", "test/leaf"), volume("b", "test/leaf"), volume("d", "cluster/distribute", "a", "b"))


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("features/quota", "server-quota"),
        ("features/marker", "xtime"),
        ("features/changelog", "changelog"),
        ("features/bitrot-stub", "bitrot"),
        ("features/trash", "trash"),
        ("features/upcall", "cache-invalidation"),
        ("features/barrier", "barrier"),
    ],
)
def test_a_stand_in_is_refused_where_someone_relies_on_it(kind: str, key: str) -> None:
    if find_type(kind) is not StandIn:
        return
    with pytest.raises(GraphError, match=f"{kind} \\(q\\) has {key} on, which is not offered; turn it off"):
        load(volume("a", "test/leaf"), volume("q", kind, "a", **{key: "on"}))
    with pytest.raises(OptionError, match=f"volume q, option {key}: 'maybe' is neither on nor off"):
        load(volume("a", "test/leaf"), volume("q", kind, "a", **{key: "maybe"}))
    graph = load(volume("a", "test/leaf"), volume("q", kind, "a", **{key: "off"}))
    with pytest.raises(GraphError, match="turn it off"):
        graph.reconfigure(volume("a", "test/leaf") + volume("q", kind, "a", **{key: "on"}))


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_types_that_must_not_be_passed_through(kind: str) -> None:
    if kind in known_types():
        assert find_type(kind).type_name == kind
        return
    with pytest.raises(GraphError, match=f"type {kind} is refused: without"):
        load(volume("a", "test/leaf"), volume("b", kind, "a"))


@pytest.mark.parametrize("type_name", known_types())
def test_every_module_gives_its_type(type_name: str) -> None:
    kind = find_type(type_name)
    assert kind.type_name == type_name
    assert kind.__doc__
    assert not kind.stand_in


# -- dumps, limits, events


def test_statedump_golden() -> None:
    graph = load(
        volume("v-store", "storage/memory", capacity="1GB"),
        volume("v-locks", "features/locks", "v-store"),
        volume("v-threads", "performance/io-threads", "v-locks", least_prio_threads=2),
        volume("v", "debug/io-stats", "v-threads", latency_measurement="off"),
    )
    run_now(graph.start())
    run_now(graph.top(fops.Stat(ROOT_LOC)))
    assert graph.statedump() == (GOLDEN / "statedump.txt").read_text()
    run_now(graph.stop())


def test_secrets_stay_out_of_statedumps() -> None:
    class Login(Xlator):
        type_name = "test/login"

        class Options(OptionSet):
            password: str = option("", "A secret.")

    graph = Graph.load(
        volume("a", "test/leaf") + volume("b", "test/login", "a", password="hush"),
        Surroundings(ManualReactor()),
        types={**TYPES, "test/login": Login},
    )
    assert "hush" not in graph.statedump()


def test_an_event_from_below_reaches_the_edges_with_its_data() -> None:
    graph = load(*STACK)
    heard: list[tuple[Event, Any]] = []
    graph.listeners.append(lambda event, data: heard.append((event, data)))
    graph.xlators["a"].tell_parents(Event.UPCALL, "message")
    assert heard == [(Event.UPCALL, "message")]
    assert LOG == ["upcall at b", "upcall at c"]
