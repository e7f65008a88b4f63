"""features/read-only and features/worm: which fop is refused, on which kind of volume, in which state of a file."""

from __future__ import annotations

import errno
import time
from typing import Any

import pytest

from glustx import fops
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, MAY_GROW, WRITES_DATA, Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, run_now
from glustx.values import NULL_GFID, ROOT_GFID, SET_ATIME, SET_ATIME_NOW, SET_MODE, Caller, Iatt, Loc, new_gfid
from glustx.xdata import Xdata
from glustx.xlators.features.read_only import ReadOnly
from glustx.xlators.features.worm import RETEN_STATE, START_TIME, WORM_FILE, State
from tests.conformance.brick import O_APPEND, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, Brick
from tests.fakes import ALL_FOPS, Call, Storage, sample_request, stack

CHANGES = WRITES_DATA | MAY_GROW | CHANGES_ATTRS | CHANGES_NAMES
INTERNAL = Caller(pid=-3)
ONE = Xdata({b"trusted.afr.v-client-0": b"\0\0\0\1"})


def requests(cls: type[Fop], fd: Fd) -> Any:
    """A request of a class on `fd` that does all it may: OPEN and CREATE empty the file, an XATTROP adds."""
    values: dict[str, Any] = {name: fd for name in ("fd", "fd_in", "fd_out") if name in cls.__struct_fields__}
    if cls in (fops.Open, fops.Create):
        values["flags"] = O_RDWR | O_TRUNC
    if "xattrs" in cls.__struct_fields__:
        values["xattrs"] = ONE
    return sample_request(cls, **values)


# -- read-only -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anonymous", [False, True], ids=["fd", "anonymous"])
@pytest.mark.parametrize("cls", ALL_FOPS, ids=lambda cls: cls.name)
def test_read_only_refuses_changes_and_nothing_else(cls: type[Fop], anonymous: bool) -> None:
    req = requests(cls, Fd(ROOT_GFID, 2, anonymous=anonymous))
    graph = stack(Storage, (ReadOnly, {"read-only": "on"}))
    assert Call(graph.top(req)).errno == (errno.EROFS if cls.effects & CHANGES else 0)
    inside = stack(Storage, (ReadOnly, {"read-only": "on"}))
    fields = {name: getattr(req, name) for name in req.__struct_fields__}
    assert Call(inside.top(cls(**{**fields, "caller": INTERNAL}))).errno == 0
    off = stack(Storage, ReadOnly)
    assert Call(off.top(req)).errno == 0


@pytest.mark.parametrize(
    ("flags", "code"),
    [(O_RDONLY, 0), (O_WRONLY, errno.EROFS), (O_RDWR, errno.EROFS), (O_APPEND, errno.EROFS), (O_TRUNC, errno.EROFS)],
)
def test_read_only_opens_for_reading(flags: int, code: int) -> None:
    graph = stack(Storage, (ReadOnly, {"read-only": "on"}))
    assert Call(graph.top(sample_request(fops.Open, flags=flags))).errno == code


@pytest.mark.parametrize("cls", [fops.Xattrop, fops.Fxattrop])
def test_an_xattrop_that_adds_nothing_is_a_question(cls: type[Fop]) -> None:
    graph = stack(Storage, (ReadOnly, {"read-only": "on"}))
    assert Call(graph.top(sample_request(cls, xattrs=Xdata({b"trusted.afr.dirty": bytes(12)})))).errno == 0
    assert Call(graph.top(sample_request(cls, xattrs=ONE))).errno == errno.EROFS


def test_read_only_follows_a_live_change() -> None:
    graph = stack(Storage, ReadOnly)
    xlator = graph.xlators["read-only"]
    xlator.options.read_only = True
    with pytest.raises(Exception, match=r"EROFS: localhost: write <.*>: the volume is read-only"):
        Call(graph.top(sample_request(fops.Write))).result()
    xlator.options.read_only = False
    Call(graph.top(sample_request(fops.Write))).result()


# -- worm, a whole volume --------------------------------------------------------------------------------------------

VOLFILE = """
volume store
    type storage/memory
end-volume
volume top
    type features/worm
    {options}
    subvolumes store
end-volume
"""


