"""The brick folder of storage/posix: what must be there before it is served, and watching that it stays usable."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import suppress

from glustx.errors import GraphError
from glustx.runtime import TimedOut, TimerHandle, spawn, wait_for
from glustx.values import ROOT_GFID, gfid_from_text
from glustx.xdata import MDATA_KEY
from glustx.xlators.storage import posix_zero
from glustx.xlators.storage.posix_attr import NS
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_intent import Journal
from glustx.xlators.storage.posix_object import (
    GFID_KEY,
    NAMESPACE_KEY,
    USER_PREFIX,
    VOLUME_ID_KEY,
    Dir,
    Obj,
    pack_mdata,
)
from glustx.xlators.storage.posix_own import own_file, own_folder
from glustx.xlators.storage.posix_recover import PosixRecover
from glustx.xlators.storage.posix_reserve import SPACE_CHECK, parse_reserve

_SKELETON = ("indices", "changelogs", "landfill", "unlink")


def prepare_brick(folder: str, volume_id: str = "", *, namespace: str = "trusted") -> None:
    """Mark a folder as the brick of a volume, as `volume create` does; nothing changes when it is one already.

    Args:
        folder: an existing folder.
        volume_id: the volume's UUID as text.
        namespace: where trusted.* xattrs are kept, `trusted` or `user` (see option xattr-namespace).

    Raises OSError: EEXIST when the folder belongs to another volume or uses the other namespace, EPERM where trusted
    xattrs need root.
    """
    prefix = USER_PREFIX if namespace == "user" else b""
    marks = {GFID_KEY: bytes(ROOT_GFID)}
    if volume_id:
        marks[VOLUME_ID_KEY] = gfid_from_text(volume_id)
    foreign = _read(folder, NAMESPACE_KEY) is None if namespace == "user" else _read(folder, NAMESPACE_KEY) is not None
    if foreign and os.path.lexists(os.path.join(folder, ".glusterfs")):
        raise OSError(errno.EEXIST, f"the brick does not use xattr-namespace {namespace}", folder)
    for key, value in marks.items():
        there = _read(folder, prefix + key)
        if there is not None and there != value:
            raise OSError(errno.EEXIST, f"the folder is a brick already, with another {key.decode()}", folder)
    if namespace == "user":
        os.setxattr(folder, NAMESPACE_KEY, b"user")
    for key, value in marks.items():
        os.setxattr(folder, prefix + key, value)


def parse_mode(text: str) -> int:
    """Return permission bits written in octal; ValueError for anything else."""
    mode = int(text, 8)
    if not 0 <= mode <= 0o777:
        raise ValueError(f"{text!r} is not a mode (0000 to 0777)")
    return mode


def _read(folder: str, key: bytes) -> bytes | None:
    try:
        return os.getxattr(folder, key)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise


def _claim(fd: int) -> None:
    """Keep a second server from the folder while this one has it: each would trust what it remembers of the files."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(
            errno.EBUSY, "another process, or another volume of this one, serves this folder already"
        ) from None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS):
            raise


