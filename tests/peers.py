"""Stock GlusterFS as the other side of a test: private glusterd volumes, bare bricks, a volfile server, mounts, and the
same handle for a volume of ours. `python -m tests.peers FOLDER --volume NAME` serves a stock volume by the contract of
`glustx serve --json`, so that a bench can put either behind one command line."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import signal
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.kit import PATIENCE, NetNamespace, Process, descendants, free_port, wait_gone, which

BRICK_PORT = 49152


class Volume:
    """A one-brick volume that clients reach by (`host`, `port`, `volume`), inside `netns` when that is set.

    A subclass fills `bricks` with the host pids of the brick processes when it starts.
    """

    host = "127.0.0.1"
    port = 24007

    def __init__(self, folder: Path, volume: str, netns: NetNamespace | None) -> None:
        self.folder = folder
        self.volume = volume
        self.netns = netns
        self.bricks: list[int] = []

    def command(self, *argv: str | os.PathLike[str]) -> list[str]:
        """`argv` as it must be run to reach this volume."""
        return self.netns.command(*argv) if self.netns else [*map(os.fspath, argv)]

    def run(self, *argv: str | os.PathLike[str], timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
        """Run a client program to its end; AssertionError with all it said when it fails."""
        command = self.command(*argv)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def url(self, path: str) -> str:
        """The name of a file of this volume for QEMU and for `glustx provision`."""
        port = "" if self.port == 24007 else f":{self.port}"
        return f"gluster://{self.host}{port}/{self.volume}/{path}"

    def crash(self) -> None:
        """SIGKILL everything that serves the volume, and see it gone."""
        raise NotImplementedError

    def restart(self) -> None:
        """After `crash`: serve the same folder again where clients will look for it."""
        raise NotImplementedError


class ServedVolume(Volume):
    """A volume served by a program with the contract of `glustx serve`: by default glustx itself.

    folder: the brick. command: what to run instead of `python -m glustx serve`; FOLDER and options are appended. What
    glustx keeps goes to a scratch folder, never to the machine's own.
    """

    def __init__(
        self, folder: Path, volume: str, netns: NetNamespace | None = None, command: Sequence[str] | None = None
    ) -> None:
        super().__init__(folder, volume, netns)
        self.port = 24007 if netns else free_port()
        self.brick_port = BRICK_PORT if netns else free_port()
        self._argv = list(command or [sys.executable, "-m", "glustx", "serve"])

    def __enter__(self) -> ServedVolume:
        with contextlib.ExitStack() as stack:
            self._state = stack.enter_context(tempfile.TemporaryDirectory(prefix="glustx-state-"))
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._stack:
            self.process.stop()

    def _start(self) -> None:
        options = ["--volume", self.volume, "--port", str(self.port), "--brick-port", str(self.brick_port), "--json"]
        # By the environment, because another program with the contract need not have an option for it.
        env = {"GLUSTX_STATE_DIR": self._state}
        self.process = Process(self.command(*self._argv, self.folder, *options), env=env)
        try:
            ready = self.process.wait_line(_ready)
        except BaseException:
            self.process.stop()
            raise
        assert ready["volume"] == self.volume and ready["port"] == self.port, ready
        self.bricks = [brick["pid"] for brick in ready["bricks"]]
        self._manager = ready["pid"]

    def crash(self) -> None:
        doomed = [self._manager, *self.bricks, *descendants(self.process.pid)]
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in doomed:
            assert wait_gone(pid), f"{pid} survives SIGKILL"
        self.process.kill()

    def restart(self) -> None:
        self._start()


def _ready(line: str) -> dict | None:
    if not line.startswith("{"):
        return None
    message = json.loads(line)
    return message if message.get("ready") else None


class Cage:
    """A shell script that becomes process 1 of its own pid and mount namespace (and runs in `netns`).

    Once it has run, process 1 reads stdin until that ends, so everything in it dies with the test, however the test
    ends. It ignores SIGCHLD, because glusterd takes a zombie for a brick that runs.
    """

    def __init__(self, script: str, netns: NetNamespace | None = None) -> None:
        script += "\necho ready\nexec env --ignore-signal=CHLD cat >/dev/null\n"
        command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", script]
        self.process = Process(netns.command(*command) if netns else command, stdin=subprocess.PIPE)
        try:
            self.process.wait_line(lambda line: True if line == "ready" else None)
        except BaseException:
            self.stop()
            raise

    def pids(self, program: str) -> list[int]:
        """The processes in here whose argv[0] ends in `program`, by the pids seen outside."""
        return [pid for pid in descendants(self.process.pid) if _argv0(pid).endswith(program)]

    def run(self, *argv: str) -> None:
        """Run one more command inside, to its end."""
        init = descendants(self.process.pid)[0]
        enter = ["nsenter", f"--target={init}", "--mount", "--net", "--pid", "--"]
        done = subprocess.run([*enter, *argv], capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}"

    def stop(self) -> None:
        if self.process.popen.stdin is not None:
            self.process.popen.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.popen.wait(60)
        self.process.stop()


def _argv0(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""


GLUSTERD_SCRIPT = """
mount -t tmpfs tmpfs /run
mkdir -p /run/gluster /run/lock /var/lib/glusterd /var/log/glusterfs
mount -t tmpfs tmpfs /var/lib/glusterd
mount -t tmpfs tmpfs /var/log/glusterfs
mkdir -p /var/log/glusterfs/bricks
%s
glusterd || { cat /var/log/glusterfs/glusterd.log; exit 1; }
gluster --mode=script volume create "$VOLUME" "$ADDRESS:$FOLDER" force
for option in $OPTIONS; do gluster --mode=script volume set "$VOLUME" "${option%%=*}" "${option#*=}"; done
gluster --mode=script volume start "$VOLUME" || { cat /var/log/glusterfs/bricks/*.log; exit 1; }
"""


class StockVolume(Volume):
    """A volume of one brick of a private stock glusterd, up in about four seconds, with stock's default options.

    folder: the brick (its trusted.* xattrs are written, so root and a real file system are needed). netns: where to
    listen; None means the network namespace of the caller, whose lo must hold `NetNamespace.ADDRESS`.
    options: `key=value` for `gluster volume set`, without blanks. before: shell lines to run before glusterd.
    """

    def __init__(
        self,
        folder: Path,
        volume: str,
        netns: NetNamespace | None = None,
        options: Sequence[str] = (),
        before: str = "",
    ) -> None:
        super().__init__(folder, volume, netns)
        self._options = options
        self._before = before

    def __enter__(self) -> StockVolume:
        names = {"VOLUME": self.volume, "ADDRESS": NetNamespace.ADDRESS, "FOLDER": str(self.folder.resolve())}
        head = "".join(f"{key}='{value}'\n" for key, value in {**names, "OPTIONS": " ".join(self._options)}.items())
        self.cage = Cage(head + GLUSTERD_SCRIPT.replace("%s", self._before, 1), self.netns)
        self.bricks = self.cage.pids("glusterfsd")
        return self

    def __exit__(self, *exc: object) -> None:
        self.cage.stop()

    def crash(self) -> None:
        for pid in self.bricks:
            os.kill(pid, signal.SIGKILL)
        for pid in self.bricks:
            assert wait_gone(pid), f"{pid} survives SIGKILL"

    def restart(self) -> None:
        self.cage.run("gluster", "--mode=script", "volume", "start", self.volume, "force")
        self.bricks = self.cage.pids("glusterfsd")


BRICK_VOLFILE = """
volume {name}-posix
    type storage/posix
    option directory {folder}
    option shared-brick-count 1
    option fips-mode-rchecksum on
end-volume

volume {name}-access-control
    type features/access-control
    subvolumes {name}-posix
end-volume

volume {name}-locks
    type features/locks
    option enforce-mandatory-lock off
    subvolumes {name}-access-control
end-volume

volume {name}-leases
    type features/leases
    option leases off
    subvolumes {name}-locks
end-volume

volume {name}-upcall
    type features/upcall
    option cache-invalidation off
    subvolumes {name}-leases
end-volume

volume {name}-io-threads
    type performance/io-threads
    subvolumes {name}-upcall
end-volume

volume {name}-index
    type features/index
    option index-base {folder}/.glusterfs/indices
    option xattrop-dirty-watchlist trusted.afr.dirty
    option xattrop-pending-watchlist trusted.afr.{name}-
    subvolumes {name}-io-threads
end-volume

volume {folder}
    type debug/io-stats
    option threads 16
    option unique-id {folder}
    subvolumes {name}-index
end-volume

volume {name}-server
    type protocol/server
    option transport-type tcp
    option transport.address-family inet
    option transport.socket.bind-address 127.0.0.1
    option transport.listen-backlog 1024
    option transport.socket.listen-port {port}
    option auth-path {folder}
    option auth.addr.{folder}.allow *
    subvolumes {folder}
end-volume
"""

CLIENT_VOLFILE = """
volume {name}-client-0
    type protocol/client
    option remote-host 127.0.0.1
    option remote-port {port}
    option remote-subvolume {folder}
    option transport-type tcp
    option transport.address-family inet
    option ping-timeout 42
    option send-gids true
end-volume

volume {name}-dht
    type cluster/distribute
    subvolumes {name}-client-0
end-volume

volume {name}-utime
    type features/utime
    option noatime on
    subvolumes {name}-dht
end-volume

volume {name}-write-behind
    type performance/write-behind
    subvolumes {name}-utime
end-volume

volume {name}-open-behind
    type performance/open-behind
    subvolumes {name}-write-behind
end-volume

volume {name}-quick-read
    type performance/quick-read
    subvolumes {name}-open-behind
end-volume

volume {name}-md-cache
    type performance/md-cache
    subvolumes {name}-quick-read
end-volume

volume {name}-io-threads
    type performance/io-threads
    subvolumes {name}-md-cache
end-volume

volume {name}
    type debug/io-stats
    subvolumes {name}-io-threads
end-volume
"""


class StockBrick(Volume):
    """A bare stock glusterfsd on a folder, with no glusterd: half a second to start, any number side by side.

    It listens on 127.0.0.1 at `brick_port` under the name of its folder; a `VolfileServer` on `port` gives out stock's
    default client stack, with the brick's port pinned. Translators of the default brick stack that a bare brick cannot
    use (changelog, quota, marker, ...) are left out. The brick is handed `volfile` instead when that is given.
    """

    def __init__(self, folder: Path, volume: str = "bare", volfile: str = BRICK_VOLFILE) -> None:
        super().__init__(folder, volume, None)
        self.brick_port = free_port()
        names = {"name": volume, "folder": folder.resolve(), "port": self.brick_port}
        self.brick_volfile = volfile.format(**names)
        self.client_volfile = CLIENT_VOLFILE.format(**names)

    def __enter__(self) -> StockBrick:
        with contextlib.ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="glustx-brick-")))
            (work / "brick.vol").write_text(self.brick_volfile)
            indices = self.folder / ".glusterfs" / "indices"
            # Daemonizing is the ready event: the parent exits when its child listens.
            self._serve = (
                f"glusterfsd --no-mem-accounting -f '{work}/brick.vol' -l '{work}/log' -p '{work}/pid'"
                f" || {{ cat '{work}/log'; exit 1; }}"
            )
            self._cage = Cage(f"mount -t tmpfs tmpfs /run\nmkdir -p /run/gluster '{indices}'\n{self._serve}")
            stack.callback(self._cage.stop)
            self.bricks = self._cage.pids("glusterfsd")
            server = stack.enter_context(VolfileServer({self.volume: self.client_volfile}))
            self.port = server.port
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def crash(self) -> None:
        for pid in self.bricks:
            os.kill(pid, signal.SIGKILL)
        for pid in self.bricks:
            assert wait_gone(pid), f"{pid} survives SIGKILL"

    def restart(self) -> None:
        self._cage.run("sh", "-ec", self._serve)
        self.bricks = self._cage.pids("glusterfsd")


class VolfileServer:
    """GETSPEC of the Gluster handshake program (14398633 version 2) over TCP, and nothing else: a dozen lines of RPC
    written apart from glustx, so that a test of one does not lean on the other.

    volfiles: text by volume name. port: 0 picks one; see `port` afterwards.
    """

    def __init__(self, volfiles: dict[str, str], host: str = "127.0.0.1", port: int = 0) -> None:
        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while len(mark := self.rfile.read(4)) == 4:
                    self.wfile.write(_answer_getspec(self.rfile.read(_word(mark, 0) & 0x7FFFFFFF), volfiles))

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> VolfileServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _word(data: bytes, offset: int) -> int:
    return int(struct.unpack_from(">I", data, offset)[0])


def _opaque(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


def _answer_getspec(call: bytes, volfiles: dict[str, str]) -> bytes:
    xid, program, procedure = _word(call, 0), _word(call, 12), _word(call, 20)
    if program != 14398633 or procedure != 2:
        return struct.pack(">IIIIIII", 0x80000000 | 24, xid, 1, 0, 0, 0, 1 if program != 14398633 else 3)
    at = 28 + 4 + _word(call, 28)  # past the credential ...
    at += 8 + _word(call, at + 4) + 4  # ... the verifier and the flags
    name = call[at + 4 : at + 4 + _word(call, at)].rstrip(b"\0").decode().lstrip("/")
    text = volfiles.get(name)
    spec = (text or "").encode()
    status = (-1, errno.ENOENT) if text is None else (len(spec), 0)
    body = struct.pack(">ii", *status) + _opaque(spec) + _opaque(b"")
    reply = struct.pack(">IIIIII", xid, 1, 0, 0, 0, 0) + body
    return struct.pack(">I", 0x80000000 | len(reply)) + reply


def wire_bytes(volume: Volume) -> int:
    """Bytes that have passed over lo in the namespace of `volume` so far, with TCP/IP headers, both directions."""
    links = json.loads(volume.run("ip", "-json", "-statistics", "link", "show", "dev", "lo").stdout)
    return int(links[0]["stats64"]["rx"]["bytes"])


class Mounted(type(Path())):
    """The root of a mount, and its client process."""

    client: int

    def kill_client(self) -> None:
        """SIGKILL the client: the calls that hang on this mount end with ENOTCONN, and it stays dead."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.client, signal.SIGKILL)


@contextlib.contextmanager
def stock_mount(
    volume: Volume,
    mountpoint: Path,
    options: Sequence[str] = (),
    deadline: float = 100.0,
    volfile: Path | None = None,
) -> Iterator[Mounted]:
    """Mount `volume` on the existing folder `mountpoint` with stock's mount -t glusterfs; yields `mountpoint`.

    options: more mount options, such as "acl". volfile: to use instead of the one that the volume hands out.
    After `deadline` seconds the client is killed, so that a brick that stops answering fails the test instead of
    hanging it. At the end the file system is unmounted and its client gone; a mount that is still in use is detached
    and reported.
    """
    with tempfile.NamedTemporaryFile(prefix="glustx-mount-", suffix=".log") as log:
        words = [f"server-port={volume.port}", "log-level=ERROR", f"log-file={log.name}", *options]
        source = volfile or f"{volume.host}:/{volume.volume}"
        mount = volume.command("mount", "-t", "glusterfs", "-o", ",".join(words), source, mountpoint)
        done = subprocess.run(mount, capture_output=True, text=True, timeout=120)
        said = Path(log.name).read_text(errors="replace")
        assert done.returncode == 0, f"{' '.join(map(str, mount))}: {done.stdout}{done.stderr}\n{said}"
        mounted = Mounted(mountpoint)
        mounted.client = _mount_client(mountpoint)
        watchdog = threading.Timer(deadline, mounted.kill_client)
        watchdog.start()
        try:
            yield mounted
        except BaseException:
            print(f"--- log of the mount on {mountpoint}\n{Path(log.name).read_text(errors='replace')[-4096:]}")
            raise
        finally:
            watchdog.cancel()
            done = subprocess.run(["umount", mountpoint], capture_output=True, text=True)
            if done.returncode:
                subprocess.run(["umount", "--lazy", mountpoint], check=False)
            if not wait_gone(mounted.client):
                mounted.kill_client()
        assert done.returncode == 0, f"umount: {done.stderr}"


def _mount_client(mountpoint: Path) -> int:
    """The glusterfs process whose last argument is `mountpoint`."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
                if words[0].endswith(b"glusterfs") and words[-1] == os.fsencode(mountpoint):
                    return int(entry.name)
    raise AssertionError(f"no client process of {mountpoint}")


def wait_until(condition: str, check: object, timeout: float = PATIENCE) -> None:
    """Poll `check()` until it is true: for states of a stock client, which tells nobody when it has reconnected."""
    deadline = time.monotonic() + timeout
    while not check():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(0.05)


def main() -> int:
    """Serve a stock volume until SIGTERM or SIGINT, and print the ready line of `glustx serve --json`."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--volume")
    parser.add_argument("--port", type=int, default=24007, help="must be 24007: stock clients know no other glusterd")
    parser.add_argument("--brick-port", type=int, default=0, help="accepted, but glusterd picks the port")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if which("glusterd") is None or options.port != 24007:
        parser.error("needs glusterd (Debian package glusterfs-server) and port 24007")
    volume = options.volume or options.folder.resolve().name
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with StockVolume(options.folder, volume) as served:
        bricks = [{"name": str(options.folder.resolve()), "port": None, "pid": pid} for pid in served.bricks]
        ready = {"ready": True, "volume": volume, "port": 24007, "bricks": bricks, "pid": os.getpid()}
        print(json.dumps(ready) if options.json else f"volume {volume} on port 24007", flush=True)
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
