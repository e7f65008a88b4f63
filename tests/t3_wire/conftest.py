"""Worlds of a brick and its clients, taken down and checked at the end of each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.t3_wire.world import World


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(*args: Any, **more: Any) -> World:
        worlds.append(World(*args, **more))
        return worlds[-1]

    yield make
    for world in worlds:
        world.stop()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()
