"""Exit codes of the command line, and errors as one line on stderr instead of a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import typer

from glustx.errors import MountError

OK, FAILED, USAGE, MISMATCH, NO_SPACE, NOT_CONNECTED = 0, 1, 2, 3, 4, 5
INTERRUPTED, TERMINATED = 130, 143


class Failure(Exception):
    """Something that ends the command with a sentence and an exit code."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def told(*kinds: type[Exception]) -> Iterator[None]:
    """Turn a `Failure`, a volume that cannot be mounted (exit code 5), or one of `kinds` (exit code 1) into one line on
    stderr and the end of the command."""
    try:
        yield
    except Failure as failure:
        print(f"glustx: {failure}", file=sys.stderr)
        raise typer.Exit(failure.code) from None
    except MountError as error:
        print(f"glustx: {error.strerror}", file=sys.stderr)
        raise typer.Exit(NOT_CONNECTED) from None
    except BrokenPipeError:
        # Whoever read our output has gone; the flush at exit must not complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED) from None
    except kinds as error:
        print(f"glustx: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
