"""Extended attributes of storage/posix: get, set, remove and XATTROP, by inode and by fd, and the virtual keys.

Clients neither see nor write what makes an object what it is: gfid, volume id, gfid2path. The times in mdata can be
given, but only move forward.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glustx import fops
from glustx.fops import Done, Fop, XattropReply, XattrReply
from glustx.inode import Fd
from glustx.values import (
    ROOT_GFID,
    STAMP_CTIME,
    XATTROP_ADD_ARRAY,
    XATTROP_ADD_ARRAY64,
    XATTROP_ADD_ARRAY64_WITH_DEFAULT,
    XATTROP_ADD_ARRAY_WITH_DEFAULT,
    XATTROP_GET_AND_SET,
    Loc,
    gfid_from_text,
)
from glustx.xdata import (
    DHT_GET_IATT,
    EMPTY,
    LIMITS,
    MDATA_KEY,
    NO_PAIRS,
    SET_CTIME_MDATA,
    STR,
    VIRT_POSTSTAT,
    VIRT_PRESTAT,
    ZERO_METHOD,
    MdataTimes,
    Typed,
    Xdata,
)
from glustx.xlators.storage.posix_intent import Intent, Journal
from glustx.xlators.storage.posix_object import (
    GFID2PATH,
    GFID_KEY,
    USER_PREFIX,
    VOLUME_ID_KEY,
    At,
    Obj,
    parse_mdata,
)
from glustx.xlators.storage.posix_readdir import PosixReaddir

_PATHINFO = (b"trusted.glusterfs.pathinfo", b"glusterfs.pathinfo")
_NODE_UUID = b"trusted.glusterfs.node-uuid"
_GFIDTOPATH = b"glusterfs.gfidtopath"
_IGNORED = (GFID_KEY, VOLUME_ID_KEY, b"glusterfs.io-stats-dump", b"trusted.io-stats-dump", b"force-replace")


class PosixXattr(PosixReaddir):
    """The fops on extended attributes."""

    zero_method: str

    if TYPE_CHECKING:

        def limits(self) -> dict[str, Any]: ...

    # -- where a request acts --------------------------------------------------------------------------------------

    def _by_loc(self, loc: Loc) -> tuple[Obj, os.stat_result, At]:
        obj, st = self.find(loc.gfid)
        return obj, st, self.at(obj)

    def _by_fd(self, fd: Fd) -> tuple[Obj, os.stat_result, At]:
        f = self.opened(fd)
        st = os.fstat(f.fd)
        self.seen(f.obj, st, f.fd)
        return f.obj, st, f.fd

    # -- SETXATTR --------------------------------------------------------------------------------------------------

    async def setxattr(self, req: fops.Setxattr) -> Done:
        """SETXATTR: all keys or, at the first that fails, those before it are taken back.

        `flags` 1 (XATTR_CREATE) wants keys that are not there, 2 (XATTR_REPLACE) keys that are. Raises FopError:
        EEXIST, ENODATA, EOPNOTSUPP for a key outside the known namespaces, EPERM for what is the brick's own.
        """
        try:
            self.check_space(req)
            return self._set(req, req.xattrs, req.flags, *self._by_loc(req.loc))
        except OSError as error:
            raise self.failed(req, error) from error

    async def fsetxattr(self, req: fops.Fsetxattr) -> Done:
        """FSETXATTR."""
        try:
            self.check_space(req)
            return self._set(req, req.xattrs, req.flags, *self._by_fd(req.fd))
        except OSError as error:
            raise self.failed(req, error) from error

    def _set(self, req: Fop, xattrs: Xdata, flags: int, obj: Obj, st: os.stat_result, at: At) -> Done:
        times = xattrs.get(SET_CTIME_MDATA)
        if isinstance(times, MdataTimes):
            self._merge_times(obj, at, times)
            self.settle(obj, self._stat(obj, at))
            return Done()
        pre = self.iatt(obj, st)
        known = obj.xattrs
        changes = list(self.settable(xattrs))
        before = [(key, known[key] if key in known else self.xget(at, key)) for key, _ in changes]
        with self.changing(req, obj, before):
            self._set_all(obj, at, changes, before, flags & 3)
            if req.ctime:
                # Stock's clients send no time with this fop. A time of our own would make replicas differ, and with
                # them the heal that has just made them alike by this fop.
                self.touch_at(req, obj, at, st)
        post = self.settle(obj, self._stat(obj, at))
        return Done(xdata=Xdata({DHT_GET_IATT: post, VIRT_PRESTAT: pre, VIRT_POSTSTAT: post}))

    def settable(self, xattrs: Xdata) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys and values that a request sets, as they are on disk; OSError for one that clients may not."""
        for key, (kind, value) in xattrs.typed():
            if key in _IGNORED:
                continue
            if key != MDATA_KEY:
                self._refuse(key)
            yield key, _plain(kind, value)

    def changing(self, req: Fop, obj: Obj, before: list[tuple[bytes, bytes | None]]) -> Journal:
        """Note the values of xattrs that are about to change."""
        intent = Intent(req.name, time.time_ns(), req.ctime, req.stamp, gfid=obj.gfid, xattrs=tuple(before))
        return self.journal.note(intent)

    def _set_all(
        self,
        obj: Obj,
        at: At,
        changes: list[tuple[bytes, bytes]],
        before: list[tuple[bytes, bytes | None]],
        flags: int,
    ) -> None:
        done = 0
        try:
            for key, data in changes:
                if key == MDATA_KEY:
                    given = parse_mdata(data)
                    if given is None:
                        raise OSError(errno.EINVAL, "not an mdata value")
                    cs, cn, ms, mn, as_, an = given
                    self._merge_times(obj, at, MdataTimes(as_, ms, cs, an, mn, cn))
                else:
                    self.xset(at, key, data, flags)
                    obj.xattrs[key] = data
                if key.startswith(b"system."):
                    # What the kernel stores may differ, and the mode moves along.
                    del obj.xattrs[key]
                done += 1
        except BaseException:
            self._take_back(obj, at, before[:done])
            raise

    def _take_back(self, obj: Obj, at: At, done: list[tuple[bytes, bytes | None]]) -> None:
        for key, before in reversed(done):
            obj.xattrs.pop(key, None)
            if key == MDATA_KEY:
                continue  # times only move on
            if before is None:
                self.xdel(at, key)
            else:
                self.xset(at, key, before)
        obj.ctime = -1

    def _refuse(self, key: bytes) -> None:
        """Refuse keys that a client must not write."""
        if key.startswith(GFID2PATH):
            raise OSError(errno.EOPNOTSUPP, f"{key.decode('utf-8', 'replace')} is kept by the brick")
        if key in _PATHINFO or key == _NODE_UUID:
            raise OSError(errno.EACCES, f"{key.decode('utf-8', 'replace')} cannot be set")
        if key.startswith(USER_PREFIX):
            raise OSError(errno.EPERM, f"{key.decode('utf-8', 'replace')} is the brick's own")

    def _merge_times(self, obj: Obj, at: At, given: MdataTimes) -> None:
        """Move the times in mdata forward to those given, making mdata for an object that has none."""
        if not self.options.ctime:
            return
        times = ((given.ctime, given.ctime_nsec), (given.mtime, given.mtime_nsec), (given.atime, given.atime_nsec))
        if obj.times is not None:
            old = obj.times
            times = (max(times[0], old[0:2]), max(times[1], old[2:4]), max(times[2], old[4:6]))
        (cs, cn), (ms, mn), (as_, an) = times
        self.write_times(obj, at, (cs, cn, ms, mn, as_, an))

    def touch_at(self, req: Fop, obj: Obj, at: At, st: os.stat_result) -> None:
        """Stamp the ctime of an object whose xattrs have changed."""
        if self.options.ctime:
            when, flags = self.when(req, STAMP_CTIME)
            if flags & 7:
                self.stamp(obj, at, when, flags & 7, st)

    @staticmethod
    def _stat(obj: Obj, at: At) -> os.stat_result:
        return os.fstat(at) if isinstance(at, int) else os.lstat(obj.path)

    # -- REMOVEXATTR -----------------------------------------------------------------------------------------------

    async def removexattr(self, req: fops.Removexattr) -> Done:
        """REMOVEXATTR; ENODATA when it is not there, EPERM for what is the brick's own.

        Without a key those of xdata's that are there go, as replicate's heal asks for it.
        """
        try:
            return self._remove(req, req.key, *self._by_loc(req.loc))
        except OSError as error:
            raise self.failed(req, error) from error

    async def fremovexattr(self, req: fops.Fremovexattr) -> Done:
        """FREMOVEXATTR."""
        try:
            return self._remove(req, req.key, *self._by_fd(req.fd))
        except OSError as error:
            raise self.failed(req, error) from error

    def _remove(self, req: Fop, key: bytes, obj: Obj, st: os.stat_result, at: At) -> Done:
        pre = self.iatt(obj, st)
        # A heal lists the times among the xattrs, and sets them after this; without them the object had none meanwhile.
        many = not key and bool(req.xdata)
        keys = [name for name in req.xdata if name != MDATA_KEY] if many else [key]
        for name in keys:
            if name in (GFID_KEY, VOLUME_ID_KEY, MDATA_KEY):
                raise OSError(errno.EPERM, f"{name.decode()} is the brick's own")
            self._refuse(name)
        with self.changing(req, obj, [(name, self.xget(at, name)) for name in keys]):
            for name in keys:
                try:
                    self.xdel(at, name)
                except OSError as error:
                    if not many or error.errno != errno.ENODATA:
                        raise
                obj.xattrs[name] = None
                if name.startswith(b"system."):
                    del obj.xattrs[name]
            self.touch_at(req, obj, at, st)
        post = self.settle(obj, self._stat(obj, at))
        return Done(xdata=Xdata({DHT_GET_IATT: post, VIRT_PRESTAT: pre, VIRT_POSTSTAT: post}))

    # -- GETXATTR --------------------------------------------------------------------------------------------------

    async def getxattr(self, req: fops.Getxattr) -> XattrReply:
        """GETXATTR: one xattr, or all but the brick's own when the key is empty. ENODATA when it is not there."""
        try:
            obj, st, at = self._by_loc(req.loc)
            virtual = self._virtual(obj, st, at, req.key)
            return virtual if virtual is not None else self._get(req, req.key, obj, at)
        except OSError as error:
            raise self.failed(req, error) from error

    async def fgetxattr(self, req: fops.Fgetxattr) -> XattrReply:
        """FGETXATTR."""
        try:
            obj, st, at = self._by_fd(req.fd)
            virtual = self._virtual(obj, st, at, req.key)
            return virtual if virtual is not None else self._get(req, req.key, obj, at)
        except OSError as error:
            raise self.failed(req, error) from error

    def _get(self, req: Fop, key: bytes, obj: Obj, at: At) -> XattrReply:
        internal = req.caller.pid < 0  # such clients copy an object with its times
        if not key:
            values: dict[bytes, object] = {}
            for name in self.xlist(at):
                if (
                    name in (GFID_KEY, VOLUME_ID_KEY)
                    or name.startswith(GFID2PATH)
                    or (name == MDATA_KEY and not internal)
                ):
                    continue
                value = self.xget(at, name)
                if value is not None:
                    values[name] = value
            total = sum(len(name) + 1 for name in values)
            return XattrReply(size=total, xattrs=Xdata(values) if values else NO_PAIRS)
        if key == GFID_KEY:
            return XattrReply(size=0, xattrs=EMPTY)
        if key.startswith((GFID2PATH, USER_PREFIX)) or (key == MDATA_KEY and not internal):
            raise OSError(errno.ENODATA, "no such xattr")
        known = obj.xattrs
        if key in known:
            found = known[key]
        else:
            found = known[key] = self.xget(at, key)
        if found is None:
            raise OSError(errno.ENODATA, f"no xattr {key.decode('utf-8', 'replace')}")
        return XattrReply(size=len(found), xattrs=Xdata({key: found}))

    def _virtual(self, obj: Obj, st: os.stat_result, at: At, key: bytes) -> XattrReply | None:
        """Answer the keys that are not on disk."""
        if key in _PATHINFO:
            path = self.paths(obj, at)[0]
            node = self.options.glusterd_uuid if self.options.node_uuid_pathinfo else ""
            host = (node or self.options.hostname or self.graph.surroundings.host).encode()
            brick = os.fsencode(self.brick)
            text = b"<POSIX(%s):%s:%s>" % (brick, host, brick + (b"" if path == b"/" else path))
        elif key == _NODE_UUID and self.options.glusterd_uuid:
            text = self.options.glusterd_uuid.encode()
        elif key == ZERO_METHOD:
            text = self.zero_method.encode()
        elif key == LIMITS:
            text = " ".join(f"{name}={value}" for name, value in sorted(self.limits().items())).encode()
        elif key == _GFIDTOPATH:
            if not self.options.gfid2path and not stat.S_ISDIR(st.st_mode):
                raise OSError(errno.ENODATA, "option gfid2path is off")
            text = self.options.gfid2path_separator.encode().join(self.paths(obj, at))
        else:
            return None
        return XattrReply(size=len(text) + 1, xattrs=Xdata({key: Typed(STR, text)}))

    def paths(self, obj: Obj, at: At) -> list[bytes]:
        """Return all paths of an object from the brick's root, at least one (its handle's when no name is recorded)."""
        if obj.gfid == ROOT_GFID:
            return [b"/"]
        if obj.is_dir:
            return [self.path_of(obj.gfid)]
        found = []
        for name in sorted(self.xlist(at)):
            if name.startswith(GFID2PATH):
                parent, _, base = (self.xget(at, name) or b"").partition(b"/")
                try:
                    above = self.path_of(gfid_from_text(parent.decode()))
                except (OSError, ValueError):
                    continue
                found.append(above.rstrip(b"/") + b"/" + base)
        return found or [os.fsencode(obj.path)[len(os.fsencode(self.brick)) :]]

    # -- XATTROP ---------------------------------------------------------------------------------------------------

    async def xattrop(self, req: fops.Xattrop) -> XattropReply:
        """XATTROP: add to arrays of 32- or 64-bit big-endian numbers, or get and set.

        A delta that is zero throughout returns what is stored (zeroes when nothing is) and writes nothing. Raises
        FopError: EINVAL for other operations, ERANGE when the stored value is longer than the new one.
        """
        try:
            return self._xattrop(req, req.flags, req.xattrs, *self._by_loc(req.loc))
        except OSError as error:
            raise self.failed(req, error) from error

    async def fxattrop(self, req: fops.Fxattrop) -> XattropReply:
        """FXATTROP."""
        try:
            return self._xattrop(req, req.flags, req.xattrs, *self._by_fd(req.fd))
        except OSError as error:
            raise self.failed(req, error) from error

    def _xattrop(self, req: Fop, how: int, xattrs: Xdata, obj: Obj, st: os.stat_result, at: At) -> XattropReply:
        known = obj.xattrs
        answer: dict[bytes, object] = {}
        changes: list[tuple[bytes, bytes]] = []
        for key, (kind, value) in xattrs.typed():
            self._refuse(key)
            if key in (GFID_KEY, VOLUME_ID_KEY, MDATA_KEY):
                raise OSError(errno.EPERM, f"{key.decode()} is the brick's own")
            if not isinstance(value, bytes):
                raise OSError(errno.EINVAL, f"{key.decode('utf-8', 'replace')}: not an array")
            data = _plain(kind, value)
            if key not in known:
                known[key] = self.xget(at, key)
            shown, new = combine(how, known[key], data)
            if shown is not None:
                answer[key] = shown
            if new is not None:
                changes.append((key, new))
        if changes:
            before = [(key, known[key]) for key, _ in changes]
            with self.changing(req, obj, before):
                self._set_all(obj, at, changes, before, 0)
            self.settle(obj, self._stat(obj, at))
        return XattropReply(xattrs=Xdata(answer))


