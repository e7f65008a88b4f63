"""What storage/posix does at start about a fop that a kill of the server cut short (see posix_intent).

Names decide: what was renamed, linked or unlinked by then stays so, and handles, gfid2path xattrs and times are made to
agree. A new object without handle is taken away, a SETATTR is done again, xattrs get their old values back. Nobody has
had an answer, so either outcome is right; half of one is not.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from glustx import fops
from glustx.errors import FopError
from glustx.values import NULL_GFID, ROOT_GFID, Iatt, Loc, gfid_text
from glustx.xdata import MDATA_KEY
from glustx.xlators.storage.posix_attr import STAMP_BIRTH, STAMP_NAME
from glustx.xlators.storage.posix_entry import gfid2path
from glustx.xlators.storage.posix_handle import log
from glustx.xlators.storage.posix_intent import Intent, Place
from glustx.xlators.storage.posix_object import GFID2PATH, GFID_KEY, PGFID, At, Dir, dir_link
from glustx.xlators.storage.posix_whole import PosixWhole

# The kernel stamps files with a clock that may be a tick behind.
_TICK = 20_000_000


class PosixRecover(PosixWhole):
    """Finishing or taking back what was under way."""

    def recover(self) -> None:
        """Make whole what the note of a killed server tells of; once, before anything is served."""
        intent = self.journal.left()
        if intent is not None:
            where = ", ".join(f"<{gfid_text(p.pargfid)}>/{os.fsdecode(p.name)}" for p in intent.places)
            where = where or f"<{gfid_text(intent.gfid)}>"
            log.warning("%s: brick %s: the server was killed in a %s of %s", self.name, self.brick, intent.fop, where)
            try:
                self._recover(intent)
            except (OSError, FopError) as error:
                log.error(
                    "%s: brick %s: cannot make %s of %s whole: %s", self.name, self.brick, intent.fop, where, error
                )
        self.journal.wipe()

    def _recover(self, intent: Intent) -> None:
        if intent.made != NULL_GFID:
            self._unmake(intent)
        for place in intent.places:
            self._settle_name(place)
        for gfid in {intent.made, intent.gfid, intent.victim} - {NULL_GFID, ROOT_GFID}:
            self._settle_object(gfid, intent)
        if intent.ino and self.mapped:
            self._settle_sidecar(intent)
        if intent.attributes:
            self._set_again(intent)
        elif intent.xattrs:
            self._restore_xattrs(intent)
        elif intent.places and all(self._gfid_of(place) == place.gfid for place in intent.places):
            self._stamp_again(intent)

    # -- names -----------------------------------------------------------------------------------------------------

    def _at_place(self, place: Place) -> tuple[Dir, os.stat_result] | None:
        """Return the parent and the stat of what has a name; None when either is not there."""
        try:
            parent = self.dir(place.pargfid)
            return parent, os.lstat(place.name, dir_fd=parent.fd)
        except OSError:
            return None

    def _gfid_of(self, place: Place) -> bytes:
        """Return the gfid of what has a name; the null gfid when nothing has it."""
        found = self._at_place(place)
        if found is None:
            return NULL_GFID
        return self.xget(self.at_name(found[0], place.name, found[1]), GFID_KEY) or b""

    def _unmake(self, intent: Intent) -> None:
        """Take away a new object that has no handle, or (ICREATE) no gfid, yet."""
        gfid = intent.made
        handle = self.handle(gfid)
        if not intent.places:
            with suppress(FileNotFoundError):
                if self.xget(handle, GFID_KEY) is None and os.lstat(handle).st_nlink == 1:
                    os.unlink(handle)
            return
        place = intent.places[0]
        found = self._at_place(place)
        if found is None:
            return
        parent, st = found
        there = self.xget(self.at_name(parent, place.name, st), GFID_KEY)
        if there != gfid and (there is not None or st.st_ctime_ns < intent.began - _TICK):
            return  # another one
        is_dir = stat.S_ISDIR(st.st_mode)
        with suppress(OSError):
            if is_dir and os.readlink(os.fsencode(handle)) == dir_link(place.pargfid, place.name):
                return
            if not is_dir and os.lstat(handle).st_ino == st.st_ino:
                return
        if is_dir:
            os.rmdir(place.name, dir_fd=parent.fd)
            return
        if there is None and st.st_size and stat.S_ISREG(st.st_mode) and intent.fop != "put":
            return  # not what CREATE leaves
        os.unlink(place.name, dir_fd=parent.fd)
        if self.mapped and not stat.S_ISREG(st.st_mode):
            with suppress(FileNotFoundError):
                os.unlink(self.sidecar(st.st_ino))

    def _settle_name(self, place: Place) -> None:
        """Give what has a name its handle and the xattr that records the name."""
        found = self._at_place(place)
        if found is None:
            return
        parent, st = found
        at = self.at_name(parent, place.name, st)
        gfid = self.xget(at, GFID_KEY)
        if gfid is None or len(gfid) != 16:
            return
        self._heal_handle(parent, place.name, st, gfid)
        if not stat.S_ISDIR(st.st_mode):
            key, value = gfid2path(place.pargfid, place.name)
            if self.options.gfid2path and self.xget(at, key) != value:
                self.xset(at, key, value)
            self._count_again(at, place.pargfid)

    def _settle_object(self, gfid: bytes, intent: Intent) -> None:
        """Take away what tells of names that an object has no more, and the handle of one that has lost its last."""
        handle = self.handle(gfid)
        with suppress(FileNotFoundError):
            os.unlink(handle + ".new")
        try:
            st = os.lstat(handle)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(st.st_mode) and st.st_nlink == 1 and self._leads_nowhere(gfid, handle, intent):
            os.unlink(handle)
            return
        if stat.S_ISLNK(st.st_mode) and st.st_nlink == 1 and self._is_dir_handle(gfid):
            return
        at: At = handle if not self.mapped or stat.S_ISREG(st.st_mode) else self.sidecar(st.st_ino)
        if st.st_nlink == 1 and gfid != intent.gfid and intent.places:
            os.unlink(handle)
            if at != handle and isinstance(at, str):
                with suppress(FileNotFoundError):
                    os.unlink(at)
            return
        for place in intent.places:
            found = self._at_place(place)
            if found is None or found[1].st_ino != st.st_ino:
                key, value = gfid2path(place.pargfid, place.name)
                if self.xget(at, key) == value:
                    self.xdel(at, key)
                self._count_again(at, place.pargfid)

    def _is_dir_handle(self, gfid: bytes) -> bool:
        try:
            self.dir_place(gfid)
        except OSError:
            return False
        return True

    def _leads_nowhere(self, gfid: bytes, handle: str, intent: Intent) -> bool:
        """Tell whether a directory's handle leads to a name of the fop that the directory has not (any more)."""
        target = os.readlink(os.fsencode(handle))
        return any(
            target == dir_link(place.pargfid, place.name) and self._gfid_of(place) != gfid for place in intent.places
        )

    def _settle_sidecar(self, intent: Intent) -> None:
        """Remove the sidecar of a link or special file that is gone."""
        path = self.sidecar(intent.ino)
        gfid = self.xget(path, GFID_KEY)
        if gfid == intent.victim and not os.path.lexists(self.handle(gfid)):
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _count_again(self, at: At, pargfid: bytes) -> None:
        """Set the number of names that a file has in a directory (option update-link-count-parent)."""
        if not (self.options.update_link_count_parent and self.options.gfid2path):
            return
        text = gfid_text(pargfid).encode()
        names = [key for key in self.xlist(at) if key.startswith(GFID2PATH)]
        count = sum((self.xget(at, key) or b"").startswith(text + b"/") for key in names)
        if count:
            self.xset(at, PGFID + text, count.to_bytes(4, "big"))
        elif self.xget(at, PGFID + text) is not None:
            self.xdel(at, PGFID + text)

    # -- attributes and times --------------------------------------------------------------------------------------

    def _set_again(self, intent: Intent) -> None:
        valid, mode, uid, gid, asec, ansec, msec, mnsec, csec, cnsec = intent.attributes
        new = Iatt(
            mode=mode, uid=uid, gid=gid, atime=asec, atime_nsec=ansec, mtime=msec, mtime_nsec=mnsec,
            ctime=csec, ctime_nsec=cnsec,
        )  # fmt: skip
        try:
            obj, st = self.find(intent.gfid)
        except OSError:
            return  # it was open and had no name
        at: At = self.dir(obj.gfid).fd if obj.is_dir else obj.path
        self._set_each(self._request(intent), new, valid, obj, st, at)

    def _restore_xattrs(self, intent: Intent) -> None:
        try:
            obj, _ = self.find(intent.gfid)
        except OSError:
            return
        at = self.at(obj)
        for key, value in intent.xattrs:
            if key == MDATA_KEY or self.xget(at, key) == value:
                continue
            if value is None:
                self.xdel(at, key)
            else:
                self.xset(at, key, value)
        self.forget(obj)

    def _stamp_again(self, intent: Intent) -> None:
        """Stamp what has changed, and the folders in which it has."""
        request = self._request(intent)
        default = STAMP_BIRTH if intent.made != NULL_GFID else STAMP_NAME
        for gfid in (intent.gfid, intent.victim):
            with suppress(OSError):
                if gfid != NULL_GFID:
                    obj, st = self.find(gfid)
                    self.touch(request, obj, st, default)
        for place in intent.places:
            with suppress(OSError):
                self.parent_changed(request, self.dir(place.pargfid))

    @staticmethod
    def _request(intent: Intent) -> fops.Fop:
        return fops.Stat(Loc(gfid=intent.gfid), ctime=intent.when, stamp=intent.stamp)
