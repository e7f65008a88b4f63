"""The inode table against a model, and the slots that translators keep their state in."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx.inode import Fd, Inode, InodeTable, PerFd, PerInode
from glustx.values import ROOT_GFID


def gfid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_get_makes_and_find_does_not() -> None:
    table = InodeTable()
    assert table.find(gfid(1)) is None
    inode = table.get(gfid(1))
    assert (inode.gfid, inode.holds) == (gfid(1), 0)
    assert table.get(gfid(1)) is inode
    assert table.find(gfid(1)) is inode
    assert (len(table), list(table)) == (1, [inode])


def test_recently_used_inodes_stay() -> None:
    table = InodeTable(limit=8)
    favourite = table.get(gfid(0))
    for number in range(1, 100):
        table.get(gfid(number))
        assert table.get(gfid(0)) is favourite
        assert len(table) <= 10
    assert table.find(gfid(1)) is None


def test_held_inodes_stay_whatever_comes() -> None:
    table = InodeTable(limit=4)
    held = [table.hold(gfid(number)) for number in range(20)]
    for number in range(100, 300):
        table.get(gfid(number))
    assert [table.get(gfid(number)) for number in range(20)] == held
    for inode in held:
        table.drop(inode)
    for number in range(300, 320):
        table.get(gfid(number))
    assert table.find(gfid(0)) is None


def test_forget() -> None:
    gone: list[str] = []
    slot: PerInode[str] = PerInode(gone.append)
    table = InodeTable()
    slot.set(table.get(gfid(1)), "one")
    held = table.hold(gfid(2))
    slot.set(held, "two")
    table.forget(gfid(1))
    table.forget(gfid(2))
    table.forget(gfid(3))
    assert table.find(gfid(1)) is None
    assert table.find(gfid(2)) is held
    assert gone == ["one"]


def test_one_drop_too_many_is_a_bug() -> None:
    table = InodeTable()
    inode = table.hold(gfid(1))
    table.drop(inode)
    with pytest.raises(AssertionError, match="dropped more often"):
        table.drop(inode)


def test_slots_are_private_and_do_not_outlive_their_owner() -> None:
    class State:
        pass

    one: PerInode[State] = PerInode()
    two: PerInode[State] = PerInode()
    inode = Inode(gfid(1))
    state = State()
    one.set(inode, state)
    assert one.get(inode) is state
    assert two.get(inode) is None
    ref = weakref.ref(state)
    del inode, state
    gc.collect()
    assert ref() is None
    fd = Fd(ROOT_GFID, 2)
    per_fd: PerFd[int] = PerFd()
    per_fd.set(fd, 5)
    assert (per_fd.pop(fd), per_fd.pop(fd), per_fd.get(fd)) == (5, None, None)


def test_an_fd_says_what_it_is() -> None:
    assert repr(Fd(ROOT_GFID, 0o102)) == f"<fd of {ROOT_GFID.hex()} flags 0o102>"
    assert "anonymous" in repr(Fd(ROOT_GFID, 2, anonymous=True))


class Model:
    """A table of 8: an inode that is held, or was among the last 3 asked for, is the same object."""

    def __init__(self) -> None:
        self.gone: list[Inode] = []
        self.slot: PerInode[Inode] = PerInode(self.gone.append)
        self.table = InodeTable(limit=8)
        self.held: dict[bytes, list[Inode]] = {}
        self.recent: list[Inode] = []

    def seen(self, inode: Inode) -> None:
        assert inode not in self.gone, "an inode came back after it was forgotten"
        for other in (*self.held.get(inode.gfid, ()), *self.recent):
            assert other.gfid != inode.gfid or other is inode
        self.slot.set(inode, inode)
        self.recent = [*(other for other in self.recent if other is not inode), inode][-3:]

    def step(self, what: str, key: bytes) -> None:
        if what == "get":
            self.seen(self.table.get(key))
        elif what == "hold":
            inode = self.table.hold(key)
            self.seen(inode)
            self.held.setdefault(key, []).append(inode)
        elif what == "drop" and key in self.held:
            self.table.drop(self.held[key].pop())
            if not self.held[key]:
                del self.held[key]
        elif what == "forget":
            self.table.forget(key)
            if key not in self.held:
                assert self.table.find(key) is None
                self.recent = [other for other in self.recent if other.gfid != key]

    def check(self) -> None:
        everything = list(self.table)
        assert len(everything) == len(self.table) == len({inode.gfid for inode in everything})
        for key, inodes in self.held.items():
            assert all(inode is self.table.find(key) for inode in inodes)
            assert inodes[0].holds == len(inodes)
        assert all(self.table.find(inode.gfid) is inode for inode in self.recent)
        assert len(everything) <= 10 + len(self.held)
        assert not set(map(id, self.gone)) & set(map(id, everything))


@given(
    st.lists(
        st.tuples(st.sampled_from(["get", "get", "hold", "drop", "forget"]), st.integers(0, 24)),
        min_size=20,
        max_size=80,
    )
)
def test_the_table_against_its_promises(program: list[tuple[str, int]]) -> None:
    model = Model()
    for what, number in program:
        model.step(what, gfid(number))
        model.check()
