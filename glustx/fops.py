"""Every file operation, declared once: its fields in wire order, its numbers, its reply, and its effects.

From these declarations follow the codecs of the wire, the dispatch of protocol/client and protocol/server, io-stats,
trace, the priority class in io-threads, permissions, cache invalidation, read-only refusal, the kind of a replicate
transaction and the splitting of ranges. To add a fop: declare it here, do it in storage, offer it in gfapi
(CONTRIBUTING.md).

Field types carry the wire type as an annotation. A `Loc` travels as the gfid alone unless `wire=` says otherwise; an
`Fd` as its gfid and remote number. `xdata` is always last. `payload` fields travel raw behind the XDR body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from glustx.inode import Fd
from glustx.values import ROOT_CALLER, ActiveLock, Caller, Flock, Iatt, LeaseInfo, Loc, Statvfs
from glustx.xdata import EMPTY, Xdata

# Effects: what a fop may do, for translators that care about the kind and not the name.
READS = 1  # returns data or attributes, changes nothing
WRITES_DATA = 2  # changes the bytes of a file
MAY_GROW = 4  # may take more space or raise the size
CHANGES_ATTRS = 8  # changes attributes or xattrs other than as a side effect of data
CHANGES_NAMES = 16  # adds, removes or moves a directory entry
LOCKS = 32  # takes, tests or gives back a lock; may wait for another client
SYNCS = 64  # makes earlier changes durable
OPENS = 128  # opens or closes an fd
INTERNAL = 256  # between translators or with the transport, not a file operation
SPLITS = 512  # acts on one byte range of one open file and may be done in pieces (`Fop.piece`, `Reply.join`)
ALL_EFFECTS = 1023
EFFECT_NAMES = {
    READS: "READS",
    WRITES_DATA: "WRITES_DATA",
    MAY_GROW: "MAY_GROW",
    CHANGES_ATTRS: "CHANGES_ATTRS",
    CHANGES_NAMES: "CHANGES_NAMES",
    LOCKS: "LOCKS",
    SYNCS: "SYNCS",
    OPENS: "OPENS",
    INTERNAL: "INTERNAL",
    SPLITS: "SPLITS",
}

O_TRUNC = 0o1000

# Priority classes of io-threads, as stock sorts fops.
HIGH, NORMAL, LOW = 0, 1, 2

U32 = Annotated[int, "u32"]
I32 = Annotated[int, "i32"]
U64 = Annotated[int, "u64"]
I64 = Annotated[int, "i64"]
Name = Annotated[bytes, "str"]
Opaque = Annotated[bytes, "opaque"]
Presence = Annotated[bytes, "presence-str"]  # u32 1 with a name, 0 without; then the name
Presence64 = Annotated[bytes, "presence64-str"]
Payload = Annotated[Any, "payload"]


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What every fop returns on success; `xdata` travels in front of the other fields."""

    xdata: Xdata = EMPTY

    @classmethod
    def join(cls, replies: Sequence[Any]) -> Any:
        """Return the answer of a fop from those of its pieces, in the order of their ranges; all have succeeded.

        The attributes are the first piece's before and the last one's after: whoever split the fop knows better.
        """
        raise TypeError(f"{cls.__name__} has no rule for joining")


class Done(Reply, frozen=True, gc=False):
    """Success and nothing more."""


class AttrReply(Reply, frozen=True, gc=False):
    """The attributes of one inode."""

    stat: Iatt


class PrePost(Reply, frozen=True, gc=False):
    """The attributes before and after a change; both are required, so neither can be forgotten."""

    pre: Iatt
    post: Iatt

    @classmethod
    def join(cls, replies: Sequence[Any]) -> Any:
        """Before the first piece and after the last one."""
        return cls(pre=replies[0].pre, post=replies[-1].post)


class EntryReply(Reply, frozen=True, gc=False):
    """A new or linked inode, and its parent before and after."""

    stat: Iatt
    preparent: Iatt
    postparent: Iatt


class LookupReply(Reply, frozen=True, gc=False):
    """An inode and the parent it was found in (zeroed for the root)."""

    stat: Iatt
    postparent: Iatt


class RenameReply(Reply, frozen=True, gc=False):
    """The moved inode, and both parents before and after."""

    stat: Iatt
    preoldparent: Iatt
    postoldparent: Iatt
    prenewparent: Iatt
    postnewparent: Iatt


