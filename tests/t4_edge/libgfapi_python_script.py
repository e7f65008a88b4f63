"""A script for libgfapi-python 1.2 that uses all of it. Usage: script HOST PORT VOLUME FOLDER; prints what it finds.

`test_libgfapi_python.py` runs it there, and on glustx.gfapi with no other change than to the two lines of imports.
What is a trap in one and none in the other is written so that both say the same; docs/gfapi.md lists them.
"""

import errno
import hashlib
import os
import stat
import sys
import uuid

from gluster.gfapi import Dir, DirEntry, File, Volume
from gluster.gfapi.exceptions import Error, LibgfapiException, VolumeNotMounted

HOST, PORT, VOLUME, TOP = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
KNOWN = (VolumeNotMounted, LibgfapiException, Error, FileNotFoundError, FileExistsError, IsADirectoryError)
KNOWN += (NotADirectoryError, PermissionError, OSError, TypeError, ValueError)


def say(topic, *found):
    print(topic + ":", *(item if isinstance(item, str) else repr(item) for item in found))


def fails(topic, call, *args, **kwargs):
    """Say which exception a call raises, by the most special class that both sides know, and its errno."""
    try:
        result = call(*args, **kwargs)
    except Exception as error:
        kind = next(kind.__name__ for kind in KNOWN if isinstance(error, kind))
        code = getattr(error, "errno", None)
        if isinstance(code, int) and not isinstance(error, LibgfapiException):
            kind += " " + errno.errorcode.get(code, str(code))
        say(topic, "raises", kind)
    else:
        say(topic, "returns", result)


def refused(topic, call, *args):
    """Say that a call raises an OSError: one side has another errno, or none."""
    try:
        say(topic, "returns", call(*args))
    except OSError as error:
        say(topic, "raises", "Error" if isinstance(error, Error) else "OSError")


def shape(found):
    """What does not change from run to run of a file's attributes."""
    return [oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, found.st_size, found.st_rdev]


def life():
    """Return a mounted volume, after a look at how one comes and goes. libgfapi takes ten seconds for each umount."""
    volume = Volume(HOST, VOLUME, port=PORT)
    say("before", volume.hosts, volume.volname, volume.protocol, volume.port, volume.log_file, volume.log_level)
    say("before", volume.mounted, volume.volid)
    for name in ("stat", "lstat", "unlink", "mkdir", "statvfs", "fopen", "opendir", "readlink", "listxattr", "chdir"):
        fails("before mount, " + name, getattr(volume, name), "/x")
    fails("before mount, exists", volume.exists, "/")
    fails("before mount, get_volume_id", volume.get_volume_id)
    volume.umount()
    volume.mount()
    volume.mount()
    say("mounted", volume.mounted, isinstance(volume.get_volume_id(), uuid.UUID))
    say("id", volume.volid == volume.get_volume_id())
    log = os.path.join(TOP, "log")
    volume.set_logging(log, 7)
    say("log", volume.log_file == log, volume.log_level, os.path.exists(log))
    volume.disable_logging()
    say("log", volume.log_file)
    volume.umount()
    volume.umount()
    say("unmounted", volume.mounted)
    fails("after umount", volume.stat, "/")
    fails("no host", Volume, None, VOLUME)
    fails("no volume", Volume, HOST, None)
    fails("no hosts", Volume, [], VOLUME)
    fails("protocol", Volume, HOST, VOLUME, proto="smoke")
    fails("port", Volume, HOST, VOLUME, port="24007")
    say("hosts", Volume([HOST, "elsewhere"], VOLUME).hosts, Volume("/run/x", VOLUME, "unix").protocol)
    fails("wrong volume", Volume(HOST, "nosuchvolume", port=PORT).mount)
    volume.mount()
    say("again", volume.mounted, volume.isdir("/"))
    return volume