class PosixBrick(PosixRecover):
    """Start, stop and health."""

    health: str = "unknown"
    _touching = False

    def open_brick(self) -> None:
        """Open the brick folder, check whose it is, and complete what a brick needs.

        Raises GraphError with a sentence for the operator.
        """
        folder = self.options.directory
        where = f"{self.graph.surroundings.host}:{folder}"
        if not os.path.isabs(folder):
            raise GraphError(f"{self.name}: option directory {folder!r} is not an absolute path")
        self.brick = os.path.normpath(folder)
        self._handles = f"{self.brick}/.glusterfs/"
        self.mapped = self.options.xattr_namespace == "user"
        try:
            fd = os.open(self.brick, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise GraphError(f"{self.name}: brick {where}: {error.strerror}") from error
        try:
            fresh = not os.path.lexists(self._handles)
            self._check_identity(fd, where, fresh)
            _claim(fd)
            self._complete_brick(fd)
            self.journal = Journal(self._handles + "glustx.intent")
            self.zero = posix_zero.probe(fd)
        except OSError as error:
            os.close(fd)
            raise GraphError(f"{self.name}: brick {where}: {error.strerror}") from error
        except BaseException:
            os.close(fd)
            raise
        forced = self.options.zero_method
        self.zero_method = self.zero.method if forced == "auto" else forced
        st = os.fstat(fd)
        obj = Obj(ROOT_GFID, 1, self.handle(ROOT_GFID), "", True, st.st_ino)
        self._root = Dir(fd, obj)
        self._objs.set(self.graph.inodes.hold(ROOT_GFID), obj)
        self._keep_dir(self._root)
        self._inos[st.st_ino] = obj
        self.refresh(obj, st, fd)
        self.recover()
        self._leftovers = self.collect_leftovers()

    def _check_identity(self, fd: int, where: str, fresh: bool) -> None:
        mark = _read(f"/proc/self/fd/{fd}", NAMESPACE_KEY)
        if self.mapped and mark is None and not fresh:
            raise GraphError(f"{self.name}: brick {where} uses trusted xattrs; option xattr-namespace must be trusted")
        if not self.mapped and mark is not None:
            raise GraphError(f"{self.name}: brick {where} was made with xattr-namespace user; the option must say so")
        if self.mapped and mark is None:
            os.setxattr(fd, NAMESPACE_KEY, b"user")
        wanted = self.options.volume_id
        there = self.xget(fd, VOLUME_ID_KEY)
        if wanted:
            try:
                volume_id = gfid_from_text(wanted)
            except ValueError:
                raise GraphError(f"{self.name}: option volume-id {wanted!r} is not a UUID") from None
            if there is None:
                raise GraphError(
                    f"{self.name}: brick {where} has no volume id. If its file system is mounted and it is to be a "
                    f"brick of {wanted}, mark it with `glustx volume create` or prepare_brick()"
                )
            if there != volume_id:
                raise GraphError(f"{self.name}: brick {where} belongs to volume {there.hex()}, not to {wanted}")
        gfid = self.xget(fd, GFID_KEY)
        if gfid is None:
            try:
                self.xset(fd, GFID_KEY, ROOT_GFID)
            except OSError as error:
                if error.errno in (errno.EPERM, errno.EOPNOTSUPP) and not self.mapped:
                    raise GraphError(
                        f"{self.name}: brick {where}: trusted xattrs are refused ({error.strerror}); they need root "
                        f"and a file system that has them, or option xattr-namespace user"
                    ) from error
                raise
        elif gfid != ROOT_GFID:
            raise GraphError(f"{self.name}: brick {where} is a folder inside another brick (gfid {gfid.hex()})")

    def _complete_brick(self, fd: int) -> None:
        """Make `.glusterfs` and what stock has in it."""
        own_folder(self._handles[:-1])
        os.chmod(self._handles, 0o700 if self.mapped else 0o600)
        fan = (f"{number:02x}" for number in range(256))
        mapped = ("xattrs",) if self.mapped else ()
        for name in (*fan, "00/00", *mapped, *_SKELETON, "indices/xattrop", "indices/dirty", "indices/entry-changes"):
            own_folder(self._handles + name)
        root = self._handles + "00/00/00000000-0000-0000-0000-000000000001"
        if not os.path.lexists(root):
            os.symlink("../../..", root)
        if self.options.ctime and self.xget(fd, MDATA_KEY) is None:
            st = os.fstat(fd)
            times = (*divmod(st.st_ctime_ns, NS), *divmod(st.st_mtime_ns, NS), *divmod(st.st_atime_ns, NS))
            self.xset(fd, MDATA_KEY, pack_mdata(times))
        if self.options.brick_uid >= 0 or self.options.brick_gid >= 0:
            os.chown(fd, self.options.brick_uid, self.options.brick_gid)

    def close_brick(self) -> None:
        """Drop all descriptors that are not open files of clients."""
        self._anonymous.clear()
        self._dirs.clear()
        self._old_dirs.clear()
        root = self.graph.inodes.find(ROOT_GFID)
        if root is not None and root.holds:
            self.graph.inodes.drop(root)
        self._root.obj.plan = None
        self.journal.close()
        fcntl.flock(self._root.fd, fcntl.LOCK_UN)  # a fop under way may keep the descriptor for a while
        del self._root

    # -- watching --------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to look after health (option health-check-interval) and free space (option reserve)."""
        self._timers: dict[str, TimerHandle] = {}
        self._watching = True
        if self.options.health_check_interval:
            self._again("health", self.options.health_check_interval, lambda: spawn(self._check_health()))
        self.look_at_space()
        self._again("space", SPACE_CHECK, lambda: spawn(self._check_space()))
        leftovers, self._leftovers = self._leftovers, []
        if leftovers:
            spawn(self._clear(leftovers))
        self._again("janitor", self.options.janitor_sleep_duration, lambda: spawn(self._sweep()))

    async def _clear(self, leftovers: list[str]) -> None:
        self.removals += 1
        try:
            await self.work(self.clear_leftovers, leftovers)
        except OSError as error:
            log.error("%s: landfill of %s is not empty: %s", self.name, self.brick, error)
        finally:
            self.removals -= 1

    async def _sweep(self) -> None:
        """Remove what a removal that failed has left in the landfill, while no other is under way."""
        if not self.removals:
            landfill = f"{self._handles}landfill/"
            with suppress(OSError):
                left = [landfill + name for name in await self.work(os.listdir, landfill)]
                if left and not self.removals:
                    await self._clear(left)
        self._again("janitor", self.options.janitor_sleep_duration, lambda: spawn(self._sweep()))

    def follow_options(self) -> None:
        """Take over what options say in text.

        Raises ValueError for a text that is none.
        """
        self.reserve = parse_reserve(self.options.reserve)
        options = self.options
        self.modes = (
            (parse_mode(options.create_mask) | 0o177000, parse_mode(options.force_create_mode)),
            (parse_mode(options.create_directory_mask) | 0o177000, parse_mode(options.force_directory_mode)),
        )

    def unwatch(self) -> None:
        """Stop looking."""
        self._watching = False
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _again(self, what: str, seconds: float, work: Callable[[], object]) -> None:
        if self._watching:
            self._timers[what] = self.graph.reactor.call_later(seconds, lambda: (work(), None)[1])

    async def _check_space(self) -> None:
        try:
            self.judge_space(await self.work(os.statvfs, self.brick))
        except OSError as error:
            log.warning("%s: cannot ask for the free space of %s: %s", self.name, self.brick, error.strerror)
        self._again("space", SPACE_CHECK, lambda: spawn(self._check_space()))

    async def _check_health(self) -> None:
        try:
            await self._checked()
        except OSError as error:
            if self.health != "failed":
                where = f"{self.graph.surroundings.host}:{self.brick}"
                log.critical("%s: brick %s failed its health check: %s", self.name, where, error.strerror)
                self.health = "failed"
                self.tell_health(False)
        else:
            before, self.health = self.health, "ok"
            if before == "failed":
                self.tell_health(True)
        interval = self.options.health_check_interval
        if interval:
            self._again("health", interval, lambda: spawn(self._check_health()))

    async def _checked(self) -> None:
        """One health check; a file system that hangs has at most one worker waiting for it."""
        if self._touching:
            raise OSError(errno.ETIMEDOUT, "the check before has not ended yet")
        self._touching = True
        waiter = self.graph.workers.submit(self.graph.reactor, self._touch_health_file)
        limit = self.options.health_check_timeout
        try:
            await (wait_for(self.graph.reactor, waiter, limit) if limit else waiter)
        except TimedOut:
            raise OSError(errno.ETIMEDOUT, f"no answer within {limit:g} s (option health-check-timeout)") from None

    def tell_health(self, up: bool) -> None:
        """Tell the translators above whether the brick can be used."""
        raise NotImplementedError

    def _touch_health_file(self) -> None:
        text = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()).encode()
        try:
            fd = own_file(self._handles + "health_check")
            try:
                os.ftruncate(fd, 0)
                os.pwrite(fd, text, 0)
                os.fsync(fd)
                if os.pread(fd, len(text), 0) != text:
                    raise OSError(errno.EIO, "the health file reads back otherwise")
            finally:
                os.close(fd)
        finally:
            self._touching = False
