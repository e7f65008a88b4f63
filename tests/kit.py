"""Helpers that every layer of the tests may use: what a test needs from the machine (`need_peer`), child processes that
always end, free ports, network namespaces, loop file systems and C programs compiled on the spot."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib.metadata
import itertools
import os
import queue
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
# Programs live in sbin too, which a normal user's PATH leaves out.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])

PACKAGES = {
    "glusterd": "glusterfs-server",
    "glusterfsd": "glusterfs-server",
    "gluster": "glusterfs-cli",
    "glusterfs": "glusterfs-client",
    "mount.glusterfs": "glusterfs-client",
    "glusterfs/api/glfs.h": "libglusterfs-dev",
    "libgfapi.so.0": "libgfapi0",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
    "block-gluster.so": "qemu-block-extra",
    "fio": "fio",
    "gcc": "gcc",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "losetup": "mount",
    "fallocate": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "diff": "diffutils",
    "setfattr": "attr",
    "getfattr": "attr",
    "setfacl": "acl",
    "getfacl": "acl",
    "runuser": "util-linux",
    "openssl": "openssl",
    "strace": "strace",
    "tshark": "tshark",
    "iscsi-test-cu": "libiscsi-bin",
    "iscsi-ls": "libiscsi-bin",
    "iscsi-perf": "libiscsi-bin",
    "block-iscsi.so": "qemu-block-extra",
    "sg_vpd": "sg3-utils",
    "sg_inq": "sg3-utils",
    "sg_logs": "sg3-utils",
    "sg_decode_sense": "sg3-utils",
    "sdparm": "sdparm",
}


def which(program: str) -> str | None:
    """The full path of `program`, looked for in PATH and the sbin folders, or None."""
    return shutil.which(program, path=PATH)


@cache
def _missing(name: str) -> str | None:
    """What to say when `name` is not there; None when it is."""
    if name == "root":
        return None if os.geteuid() == 0 else "root"
    if name == "namespaces":
        return _missing_namespaces()
    if name.startswith("/dev/"):
        return None if os.access(name, os.R_OK | os.W_OK) else f"access to {name}"
    if name.startswith("pypi:"):
        return None if _distribution(name[5:]) else f"{name[5:]} (pip install {name[5:]})"
    package = PACKAGES[name]
    if name.endswith(".h"):
        found = os.path.exists(f"/usr/include/{name}")
    elif ".so." in name:
        found = bool(glob.glob(f"/usr/lib/*/{name}") + glob.glob(f"/usr/lib*/{name}"))
    elif name.endswith(".so"):
        found = bool(glob.glob(f"/usr/lib/*/qemu/{name}") + glob.glob(f"/usr/lib*/qemu*/{name}"))
    else:
        found = which(name) is not None
    return None if found else f"{name} (Debian package {package})"


def _distribution(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _missing_namespaces() -> str | None:
    for tool in ("root", "ip", "unshare", "nsenter"):
        if reason := _missing(tool):
            return reason
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return None if probe.returncode == 0 else f"the right to make namespaces ({probe.stderr.strip()})"


def need_peer(*names: str) -> None:
    """Skip the running test unless everything it needs is on this machine, naming what is missing.

    names: programs, headers, shared objects (keys of `PACKAGES`), device files, Python distributions as "pypi:NAME",
    "root" or "namespaces".
    With GLUSTX_REQUIRE_PEERS=1 in the environment something missing fails the test instead.
    """
    missing = [reason for name in names if (reason := _missing(name))]
    if not missing:
        return
    sentence = "needs " + ", ".join(missing)
    if os.environ.get("GLUSTX_REQUIRE_PEERS") == "1":
        pytest.fail(sentence, pytrace=False)
    pytest.skip(sentence)


# Below those that the kernel gives to whoever asks for any, so that nobody else comes by one of them.
_PORTS = range(10_000, 32_000)
_next_port = itertools.count(os.getpid() * 1009)


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port that nobody listens on and no other call gets; a program that can bind port 0 itself should."""
    for _ in _PORTS:
        port = _PORTS[next(_next_port) % len(_PORTS)]
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind((host, port))
                return port
    raise AssertionError("no port is free")


# Seconds for what comes sooner or later: only a test that fails waits that long.
PATIENCE = 60.0


def pressure() -> float:
    """Seconds so far in which something on this machine waited for a core or a disk, times the cores; 0 where the
    kernel does not tell (CONFIG_PSI)."""
    total = 0
    for resource in ("cpu", "io"):
        try:
            with open(f"/proc/pressure/{resource}") as file:
                total += int(file.readline().rpartition("=")[2])
        except OSError:
            pass
    return total / 1e6 * (os.cpu_count() or 1)


class Stopwatch:
    """Measures what must not take long on a machine that may be busy with other things."""

    def __init__(self) -> None:
        self._pressure = pressure()
        self._began = time.monotonic()

    def seconds(self) -> float:
        """Seconds since it was made, without those for which the machine had more to do than it could."""
        return time.monotonic() - self._began - (pressure() - self._pressure)


def wait_gone(pid: int, timeout: float = PATIENCE) -> bool:
    """Wait until process `pid`, child or not, has ended; False when it still runs after `timeout` seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout)[0])
    finally:
        os.close(handle)


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, by the pids of our own pid namespace, parents before children."""
    found: list[int] = []
    todo = [pid]
    while todo:
        try:
            for task in os.listdir(f"/proc/{todo[0]}/task"):
                with open(f"/proc/{todo[0]}/task/{task}/children") as children:
                    todo += map(int, children.read().split())
        except OSError:
            pass
        found.append(todo.pop(0))
    return found[1:]


