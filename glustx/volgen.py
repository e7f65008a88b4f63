"""Makes the volfiles that glustx serves and runs: stock's client stack, our brick stack, and a brick run in process."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from glustx import volfile
from glustx.volfile import Volfile, VolumeSpec

Options = Mapping[str, Mapping[str, str]]
"""Options to add or replace, by translator type: {"performance/io-threads": {"thread-count": "32"}}."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
# glusterd takes names up to NAME_MAX, but refuses a GETSPEC key over 254 bytes.
_NAME_MAX = 254
# In the order in which stock's printer writes them, so that texts can be compared.
_KEEPALIVE = {
    "transport.socket.keepalive-count": "9",
    "transport.socket.keepalive-interval": "2",
    "transport.socket.keepalive-time": "20",
}
_IO_STATS = {
    "global-threading": "off",
    "count-fop-hits": "off",
    "latency-measurement": "off",
    "threads": "16",
    "log-level": "INFO",
}


def client_volfile(
    volume: str,
    bricks: Sequence[tuple[str, int | None, str]],
    *,
    username: str = "",
    password: str = "",
    options: Options | None = None,
) -> str:
    """The text of the client stack that stock glusterd 10.3 generates for a distribute volume of one or more bricks.

    protocol/client for each brick, then cluster/distribute, features/utime, the performance translators, and
    debug/io-stats named `volume` as the root.

    Args:
        volume: the volume's name.
        bricks: host, TCP port and name of each brick, the name being that of the volume below protocol/server, which is
            the brick's absolute path. A pinned port spares the client its query to the portmap; None leaves it to ask.
        username, password: credentials for auth.login, as in the volfile stock gives to trusted peers.
        options: to add or replace in the stack.

    Raises:
        ValueError: a name, path or port that no client could use, or options for a type that is not in the stack.
    """
    if not bricks:
        raise ValueError(f"volume {volume}: a client volfile needs at least one brick")
    stack = _Stack(volume, options)
    login = {"password": password, "username": username} if username else {}
    for index, (host, port, brick) in enumerate(bricks):
        stack.beside(
            f"client-{index}",
            "protocol/client",
            {
                "send-gids": "true",
                "strict-locks": "off",
                **_KEEPALIVE,
                "transport.tcp-user-timeout": "0",
                "transport.socket.ssl-enabled": "off",
                **login,
                "transport.address-family": _family(host),
                "transport-type": "tcp",
                "remote-subvolume": _absolute(volume, brick),
                **({} if port is None else {"remote-port": _port(volume, port)}),
                "remote-host": host,
                "ping-timeout": "42",
            },
        )
    stack.above("dht", "cluster/distribute", {"force-migration": "off", "lock-migration": "off"})
    stack.above("utime", "features/utime", {"noatime": "on"})
    for name in ("write-behind", "open-behind", "quick-read", "md-cache", "io-threads"):
        stack.above(name, f"performance/{name}")
    stack.above("", "debug/io-stats", _IO_STATS)
    return stack.text()


def brick_volfile(
    volume: str,
    directory: str,
    port: int,
    host: str = "127.0.0.1",
    *,
    brick: str = "",
    volume_id: str = "",
    allow: str = "*",
    options: Options | None = None,
) -> str:
    """The text of our brick stack: storage/posix, features/access-control, features/locks, features/worm,
    features/read-only and features/leases where `options` names them, performance/io-threads, debug/io-stats and
    protocol/server.

    Args:
        volume: the volume's name.
        directory: absolute path of the brick's root.
        port: TCP port to listen on; 0 lets the kernel choose.
        host: address to bind.
        brick: what clients name as remote-subvolume; the directory by default, as in stock.
        volume_id: the volume's UUID as text; empty leaves it to storage/posix to take the brick's own.
        allow: comma list of client addresses for auth.addr.
        options: to add or replace in the stack.

    Raises:
        ValueError: a name, path or port that cannot be served, or options for a type that is not in the stack.
    """
    brick = _absolute(volume, brick or directory)
    identity = {"volume-id": volume_id} if volume_id else {}
    stack = _posix_stack(volume, directory, identity, options, guarded=True)
    stack.above(brick, "debug/io-stats", {**_IO_STATS, **identity, "unique-id": brick}, whole_name=True)
    stack.above(
        "server",
        "protocol/server",
        {
            "transport.listen-backlog": "1024",
            **_KEEPALIVE,
            "transport.socket.keepalive": "1",
            "transport.socket.ssl-enabled": "off",
            "transport.socket.bind-address": host,
            "transport.socket.listen-port": _port(volume, port, lowest=0),
            f"auth.addr.{brick}.allow": allow,
            "auth-path": brick,
            "transport.address-family": _family(host),
            "transport-type": "tcp",
        },
    )
    return stack.text()