def files(volume):
    fd = volume.open("f", os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o644)
    with File(fd, path="f", mode="own") as file:
        say("file", file.name, file.originalpath, file.mode, file.closed, bool(file.fileno))
        say("write", file.write(b"0123456789"), file.write(bytearray(b"abc"), 0))
        say("lseek", file.lseek(0, os.SEEK_SET), file.lseek(3, os.SEEK_CUR), file.lseek(-3, os.SEEK_END))
        say("read", file.read(2), file.read(), file.read() or b"", file.read(5) or b"")
        say("after read", file.lseek(0, os.SEEK_CUR))
        file.lseek(1, os.SEEK_SET)
        buffer = bytearray(4)
        say("readinto", file.readinto(buffer), bytes(buffer))
        fails("readinto text", file.readinto, "buffer")
        fails("lseek", file.lseek, 0, 77)
        say("fsync", file.fsync(), file.fdatasync())
        say("fstat", shape(file.fstat()), file.fgetsize())
        say("fchmod", file.fchmod(0o600), file.fchown(7, 8), shape(file.fstat()))
        say("ftruncate", file.ftruncate(5), file.fgetsize(), file.ftruncate(7), file.fgetsize())
        say("zerofill", file.zerofill(2, 20), file.fgetsize())
        say("discard", file.discard(0, 1), file.fgetsize())
        say("fallocate", file.fallocate(1, 0, 8192), file.fgetsize(), file.fallocate(0, 0, 50), file.fgetsize())
        fails("zerofill nothing", file.zerofill, 0, 0)
        file.lseek(0, os.SEEK_SET)
        say("content", file.read())
        twin = file.dup()
        say("dup", isinstance(twin, File), twin.lseek(0, os.SEEK_SET), twin.read(3), twin.name)
        file.lseek(10, os.SEEK_SET)
        say("dup moves alone", twin.lseek(0, os.SEEK_CUR), file.lseek(0, os.SEEK_CUR))
        twin.close()
        say("dup is closed", twin.closed, file.closed)
        file.lseek(0, os.SEEK_SET)
        say("the other goes on", len(file.read()))
    say("closed", file.closed)
    fails("closed, read", file.read)
    fails("closed, write", file.write, b"")
    fails("closed, fstat", file.fstat)
    fails("closed, fsync", file.fsync)
    fails("closed, lseek", file.lseek, 0, 0)
    fails("closed, zerofill", file.zerofill, 0, 1)
    fails("closed, fgetxattr", file.fgetxattr, "user.a")
    fails("no file", File, None)
    with File(volume.open("f", os.O_RDONLY)) as file:
        fails("not open for writing", file.zerofill, 0, 1)
    with File(volume.open("f", os.O_WRONLY)) as file:
        fails("not open for reading", file.read, 1)
    fails("open", volume.open, "gone", os.O_RDONLY)
    fails("open", volume.open, "f", os.O_CREAT | os.O_EXCL)
    fails("open", volume.open, "f/x", os.O_RDONLY)
    fails("open", volume.open, "gone/x", os.O_RDWR | os.O_CREAT)
    fails("open", volume.open, "x" * 300, os.O_RDONLY)
    fails("open", volume.open, "/", os.O_WRONLY)


def modes(volume):
    for mode in ("w", "a", "r", "r+", "rb", "wb", "ab", "rb+", "r+b", "w+", "w+b", "a+"):
        with volume.fopen("m", mode) as file:
            found = [file.mode, file.name, file.lseek(0, os.SEEK_CUR)]
            if mode[0] != "r" or "+" in mode:
                found.append(file.write(b"<" + mode.encode() + b">"))
            found.append(file.fgetsize())
            if "+" in mode or mode[0] == "r":
                file.lseek(0, os.SEEK_SET)
                found.append(file.read())
        say("fopen", found)
    say("permissions", oct(volume.stat("m").st_mode))
    fails("fopen", volume.fopen, "gone")
    fails("fopen", volume.fopen, "m", "q")
    fails("fopen", volume.fopen, "m", 5)


