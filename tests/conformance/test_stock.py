"""Our client graph on a stock brick behind stock glusterd under the conformance suite. Where stock answers otherwise
than our own bricks do is written down in `DIFFERENCES`; what is not in there must be alike, and what is must not be."""

from __future__ import annotations

import errno
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.gfapi.pump import Pump
from glustx.gfapi.session import Session
from glustx.gfapi.source import Source
from glustx.rpc.codec_special import FOP400
from glustx.values import ROOT_GFID, Loc
from tests.conformance.brick import Brick, errno_name
from tests.conformance.suite import FopSuite
from tests.conformance.suite_locks import LocksSuite
from tests.kit import NetNamespace, need_peer
from tests.peers import StockVolume

KEEP_SIZE = "stock takes any flag for FALLOC_FL_KEEP_SIZE; we refuse those that mean something else"
A_SLASH = "stock's server refuses names with a slash before it looks, with EPERM; we say that they are no names"

# By test: what stock does in place of what is expected, in order, and the reason why we do it otherwise.
DIFFERENCES: dict[str, tuple[list[str], str]] = {
    "test_fallocate_keeping_the_size": (
        ["assert reply.post.blocks * 512 >= MIB + len(PATTERN)"],
        "stock never shows more blocks than the size needs, whatever is allocated behind it",
    ),
    **{
        f"test_fallocate_with_other_flags[{flags}]": (["fallocate: success, not ENOTSUP"], KEEP_SIZE)
        for flags in (2, 3, 16, 17)
    },
    "test_setting_times_to_now": (
        ["assert min(reply.post.atime_ns, reply.post.mtime_ns) > made - 10 * GIGA"],
        "stock wants a value beside the bit for now, and stores that",
    ),
    "test_seek_errors": (
        ["seek: ENOTSUP, not EINVAL"],
        "lseek says EINVAL for what is neither data nor hole; stock does not ask it",
    ),
    "test_lookup_of_what_is_not_there": (
        ["lookup: EPERM, not ENOTDIR"],
        "stock's access control refuses below a file with EPERM",
    ),
    "test_lookup_of_dots_at_the_root[..]": (
        ["reply = brick.lookup(name): ENODATA"],
        "stock looks at the folder above its brick, which has no gfid; we do not leave the brick",
    ),
    "test_lookup_of_dots_in_a_folder": (
        ["lookup: success, not EINVAL"],
        "stock follows the way up; nobody needs it, and ours cannot be led out",
    ),
    **{
        f"test_a_name_that_is_none_is_refused[{name}]": (
            ["lookup: EPERM, not EINVAL or ENOENT", "mkdir: EPERM, not EINVAL"],
            A_SLASH,
        )
        for name in ("a/b", "../x", "/")
    },
    "test_a_name_that_is_none_is_refused[a\\x00b]": (
        ["mkdir: success, not EINVAL", "assert brick.names() == []"],
        "stock cuts a name at its first NUL and makes that; gfapi sends none",
    ),
    "test_a_listing_in_pieces_has_everything_once[1]": (
        ['assert sorted(names) == sorted([*made, b".", b".."])'],
        "asked for less than one entry needs, stock sends none, which reads as the end; we send one",
    ),
}

# Fops of program 400 that no stock brick is sent, or that none does for us; the suite has tests of each.
NOT_DONE = {
    fops.Setactivelk: "a stock brick dies of it",
    fops.Icreate: "a stock brick dies of what belongs to it",
    fops.Namelink: "a stock brick dies of it",
    fops.Put: "stock's server has no such procedure",
    fops.Lease: "leases are off unless a volume's option asks for them",
    fops.Ipc: "no translator of the brick knows a message of ours",
}