class ReadlinkReply(Reply, frozen=True, gc=False):
    """The target of a symbolic link."""

    stat: Iatt
    path: Name


class CreateReply(Reply, frozen=True, gc=False):
    """A new file and its parent before and after; the request's fd is open when this arrives."""

    stat: Iatt
    preparent: Iatt
    postparent: Iatt


class ReadReply(Reply, frozen=True, gc=False):
    """Bytes read; `eof` says that no more follow them."""

    data: Payload
    stat: Iatt
    eof: bool = False

    @classmethod
    def join(cls, replies: Sequence[Any]) -> Any:
        """All bytes in order; pieces that may be short must have been filled up."""
        return cls(data=b"".join(reply.data for reply in replies), stat=replies[-1].stat, eof=replies[-1].eof)


class WriteReply(Reply, frozen=True, gc=False):
    """How many bytes were written, and the attributes around the write."""

    count: Annotated[int, "op_ret"]
    pre: Iatt
    post: Iatt

    @classmethod
    def join(cls, replies: Sequence[Any]) -> Any:
        """The sum of what was written."""
        return cls(count=sum(reply.count for reply in replies), pre=replies[0].pre, post=replies[-1].post)


class CopyReply(Reply, frozen=True, gc=False):
    """How many bytes were copied, the source after it, and the destination before and after."""

    count: Annotated[int, "op_ret"]
    stat: Iatt
    pre: Iatt
    post: Iatt


class StatfsReply(Reply, frozen=True, gc=False):
    """File system figures."""

    statfs: Statvfs


class XattrReply(Reply, frozen=True, gc=False):
    """Extended attributes by name; `size` is the value's length (or the total of a list)."""

    size: Annotated[int, "op_ret"]
    xattrs: Xdata


class XattropReply(Reply, frozen=True, gc=False):
    """The values after an XATTROP."""

    xattrs: Xdata


class DirEntry(msgspec.Struct, frozen=True, gc=False):
    """One directory entry: `off` is the cookie that continues behind it; `type` a DT_* number."""

    ino: int
    off: int
    type: int
    name: bytes
    stat: Iatt | None = None
    xattrs: Xdata = EMPTY
    gfid: bytes = b""


class ReaddirReply(Reply, frozen=True, gc=False):
    """Directory entries in order; `eof` says that none follow."""

    entries: tuple[DirEntry, ...]
    eof: bool = False


class LkReply(Reply, frozen=True, gc=False):
    """The lock that was taken, or the one that stands in the way of a GETLK."""

    flock: Flock


class SeekReply(Reply, frozen=True, gc=False):
    """Where data or a hole begins."""

    offset: U64


class RchecksumReply(Reply, frozen=True, gc=False):
    """Checksums of a range: Adler-32 seeded with 0, and SHA-256 (`flags` 1) or MD5 (`flags` 0)."""

    flags: U32
    weak: U32
    strong: Opaque


class LeaseReply(Reply, frozen=True, gc=False):
    """The lease as granted."""

    lease: LeaseInfo


class ActiveLksReply(Reply, frozen=True, gc=False):
    """All posix locks of an inode."""

    locks: tuple[ActiveLock, ...]


F2 = TypeVar("F2", bound="Fop")


