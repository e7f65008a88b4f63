"""Volfiles: GlusterFS's text form of a graph, parsed into a tree of volumes and printed back. Pure but for `load`."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, NoReturn

import msgspec

MAX_TEXT = 4 << 20
MAX_VOLUMES = 10_000
MAX_WARNINGS = 100
KEYWORDS = ("volume", "type", "option", "subvolumes", "end-volume")

Position = tuple[int, int]
"""Line and column, both from 1; (0, 0) for what was not read from text."""


class VolfileError(ValueError):
    """A volfile that is refused; nothing of it may be started.

    Args:
        reason: one sentence without the position.
        file: path of the volfile, or what stands for it when the text came from elsewhere.
        line, column: position of `found`, from 1; 0 when the fault has no place.
        found: the word at that position.
        nearest: the valid name closest to `found`, empty when nothing is close.
    """

    def __init__(
        self, reason: str, file: str = "", line: int = 0, column: int = 0, found: str = "", nearest: str = ""
    ) -> None:
        super().__init__(reason, file, line, column, found, nearest)
        self.reason = reason
        self.file = file
        self.line = line
        self.column = column
        self.found = found
        self.nearest = nearest

    def __str__(self) -> str:
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{_place(self.file, self.line, self.column)}{self.reason}{hint}"


class VolumeSpec(msgspec.Struct, frozen=True, eq=False):
    """One `volume` ... `end-volume` block; equal to another when they say the same, wherever they stand.

    Args:
        name: the volume's name, which is the translator's in the graph.
        type: category/name, such as storage/posix.
        options: keys and values as written; what they mean is up to the translator.
        subvolumes: names of the volumes below, all defined before this one.
        line, column: where `name` stands.
        type_position, subvolume_positions, option_positions, value_positions: where the other words stand.
    """

    name: str
    type: str
    options: dict[str, str] = {}
    subvolumes: tuple[str, ...] = ()
    line: int = 0
    column: int = 0
    type_position: Position = (0, 0)
    subvolume_positions: tuple[Position, ...] = ()
    option_positions: dict[str, Position] = {}
    value_positions: dict[str, Position] = {}

    def _says(self) -> tuple[object, ...]:
        return self.name, self.type, self.options, self.subvolumes

    def __eq__(self, other: object) -> bool:
        return self._says() == other._says() if isinstance(other, VolumeSpec) else NotImplemented

    def __repr__(self) -> str:
        # A repr ends in logs, so values, which may be passwords, stay out of it.
        return f"VolumeSpec({self.name!r}, {self.type!r}, options={list(self.options)}, subvolumes={self.subvolumes})"


class Volfile(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The volumes of one volfile in the order of definition; equal to another when all volumes are.

    Args:
        volumes: at least one, each below those that name it as a subvolume.
        source: path of the file, or what stands for it in messages.
        warnings: what was passed over, one sentence with position each, at most `MAX_WARNINGS`.
    """

    volumes: tuple[VolumeSpec, ...]
    source: str = "<volfile>"
    warnings: tuple[str, ...] = ()

    @property
    def root(self) -> VolumeSpec:
        """The top of the graph: the last volume defined, as in stock."""
        return self.volumes[-1]

    @cached_property
    def by_name(self) -> dict[str, VolumeSpec]:
        """The volumes by name."""
        return {volume.name: volume for volume in self.volumes}

    def error(self, reason: str, found: str, position: Position, candidates: Iterable[str] = ()) -> VolfileError:
        """The error to raise about the word `found` at `position` of this file, with the nearest of `candidates`."""
        return VolfileError(reason, self.source, *position, found, nearest(found, candidates))

    def __eq__(self, other: object) -> bool:
        return self.volumes == other.volumes if isinstance(other, Volfile) else NotImplemented


