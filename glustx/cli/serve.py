"""`glustx serve` and `glustx statedump`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glustx import logs
from glustx.cli.failures import FAILED, NOT_CONNECTED, USAGE, Failure, told
from glustx.cli.option_words import OptionWords, options_of
from glustx.cli.security import chosen, words
from glustx.mgmt.state import Folders, Ports, ServeError, folders

if TYPE_CHECKING:
    from glustx.mgmt.serve import Ready
    from glustx.mgmt.volumes import Volume

_PORT = 24007

StateDir = Annotated[
    Path | None,
    typer.Option(envvar="GLUSTX_STATE_DIR", help="Folder for ports and sockets, instead of /var/lib or XDG folders."),
]
LogLevel = Annotated[str, typer.Option(help=f"What is logged on stderr: {', '.join(logs.LEVELS)}.")]
LogFormat = Annotated[str, typer.Option(help=f"How: {', '.join(logs.FORMATS)}.")]


def set_up_logs(level: str, form: str) -> None:
    """Set up logging, or refuse words that are not known."""
    if level not in logs.LEVELS:
        raise Failure(f"--log-level {level} is none of {', '.join(logs.LEVELS)}", USAGE)
    if form not in logs.FORMATS:
        raise Failure(f"--log-format {form} is none of {', '.join(logs.FORMATS)}", USAGE)
    logs.set_up(level, form)


def is_root() -> bool:
    """Tell whether this process is root; False where there are no user ids."""
    return os.geteuid() == 0 if hasattr(os, "geteuid") else False


def places(state_dir: Path | None) -> Folders:
    """Return the folders of this process's user."""
    return folders(state_dir, os.environ, is_root())


def serve(
    sources: Annotated[list[Path], typer.Argument(help="Brick folders, or volfiles of bricks; a volume of each.")],
    volume: Annotated[str, typer.Option(help="Name of the volume; the folder's or file's own by default.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the volume server; 0 takes a free one.")] = (
        _PORT
    ),
    address: Annotated[str, typer.Option(help="Address to listen on, for the volume server and the bricks.")] = (
        "127.0.0.1"
    ),
    host: Annotated[
        str, typer.Option(help="Host name or address that clients are told; by default the one listened on.")
    ] = "",
    brick_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the first brick, the others follow; 0 keeps or finds one.")
    ] = 0,
    allow: Annotated[
        str | None,
        typer.Option(help="Client addresses that may use the bricks, by comma; all by default, or as a volfile says."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Count the fops of every translator, for `glustx statedump`.")
    ] = False,
    option: OptionWords = None,
    restart: Annotated[bool, typer.Option("--restart", help="Start a brick again that ends by itself.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the ready line as JSON.")] = False,
    state_dir: StateDir = None,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
) -> None:
    """Serve volumes until SIGTERM or Ctrl-C.

    One process hands out volfiles and ports, one process serves each brick; stock clients mount by
    `mount -t glusterfs HOST:/VOLUME`, QEMU and glustx open gluster://HOST/VOLUME/PATH. One line on stdout says when
    clients may come.
    """
    import socket

    from glustx.mgmt.serve import serve as run
    from glustx.mgmt.volumes import Terms, volume_of_folder, volume_of_volfile
    from glustx.rpc.channel import Address
    from glustx.rpc.tls import settled

    with told(ServeError):
        set_up_logs(log_level, log_format)
        if volume and len(sources) > 1:
            raise Failure("--volume names one volume, and a volume of several bricks cannot be served yet", USAGE)
        if not 0 <= brick_port + len(sources) - 1 <= 65535:
            raise Failure(f"--brick-port {brick_port} leaves no port for the last brick", USAGE)
        options = options_of(option)
        # The machine's secure-access is about volume servers, as in stock; the command line is about bricks as well.
        tls = settled(chosen()) if chosen() else None
        where = places(state_dir)
        # Clients on this machine and elsewhere all know it by its name when it listens everywhere.
        told_host = host or (socket.gethostname() if address in ("0.0.0.0", "::") else address)
        ports = Ports(where.state)
        volumes: list[Volume] = []
        for index, source in enumerate(sources):
            # os.path, unlike Path, finds nothing where it may not look.
            if source.suffix == ".vol" and not os.path.exists(source):
                raise Failure(f"volfile {source} does not exist", USAGE)
            nth = brick_port + index if brick_port else 0
            terms = Terms(address, told_host, nth, allow, profile, log_level, options, tls)
            if os.path.isfile(source):
                if options:
                    raise Failure(f"--option is for bricks of a folder; put it into {source}", USAGE)
                made = volume_of_volfile(source, volume, ports, terms)
            else:
                made = volume_of_folder(source, volume, ports, terms, root=is_root())
            volumes.append(made)
        run(
            volumes,
            Address(address, port, tls=settled(chosen())),
            told_host,
            where,
            _print_json if json else _print_text,
            restart=restart,
            log_options=["--log-level", log_level, "--log-format", log_format],
            tls_options=words(settled(chosen())),
        )


def _print_json(ready: Ready) -> None:
    import msgspec

    print(msgspec.json.encode(ready).decode(), flush=True)


def _print_text(ready: Ready) -> None:
    port = "" if ready.port == _PORT else f":{ready.port}"
    host = f"[{ready.host}]" if ":" in ready.host else ready.host
    urls = ", ".join(f"gluster://{host}{port}/{volume.name}" for volume in ready.volumes)
    bricks = ", ".join(f"{brick.name} on {brick.port}" for volume in ready.volumes for brick in volume.bricks)
    print(f"serving {urls} (pid {ready.pid}; bricks: {bricks})", flush=True)


def statedump(
    volume: Annotated[str, typer.Argument(help="Name of the volume.")],
    state_dir: StateDir = None,
) -> None:
    """Print what every translator of a volume's running bricks knows of itself."""
    import asyncio

    from glustx.mgmt import control

    with told(ServeError):
        where = places(state_dir)
        bricks = Ports(where.state).bricks(volume)
        if not bricks:
            raise Failure(f"no volume {volume} has been served with its state in {where.state}")
        # Bricks of former runs are kept too, so that some may be down; but one has to be up.
        up = [(brick, path) for brick in bricks if (path := where.socket(volume, brick)).exists()]
        if not up:
            raise Failure(
                f"no brick of volume {volume} runs ({', '.join(bricks)}); there is no socket in {where.run}",
                NOT_CONNECTED,
            )
        for brick, path in up:
            try:
                print(f"# {brick}\n{asyncio.run(control.ask_statedump(path))}")
            except (OSError, ValueError) as error:
                code = NOT_CONNECTED if isinstance(error, OSError) else FAILED
                raise Failure(f"brick {brick} of {volume} does not answer at {path}: {error}", code) from None