class Fop(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Base of all requests: the context that every fop carries behind its own fields.

    `ctime` (ns since the epoch, 0 when the caller sent none) and `stamp` (AUTH_GLUSTERFS v3 flags) say which times the
    brick sets and to what. `deadline` is in the reactor's seconds.
    """

    xdata: Xdata = EMPTY
    caller: Caller = ROOT_CALLER
    ctime: int = 0
    stamp: int = 0
    deadline: float | None = None

    name: ClassVar[str] = ""
    procnum: ClassVar[int] = -1
    gf_fop: ClassVar[int] = -1
    effects: ClassVar[int] = 0
    reply: ClassVar[type[Reply]] = Done
    priority: ClassVar[int] = NORMAL
    wire: ClassVar[tuple[str, ...]] = ()

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, size) that the fop touches, or None when it has none."""
        return None

    def targets(self) -> tuple[Loc, ...]:
        """The places by which the fop addresses inodes and names; an open file is one by its gfid."""
        subject = self.subject()
        if subject is None:
            return ()
        return (Loc(gfid=subject.gfid),) if isinstance(subject, Fd) else (subject,)

    def subject(self) -> Loc | Fd | None:
        """The loc or the open fd of the inode that the fop reads or changes; of two inodes the one it changes."""
        loc: Loc | None = getattr(self, "loc", None)
        if loc is not None:
            return loc
        fd: Fd | None = getattr(self, "fd", None)
        return fd

    def names(self) -> tuple[Loc, ...]:
        """The directory entries that the fop adds, removes or moves, each as (pargfid, name)."""
        return tuple(loc for loc in self.targets() if loc.name) if self.effects & CHANGES_NAMES else ()

    def piece(self, start: int, size: int, fd: Fd, offset: int) -> Fop:
        """Return the part of a SPLITS fop on [start, start + size) of its range, to be done at `offset` of `fd`."""
        return msgspec.structs.replace(self, fd=fd, offset=offset, size=size)

    def also(self, cls: type[F2], *args: Any, **fields: Any) -> F2:
        """Return another fop in the context of this one: same caller, ctime, stamp and deadline unless given."""
        return cls(
            *args,
            **{"caller": self.caller, "ctime": self.ctime, "stamp": self.stamp, "deadline": self.deadline, **fields},
        )

    def effects_now(self) -> int:
        """The effects of this very request, a part of `effects`, where a flag decides (OPEN with O_TRUNC)."""
        return self.effects

    def transaction(self) -> str | None:
        """Which kind of replicate transaction the fop needs: "data", "metadata", "entry" or None."""
        now = self.effects_now()
        if now & CHANGES_NAMES:
            return "entry"
        if now & (WRITES_DATA | MAY_GROW):
            return "data"
        if now & CHANGES_ATTRS:
            return "metadata"
        return None


FOPS: dict[str, type[Fop]] = {}
STOCK_LAST = 58  # the greatest number (gf_fop) that stock has given to a fop
OWN_FIRST = 1000  # the numbers of fops that stock does not have begin here
F = TypeVar("F", bound=type[Fop])
R = TypeVar("R", bound=Reply)


def map_iatts(reply: R, change: Callable[[Iatt], Iatt]) -> R:
    """Return a reply with `change` applied to every iatt in it: stat, pre, post, those of parents, of entries.

    `change` tells a file from its parent by mode and gfid. A reply in which nothing changes is returned as it is.
    """
    changes: dict[str, Any] = {}
    for field in reply.__struct_fields__:
        old = getattr(reply, field)
        if type(old) is Iatt:
            new = change(old)
            if new is not old:
                changes[field] = new
    if isinstance(reply, ReaddirReply):
        changes["entries"] = tuple(
            msgspec.structs.replace(entry, stat=change(entry.stat)) if entry.stat is not None else entry
            for entry in reply.entries
        )
    return msgspec.structs.replace(reply, **changes) if changes else reply


def fop(
    procnum: int,
    gf_fop: int,
    effects: int,
    reply: type[Reply] = Done,
    *,
    priority: int = NORMAL,
    wire: str = "",
) -> Callable[[F], F]:
    """Declare a fop.

    Args:
        procnum: procedure number in programs 400 and 330 (-1: never on the wire).
        gf_fop: stock's internal number, for logs and statedumps. A fop that stock does not have takes one from 1000 on,
            and its procnum, unless it is -1, from 1000 on as well: stock's next releases count on behind its last ones.
        effects: what it may do; at least one.
        reply: class of its answer.
        priority: io-threads class.
        wire: the order of the XDR body where it differs from the fields'; `loc.name` picks a part of a Loc.

    Raises TypeError at import for a fop without effects, or with a number that is taken or between stock's and our own.
    """

    def declare(cls: F) -> F:
        if not effects:
            raise TypeError(f"fop {cls.__name__} declares no effect")
        name = _snake(cls.__name__)
        for other in FOPS.values():
            if other.gf_fop == gf_fop or (procnum >= 0 and other.procnum == procnum):
                raise TypeError(f"fop {name} has a number of {other.name}")
        if STOCK_LAST < gf_fop < OWN_FIRST or (procnum >= 0 and (procnum >= OWN_FIRST) != (gf_fop >= OWN_FIRST)):
            raise TypeError(
                f"fop {name}: numbers are stock's, or both from {OWN_FIRST} on (procnum -1 when it never travels)"
            )
        cls.name = name
        cls.procnum = procnum
        cls.gf_fop = gf_fop
        cls.effects = effects
        cls.reply = reply
        cls.priority = priority
        own = tuple(f for f in cls.__struct_fields__ if f not in Fop.__struct_fields__)
        cls.wire = tuple(wire.split()) if wire else own
        unknown = [term for term in cls.wire if term.split(".")[0] not in own]
        if unknown:
            raise TypeError(f"fop {name}: wire names unknown fields {unknown}")
        FOPS[name] = cls
        return cls

    return declare


def _snake(name: str) -> str:
    out = name[0].lower()
    for char in name[1:]:
        out += f"_{char.lower()}" if char.isupper() else char
    return out


class RangeFop(Fop, frozen=True, gc=False):
    """Base of fops on [offset, offset + size) of an fd."""

    fd: Fd
    offset: U64
    size: U64

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, size)."""
        return self.offset, self.size


@fop(1, 1, READS, AttrReply, priority=HIGH)
class Stat(Fop, frozen=True, gc=False):
    """Attributes of an inode."""

    loc: Loc


@fop(2, 2, READS, ReadlinkReply, priority=HIGH)
class Readlink(Fop, frozen=True, gc=False):
    """Target of a symbolic link, at most `size` bytes of it."""

    loc: Loc
    size: U32


@fop(3, 3, CHANGES_NAMES | MAY_GROW, EntryReply, wire="loc.pargfid rdev mode umask loc.name")
class Mknod(Fop, frozen=True, gc=False):
    """Make a file, fifo, socket or device node; xdata carries `gfid-req`."""

    loc: Loc
    mode: U32
    rdev: U64 = 0
    umask: U32 = 0


@fop(4, 4, CHANGES_NAMES | MAY_GROW, EntryReply, wire="loc.pargfid mode umask loc.name")
class Mkdir(Fop, frozen=True, gc=False):
    """Make a directory; xdata carries `gfid-req`."""

    loc: Loc
    mode: U32
    umask: U32 = 0


@fop(5, 5, CHANGES_NAMES, PrePost, wire="loc.pargfid loc.name xflags")
class Unlink(Fop, frozen=True, gc=False):
    """Remove a name of a file; the reply shows the parent."""

    loc: Loc
    xflags: U32 = 0


@fop(6, 6, CHANGES_NAMES, PrePost, wire="loc.pargfid xflags loc.name")
class Rmdir(Fop, frozen=True, gc=False):
    """Remove a directory; `xflags` 1 removes what is in it as well."""

    loc: Loc
    xflags: I32 = 0


@fop(7, 7, CHANGES_NAMES | MAY_GROW, EntryReply, wire="loc.pargfid loc.name umask linkname")
class Symlink(Fop, frozen=True, gc=False):
    """Make a symbolic link to `linkname`; xdata carries `gfid-req`."""

    loc: Loc
    linkname: Name
    umask: U32 = 0


@fop(8, 8, CHANGES_NAMES, RenameReply, wire="oldloc.pargfid newloc.pargfid oldloc.name newloc.name")
class Rename(Fop, frozen=True, gc=False):
    """Move a name, replacing what the new one held."""

    oldloc: Loc
    newloc: Loc

    def targets(self) -> tuple[Loc, ...]:
        """The old place and the new one."""
        return self.oldloc, self.newloc

    def subject(self) -> Loc | Fd | None:
        """The inode that moves."""
        return self.oldloc


@fop(9, 9, CHANGES_NAMES, EntryReply, wire="oldloc.gfid newloc.pargfid newloc.name")
class Link(Fop, frozen=True, gc=False):
    """Give an inode another name."""

    oldloc: Loc
    newloc: Loc

    def targets(self) -> tuple[Loc, ...]:
        """The inode and its new name."""
        return self.oldloc, self.newloc

    def subject(self) -> Loc | Fd | None:
        """The inode."""
        return self.oldloc

    def names(self) -> tuple[Loc, ...]:
        """The new name; the old one stays."""
        return (self.newloc,)


@fop(10, 10, WRITES_DATA | MAY_GROW, PrePost, priority=LOW)
class Truncate(Fop, frozen=True, gc=False):
    """Set the size of a file."""

    loc: Loc
    offset: U64


@fop(11, 11, OPENS | WRITES_DATA, Done, priority=HIGH, wire="loc flags")
class Open(Fop, frozen=True, gc=False):
    """Open a file; `fd` is the caller's and usable once the reply is there."""

    loc: Loc
    fd: Fd
    flags: U32 = 0

    def effects_now(self) -> int:
        """Only O_TRUNC makes it a change of data."""
        return OPENS | WRITES_DATA if self.flags & O_TRUNC else OPENS


