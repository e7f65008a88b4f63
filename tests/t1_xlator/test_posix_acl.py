"""system/posix-acl over storage/memory and storage/posix: which fop needs which permission."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glustx import fops
from glustx.fops import CHANGES_ATTRS, CHANGES_NAMES, INTERNAL, LOCKS, MAY_GROW, WRITES_DATA, Fop
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, run_now
from glustx.values import (
    NULL_GFID,
    ROOT_GFID,
    SET_ATIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_UID,
    Caller,
    Iatt,
    Loc,
    new_gfid,
)
from glustx.xdata import CONTENT, GFID_REQ, STR, Typed, Xdata, gfuuid, uint
from glustx.xlators.features.access_control import AccessControl
from glustx.xlators.system import posix_acl_forms as forms
from glustx.xlators.system.posix_acl import PosixAcl
from tests.conformance.brick import O_EXCL, O_RDWR, O_TRUNC, Brick, File
from tests.fakes import ALL_FOPS, Call, Storage, sample_request, stack

ALICE = Caller(pid=1, uid=1000, gid=1000)
BOB = Caller(pid=2, uid=2000, gid=2000, groups=(50, 60))
HEALER = Caller(pid=-6, uid=1000, gid=1000)
NONE = 0xFFFFFFFF

VOLFILE = """
volume store
    type storage/memory
end-volume
volume top
    type system/posix-acl
    subvolumes store
end-volume
"""


class Guarded(Brick):
    """A brick below system/posix-acl."""

    def by(self, caller: Caller, request: Fop, **changes: Any) -> tuple[int, Any]:
        """What comes of a request of somebody else's: errno and reply."""
        fields = {name: getattr(request, name) for name in request.__struct_fields__}
        return self.outcome(type(request)(**{**fields, "caller": caller, **changes}))

    def denies(self, caller: Caller, request: Fop, code: int = errno.EACCES) -> None:
        """It must fail with `code`."""
        got, reply = self.by(caller, request)
        assert got == code, f"{request.name}: {errno.errorcode.get(got, got)}; {reply}"

    def grants(self, caller: Caller, request: Fop) -> Any:
        """It must succeed."""
        got, reply = self.by(caller, request)
        assert got == 0, f"{request.name}: {errno.errorcode.get(got, got)}"
        return reply

    def own(self, gfid: bytes, uid: int, gid: int, mode: int) -> None:
        """Root gives an inode away."""
        stat_ = Iatt(uid=uid, gid=gid, mode=mode)
        self(fops.Setattr(loc=Loc(gfid=gfid), stat=stat_, valid=SET_UID | SET_GID | SET_MODE))

    def acl(self, gfid: bytes, text: str, key: bytes = forms.ACCESS) -> None:
        """Root sets an ACL."""
        raw = forms.pack(forms.from_text(text.encode()))
        self(fops.Setxattr(loc=Loc(gfid=gfid), xattrs=Xdata({key: raw})))


@pytest.fixture
def memory() -> Iterator[Guarded]:
    graph = Graph.load(VOLFILE, Surroundings(ManualReactor()))
    run_now(graph.start())
    yield Guarded(lambda request: run_now(graph.top(request)))
    run_now(graph.stop())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Guarded]:
    """On a file system of the kernel's, which knows ACLs; only root can give files away there."""
    if os.geteuid():
        pytest.skip("only root can give files away")
    tmp_path.chmod(0o755)
    reactor = ManualReactor()
    text = VOLFILE.replace("storage/memory", f"storage/posix\n option directory {tmp_path}")
    graph = Graph.load(text, Surroundings(reactor))
    reactor.wait(graph.start())
    yield Guarded(lambda request: reactor.wait(graph.top(request)))
    reactor.wait(graph.stop())


def anonymous(gfid: bytes) -> Fd:
    return Fd(gfid, O_RDWR, anonymous=True)


def new(name: bytes, parent: bytes = ROOT_GFID) -> dict[str, Any]:
    return {"loc": Loc(pargfid=parent, name=name), "xdata": Xdata({GFID_REQ: gfuuid(new_gfid())})}