def nearest(word: str, candidates: Iterable[str]) -> str:
    """The candidate most like `word`, letter case aside, or an empty string."""
    if len(word) > 255:
        # The comparison is quadratic, and the text may come from the network.
        return ""
    lowered = {name.lower(): name for name in candidates if len(name) <= 255}
    close = difflib.get_close_matches(word.lower(), lowered, n=1)
    return lowered[close[0]] if close else ""


def load(path: str | os.PathLike[str], *, strict: bool = True) -> Volfile:
    """Read and parse one file.

    Raises:
        OSError: the file cannot be read.
        VolfileError: see `parse`.
    """
    with open(path, "rb") as file:
        return parse(file.read(MAX_TEXT + 1), os.fspath(path), strict=strict)


def parse(text: str | bytes, source: str = "<volfile>", *, strict: bool = True) -> Volfile:
    """Parse a volfile by stock's grammar (libglusterfs graph.l and graph.y, 10.3).

    Stock only logs, and passes over, a subvolume not defined earlier, a volume below itself, and an empty word where
    a key, value or subvolume belongs: `strict` (a file of ours) refuses these, else (text from GETSPEC) each is a
    warning. An option key given twice is a warning in both modes, and the last value counts. After `MAX_WARNINGS` the
    file is refused. Refused in both modes though stock lets them pass: backticks, whose text it runs in a shell, and
    what its scanner drops without a word (a backslash outside quotes, a line break inside, NUL, a quote left open).
    A volume with a type and nothing else, a syntax error in stock, is taken.

    Args:
        text: the volfile, at most `MAX_TEXT` long; bytes are taken as UTF-8, others kept by surrogateescape.
        source: the file's path, or what stands for it in messages.
        strict: refuse what stock only logs.

    Raises:
        VolfileError: with the position, what was found there, and the nearest valid name.
    """
    if len(text) > MAX_TEXT:
        raise VolfileError(f"the text is over {MAX_TEXT >> 20} MiB long", source)
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    _refuse_unsafe(text, source)
    parser = _Parser(text, source, strict)
    volumes = tuple(parser.volumes())
    return Volfile(volumes, source, tuple(parser.warnings))


def format(volfile: Volfile) -> str:
    """The text of `volfile` in the layout of stock's own printer, words quoted only where they must be.

    Raises:
        VolfileError: a word that no volfile can hold (empty, or with a line break or NUL in it).
    """
    return "\n".join(_format_volume(volume, volfile.source) for volume in volfile.volumes)


def _format_volume(volume: VolumeSpec, source: str) -> str:
    def quote(word: str, what: str = "a name") -> str:
        if not word or "\n" in word or "\0" in word:
            # The word itself is not shown: it may be a password.
            raise VolfileError(f"volume {volume.name!r}: {what} is empty or has a line break or NUL in it", source)
        if _PLAIN.fullmatch(word) and word not in _KEYWORD:
            return word
        return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'

    lines = [f"volume {quote(volume.name)}", f"    type {quote(volume.type)}"]
    for key, value in volume.options.items():
        lines.append(f"    option {quote(key, 'an option key')} {quote(value, f'the value of option {key}')}")
    if volume.subvolumes:
        lines.append("    subvolumes " + " ".join(map(quote, volume.subvolumes)))
    return "\n".join([*lines, "end-volume", ""])


def _place(file: str, line: int, column: int) -> str:
    parts = [file, str(line), str(column)] if line else [file]
    return ":".join(parts) + ": " if file or line else ""


