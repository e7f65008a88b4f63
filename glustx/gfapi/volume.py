"""A volume as coroutines: names, attributes, directories, and opening files."""

from __future__ import annotations

import errno
import os
import stat as _stat
import uuid

from glustx.errors import FopError
from glustx.fops import (
    Access,
    Create,
    Getxattr,
    Link,
    Lookup,
    Mkdir,
    Mknod,
    Open,
    Opendir,
    Readlink,
    Removexattr,
    Rename,
    Rmdir,
    Setattr,
    Setxattr,
    Statfs,
    Symlink,
    Truncate,
    Unlink,
)
from glustx.gfapi import flags as fl
from glustx.gfapi.attrs import (
    Buffer,
    Change,
    fitting,
    list_names,
    mode_change,
    owner_change,
    time_change,
    xattr_flags,
    xattr_name,
    xattr_value,
)
from glustx.gfapi.file import FileCore
from glustx.gfapi.folder import MISSING, DirCore, Found
from glustx.gfapi.namei import MAX_LINKS, PathLike, Spot, Walker, Whereabouts, to_bytes
from glustx.gfapi.results import HasGfid, StatResult, StatvfsResult
from glustx.gfapi.session import Session
from glustx.inode import Fd
from glustx.values import ROOT_LOC, Caller, Iatt, Loc, gfid_from_text, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid

# What makes a path lead nowhere for this caller; a volume that does not answer is none of it.
_NOT_THERE = (*MISSING, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM)


def make_caller(uid: int | None, gid: int | None, groups: tuple[int, ...] | None) -> Caller:
    """Return who asks: by default the user of this process."""
    own = os.geteuid() if hasattr(os, "geteuid") else 0
    if uid is None:
        uid = own
    if gid is None:
        gid = os.getegid() if hasattr(os, "getegid") else 0
    if groups is None:
        groups = tuple(os.getgroups()) if uid == own and hasattr(os, "getgroups") else ()
    return Caller(pid=os.getpid(), uid=uid, gid=gid, groups=groups)


