"""A brick whose process dies before each system call of each fop that changes names or attributes: the next start finds
the change made or not made, and nothing in between."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from glustx import fops, linux
from glustx.values import (
    ROOT_GFID,
    SET_ATIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_UID,
    Caller,
    Iatt,
    Loc,
    gfid_from_text,
)
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from tests.brick_check import Layout, content
from tests.conftest import ExpectedLogs
from tests.t1_xlator.posix.kit import T0, Brick, trusted_allowed

CHANGING = (
    *("chmod", "chown", "fchmod", "fchown", "ftruncate", "link", "mkdir", "mknod", "open", "pwrite", "pwritev"),
    *("removexattr", "rename", "rmdir", "setxattr", "symlink", "truncate", "unlink", "utime", "write"),
)
SECOND = 10**9


def gfid(number: int) -> bytes:
    """A gfid that both the process that dies and the one that looks know."""
    return gfid_from_text(f"{number:08x}-0000-4000-8000-000000000000")


def named(name: bytes, parent: bytes = ROOT_GFID) -> Loc:
    """A name's loc."""
    return Loc(pargfid=parent, name=name)


def born(number: int, gifts: dict[bytes, bytes] | None = None) -> dict[str, Any]:
    """The fields of a fop that makes object `number`, with xattrs."""
    return {"xdata": Xdata({GFID_REQ: gfuuid(gfid(number)), **(gifts or {})}), "ctime": T0, "stamp": 31}


LATER = {"ctime": T0 + 7 * SECOND, "stamp": 31}
USER = Caller(uid=1000, gid=1001)


def prepare(brick: Brick) -> None:
    """What the fops find: two folders, files with one and with two names, one of each other kind."""
    do = brick.do
    for number, name in ((1, b"d"), (2, b"e"), (3, b"empty")):
        do(fops.Mkdir(named(name), 0o755, **born(number)))
    do(fops.Mkdir(named(b"inner", gfid(1)), 0o755, **born(4)))
    for number, (parent, name) in enumerate(
        ((ROOT_GFID, b"a"), (ROOT_GFID, b"b"), (gfid(1), b"c"), (gfid(4), b"deep")), 10
    ):
        fd, _ = brick.create(name, parent, **born(number))
        brick.write(fd, b"content of %d" % number, ctime=T0, stamp=3)
        brick.release(fd)
    brick.fds = []
    do(fops.Link(Loc(gfid=gfid(11)), named(b"b2", gfid(2)), ctime=T0, stamp=31))
    do(fops.Symlink(named(b"link"), b"/etc/passwd", **born(20)))
    do(fops.Mknod(named(b"fifo"), stat.S_IFIFO | 0o640, **born(21)))
    do(fops.Setxattr(Loc(gfid=gfid(10)), Xdata({b"user.one": b"1", b"user.two": b"2"})))


def rename(old: bytes, new: bytes, source: bytes = ROOT_GFID, target: bytes = ROOT_GFID) -> fops.Rename:
    """A RENAME."""
    return fops.Rename(named(old, source), named(new, target), **LATER)


NEW: dict[str, Any] = {**born(99), **LATER, "caller": USER}
GIFTS: dict[str, Any] = {**born(99, {b"user.gift": b"g"}), **LATER, "caller": USER}
ALL = SET_MODE | SET_UID | SET_GID | SET_ATIME | SET_MTIME
WANTED = Iatt(mode=0o600, uid=1000, gid=1001, atime=5, atime_nsec=6, mtime=7, mtime_nsec=8)
ARRAY = bytes(11) + b"\1"

