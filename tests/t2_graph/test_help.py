"""`--help` of every command: it is shown, with a sentence for the command and for each argument and option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from glustx.cli.main import app


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, *path, name)


ALL = list(commands(get_command(app)))


@pytest.mark.parametrize(("path", "command"), ALL, ids=["-".join(("glustx", *path)) for path, _ in ALL])
def test_help_is_shown(path: tuple[str, ...], command: Any) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0, result.exception
    shown = re.sub(r"[\s│]+", " ", result.stdout)
    assert command.help.split("\n")[0] in shown
    for param in command.params:
        assert param.hidden or param.help, f"{param.name} has no help"
        if not param.hidden and len(param.help) < 80:
            # Words in brackets would be taken for markup and left out.
            assert param.help in shown, param.help


def test_there_are_commands() -> None:
    assert len(ALL) > 20
