"""The xattrs of a brick in either namespace: trusted.* as it is, or kept as user.glustx.trusted.* (option
xattr-namespace) by a brick that is not root's."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from glustx.xlators.storage.posix_object import NAMESPACE_KEY, USER_PREFIX, At, Dir


class PosixKeys:
    """Reading and writing xattrs, by descriptor or by path."""

    mapped: bool
    _handles: str

    def disk_key(self, key: bytes) -> bytes:
        """Return the name under which the brick stores `key`."""
        if self.mapped and key.startswith(b"trusted."):
            return USER_PREFIX + key
        return key

    def xget(self, at: At, key: bytes) -> bytes | None:
        """Return an xattr of an open file or of a path (never following a link), None when there is none."""
        if self.mapped:
            key = self.disk_key(key)
        try:
            if isinstance(at, int):
                return os.getxattr(at, key)
            return os.getxattr(at, key, follow_symlinks=False)
        except ValueError:
            return None  # a NUL in the key
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.ERANGE) or (
                self.mapped and error.errno == errno.ENOENT
            ):
                return None
            if self.mapped and error.errno == errno.EACCES:
                with _writable(at):
                    return self.xget(at, key)
            raise

    def xset(self, at: At, key: bytes, value: bytes, flags: int = 0) -> None:
        """Set an xattr."""
        if self.mapped:
            key = self.disk_key(key)
        try:
            if isinstance(at, int):
                os.setxattr(at, key, value, flags)
            else:
                os.setxattr(at, key, value, flags, follow_symlinks=False)
        except ValueError:
            raise OSError(errno.EINVAL, "NUL in the name of an xattr") from None
        except PermissionError:
            if not self.mapped:
                raise
            with _writable(at):
                os.setxattr(at, key, value, flags)

    def xdel(self, at: At, key: bytes) -> None:
        """Remove an xattr; OSError(ENODATA) when there is none."""
        if self.mapped:
            key = self.disk_key(key)
        try:
            if isinstance(at, int):
                os.removexattr(at, key)
            else:
                os.removexattr(at, key, follow_symlinks=False)
        except ValueError:
            raise OSError(errno.EINVAL, "NUL in the name of an xattr") from None
        except PermissionError:
            if not self.mapped:
                raise
            with _writable(at):
                os.removexattr(at, key)

    def xlist(self, at: At) -> list[bytes]:
        """Return the names of all xattrs, as clients know them."""
        try:
            names = os.listxattr(at) if isinstance(at, int) else os.listxattr(at, follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP or (self.mapped and error.errno == errno.ENOENT):
                return []
            raise
        keys = [os.fsencode(name) for name in names]
        if not self.mapped:
            return keys
        return [key[len(USER_PREFIX) :] if key.startswith(USER_PREFIX) else key for key in keys if key != NAMESPACE_KEY]

    def at_name(self, parent: Dir, name: bytes, st: os.stat_result) -> At:
        """Return where the xattrs of a directory entry are.

        There is no getxattrat: the kernel's name for our descriptor serves as the folder's path.
        """
        if self.mapped and not (stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode)):
            return self.sidecar(st.st_ino)
        return b"/proc/self/fd/%d/%s" % (parent.fd, name)

    @staticmethod
    def make_sidecar(path: str) -> None:
        """Make an empty file for xattrs, in place of what another object with this inode number has left."""
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def sidecar(self, ino: int) -> str:
        """Return the file that holds the xattrs of a link or special file, which cannot have user xattrs itself."""
        return f"{self._handles}xattrs/{ino}"


@contextmanager
def _writable(at: At) -> Iterator[None]:
    """Let the owner write to a file or folder of his for a moment: the kernel asks for that before user xattrs."""
    mode = stat.S_IMODE(os.stat(at).st_mode)
    if mode & 0o600 == 0o600:
        raise PermissionError(errno.EPERM, "xattrs are refused")
    os.chmod(at, mode | 0o600)
    try:
        yield
    finally:
        os.chmod(at, mode)