@fop(12, 12, READS | SPLITS, ReadReply, priority=LOW)
class Read(Fop, frozen=True, gc=False):
    """Read at most `size` bytes at `offset`."""

    fd: Fd
    offset: U64
    size: U32
    flags: U32 = 0

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, size)."""
        return self.offset, self.size


@fop(13, 13, WRITES_DATA | MAY_GROW | SPLITS, WriteReply, priority=LOW, wire="fd offset data flags")
class Write(Fop, frozen=True, gc=False):
    """Write `data` at `offset`. `data` may be a view of a receive buffer: it is valid until the fop has ended."""

    fd: Fd
    offset: U64
    data: Payload
    flags: U32 = 0

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, length of the data)."""
        return self.offset, len(self.data)

    def piece(self, start: int, size: int, fd: Fd, offset: int) -> Fop:
        """A view of the data, not a copy."""
        first = start - self.offset
        return msgspec.structs.replace(self, fd=fd, offset=offset, data=memoryview(self.data)[first : first + size])


@fop(14, 14, READS, StatfsReply, priority=HIGH)
class Statfs(Fop, frozen=True, gc=False):
    """Figures of the file system that holds an inode."""

    loc: Loc


@fop(15, 15, SYNCS, Done)
class Flush(Fop, frozen=True, gc=False):
    """An application closed the file: drop the posix locks of its lk_owner."""

    fd: Fd


