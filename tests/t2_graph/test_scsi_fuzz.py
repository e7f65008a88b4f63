"""Conversations of commands that make little sense, as the fuzzer has them."""

from __future__ import annotations

import random

import pytest

from fuzz.scsi import scsi


def test_conversations(seeded: random.Random) -> None:
    for _ in range(40):
        data = bytearray(seeded.randbytes(2000))
        for at in range(0, len(data), 2):
            if seeded.random() < 0.6:  # small numbers get further than large ones
                data[at] = seeded.choice((0, 0, 1, 2, 8, 16, 0x80))
        try:
            scsi(bytes(data))
        except Exception as error:
            pytest.fail(f"{error!r} of {data.hex()}")
