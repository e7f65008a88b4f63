"""Requests of a client that means no good and has been let in, by group and by name. They are made by hand, since no
client would send them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glustx import fops
from glustx.errors import FopError
from glustx.fops import Fop
from glustx.inode import ANONYMOUS_FD, Fd
from glustx.rpc import dict_v1, message
from glustx.rpc import programs as p
from glustx.rpc.channel import Address
from glustx.values import (
    ENTRYLK_LOCK_NB,
    ENTRYLK_WRLCK,
    F_SETLK,
    F_WRLCK,
    NULL_GFID,
    ROOT_GFID,
    ROOT_LOC,
    SET_MODE,
    SET_UID,
    XATTROP_ADD_ARRAY,
    Caller,
    Flock,
    Iatt,
    Loc,
    new_gfid,
)
from glustx.xdata import GFID_REQ, Typed, Xdata, gfuuid
from tests.kit import PATIENCE
from tests.t3_wire.test_hostile import Peer

LONG = b"n" * 256
HUGE = b"n" * 65536  # a string of a call may be as long, and no longer
USER = Caller(pid=4711, uid=1000, gid=1000, lk_owner=b"the-user")


class _Where:
    def __init__(self, address: Address) -> None:
        self.address = address


class Attacker(Peer):
    """A client that asks for what it should not.

    Args:
        address, name: of the brick.
        caller: whom it claims to be.
    """

    def __init__(
        self, address: Address, name: str, caller: Caller | None = None, timeout: float = PATIENCE, client: str = ""
    ) -> None:
        super().__init__(_Where(address), timeout)  # type: ignore[arg-type]
        self.name = name
        self.client = client or f"attacker-{os.getpid()}-{id(self)}"
        self.cred = message.encode_auth_v3(caller or Caller(pid=os.getpid(), lk_owner=b"attacker"))

    def setvolume(self) -> bytes:
        pairs = {
            "process-uuid": self.client,
            "remote-subvolume": self.name,
            "fops-version": p.FOP_400.number,
            "client-version": "10.3",
            "process-name": "attacker",
            "clnt-lk-version": 1,
            "opversion": 100000,
        }
        return p.SetvolumeRequest(dict_v1.pack_all(pairs)).encode()

    def fop_call(self, req: Fop) -> bytes:
        for fd in (getattr(req, field, None) for field in ("fd", "fd_in", "fd_out")):
            if isinstance(fd, Fd) and fd.anonymous:
                self.numbers[id(fd)] = ANONYMOUS_FD
        return super().fop_call(req)

    def errno(self, req: Fop) -> int:
        """The errno of a request; 0 when it was done."""
        try:
            self.fop(req)
        except FopError as error:
            return error.errno
        return 0

    def made(self, req: Any) -> bytes:
        """Make an object, which must succeed, and return its gfid."""
        return bytes(self.fop(req).stat.gfid)


def new(gfid: bytes | None = None) -> Xdata:
    """The xdata of a fop that makes an object."""
    return Xdata({GFID_REQ: gfuuid(gfid or new_gfid())})


def at(name: bytes, parent: bytes = ROOT_GFID) -> Loc:
    """A name in a folder."""
    return Loc(pargfid=parent, name=name)


class Scene:
    """What lies on a brick before the attacks: a file, a folder, a link that leads out, a pipe and a device.

    Args:
        attacker: makes it all, as root.
        outside: a folder of the machine that is no part of the brick.
    """

    def __init__(self, attacker: Attacker, outside: Path) -> None:
        self.attacker = attacker
        made = attacker.made
        self.file = made(fops.Mknod(at(b"file"), stat.S_IFREG | 0o640, xdata=new()))
        self.dir = made(fops.Mkdir(at(b"dir"), 0o755, xdata=new()))
        self.out = made(fops.Symlink(at(b"out"), os.fsencode(outside), xdata=new()))
        self.out_file = made(fops.Symlink(at(b"out-file"), os.fsencode(outside / "secret"), xdata=new()))
        self.pipe = made(fops.Mknod(at(b"pipe"), stat.S_IFIFO | 0o666, xdata=new()))
        self.device = made(fops.Mknod(at(b"device"), stat.S_IFCHR | 0o666, os.makedev(1, 3), xdata=new()))
        self.open_to_all = made(fops.Mkdir(at(b"open-to-all"), 0o777, xdata=new()))


def _shown(key: bytes) -> str:
    text = key.decode("ascii", "backslashreplace").replace("\0", "\\0") or "(empty)"
    return text if len(text) <= 60 else text[:20] + "..."


def making(parent: bytes, name: bytes) -> dict[str, Fop]:
    """Each fop that makes a name."""
    return {
        "create": fops.Create(at(name, parent), Fd(NULL_GFID, 2), 0o302, 0o644, xdata=new()),
        "mknod": fops.Mknod(at(name, parent), stat.S_IFREG | 0o644, xdata=new()),
        "mkdir": fops.Mkdir(at(name, parent), 0o755, xdata=new()),
        "symlink": fops.Symlink(at(name, parent), b"target", xdata=new()),
    }


def naming(scene: Scene, parent: bytes, name: bytes) -> dict[str, Fop]:
    """Each fop that takes a name."""
    return {
        **making(parent, name),
        "lookup": fops.Lookup(at(name, parent)),
        "unlink": fops.Unlink(at(name, parent)),
        "rmdir": fops.Rmdir(at(name, parent)),
        "link": fops.Link(Loc(gfid=scene.file), at(name, parent)),
        "rename-to": fops.Rename(Loc(gfid=scene.file, pargfid=ROOT_GFID, name=b"file"), at(name, parent)),
        "rename-from": fops.Rename(Loc(gfid=scene.file, pargfid=parent, name=name), at(b"new-name")),
    }


def on_links(scene: Scene) -> dict[str, Fop]:
    """Fops that would leave the brick if the link to the outside were followed."""
    link, to_file = Loc(gfid=scene.out), Loc(gfid=scene.out_file)
    mode = Iatt(mode=0o777)
    return {
        **{f"{fop} below": req for fop, req in naming(scene, scene.out, b"planted").items()},
        "opendir": fops.Opendir(link, Fd(scene.out, 0, directory=True)),
        "open": fops.Open(to_file, Fd(scene.out_file, 2), 2),
        "truncate": fops.Truncate(to_file, 0),
        "read-anonymous": fops.Read(Fd(scene.out_file, 2, anonymous=True), 0, 100),
        "write-anonymous": fops.Write(Fd(scene.out_file, 2, anonymous=True), 0, b"planted"),
        "zerofill-anonymous": fops.Zerofill(Fd(scene.out_file, 2, anonymous=True), 0, 100),
        "create-over": fops.Create(at(b"out-file"), Fd(NULL_GFID, 2), 0o102, 0o644, xdata=new()),
        "chmod": fops.Setattr(to_file, mode, SET_MODE),
        "xattr": fops.Setxattr(to_file, Xdata({b"user.planted": b"1"})),
    }


def on_devices(scene: Scene) -> dict[str, Fop]:
    """Fops that would hang or reach a driver if a special file were opened."""
    found: dict[str, Fop] = {}
    for name, gfid in (("pipe", scene.pipe), ("device", scene.device)):
        for flags in (0, 1, 2):
            found[f"open-{flags} {name}"] = fops.Open(Loc(gfid=gfid), Fd(gfid, flags), flags)
        found[f"create-over {name}"] = fops.Create(at(name.encode()), Fd(NULL_GFID, 2), 0o102, 0o644, xdata=new())
        found[f"truncate {name}"] = fops.Truncate(Loc(gfid=gfid), 0)
        found[f"read-anonymous {name}"] = fops.Read(Fd(gfid, 2, anonymous=True), 0, 10)
        found[f"write-anonymous {name}"] = fops.Write(Fd(gfid, 2, anonymous=True), 0, b"x")
        found[f"zerofill-anonymous {name}"] = fops.Zerofill(Fd(gfid, 2, anonymous=True), 0, 10)
    return found


def writing_keys(scene: Scene) -> dict[str, Fop]:
    """Xattrs that are the brick's own, are none, or are too large."""
    here = Loc(gfid=scene.file)
    values = {
        b"trusted.gfid": bytes(range(16)),
        b"trusted.glusterfs.volume-id": bytes(16),
        b"trusted.glusterfs.mdata": b"no mdata",
        b"trusted.gfid2path.0123456789abcdef": b"00000000-0000-0000-0000-000000000001/elsewhere",
        b"trusted.pgfid.00000000-0000-0000-0000-000000000001": b"\0\0\0\x09",
        b"trusted.glusterfs.pathinfo": b"x",
        b"glusterfs.gfidtopath": b"x",
        b"glusterfs.unknown": b"x",
        b"security.capability": b"\1\0\0\2" + b"\xff" * 16,
        b"security.selinux": b"system_u:object_r:x:s0",
        b"system.posix_acl_access": b"no acl",
        b"system.unknown": b"x",
        b"user.glustx.trusted.gfid": bytes(16),
        b"nothing": b"x",
        b"": b"x",
        b"user.": b"x",
        b"user.nul\0behind": b"x",
        b"user.slash/../../x": b"x",
        b"user." + b"k" * 251: b"x",
        b"user." + b"k" * 65000: b"x",
        b"user.%s%n%x": b"%s%n",
        b"user.too-large": bytes(65537),
        b"user.huge": bytes(8 << 20),
    }
    named = {f"{_shown(key)} ({len(key)} bytes)": key for key in values}
    found: dict[str, Fop] = {}
    for name, key in named.items():
        found[f"set {name}"] = fops.Setxattr(here, Xdata({key: values[key]}))
        if len(key) < 60000:
            found[f"remove {name}"] = fops.Removexattr(here, key)
            found[f"get {name}"] = fops.Getxattr(here, key)
    return found


