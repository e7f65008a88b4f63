"""POSIX ACLs as pure values: the binary form of the kernel's xattrs, stock's text form, and what they grant.

An ACL is a tuple of entries (tag, permission bits, id) in the order of the kernel: owner, users, group, groups, mask,
others. Source: acl(5), and `struct posix_acl_xattr_header` of Linux.
"""

from __future__ import annotations

import grp
import pwd
import struct
from collections.abc import Mapping
from types import MappingProxyType

from glustx.values import Caller

USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
READ, WRITE, SEARCH = 4, 2, 1

ACCESS = b"system.posix_acl_access"
DEFAULT = b"system.posix_acl_default"
TEXT_ACCESS = b"glusterfs.posix.acl"
TEXT_DEFAULT = b"glusterfs.posix.default_acl"
BINARY_OF: Mapping[bytes, bytes] = MappingProxyType({TEXT_ACCESS: ACCESS, TEXT_DEFAULT: DEFAULT})

Entry = tuple[int, int, int]
Acl = tuple[Entry, ...]

_VERSION = struct.Struct("<I")
_ENTRY = struct.Struct("<HHI")
_NO_ID = 0xFFFFFFFF
_LETTERS = {USER_OBJ: "u", USER: "u", GROUP_OBJ: "g", GROUP: "g", MASK: "m", OTHER: "o"}
_TAGS = {"u": USER, "user": USER, "g": GROUP, "group": GROUP, "m": MASK, "mask": MASK, "o": OTHER, "other": OTHER}
_UNNAMED = {USER: USER_OBJ, GROUP: GROUP_OBJ, MASK: MASK, OTHER: OTHER}
_MOST = 8000  # entries that fit into the largest xattr of Linux, 64 KiB


def parse(raw: bytes) -> Acl:
    """Return the ACL that an xattr's value holds; ValueError when it holds none."""
    if len(raw) < 4 or (len(raw) - 4) % 8 or _VERSION.unpack_from(raw) != (2,):
        raise ValueError("not an ACL of version 2")
    acl = tuple(_ENTRY.iter_unpack(raw[4:]))
    for tag, perm, _ in acl:
        if tag not in _LETTERS or perm > 7:
            raise ValueError(f"ACL entry with tag {tag:#x} and permissions {perm:#o}")
    return acl


def pack(acl: Acl) -> bytes:
    """Return the value of the xattr that holds an ACL."""
    return _VERSION.pack(2) + b"".join(_ENTRY.pack(tag, perm, id_) for tag, perm, id_ in acl)


def of_mode(mode: int) -> Acl:
    """Return the ACL that says the same as permission bits."""
    return (
        (USER_OBJ, mode >> 6 & 7, _NO_ID),
        (GROUP_OBJ, mode >> 3 & 7, _NO_ID),
        (OTHER, mode & 7, _NO_ID),
    )


def to_text(acl: Acl) -> bytes:
    """Return an ACL in stock's text form, `u::rw-,u:1000:r--,g::r--,m::r--,o::r--`."""
    return b",".join(
        f"{_LETTERS[tag]}:{id_ if tag in (USER, GROUP) else ''}:{_rwx(perm)}".encode() for tag, perm, id_ in acl
    )


def from_text(text: bytes) -> Acl:
    """Return the ACL written as text, entries separated by commas or line ends, ids as numbers or names of this host.

    Raises ValueError for what is no such text.
    """
    entries: list[Entry] = []
    for word in text.decode("utf-8", "replace").rstrip("\0").replace("\n", ",").split(","):
        if not word.strip():
            continue
        parts = [part.strip() for part in word.split(":")]
        if len(parts) == 2 and _TAGS.get(parts[0]) in (MASK, OTHER):
            parts.insert(1, "")
        if len(parts) != 3 or parts[0] not in _TAGS or not set(parts[2]) <= set("rwx-") or len(parts[2]) > 3:
            raise ValueError(f"ACL entry {word!r} is not TAG:ID:rwx")
        tag, id_ = _TAGS[parts[0]], _NO_ID
        if not parts[1]:
            tag = _UNNAMED[tag]
        elif tag in (USER, GROUP):
            id_ = _number(tag, parts[1])
        else:
            raise ValueError(f"ACL entry {word!r}: {parts[0]} has no id")
        entries.append((tag, sum({"r": 4, "w": 2, "x": 1, "-": 0}[c] for c in set(parts[2])), id_))
        if len(entries) > _MOST:
            raise ValueError(f"an ACL of more than {_MOST} entries")
    return tuple(sorted(entries, key=lambda entry: (entry[0], entry[2])))


def _rwx(perm: int) -> str:
    return "".join(letter if perm & bit else "-" for letter, bit in (("r", 4), ("w", 2), ("x", 1)))


def _number(tag: int, name: str) -> int:
    if name.isdecimal() and len(name) <= 10 and int(name) < _NO_ID:
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid if tag == USER else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"nobody here is called {name!r}") from None


def in_group(caller: Caller, gid: int) -> bool:
    """Tell whether a caller is in a group, by its own or a supplementary one."""
    return caller.gid == gid or gid in caller.groups


def permits(uid: int, gid: int, mode: int, acl: Acl, caller: Caller, want: int) -> bool:
    """Tell whether a caller has all of `want` (READ, WRITE, SEARCH).

    Args:
        uid, gid, mode: owner, group and mode of the inode.
        acl: its access ACL; empty for one that has but its mode.

    Source: ACCESS CHECK ALGORITHM of acl(5). Where a file has an ACL the group bits of its mode are the mask.
    """
    if caller.uid == uid:
        return not want & ~(mode >> 6)
    if not acl:
        return not want & ~(mode >> 3 if in_group(caller, gid) else mode)
    mask = next((perm for tag, perm, _ in acl if tag == MASK), 7)
    for tag, perm, id_ in acl:
        if tag == USER and id_ == caller.uid:
            return not want & ~(perm & mask)
    groups = [
        perm
        for tag, perm, id_ in acl
        if (tag == GROUP_OBJ and in_group(caller, gid)) or (tag == GROUP and in_group(caller, id_))
    ]
    if groups:
        return any(not want & ~(perm & mask) for perm in groups)
    return not want & ~mode
