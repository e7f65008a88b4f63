"""The fuzzer's targets on captured traffic, on mutations of it, and on every input that once went wrong."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

import pytest

from fuzz import seeds, targets

# A peer's whole conversation each: too slow for thousands.
WHOLE = (targets.brick, targets.liar, targets.iscsi, targets.iscsi_login, targets.scsi)
FINDINGS = {
    # An xdata key that is read as text, sent with times for a value.
    "times-where-text-is-read": (
        "BQAAACQAAAABAAAAAQAAAAlnZmlkLXJlKAAAAAAAAAAJZ2ZpZC1yZSgAAAABAAAAAAAAAAcAATEDBAUGBwgJCgsMKQ4P"
    ),
}


def test_seeds_are_taken() -> None:
    count = 0
    for data in seeds.seeds():
        targets.one_input(data)
        count += 1
    assert count > 500


def test_mutations(seeded: random.Random) -> None:
    corpus = [data for data in seeds.seeds() if targets.TARGETS[data[0]] not in WHOLE]
    for _ in range(4000):
        data = bytearray(seeded.choice(corpus))
        for _ in range(seeded.randrange(1, 5)):
            at = seeded.randrange(1, len(data))
            if seeded.random() < 0.7:
                data[at] = seeded.choice([0, 1, 4, 0x7F, 0x80, 0xFF, seeded.randrange(256)])
            elif seeded.random() < 0.5:
                del data[at : at + seeded.choice([1, 4, 40])]
            else:
                data[at:at] = seeded.randbytes(seeded.choice([1, 4, 12]))
            if len(data) < 2:
                break
        try:
            targets.one_input(bytes(data))
        except Exception as error:
            pytest.fail(f"{error!r} of {bytes(data).hex()}")


@pytest.mark.parametrize("target", [targets.brick, targets.liar])
def test_whole_conversations(target: Callable[[bytes], None], seeded: random.Random) -> None:
    for _ in range(20):
        data = seeded.randbytes(1500)
        try:
            target(data)
        except Exception as error:
            pytest.fail(f"{error!r} of {targets.tagged(target, data).hex()}")


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name: str) -> None:
    targets.one_input(base64.b64decode(FINDINGS[name]))