def creations(parent: bytes) -> list[Fop]:
    """Every fop that makes a name in a directory."""
    return [
        fops.Create(fd=Fd(NULL_GFID, O_RDWR), flags=O_RDWR | O_EXCL, mode=0o644, **new(b"c", parent)),
        fops.Mknod(mode=0o100644, **new(b"n", parent)),
        fops.Mkdir(mode=0o755, **new(b"d", parent)),
        fops.Symlink(linkname=b"t", **new(b"s", parent)),
        fops.Put(mode=0o644, umask=0, flags=0, offset=0, data=b"x", **new(b"p", parent)),
        fops.Namelink(**new(b"l", parent)),
    ]


# -- by effect -------------------------------------------------------------------------------------------------------


def on_fd(gfid: bytes, fd: Fd) -> list[Fop]:
    """Every fop that changes or returns data of one fd, found by its effects; those of the first kind need WRITE."""
    other = Fd(gfid, O_RDWR)
    made = []
    for cls in ALL_FOPS:
        if cls.effects & (CHANGES_NAMES | LOCKS | INTERNAL | fops.OPENS | fops.SYNCS) or cls is fops.Fstat:
            continue
        fields = [name for name in cls.__struct_fields__ if name.startswith("fd")]
        if fields and cls not in (fops.Fsetattr, fops.Fsetxattr, fops.Fremovexattr):
            made.append(sample_request(cls, **{**dict.fromkeys(fields, other), fields[-1]: fd}))
    return made


def stub(mode: int, uid: int = 0) -> tuple[Graph, Storage]:
    """The translator over a storage that has one inode, and answers everything else with success."""
    graph = stack(Storage, AccessControl)
    storage = graph.xlators["fake"]
    assert isinstance(storage, Storage)
    plain = storage.answer

    def answer(req: Any) -> Any:
        if isinstance(req, fops.Lookup):
            gfid = req.loc.gfid if req.loc.gfid != NULL_GFID else new_gfid()
            there = Iatt(gfid=gfid, uid=uid, gid=0, mode=mode)
            return fops.LookupReply(stat=there, postparent=Iatt())
        return plain(req)

    storage.answer = answer
    return graph, storage


def test_fops_on_an_anonymous_fd_are_judged_by_their_effects() -> None:
    gfid = new_gfid()
    requests = on_fd(gfid, anonymous(gfid))
    names = {req.name for req in requests}
    assert {"read", "write", "zerofill", "discard", "fallocate", "copy_file_range", "ftruncate", "seek"} <= names
    for mode in (0o100600, 0o100604, 0o100602, 0o100606):
        for req in requests:
            graph, _ = stub(mode)
            fields = {name: getattr(req, name) for name in req.__struct_fields__}
            call = Call(graph.top(type(req)(**{**fields, "caller": ALICE})))
            want = 2 if req.effects & (WRITES_DATA | MAY_GROW | CHANGES_ATTRS) else 4
            assert call.errno == (0 if mode & want else errno.EACCES), (req.name, oct(mode))


def test_the_source_of_a_copy_is_read() -> None:
    gfid = new_gfid()
    target = Fd(new_gfid(), O_RDWR)
    for mode, code in ((0o100602, errno.EACCES), (0o100604, 0)):
        graph, _ = stub(mode)
        req = sample_request(fops.CopyFileRange, fd_in=anonymous(gfid), fd_out=target, caller=ALICE)
        assert Call(graph.top(req)).errno == code


def test_an_open_fd_was_judged_when_it_was_opened() -> None:
    gfid = new_gfid()
    for req in on_fd(gfid, Fd(gfid, O_RDWR)):
        graph, storage = stub(0o100000)
        fields = {name: getattr(req, name) for name in req.__struct_fields__}
        assert Call(graph.top(type(req)(**{**fields, "caller": ALICE}))).errno == 0, req.name
        assert [type(seen) for seen in storage.seen] == [type(req)]


@pytest.mark.parametrize("cls", ALL_FOPS, ids=lambda cls: cls.name)
@pytest.mark.parametrize("caller", [Caller(), HEALER], ids=["root", "internal"])
def test_root_and_internal_clients_may_do_everything(cls: type[Fop], caller: Caller) -> None:
    graph, storage = stub(0o100000, uid=5)
    assert Call(graph.top(sample_request(cls, caller=caller))).errno == 0
    assert [type(seen) for seen in storage.seen] == [cls], "nothing else is asked"


