"""The command `glustx`: its subcommands, and what all of them share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import glustx
from glustx.cli import brick, demo, fs, glusterfsd, provision, security, serve, target, volgen

app = typer.Typer(
    name="glustx",
    help="A GlusterFS-style translator stack that speaks stock GlusterFS's wire and disk formats.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("statedump")(serve.statedump)
app.command("brick", hidden=True)(brick.brick)
app.command(
    "glusterfsd",
    # glusterd's command line is not ours to judge.
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": ["--help"]},
)(glusterfsd.glusterfsd)
app.command("demo")(demo.demo)
app.add_typer(fs.app, name="fs")
app.add_typer(provision.app, name="provision")
app.add_typer(target.app, name="target")
app.add_typer(volgen.app, name="volgen")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"glustx {glustx.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    tls: security.Wanted = None,
    tls_cert: security.Cert = "",
    tls_key: security.Key = "",
    tls_ca: security.Ca = "",
) -> None:
    """A GlusterFS-style translator stack that speaks stock GlusterFS's wire and disk formats."""
    security.choose(tls, tls_cert, tls_key, tls_ca)


def main() -> None:
    """Run the command line of this process; never returns."""
    if hasattr(sys.stdout, "reconfigure"):
        # A path that is not UTF-8 must not keep a report from being printed.
        sys.stdout.reconfigure(errors="surrogateescape")
        sys.stderr.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()
