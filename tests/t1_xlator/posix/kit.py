"""What the tests of storage/posix share: a brick on a folder, short ways to use it and to look at its disk, faults."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.errors import FopError
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    Loc,
    gfid_text,
    new_gfid,
)
from glustx.xdata import (
    CONTENT,
    GFID_REQ,
    MDATA_KEY,
    Xdata,
    gfuuid,
    uint,
)

T0 = 0x6B0D9BE2 * 10**9 + 0x35DAFCC6  # the time in the fact sheet's mdata example
BIRTH = 31
ROOT_TEXT = "00000000-0000-0000-0000-000000000001"
WANTED = Xdata({MDATA_KEY: 1, CONTENT: uint(65536), b"security.ima": 0, b"user.colour": 0})


def trusted_allowed(folder: Path) -> bool:
    try:
        os.setxattr(folder, "trusted.glustx-test", b"1")
        os.removexattr(folder, "trusted.glustx-test")
    except OSError:
        return False
    return True


class Brick:
    """A graph of storage/posix alone on a folder, and short ways to call it."""

    def __init__(self, folder: Path, namespace: str = "trusted", **options: str) -> None:
        self.folder = folder
        self.namespace = namespace
        self.fds: list[Fd] = []
        self.reactor = ManualReactor()
        lines = [f" option {key.replace('_', '-')} {value}" for key, value in options.items()]
        text = "\n".join(
            [
                "volume posix",
                " type storage/posix",
                f" option directory {folder}",
                f" option xattr-namespace {namespace}",
                *lines,
                "end-volume",
            ]
        )
        self.graph = Graph.load(text, Surroundings(self.reactor, host="host.example"))
        self.reactor.wait(self.graph.start())
        self.posix: Any = self.graph.root

    def close(self) -> None:
        for fd in self.fds:
            self.release(fd)
        self.fds = []
        self.reactor.wait(self.graph.stop())

    def do(self, req: fops.Fop) -> Any:
        return self.reactor.wait(self.graph.top(req))

    def fails(self, number: int, req: fops.Fop) -> FopError:
        with pytest.raises(FopError) as caught:
            self.do(req)
        assert errno.errorcode[caught.value.errno] == errno.errorcode[number], caught.value
        return caught.value

    # -- short ways

    def create(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> tuple[Fd, bytes]:
        fd = Fd(NULL_GFID, os.O_RDWR)
        reply = self.do(self.creation(name, parent, fd=fd, **more))
        self.fds.append(fd)
        return fd, reply.stat.gfid

    def creation(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> fops.Create:
        fields: dict[str, Any] = {
            "fd": Fd(NULL_GFID, os.O_RDWR),
            "flags": os.O_RDWR | os.O_EXCL,
            "mode": 0o644,
            "xdata": birth(),
            **more,
        }
        return fops.Create(loc=Loc(pargfid=parent, name=name), **fields)

    def mkdir(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> bytes:
        fields = {"mode": 0o755, "xdata": birth(), **more}
        gfid: bytes = self.do(fops.Mkdir(loc=Loc(pargfid=parent, name=name), **fields)).stat.gfid
        return gfid

    def lookup(self, name: bytes, parent: bytes = ROOT_GFID, xdata: Xdata = WANTED) -> Any:
        return self.do(fops.Lookup(loc=Loc(pargfid=parent, name=name), xdata=xdata))

    def write(self, fd: Fd, data: bytes, offset: int = 0, **more: Any) -> Any:
        return self.do(fops.Write(fd=fd, offset=offset, data=data, **more))

    def read(self, fd: Fd, size: int = 1 << 20, offset: int = 0) -> Any:
        return self.do(fops.Read(fd=fd, offset=offset, size=size))

    def open(self, gfid: bytes, flags: int = os.O_RDWR) -> Fd:
        fd = Fd(gfid, flags)
        self.do(fops.Open(loc=Loc(gfid=gfid), fd=fd, flags=flags))
        self.fds.append(fd)
        return fd

    def opendir(self, gfid: bytes) -> Fd:
        fd = Fd(gfid, 0, directory=True)
        self.do(fops.Opendir(loc=Loc(gfid=gfid), fd=fd))
        self.fds.append(fd)
        return fd

    def release(self, fd: Fd) -> None:
        self.do(fops.Release(fd=fd))

    def unlink(self, name: bytes, parent: bytes = ROOT_GFID, **more: Any) -> Any:
        return self.do(fops.Unlink(loc=Loc(pargfid=parent, name=name), **more))

    def rename(self, old: bytes, new: bytes, parent: bytes = ROOT_GFID, to: bytes = ROOT_GFID) -> Any:
        return self.do(fops.Rename(oldloc=Loc(pargfid=parent, name=old), newloc=Loc(pargfid=to, name=new)))

    def names(self, gfid: bytes = ROOT_GFID) -> list[bytes]:
        fd = self.opendir(gfid)
        found = [e.name for e in self.do(fops.Readdir(fd=fd, offset=0, size=1 << 20)).entries]
        self.do(fops.Releasedir(fd=fd))
        return sorted(found)

    # -- what is on disk

    def key(self, key: str) -> str:
        return key if self.namespace == "trusted" else f"user.glustx.{key}"

    def xattr(self, path: Path, key: str) -> bytes:
        return os.getxattr(path, self.key(key), follow_symlinks=False)

    def set_xattr(self, path: Path, key: str, value: bytes) -> None:
        os.setxattr(path, self.key(key), value, follow_symlinks=False)

    def xattrs(self, path: Path) -> set[str]:
        prefix = self.key("trusted.")
        found = os.listxattr(path, follow_symlinks=False)
        return {f"trusted.{name[len(prefix) :]}" for name in found if name.startswith(prefix)}

    def handle(self, gfid: bytes) -> Path:
        text = gfid_text(gfid)
        return self.folder / ".glusterfs" / text[:2] / text[2:4] / text

    def tree(self) -> dict[str, tuple[int, int]]:
        """Everything on the brick: mode and link count by path, without the health file and the folders of handles."""
        found = {}
        for path in sorted(self.folder.rglob("*")):
            st = path.lstat()
            text = str(path.relative_to(self.folder))
            fan = len(path.parts) - len(self.folder.parts) <= 3 and text.startswith(".glusterfs/") and path.is_dir()
            if not fan or path.is_symlink():
                found[text] = (st.st_mode, st.st_nlink)
        return found


def birth(**more: Any) -> Xdata:
    return Xdata({GFID_REQ: gfuuid(new_gfid())})


def gift(pairs: dict[bytes, object]) -> Xdata:
    return Xdata({GFID_REQ: gfuuid(new_gfid()), **pairs})


def restarted(brick: Brick, **options: str) -> Brick:
    """The same folder under a graph that has seen nothing of it."""
    brick.close()
    fresh = Brick(brick.folder, brick.namespace, **options)
    brick.graph, brick.reactor, brick.posix = fresh.graph, fresh.reactor, fresh.posix
    return brick


class Faulty:
    """Makes the nth call of a function of `os` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, nth: int, number: int = errno.ENOSPC) -> None:
        self.real = getattr(os, name)
        self.left = nth
        self.number = number
        self.struck = False
        monkeypatch.setattr(os, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.struck = True
            raise OSError(self.number, os.strerror(self.number))
        return self.real(*args, **kwargs)


def failure(brick: Brick, req: fops.Fop) -> FopError | None:
    """The error of a fop, None when it did not fail."""
    try:
        brick.do(req)
    except FopError as error:
        return error
    return None


def attempts(brick: Brick, name: bytes = b"new") -> dict[str, fops.Fop]:
    root = ROOT_GFID
    return {
        "create": brick.creation(name),
        "mkdir": fops.Mkdir(loc=Loc(pargfid=root, name=name), mode=0o755, xdata=birth()),
        "mknod": fops.Mknod(loc=Loc(pargfid=root, name=name), mode=stat.S_IFIFO | 0o644, xdata=birth()),
        "symlink": fops.Symlink(loc=Loc(pargfid=root, name=name), linkname=b"x", xdata=birth()),
        "put": fops.Put(
            loc=Loc(pargfid=root, name=name),
            mode=0o644,
            umask=0,
            flags=0,
            offset=0,
            data=b"data",
            xattrs=Xdata({b"user.a": b"1"}),
            xdata=birth(),
        ),
    }