FOPS: dict[str, Callable[[Brick], fops.Fop]] = {
    "create": lambda brick: brick.creation(b"new", gfid(1), mode=0o4755, **NEW),
    "create-there": lambda brick: brick.creation(b"c", gfid(1), flags=os.O_RDWR, **NEW),
    "mkdir": lambda _: fops.Mkdir(named(b"new", gfid(1)), 0o1777, **GIFTS),
    "mknod": lambda _: fops.Mknod(named(b"new", gfid(1)), stat.S_IFREG | 0o666, **GIFTS),
    "mkfifo": lambda _: fops.Mknod(named(b"new", gfid(1)), stat.S_IFIFO | 0o666, **NEW),
    "symlink": lambda _: fops.Symlink(named(b"new", gfid(1)), b"somewhere", **NEW),
    "put": lambda _: fops.Put(
        named(b"new", gfid(1)), 0o640, 0, 0, 0, b"x" * 5000, Xdata({b"user.a": b"1", b"user.b": b"2"}), **NEW
    ),
    "icreate": lambda _: fops.Icreate(Loc(gfid=gfid(99)), 0o100644, **LATER, caller=USER),
    "link": lambda _: fops.Link(Loc(gfid=gfid(10)), named(b"again", gfid(2)), **LATER),
    "link-of-link": lambda _: fops.Link(Loc(gfid=gfid(20)), named(b"again", gfid(2)), **LATER),
    "unlink": lambda _: fops.Unlink(named(b"a"), **LATER),
    "unlink-one-of-two": lambda _: fops.Unlink(named(b"b"), **LATER),
    "unlink-link": lambda _: fops.Unlink(named(b"link"), **LATER),
    "unlink-fifo": lambda _: fops.Unlink(named(b"fifo"), **LATER),
    "rmdir": lambda _: fops.Rmdir(named(b"empty"), **LATER),
    "rmdir-tree": lambda _: fops.Rmdir(named(b"d"), xflags=1, **LATER),
    "rename": lambda _: rename(b"a", b"z", target=gfid(1)),
    "rename-over": lambda _: rename(b"a", b"c", target=gfid(1)),
    "rename-over-one-of-two": lambda _: rename(b"a", b"b"),
    "rename-one-of-two-over": lambda _: rename(b"b", b"a"),
    "rename-link-over-fifo": lambda _: rename(b"link", b"fifo"),
    "rename-dir": lambda _: rename(b"d", b"moved", target=gfid(2)),
    "rename-dir-over": lambda _: rename(b"d", b"empty"),
    "rename-dir-here": lambda _: rename(b"inner", b"outer", gfid(1), gfid(1)),
    "setattr": lambda _: fops.Setattr(Loc(gfid=gfid(10)), WANTED, ALL, **LATER),
    "setattr-of-dir": lambda _: fops.Setattr(Loc(gfid=gfid(1)), WANTED, ALL, **LATER),
    "setattr-of-link": lambda _: fops.Setattr(Loc(gfid=gfid(20)), WANTED, SET_UID | SET_GID | SET_MTIME, **LATER),
    "setxattr": lambda _: fops.Setxattr(
        Loc(gfid=gfid(10)), Xdata({b"user.one": b"11", b"user.three": b"3", b"user.four": b"4"}), **LATER
    ),
    "setxattr-of-dir": lambda _: fops.Setxattr(Loc(gfid=gfid(1)), Xdata({b"user.a": b"1", b"user.b": b"2"})),
    "removexattrs": lambda _: fops.Removexattr(
        Loc(gfid=gfid(10)), b"", xdata=Xdata({b"user.one": b"", b"user.two": b""}), **LATER
    ),
    "xattrop": lambda _: fops.Xattrop(
        Loc(gfid=gfid(10)), 0, Xdata({b"user.counter.a": ARRAY, b"user.counter.b": ARRAY})
    ),
}


@dataclass
class Cut:
    """Ends the process before the nth changing system call.

    Attributes:
        left: how many may still be made; -1 for all.
        made: the calls, in order.
    """

    left: int
    made: list[str] = field(default_factory=list)

    def arm(self) -> None:
        """Put this in front of every system call that changes something."""
        for name in CHANGING:
            setattr(os, name, self.around(name, getattr(os, name)))
        linux.fallocate = self.around("fallocate", linux.fallocate)

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call that is counted."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if name == "open" and not args[1] & (os.O_CREAT | os.O_TRUNC):
                return real(*args, **kwargs)
            if self.left == 0:
                os._exit(42)
            self.left -= 1
            self.made.append(name)
            return real(*args, **kwargs)

        return call


