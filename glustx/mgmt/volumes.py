"""Volumes as the volume server knows them: their bricks, the volfiles it hands out, and the portmap."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from glustx import volfile, volgen
from glustx.errors import OptionError
from glustx.graph import find_type
from glustx.mgmt.folder import claim
from glustx.mgmt.profile import with_counts
from glustx.mgmt.state import Ports, ServeError
from glustx.options import parse_bool
from glustx.rpc.tls import Tls
from glustx.volfile import Volfile, VolfileError, VolumeSpec

_PORT_KEYS = ("transport.socket.listen-port", "listen-port")
_SSL = "transport.socket.ssl-enabled"
_SHARED = tuple(f"transport.socket.ssl-{key}" for key in ("cert-depth", "cipher-list", "ec-curve"))
_ADDRESS_KEY = "transport.socket.bind-address"

log = logging.getLogger(__name__)


class Brick(msgspec.Struct):
    """One brick of a volume.

    Args:
        name: what clients name as remote-subvolume; the folder, where glustx made the volfile.
        port: its TCP port.
        text: its volfile.
        key: what the brick process asks GETSPEC for.
    """

    name: str
    port: int
    text: str
    key: str


class Volume(msgspec.Struct):
    """A volume and the volfile of its clients. `id` is its UUID as text, empty until a brick has told it."""

    name: str
    bricks: list[Brick]
    client_text: str
    id: str = ""


class Volumes:
    """All volumes of one volume server, and who listens where."""

    def __init__(self) -> None:
        self.by_name: dict[str, Volume] = {}
        self.portmap: dict[str, int] = {}

    def add(self, volume: Volume) -> None:
        """Serve one more volume; ServeError when its name or one of its bricks is there already."""
        if volume.name in self.by_name:
            raise ServeError(f"volume {volume.name} is named twice; give one of them another --volume")
        bricks = {brick.name for other in self.by_name.values() for brick in other.bricks}
        for brick in volume.bricks:
            if brick.name in bricks:
                raise ServeError(f"brick {brick.name} is in two volumes")
        self.by_name[volume.name] = volume

    def port_of(self, name: str) -> int | None:
        """Return the port that was given to a brick, None for one that is not here."""
        bricks = (brick for volume in self.by_name.values() for brick in volume.bricks)
        return next((brick.port for brick in bricks if brick.name == name), None)

    def spec(self, key: str) -> str | None:
        """Return the volfile that a GETSPEC key means: `VOL` or `/VOL` the clients', a brick's key the brick's."""
        volume = self.by_name.get(key.removeprefix("/"))
        if volume is not None:
            return volume.client_text
        bricks = (brick for volume in self.by_name.values() for brick in volume.bricks)
        return next((brick.text for brick in bricks if brick.key == key), None)


class Terms(msgspec.Struct, frozen=True):
    """How volumes are served.

    Args:
        address: where bricks listen.
        advertised: the host that clients are told.
        brick_port: a brick's port; 0 takes the kept one or a free one.
        allow: comma list of client addresses; None leaves it to the volfile, or else allows all.
        profile: count the fops of every translator.
        log_level: of the bricks: debug, info, warning or error.
        options: to add to the stack of a folder's brick, or replace there, by translator type.
        tls: secures bricks and their clients; None leaves it to `options` or the volfile.
    """

    address: str = "127.0.0.1"
    advertised: str = "127.0.0.1"
    brick_port: int = 0
    allow: str | None = None
    profile: bool = False
    log_level: str = "warning"
    options: volgen.Options = {}
    tls: Tls | None = None


def volume_of_folder(folder: Path, name: str, ports: Ports, terms: Terms, *, root: bool) -> Volume:
    """Return the volume of one brick in a folder.

    Args:
        folder: the brick's root; made when only its parent exists.
        name: the volume's name; the folder's own when empty.
        ports: keeps the brick's port.
        root: whether the process may set trusted xattrs.

    Raises ServeError.
    """
    folder = folder.resolve()
    name = name or folder.name
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "error")
        raise ServeError(f"cannot use {folder} as a brick: {name} ({error.strerror or error})") from None
    brick = str(folder)
    # The name and the options are judged before anything is written under that name.
    text = _made(lambda: volgen.brick_volfile(name, brick, 0, terms.address, options=terms.options))
    _check(text)
    claimed = claim(folder, root=root)
    port = ports.fix(name, brick, terms.address, terms.brick_port)
    own = {"debug/io-stats": {"log-level": terms.log_level.upper()}, "protocol/server": _tls_options(terms)}
    if claimed.namespace == "user":
        own["storage/posix"] = {"xattr-namespace": "user"}
    options = {kind: {**own.get(kind, {}), **terms.options.get(kind, {})} for kind in {*own, *terms.options}}
    text = _made(
        lambda: volgen.brick_volfile(
            name, brick, port, terms.address, volume_id=claimed.volume_id, allow=_allow(terms), options=options
        )
    )
    return _volume(name, brick, port, text, terms, claimed.volume_id)


