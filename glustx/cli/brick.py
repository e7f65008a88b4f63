"""`glustx brick`: the process of one brick, started by `glustx serve` or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from glustx.cli.failures import USAGE, Failure, told
from glustx.cli.security import chosen
from glustx.cli.serve import LogFormat, LogLevel, set_up_logs
from glustx.mgmt.state import ServeError
from glustx.rpc.channel import Address
from glustx.rpc.tls import settled


def brick(
    volfile: Annotated[
        Path | None, typer.Option("--volfile", "-f", help="Volfile with a protocol/server or an export/iscsi on top.")
    ] = None,
    server: Annotated[str, typer.Option(help="HOST:PORT of the volume server to sign in at.")] = "",
    volfile_id: Annotated[str, typer.Option(help="Which volfile to ask the volume server for.")] = "",
    volume: Annotated[str, typer.Option(help="Name of the volume, for messages.")] = "",
    control: Annotated[Path | None, typer.Option(help="Path of the control socket.")] = None,
    supervised: Annotated[bool, typer.Option("--supervised", help="End when stdin does.")] = False,
    log_level: LogLevel = "warning",
    log_format: LogFormat = "text",
) -> None:
    """Serve one brick until SIGTERM."""
    from glustx.mgmt.brick import BrickConfig, run_brick

    with told(ServeError):
        set_up_logs(log_level, log_format)
        if volfile is None and not (server and volfile_id):
            raise Failure("a brick needs --volfile, or --server and --volfile-id", USAGE)
        manager = msgspec.structs.replace(_address(server), tls=settled(chosen())) if server else None
        run_brick(BrickConfig(volfile, manager, volfile_id, control, supervised), volume)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Failure(f"--server {text!r} is not HOST:PORT", USAGE)
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
