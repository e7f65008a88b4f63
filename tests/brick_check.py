"""What must hold on a brick's disk whoever wrote it, read by plain system calls and nothing of glustx's."""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import xxhash

_ROOT = uuid.UUID(int=1)
_FAN = re.compile("[0-9a-f]{2}")


def names(folder: Path) -> Iterator[Path]:
    """Everything that has a name in the volume, by its path on the brick."""
    for top, folders, files in os.walk(folder):
        if Path(top) == folder:
            folders.remove(".glusterfs")
        for name in (*folders, *files):
            yield Path(top, name)


def handles(folder: Path) -> Iterator[Path]:
    """Every handle of a brick but the root's."""
    inside = folder / ".glusterfs"
    for one in sorted(os.listdir(inside)):
        if _FAN.fullmatch(one):
            for two in os.listdir(inside / one):
                for name in os.listdir(inside / one / two):
                    if name != str(_ROOT):
                        yield inside / one / two / name


class Layout:
    """A brick folder and the xattr namespace that it uses.

    bare: its files have neither gfid2path xattrs nor mdata, as when those options are off.
    """

    def __init__(self, folder: Path, namespace: str = "trusted", *, bare: bool = False) -> None:
        self.folder = folder
        self.prefix = "" if namespace == "trusted" else "user.glustx."
        self.bare = bare

    def xattrs(self, path: Path) -> dict[str, bytes]:
        """The xattrs of an object as clients know them."""
        st = path.lstat()
        if self.prefix and not (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)):
            path = self.folder / ".glusterfs/xattrs" / str(st.st_ino)
            if not path.exists():
                return {}
        found = {
            name: os.getxattr(path, name, follow_symlinks=False) for name in os.listxattr(path, follow_symlinks=False)
        }
        return {name.removeprefix(self.prefix): value for name, value in found.items()}

    def handle(self, gfid: uuid.UUID) -> Path:
        """The place of a gfid's handle."""
        text = str(gfid)
        return self.folder / ".glusterfs" / text[:2] / text[2:4] / text

    def problems(self) -> list[str]:
        """What is not as it must be: names, gfids, handles, gfid2path xattrs, times, and what only a crash leaves."""
        wrong: list[str] = []
        links: dict[int, list[Path]] = defaultdict(list)
        owners: dict[uuid.UUID, int] = {}
        for path in names(self.folder):
            st = path.lstat()
            text = str(path.relative_to(self.folder))
            gfid = self.xattrs(path).get("trusted.gfid", b"")
            if len(gfid) != 16:
                wrong.append(f"{text} has no gfid")
                continue
            links[st.st_ino].append(path)
            if owners.setdefault(uuid.UUID(bytes=gfid), st.st_ino) != st.st_ino:
                wrong.append(f"{text} shares its gfid with another object")
            wrong += self._check_handle(path, text, st, uuid.UUID(bytes=gfid))
            if not self.bare and len(self.xattrs(path).get("trusted.glusterfs.mdata", b"")) != 57:
                wrong.append(f"{text} has no times")
        for paths in links.values():
            wrong += self._check_links(paths)
        for handle in handles(self.folder):
            if not re.fullmatch("[0-9a-f-]{36}", handle.name) or uuid.UUID(handle.name) not in owners:
                wrong.append(f"handle {handle.name} is nobody's")
        inside = self.folder / ".glusterfs"
        for name in ("unlink", "landfill"):
            wrong += [f"{name} holds {entry}" for entry in os.listdir(inside / name)]
        if self.prefix:
            wrong += [f"sidecar {ino} is nobody's" for ino in os.listdir(inside / "xattrs") if int(ino) not in links]
        return wrong

    def _check_handle(self, path: Path, text: str, st: os.stat_result, gfid: uuid.UUID) -> list[str]:
        handle = self.handle(gfid)
        if not os.path.lexists(handle):
            return [f"{text} has no handle"]
        if not stat.S_ISDIR(st.st_mode):
            return [] if handle.lstat().st_ino == st.st_ino else [f"the handle of {text} is another object"]
        parent = str(self._gfid(path.parent))
        wanted = f"../../{parent[:2]}/{parent[2:4]}/{parent}/{path.name}"
        found = os.readlink(handle) if handle.is_symlink() else "not a link"
        return [] if found == wanted else [f"the handle of {text} says {found}"]

    def _gfid(self, folder: Path) -> uuid.UUID:
        return _ROOT if folder == self.folder else uuid.UUID(bytes=self.xattrs(folder)["trusted.gfid"])

    def _check_links(self, paths: list[Path]) -> list[str]:
        st = paths[0].lstat()
        if stat.S_ISDIR(st.st_mode):
            return []
        text = " and ".join(str(path.relative_to(self.folder)) for path in paths)
        wrong = []
        if st.st_nlink != len(paths) + 1:
            wrong.append(f"{text}: {st.st_nlink} links of {len(paths)} names and a handle")
        recorded = {key: value for key, value in self.xattrs(paths[0]).items() if key.startswith("trusted.gfid2path.")}
        wanted = {}
        for path in paths:
            value = f"{self._gfid(path.parent)}/".encode() + os.fsencode(path.name)
            wanted["trusted.gfid2path." + xxhash.xxh64_hexdigest(value)] = value
        if recorded != wanted and not self.bare:
            wrong.append(f"{text}: gfid2path has {sorted(recorded.values())} for {sorted(wanted.values())}")
        return wrong


def content(layout: Layout) -> dict[str, tuple[object, ...]]:
    """What clients can see of a brick but times: type, mode, owner, gfid, link target or bytes, and user xattrs by
    path."""
    found: dict[str, tuple[object, ...]] = {}
    for path in names(layout.folder):
        st = path.lstat()
        xattrs = layout.xattrs(path)
        inner: object = None
        if stat.S_ISLNK(st.st_mode):
            inner = os.readlink(path)
        elif stat.S_ISREG(st.st_mode):
            inner = path.read_bytes()
        users = sorted(item for item in xattrs.items() if item[0].startswith("user."))
        found[str(path.relative_to(layout.folder))] = (
            oct(st.st_mode), st.st_uid, st.st_gid, xattrs.get("trusted.gfid", b"").hex(), inner, users
        )  # fmt: skip
    return found