def volume_of_volfile(path: Path, name: str, ports: Ports, terms: Terms) -> Volume:
    """Return the volume whose brick is described by a volfile.

    A root of type protocol/server is taken as it is, but for the address, and for the port and the client addresses
    when they were asked for; above any other root a protocol/server is added. The other arguments are those of
    `volume_of_folder`; `name` is the file's stem when empty.

    Raises ServeError, also for what is wrong with the volfile.
    """
    try:
        spec = volfile.load(path)
    except (OSError, VolfileError) as error:
        raise ServeError(str(error)) from None
    name = name or path.stem
    root = spec.root
    if root.type == "protocol/server":
        if len(root.subvolumes) != 1:
            raise ServeError(
                f"{path}: {root.name} offers {len(root.subvolumes)} bricks; one for each volfile can be served"
            )
        brick = root.subvolumes[0]
        options = _on_terms(path, root, terms)
        # Kept although the file pins it: by what is kept `glustx statedump` knows the bricks of a volume.
        port = ports.fix(name, brick, terms.address, terms.brick_port or _pinned_port(path, root))
        options = {key: value for key, value in options.items() if key not in _PORT_KEYS}
        server = VolumeSpec(root.name, root.type, {**options, _PORT_KEYS[0]: str(port)}, root.subvolumes)
        volumes = (*spec.volumes[:-1], server)
    else:
        brick = root.name
        port = ports.fix(name, brick, terms.address, terms.brick_port)
        options = {"transport-type": "tcp", _ADDRESS_KEY: terms.address, _PORT_KEYS[0]: str(port)}
        options[f"auth.addr.{brick}.allow"] = _allow(terms)
        options |= _tls_options(terms)
        server_name = f"{name}-server"
        if server_name in spec.by_name:
            raise ServeError(f"{path}: the name {server_name} is needed for the protocol/server that is added")
        volumes = (*spec.volumes, VolumeSpec(server_name, "protocol/server", options, (brick,)))
    return _volume(name, brick, port, volfile.format(Volfile(volumes, str(path))), terms)


def _tls_options(terms: Terms) -> dict[str, str]:
    tls = terms.tls
    if tls is None:
        return {}
    files = {"own-cert": tls.own_cert, "private-key": tls.private_key, "ca-list": tls.ca_list}
    return {_SSL: "on", **{f"transport.socket.ssl-{key}": path for key, path in files.items() if path}}


def _as_the_brick(text: str) -> dict[str, str]:
    """Return the options by which a client meets a brick that wants TLS; its files are its own machine's."""
    options = volfile.parse(text).root.options
    try:
        secured = parse_bool(options.get(_SSL, "off"))
    except ValueError:
        secured = False  # the brick will not start, and say so
    return {_SSL: "on", **{key: options[key] for key in _SHARED if key in options}} if secured else {}


def _allow(terms: Terms) -> str:
    return "*" if terms.allow is None else terms.allow


def _pinned_port(path: Path, root: VolumeSpec) -> int:
    said = next((root.options[key] for key in _PORT_KEYS if key in root.options), "0")
    if not (said.isascii() and said.isdigit() and len(said) <= 5 and int(said) <= 65535):
        raise ServeError(f"{path}: the port {said!r} of {root.name} is not a number from 0 to 65535")
    return int(said)


def _on_terms(path: Path, root: VolumeSpec, terms: Terms) -> Mapping[str, str]:
    """Return the options of a protocol/server with the address and the client addresses of `terms` put in.

    Raises ServeError when it would let clients in past them.
    """
    options = dict(root.options)
    if options.get("transport-type") == "unix" or options.get("transport.socket.listen-path"):
        raise ServeError(f"{path}: {root.name} listens on a unix socket, and clients are told a TCP port")
    said = options.get(_ADDRESS_KEY, terms.address)
    if said != terms.address:
        log.warning("%s: %s listens on %s (--address), not on %s", path, root.name, terms.address, said)
    options[_ADDRESS_KEY] = terms.address
    options |= _tls_options(terms)
    if terms.allow is not None:
        subject = options.get("auth-path") or root.subvolumes[0]
        login = f"auth.login.{subject}.allow"
        if login in options:
            # One of the two accepting is enough, so that users would come in from any address.
            raise ServeError(f"{path}: --allow cannot narrow {root.name}, whose {login} lets users in from anywhere")
        options.pop(f"auth.ip.{subject}.allow", None)
        options[f"auth.addr.{subject}.allow"] = terms.allow
    return options


def _volume(name: str, brick: str, port: int, text: str, terms: Terms, volume_id: str = "") -> Volume:
    # The name of a brick from a volfile need not be a path, which volgen insists on.
    remote = {"protocol/client": {"remote-subvolume": brick, **_as_the_brick(text)}}
    client = _made(lambda: volgen.client_volfile(name, [(terms.advertised, port, "/")], options=remote))
    if terms.profile:
        text = with_counts(text)
    return Volume(name, [Brick(brick, port, text, _key(name, terms.advertised, brick))], client, volume_id)


def _check(text: str) -> None:
    """Refuse (ServeError) a volfile with options that no brick would start with."""
    for spec in volfile.parse(text).volumes:
        kind = find_type(spec.type)
        try:
            options, _ = kind.Options.parse(spec.name, spec.options)
            kind(spec.name, options, []).check_options(options)
        except OptionError as error:
            raise ServeError(str(error)) from None


def _key(volume: str, host: str, brick: str) -> str:
    # Stock's form of a brick's key: VOL.HOST.path-with-dashes.
    return f"{volume}.{host}.{brick.strip('/').replace('/', '-')}"


def _made(make: Callable[[], str]) -> str:
    try:
        return make()
    except ValueError as error:
        raise ServeError(str(error)) from None
