"""A volume as coroutines: names, attributes, directories, and opening files."""

from __future__ import annotations

import errno
import os
import stat as _stat

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
from glustx.gfapi.attrs import Change, list_names, mode_change, owner_change, time_change, xattr_flags, xattr_name
from glustx.gfapi.file import FileCore
from glustx.gfapi.folder import MISSING, DirCore, Found
from glustx.gfapi.namei import MAX_LINKS, PathLike, Spot, Walker, to_bytes, to_text
from glustx.gfapi.results import HasGfid, StatResult, StatvfsResult
from glustx.gfapi.session import Session
from glustx.inode import Fd
from glustx.values import ROOT_LOC, Caller, Iatt, Loc, gfid_from_text, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid


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
    """

    def __init__(self, session: Session, caller: Caller, umask: int = 0o022) -> None:
        super().__init__(session, caller)
        self.umask = umask

    def using(self, uid: int | None, gid: int | None, groups: tuple[int, ...] | None, umask: int | None) -> VolumeCore:
        """Return the same volume for another user or umask; None leaves one as it is."""
        who = self.caller
        if groups is None:
            groups = who.groups if uid is None else ()
        new_uid = who.uid if uid is None else uid
        new_gid = who.gid if gid is None else gid
        caller = Caller(who.pid, new_uid, new_gid, groups, who.lk_owner, who.client)
        return VolumeCore(self.session, caller, self.umask if umask is None else umask)

    def _fresh(self) -> Xdata:
        return Xdata({GFID_REQ: gfuuid(new_gfid())})

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self, path: PathLike, how: int | str = os.O_RDONLY, mode: int = 0o666) -> FileCore:
        """Open a file.

        Args:
            how: `os.O_*` flags or a mode string (`rb`, `r+b`, `wb`, `ab`, `xb`).
            mode: permissions of a file that is made, less the umask.
        """
        flags = fl.open_flags(how)
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
            if error.errno in MISSING or error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
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
            if error.errno in (*MISSING, errno.EACCES, errno.EPERM, errno.EROFS):
                return False
            raise
        return True

    async def getsize(self, path: PathLike) -> int:
        """Return the size of a file in bytes."""
        return (await self.find(path))[1].size

    async def samefile(self, path: PathLike, other: PathLike) -> bool:
        """Tell whether two paths lead to one inode."""
        return (await self.find(path))[1].gfid == (await self.find(other))[1].gfid

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

    async def getxattr(self, path: PathLike, name: str | bytes, *, follow_symlinks: bool = True) -> bytes:
        """Return the value of an extended attribute; OSError ENODATA when there is none."""
        key = xattr_name(name)
        loc, _ = await self.find(path, follow_symlinks)
        reply = await self.session.top(Getxattr(loc=loc, key=key, caller=self.caller))
        if key not in reply.xattrs:
            raise FopError(errno.ENODATA, f"no xattr {key!r}")
        return bytes(reply.xattrs[key])

    async def setxattr(
        self, path: PathLike, name: str | bytes, value: bytes, flags: int = 0, *, follow_symlinks: bool = True
    ) -> None:
        """Set an extended attribute; `flags` os.XATTR_CREATE or os.XATTR_REPLACE."""
        loc, _ = await self.find(path, follow_symlinks)
        xattrs = Xdata({xattr_name(name): value})
        await self.session.top(Setxattr(loc=loc, xattrs=xattrs, flags=xattr_flags(flags), caller=self.caller))

    async def removexattr(self, path: PathLike, name: str | bytes, *, follow_symlinks: bool = True) -> None:
        """Remove an extended attribute; OSError ENODATA when there is none."""
        loc, _ = await self.find(path, follow_symlinks)
        await self.session.top(Removexattr(loc=loc, key=xattr_name(name), caller=self.caller))

    async def listxattr(self, path: PathLike, *, follow_symlinks: bool = True) -> list[str]:
        """Return the names of the extended attributes."""
        loc, _ = await self.find(path, follow_symlinks)
        return list_names(await self.session.top(Getxattr(loc=loc, caller=self.caller)))

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
        """Make a directory and all that lead to it."""
        raw = to_bytes(path)
        parts = [part for part in raw.split(b"/") if part and part != b"."]
        if not parts and not exist_ok:
            raise FopError(errno.EEXIST, "the root is always there")
        for depth in range(1, len(parts) + 1):
            last = depth == len(parts)
            if parts[depth - 1] == b"..":
                continue
            try:
                await self._mkdir(await self.place(b"/".join(parts[:depth])), mode if last else 0o777)
            except FopError as error:
                if error.errno != errno.EEXIST or (last and not exist_ok):
                    raise
                if last and not _stat.S_ISDIR(await self._mode(raw, True)):
                    raise

    async def mknod(self, path: PathLike, mode: int = 0o600 | _stat.S_IFREG, device: int = 0) -> None:
        """Make a file, fifo, socket or device node without opening it."""
        spot = await self.place(path)
        await self.session.top(
            Mknod(
                loc=spot.named(),
                mode=mode,
                rdev=device,
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
        oldloc = Loc(gfid=stat.gfid, pargfid=old.parent, name=old.name, path=old.path)
        await self.session.top(Rename(oldloc=oldloc, newloc=new.named(), caller=self.caller))

    async def link(self, src: PathLike | HasGfid, dst: PathLike, *, follow_symlinks: bool = False) -> None:
        """Give a file another name; `src` may be an open or closed file object instead, which spares a LOOKUP."""
        if isinstance(src, HasGfid):
            loc = Loc(gfid=gfid_from_text(src.gfid))
        else:
            loc, _ = await self.find(src, follow_symlinks)
        new = (await self.place(dst)).named()
        await self.session.top(Link(oldloc=loc, newloc=new, caller=self.caller))

    async def symlink(self, target: PathLike, path: PathLike) -> None:
        """Make a symbolic link at `path` that says `target`."""
        spot = await self.place(path)
        await self.session.top(
            Symlink(
                loc=spot.named(),
                linkname=to_bytes(target),
                umask=self.umask,
                caller=self.caller,
                xdata=self._fresh(),
            )
        )

    async def _target(self, loc: Loc) -> bytes:
        reply = await self.session.top(Readlink(loc=loc, size=4096, caller=self.caller))
        target: bytes = reply.path
        return target

    async def readlink(self, path: PathLike) -> str:
        """Return what a symbolic link says."""
        loc, stat = await self.find(path, False)
        if not stat.is_lnk():
            raise FopError(errno.EINVAL, "not a symbolic link")
        return to_text(await self._target(loc))

    async def realpath(self, path: PathLike) -> str:
        """Return the path without symbolic links and dots; what it names must exist."""
        spot = await self.walk(to_bytes(path), True, True)
        return to_text(spot.path)

    # -- directories -------------------------------------------------------------------------------------------------

    async def listdir(self, path: PathLike = "/") -> list[str]:
        """Return the names in a directory, without `.` and `..`."""
        return [to_text(found.name) for found in await self.entries(path)]

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

    async def rmtree(self, path: PathLike) -> None:
        """Remove a directory and all that is in it; symbolic links are removed, not followed."""
        loc, stat = await self.find(path, False)
        if not stat.is_dir():
            raise FopError(errno.ENOTDIR)
        todo: list[tuple[bytes, bool]] = [(loc.path or b"/", False)]
        while todo:
            folder, emptied = todo.pop()
            if emptied:
                if folder != b"/":
                    await self.rmdir(folder)
                continue
            todo.append((folder, True))
            for name, entry in await self.entries(folder):
                inner = folder.rstrip(b"/") + b"/" + name
                if entry.is_dir():
                    todo.append((inner, False))
                else:
                    await self.unlink(inner)
