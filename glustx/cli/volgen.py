"""`glustx volgen`: prints the volfiles that glustx serves and runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from glustx import volgen
from glustx.cli.failures import USAGE, Failure, told
from glustx.cli.option_words import OptionWords, options_of

app = typer.Typer(help="Print a volfile.", no_args_is_help=True)

VolumeName = Annotated[str, typer.Argument(help="Name of the volume.")]
Folder = Annotated[Path, typer.Argument(help="Root of the brick.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")]


@app.command()
def client(
    volume: VolumeName,
    bricks: Annotated[
        list[str], typer.Argument(help="HOST[:PORT]:/PATH of each brick; without PORT clients ask 24007.")
    ],
    option: OptionWords = None,
    output: Output = None,
) -> None:
    """The client stack, as stock's management daemon generates it."""
    with told():
        _print(
            lambda: volgen.client_volfile(volume, [_brick(word) for word in bricks], options=options_of(option)), output
        )


@app.command()
def brick(
    volume: VolumeName,
    folder: Folder,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 49152,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    allow: Annotated[str, typer.Option(help="Client addresses that may use the brick, by comma.")] = "*",
    option: OptionWords = None,
    output: Output = None,
) -> None:
    """The stack of a brick behind a port."""
    with told():
        folder = folder.absolute()
        _print(
            lambda: volgen.brick_volfile(volume, str(folder), port, address, allow=allow, options=options_of(option)),
            output,
        )


@app.command()
def embedded(volume: VolumeName, folder: Folder, option: OptionWords = None, output: Output = None) -> None:
    """The stack of a brick that runs inside the process that uses it."""
    with told():
        folder = folder.absolute()
        _print(lambda: volgen.embedded_volfile(volume, str(folder), options=options_of(option)), output)


def _brick(word: str) -> tuple[str, int | None, str]:
    place, slash, path = word.partition("/")
    host, colon, port = place.removesuffix(":").rpartition(":")
    if not colon or not port.isdigit():
        host, port = place.removesuffix(":"), ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or not slash or not place.endswith(":"):
        raise Failure(f"{word!r} is not HOST:/PATH or HOST:PORT:/PATH", USAGE)
    return host, int(port) if port else None, slash + path


def _print(make: Callable[[], str], output: Path | None) -> None:
    try:
        text = make()
    except ValueError as error:
        raise Failure(str(error), USAGE) from None
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, "utf-8", "surrogateescape")
    except OSError as error:
        raise Failure(f"cannot write {output}: {error.strerror or error}") from None
