"""Making a folder the brick of a volume, refused as whoever serves it is told."""

from __future__ import annotations

from pathlib import Path

from glustx.errors import GraphError
from glustx.mgmt.state import ServeError
from glustx.xlators.storage import posix_folder


def claim(folder: Path, *, root: bool) -> posix_folder.Claimed:
    """Make a folder a brick, or find out what it is already (see `posix_folder.claim`). Raises ServeError."""
    try:
        return posix_folder.claim(folder, root=root)
    except GraphError as error:
        raise ServeError(str(error)) from None