def combine(how: int, stored: bytes | None, delta: bytes) -> tuple[bytes | None, bytes | None]:
    """Return what an XATTROP answers and what it stores (None for nothing).

    Raises OSError: EINVAL for an unknown operation, ERANGE when the stored value does not fit.
    """
    if how == XATTROP_GET_AND_SET:
        if stored is not None and len(stored) > len(delta):
            raise OSError(errno.ERANGE, "the stored value is longer than the new one")
        return stored, delta
    wide = how in (XATTROP_ADD_ARRAY64, XATTROP_ADD_ARRAY64_WITH_DEFAULT)
    default = how in (XATTROP_ADD_ARRAY_WITH_DEFAULT, XATTROP_ADD_ARRAY64_WITH_DEFAULT)
    if not (wide or default or how == XATTROP_ADD_ARRAY):
        if any(delta):
            raise OSError(errno.EINVAL, f"XATTROP has no operation {how}")
        wide = False
    length = len(delta) // 2 if default else len(delta)
    if stored is not None and len(stored) > length:
        raise OSError(errno.ERANGE, "the stored value is longer than the delta")
    old = (stored or b"").ljust(length, b"\0")
    if not any(delta):
        return old, None
    width, code, mask = (8, "Q", (1 << 64) - 1) if wide else (4, "I", (1 << 32) - 1)
    count = length // width
    form = f">{count}{code}"
    numbers = struct.unpack_from(form, old)
    deltas = struct.unpack_from(form, delta)
    first = struct.unpack_from(form, delta, length) if default else (0,) * count
    new = [(n + d + (f if not n else 0)) & mask for n, d, f in zip(numbers, deltas, first, strict=True)]
    packed = struct.pack(form, *new) + old[count * width :]
    return packed, packed


def _plain(kind: int, value: Any) -> bytes:
    """Return the bytes that a value has on disk; stock stores texts with their NUL."""
    if isinstance(value, bytes):
        return value + b"\0" if kind == STR else value
    if isinstance(value, int):
        return str(value).encode() + b"\0"
    raise OSError(errno.EINVAL, "not a value for an xattr")