class WormBrick(Brick):
    """A brick below features/worm, and the way past it."""

    def __init__(self, **options: str) -> None:
        lines = "\n    ".join(f"option {key.replace('_', '-')} {value}" for key, value in options.items())
        self.graph = Graph.load(VOLFILE.format(options=lines), Surroundings(ManualReactor()))
        run_now(self.graph.start())
        super().__init__(lambda request: run_now(self.graph.top(request)))
        below = self.graph.xlators["store"]
        self.below = Brick(lambda request: run_now(below.table[type(request)](request)))

    def xattr(self, gfid: bytes, key: bytes) -> bytes | None:
        code, reply = self.below.outcome(fops.Getxattr(loc=Loc(gfid=gfid), key=key))
        return None if code else bytes(reply.xattrs[key]).rstrip(b"\0")

    def age(self, gfid: bytes, seconds: int) -> None:
        """Let a file be that much older."""
        now = int(time.time())
        self.below(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({START_TIME: b"%d\0" % (now - seconds)})))
        stat = Iatt(atime=now - seconds, mtime=now - seconds)
        self.below(fops.Setattr(loc=Loc(gfid=gfid), stat=stat, valid=SET_ATIME | 0x20))


@pytest.fixture
def volume() -> WormBrick:
    return WormBrick(worm="on")


def test_a_worm_volume_is_written_through_the_fd_that_makes_a_file(volume: WormBrick) -> None:
    file = volume.make(b"f")
    volume(fops.Write(fd=file.fd, offset=0, data=b"once"))
    volume(fops.Zerofill(fd=file.fd, offset=4096, size=4096))
    for fd in (Fd(file.gfid, O_RDWR, anonymous=True), volume.below.open(file.gfid)):
        for req in (
            fops.Write(fd=fd, offset=0, data=b"twice"),
            fops.Zerofill(fd=fd, offset=0, size=4096),
            fops.Discard(fd=fd, offset=0, size=4096),
            fops.Fallocate(fd=fd, offset=0, size=4096),
            fops.Ftruncate(fd=fd, offset=0),
            fops.CopyFileRange(fd_in=file.fd, fd_out=fd, offset_in=0, offset_out=0, size=4),
        ):
            volume.fails(req, errno.EROFS)
    assert volume.read(file.fd, 0, 4) == b"once"


def test_a_worm_volume_keeps_what_is_there(volume: WormBrick) -> None:
    file, folder = volume.make(b"f", b"x"), volume.mkdir(b"d")
    volume.below(fops.Setxattr(loc=file.loc, xattrs=Xdata({b"user.k": b"v"})))
    for flags in (O_WRONLY, O_RDWR, O_APPEND, O_TRUNC):
        volume.fails(fops.Open(loc=file.loc, fd=Fd(file.gfid, flags), flags=flags), errno.EROFS)
    for req in (
        fops.Truncate(loc=file.loc, offset=0),
        fops.Unlink(loc=file.loc),
        fops.Rmdir(loc=folder),
        fops.Rename(oldloc=file.loc, newloc=Loc(pargfid=ROOT_GFID, name=b"g")),
        fops.Link(oldloc=file.loc, newloc=Loc(pargfid=ROOT_GFID, name=b"g")),
        fops.Removexattr(loc=file.loc, key=b"user.k"),
        fops.Fremovexattr(fd=file.fd, key=b"user.k"),
        fops.Xattrop(loc=file.loc, flags=0, xattrs=ONE),
        fops.Create(
            loc=Loc(pargfid=ROOT_GFID, name=b"f"), fd=Fd(NULL_GFID, 2), flags=O_RDWR, mode=0, xdata=volume.fresh()
        ),
    ):
        volume.fails(req, errno.EROFS)
    # What copies a file with its attributes must be able to finish.
    volume(fops.Setattr(loc=file.loc, stat=Iatt(mode=0o444), valid=SET_MODE))
    volume(fops.Setxattr(loc=file.loc, xattrs=Xdata({b"user.l": b"v"})))
    volume(fops.Open(loc=file.loc, fd=Fd(file.gfid, 0), flags=0))
    volume(fops.Unlink(loc=file.loc, caller=INTERNAL))


def test_a_worm_volume_takes_new_names(volume: WormBrick) -> None:
    volume(fops.Mknod(loc=Loc(pargfid=ROOT_GFID, name=b"n"), mode=0o100644, xdata=volume.fresh()))
    volume(fops.Symlink(loc=Loc(pargfid=ROOT_GFID, name=b"s"), linkname=b"t", xdata=volume.fresh()))
    volume(
        fops.Put(
            loc=Loc(pargfid=ROOT_GFID, name=b"p"), mode=0o644, umask=0, flags=0, offset=0, data=b"x",
            xdata=volume.fresh(),
        )
    )  # fmt: skip
    assert volume.names() == [b"n", b"p", b"s"]


# -- worm, file by file ----------------------------------------------------------------------------------------------


