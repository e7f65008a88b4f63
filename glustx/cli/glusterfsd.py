"""`glustx glusterfsd`: a brick in the place of stock's glusterfsd, started by glusterd."""

from __future__ import annotations

import typer


def glusterfsd(context: typer.Context) -> None:
    """Serve a brick by the command line that stock's glusterd uses (docs/glusterd.md)."""
    from glustx.mgmt.glusterfsd import run

    raise typer.Exit(run(context.args))