@pytest.mark.parametrize("cls", ALL_FOPS, ids=lambda cls: cls.name)
def test_every_fop_of_a_stranger_is_denied_or_harmless(cls: type[Fop]) -> None:
    """On an inode with no permissions, by loc or anonymous fd: what passes changes nothing and returns no data."""
    graph, storage = stub(0o40000, uid=5)
    values: dict[str, Any] = {}
    for name in cls.__struct_fields__:
        if name in ("fd", "fd_in", "fd_out"):
            values[name] = anonymous(ROOT_GFID)
    if "valid" in cls.__struct_fields__:
        values["valid"] = SET_MODE
    if "mask" in cls.__struct_fields__:
        values["mask"] = 4
    if cls is fops.Lookup:
        values["loc"] = Loc(pargfid=ROOT_GFID, name=b"x")
    for name in ("loc",):
        if name in cls.__struct_fields__ and cls.effects & CHANGES_NAMES and cls is not fops.Icreate:
            values[name] = Loc(pargfid=ROOT_GFID, name=b"x")
    call = Call(graph.top(sample_request(cls, caller=ALICE, **values)))
    harmless = {
        "stat", "fstat", "statfs", "readlink", "getactivelk", "setactivelk", "flush", "fsync", "fsyncdir", "release",
        "releasedir", "ipc", "icreate", "lk", "inodelk", "finodelk", "entrylk", "fentrylk", "lease",
    }  # fmt: skip
    assert call.errno == (0 if cls.name in harmless else errno.EPERM if cls.name.endswith("setattr") else errno.EACCES)
    reached = [type(seen) for seen in storage.seen if not isinstance(seen, fops.Lookup)]
    assert reached == ([cls] if cls.name in harmless else [])


# -- uid 1000 and a file of root's -----------------------------------------------------------------------------------