def changes(brick: Brick, gfid: bytes) -> list[Fop]:
    fd = Fd(gfid, O_RDWR, anonymous=True)
    loc = Loc(gfid=gfid)
    return [
        fops.Write(fd=fd, offset=0, data=b"y"),
        fops.Zerofill(fd=fd, offset=0, size=4096),
        fops.Discard(fd=fd, offset=0, size=4096),
        fops.Fallocate(fd=fd, offset=0, size=4096),
        fops.CopyFileRange(fd_in=fd, fd_out=fd, offset_in=0, offset_out=4096, size=1),
        fops.Truncate(loc=loc, offset=1),
        fops.Open(loc=loc, fd=Fd(gfid, O_RDWR), flags=O_RDWR | O_TRUNC),
        fops.Link(oldloc=loc, newloc=Loc(pargfid=ROOT_GFID, name=b"link")),
        fops.Rename(oldloc=Loc(pargfid=ROOT_GFID, name=b"f"), newloc=Loc(pargfid=ROOT_GFID, name=b"g")),
        fops.Rename(oldloc=Loc(pargfid=ROOT_GFID, name=b"other"), newloc=Loc(pargfid=ROOT_GFID, name=b"f")),
        fops.Unlink(loc=Loc(pargfid=ROOT_GFID, name=b"f")),
    ]


def released(brick: WormBrick) -> bytes:
    """A file `f` that its maker has closed, and another."""
    brick.make(b"other")
    file = brick.make(b"f", b"x")
    brick(fops.Release(fd=file.fd))
    return file.gfid


def test_the_xattrs_are_stocks() -> None:
    before = int(time.time())
    brick = WormBrick(worm_file_level="on", default_retention_period="5min", retention_mode="enterprise")
    file = brick.make(b"f", b"x")
    assert before <= int(brick.xattr(file.gfid, START_TIME) or 0) <= time.time()
    assert brick.xattr(file.gfid, WORM_FILE) is None
    brick(fops.Release(fd=file.fd))
    assert brick.xattr(file.gfid, WORM_FILE) == b"1"
    assert brick.xattr(file.gfid, RETEN_STATE) is None
    brick(fops.Setattr(loc=file.loc, stat=Iatt(mode=0o444), valid=SET_MODE))
    assert brick.xattr(file.gfid, RETEN_STATE) == b"11/300/180"
    assert before + 300 <= brick.stat(file.gfid).atime <= time.time() + 300


def test_a_file_is_committed_when_its_write_bits_go() -> None:
    brick = WormBrick(worm_file_level="on")
    gfid = released(brick)
    brick(fops.Write(fd=brick.open(gfid), offset=0, data=b"again"))
    brick(fops.Setattr(loc=Loc(gfid=gfid), stat=Iatt(mode=0o644), valid=SET_MODE))
    brick(fops.Setattr(loc=Loc(gfid=gfid), stat=Iatt(mode=0o444), valid=SET_MODE))
    for req in changes(brick, gfid):
        brick.fails(req, errno.EROFS)
    # Giving the bits back gives nothing back.
    brick(fops.Setattr(loc=Loc(gfid=gfid), stat=Iatt(mode=0o644), valid=SET_MODE))
    brick.fails(fops.Write(fd=brick.open(gfid), offset=0, data=b"no"), errno.EROFS)
    brick(fops.Write(fd=brick.open(gfid), offset=0, data=b"by the healer", caller=INTERNAL))


def test_a_file_left_alone_is_committed_by_who_comes_next() -> None:
    brick = WormBrick(worm_file_level="on", auto_commit_period="60")
    gfid = released(brick)
    brick.age(gfid, 59)
    brick(fops.Write(fd=brick.open(gfid), offset=0, data=b"in time"))
    brick.age(gfid, 61)
    brick.fails(fops.Write(fd=brick.open(gfid), offset=0, data=b"late"), errno.EROFS)
    assert brick.xattr(gfid, RETEN_STATE) == b"3/120/60"


def test_after_its_retention_a_file_can_only_be_removed() -> None:
    for deletable, code in (("on", 0), ("off", errno.EROFS)):
        brick = WormBrick(worm_file_level="on", default_retention_period="0", worm_files_deletable=deletable)
        gfid = released(brick)
        brick(fops.Setattr(loc=Loc(gfid=gfid), stat=Iatt(mode=0o444), valid=SET_MODE))
        for req in changes(brick, gfid)[:-1]:
            brick.fails(req, errno.EROFS)
        assert brick.xattr(gfid, RETEN_STATE) == b"1/0/0"
        assert brick.outcome(changes(brick, gfid)[-1])[0] == code