@fop(16, 16, SYNCS, PrePost, priority=LOW)
class Fsync(Fop, frozen=True, gc=False):
    """Make a file durable; `datasync` 1 leaves out what reading does not need."""

    fd: Fd
    datasync: U32 = 0


@fop(17, 17, CHANGES_ATTRS, Done, wire="loc flags xattrs")
class Setxattr(Fop, frozen=True, gc=False):
    """Set extended attributes; `flags` 1 = only new ones, 2 = only existing ones."""

    loc: Loc
    xattrs: Xdata
    flags: U32 = 0


@fop(18, 18, READS, XattrReply)
class Getxattr(Fop, frozen=True, gc=False):
    """One extended attribute, or all when `key` is empty."""

    loc: Loc
    key: Presence = b""


@fop(19, 19, CHANGES_ATTRS, Done)
class Removexattr(Fop, frozen=True, gc=False):
    """Remove an extended attribute."""

    loc: Loc
    key: Name


@fop(20, 20, OPENS, Done, priority=HIGH, wire="loc")
class Opendir(Fop, frozen=True, gc=False):
    """Open a directory; `fd` is the caller's and usable once the reply is there."""

    loc: Loc
    fd: Fd


@fop(21, 21, SYNCS, Done, priority=LOW)
class Fsyncdir(Fop, frozen=True, gc=False):
    """Make a directory durable."""

    fd: Fd
    datasync: I32 = 0


@fop(22, 22, READS, Done, priority=HIGH)
class Access(Fop, frozen=True, gc=False):
    """Check R_OK 4, W_OK 2, X_OK 1 for the caller."""

    loc: Loc
    mask: U32


@fop(23, 23, CHANGES_NAMES | OPENS | WRITES_DATA | MAY_GROW, CreateReply, wire="loc.pargfid flags mode umask loc.name")
class Create(Fop, frozen=True, gc=False):
    """Make a regular file (or open it when it exists and O_EXCL is not set) and open it as `fd`; xdata carries
    `gfid-req`."""

    loc: Loc
    fd: Fd
    flags: U32
    mode: U32
    umask: U32 = 0

    def effects_now(self) -> int:
        """O_TRUNC empties a file that is there already."""
        return self.effects if self.flags & O_TRUNC else self.effects & ~WRITES_DATA


@fop(24, 24, WRITES_DATA | MAY_GROW, PrePost, priority=LOW)
class Ftruncate(Fop, frozen=True, gc=False):
    """Set the size of an open file."""

    fd: Fd
    offset: U64


@fop(25, 25, READS, AttrReply, priority=HIGH)
class Fstat(Fop, frozen=True, gc=False):
    """Attributes of an open file."""

    fd: Fd