def counting(scene: Scene) -> dict[str, Fop]:
    """XATTROPs on keys and with values that make no sense."""
    here = Loc(gfid=scene.dir)
    one = b"\0\0\0\1" * 3
    found: dict[str, Fop] = {}
    paths = (b"../../../etc/passwd", b"trusted.afr./etc/passwd", b"trusted.afr.\0x")
    for key in (b"trusted.afr.x", *paths, b"trusted.gfid", b"trusted.glusterfs.mdata", b"trusted." + b"k" * 300):
        name = _shown(key)
        found[f"xattrop {name}"] = fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({key: one}))
    found["xattrop number"] = fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({b"trusted.afr.n": 7}))
    found["xattrop odd size"] = fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({b"trusted.afr.odd": b"\1\2\3\4\5"}))
    found["xattrop huge"] = fops.Xattrop(here, XATTROP_ADD_ARRAY, Xdata({b"trusted.afr.h": b"\0\0\0\1" * 65536}))
    found["xattrop what"] = fops.Xattrop(here, 77, Xdata({b"trusted.afr.what": one}))
    return found


def locking(scene: Scene) -> dict[str, Fop]:
    """Locks in domains and on names that are no text."""
    here = Loc(gfid=scene.dir)
    flock = Flock(F_WRLCK, 0, 0, 10, 1, b"attacker")
    found: dict[str, Fop] = {}
    for domain in (b"%s%n%x%999999d", b"\xff\xfe\0", b"../..", b"", b"d" * 60000):
        name = _shown(domain)
        found[f"inodelk {name}"] = fops.Inodelk(here, domain, F_SETLK, F_WRLCK, flock)
        found[f"entrylk {name}"] = fops.Entrylk(here, domain, ENTRYLK_LOCK_NB, ENTRYLK_WRLCK, domain or b"n")
    negative = Flock(F_WRLCK, 0, (1 << 63) + 5, (1 << 64) - 1, 1, b"attacker")
    found["inodelk negative"] = fops.Inodelk(here, b"d", F_SETLK, F_WRLCK, negative)
    found["inodelk type"] = fops.Inodelk(here, b"d", F_SETLK, 77, flock)
    found["inodelk command"] = fops.Inodelk(here, b"d", 77, F_WRLCK, flock)
    found["entrylk command"] = fops.Entrylk(here, b"d", 77, ENTRYLK_WRLCK, b"n")
    found["entrylk type"] = fops.Entrylk(here, b"d", ENTRYLK_LOCK_NB, 77, b"n")
    return found


