"""Which coroutines of the core are methods of a volume and of a file, for both faces.

What has another type in each face (opening, iterating, io's own methods) is written out in `aio` and `sync`.
"""

from __future__ import annotations

from glustx.gfapi.file import FileCore
from glustx.gfapi.twins import Face, api
from glustx.gfapi.volume import VolumeCore


class VolumeTable(Face):
    """Methods of a volume."""

    _open_core = api(VolumeCore.open)
    _opendir_core = api(VolumeCore.opendir)
    stat = api(VolumeCore.stat)
    lstat = api(VolumeCore.lstat)
    exists = api(VolumeCore.exists)
    lexists = api(VolumeCore.lexists)
    isfile = api(VolumeCore.isfile)
    isdir = api(VolumeCore.isdir)
    islink = api(VolumeCore.islink)
    access = api(VolumeCore.access)
    getsize = api(VolumeCore.getsize)
    samefile = api(VolumeCore.samefile)
    chmod = api(VolumeCore.chmod)
    chown = api(VolumeCore.chown)
    utime = api(VolumeCore.utime)
    truncate = api(VolumeCore.truncate)
    statvfs = api(VolumeCore.statvfs)
    getxattr = api(VolumeCore.getxattr)
    setxattr = api(VolumeCore.setxattr)
    removexattr = api(VolumeCore.removexattr)
    listxattr = api(VolumeCore.listxattr)
    mkdir = api(VolumeCore.mkdir)
    makedirs = api(VolumeCore.makedirs)
    mknod = api(VolumeCore.mknod)
    unlink = api(VolumeCore.unlink)
    remove = api(VolumeCore.unlink)
    rmdir = api(VolumeCore.rmdir)
    rmtree = api(VolumeCore.rmtree)
    rename = api(VolumeCore.rename)
    replace = api(VolumeCore.rename)
    link = api(VolumeCore.link)
    symlink = api(VolumeCore.symlink)
    readlink = api(VolumeCore.readlink)
    realpath = api(VolumeCore.realpath)
    listdir = api(VolumeCore.listdir)


class FileTable(Face):
    """Methods of an open file that `io.RawIOBase` does not know."""

    pread = api(FileCore.pread)
    preadinto = api(FileCore.preadinto)
    pwrite = api(FileCore.pwrite)
    zerofill = api(FileCore.zerofill)
    discard = api(FileCore.discard)
    fallocate = api(FileCore.fallocate)
    seek_data = api(FileCore.seek_data)
    seek_hole = api(FileCore.seek_hole)
    fsync = api(FileCore.fsync)
    stat = api(FileCore.stat)
    chmod = api(FileCore.chmod)
    chown = api(FileCore.chown)
    utime = api(FileCore.utime)
    getxattr = api(FileCore.getxattr)
    setxattr = api(FileCore.setxattr)
    removexattr = api(FileCore.removexattr)
    listxattr = api(FileCore.listxattr)
    lock = api(FileCore.lock)
    unlock = api(FileCore.unlock)
    test_lock = api(FileCore.test_lock)