def embedded_volfile(volume: str, directory: str, *, volume_id: str = "", options: Options | None = None) -> str:
    """The text of a graph that runs a brick inside the calling process: storage/posix, features/locks,
    performance/io-threads, and debug/io-stats named `volume`.

    Args:
        volume: the volume's name.
        directory: absolute path of the brick's root.
        volume_id: the volume's UUID as text; empty leaves it to storage/posix to take the brick's own.
        options: to add or replace in the stack.

    Raises:
        ValueError: a name or path that cannot be used, or options for a type that is not in the stack.
    """
    stack = _posix_stack(volume, directory, {"volume-id": volume_id} if volume_id else {}, options)
    stack.above("", "debug/io-stats", _IO_STATS)
    return stack.text()


class _Stack:
    """Volumes one above the other, named VOL-<layer> as in stock."""

    def __init__(self, volume: str, options: Options | None) -> None:
        if not _NAME.fullmatch(volume) or len(volume) > _NAME_MAX:
            raise ValueError(
                f"volume name {volume!r}: use at most {_NAME_MAX} letters, digits, '_' and '-', with no '-' in front"
            )
        self.volume = volume
        self.options = dict(options or {})
        self.volumes: list[VolumeSpec] = []
        self.tops: tuple[str, ...] = ()
        self.optional: set[str] = set()  # types that would be in the stack if they had options

    def beside(self, layer: str, type_: str, options: Mapping[str, str]) -> None:
        """Add a volume with none below, next to those that wait for one above them."""
        name = self._add(f"{self.volume}-{layer}", type_, options, ())
        self.tops = (*self.tops, name)

    def above(
        self, layer: str, type_: str, options: Mapping[str, str] | None = None, *, whole_name: bool = False
    ) -> None:
        """Add a volume above all that wait for one; `layer` empty names it after the volume itself."""
        name = layer if whole_name else f"{self.volume}-{layer}" if layer else self.volume
        self.tops = (self._add(name, type_, options or {}, self.tops),)

    def _add(self, name: str, type_: str, options: Mapping[str, str], below: tuple[str, ...]) -> str:
        merged = {**options, **self.options.get(type_, {})}
        self.volumes.append(VolumeSpec(name, type_, merged, below))
        return name

    def text(self) -> str:
        types = {volume.type for volume in self.volumes}
        if unknown := set(self.options) - types:
            wrong = min(unknown)
            near = volfile.nearest(wrong, types | self.optional)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"volume {self.volume}: options are given for {wrong!r}, which is not in the stack{hint}")
        return volfile.format(Volfile(tuple(self.volumes), f"<volfile of {self.volume}>"))


def _posix_stack(
    volume: str, directory: str, identity: Mapping[str, str], options: Options | None, guarded: bool = False
) -> _Stack:
    # A process that runs a brick by itself has the brick's files anyway: only what is served needs access control.
    stack = _Stack(volume, options)
    stack.beside("posix", "storage/posix", {**identity, "directory": _absolute(volume, directory)})
    if guarded:
        stack.above("access-control", "features/access-control")
    stack.above("locks", "features/locks")
    for layer in ("worm", "read-only", "leases"):
        stack.optional.add(f"features/{layer}")
        if f"features/{layer}" in stack.options:
            stack.above(layer, f"features/{layer}")
    stack.above("io-threads", "performance/io-threads")
    return stack


def _absolute(volume: str, path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"volume {volume}: the brick path {path!r} is not absolute")
    return path


def _port(volume: str, port: int, lowest: int = 1) -> str:
    if not lowest <= port <= 65535:
        raise ValueError(f"volume {volume}: port {port} is not between {lowest} and 65535")
    return str(port)


def _family(host: str) -> str:
    return "inet6" if ":" in host else "inet"
