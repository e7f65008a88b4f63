"""Which coroutines of the core are methods of a volume and of a file, for both faces.

What has another type in each face (opening, iterating, names that are text or bytes as in `os`, io's own methods) is
written out in `aio` and `sync`. Where libgfapi-python has another name for a method, both are here.
"""

from __future__ import annotations

from glustx.gfapi import trees
from glustx.gfapi.file import FileCore
from glustx.gfapi.twins import Face, api, over
from glustx.gfapi.volume import VolumeCore


class VolumeTable(Face):
    """Methods of a volume."""

    _open_core = api(VolumeCore.open)
    _opendir_core = api(VolumeCore.opendir)
    _entries = api(VolumeCore.entries)
    _getxattr = api(VolumeCore.getxattr)
    _readlink = api(VolumeCore.readlink)
    _realpath = api(VolumeCore.realpath)
    _volume_id = api(VolumeCore.get_volume_id)
    stat = api(VolumeCore.stat)
    lstat = api(VolumeCore.lstat)
    exists = api(VolumeCore.exists)
    lexists = api(VolumeCore.lexists)
    isfile = api(VolumeCore.isfile)
    isdir = api(VolumeCore.isdir)
    islink = api(VolumeCore.islink)
    access = api(VolumeCore.access)
    getsize = api(VolumeCore.getsize)
    getatime = api(VolumeCore.getatime)
    getmtime = api(VolumeCore.getmtime)
    getctime = api(VolumeCore.getctime)
    samefile = api(VolumeCore.samefile)
    chmod = api(VolumeCore.chmod)
    chown = api(VolumeCore.chown)
    utime = api(VolumeCore.utime)
    truncate = api(VolumeCore.truncate)
    statvfs = api(VolumeCore.statvfs)
    setxattr = api(VolumeCore.setxattr)
    removexattr = api(VolumeCore.removexattr)
    listxattr = api(VolumeCore.listxattr)
    mkdir = api(VolumeCore.mkdir)
    makedirs = api(VolumeCore.makedirs)
    mknod = api(VolumeCore.mknod)
    unlink = api(VolumeCore.unlink)
    remove = api(VolumeCore.unlink)
    rmdir = api(VolumeCore.rmdir)
    rename = api(VolumeCore.rename)
    replace = api(VolumeCore.rename)
    link = api(VolumeCore.link)
    symlink = api(VolumeCore.symlink)
    chdir = api(VolumeCore.chdir)
    copyfile = over(trees.copyfile)
    copymode = over(trees.copymode)
    copystat = over(trees.copystat)
    copy = over(trees.copy)
    copy2 = over(trees.copy2)
    copytree = over(trees.copytree)
    rmtree = over(trees.rmtree)


class FileTable(Face):
    """Methods of an open file that `io.RawIOBase` does not know."""

    _dup_core = api(FileCore.dup)
    _getxattr = api(FileCore.getxattr)
    pread = api(FileCore.pread)
    preadinto = api(FileCore.preadinto)
    pwrite = api(FileCore.pwrite)
    zerofill = api(FileCore.zerofill)
    discard = api(FileCore.discard)
    fallocate = api(FileCore.fallocate)
    allocate = api(FileCore.allocate)
    seek_data = api(FileCore.seek_data)
    seek_hole = api(FileCore.seek_hole)
    fsync = api(FileCore.fsync)
    fdatasync = api(FileCore.fdatasync)
    stat = api(FileCore.stat)
    fstat = api(FileCore.stat)
    fgetsize = api(FileCore.size)
    chmod = api(FileCore.chmod)
    fchmod = api(FileCore.chmod)
    chown = api(FileCore.chown)
    fchown = api(FileCore.chown)
    utime = api(FileCore.utime)
    setxattr = api(FileCore.setxattr)
    fsetxattr = api(FileCore.setxattr)
    removexattr = api(FileCore.removexattr)
    fremovexattr = api(FileCore.removexattr)
    listxattr = api(FileCore.listxattr)
    flistxattr = api(FileCore.listxattr)
    lock = api(FileCore.lock)
    unlock = api(FileCore.unlock)
    test_lock = api(FileCore.test_lock)
    lease = api(FileCore.lease)
    unlease = api(FileCore.unlease)
    test_lease = api(FileCore.test_lease)