def attributes(volume):
    volume.fopen("a", "w").close()
    say("chmod", volume.chmod("a", 0o4755), shape(volume.stat("a")))
    say("chown", volume.chown("a", 11, 22), shape(volume.stat("a")))
    say("utime", volume.utime("a", (1000, 2000)), int(volume.getatime("a")), int(volume.getmtime("a")))
    say("ctime", volume.getctime("a") > 10**9)
    volume.utime("a", (1.5, 2.25))
    found = volume.stat("a")
    say("utime", int(found.st_atime), found.st_atimensec, int(found.st_mtime), found.st_mtimensec)
    volume.utime("a", None)
    say("utime now", volume.getmtime("a") > 10**9)
    for wrong in ("x", 5, (1,), (1, 2, 3), [1, 2]):
        fails("utime", volume.utime, "a", wrong)
    fails("utime", volume.utime, "gone", None)
    say("exists", volume.exists("a"), volume.exists("gone"), volume.exists("a/b"))
    say("kinds", volume.isfile("a"), volume.isdir("a"), volume.islink("a"), volume.isdir("/"), volume.isfile("gone"))
    say("size", volume.getsize("a"))
    say("access", volume.access("a", os.F_OK), volume.access("gone", os.F_OK), volume.access("a", os.R_OK | os.W_OK))
    for name in ("stat", "lstat", "getsize", "getmtime", "unlink", "rmdir", "readlink", "listdir", "chdir"):
        fails("gone, " + name, getattr(volume, name), "gone")
    figures = volume.statvfs("/")
    say("statvfs", figures.f_namemax, figures.f_blocks > 0, figures.f_bsize > 0, figures.f_frsize > 0)
    say("statvfs", figures.f_bfree >= figures.f_bavail, figures.f_files > 0, figures.f_ffree > 0, figures.f_favail > 0)


def xattrs(volume):
    volume.fopen("x", "w").close()
    say("setxattr", volume.setxattr("x", "user.one", "awesome"), volume.getxattr("x", "user.one"))
    say("setxattr", volume.setxattr("x", "user.two", b"2", flags=1), volume.setxattr("x", "user.two", "3", flags=2))
    fails("exists", volume.setxattr, "x", "user.two", "4", flags=1)
    fails("does not", volume.setxattr, "x", "user.three", "4", flags=2)
    say("getxattr", volume.getxattr("x", "user.two"), volume.getxattr("x", "user.one", size=7))
    say("getxattr", volume.getxattr("x", "user.one", 70))
    fails("too small", volume.getxattr, "x", "user.one", size=1)
    fails("negative", volume.getxattr, "x", "user.one", size=-7)
    fails("none", volume.getxattr, "x", "user.none")
    fails("gone", volume.getxattr, "gone", "user.one")
    say("listxattr", [name for name in volume.listxattr("x") if name.startswith("user.")])
    say("listxattr", [name for name in volume.listxattr("x", size=4096) if name.startswith("user.")])
    fails("too small", volume.listxattr, "x", size=1)
    fails("negative", volume.listxattr, "x", size=-1)
    say("removexattr", volume.removexattr("x", "user.one"))
    fails("none", volume.removexattr, "x", "user.one")
    with File(volume.open("x", os.O_RDWR)) as file:
        say("fsetxattr", file.fsetxattr("user.f", "value"), file.fgetxattr("user.f"), file.fgetxattr("user.f", 70))
        say("flistxattr", [name for name in file.flistxattr() if name.startswith("user.")])
        fails("exists", file.fsetxattr, "user.f", "x", flags=1)
        fails("does not", file.fsetxattr, "user.g", "x", flags=2)
        fails("too small", file.fgetxattr, "user.f", size=1)
        fails("too small", file.flistxattr, size=1)
        say("fremovexattr", file.fremovexattr("user.f"))
        fails("none", file.fremovexattr, "user.f")
        fails("none", file.fgetxattr, "user.f")