class StockBrick(Brick):
    """A stock brick under test: where it answers an expected failure otherwise is noted, and the test goes on."""

    # ENOENT while the brick's inode table still holds it.
    gone = (errno.ESTALE, errno.ENOENT)

    # It takes the file for one that was replaced, and removes its gfid handle; gfapi sends none.
    renames_to_itself = False

    def __init__(self, call: Callable[[Fop], Any], test: str) -> None:
        super().__init__(call)
        self.test = test
        self.found: list[str] = []

    def fails(self, request: Fop, *errnos: int) -> None:
        code, _ = self.outcome(request)
        if code not in errnos:
            expected = " or ".join(map(errno_name, errnos))
            self.found.append(f"{request.name}: {errno_name(code)}, not {expected}")

    def run(self, test: Callable[[], None]) -> None:
        """Run a test of the suite; what it finds must be what `DIFFERENCES` says, no more and no less."""
        try:
            test()
        except (AssertionError, FopError) as error:
            if self.test not in DIFFERENCES:
                raise
            suite = [frame for frame in traceback.extract_tb(error.__traceback__) if "/suite_" in frame.filename]
            line = suite[-1].line or ""
            self.found.append(f"{line}: {errno_name(error.errno)}" if isinstance(error, FopError) else line)
        assert self.found == DIFFERENCES.get(self.test, ([], ""))[0]


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockVolume]:
    need_peer("namespaces", "glusterd", "gluster")
    folder = tmp_path_factory.mktemp("stock")
    folder.chmod(0o777)  # stock's brick checks permissions
    with NetNamespace() as netns, StockVolume(folder, "v1", netns) as served, netns.entered():
        yield served


class Mounted:
    """The volume's own client graph, from GETSPEC, and which fops stock has done over it."""

    def __init__(self, pump: Pump, session: Session) -> None:
        self.pump = pump
        self.session = session
        self.done: set[type[Fop]] = set()
        self.ran: set[str] = set()

    def call(self, request: Fop) -> Any:
        reply = self.pump.run(self.session.top(request), 30)
        self.done.add(type(request))
        return reply


@pytest.fixture(scope="module")
def mounted(volume: StockVolume) -> Iterator[Mounted]:
    pump = Pump()
    session = Session(Source.of(volume.url("")), pump, pump)
    try:
        pump.run(session.mount(), 30)
        pump.start_background()
        yield Mounted(pump, session)
        pump.run(session.unmount(), 30)
    finally:
        pump.close()


def compared(test: Callable[..., None]) -> Callable[..., None]:
    """A test of the suite under `StockBrick.run`."""

    @functools.wraps(test)
    def run(self: object, brick: StockBrick, **params: Any) -> None:
        brick.run(lambda: test(self, brick=brick, **params))

    return run


class TestStock(LocksSuite, FopSuite):
    """The graph that stock glusterd hands out, on its brick."""

    @pytest.fixture
    def brick(self, mounted: Mounted, request: pytest.FixtureRequest) -> Iterator[Brick]:
        brick = StockBrick(mounted.call, request.node.name)
        mounted.ran.add(request.function.__name__)
        yield brick
        for entry in brick.entries():
            loc = Loc(pargfid=ROOT_GFID, name=entry.name)
            if entry.name not in (b".", b".."):
                brick(fops.Rmdir(loc=loc, xflags=1) if entry.stat.is_dir() else fops.Unlink(loc=loc))

    # No shrinking: what a failed example leaves behind on a brick that is used again would lead it astray.
    examples = settings(FopSuite.examples, max_examples=15, phases=[Phase.generate])

    for _name in dir(FopSuite) + dir(LocksSuite):
        if _name.startswith("test_"):
            locals()[_name] = compared(getattr(LocksSuite, _name, None) or getattr(FopSuite, _name))


def test_put_is_refused_as_what_does_not_exist(mounted: Mounted) -> None:
    with pytest.raises(FopError, match="PROC_UNAVAIL") as caught:
        mounted.call(fops.Put(loc=Loc(pargfid=ROOT_GFID, name=b"f"), mode=0o644, umask=0, flags=0, offset=0, data=b"x"))
    assert caught.value.errno == errno.EOPNOTSUPP


def test_every_fop_was_done(mounted: Mounted) -> None:
    """Stands last: of all that the client can send, there is nothing that stock has not done in the tests above."""
    if left := {name for name in dir(TestStock) if name.startswith("test_")} - mounted.ran:
        pytest.skip(f"needs the whole suite to have run before it, also {', '.join(sorted(left))}")
    stocks = {codec.cls for codec in FOP400.values() if codec.cls.gf_fop < fops.OWN_FIRST}
    assert not stocks - set(NOT_DONE) - mounted.done
