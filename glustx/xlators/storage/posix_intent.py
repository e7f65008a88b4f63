"""What storage/posix is about to do, noted on the brick, so that a start after a kill can finish it or take it back.

A fop that takes several system calls (a name, its handle, its xattrs, the parent's times) writes what it will do into
`.glusterfs/glustx.intent` and wipes that when it is done. One slot is enough: a fop awaits nothing between the two. The
note is in the page cache, which survives the process; it costs two small writes and no sync. After a loss of power it
may be gone, and then LOOKUP completes what it meets, as on a stock brick.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from types import TracebackType
from typing import Optional

import msgspec

from glustx.values import NULL_GFID
from glustx.xlators.storage.posix_own import own_file

_HEAD = struct.Struct(">II")
_EMPTY = bytes(_HEAD.size)
_USUAL = 4096
_MAX = 16 << 20


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A name that a fop changes, and the gfid that it will have then (null: it will be gone)."""

    pargfid: bytes
    name: bytes
    gfid: bytes = NULL_GFID


class Intent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a fop is about to do.

    Attributes:
        fop: its name.
        began: when, in nanoseconds by the kernel's coarse clock.
        when, stamp: the times that it sets, as in a request.
        places: names that change.
        made: the new object's gfid.
        gfid: the object that gets or loses a name or is changed.
        victim: the object that may lose its last name; ino: its inode number.
        xattrs: what changes of its xattrs, each with the value before (None for none).
        attributes: a SETATTR's valid bits, mode, uid, gid, then atime, mtime and ctime as seconds and nanoseconds.
    """

    fop: str
    began: int = 0
    when: int = 0
    stamp: int = 0
    places: tuple[Place, ...] = ()
    made: bytes = NULL_GFID
    gfid: bytes = NULL_GFID
    victim: bytes = NULL_GFID
    ino: int = 0
    xattrs: tuple[tuple[bytes, Optional[bytes]], ...] = ()
    attributes: tuple[int, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Intent).decode


class Journal:
    """The note of one brick, a context manager around the change: `with journal.note(Intent(...)):`.

    A note that cannot be written (a full copy-on-write file system) does not keep the fop from being done.
    """

    def __init__(self, path: str) -> None:
        self.fd = own_file(path)
        if os.fstat(self.fd).st_size < _USUAL:
            # Blocks that are there already can be overwritten on a full disk.
            os.pwrite(self.fd, bytes(_USUAL - os.fstat(self.fd).st_size), os.fstat(self.fd).st_size)
        self._noted = False

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)

    def note(self, intent: Intent) -> Journal:
        """Write down what is about to be done."""
        body = _encode(intent)
        try:
            os.pwrite(self.fd, _HEAD.pack(len(body), zlib.crc32(body)) + body, 0)
            self._noted = True
        except OSError:
            self._noted = False
        return self

    def __enter__(self) -> None:
        """Nothing more: the note is written."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wipe the note: the change is made, or taken back by the fop that failed."""
        self.wipe()

    def wipe(self) -> None:
        """Forget what was noted."""
        if self._noted:
            with suppress(OSError):  # a start finds that nothing of it is left to do
                os.pwrite(self.fd, _EMPTY, 0)

    def left(self) -> Intent | None:
        """Return what a killed server was about to do; None when it was doing nothing or had not yet written it."""
        head = os.pread(self.fd, _HEAD.size, 0)
        if len(head) < _HEAD.size:
            return None
        size, check = _HEAD.unpack(head)
        if not 0 < size <= _MAX:
            return None
        self._noted = True
        body = os.pread(self.fd, size, _HEAD.size)
        if len(body) < size or zlib.crc32(body) != check:
            return None
        try:
            return _decode(body)
        except msgspec.DecodeError:
            return None