class Process:
    """One program run by a test: its output is kept, its ready line awaited, and it never outlives the `with` block.

    argv: the command. env: additions to the environment. stop_signal: what ends it politely; after `stop_timeout`
    seconds it is killed, which the log says.
    """

    live: weakref.WeakSet[Process] = weakref.WeakSet()

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stop_signal: int = signal.SIGTERM,
        stop_timeout: float = PATIENCE,
    ) -> None:
        self.argv = [os.fspath(word) for word in argv]
        self.stop_signal = stop_signal
        self.stop_timeout = stop_timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.popen = subprocess.Popen(
            self.argv,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=cwd or ROOT,
            env={**os.environ, "PATH": PATH, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        self.pid = self.popen.pid
        self._reader = threading.Thread(target=self._read, name=f"output of {self.argv[0]}", daemon=True)
        self._reader.start()
        Process.live.add(self)

    def _read(self) -> None:
        # A thread, so that a program that says a lot never blocks on a full pipe.
        assert self.popen.stdout is not None
        for raw in self.popen.stdout:
            self._log.write(raw)
            self._log.flush()
            self._lines.put(raw.decode(errors="replace").rstrip("\n"))
        self._lines.put(None)

    def wait_line(self, accept: Callable[[str], T | None], timeout: float = 60.0) -> T:
        """The first non-None answer of `accept` to a line of stdout; AssertionError with the log when none comes."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self}: not ready after {timeout} s\n{self.log()}") from None
            if line is None:
                raise AssertionError(f"{self}: ended with {self.popen.wait()} before it was ready\n{self.log()}")
            if (answer := accept(line)) is not None:
                return answer

    def log(self, limit: int = 16384) -> str:
        """The last `limit` bytes the program said, stderr and stdout."""
        end = os.fstat(self._log.fileno()).st_size
        start = max(0, end - limit)
        return os.pread(self._log.fileno(), end - start, start).decode(errors="replace")

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """End the program if it still runs; its exit status (negative: the signal)."""
        if self.popen.poll() is None:
            self.popen.send_signal(self.stop_signal)
            try:
                self.popen.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                self._log.write(f"\n{self}: killed, still there {self.stop_timeout} s after the signal\n".encode())
                self.kill()
        if self.popen.stdin is not None:
            self.popen.stdin.close()
        Process.live.discard(self)
        return self.popen.returncode

    def __str__(self) -> str:
        return " ".join(self.argv)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class NetNamespace:
    """A network namespace with a random name whose only link is `lo`; deleted at the end of the `with` block.

    `ADDRESS` is on its lo besides 127.0.0.1, because stock glusterd refuses loopback addresses as hosts of bricks.
    """

    ADDRESS = "192.0.2.1"  # TEST-NET-1, RFC 5737

    def __init__(self) -> None:
        self.name = f"glustx-{secrets.token_hex(4)}"

    def __enter__(self) -> NetNamespace:
        self._ip("netns", "add", self.name)
        try:
            self._ip("-n", self.name, "link", "set", "lo", "up")
            self._ip("-n", self.name, "address", "add", f"{self.ADDRESS}/32", "dev", "lo")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._ip("netns", "delete", self.name)

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run([which("ip") or "ip", *words], check=True)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Within the block, sockets that the calling thread makes, and threads that it starts, belong in here."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.name}") as here:
            _set_netns(here.fileno())
            try:
                yield
            finally:
                _set_netns(home.fileno())

    def command(self, *argv: str | os.PathLike[str]) -> list[str]:
        """`argv` so that it runs in here (in the caller's mount namespace: what it mounts is seen outside)."""
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *map(os.fspath, argv)]


def _set_netns(fd: int) -> None:
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000):
        raise OSError(ctypes.get_errno(), f"setns: {os.strerror(ctypes.get_errno())}")


def compile_c(source: Path, target: Path, *, libraries: Iterable[str] = ("gfapi",), flags: Iterable[str] = ()) -> Path:
    """Compile one C file with gcc into `target`; a warning is an error. Returns `target`."""
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", *flags]
    command += [str(source), "-o", str(target), *(f"-l{name}" for name in libraries)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return target


@contextlib.contextmanager
def loop_filesystem(work: Path, kind: str, size: int, options: Iterable[str] = ()) -> Iterator[Path]:
    """A new file system of `kind` (ext3, ext4, xfs, btrfs) and `size` bytes in an image below `work`; yields its root.

    options: more words for mkfs. The image is sparse, and gone with the mount at the end.
    """
    program = f"mkfs.{kind}"
    need_peer("root", "/dev/loop-control", "losetup", "mkfs.ext4" if kind.startswith("ext") else program)
    image, root = work / f"{kind}.img", work / f"{kind}.root"
    with open(image, "wb") as file:
        file.truncate(size)
    root.mkdir()
    quiet = ["-q", "-F"] if kind.startswith("ext") else ["-q", "-f"]
    subprocess.run([which(program) or program, *quiet, *options, image], check=True, capture_output=True)
    subprocess.run(["mount", "-o", "loop", image, root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)
        image.unlink()
        root.rmdir()


def affordable(folder: Path, size: int) -> int:
    """`size` bytes, or less when the file system of `folder` has not twice that free; says so when it cuts."""
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    cut = size
    while cut > free // 2:
        cut //= 2
    if cut < size:
        print(f"working with {cut / 2**30:.2f} instead of {size / 2**30:.2f} GiB: {free / 2**30:.0f} GiB are free")
    return cut