def test_a_file_of_roots_with_mode_0640(memory: Guarded) -> None:
    file = memory.make(b"f", b"x" * 8192, mode=0o640)
    gfid, loc = file.gfid, Loc(gfid=file.gfid)
    fd = anonymous(gfid)
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, 3, 0o40, O_TRUNC):
        memory.denies(ALICE, fops.Open(loc=loc, fd=Fd(gfid, flags), flags=flags))
    memory.denies(ALICE, fops.Zerofill(fd=fd, offset=0, size=4096))
    memory.denies(ALICE, fops.Discard(fd=fd, offset=0, size=4096))
    memory.denies(ALICE, fops.Fallocate(fd=fd, offset=0, size=4096))
    memory.denies(ALICE, fops.Write(fd=fd, offset=0, data=b"y"))
    memory.denies(ALICE, fops.Truncate(loc=loc, offset=0))
    memory.denies(ALICE, fops.Setattr(loc=loc, stat=Iatt(mode=0o777), valid=SET_MODE), errno.EPERM)
    memory.denies(ALICE, fops.Setattr(loc=loc, stat=Iatt(uid=1000), valid=SET_UID), errno.EPERM)
    memory.denies(ALICE, fops.Setattr(loc=loc, stat=Iatt(atime=5), valid=SET_ATIME | SET_MTIME))
    memory.denies(ALICE, fops.Fsetattr(fd=file.fd, stat=Iatt(mode=0o777), valid=SET_MODE), errno.EPERM)
    memory.denies(ALICE, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.k": b"v"})))
    memory.denies(ALICE, fops.Fsetxattr(fd=file.fd, xattrs=Xdata({b"user.k": b"v"})))
    memory.denies(ALICE, fops.Setxattr(loc=loc, xattrs=Xdata({forms.ACCESS: b""})), errno.EPERM)
    memory.denies(ALICE, fops.Setxattr(loc=loc, xattrs=Xdata({forms.TEXT_ACCESS: b"u::rwx"})), errno.EPERM)
    memory.denies(ALICE, fops.Removexattr(loc=loc, key=b"user.k"))
    memory.denies(ALICE, fops.Removexattr(loc=loc, key=forms.ACCESS), errno.EPERM)
    memory.denies(ALICE, fops.Getxattr(loc=loc, key=b"user.k"))
    memory.denies(ALICE, fops.Access(loc=loc, mask=4))
    memory.grants(ALICE, fops.Access(loc=loc, mask=0))
    memory.grants(ALICE, fops.Stat(loc=loc))
    assert memory.read(file.fd, 0, 9000) == b"x" * 8192


def test_the_text_names_who_lacks_what(memory: Guarded) -> None:
    file = memory.make(b"f", mode=0o640)
    with pytest.raises(fops_error()) as caught:
        memory(fops.Open(loc=Loc(gfid=file.gfid, path=b"/f"), fd=Fd(file.gfid, 2), flags=2, caller=ALICE))
    assert str(caught.value).startswith("EACCES: localhost: open /f: uid 1000 lacks read and write permission on <")


def fops_error() -> type[Exception]:
    from glustx.errors import FopError

    return FopError


def test_owner_group_and_others(memory: Guarded) -> None:
    file = memory.make(b"f", b"x")
    fd = anonymous(file.gfid)
    read, write = fops.Read(fd=fd, offset=0, size=1), fops.Write(fd=fd, offset=0, data=b"y")
    memory.own(file.gfid, 2000, 0, 0o407)
    memory.grants(BOB, read)
    memory.denies(BOB, write)  # the owner is no other
    memory.own(file.gfid, 0, 60, 0o047)
    memory.grants(BOB, read)  # by a supplementary group
    memory.denies(BOB, write)
    memory.grants(ALICE, write)
    memory.own(file.gfid, 0, 61, 0o046)
    memory.grants(BOB, write)


def test_what_is_known_of_an_inode_follows_every_change(memory: Guarded) -> None:
    file = memory.make(b"f", b"x", mode=0o600)
    read = fops.Read(fd=anonymous(file.gfid), offset=0, size=1)
    loc = Loc(gfid=file.gfid)
    for _ in range(2):
        memory.denies(BOB, read)
        memory(fops.Setattr(loc=loc, stat=Iatt(mode=0o604), valid=SET_MODE))
        memory.grants(BOB, read)
        memory(fops.Fsetattr(fd=file.fd, stat=Iatt(mode=0o600), valid=SET_MODE))
        memory.denies(BOB, read)
        memory.acl(file.gfid, "u::rw,u:2000:r,g::-,m::r,o::-")
        memory.grants(BOB, read)
        memory(fops.Removexattr(loc=loc, key=forms.ACCESS))
    memory.denies(BOB, read)
    # A file made anew under the same gfid is another one.
    memory.by(Caller(), fops.Unlink(loc=file.loc))
    memory(fops.Release(fd=file.fd))
    memory(fops.Mknod(loc=Loc(pargfid=ROOT_GFID, name=b"g"), mode=0o100604, xdata=memory.fresh(file.gfid)))
    memory.grants(BOB, fops.Open(loc=loc, fd=Fd(file.gfid, 0), flags=0))


def test_super_uid(memory: Guarded) -> None:
    file = memory.make(b"f", b"x", mode=0o600)
    write = fops.Write(fd=anonymous(file.gfid), offset=0, data=b"y")
    memory.denies(BOB, write)
    graph, _ = stub(0o100600)
    top = graph.xlators["access-control"]
    assert isinstance(top, PosixAcl)
    top.options.super_uid = 2000
    assert Call(graph.top(sample_request(fops.Write, fd=anonymous(ROOT_GFID), caller=BOB))).errno == 0


# -- directories -----------------------------------------------------------------------------------------------------


def test_names_need_write_and_search(memory: Guarded) -> None:
    for mode in range(8):
        folder = memory.mkdir(b"m%d" % mode, mode=0o755)
        file = memory.make(b"old", parent=folder.gfid)
        memory.own(folder.gfid, 0, 0, 0o700 | mode)
        old = Loc(gfid=file.gfid, pargfid=folder.gfid, name=b"old")
        for req in creations(folder.gfid)[: 5 if mode & 3 == 3 else None]:
            (memory.grants if mode & 3 == 3 else memory.denies)(ALICE, req)
        judge = memory.grants if mode & 3 == 3 else memory.denies
        judge(ALICE, fops.Link(oldloc=old, newloc=Loc(pargfid=folder.gfid, name=b"link")))
        judge(ALICE, fops.Rename(oldloc=old, newloc=Loc(pargfid=folder.gfid, name=b"new")))
        judge(ALICE, fops.Unlink(loc=Loc(pargfid=folder.gfid, name=b"new")))
        judge(ALICE, fops.Rmdir(loc=Loc(pargfid=folder.gfid, name=b"d")))
        judge = memory.grants if mode & 1 else memory.denies
        judge(ALICE, fops.Lookup(loc=Loc(pargfid=folder.gfid, name=b"link" if mode & 3 == 3 else b"old")))
        judge = memory.grants if mode & 4 else memory.denies
        judge(ALICE, fops.Opendir(loc=folder, fd=Fd(folder.gfid, 0, directory=True)))
        judge(ALICE, fops.Readdirp(fd=anonymous(folder.gfid), offset=0, size=4096))


def test_rename_needs_both_directories(memory: Guarded) -> None:
    mine, roots = memory.mkdir(b"mine"), memory.mkdir(b"roots")
    memory.own(mine.gfid, 1000, 1000, 0o755)
    file = memory.make(b"f", parent=mine.gfid)
    here, there = (Loc(pargfid=place.gfid, name=b"f") for place in (mine, roots))
    memory.denies(ALICE, fops.Rename(oldloc=here, newloc=there))
    memory.denies(ALICE, fops.Rename(oldloc=there, newloc=here))
    memory.denies(ALICE, fops.Link(oldloc=Loc(gfid=file.gfid), newloc=there))


def test_sticky_directories(memory: Guarded) -> None:
    tmp = memory.mkdir(b"tmp")
    memory.own(tmp.gfid, 0, 0, 0o1777)
    for name, uid in ((b"a", 1000), (b"b", 2000)):
        file = memory.make(name, parent=tmp.gfid)
        memory.own(file.gfid, uid, uid, 0o666)
    sub = memory.mkdir(b"sub", tmp.gfid)
    names = {name: Loc(pargfid=tmp.gfid, name=name) for name in (b"a", b"b", b"c", b"sub", b"none")}
    memory.denies(ALICE, fops.Unlink(loc=names[b"b"]))
    memory.denies(ALICE, fops.Rmdir(loc=names[b"sub"]))
    memory.denies(ALICE, fops.Rename(oldloc=names[b"b"], newloc=names[b"c"]))
    memory.denies(ALICE, fops.Rename(oldloc=names[b"a"], newloc=names[b"b"]))
    memory.denies(ALICE, fops.Link(oldloc=Loc(gfid=memory.lookup(b"b", tmp.gfid).stat.gfid), newloc=names[b"c"]))
    memory.denies(ALICE, fops.Unlink(loc=names[b"none"]), errno.ENOENT)
    memory.grants(ALICE, fops.Rename(oldloc=names[b"a"], newloc=names[b"c"]))
    memory.grants(ALICE, fops.Unlink(loc=names[b"c"]))
    memory.own(tmp.gfid, 2000, 0, 0o1777)
    memory.own(sub.gfid, 1000, 0, 0o755)
    memory.grants(BOB, fops.Rmdir(loc=names[b"sub"]))  # the directory's owner may


def test_what_only_root_does(memory: Guarded) -> None:
    folder = memory.mkdir(b"d")
    memory.own(folder.gfid, 1000, 1000, 0o755)
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        memory.denies(ALICE, fops.Mknod(mode=kind | 0o666, rdev=0x103, **new(b"dev", folder.gfid)), errno.EPERM)
    memory.grants(ALICE, fops.Mknod(mode=stat.S_IFIFO | 0o666, **new(b"fifo", folder.gfid)))
    memory.mkdir(b"sub", folder.gfid)
    memory.denies(ALICE, fops.Rmdir(loc=Loc(pargfid=folder.gfid, name=b"sub"), xflags=1))


def test_create_does_not_open_what_open_would_not(memory: Guarded) -> None:
    folder = memory.mkdir(b"d")
    memory.own(folder.gfid, 0, 0, 0o777)
    file = memory.make(b"f", b"secret", parent=folder.gfid, mode=0o640)
    for flags in (O_RDWR, O_RDWR | O_TRUNC, 0):
        memory.denies(ALICE, fops.Create(fd=Fd(NULL_GFID, flags), flags=flags, mode=0o644, **new(b"f", folder.gfid)))
    assert memory.content(file.gfid) == b"secret"
    memory.own(file.gfid, 0, 0, 0o644)
    memory.grants(ALICE, fops.Create(fd=Fd(NULL_GFID, 0), flags=0, mode=0o644, **new(b"f", folder.gfid)))


def test_unknown_gfids_are_stale(memory: Guarded) -> None:
    for req in (
        fops.Open(loc=Loc(gfid=new_gfid()), fd=Fd(new_gfid(), 0), flags=0),
        fops.Write(fd=anonymous(new_gfid()), offset=0, data=b"x"),
        fops.Setattr(loc=Loc(gfid=new_gfid()), stat=Iatt(), valid=SET_MODE),
    ):
        memory.denies(ALICE, req, errno.ESTALE)


# -- attributes ------------------------------------------------------------------------------------------------------


def test_the_owner_changes_mode_group_and_times(memory: Guarded) -> None:
    file = memory.make(b"f")
    loc = Loc(gfid=file.gfid)
    memory.own(file.gfid, 2000, 50, 0o400)
    memory.grants(BOB, fops.Setattr(loc=loc, stat=Iatt(mode=0o2444), valid=SET_MODE))
    assert memory.stat(file.gfid).mode & 0o7777 == 0o2444
    memory.grants(BOB, fops.Setattr(loc=loc, stat=Iatt(atime=7, mtime=8), valid=SET_ATIME | SET_MTIME))
    memory.grants(BOB, fops.Setattr(loc=loc, stat=Iatt(gid=60, uid=2000), valid=SET_GID | SET_UID))
    memory.denies(BOB, fops.Setattr(loc=loc, stat=Iatt(gid=61), valid=SET_GID), errno.EPERM)
    memory.denies(BOB, fops.Setattr(loc=loc, stat=Iatt(uid=1000), valid=SET_UID), errno.EPERM)
    memory.own(file.gfid, 2000, 99, 0o644)
    memory.grants(BOB, fops.Setattr(loc=loc, stat=Iatt(mode=0o2755), valid=SET_MODE))
    assert memory.stat(file.gfid).mode & 0o7777 == 0o755, "not in the group: no setgid"
    memory.own(file.gfid, 0, 99, 0o666)
    memory.grants(BOB, fops.Setattr(loc=loc, stat=Iatt(mtime=8), valid=SET_MTIME))
    memory.denies(BOB, fops.Setattr(loc=loc, stat=Iatt(mode=0o666), valid=SET_MODE), errno.EPERM)


def test_xattrs(memory: Guarded) -> None:
    file = memory.make(b"f")
    loc = Loc(gfid=file.gfid)
    memory.own(file.gfid, 0, 0, 0o604)
    memory(fops.Setxattr(loc=loc, xattrs=Xdata({b"user.k": b"v"})))
    assert memory.grants(ALICE, fops.Getxattr(loc=loc, key=b"user.k")).xattrs[b"user.k"] == b"v"
    memory.denies(ALICE, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.k": b"w"})))
    memory.own(file.gfid, 0, 0, 0o602)
    memory.grants(ALICE, fops.Setxattr(loc=loc, xattrs=Xdata({b"user.k": b"w"})))
    memory.denies(ALICE, fops.Getxattr(loc=loc, key=b"user.k"))
    memory.denies(ALICE, fops.Fgetxattr(fd=anonymous(file.gfid), key=b"user.k"))
    memory.grants(ALICE, fops.Removexattr(loc=loc, key=b"user.k"))
    # The owner's own deltas pass whatever the mode is; a stranger's need write permission.
    memory.own(file.gfid, 1000, 0, 0o400)
    delta = fops.Xattrop(loc=loc, flags=0, xattrs=Xdata({b"trusted.afr.v-client-0": b"\0\0\0\1"}))
    memory.grants(ALICE, delta)
    memory.denies(BOB, delta)


# -- ACLs ------------------------------------------------------------------------------------------------------------


def test_acls_grant_and_deny(disk: Guarded) -> None:
    file = disk.make(b"f", b"x", mode=0o640)
    fd = anonymous(file.gfid)
    read, write = fops.Read(fd=fd, offset=0, size=1), fops.Write(fd=fd, offset=0, data=b"y")
    disk.acl(file.gfid, "u::rw,u:1000:rw,g::r,g:60:r,m::rw,o::-")
    disk.grants(ALICE, write)
    disk.grants(BOB, read)
    disk.denies(BOB, write)
    assert disk.stat(file.gfid).mode & 0o777 == 0o660, "the mask is the group bits"
    disk(fops.Setattr(loc=file.loc, stat=Iatt(mode=0o600), valid=SET_MODE))
    disk.denies(ALICE, read)
    disk.denies(BOB, read)
    disk(fops.Setattr(loc=file.loc, stat=Iatt(mode=0o640), valid=SET_MODE))
    disk.grants(ALICE, read)
    disk.denies(ALICE, write)
    raw = disk.grants(ALICE, fops.Getxattr(loc=file.loc, key=forms.ACCESS)).xattrs[forms.ACCESS]
    assert forms.to_text(forms.parse(raw)) == b"u::rw-,u:1000:rw-,g::r--,g:60:r--,m::r--,o::---"


def test_default_acls_are_inherited(disk: Guarded) -> None:
    folder = disk.mkdir(b"d", mode=0o777)
    disk.own(folder.gfid, 0, 0, 0o777)
    disk.acl(folder.gfid, "u::rwx,u:2000:rwx,g::rx,m::rwx,o::-", forms.DEFAULT)
    made = {}
    for req in creations(folder.gfid)[:5]:
        made[req.name] = disk.grants(ALICE, req).stat.gfid
    text = {name: disk(fops.Getxattr(loc=Loc(gfid=gfid), key=forms.TEXT_ACCESS)).xattrs[forms.TEXT_ACCESS]
            for name, gfid in made.items() if name != "symlink"}  # fmt: skip
    # As the kernel: the mode asked for cuts owner, mask and others; the umask does not count.
    assert text["create"] == text["put"] == text["mknod"] == b"u::rw-,u:2000:rwx,g::r-x,m::r--,o::---"
    assert text["mkdir"] == b"u::rwx,u:2000:rwx,g::r-x,m::r-x,o::---"
    inherited = disk(fops.Getxattr(loc=Loc(gfid=made["mkdir"]), key=forms.TEXT_DEFAULT)).xattrs[forms.TEXT_DEFAULT]
    assert inherited == b"u::rwx,u:2000:rwx,g::r-x,m::rwx,o::---"
    disk.fails(fops.Getxattr(loc=Loc(gfid=made["symlink"]), key=forms.TEXT_ACCESS), errno.ENODATA)
    disk.grants(BOB, fops.Read(fd=anonymous(made["create"]), offset=0, size=1))
    disk.denies(BOB, fops.Write(fd=anonymous(made["create"]), offset=0, data=b"x"))
    assert disk.stat(made["create"]).uid == 1000


def test_a_mount_with_acls_sends_mode_and_umask_apart(disk: Guarded) -> None:
    """Its kernel leaves the umask to the brick: it counts unless a default ACL does."""
    plain, ruled = disk.mkdir(b"plain"), disk.mkdir(b"ruled")
    disk.acl(ruled.gfid, "u::rwx,g::rwx,o::rwx", forms.DEFAULT)
    # Sent as 16-bit numbers with a sign: a regular file's mode is negative.
    for kind, sent in ((stat.S_IFREG, (stat.S_IFREG | 0o666) - 65536), (0, 0o666)):
        for folder, mode in ((plain, 0o640), (ruled, 0o666)):
            fields = new(b"n%d" % bool(kind), folder.gfid)
            fields["xdata"] = fields["xdata"].plus({b"umask": 0o027, b"mode": sent})
            reply = disk(fops.Mknod(mode=kind | 0o640, umask=0o027, **fields))
            assert reply.stat.mode & 0o7777 == mode


def test_acls_as_text(disk: Guarded) -> None:
    file, folder = disk.make(b"f", mode=0o640), disk.mkdir(b"d")
    key = forms.TEXT_ACCESS

    def text(loc: Loc, key: bytes) -> bytes:
        return bytes(disk(fops.Getxattr(loc=loc, key=key)).xattrs[key])

    assert text(file.loc, key) == b"u::rw-,g::r--,o::---"
    assert text(folder, forms.TEXT_DEFAULT) == b""
    disk.fails(fops.Getxattr(loc=file.loc, key=forms.TEXT_DEFAULT), errno.ENODATA)
    reply = disk(
        fops.Setxattr(loc=file.loc, xattrs=Xdata({key: Typed(STR, b"u::rw-,u:1000:r--,g::r--,m::r--,o::---")}))
    )
    assert forms.parse(reply.xdata[forms.ACCESS])[1] == (forms.USER, 4, 1000)
    assert text(file.loc, key) == b"u::rw-,u:1000:r--,g::r--,m::r--,o::---"
    disk.grants(ALICE, fops.Read(fd=anonymous(file.gfid), offset=0, size=1))
    found = disk(fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"f"), xdata=Xdata({key: 0, forms.TEXT_DEFAULT: 0})))
    assert found.xdata.text(key) == "u::rw-,u:1000:r--,g::r--,m::r--,o::---"
    assert forms.TEXT_DEFAULT not in found.xdata
    disk.fails(fops.Setxattr(loc=file.loc, xattrs=Xdata({key: b"u:1000"})), errno.EINVAL)
    disk(fops.Removexattr(loc=file.loc, key=key))
    assert text(file.loc, key) == b"u::rw-,g::r--,o::---"