@pytest.mark.parametrize(("mode", "shorter"), [("relax", 0), ("enterprise", errno.EROFS)])
def test_the_access_time_is_the_end_of_the_retention(mode: str, shorter: int) -> None:
    brick = WormBrick(worm_file_level="on", retention_mode=mode, default_retention_period="1000")
    gfid = released(brick)
    loc = Loc(gfid=gfid)
    brick(fops.Setattr(loc=loc, stat=Iatt(mode=0o444), valid=SET_MODE))
    until = brick.stat(gfid).atime
    brick(fops.Setattr(loc=loc, stat=Iatt(atime=until + 500), valid=SET_ATIME))
    assert State.parse(brick.xattr(gfid, RETEN_STATE) or b"").retention == 1500
    assert brick.outcome(fops.Setattr(loc=loc, stat=Iatt(atime=until), valid=SET_ATIME))[0] == shorter
    assert brick.outcome(fops.Setattr(loc=loc, stat=Iatt(), valid=SET_ATIME_NOW))[0] == shorter
    before_it_was_written = Iatt(atime=brick.stat(gfid).mtime - 1)
    brick.fails(fops.Setattr(loc=loc, stat=before_it_was_written, valid=SET_ATIME), errno.EROFS)


def test_clients_do_not_write_the_state() -> None:
    brick = WormBrick(worm_file_level="on")
    gfid = released(brick)
    for key in (START_TIME, WORM_FILE, RETEN_STATE):
        brick.fails(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({key: b"0"})), errno.EROFS)
        brick.fails(fops.Removexattr(loc=Loc(gfid=gfid), key=key), errno.EROFS)
        brick.fails(fops.Xattrop(loc=Loc(gfid=gfid), flags=4, xattrs=Xdata({key: b"0"})), errno.EROFS)
    brick(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({b"user.k": b"v"})))


def test_a_damaged_state_protects() -> None:
    for key in (START_TIME, RETEN_STATE):
        brick = WormBrick(worm_file_level="on")
        gfid = released(brick)
        brick.below(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({key: b"what/is/this"})))
        brick.fails(fops.Write(fd=brick.open(gfid), offset=0, data=b"y"), errno.EROFS)


def test_files_that_nobody_watched_stay_writable() -> None:
    brick = WormBrick(worm_file_level="on", auto_commit_period="0")
    folder = brick.mkdir(b"d")
    brick(fops.Mknod(loc=Loc(pargfid=folder.gfid, name=b"n"), mode=0o100644, xdata=brick.fresh()))
    gfid = brick.lookup(b"n", folder.gfid).stat.gfid
    brick(fops.Write(fd=brick.open(gfid), offset=0, data=b"y"))
    brick(fops.Unlink(loc=Loc(pargfid=folder.gfid, name=b"n")))
    brick(fops.Rmdir(loc=folder))


def test_a_file_that_is_removed_while_it_is_made() -> None:
    brick = WormBrick(worm_file_level="on")
    file = brick.make(b"f", b"x")
    brick(fops.Unlink(loc=file.loc))
    brick(fops.Release(fd=file.fd))
    assert brick.names() == []


def test_time_does_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """From its creation to its end, by the clock alone."""
    brick = WormBrick(worm_file_level="on", auto_commit_period="60", default_retention_period="100")
    gfid = released(brick)
    write = fops.Write(fd=brick.open(gfid), offset=0, data=b"y")
    now = time.time()
    clock = [now + 30]
    monkeypatch.setattr("glustx.xlators.features.worm.time.time", lambda: clock[0])
    brick(write)
    clock[0] = now + 61
    brick.fails(write, errno.EROFS)
    brick.fails(fops.Unlink(loc=Loc(pargfid=ROOT_GFID, name=b"f")), errno.EROFS)
    clock[0] = now + 162
    brick.fails(write, errno.EROFS)
    brick(fops.Unlink(loc=Loc(pargfid=ROOT_GFID, name=b"f")))


def test_create_of_a_committed_name() -> None:
    brick = WormBrick(worm_file_level="on")
    gfid = released(brick)
    brick(fops.Setattr(loc=Loc(gfid=gfid), stat=Iatt(mode=0o444), valid=SET_MODE))
    again: dict[str, Any] = {"loc": Loc(pargfid=ROOT_GFID, name=b"f"), "mode": 0o644, "xdata": brick.fresh(new_gfid())}
    brick.fails(fops.Create(fd=Fd(NULL_GFID, 2), flags=O_RDWR | O_TRUNC, **again), errno.EROFS)
    brick.fails(fops.Create(fd=Fd(NULL_GFID, 2), flags=O_RDWR | O_EXCL, **again), errno.EROFS, errno.EEXIST)
    assert brick.content(gfid) == b"x"
