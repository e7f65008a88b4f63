"""What is the brick's own below `.glusterfs`: folders that must be none but folders, files that nobody else has.

No client can name anything there. Somebody with access to the machine can, or hands over a folder in which it is
prepared; a link there would lead what is written, renamed and removed out of the brick.
"""

from __future__ import annotations

import errno
import os
import stat


def own_folder(path: str, mode: int = 0o700) -> None:
    """Make a folder, unless it is there; OSError ENOTDIR for anything else, a link to a folder included."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise OSError(errno.ENOTDIR, f"{path} is no folder, which it must be", path) from None


def own_file(path: str) -> int:
    """Open a file for reading and writing, making it if it is not there, and return the descriptor.

    Raises OSError: EINVAL for what is no regular file or has other names, whose content would be overwritten.
    """
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        there = None
    if there is not None and not _own(there):  # a device would do something when it is opened
        raise _foreign(path)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    if not _own(os.fstat(fd)):
        os.close(fd)
        raise _foreign(path)
    return fd


def _own(st: os.stat_result) -> bool:
    return stat.S_ISREG(st.st_mode) and st.st_nlink == 1


def _foreign(path: str) -> OSError:
    return OSError(errno.EINVAL, f"{path} is not a file of the brick alone; it must be moved away", path)
