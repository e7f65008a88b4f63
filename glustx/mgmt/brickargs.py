"""The command line that stock's management daemon starts a brick with, and what it changes in the brick's volfile."""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from glustx.mgmt.state import ServeError
from glustx.options import parse_bool
from glustx.rpc.channel import Address
from glustx.rpc.programs import GLUSTERD_PORT
from glustx.rpc.tls import settled
from glustx.volfile import Volfile

log = logging.getLogger("glustx.brick")

BRICK = "brick"
_SERVER = "protocol/server"
_BIND = "transport.socket.bind-address"

# Long name to short name: options that take a value, and flags.
_VALUED = {
    "volfile-server": "s",
    "volfile-server-port": "",
    "volfile-server-transport": "",
    "volfile-id": "",
    "volfile": "f",
    "spec-file": "",
    "pid-file": "p",
    "socket-file": "S",
    "brick-name": "",
    "brick-port": "",
    "process-name": "",
    "log-file": "l",
    "log-level": "L",
    "xlator-option": "",
    "secure-mgmt": "",
}
_FLAGS = {"no-daemon": "N", "debug": "", "localtime-logging": ""}
# What stock has and this process does without: nothing that a user relies on changes.
_IDLE = {"logger", "log-format", "log-buf-size", "log-flush-timeout", "run-id", "io-engine", "oom-score-adj"}
_IDLE_FLAGS = {"brick-mux", "global-threading", "mem-accounting", "no-mem-accounting"}
_SHORT = {short: long for long, short in {**_VALUED, **_FLAGS}.items() if short}

_LEVELS = {
    "TRACE": "debug",
    "DEBUG": "debug",
    "INFO": "info",
    "WARNING": "warning",
    "ERROR": "error",
    "CRITICAL": "critical",
    "NONE": "critical",
}


class XlatorOption(msgspec.Struct, frozen=True):
    """`--xlator-option VOLUMES.KEY=VALUE`: an option for each volume whose name fits the pattern `VOLUMES`."""

    volumes: str
    key: str
    value: str

    @classmethod
    def parse(cls, text: str) -> XlatorOption:
        """Read one; ServeError when it has no dot, no `=`, or nothing behind it."""
        where, equals, value = text.partition("=")
        volumes, dot, key = where.partition(".")
        if not (equals and value and dot and volumes and key):
            raise ServeError(f"--xlator-option {text!r} is not VOLUME.KEY=VALUE")
        if volumes == "transport":  # not a volume's name but the first word of the key
            return cls("", where, value)
        return cls(volumes, key, value)