def die_in(stage: Stage, what: str, left: int) -> bool:
    """Run a fop in a process that makes `left` changing system calls and dies; False when it needed no more."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            brick = Brick(stage.folder, stage.namespace)
            req = FOPS[what](brick)
            Cut(left).arm()
            brick.do(req)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 42), f"{what} with {left} calls: exit {status}"
    return status == 42


def parent_times(brick: Brick, paths: set[str]) -> dict[str, int]:
    """The mtimes of the folders in which names are, by path."""
    folders = {os.path.dirname(path) for path in paths}
    found = {}
    for folder in folders:
        here = ROOT_GFID
        for name in filter(None, folder.split("/")):
            here = brick.lookup(name.encode(), here).stat.gfid
        found[folder] = brick.do(fops.Stat(Loc(gfid=here))).stat.mtime_ns
    return found


class Stage:
    """A prepared brick that can be put back as it was."""

    def __init__(self, work: Path, namespace: str) -> None:
        self.template, self.folder = work / "template", work / "brick"
        self.namespace = namespace
        self.template.mkdir()
        brick = Brick(self.template, namespace)
        prepare(brick)
        brick.close()
        for number in range(1, 255):
            os.rmdir(self.template / f".glusterfs/{number:02x}")  # all gfids begin with 00
        assert Layout(self.template, namespace).problems() == []
        self.fresh()

    def fresh(self) -> None:
        """Put it back."""
        if self.folder.exists():
            shutil.rmtree(self.folder)
        copy(self.template, self.folder, self.namespace)

    def look(self) -> tuple[dict[str, tuple[object, ...]], bool, set[str]]:
        """Start a brick on what is there and check it; return what clients see, whether object 99 is there without a
        name, and which folders have got the times of the fop."""
        brick = Brick(self.folder, self.namespace)
        brick.reactor.run_until(lambda: os.listdir(self.folder / ".glusterfs/landfill") == [])
        seen = content(Layout(self.folder, self.namespace))
        nameless = os.path.lexists(brick.handle(gfid(99))) and not any(v[3] == gfid(99).hex() for v in seen.values())
        if nameless:
            assert brick.do(fops.Stat(Loc(gfid=gfid(99)))).stat.mode == 0o100644
            brick.do(fops.Namelink(named(b"nameless"), **born(99)))
            brick.do(fops.Unlink(named(b"nameless")))
        stamped = {path for path, when in parent_times(brick, set(seen)).items() if when == LATER["ctime"]}
        brick.close()
        assert Layout(self.folder, self.namespace).problems() == []
        return seen, nameless, stamped


def copy(source: Path, target: Path, namespace: str) -> None:
    """Copy a brick with its links and xattrs; sidecars follow the inode numbers."""
    done: dict[int, Path] = {}
    places = {source: target}
    for top, folders, files in os.walk(source):
        here = places[Path(top)]
        here.mkdir()
        for name in list(folders):
            if (Path(top) / name).is_symlink():
                folders.remove(name)
                files.append(name)
            else:
                places[Path(top) / name] = here / name
        for name in files:
            old, new = Path(top) / name, here / name
            st = old.lstat()
            if st.st_ino in done:
                os.link(done[st.st_ino], new, follow_symlinks=False)
                continue
            done[st.st_ino] = new
            if stat.S_ISLNK(st.st_mode):
                os.symlink(os.readlink(old), new)
            elif stat.S_ISREG(st.st_mode):
                new.write_bytes(old.read_bytes())
            else:
                os.mknod(new, st.st_mode)
            finish(old, new)
    for old, new in places.items():
        finish(old, new)
    if namespace == "user":
        by_ino = {str(ino): str(new.lstat().st_ino) for ino, new in done.items()}
        folder = target / ".glusterfs/xattrs"
        for name in os.listdir(folder):
            os.rename(folder / name, folder / f"{by_ino[name]}.to")
        for name in os.listdir(folder):
            os.rename(folder / name, folder / name.removesuffix(".to"))


def finish(old: Path, new: Path) -> None:
    """Give a copy its original's owner, mode and xattrs."""
    st = old.lstat()
    os.chown(new, st.st_uid, st.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(st.st_mode):
        os.chmod(new, stat.S_IMODE(st.st_mode))
    for name in os.listxattr(old, follow_symlinks=False):
        os.setxattr(new, name, os.getxattr(old, name, follow_symlinks=False), follow_symlinks=False)


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stage]]:
    """One stage for each xattr namespace, in memory where that has xattrs: the disk would take most of the time."""
    made: dict[str, Stage] = {}
    memory = Path(tempfile.mkdtemp(prefix="glustx-crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))

    def stage(namespace: str) -> Stage:
        if namespace not in made:
            work = memory / namespace
            work.mkdir()
            if not (trusted_allowed(work) if namespace == "trusted" else user_allowed(work)):
                work = tmp_path_factory.mktemp(namespace)
            made[namespace] = Stage(work, namespace)
        return made[namespace]

    yield stage
    shutil.rmtree(memory)


def user_allowed(folder: Path) -> bool:
    """Whether a file system has user xattrs."""
    try:
        os.setxattr(folder, "user.glustx-test", b"1")
    except OSError:
        return False
    return True


# With xattrs in user.* links and special files have theirs in files beside them; the rest is the same.
SIDECARS = (
    *("create", "mkdir", "mkfifo", "symlink", "link-of-link"),
    *("unlink-link", "unlink-fifo", "rename-link-over-fifo"),
)


@pytest.mark.parametrize(
    ("namespace", "what"), [*(("trusted", what) for what in FOPS), *(("user", what) for what in SIDECARS)]
)
def test_death_before_any_system_call_leaves_all_or_nothing(
    namespace: str, what: str, stages: Callable[[str], Stage], tmp_path: Path, expected_logs: ExpectedLogs
) -> None:
    if namespace == "trusted" and not trusted_allowed(tmp_path):
        pytest.skip("trusted.* xattrs are refused here (not root, or the file system has none)")
    stage = stages(namespace)
    expected_logs.expect("the server was killed in a ")
    stage.fresh()
    before = stage.look()
    stage.fresh()
    assert not die_in(stage, what, -1)
    after = stage.look()
    outcomes = []
    for left in range(200):
        stage.fresh()
        if not die_in(stage, what, left):
            break
        outcome = stage.look()
        assert outcome in (before, after), f"after {left} system calls of {what}"
        outcomes.append(outcome == after)
    assert outcomes == sorted(outcomes), "once made, a change stays made"
    assert what == "create-there" or (before != after and len(outcomes) > 2)
