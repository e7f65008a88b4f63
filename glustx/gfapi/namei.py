"""From a path to an inode: LOOKUP by LOOKUP, directories from memory for a second, symbolic links followed here."""

from __future__ import annotations

import errno
import os
from typing import Union

import msgspec

from glustx.errors import FopError
from glustx.fops import Lookup, Readlink
from glustx.gfapi.session import Session
from glustx.values import NULL_GFID, ROOT_GFID, Caller, Iatt, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid

StrPath = Union[str, "os.PathLike[str]"]
BytesPath = Union[bytes, "os.PathLike[bytes]"]
PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]

MAX_LINKS = 40
_PATH_MAX = 4096
_ENODATA = 61  # Linux's number, like all below this edge


def to_bytes(path: PathLike) -> bytes:
    """Return a path as the bytes that travel: UTF-8, with surrogates standing for bytes that are not."""
    raw = os.fspath(path)
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    if b"\0" in raw:
        raise ValueError("embedded null byte")
    return raw


def to_text(raw: bytes) -> str:
    """Return bytes of a path as text, the reverse of `to_bytes`."""
    return raw.decode("utf-8", "surrogateescape")


def _parts(raw: bytes) -> list[bytes]:
    """Return the components of a path, the last one first."""
    return [part for part in reversed(raw.split(b"/")) if part and part != b"."]


class Spot(msgspec.Struct, frozen=True, gc=False):
    """A place in the tree.

    `parent` and `name` are empty for the root; `gfid` and `stat` for a name that was not looked up. `path` has neither
    symbolic links nor dots.
    """

    parent: bytes
    name: bytes
    path: bytes
    gfid: bytes = NULL_GFID
    stat: Iatt | None = None

    def loc(self) -> Loc:
        """The place as fops want it."""
        return Loc(gfid=self.gfid, pargfid=self.parent, name=self.name, path=self.path)

    def named(self) -> Loc:
        """The name alone, for a fop that makes or removes it."""
        return Loc(pargfid=self.parent, name=self.name, path=self.path)


class Whereabouts:
    """The directory that paths without a leading slash start from; views of one volume for several users share it."""

    __slots__ = ("path",)

    def __init__(self, path: bytes = b"/") -> None:
        self.path = path


class Walker:
    """Resolves paths for one caller.

    A path is taken from the volume's root; one that does not begin with a slash from `here`, the root until `chdir`.
    """

    def __init__(self, session: Session, caller: Caller, here: Whereabouts | None = None) -> None:
        self.session = session
        self.caller = caller
        self.here = here or Whereabouts()

    async def find(self, path: PathLike, follow: bool = True) -> tuple[Loc, Iatt]:
        """Return the loc and the attributes of what `path` names; FopError ENOENT, ENOTDIR, ELOOP, ENAMETOOLONG."""
        spot = await self.walk(to_bytes(path), True, follow)
        assert spot.stat is not None
        return spot.loc(), spot.stat

    async def place(self, path: PathLike) -> Spot:
        """Return the directory and the name of `path` without looking the name up.

        Raises FopError EEXIST for the root and for a path that ends in `..`: they are not names that could be made.
        """
        spot = await self.walk(to_bytes(path), False, False)
        if not spot.name:
            raise FopError(errno.EEXIST, "the path ends in no name")
        return spot

    async def walk(self, raw: bytes, look: bool, follow: bool) -> Spot:
        """Walk to the end of a path.

        Args:
            raw: the path.
            look: whether the last component is looked up (it must exist then).
            follow: whether a symbolic link there is followed.
        """
        if not raw:
            raise FopError(errno.ENOENT, "an empty path")
        if len(raw) > _PATH_MAX:
            raise FopError(errno.ENAMETOOLONG, f"a path of {len(raw)} bytes")
        if not raw.startswith(b"/"):
            raw = self.here.path + b"/" + raw
        top, caller, dentries = self.session.top, self.caller, self.session.dentries
        todo = _parts(raw)
        # A slash at the end asks for a directory.
        folder = raw.endswith((b"/", b"/."))
        gfids: list[bytes] = [ROOT_GFID]
        names: list[bytes] = []
        stat: Iatt | None = None
        links = 0
        while todo:
            name = todo.pop()
            if name == b"..":
                if names:
                    names.pop()
                    gfids.pop()
                stat = None
                continue
            last = not todo
            parent = gfids[-1]
            if last:
                if not look:
                    return Spot(parent, name, b"/" + b"/".join([*names, name]))
            else:
                known = dentries.get(parent, name)
                if known is not None:
                    gfids.append(known)
                    names.append(name)
                    continue
            path = b"/" + b"/".join([*names, name])
            loc = Loc(pargfid=parent, name=name, path=path)
            try:
                stat = (await top(Lookup(loc=loc, caller=caller))).stat
            except FopError as error:
                if error.errno != _ENODATA:
                    raise
                # It has no gfid: the brick was killed as it made it, or it was put there behind the brick's back.
                gfid_req = Xdata({GFID_REQ: gfuuid(new_gfid())})
                stat = (await top(Lookup(loc=loc, xdata=gfid_req, caller=caller))).stat
            if stat.is_dir():
                dentries.put(parent, name, stat.gfid)
            elif stat.is_lnk() and (not last or follow or folder):
                links += 1
                if links > MAX_LINKS:
                    raise FopError(errno.ELOOP, f"more than {MAX_LINKS} symbolic links")
                loc = Loc(gfid=stat.gfid, pargfid=parent, name=name, path=path)
                target = (await top(Readlink(loc=loc, size=_PATH_MAX, caller=caller))).path
                if not target:
                    raise FopError(errno.ENOENT, "an empty symbolic link")
                if target.startswith(b"/"):
                    gfids, names = [ROOT_GFID], []
                todo.extend(_parts(target))
                stat = None
                continue
            elif not last or folder:
                raise FopError(errno.ENOTDIR)
            gfids.append(stat.gfid)
            names.append(name)
        gfid = gfids[-1]
        path = b"/" + b"/".join(names)
        if stat is None and look:
            stat = (await top(Lookup(loc=Loc(gfid=gfid, path=path), caller=caller))).stat
        if not names:
            return Spot(NULL_GFID, b"", b"/", ROOT_GFID, stat)
        if not look:
            return Spot(NULL_GFID, b"", path, gfid, stat)  # ended in ".."
        return Spot(gfids[-2], names[-1], path, gfid, stat)