def names(volume):
    say("mkdir", volume.mkdir("d"), volume.mkdir("d/private", 0o700), oct(volume.stat("d").st_mode))
    fails("mkdir", volume.mkdir, "d")
    fails("mkdir", volume.mkdir, "gone/d")
    say("makedirs", volume.makedirs("d/a/b/c"), volume.makedirs("/e/f", 0o711), oct(volume.stat("e/f").st_mode))
    fails("makedirs", volume.makedirs, "d/a/b/c")
    fails("rmdir", volume.rmdir, "d")
    volume.fopen("d/file", "w").close()
    fails("rmdir of a file", volume.rmdir, "d/file")
    fails("unlink of a directory", volume.unlink, "d/a")
    fails("remove", volume.remove, "d/gone")
    say("link", volume.link("d/file", "d/link"), volume.samefile("d/file", "d/link"), volume.samefile("d/file", "d"))
    say("nlink", volume.stat("d/file").st_nlink)
    fails("link", volume.link, "d/file", "d/link")
    fails("link", volume.link, "gone", "d/x")
    refused("link of a directory", volume.link, "d/a", "d/x")
    say("symlink", volume.symlink("file", "d/sym"), volume.readlink("d/sym"), volume.islink("d/sym"))
    say("symlink", volume.isfile("d/sym"), volume.lstat("d/sym").st_size, volume.samefile("d/sym", "d/file"))
    volume.symlink("nowhere", "d/dead")
    say("dead", volume.exists("d/dead"), volume.islink("d/dead"))
    fails("dead", volume.stat, "d/dead")
    fails("symlink", volume.symlink, "file", "d/sym")
    fails("readlink of a file", volume.readlink, "d/file")
    volume.symlink("loop", "loop")
    fails("loop", volume.stat, "loop")
    fails("samefile", volume.samefile, "d", "gone")
    say("rename", volume.rename("d/link", "d/moved"), volume.exists("d/link"), volume.stat("d/moved").st_nlink)
    fails("rename", volume.rename, "gone", "x")
    fails("rename onto a full directory", volume.rename, "e", "d")
    fails("rename of a file onto a directory", volume.rename, "d/file", "e")
    refused("rename of a directory onto a file", volume.rename, "e", "d/file")
    say("mknod", volume.mknod("d/pipe", stat.S_IFIFO | 0o640, 0), shape(volume.lstat("d/pipe")))
    say("mknod", volume.mknod("d/null", stat.S_IFCHR | 0o666, os.makedev(1, 3)), shape(volume.stat("d/null")))
    fails("mknod", volume.mknod, "d/null", stat.S_IFREG | 0o666, 0)
    say("getcwd", volume.getcwd(), volume.chdir("d/a"), volume.getcwd(), volume.isdir("b"), volume.exists("/d/file"))
    volume.chdir("..")
    say("chdir", volume.getcwd(), sorted(volume.listdir("a")))
    fails("chdir to a file", volume.chdir, "file")
    volume.chdir("/")
    say("remove", volume.remove("d/moved"), volume.unlink("d/dead"), volume.rmdir("d/private"))


def folders(volume):
    volume.makedirs("t/one/deep")
    volume.makedirs("t/two")
    for path in ("t/f1", "t/one/f2", "t/one/deep/f3"):
        with volume.fopen(path, "w") as file:
            file.write(path.encode())
    volume.symlink("one", "t/to_one")
    volume.symlink("f1", "t/to_f1")
    say("listdir", sorted(volume.listdir("t")), volume.listdir("t/two"))
    fails("listdir", volume.listdir, "t/f1")
    for name, found in sorted(volume.listdir_with_stat("t"), key=lambda pair: pair[0]):
        say("listdir_with_stat", name, oct(found.st_mode), found.st_size if stat.S_ISREG(found.st_mode) else "")
    fails("listdir_with_stat", volume.listdir_with_stat, "gone")
    for entry in sorted(volume.scandir("t"), key=lambda entry: entry.name):
        say("scandir", isinstance(entry, DirEntry), entry.name, entry.path, str(entry))
        say("entry", entry.is_dir(), entry.is_file(), entry.is_symlink(), entry.inode() == entry.stat().st_ino)
        say("followed", entry.is_dir(follow_symlinks=True), entry.is_file(follow_symlinks=True))
        say("followed", oct(entry.stat(follow_symlinks=True).st_mode), oct(entry.stat().st_mode))
    fails("scandir", lambda: list(volume.scandir("gone")))
    folder = volume.opendir("t")
    entries = list(folder)
    say("opendir", isinstance(folder, Dir), sorted(entry.d_name[: entry.d_reclen] for entry in entries))
    say("d_type", sorted((entry.d_name, entry.d_type) for entry in entries))
    pairs = list(volume.opendir("t", readdirplus=True))
    say("readdirplus", sorted((entry.d_name, oct(found.st_mode)) for entry, found in pairs))
    fails("opendir", volume.opendir, "gone")
    fails("opendir of a file", volume.opendir, "t/f1")
    for top_down in (True, False):
        for follow in (False, True):
            seen = [(top, sorted(dirs), sorted(files)) for top, dirs, files in volume.walk("t", top_down, None, follow)]
            say("walk", top_down, follow, sorted(seen), (seen[0] if top_down else seen[-1])[0])
    errors = []
    say("walk", list(volume.walk("gone")), list(volume.walk("gone", onerror=errors.append)), errors[0].errno)