class VolumeCore(Walker):
    """What one user does on a volume.

    Args:
        session: the mounted volume.
        caller: who asks.
        umask: bits taken from the mode of what is made.
        here: where relative paths start.
    """

    def __init__(self, session: Session, caller: Caller, umask: int = 0o022, here: Whereabouts | None = None) -> None:
        super().__init__(session, caller, here)
        self.umask = umask

    def using(
        self,
        uid: int | None = None,
        gid: int | None = None,
        groups: tuple[int, ...] | None = None,
        umask: int | None = None,
        here: Whereabouts | None = None,
    ) -> VolumeCore:
        """Return the same volume for another user, umask or directory; None leaves one as it is."""
        who = self.caller
        if groups is None:
            groups = who.groups if uid is None else ()
        new_uid = who.uid if uid is None else uid
        new_gid = who.gid if gid is None else gid
        caller = Caller(who.pid, new_uid, new_gid, groups, who.lk_owner, who.client)
        here = here or Whereabouts(self.here.path)
        return VolumeCore(self.session, caller, self.umask if umask is None else umask, here)

    def _fresh(self) -> Xdata:
        return Xdata({GFID_REQ: gfuuid(new_gfid())})

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self, path: PathLike, flags: int | str = os.O_RDONLY, mode: int | None = None) -> FileCore:
        """Open a file.

        Args:
            flags: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask; None for 0o666 with a mode string and 0o777
                with flags, as `open` and `os.open` have it.
        """
        if mode is None:
            mode = 0o666 if isinstance(flags, str) else 0o777
        flags = fl.open_flags(flags)
        spot, reply_stat = await self._locate(path, flags)
        if reply_stat is None:
            fd = await self._create(spot, flags, mode)
        else:
            if reply_stat.is_dir():
                raise FopError(errno.EISDIR)
            if reply_stat.is_lnk():
                raise FopError(errno.ELOOP)
            if flags & fl.O_DIRECTORY:
                raise FopError(errno.ENOTDIR)
            fd = Fd(reply_stat.gfid, flags, client=self.caller.client)
            sent = flags & ~(fl.O_CREAT | fl.O_EXCL)
            await self.session.top(Open(loc=spot.loc(), fd=fd, flags=sent, caller=self.caller))
        return FileCore(self.session, self.caller, fd, flags, path)

    async def _locate(self, path: PathLike, flags: int) -> tuple[Spot, Iatt | None]:
        """Return where a file to open is, and its attributes; None for one that is to be made."""
        raw = to_bytes(path)
        if not flags & fl.O_CREAT:
            spot = await self.walk(raw, True, not flags & fl.O_NOFOLLOW)
            return spot, spot.stat
        for _ in range(MAX_LINKS):
            spot = await self.place(raw)
            if flags & fl.O_EXCL:
                return spot, None
            try:
                reply = await self.session.top(Lookup(loc=spot.named(), caller=self.caller))
            except FopError as error:
                if error.errno != errno.ENOENT:
                    raise
                if raw.endswith(b"/"):
                    raise FopError(errno.EISDIR) from None
                return spot, None
            if not reply.stat.is_lnk() or flags & fl.O_NOFOLLOW:
                found = Spot(spot.parent, spot.name, spot.path, reply.stat.gfid, reply.stat)
                return found, reply.stat
            loc = Loc(gfid=reply.stat.gfid, pargfid=spot.parent, name=spot.name, path=spot.path)
            target = await self._target(loc)
            # The file is made where the link leads, even when nothing is there yet.
            raw = target if target.startswith(b"/") else os.path.dirname(spot.path) + b"/" + target
        raise FopError(errno.ELOOP, f"more than {MAX_LINKS} symbolic links")

    async def _create(self, spot: Spot, flags: int, mode: int) -> Fd:
        fd = Fd(bytes(16), flags, client=self.caller.client)
        await self.session.top(
            Create(
                loc=spot.named(),
                fd=fd,
                flags=flags,
                mode=mode & 0o7777,
                umask=self.umask,
                caller=self.caller,
                xdata=self._fresh(),
            )
        )
        return fd

    # -- attributes --------------------------------------------------------------------------------------------------

    async def stat(self, path: PathLike, *, follow_symlinks: bool = True) -> StatResult:
        """Return the attributes of what `path` names."""
        return StatResult((await self.find(path, follow_symlinks))[1])

    async def lstat(self, path: PathLike) -> StatResult:
        """Return the attributes of what `path` names, of the link itself when it is one."""
        return StatResult((await self.find(path, False))[1])

    async def _mode(self, path: PathLike, follow: bool) -> int:
        try:
            return (await self.find(path, follow))[1].mode
        except FopError as error:
            if error.errno in _NOT_THERE:
                return 0
            raise

    async def exists(self, path: PathLike) -> bool:
        """Tell whether `path` names something; False for a symbolic link that leads nowhere."""
        return bool(await self._mode(path, True))

    async def lexists(self, path: PathLike) -> bool:
        """Tell whether `path` names something, be it a symbolic link that leads nowhere."""
        return bool(await self._mode(path, False))

    async def isfile(self, path: PathLike) -> bool:
        """Tell whether `path` names a regular file or leads to one."""
        return _stat.S_ISREG(await self._mode(path, True))

    async def isdir(self, path: PathLike) -> bool:
        """Tell whether `path` names a directory or leads to one."""
        return _stat.S_ISDIR(await self._mode(path, True))

    async def islink(self, path: PathLike) -> bool:
        """Tell whether `path` names a symbolic link."""
        return _stat.S_ISLNK(await self._mode(path, False))

    async def access(self, path: PathLike, mode: int) -> bool:
        """Tell whether the brick lets the caller do `mode` (os.F_OK, R_OK, W_OK, X_OK) to what `path` names."""
        try:
            loc, _ = await self.find(path)
            await self.session.top(Access(loc=loc, mask=mode, caller=self.caller))
        except FopError as error:
            if error.errno in _NOT_THERE or error.errno == errno.EROFS:
                return False
            raise
        return True

    async def getsize(self, path: PathLike) -> int:
        """Return the size of a file in bytes."""
        return (await self.find(path))[1].size

    async def getatime(self, path: PathLike) -> float:
        """Return the time of the last access, in seconds since 1970."""
        return (await self.stat(path)).st_atime

    async def getmtime(self, path: PathLike) -> float:
        """Return the time of the last change to the content, in seconds since 1970."""
        return (await self.stat(path)).st_mtime

    async def getctime(self, path: PathLike) -> float:
        """Return the time of the last change to content or attributes, in seconds since 1970."""
        return (await self.stat(path)).st_ctime

    async def samefile(self, path1: PathLike, path2: PathLike) -> bool:
        """Tell whether two paths lead to one inode."""
        return (await self.find(path1))[1].gfid == (await self.find(path2))[1].gfid

    async def _setattr(self, path: PathLike, follow: bool, change: Change) -> None:
        loc, _ = await self.find(path, follow)
        await self.session.top(Setattr(loc=loc, stat=change[0], valid=change[1], caller=self.caller))

    async def chmod(self, path: PathLike, mode: int, *, follow_symlinks: bool = True) -> None:
        """Set the permission bits."""
        await self._setattr(path, follow_symlinks, mode_change(mode))

    async def chown(self, path: PathLike, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """Set owner and group; -1 leaves one as it is."""
        await self._setattr(path, follow_symlinks, owner_change(uid, gid))

    async def utime(
        self,
        path: PathLike,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Set access and modification time, in seconds or nanoseconds; to now without either."""
        await self._setattr(path, follow_symlinks, time_change(times, ns))

    async def truncate(self, path: PathLike, size: int) -> None:
        """Set a file's size."""
        if size < 0:
            raise FopError(errno.EINVAL, f"size {size}")
        loc, _ = await self.find(path)
        await self.session.top(Truncate(loc=loc, offset=size, caller=self.caller))

    async def statvfs(self, path: PathLike = "/") -> StatvfsResult:
        """Return the figures of the volume, as seen at `path`."""
        loc = ROOT_LOC if path == "/" else (await self.find(path))[0]
        return StatvfsResult((await self.session.top(Statfs(loc=loc, caller=self.caller))).statfs)

    # -- extended attributes -----------------------------------------------------------------------------------------

    async def getxattr(self, path: PathLike, key: str | bytes, size: int = 0, *, follow_symlinks: bool = True) -> bytes:
        """Return the value of an extended attribute."""
        raw = xattr_name(key)
        loc, _ = await self.find(path, follow_symlinks)
        reply = await self.session.top(Getxattr(loc=loc, key=raw, caller=self.caller))
        if raw not in reply.xattrs:
            raise FopError(errno.ENODATA, f"no xattr {raw!r}")
        return fitting(bytes(reply.xattrs[raw]), size)

    async def setxattr(
        self, path: PathLike, key: str | bytes, value: str | Buffer, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """Set an extended attribute.

        Args:
            value: text is stored as UTF-8.
            flags: 1 (os.XATTR_CREATE) to fail when it is there, 2 (os.XATTR_REPLACE) to fail when it is not.

        Raises:
            OSError: EEXIST, ENODATA for these flags; EPERM, ENOTSUP for a namespace that the caller may not write.
        """
        loc, _ = await self.find(path, follow_symlinks)
        xattrs = Xdata({xattr_name(key): xattr_value(value)})
        await self.session.top(Setxattr(loc=loc, xattrs=xattrs, flags=xattr_flags(flags), caller=self.caller))

    async def removexattr(self, path: PathLike, key: str | bytes, *, follow_symlinks: bool = True) -> None:
        """Remove an extended attribute; OSError ENODATA when there is none."""
        loc, _ = await self.find(path, follow_symlinks)
        await self.session.top(Removexattr(loc=loc, key=xattr_name(key), caller=self.caller))

    async def listxattr(self, path: PathLike, size: int = 0, *, follow_symlinks: bool = True) -> list[str]:
        """Return the names of the extended attributes, sorted.

        Args:
            size: bytes that the names may take, each with a NUL; 0 for any. OSError ERANGE when they take more.
        """
        loc, _ = await self.find(path, follow_symlinks)
        return list_names(await self.session.top(Getxattr(loc=loc, caller=self.caller)), size)

    async def get_volume_id(self) -> uuid.UUID:
        """Return the volume's id: what its servers say, or what a brick without one keeps on its root."""
        session = self.session
        if not session.source.addresses:
            return uuid.UUID(bytes=await self.getxattr("/", "trusted.glusterfs.volume-id"))
        from glustx.rpc.getspec import volume_id

        failed: FopError | None = None
        for address in session.source.addresses:
            try:
                text = await volume_id(session.network, session.reactor, address, session.volume, session.timeout)
                return uuid.UUID(text)
            except FopError as error:
                failed = error
            except ValueError:
                failed = FopError(errno.EPROTO, f"volume server {address}: {text!r} is no UUID")
        assert failed is not None
        raise failed

    # -- names -------------------------------------------------------------------------------------------------------

    async def mkdir(self, path: PathLike, mode: int = 0o777) -> None:
        """Make a directory."""
        await self._mkdir(await self.place(path), mode)

    async def _mkdir(self, spot: Spot, mode: int) -> None:
        reply = await self.session.top(
            Mkdir(loc=spot.named(), mode=mode & 0o7777, umask=self.umask, caller=self.caller, xdata=self._fresh())
        )
        self.session.dentries.put(spot.parent, spot.name, reply.stat.gfid)

    async def makedirs(self, path: PathLike, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """Make a directory and all that lead to it; `mode` is of the last one, those above it get 0o777 less the umask.

        Args:
            exist_ok: a directory that is there already is no error.
        """
        raw = to_bytes(path)
        start = b"/" if raw.startswith(b"/") else b""
        parts = [part for part in raw.split(b"/") if part and part != b"."]
        if not parts and not exist_ok:
            raise FopError(errno.EEXIST, "the root is always there")
        depth = len(parts)
        rising = True
        while 0 < depth <= len(parts):
            last = depth == len(parts)
            try:
                await self._mkdir(await self.place(start + b"/".join(parts[:depth])), mode if last else 0o777)
            except FopError as error:
                if error.errno == errno.ENOENT and rising and depth > 1:
                    depth -= 1
                    continue
                if error.errno != errno.EEXIST or (last and not exist_ok):
                    raise
                if last and not _stat.S_ISDIR(await self._mode(raw, True)):
                    raise
            rising = False
            depth += 1

    async def mknod(self, path: PathLike, mode: int = 0o600 | _stat.S_IFREG, dev: int = 0) -> None:
        """Make a file, fifo, socket or device node without opening it; `dev` as `os.makedev` makes it."""
        spot = await self.place(path)
        await self.session.top(
            Mknod(
                loc=spot.named(),
                mode=mode,
                rdev=dev,
                umask=self.umask,
                caller=self.caller,
                xdata=self._fresh(),
            )
        )

    async def unlink(self, path: PathLike) -> None:
        """Remove a name of a file; files that have it open keep it."""
        spot = await self.place(path)
        await self.session.top(Unlink(loc=spot.named(), caller=self.caller))

    async def rmdir(self, path: PathLike) -> None:
        """Remove an empty directory."""
        spot = await self.place(path)
        self.session.dentries.drop(spot.parent, spot.name)
        await self.session.top(Rmdir(loc=spot.named(), caller=self.caller))

    async def rename(self, src: PathLike, dst: PathLike) -> None:
        """Move a name; what `dst` named before is replaced in the same step."""
        old, new = await self.place(src), await self.place(dst)
        dentries = self.session.dentries
        dentries.drop(old.parent, old.name)
        dentries.drop(new.parent, new.name)
        # Translators that place files by name want to know the inode.
        stat = (await self.session.top(Lookup(loc=old.named(), caller=self.caller))).stat
        if (old.parent, old.name) == (new.parent, new.name):
            return  # a stock brick would take the file's gfid handle for that of one that was replaced, and remove it
        oldloc = Loc(gfid=stat.gfid, pargfid=old.parent, name=old.name, path=old.path)
        await self.session.top(Rename(oldloc=oldloc, newloc=new.named(), caller=self.caller))

    async def link(self, source: PathLike | HasGfid, link_name: PathLike, *, follow_symlinks: bool = False) -> None:
        """Give a file another name; `source` may be an open or closed file object, which spares a LOOKUP."""
        if isinstance(source, HasGfid):
            loc = Loc(gfid=gfid_from_text(source.gfid))
        else:
            loc, stat = await self.find(source, follow_symlinks)
            if stat.is_dir():
                raise FopError(errno.EPERM, "a directory has one name")
        new = (await self.place(link_name)).named()
        await self.session.top(Link(oldloc=loc, newloc=new, caller=self.caller))

    async def symlink(self, source: PathLike, link_name: PathLike) -> None:
        """Make a symbolic link at `link_name` that says `source`."""
        spot = await self.place(link_name)
        await self.session.top(
            Symlink(
                loc=spot.named(),
                linkname=to_bytes(source),
                umask=self.umask,
                caller=self.caller,
                xdata=self._fresh(),
            )
        )

    async def _target(self, loc: Loc) -> bytes:
        reply = await self.session.top(Readlink(loc=loc, size=4096, caller=self.caller))
        target: bytes = reply.path
        return target

    async def readlink(self, path: PathLike) -> bytes:
        """Return what a symbolic link says."""
        loc, stat = await self.find(path, False)
        if not stat.is_lnk():
            raise FopError(errno.EINVAL, "not a symbolic link")
        return await self._target(loc)

    async def realpath(self, path: PathLike) -> bytes:
        """Return the path without symbolic links and dots; what it names must exist."""
        return (await self.walk(to_bytes(path), True, True)).path

    # -- directories -------------------------------------------------------------------------------------------------

    async def chdir(self, path: PathLike) -> None:
        """Let paths that do not begin with a slash start from `path`, in this volume object only."""
        spot = await self.walk(to_bytes(path), True, True)
        assert spot.stat is not None
        if not spot.stat.is_dir():
            raise FopError(errno.ENOTDIR)
        self.here.path = spot.path

    async def entries(self, path: PathLike) -> list[Found]:
        """Return all entries of a directory."""
        folder = await self.opendir(path)
        try:
            found: list[Found] = []
            while batch := await folder.batch():
                found.extend(batch)
            return found
        finally:
            folder.give_back()

    async def opendir(self, path: PathLike) -> DirCore:
        """Open a directory for reading entries batch by batch."""
        loc, stat = await self.find(path)
        if not stat.is_dir():
            raise FopError(errno.ENOTDIR)
        fd = Fd(stat.gfid, 0, directory=True, client=self.caller.client)
        await self.session.top(Opendir(loc=loc, fd=fd, caller=self.caller))
        return DirCore(self, fd, loc.path or b"/")
