"""Making a folder the brick of a volume: its volume id and where its xattrs are kept, both written on its root once."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import msgspec

from glustx.errors import GraphError
from glustx.values import gfid_text
from glustx.xlators.storage.posix import prepare_brick
from glustx.xlators.storage.posix_object import NAMESPACE_KEY, USER_PREFIX, VOLUME_ID_KEY


class Claimed(msgspec.Struct, frozen=True):
    """A brick folder: the volume's UUID as text, and the xattr namespace (`trusted` or `user`)."""

    volume_id: str
    namespace: str


def claim(folder: Path, *, root: bool) -> Claimed:
    """Make a folder a brick, or find out what it is already.

    Args:
        folder: an existing folder.
        root: whether the process may set trusted xattrs; a fresh folder gets the namespace `user` when it may not, or
            where the file system has no trusted xattrs.

    Raises GraphError.
    """
    try:
        there = _xattr(folder, NAMESPACE_KEY)
        fresh = there is None and not os.path.lexists(folder / ".glusterfs")
        namespace = "user" if there is not None or (fresh and not root) else "trusted"
        if namespace == "trusted" and not root:
            raise GraphError(f"brick {folder} was made by root, with trusted xattrs, so only root can serve it")
        volume_id = _volume_id(folder, namespace) or str(uuid.uuid4())
        try:
            prepare_brick(str(folder), volume_id, namespace=namespace)
        except OSError as error:
            if not (fresh and namespace == "trusted" and error.errno in (errno.EPERM, errno.EOPNOTSUPP)):
                raise
            namespace = "user"
            prepare_brick(str(folder), volume_id, namespace=namespace)
    except OSError as error:
        hint = "; its file system has no extended attributes" if error.errno == errno.EOPNOTSUPP else ""
        raise GraphError(f"cannot make {folder} a brick: {error.strerror or error}{hint}") from None
    return Claimed(volume_id, namespace)


def _volume_id(folder: Path, namespace: str) -> str:
    value = _xattr(folder, (USER_PREFIX if namespace == "user" else b"") + VOLUME_ID_KEY)
    return gfid_text(value) if value is not None and len(value) == 16 else ""


def _xattr(folder: Path, key: bytes) -> bytes | None:
    try:
        return os.getxattr(folder, key)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        raise
