"""CHAP (RFC 7143 12.1, RFC 1994) as the target's half of the security stage: one-way and mutual."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Callable, Mapping

from glustx.iscsi.keys import number

# CHAP_A: RFC 7143 12.1.4 and the IANA registry of PPP authentication algorithms. The initiator's order counts.
ALGORITHMS: dict[int, str] = {5: "md5", 6: "sha1", 7: "sha256", 8: "sha3_256"}
CHALLENGE_LIMIT = 1024


class ChapError(ValueError):
    """An exchange that failed; the text is for the log, never for the peer."""


def response(algorithm: int, identifier: int, secret: bytes, challenge: bytes) -> bytes:
    """Return the digest that proves the secret."""
    made = hashlib.new(ALGORITHMS[algorithm], usedforsecurity=False)
    made.update(bytes([identifier]) + secret + challenge)
    return made.digest()


def binary(text: str, limit: int = CHALLENGE_LIMIT) -> bytes:
    """Read a binary value, `0x` and hex or `0b` and base64 (RFC 7143 6.1); ChapError for anything else."""
    kind, rest = text[:2].lower(), text[2:]
    if len(rest) > 2 * limit + 4:
        raise ChapError("a binary value that is too long")
    try:
        if kind == "0x":
            value = bytes.fromhex(rest if len(rest) % 2 == 0 else "0" + rest) if rest.isalnum() else None
        elif kind == "0b":
            value = base64.b64decode(rest, validate=True)
        else:
            value = None
    except (ValueError, binascii.Error):
        value = None
    if value is None or not value or len(value) > limit:
        raise ChapError("no binary value of the right length")
    return value


def hexed(value: bytes) -> str:
    """Return a binary value as texts carry it."""
    return "0x" + value.hex()


class ChapTarget:
    """The exchange with one initiator.

    Args:
        user, secret: what the initiator must show.
        mutual_user, mutual_secret: what we show when it asks; "" refuses to.
        random: source of challenges, bytes by length.

    Attributes:
        done: whether the initiator has shown its secret.
    """

    def __init__(
        self,
        user: str,
        secret: bytes,
        mutual_user: str = "",
        mutual_secret: bytes = b"",
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._user = user
        self._secret = secret
        self._mutual_user = mutual_user
        self._mutual_secret = mutual_secret
        self._random = random
        self._algorithm = 0
        self._identifier = 0
        self._challenge = b""
        self.done = False

    def step(self, keys: Mapping[str, str]) -> list[tuple[str, str]]:
        """Take one request's keys and return those of the answer; ChapError when the login has failed."""
        if self.done:
            return []
        if "CHAP_A" in keys:
            return self._begin(keys["CHAP_A"])
        if "CHAP_N" in keys or "CHAP_R" in keys:
            return self._prove(keys)
        return []

    def _begin(self, offered: str) -> list[tuple[str, str]]:
        if self._algorithm:
            raise ChapError("a second CHAP_A")
        known = []
        for text in offered.split(","):
            try:
                known.append(number(text))
            except ValueError:
                continue
        self._algorithm = next((each for each in known if each in ALGORITHMS), 0)
        if not self._algorithm:
            raise ChapError("no algorithm that we know")
        self._identifier = self._random(1)[0]
        self._challenge = self._random(32)
        return [
            ("CHAP_A", str(self._algorithm)), ("CHAP_I", str(self._identifier)), ("CHAP_C", hexed(self._challenge)),
        ]  # fmt: skip

    def _prove(self, keys: Mapping[str, str]) -> list[tuple[str, str]]:
        if not self._algorithm:
            raise ChapError("a response before a challenge")
        if "CHAP_N" not in keys or "CHAP_R" not in keys:
            raise ChapError("CHAP_N and CHAP_R come together")
        right = response(self._algorithm, self._identifier, self._secret, self._challenge)
        # Both are looked at, whatever the first says: how long it takes shall not tell which was wrong.
        name = hmac.compare_digest(keys["CHAP_N"].encode(), self._user.encode())
        proof = hmac.compare_digest(binary(keys["CHAP_R"]), right)
        if not (name and proof):
            raise ChapError("a wrong user or secret")
        answer = self._mutual(keys) if "CHAP_I" in keys or "CHAP_C" in keys else []
        self.done = True
        return answer

    def _mutual(self, keys: Mapping[str, str]) -> list[tuple[str, str]]:
        if "CHAP_I" not in keys or "CHAP_C" not in keys:
            raise ChapError("CHAP_I and CHAP_C come together")
        if not self._mutual_user:
            raise ChapError("it asks who we are, and no mutual secret is set")
        challenge = binary(keys["CHAP_C"])
        if hmac.compare_digest(challenge, self._challenge):
            raise ChapError("our own challenge came back")
        try:
            identifier = number(keys["CHAP_I"])
        except ValueError:
            identifier = -1
        if not 0 <= identifier <= 255:
            raise ChapError("CHAP_I is no byte")
        proof = response(self._algorithm, identifier, self._mutual_secret, challenge)
        return [("CHAP_N", self._mutual_user), ("CHAP_R", hexed(proof))]