@fop(26, 26, LOCKS, LkReply)
class Lk(Fop, frozen=True, gc=False):
    """Take, test or give back a posix byte-range lock (`cmd` 0 get, 1 set, 2 set and wait)."""

    fd: Fd
    cmd: U32
    type: U32
    flock: Flock


@fop(27, 27, READS, LookupReply, priority=HIGH, wire="loc.gfid loc.pargfid flags loc.name")
class Lookup(Fop, frozen=True, gc=False):
    """Find an inode by (pargfid, name), or by its gfid alone; xdata names the xattrs to bring along."""

    loc: Loc
    flags: U32 = 0


@fop(28, 28, READS, ReaddirReply, priority=HIGH)
class Readdir(Fop, frozen=True, gc=False):
    """Directory entries behind cookie `offset`, about `size` bytes of them."""

    fd: Fd
    offset: U64
    size: U32


@fop(29, 29, LOCKS, Done, wire="loc cmd type flock domain")
class Inodelk(Fop, frozen=True, gc=False):
    """Take or give back an internal byte-range lock in a lock domain."""

    loc: Loc
    domain: Name
    cmd: U32
    type: U32
    flock: Flock


@fop(30, 30, LOCKS, Done, wire="fd cmd type flock domain")
class Finodelk(Fop, frozen=True, gc=False):
    """Inodelk on an open file."""

    fd: Fd
    domain: Name
    cmd: U32
    type: U32
    flock: Flock


@fop(31, 31, LOCKS, Done, wire="loc cmd type basename domain")
class Entrylk(Fop, frozen=True, gc=False):
    """Take or give back an internal lock on a name in a directory (all names when `basename` is empty)."""

    loc: Loc
    domain: Name
    cmd: U32
    type: U32
    basename: Presence64 = b""


@fop(32, 32, LOCKS, Done, wire="fd cmd type basename domain")
class Fentrylk(Fop, frozen=True, gc=False):
    """Entrylk on an open directory."""

    fd: Fd
    domain: Name
    cmd: U32
    type: U32
    basename: Presence64 = b""


@fop(33, 33, CHANGES_ATTRS, XattropReply, priority=LOW)
class Xattrop(Fop, frozen=True, gc=False):
    """Change xattrs by arithmetic in one step (`flags`: 0 add 32-bit, 1 add 64-bit, 4 get and set, 5 and 6 with
    default)."""

    loc: Loc
    flags: U32
    xattrs: Xdata


@fop(34, 34, CHANGES_ATTRS, XattropReply, priority=LOW)
class Fxattrop(Fop, frozen=True, gc=False):
    """Xattrop on an open file."""

    fd: Fd
    flags: U32
    xattrs: Xdata


@fop(35, 35, READS, XattrReply)
class Fgetxattr(Fop, frozen=True, gc=False):
    """Getxattr on an open file."""

    fd: Fd
    key: Presence = b""


@fop(36, 36, CHANGES_ATTRS, Done, wire="fd flags xattrs")
class Fsetxattr(Fop, frozen=True, gc=False):
    """Setxattr on an open file."""

    fd: Fd
    xattrs: Xdata
    flags: U32 = 0