# What a word may be without quotes; more narrow than the scanner's own rule by the leading `#` and the backtick.
_PLAIN = re.compile(r'[^ \t\r\n"\\`#][^ \t\r\n"\\`]*')
_KEYWORD = {**{word: word for word in KEYWORDS}, "subvolumeS": "subvolumes"}
# Each alternative starts with a character of its own, so a match never backtracks and a scan is linear.
_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r\n]+)
      | (?P<comment>\#[^\n]*)
      | "(?P<quoted>[^"\\\n]*(?:\\[^\n][^"\\\n]*)*)"
      | (?P<plain>[^ \t\r\n"\\]+)""",
    re.VERBOSE,
)
# Stock's preprocessor sees backticks before the scanner sees comments or quotes; a backslash takes their power.
_ESCAPE_OR_UNSAFE = re.compile(r"\\[^\0]|([`\0])", re.DOTALL)


def _refuse_unsafe(text: str, source: str) -> None:
    if "`" not in text and "\0" not in text:
        return
    for match in _ESCAPE_OR_UNSAFE.finditer(text):
        if match[1]:
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            if match[1] == "\0":
                raise VolfileError("found a NUL byte, so this is no volfile", source, line, column, "\0")
            reason = (
                "found a backtick; a volfile's commands are never run: write the value itself, or \\` inside quotes"
            )
            raise VolfileError(reason, source, line, column, "`")


class _Token(NamedTuple):
    """`kind` is the keyword, "word", or "end" after the last one."""

    kind: str
    word: str
    line: int
    column: int

    @property
    def position(self) -> Position:
        return self.line, self.column

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end of the file"
        return repr(self.word if len(self.word) <= 80 else self.word[:80] + "...")


def _scan(text: str, source: str) -> Iterator[_Token]:
    line, line_start, at = 1, 0, 0
    while at < len(text):
        column = at - line_start + 1
        match = _TOKEN.match(text, at)
        if match is None:
            if text[at] == "\\":
                reason = "found a backslash outside quotes; quote the whole word and double the backslash"
            else:
                reason = "found a quote that is not closed on its line"
            raise VolfileError(reason, source, line, column, text[at])
        word = match[0]
        at = match.end()
        if match.lastgroup == "blank":
            if newlines := word.count("\n"):
                line += newlines
                line_start = text.rindex("\n", 0, at) + 1
        elif match.lastgroup == "plain":
            yield _Token(_KEYWORD.get(word, "word"), word, line, column)
        elif match.lastgroup == "quoted":
            yield _Token("word", re.sub(r"\\(.)", r"\1", match["quoted"], flags=re.DOTALL), line, column)
    yield _Token("end", "", line, len(text) - line_start + 1)


class _Parser:
    """Recursive descent with one token of lookahead, `self.token`."""

    def __init__(self, text: str, source: str, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.warnings: list[str] = []
        self.names: dict[str, Position] = {}
        self.tokens = _scan(text, source)
        self.token = next(self.tokens)

    def take(self) -> _Token:
        token = self.token
        if token.kind != "end":
            self.token = next(self.tokens)
        return token

    def fail(self, reason: str, token: _Token, candidates: Iterable[str] = ()) -> NoReturn:
        raise VolfileError(reason, self.source, token.line, token.column, token.word, nearest(token.word, candidates))

    def warn(self, reason: str, token: _Token) -> None:
        if len(self.warnings) == MAX_WARNINGS:
            self.fail(f"{reason}; {MAX_WARNINGS} such faults came before, so the whole file is refused", token)
        self.warnings.append(_place(self.source, token.line, token.column) + reason)

    def pass_over(self, reason: str, consequence: str, token: _Token, candidates: Iterable[str] = ()) -> None:
        """What stock only logs: an error in a file of ours, a warning in text from elsewhere."""
        if self.strict:
            self.fail(reason, token, candidates)
        self.warn(f"{reason}; {consequence}", token)

    def word(self, need: str) -> _Token:
        if self.token.kind != "word":
            quoting = "" if self.token.kind == "end" else " (a keyword used as a word must be quoted)"
            self.fail(f"{need}, found {self.token}{quoting}", self.token)
        return self.take()

    def volumes(self) -> Iterator[VolumeSpec]:
        while self.token.kind == "volume":
            if len(self.names) >= MAX_VOLUMES:
                self.fail(f"the file defines more than {MAX_VOLUMES} volumes", self.token)
            yield self.volume()
        if self.token.kind != "end":
            self.fail(f"a volume starts with 'volume', found {self.token}", self.token, ["volume"])
        if not self.names:
            self.fail("the file defines no volume", self.token)

    def volume(self) -> VolumeSpec:
        self.take()
        name = self.word("'volume' needs a name")
        if not name.word:
            self.fail("a volume's name cannot be empty", name)
        if name.word in self.names:
            line, column = self.names[name.word]
            self.fail(f"volume {name.word!r} is already defined at line {line}, column {column}", name)
        self.names[name.word] = name.position
        type_ = self.type_line(name.word)
        options: dict[str, tuple[_Token, _Token]] = {}
        subvolumes: list[_Token] | None = None
        while self.token.kind != "end-volume":
            if self.token.kind == "option":
                self.option(name.word, options)
            elif self.token.kind == "subvolumes" and subvolumes is None:
                subvolumes = self.subvolumes(name.word)
            else:
                self.misplaced(name.word, subvolumes is None)
        self.take()
        below = subvolumes or []
        return VolumeSpec(
            name=name.word,
            type=type_.word,
            options={key: value.word for key, (_, value) in options.items()},
            subvolumes=tuple(token.word for token in below),
            line=name.line,
            column=name.column,
            type_position=type_.position,
            subvolume_positions=tuple(token.position for token in below),
            option_positions={key: token.position for key, (token, _) in options.items()},
            value_positions={key: value.position for key, (_, value) in options.items()},
        )

    def type_line(self, volume: str) -> _Token:
        if self.token.kind != "type":
            self.fail(f"volume {volume!r} must begin with its 'type', found {self.token}", self.token, ["type"])
        self.take()
        type_ = self.word(f"volume {volume!r}: 'type' needs a category/name")
        if not type_.word:
            self.fail(f"volume {volume!r}: the type cannot be empty", type_)
        return type_

    def option(self, volume: str, options: dict[str, tuple[_Token, _Token]]) -> None:
        self.take()
        key = self.word(f"volume {volume!r}: 'option' needs a key and a value")
        value = self.word(f"volume {volume!r}: option {key} needs a value")
        if not key.word or not value.word:
            what = f"option {key} has an empty value" if key.word else "an option has an empty key"
            self.pass_over(f"volume {volume!r}: {what}", "it is left out", value if key.word else key)
            return
        if key.word in options:
            self.warn(f"volume {volume!r}: option {key} is given twice; the last value counts", key)
        options[key.word] = key, value

    def subvolumes(self, volume: str) -> list[_Token]:
        self.take()
        first = self.word(f"volume {volume!r}: 'subvolumes' needs at least one name")
        tokens = [first] if self.is_defined(first, volume) else []
        while self.token.kind == "word":
            if self.is_defined(token := self.take(), volume):
                tokens.append(token)
        return tokens

    def is_defined(self, token: _Token, volume: str) -> bool:
        if token.word == volume:
            self.pass_over(f"volume {volume!r} names itself as a subvolume", "it is left out", token)
        elif token.word not in self.names:
            others = (name for name in self.names if name != volume)
            reason = f"volume {volume!r}: subvolume {token} is not defined before it"
            self.pass_over(reason, "it is left out", token, others)
        else:
            return True
        return False

    def misplaced(self, volume: str, subvolumes_allowed: bool) -> NoReturn:
        token = self.token
        if token.kind in ("volume", "end"):
            self.fail(f"volume {volume!r} has no 'end-volume' before {token}", token)
        if token.kind in ("type", "subvolumes"):
            self.fail(f"volume {volume!r} has a second {token}", token)
        allowed = ["option", "subvolumes", "end-volume"] if subvolumes_allowed else ["option", "end-volume"]
        reason = (
            f"volume {volume!r}: found {token} instead of {' or '.join(allowed)} (a value with blanks needs quotes)"
        )
        self.fail(reason, token, allowed)
