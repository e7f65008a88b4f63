"""Run by test_access_stock: does what a user may try in the current folder, and prints what came of it as JSON."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def tries() -> dict[str, Callable[[], Any]]:
    def opened(path: str, flags: int) -> str:
        fd = os.open(path, flags)
        try:
            if flags & os.O_ACCMODE == os.O_RDONLY:
                os.pread(fd, 1, 0)
            else:
                os.pwrite(fd, b"y", 0)
                os.fsync(fd)
        finally:
            os.close(fd)
        return "done"

    def made(path: str, mode: int) -> str:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
        st = os.stat(path)
        acl = "system.posix_acl_access"
        found = os.getxattr(path, acl).hex() if acl in os.listxattr(path) else "no ACL"
        return f"{st.st_mode:o} {st.st_uid} {st.st_gid} {found}"

    def made_dir(path: str, mode: int) -> str:
        os.mkdir(path, mode)
        st = os.stat(path)
        found = [os.getxattr(path, f"system.posix_acl_{kind}").hex() for kind in ("access", "default")
                 if f"system.posix_acl_{kind}" in os.listxattr(path)]  # fmt: skip
        return f"{st.st_mode:o} {st.st_uid} {st.st_gid} {found}"

    def touched(path: str) -> None:
        os.utime(path, (5, 6))

    return {
        "read-0640": lambda: opened("open/r640", os.O_RDONLY),
        "write-0640": lambda: opened("open/r640", os.O_RDWR),
        "read-0644": lambda: opened("open/r644", os.O_RDONLY),
        "write-0644": lambda: opened("open/r644", os.O_WRONLY),
        "write-0666": lambda: opened("open/r666", os.O_RDWR),
        "read-mine-0200": lambda: opened("open/mine200", os.O_RDONLY),
        "write-mine-0400": lambda: opened("open/mine400", os.O_WRONLY),
        "read-supplementary": lambda: opened("open/group040", os.O_RDONLY),
        "write-acl": lambda: opened("open/aclrw", os.O_RDWR),
        "read-acl-r": lambda: opened("open/aclr", os.O_RDONLY),
        "write-acl-r": lambda: opened("open/aclr", os.O_WRONLY),
        "write-acl-masked": lambda: opened("open/aclmasked", os.O_WRONLY),
        "read-acl-denied": lambda: opened("open/acldenied", os.O_RDONLY),
        "list-closed": lambda: os.listdir("closed"),
        "stat-in-closed": lambda: os.stat("closed/in").st_size,
        "chmod-roots": lambda: os.chmod("open/r666", 0o777),
        "chmod-mine": lambda: os.chmod("open/mine", 0o640),
        "chown-mine": lambda: os.chown("open/mine", 0, -1),
        "chgrp-mine": lambda: os.chown("open/mine", -1, 50),
        "utime-roots": lambda: touched("open/r644"),
        "utime-mine": lambda: touched("open/mine"),
        "truncate-0640": lambda: os.truncate("open/r640", 0),
        "setxattr-0640": lambda: os.setxattr("open/r640", "user.k", b"v"),
        "setxattr-0666": lambda: os.setxattr("open/r666", "user.k", b"v"),
        "getxattr-0640": lambda: os.getxattr("open/r640", "user.there"),
        "getxattr-0644": lambda: os.getxattr("open/r644", "user.there").decode(),
        "create-in-roots": lambda: made("open/new", 0o644),
        "create-in-shared": lambda: made("shared/new", 0o666),
        "create-in-default": lambda: made("default/new", 0o666),
        "create-private-in-default": lambda: made("default/private", 0o600),
        "mkdir-in-default": lambda: made_dir("default/dir", 0o777),
        "create-below-default": lambda: made("default/dir/new", 0o664),
        "create-in-setgid": lambda: made("setgid/new", 0o644),
        "mkdir-in-setgid": lambda: made_dir("setgid/dir", 0o755),
        "link-in-shared": lambda: os.link("open/r666", "shared/hard"),
        "unlink-in-roots": lambda: os.unlink("open/r666"),
        "rename-in-roots": lambda: os.rename("open/r666", "open/renamed"),
        "sticky-unlink": lambda: os.unlink("tmp/other"),
        "sticky-replace": lambda: os.rename("tmp/mine", "tmp/other"),
        "sticky-rename-mine": lambda: os.rename("tmp/mine", "tmp/x"),
        "sticky-unlink-mine": lambda: os.unlink("tmp/x"),
    }


def main() -> None:
    uid, gid, *groups = map(int, sys.argv[1:])
    found = {}
    os.umask(0o027)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    for name, attempt in tries().items():
        try:
            found[name] = str(attempt())
        except OSError as error:
            found[name] = errno.errorcode.get(error.errno or 0, "?")
    print(json.dumps(found))


main()
