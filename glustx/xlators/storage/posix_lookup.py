"""LOOKUP and READLINK of storage/posix, and the xattrs that a request's xdata asks for.

A client's stack sends the same xdata with every LOOKUP, so what it asks for is worked out once (`Plan`), and the answer
is kept with the object until the object changes: a repeated LOOKUP costs two stats.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat

from glustx import fops
from glustx.errors import FopError
from glustx.fops import AttrReply, LookupReply, ReadlinkReply
from glustx.values import NULL_GFID, ROOT_GFID, ZERO_IATT, Loc
from glustx.xdata import (
    CONTENT,
    EMPTY,
    GET_SIZE,
    LINK_COUNT,
    LIST_XATTR,
    OPEN_ACTIVE_FD_COUNT,
    OPEN_FD_COUNT,
    PREOP_PARENT_KEY,
    UNLINKED_LOOKUP,
    Xdata,
    uint,
)
from glustx.xlators.storage.posix_attr import PosixAttr
from glustx.xlators.storage.posix_object import (
    GFID2PATH,
    GFID_KEY,
    VOLUME_ID_KEY,
    At,
    Dir,
    Obj,
    OpenFile,
)

XATTR_PREFIXES = (b"user.", b"trusted.", b"security.", b"system.")
# What list-xattr leaves out, as in stock.
_UNLISTED = ("security.selinux", "trusted.glusterfs.quota.*", "trusted.*.xtime")
_KEY_MAX = 255
_PENDING = ".glusterfs/indices/xattrop"
# A new object may have got these without anybody setting them: labels of security modules, inherited ACLs.
_BY_KERNEL = (b"security.selinux", b"security.SMACK", b"security.evm", b"security.apparmor", b"system.")
# Bytes of file contents that are kept with answers.
_CONTENT_KEPT = 32 << 20
# Xattrs (also absent ones) that are remembered of one object.
_KNOWN_MAX = 256


class Plan:
    """What one xdata dictionary asks for.

    Attributes:
        keys: xattrs to return where present.
        patterns: fnmatch patterns of more of them.
        content: return the whole content of regular files up to this size; -1 not at all.
        counts: keys that ask for the number of open fds.
        everything: return all xattrs (AFR's list-xattr).
        size: return the size of regular files.
        links: tell whether replicate's heal has something to do here.
        gifts: a creation finds xattrs to set on the new object, or a check of the parent to make.
    """

    __slots__ = ("content", "counts", "everything", "gifts", "keys", "links", "patterns", "size")

    def __init__(self, xdata: Xdata) -> None:
        named = [k for k in xdata if k.startswith(XATTR_PREFIXES) and k not in (GFID_KEY, VOLUME_ID_KEY)]
        named = [k for k in named if len(k) <= _KEY_MAX and b"\0" not in k]
        patterns = [k for k in named if any(c in k for c in b"*?[")]
        self.patterns = [k.decode("utf-8", "surrogateescape") for k in patterns]
        self.keys = [k for k in named if k not in patterns and not k.startswith(GFID2PATH)]
        self.content = max(-1, xdata.number(CONTENT, -1)) if CONTENT in xdata else -1
        self.counts = [k for k in (OPEN_FD_COUNT, OPEN_ACTIVE_FD_COUNT) if k in xdata]
        self.everything = LIST_XATTR in xdata
        self.size = GET_SIZE in xdata
        self.links = LINK_COUNT in xdata and xdata.text(LINK_COUNT) == "glusterfs.xattrop_index_count"
        self.gifts = bool(named) or PREOP_PARENT_KEY in xdata

    @property
    def idle(self) -> bool:
        """True when nothing is asked for."""
        return not (self.keys or self.patterns or self.counts or self.everything or self.size or self.content >= 0)

    def takes(self, key: bytes) -> bool:
        """Tell whether a listed xattr is asked for by list-xattr or by a pattern."""
        if key in (GFID_KEY, VOLUME_ID_KEY) or key.startswith(GFID2PATH):
            return False
        text = key.decode("utf-8", "surrogateescape")
        if self.everything and not any(fnmatch.fnmatchcase(text, pattern) for pattern in _UNLISTED):
            return True
        return any(fnmatch.fnmatchcase(text, pattern) for pattern in self.patterns)


class PosixLookup(PosixAttr):
    """LOOKUP, and filling in what xdata asks for."""

    def _init_lookup(self) -> None:
        self._contents: list[Obj] = []
        self._contents_size = 0

    async def lookup(self, req: fops.Lookup) -> LookupReply:
        """LOOKUP by (parent, name), or by gfid alone when the name is empty.

        Raises FopError: ENOENT for a missing name or an unknown gfid alone, ESTALE for an unknown parent, ENODATA for
        an object without gfid when xdata has no `gfid-req` to give it.
        """
        loc = req.loc
        name = loc.name
        xdata = req.xdata
        plan: Plan | None = xdata.template.plan
        if plan is None:
            plan = xdata.template.plan = Plan(xdata)
        if not name:
            return self._lookup_gfid(req, loc.gfid, plan)
        pargfid = loc.pargfid
        try:
            parent = self._dirs.get(pargfid) or self.dir(pargfid)
            if len(name) > 255 or name[0] == 46 or b"/" in name or b"\0" in name:
                other = self._odd_name(req, loc, plan)
                if other is not None:
                    return other
            fd = parent.fd
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
            parent_st = os.fstat(fd)
            obj = self._inos.get(st.st_ino)
            if obj is None or obj.ctime != st.st_ctime_ns:
                obj, st = self.named(parent, name, st, xdata.gfid_req)
            if obj.plan is plan and obj.reply_fds == obj.fds:
                reply = obj.reply
            else:
                reply = self.fill(obj, st, plan, self.at_name(parent, name, st) if obj.is_dir else obj.xpath)
            if plan.links:
                reply = self._with_links(reply)
            stat_ = obj.iatt
            if stat_ is None or stat_.blocks != st.st_blocks or stat_.size != st.st_size:
                stat_ = self.iatt(obj, st)
            above = parent.obj
            postparent = above.iatt
            if postparent is None or parent_st.st_ctime_ns != above.ctime:
                postparent = self.seen(above, parent_st, fd)
        except FileNotFoundError as error:
            if not os.fstat(parent.fd).st_nlink:
                self.forget(parent.obj)
                raise self.failed(req, OSError(errno.ESTALE, "the parent is gone")) from error
            links = self._with_links(EMPTY) if plan.links else None
            raise FopError(errno.ENOENT, f"{self.graph.surroundings.host}:{self.brick}: lookup {loc}", links) from error
        except OSError as error:
            raise self.failed(req, error) from error
        return LookupReply(xdata=reply, stat=stat_, postparent=postparent)

    def _odd_name(self, req: fops.Lookup, loc: Loc, plan: Plan) -> LookupReply | None:
        """Answer `.` (and `..` at the root) with the directory itself; refuse what cannot be a name."""
        name, pargfid = loc.name, loc.pargfid
        if name == b"." or (name == b".." and pargfid == ROOT_GFID):
            return self._lookup_gfid(req, pargfid, plan)
        if name == b".glusterfs" and pargfid == ROOT_GFID:
            raise OSError(errno.ENOENT, "reserved for the brick")
        self.check_name(pargfid, name)
        return None

    def _lookup_gfid(self, req: fops.Lookup, gfid: bytes, plan: Plan) -> LookupReply:
        try:
            obj, st = self.find(gfid)
        except OSError as error:
            if error.errno == errno.ESTALE:
                found = self._lookup_unlinked(req, gfid, plan)
                if found is not None:
                    return found
                error = FileNotFoundError(errno.ENOENT, "no such gfid")
            raise self.failed(req, error) from error
        try:
            if obj.plan is plan and obj.reply_fds == obj.fds:
                reply = obj.reply
            else:
                reply = self.fill(obj, st, plan, self.at(obj))
            if plan.links:
                reply = self._with_links(reply)
        except OSError as error:
            raise self.failed(req, error) from error
        return LookupReply(xdata=reply, stat=self.seen(obj, st, self.at(obj)), postparent=ZERO_IATT)

    def _lookup_unlinked(self, req: fops.Lookup, gfid: bytes, plan: Plan) -> LookupReply | None:
        """Shard also asks for a file that lives on only because somebody has it open."""
        if UNLINKED_LOOKUP not in req.xdata or gfid == NULL_GFID:
            return None
        inode = self.graph.inodes.find(gfid)
        obj = self._objs.get(inode) if inode is not None else None
        if obj is None or not obj.gone:
            return None
        try:
            st = os.lstat(obj.path)
            return LookupReply(
                xdata=self.fill(obj, st, plan, obj.xpath), stat=self.seen(obj, st, obj.xpath), postparent=ZERO_IATT
            )
        except OSError:
            return None

    async def stat(self, req: fops.Stat) -> AttrReply:
        """STAT, with what xdata asks for as LOOKUP has it, but for the content: who may read it is judged there."""
        try:
            obj, st = self.find(req.loc.gfid)
            xdata = self._answer(req.xdata, obj, st, self.at(obj)) if req.xdata is not EMPTY else EMPTY
        except OSError as error:
            raise self.failed(req, error) from error
        kept = obj.iatt
        if kept is None or kept.blocks != st.st_blocks or kept.size != st.st_size:
            kept = self.iatt(obj, st)
        return AttrReply(xdata=xdata, stat=kept)

    async def fstat(self, req: fops.Fstat) -> AttrReply:
        """FSTAT, as STAT."""
        try:
            f: OpenFile = req.fd.slots.get(self._fds) or self.opened(req.fd)
            st = os.fstat(f.fd)
            obj = f.obj
            kept = obj.iatt
            if kept is None or st.st_ctime_ns != obj.ctime or kept.blocks != st.st_blocks or kept.size != st.st_size:
                kept = self.seen(obj, st, f.fd)
            xdata = self._answer(req.xdata, obj, st, f.fd) if req.xdata is not EMPTY else EMPTY
        except OSError as error:
            raise self.failed(req, error) from error
        return AttrReply(xdata=xdata, stat=kept)

    def _answer(self, asked: Xdata, obj: Obj, st: os.stat_result, at: At) -> Xdata:
        plan: Plan | None = asked.template.plan
        if plan is None:
            plan = asked.template.plan = Plan(asked)
        if plan.idle:
            reply = EMPTY
        elif plan.content < 0:
            kept = obj.plan is plan and obj.reply_fds == obj.fds
            reply = obj.reply if kept else self.fill(obj, st, plan, at)
        else:
            values = self._counted(obj, st, plan)
            self._fill_xattrs(values, obj, plan, at)
            reply = Xdata(values)
        return self._with_links(reply) if plan.links else reply

    def _counted(self, obj: Obj, st: os.stat_result, plan: Plan) -> dict[bytes, object]:
        values: dict[bytes, object] = {key: uint(obj.fds) for key in plan.counts}
        if plan.size and stat.S_ISREG(st.st_mode):
            values[GET_SIZE] = uint(st.st_size)
        return values

    def _with_links(self, reply: Xdata) -> Xdata:
        """Tell whether replicate's heal has something to do on this brick, as features/index does: never, unless the
        folder comes from a replicated volume."""
        try:
            with os.scandir(os.path.join(self.brick, _PENDING)) as names:
                pending = any(not entry.name.startswith("xattrop-") for entry in names)
        except OSError:
            pending = False
        return reply.plus({LINK_COUNT: int(pending)})

    def fill(self, obj: Obj, st: os.stat_result, plan: Plan, at: At) -> Xdata:
        """Return the xdata that answers `plan` for an object whose record is valid, and keep it with the object."""
        values = self._counted(obj, st, plan)
        content = st.st_size if stat.S_ISREG(st.st_mode) and st.st_size <= plan.content else -1
        fd = self._peek_fd(obj) if content > 0 else -1
        try:
            self._fill_xattrs(values, obj, plan, at if fd < 0 else fd)
            if fd >= 0:
                data = os.pread(fd, content + 1, 0)
                if len(data) == content:
                    values[CONTENT] = data
                    self._keep_content(obj, content)
            elif content == 0:
                values[CONTENT] = b""
        finally:
            if fd >= 0:
                os.close(fd)
        obj.reply = reply = Xdata(values) if values else EMPTY
        obj.plan, obj.reply_fds = plan, obj.fds
        weight = 0
        for key, value in values.items():
            weight += len(key) + 28 + (len(value) if isinstance(value, bytes) else 8)
        obj.weight = weight
        return reply

    def _fill_xattrs(self, values: dict[bytes, object], obj: Obj, plan: Plan, at: At) -> None:
        known = obj.xattrs
        if len(known) > _KNOWN_MAX:
            known.clear()
            obj.whole = False
        unknown = [k for k in plan.keys if k not in known]
        if unknown and obj.whole:
            unknown = [k for k in unknown if k.startswith(_BY_KERNEL)]
        if len(unknown) > 1:
            # Most are absent, and an absent one costs an exception: ask for the names first.
            there = set(self.xlist(at))
            for key in unknown:
                known[key] = self.xget(at, key) if key in there else None
        elif unknown:
            known[unknown[0]] = self.xget(at, unknown[0])
        for key in plan.keys:
            value = known.get(key)
            if value is not None:
                values[key] = value
        if plan.everything or plan.patterns:
            for key in self.xlist(at):
                if plan.takes(key):
                    value = self.xget(at, key)
                    if value is not None:
                        values[key] = value

    @staticmethod
    def _peek_fd(obj: Obj) -> int:
        """Open a small file whose content is asked for (its xattrs come cheaper that way too); -1 when it cannot be."""
        try:
            return os.open(obj.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return -1

    def _keep_content(self, obj: Obj, size: int) -> None:
        """Count a content that stays in memory with an answer; all are dropped when they are too much."""
        self._contents_size += size
        if self._contents_size > _CONTENT_KEPT:
            for other in self._contents:
                other.plan, other.reply = None, EMPTY
            self._contents = []
            self._contents_size = size
        if size:
            self._contents.append(obj)

    async def readlink(self, req: fops.Readlink) -> ReadlinkReply:
        """READLINK: at most `size` bytes of the target."""
        try:
            obj, st = self.find(req.loc.gfid)
            if not stat.S_ISLNK(st.st_mode):
                raise OSError(errno.EINVAL, "not a symbolic link")
            target = os.readlink(os.fsencode(obj.path))
            return ReadlinkReply(stat=self.iatt(obj, st), path=target[: req.size] if req.size else target)
        except OSError as error:
            raise self.failed(req, error) from error

    def parent_of(self, req: fops.Fop, loc: Loc) -> Dir:
        """Return the directory in which a fop changes a name, after refusing names that no entry may have."""
        parent = self.dir(loc.pargfid)
        self.check_name(loc.pargfid, loc.name)
        return parent