def digest(volume, path):
    with volume.fopen(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def copies(volume):
    block = bytes(range(256)) * 512
    with volume.fopen("c", "wb") as file:
        for _ in range(3):
            file.write(block)
        file.write(b"tail")
    volume.chmod("c", 0o640)
    volume.utime("c", (1000, 2000))
    for length in (128 * 1024, 1000):
        with volume.fopen("c", "rb") as source, volume.fopen("c1", "wb") as target:
            say("copyfileobj", volume.copyfileobj(source, target, length), volume.getsize("c1"))
        say("same", digest(volume, "c1") == digest(volume, "c"))
    say("copyfile", volume.copyfile("c", "c2"), oct(volume.stat("c2").st_mode), digest(volume, "c2"))
    refused("copyfile", volume.copyfile, "c", "c")
    fails("copyfile", volume.copyfile, "gone", "c3")
    fails("copyfile into nowhere", volume.copyfile, "c", "gone/c3")
    volume.link("c", "c4")
    refused("copyfile", volume.copyfile, "c", "c4")
    say("copymode", volume.copymode("c", "c2"), oct(volume.stat("c2").st_mode))
    say("copystat", volume.copystat("c", "c2"), int(volume.stat("c2").st_mtime), int(volume.stat("c2").st_atime))
    volume.mkdir("into")
    say(
        "copy",
        volume.copy("c", "into"),
        oct(volume.stat("into/c").st_mode),
        int(volume.stat("into/c").st_mtime) > 10**9,
    )
    say("copy2", volume.copy2("c", "into/c2"), oct(volume.stat("into/c2").st_mode), int(volume.getmtime("into/c2")))
    say("copy2", volume.copy2("c", "into"), int(volume.getmtime("into/c")))
    say("copytree", volume.copytree("t", "t2"), sorted(volume.walk("t2")))
    say("links", volume.islink("t2/to_f1"), volume.islink("t2/to_one"), digest(volume, "t2/to_one/deep/f3"))
    say(
        "copytree",
        volume.copytree("t", "t3", symlinks=True),
        sorted(volume.listdir("t3")),
        volume.readlink("t3/to_one"),
    )
    say("ignore", volume.copytree("t", "t4", True, lambda folder, names: {"one", "f1"}), sorted(volume.listdir("t4")))
    fails("copytree", volume.copytree, "t", "t2")
    fails("copytree", volume.copytree, "gone", "t5")
    volume.symlink("nowhere", "t/dead")
    fails("copytree", volume.copytree, "t", "t6")
    say("the rest of it", sorted(volume.listdir("t6")))


def removal(volume):
    volume.symlink("t2", "to_t2")
    refused("rmtree of a link", volume.rmtree, "to_t2")
    fails("rmtree", volume.rmtree, "gone")
    say("ignored", volume.rmtree("gone", ignore_errors=True))
    seen = []
    volume.rmtree("gone", onerror=lambda call, path, error: seen.append((call.__name__, path, error.errno)))
    say("onerror", seen)
    say("rmtree", volume.rmtree("t2"), volume.exists("t2"), volume.rmtree("t"), volume.exists("t"))
    for name in sorted(volume.listdir("/")):
        if volume.isdir(name) and not volume.islink(name):
            volume.rmtree(name)
        else:
            volume.unlink(name)
    say("empty", volume.listdir("/"))


def users(volume):
    volume.mkdir("open", 0o777)
    volume.chmod("open", 0o777)
    say("setfsuid", volume.setfsuid(1000), volume.setfsgid(1001))
    volume.fopen("open/mine", "w").close()
    volume.mkdir("open/folder")
    say("owner", shape(volume.stat("open/mine"))[2:4], shape(volume.stat("open/folder"))[2:4])
    say("setfsuid", volume.setfsuid(0), volume.setfsgid(0))
    volume.fopen("open/roots", "w").close()
    say("owner", shape(volume.stat("open/roots"))[2:4])


def main():
    volume = life()
    for part in (files, modes, attributes, xattrs, names, folders, copies, users, removal):
        part(volume)
    sys.stdout.flush()
    os._exit(0)


main()
