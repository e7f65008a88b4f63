"""What translators with several children need of the core: fan-out, teardown, start, events, inode state, limits."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopCancelled, GraphError
from glustx.graph import Graph, Surroundings
from glustx.inode import InodeTable, PerInode
from glustx.runtime import ManualReactor, Outcome, Tasks, Waiter, drive, fan_out, shield, turn
from glustx.values import ROOT_GFID, Loc
from glustx.xlator import ALL, Event, Xlator, handles, merge_limits


def begin(co: Any) -> tuple[Any, list[Any]]:
    box: list[Any] = []
    runs: list[Any] = []
    turn(lambda: runs.append(drive(co, lambda value, error: box.append((value, error)))))
    return runs[0], box


async def on(waiter: Waiter[Any]) -> Any:
    return await waiter


def test_fan_out_keeps_to_its_limit_and_its_order() -> None:
    waiters = [Waiter() for _ in range(5)]
    made: list[int] = []

    def cos() -> Any:
        for i, waiter in enumerate(waiters):
            made.append(i)
            yield on(waiter)

    _, box = begin(fan_out(cos(), limit=2))
    assert made == [0, 1]
    waiters[1].set("b")
    assert made == [0, 1, 2]
    waiters[3].set("d")
    waiters[2].set("c")
    assert made == [0, 1, 2, 3, 4]
    waiters[0].set("a")
    assert not box
    waiters[4].set("e")
    assert [o.get() for o in box[0][0]] == list("abcde")


def test_fan_out_tells_what_was_done_before_a_cancellation() -> None:
    first, second, third = Waiter(), Waiter(), Waiter()
    outcomes: list[Outcome[Any]] = []
    run, box = begin(fan_out((on(w) for w in (first, second, third)), limit=2, outcomes=outcomes))
    first.set("a")
    turn(run.cancel)
    assert isinstance(box[0][1], FopCancelled)
    assert outcomes[0].get() == "a"
    assert [type(o.error) for o in outcomes[1:]] == [FopCancelled, FopCancelled]


def test_fan_out_that_never_waits() -> None:
    async def number(i: int) -> int:
        return i

    _, box = begin(fan_out(number(i) for i in range(5000)))
    assert [o.get() for o in box[0][0]] == list(range(5000))
    _, box = begin(fan_out((number(i) for i in range(5000)), limit=3))
    assert [o.get() for o in box[0][0]] == list(range(5000))
    _, box = begin(fan_out([]))
    assert box == [([], None)]


def test_a_waiter_that_is_set_while_others_start() -> None:
    waiter: Waiter[int] = Waiter()

    async def setter() -> int:
        waiter.set(1)
        return 2

    _, box = begin(fan_out([on(waiter), setter()]))
    assert [o.get() for o in box[0][0]] == [1, 2]


def test_close_unwinds_cleanups_that_would_wait() -> None:
    steps: list[str] = []

    async def undo() -> None:
        steps.append("undo")
        try:
            await Waiter()
        finally:
            steps.append("undone")

    async def inner() -> None:
        try:
            await fan_out([on(Waiter()), on(Waiter())])
        finally:
            await shield(undo())

    async def outer() -> None:
        try:
            await inner()
        finally:
            steps.append("outer")
            await Waiter()

    run, box = begin(outer())
    turn(run.close)
    assert steps == ["undo", "undone", "outer"] and run.done and not box


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_close_refuses_to_go_on_for_ever() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await Waiter()
            except BaseException:
                continue

    run, _ = begin(stubborn())
    with pytest.raises(RuntimeError, match="goes on waiting"):
        run.close()


@pytest.mark.logs("no luck")
def test_tasks_end_with_their_owner(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(logging.getLogger("glustx.test"))
    undone: list[int] = []

    async def work() -> None:
        try:
            await Waiter()
        finally:
            undone.append(1)

    async def fails() -> None:
        raise ValueError("no luck")

    tasks.start(work())
    tasks.start(work())
    tasks.start(fails())
    assert len(tasks) == 2 and "no luck" in caplog.text
    _, box = begin(tasks.stop())
    assert box == [(None, None)] and undone == [1, 1] and not len(tasks)


class Leaf(Xlator):
    type_name = "test/leaf"
    subvolume_count = (0, 0)
    gates: dict[str, Waiter[None]] = {}
    log: list[str] = []

    async def start(self) -> None:
        self.log.append(f"start {self.name}")
        await self.gates[self.name]
        self.log.append(f"up {self.name}")

    async def stop(self) -> None:
        self.log.append(f"stop {self.name}")


class Many(Leaf):
    type_name = "test/many"
    subvolume_count = (1, None)

    def notify(self, event: Event, source: Xlator | None = None, data: Any = None) -> None:
        self.log.append(f"{event.value} {source.name if source else '-'}")
        super().notify(event, source, data)


TEXT = """volume a
type test/leaf
end-volume
volume b
type test/leaf
end-volume
volume c
type test/many
subvolumes a b
end-volume
"""


def graph(**gates: Waiter[None]) -> Graph:
    Leaf.gates = {name: gates.get(name, Waiter()) for name in "abc"}
    Leaf.log.clear()
    types = {"test/leaf": Leaf, "test/many": Many}
    return Graph.load(TEXT, Surroundings(ManualReactor()), types=types)


def test_children_start_side_by_side() -> None:
    g = graph()
    _, box = begin(g.start())
    assert Leaf.log == ["start a", "start b"]
    Leaf.gates["b"].set(None)
    Leaf.gates["a"].set(None)
    assert Leaf.log[-1] == "start c"
    Leaf.gates["c"].set(None)
    assert box == [(None, None)]
    assert Leaf.log[-3:] == ["parent-up -", "child-up a", "child-up b"]


def test_one_that_cannot_start_takes_the_others_down() -> None:
    g = graph()
    _, box = begin(g.start())
    Leaf.gates["a"].fail(GraphError("a cannot"))
    assert not box
    Leaf.gates["b"].set(None)
    assert isinstance(box[0][1], GraphError) and Leaf.log[-1] == "stop b"


def test_held_inode_stays_itself() -> None:
    table = InodeTable(limit=4)
    gone: list[str] = []
    slot: PerInode[str] = PerInode(gone.append)
    with table.held(ROOT_GFID) as inode:
        slot.set(inode, "root")
        slot.set(table.get(bytes(15) + b"x"), "x")
        for i in range(20):
            table.get(i.to_bytes(16, "big"))
        assert table.get(ROOT_GFID) is inode and gone == ["x"]
    for i in range(20):
        table.get(i.to_bytes(16, "big"))
    assert gone == ["x", "root"]


def test_of_two_claims_the_narrow_one() -> None:
    class Two(Xlator):
        @handles(ALL)
        async def every(self, req: Any) -> Any: ...

        @handles(fops.SPLITS)
        async def ranged(self, req: Any) -> Any: ...

    assert Two._answers["zerofill"] == ("ranged", "by effect") and Two._answers["open"] == ("every", "by effect")
    with pytest.raises(TypeError, match="both claim"):

        class Bad(Xlator):
            @handles(fops.WRITES_DATA)
            async def one(self, req: Any) -> Any: ...

            @handles(fops.MAY_GROW)
            async def two(self, req: Any) -> Any: ...


def test_limits_hold_for_all_children() -> None:
    some = {"zero_method": "punch", "block_size": 512, "max_zerofill": 9}
    assert merge_limits([some, {"zero_method": "writes", "block_size": 4096, "max_zerofill": 5}]) == {
        "zero_method": "mixed",
        "block_size": 4096,
        "max_zerofill": 5,
    }
    assert merge_limits([some, {}]) == {} == merge_limits([])


def test_names_and_subjects() -> None:
    old, new = Loc(gfid=ROOT_GFID, pargfid=ROOT_GFID, name=b"a"), Loc(pargfid=ROOT_GFID, name=b"b")
    assert fops.Link(old, new).names() == (new,) and fops.Link(old, new).subject() is old
    assert fops.Rename(old, new).names() == (old, new)
    assert fops.Stat(old).names() == ()
    for cls in fops.FOPS.values():
        assert bool(cls.effects & fops.SPLITS) == (
            cls.range is not fops.Fop.range and cls.__name__ not in ("Rchecksum", "Put", "CopyFileRange")
        )


@pytest.mark.parametrize(("wrong", "meant"), [("writev", "write"), ("mkdirr", "mkdir"), ("zero_fill", "zerofill")])
def test_a_method_that_no_fop_calls_is_refused(wrong: str, meant: str) -> None:
    def method() -> Any:
        async def answer(self: Any, req: Any) -> Any: ...

        return answer

    with pytest.raises(TypeError, match=rf"Bad\.{wrong} takes a request.* is {meant} meant"):
        type("Bad", (Xlator,), {wrong: method()})
    alias = method()
    for fields in ({f"_{wrong}": method()}, {wrong: alias, meant: alias}, {wrong: handles(ALL)(method())}):
        type("Good", (Xlator,), fields)