def test_changes_behind_our_back_are_seen_at_the_next_lookup(disk: Guarded, tmp_path: Path) -> None:
    file = disk.make(b"f", mode=0o600)
    read = fops.Read(fd=anonymous(file.gfid), offset=0, size=1)
    disk.denies(ALICE, read)
    os.setxattr(tmp_path / "f", forms.ACCESS, forms.pack(forms.from_text(b"u::rw,u:1000:r,g::-,m::r,o::-")))
    disk.grants(ALICE, fops.Lookup(loc=Loc(pargfid=ROOT_GFID, name=b"f")))
    disk.grants(ALICE, read)
    os.chmod(tmp_path / "f", 0o600)
    disk.grants(ALICE, fops.Lookup(loc=Loc(gfid=file.gfid)))
    disk.denies(ALICE, read)


def test_an_unlinked_file_keeps_its_permissions(disk: Guarded) -> None:
    file: File = disk.make(b"f", b"x", mode=0o604)
    disk(fops.Unlink(loc=file.loc))
    disk.denies(ALICE, fops.Fsetattr(fd=file.fd, stat=Iatt(mode=0o777), valid=SET_MODE), errno.EPERM)


def test_the_content_of_a_file_is_for_its_readers(memory: Guarded) -> None:
    """quick-read asks for it with LOOKUP and READDIRP."""
    memory.own(ROOT_GFID, 0, 0, 0o755)
    secret, public = memory.make(b"secret", b"x", mode=0o640), memory.make(b"public", b"y", mode=0o644)
    want = Xdata({CONTENT: uint(4096)})
    for file, caller, content in ((secret, ALICE, None), (secret, Caller(), b"x"), (public, ALICE, b"y")):
        for loc in (file.loc, Loc(pargfid=ROOT_GFID, name=file.loc.name), Loc(gfid=file.gfid)):
            assert memory.grants(caller, fops.Lookup(loc=loc, xdata=want)).xdata.get(CONTENT) == content
    fd = memory.opendir(ROOT_GFID)
    for listed in (fd, anonymous(ROOT_GFID)):
        entries = memory.grants(ALICE, fops.Readdirp(fd=listed, offset=0, size=4096, xdata=want)).entries
        assert not any(CONTENT in entry.xattrs for entry in entries)


def test_removal_of_several_xattrs_at_once(disk: Guarded) -> None:
    file = disk.make(b"f", mode=0o666)
    disk.acl(file.gfid, "u::rw,u:2000:r,g::rw,m::rw,o::rw")
    several = fops.Removexattr(loc=file.loc, key=b"", xdata=Xdata({forms.ACCESS: b""}))
    disk.denies(ALICE, several, errno.EPERM)