Groups = dict[str, Callable[[Scene], dict[str, Fop]]]

GROUPS: Groups = {
    "pargfid of a file": lambda scene: naming(scene, scene.file, b"child"),
    "unknown pargfid": lambda scene: naming(scene, bytes(range(1, 17)), b"child"),
    "null pargfid": lambda scene: naming(scene, NULL_GFID, b"child"),
    "name with a slash": lambda scene: naming(scene, ROOT_GFID, b"dir/child"),
    "absolute name": lambda scene: naming(scene, ROOT_GFID, b"/etc/planted"),
    "name ..": lambda scene: naming(scene, ROOT_GFID, b".."),
    "name .. in a folder": lambda scene: naming(scene, scene.dir, b".."),
    "name .": lambda scene: naming(scene, scene.dir, b"."),
    "name ../planted": lambda scene: naming(scene, ROOT_GFID, b"../planted"),
    "name with NUL": lambda scene: naming(scene, ROOT_GFID, b"file\0"),
    "empty name": lambda scene: naming(scene, scene.dir, b""),
    "name of 256 bytes": lambda scene: naming(scene, ROOT_GFID, LONG),
    "name of 64 KiB": lambda scene: naming(scene, ROOT_GFID, HUGE),
    ".glusterfs": lambda scene: naming(scene, ROOT_GFID, b".glusterfs"),
    "below the link out": on_links,
    "special files": on_devices,
    "xattrs": writing_keys,
    "xattrop": counting,
    "locks": locking,
}