class BrickArguments(msgspec.Struct, frozen=True):
    """What the command line says.

    Args:
        server: the management daemon, or None with `volfile`.
        volfile_id: what to ask it for, `VOLUME.HOST.path-with-dashes`.
        volfile: a file to read instead.
        pid_file, socket, log_file: where these go, or None.
        brick: the brick's path, its name at the portmap.
        port: where to listen when no volfile and no --xlator-option says so; 0 for any port.
        level: least level of the log, as `glustx.logs` has it.
        foreground: stay in the foreground.
        local_time: log in local time instead of UTC.
        options: of --xlator-option.
        notes: sentences about words that were passed over.
    """

    server: Address | None = None
    volfile_id: str = ""
    volfile: Path | None = None
    pid_file: Path | None = None
    socket: Path | None = None
    log_file: Path | None = None
    brick: str = ""
    port: int = 0
    level: str = "info"
    foreground: bool = False
    local_time: bool = False
    options: tuple[XlatorOption, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def volume(self) -> str:
        """The volume's name, which comes first in the volfile id."""
        return self.volfile_id.rpartition("/")[2].partition(".")[0]

    @property
    def client_volfile_id(self) -> str:
        """What to ask for the volfile of the volume's clients."""
        folder = self.volfile_id.rpartition("/")[0]
        return folder or self.volume  # the bricks of a snapshot lie in its folder


def parse_arguments(words: Sequence[str]) -> BrickArguments:
    """Read the command line; ServeError for one that no brick can be started with.

    Every option may be written `--key=value` or `--key value`, short ones `-k value` or `-kvalue`. Unknown ones are
    noted and passed over, for a newer daemon may have more.
    """
    given: dict[str, str] = {}
    options: list[XlatorOption] = []
    notes: list[str] = []
    for key, value in _options(words, notes):
        if key == "xlator-option":
            options.append(XlatorOption.parse(value))
        else:
            given[key] = value
    process = given.get("process-name", BRICK)
    if process != BRICK:
        raise ServeError(f"--process-name {process}: only bricks are served")
    level = given.get("log-level", "INFO").upper()
    if level not in _LEVELS:
        raise ServeError(f"--log-level {level} is none of {', '.join(_LEVELS)}")
    debug = "debug" in given
    arguments = BrickArguments(
        _server(given),
        given.get("volfile-id", ""),
        _path(given, "volfile") or _path(given, "spec-file"),
        _path(given, "pid-file"),
        _path(given, "socket-file"),
        None if debug else _path(given, "log-file"),
        given.get("brick-name", ""),
        # With two transports the ports stand side by side, TCP's first.
        _number("brick-port", given.get("brick-port", "0").partition(",")[0]),
        "debug" if debug else _LEVELS[level],
        debug or "no-daemon" in given,
        "localtime-logging" in given,
        tuple(options),
        tuple(notes),
    )
    if arguments.volfile is None and not (arguments.server and arguments.volfile_id):
        raise ServeError("a brick needs -s HOST and --volfile-id KEY, or -f VOLFILE")
    return arguments


def _options(words: Sequence[str], notes: list[str]) -> Iterator[tuple[str, str]]:
    todo = list(reversed(words))
    while todo:
        word = todo.pop()
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1 and word[1] in _SHORT:
            key, value = _SHORT[word[1]], word[2:]
            equals = value
            if key in _FLAGS and value:  # -N and others behind it
                todo.append(f"-{value}")
        else:
            notes.append(f"{word} on the command line is passed over")
            continue
        if key in _FLAGS:
            yield key, ""
        elif key in _VALUED:
            if not equals and not todo:
                raise ServeError(f"{word} needs a value")
            yield key, value if equals else todo.pop()
        elif key in _IDLE_FLAGS:
            notes.append(f"{word} has no effect")
        else:
            # Its value, if it has one, is the next word.
            if not equals and todo and not todo[-1].startswith("-"):
                word = f"{word} {todo.pop()}"
            notes.append(f"{word} {'has no effect' if key in _IDLE else 'is unknown and has no effect'}")


def _server(given: dict[str, str]) -> Address | None:
    host = given.get("volfile-server", "")
    if not host:
        return None
    if given.get("volfile-server-transport") == "unix":
        return Address(path=host)
    port = _number("volfile-server-port", given.get("volfile-server-port", str(GLUSTERD_PORT)))
    try:
        secure = parse_bool(given["secure-mgmt"]) if "secure-mgmt" in given else None
    except ValueError as error:
        raise ServeError(f"--secure-mgmt: {error}") from None
    return Address(host, port, tls=settled(secure))


def _path(given: dict[str, str], key: str) -> Path | None:
    # Absolute, because a daemon goes to the root folder.
    return Path(given[key]).absolute() if given.get(key) else None


def _number(key: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise ServeError(f"--{key} {text!r} is no port")
    return int(text)


def amend(spec: Volfile, arguments: BrickArguments) -> Volfile:
    """Return a brick's volfile with what the command line says, and listening where stock would.

    A volfile of stock's that names no address means all of them, where glustx alone would take the loopback.
    """
    volumes = []
    for volume in spec.volumes:
        options = dict(volume.options)
        server = volume.type == _SERVER
        for given in arguments.options:
            if (server and not given.volumes) or fnmatch.fnmatchcase(volume.name, given.volumes):
                options[given.key] = given.value
        if server:
            if arguments.port and not any(key.endswith("listen-port") for key in options):
                options["transport.socket.listen-port"] = str(arguments.port)
            if not options.get(_BIND):
                options[_BIND] = "::" if options.get("transport.address-family") == "inet6" else "0.0.0.0"
        volumes.append(msgspec.structs.replace(volume, options=options))
    return Volfile(tuple(volumes), spec.source, spec.warnings)
