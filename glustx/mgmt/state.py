"""What the volume server keeps between runs: the TCP port of each brick, in one JSON file per volume."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

FIRST_PORT = 49152
LAST_PORT = 60999
_SUN_PATH = 107


class ServeError(Exception):
    """Something that keeps a volume from being served, as a sentence for whoever asked for it."""

    @property
    def number(self) -> int:
        """The errno of the system call that it came from; 0 where it came from none."""
        cause: BaseException | None = self
        while cause is not None:
            if isinstance(cause, OSError) and cause.errno:
                return cause.errno
            cause = cause.__cause__
        return 0


class Folders(msgspec.Struct, frozen=True):
    """Where the volume server keeps things.

    Args:
        state: what must survive a reboot.
        run: sockets of the running bricks.
    """

    state: Path
    run: Path

    def socket(self, volume: str, brick: str) -> Path:
        """Return the path of a brick's control socket, the same for every run.

        Raises ServeError when `run` lies too deep for a unix socket.
        """
        name = hashlib.sha256(f"{volume}\0{brick}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
        path = self.run / f"{name}.socket"
        if len(os.fsencode(path)) > _SUN_PATH:
            raise ServeError(
                f"{path} is longer than the {_SUN_PATH} bytes a unix socket may have; use another state folder"
            )
        return path


def folders(chosen: Path | None, environ: Mapping[str, str], root: bool) -> Folders:
    """Return where to keep things.

    Args:
        chosen: a folder for everything, or None for the usual places.
        environ: the environment, for the XDG folders of a user who is not root.
        root: whether the process runs as root.
    """
    if chosen is not None:
        return Folders(chosen, chosen / "run")
    if root:
        return Folders(Path("/var/lib/glustx"), Path("/run/glustx"))
    home = Path(environ.get("HOME") or "/")
    state = Path(environ.get("XDG_STATE_HOME") or home / ".local" / "state") / "glustx"
    runtime = environ.get("XDG_RUNTIME_DIR")
    return Folders(state, Path(runtime) / "glustx" if runtime else state / "run")


class _Kept(msgspec.Struct):
    ports: dict[str, int] = {}


class Ports:
    """The ports of all bricks: fixed at first use, kept in the state folder.

    Args:
        state: the state folder; made when something is kept.
    """

    def __init__(self, state: Path) -> None:
        self._folder = state / "volumes"

    def _file(self, volume: str) -> Path:
        return self._folder / f"{volume}.json"

    def _load(self, file: Path) -> _Kept:
        try:
            return msgspec.json.decode(file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return _Kept()
        except (OSError, msgspec.MsgspecError) as error:
            raise ServeError(f"cannot read the ports kept in {file}: {error}") from None

    def bricks(self, volume: str) -> dict[str, int]:
        """Return the ports of a volume by brick name."""
        return self._load(self._file(volume)).ports

    def fix(self, volume: str, brick: str, host: str, wanted: int = 0) -> int:
        """Return the port of a brick and keep it.

        Args:
            wanted: a port that was asked for; 0 takes the kept one, or else the first that is free.

        Raises ServeError when no port is free or nothing can be kept.
        """
        kept = self._load(self._file(volume))
        port = wanted or kept.ports.get(brick) or self._free(host)
        if kept.ports.get(brick) != port:
            kept.ports[brick] = port
            self._save(self._file(volume), kept)
        return port

    def _free(self, host: str) -> int:
        taken = {port for file in self._folder.glob("*.json") for port in self._load(file).ports.values()}
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in range(FIRST_PORT, LAST_PORT + 1):
            if port in taken:
                continue
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((host, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        name = errno.errorcode.get(error.errno or 0, "error")
                        raise ServeError(f"cannot listen on {host}: {name} ({error.strerror or error})") from None
                    continue
            return port
        raise ServeError(f"no port from {FIRST_PORT} to {LAST_PORT} is free on {host}")

    def _save(self, file: Path, kept: _Kept) -> None:
        new = file.with_suffix(f".{os.getpid()}.new")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(new, "wb") as out:
                out.write(msgspec.json.format(msgspec.json.encode(kept)) + b"\n")
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, file)
        except OSError as error:
            raise ServeError(f"cannot keep the port in {file}: {error.strerror or error}") from None
