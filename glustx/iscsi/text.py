"""key=value texts of login and text PDUs (RFC 7143 6): reading, writing, and texts that take several PDUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

KEY_LIMIT = 63
VALUE_LIMIT = 8192
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9.\-+@_#]*")


class TextError(ValueError):
    """A text that is none: it names the key where it can."""


def parse(data: bytes) -> list[tuple[str, str]]:
    """Return the (key, value) pairs of a whole text in order; TextError for what breaks RFC 7143 6.1.

    Names may be UTF-8; a missing last NUL and padding NULs are tolerated, as initiators in the field send them.
    """
    pairs = []
    for raw in data.split(b"\0"):
        if not raw:
            continue
        key, equals, value = raw.partition(b"=")
        if not equals:
            raise TextError(f"{key[:40]!r} has no value")
        if len(key) > KEY_LIMIT or len(value) > VALUE_LIMIT:
            raise TextError(f"{key[:40]!r} is too long")
        try:
            name, text = key.decode("ascii"), value.decode("utf-8")
        except UnicodeDecodeError:
            raise TextError(f"{key[:40]!r} is no UTF-8") from None
        if not _KEY.fullmatch(name):
            raise TextError(f"{name!r} is no key")
        pairs.append((name, text))
    return pairs


def encode(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Return the text of (key, value) pairs."""
    return b"".join(f"{key}={value}".encode() + b"\0" for key, value in pairs)


class Inbox:
    """The text of a request that may come in several PDUs (C bit).

    Args:
        limit: bytes of the whole text.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, data: bytes, more: bool) -> list[tuple[str, str]] | None:
        """Take a PDU's data; return the pairs when it was the last one, None when `more` is to come."""
        self._size += len(data)
        if self._size > self.limit:
            raise TextError(f"a text of more than {self.limit} bytes")
        self._parts.append(data)
        if more:
            if len(self._parts) > 64:
                raise TextError("a text in too many pieces")
            return None
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        return parse(whole)

    @property
    def empty(self) -> bool:
        """Whether no text is under way."""
        return not self._parts


class Outbox:
    """The text of an answer that may take several PDUs, each of at most what the peer takes."""

    def __init__(self) -> None:
        self._rest = b""

    def put(self, data: bytes) -> None:
        """Set what is to be sent."""
        self._rest += data

    def take(self, limit: int) -> tuple[bytes, bool]:
        """Return the next piece and whether more is to come."""
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece, bool(self._rest)

    def __len__(self) -> int:
        return len(self._rest)