@fop(37, 37, READS, RchecksumReply, priority=LOW)
class Rchecksum(Fop, frozen=True, gc=False):
    """Checksums of [offset, offset + size)."""

    fd: Fd
    offset: U64
    size: U32
    flags: U32 = 0

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, size)."""
        return self.offset, self.size


@fop(38, 38, CHANGES_ATTRS, PrePost)
class Setattr(Fop, frozen=True, gc=False):
    """Set the attributes that `valid` names (SET_MODE, SET_UID, ...) from `stat`."""

    loc: Loc
    stat: Iatt
    valid: I32


@fop(39, 39, CHANGES_ATTRS, PrePost)
class Fsetattr(Fop, frozen=True, gc=False):
    """Setattr on an open file."""

    fd: Fd
    stat: Iatt
    valid: I32


@fop(40, 40, READS, ReaddirReply, priority=HIGH)
class Readdirp(Fop, frozen=True, gc=False):
    """Directory entries with their attributes; xdata names xattrs to bring along for each."""

    fd: Fd
    offset: U64
    size: U32


@fop(41, 42, OPENS, Done)
class Release(Fop, frozen=True, gc=False):
    """Give an fd back."""

    fd: Fd


@fop(42, 43, OPENS, Done)
class Releasedir(Fop, frozen=True, gc=False):
    """Give a directory fd back."""

    fd: Fd


@fop(43, 45, CHANGES_ATTRS, Done)
class Fremovexattr(Fop, frozen=True, gc=False):
    """Removexattr on an open file."""

    fd: Fd
    key: Name


@fop(44, 46, MAY_GROW | SPLITS, PrePost, priority=LOW, wire="fd keep_size offset size")
class Fallocate(RangeFop, frozen=True, gc=False):
    """Allocate space for [offset, offset + size); `keep_size` 1 leaves the size alone."""

    keep_size: U32 = 0


@fop(45, 47, WRITES_DATA | SPLITS, PrePost, priority=LOW)
class Discard(RangeFop, frozen=True, gc=False):
    """Give the space of [offset, offset + size) back; it reads as zeroes, the size stays."""


@fop(46, 48, WRITES_DATA | MAY_GROW | SPLITS, PrePost, priority=LOW)
class Zerofill(RangeFop, frozen=True, gc=False):
    """Make [offset, offset + size) read as zeroes without sending the zeroes; the file grows to hold it."""


@fop(47, 49, INTERNAL, Done)
class Ipc(Fop, frozen=True, gc=False):
    """A message to a translator on the other side."""

    op: I32


@fop(48, 50, READS, SeekReply, priority=LOW)
class Seek(Fop, frozen=True, gc=False):
    """Find the next data (`what` 0) or hole (`what` 1) at or behind `offset`."""

    fd: Fd
    offset: U64
    what: I32


@fop(50, 51, LOCKS, LeaseReply)
class Lease(Fop, frozen=True, gc=False):
    """Take or give back a lease."""

    loc: Loc
    lease: LeaseInfo


@fop(51, 53, READS, ActiveLksReply, priority=HIGH)
class Getactivelk(Fop, frozen=True, gc=False):
    """All posix locks of an inode, for migration."""

    loc: Loc


@fop(52, 54, LOCKS, Done)
class Setactivelk(Fop, frozen=True, gc=False):
    """Put posix locks on an inode that has been migrated."""

    loc: Loc
    locks: tuple[ActiveLock, ...]


@fop(53, 56, CHANGES_NAMES | MAY_GROW, AttrReply, priority=HIGH, wire="loc.gfid mode")
class Icreate(Fop, frozen=True, gc=False):
    """Make an inode that has no name yet."""

    loc: Loc
    mode: U32


@fop(54, 57, CHANGES_NAMES, PrePost, priority=HIGH, wire="loc.pargfid loc.name")
class Namelink(Fop, frozen=True, gc=False):
    """Give an inode made by ICREATE (its gfid in `gfid-req`) a name."""

    loc: Loc


@fop(
    55,
    55,
    CHANGES_NAMES | WRITES_DATA | MAY_GROW,
    EntryReply,
    wire="loc.pargfid loc.name mode umask flags offset data xattrs",
)
class Put(Fop, frozen=True, gc=False):
    """Make a file with its content and xattrs in one step."""

    loc: Loc
    mode: U32
    umask: U32
    flags: U32
    offset: U64
    data: Payload
    xattrs: Xdata = EMPTY

    def range(self) -> tuple[int, int] | None:
        """The byte range (offset, length of the data)."""
        return self.offset, len(self.data)


@fop(
    56,
    58,
    WRITES_DATA | MAY_GROW,
    CopyReply,
    priority=LOW,
    wire="fd_in.gfid fd_out.gfid fd_in.remote fd_out.remote offset_in offset_out size flags",
)
class CopyFileRange(Fop, frozen=True, gc=False):
    """Copy [offset_in, offset_in + size) of one open file to `offset_out` of another, on the brick."""

    fd_in: Fd
    fd_out: Fd
    offset_in: U64
    offset_out: U64
    size: U32
    flags: U32 = 0

    def range(self) -> tuple[int, int] | None:
        """The byte range that is written (offset, size)."""
        return self.offset_out, self.size

    def targets(self) -> tuple[Loc, ...]:
        """Source and destination, by gfid."""
        return Loc(gfid=self.fd_in.gfid), Loc(gfid=self.fd_out.gfid)

    def subject(self) -> Loc | Fd | None:
        """The destination."""
        return self.fd_out