def by_user(scene: Scene) -> dict[str, Fop]:
    """What a user without rights tries."""
    here, there = Loc(gfid=scene.file), scene.open_to_all
    return {
        "mknod char": fops.Mknod(at(b"null", there), stat.S_IFCHR | 0o666, os.makedev(1, 3), xdata=new()),
        "mknod block": fops.Mknod(at(b"disk", there), stat.S_IFBLK | 0o666, os.makedev(8, 0), xdata=new()),
        "mknod char at the root": fops.Mknod(at(b"null"), stat.S_IFCHR | 0o666, os.makedev(1, 3), xdata=new()),
        "chown": fops.Setattr(here, Iatt(uid=1000), SET_UID),
        "chmod": fops.Setattr(here, Iatt(mode=0o777), SET_MODE),
        "trusted xattr": fops.Setxattr(here, Xdata({b"trusted.mine": b"1"})),
        "capability": fops.Setxattr(here, Xdata({b"security.capability": b"\1\0\0\2" + b"\xff" * 16})),
        "mdata": fops.Setxattr(here, Xdata({b"trusted.glusterfs.mdata": b"\1" + bytes(55)})),
        "set-ctime-mdata": fops.Setxattr(here, Xdata({b"set-ctime-mdata": Typed(6, b"x")})),
        "open": fops.Open(here, Fd(scene.file, 2), 2),
        "write-anonymous": fops.Write(Fd(scene.file, 2, anonymous=True), 0, b"x"),
        "truncate": fops.Truncate(here, 0),
        "root's name": fops.Unlink(at(b"file")),
        "lookup": fops.Lookup(ROOT_LOC),
    }
