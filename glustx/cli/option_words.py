"""The --option words of the command line: options for translators, by type."""

from __future__ import annotations

from typing import Annotated

import typer

from glustx.cli.failures import USAGE, Failure

OptionWords = Annotated[
    list[str] | None,
    typer.Option("--option", "-O", help="TYPE:KEY=VALUE, such as storage/posix:reserve=5%; repeatable."),
]


def options_of(words: list[str] | None) -> dict[str, dict[str, str]]:
    """Return options by type and key; Failure (usage) for a word that is none."""
    options: dict[str, dict[str, str]] = {}
    for word in words or []:
        type_, colon, rest = word.partition(":")
        key, equals, value = rest.partition("=")
        if not (colon and equals and type_ and key):
            raise Failure(f"--option {word!r} is not TYPE:KEY=VALUE", USAGE)
        options.setdefault(type_, {})[key] = value
    return options
