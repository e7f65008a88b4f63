"""debug/error-gen: which fops fail, with what, and that the same seed repeats it."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from glustx import fops
from glustx.errors import OptionError
from glustx.graph import Graph
from glustx.runtime import run_now
from glustx.xlators.debug.error_gen import ErrorGen
from tests.fakes import ALL_FOPS, Call, Storage, sample_request, stack


def failing(**options: str) -> Graph:
    graph = stack(Storage, (ErrorGen, {key.replace("_", "-"): text for key, text in options.items()}))
    run_now(graph.start())
    return graph


def outcomes(graph: Graph, count: int, cls: type[fops.Fop] = fops.Stat) -> list[int]:
    return [Call(graph.top(sample_request(cls))).errno for _ in range(count)]


def test_by_default_every_twentieth_fails() -> None:
    graph = failing()
    codes = outcomes(graph, 60)
    assert [index for index, code in enumerate(codes, 1) if code] == [20, 40, 60]
    assert codes[19] == errno.EIO
    assert len(graph.xlators["fake"].seen) == 57  # type: ignore[attr-defined]
    assert "failed=3" in graph.statedump()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"failure": "50"}, [2, 4, 6, 8, 10]),
        ({"failure": "100%"}, list(range(1, 11))),
        ({"failure": "0"}, []),
        ({"every": "3"}, [3, 6, 9]),
        ({"every": "3", "failure": "100"}, [3, 6, 9]),
    ],
)
def test_distance(options: dict[str, str], expected: list[int]) -> None:
    codes = outcomes(failing(**options), 10)
    assert [index for index, code in enumerate(codes, 1) if code] == expected


def test_only_enabled_fops_count_and_fail() -> None:
    graph = failing(failure="100", enable="WRITEV,mkdir", error_no="enospc")
    for cls in ALL_FOPS:
        expected = errno.ENOSPC if cls in (fops.Write, fops.Mkdir) else 0
        assert Call(graph.top(sample_request(cls))).errno == expected, cls.name


def test_random_failures_repeat_with_their_seed() -> None:
    options = {"failure": "30", "random_failure": "on", "error_no": "EIO,ESTALE,ENOTCONN"}
    first, again = outcomes(failing(**options, seed="7"), 500), outcomes(failing(**options, seed="7"), 500)
    other = outcomes(failing(**options, seed="8"), 500)
    assert first == again
    assert first != other
    failed = [code for code in first if code]
    assert 100 < len(failed) < 200
    assert set(failed) == {errno.EIO, errno.ESTALE, errno.ENOTCONN}


def test_options_change_under_load() -> None:
    graph = failing(failure="0")
    assert not any(outcomes(graph, 5))
    xlator: Any = graph.xlators["error-gen"]
    old, xlator.options = xlator.options, ErrorGen.Options(every=1, error_no="EROFS")
    xlator.options_changed(old)
    assert outcomes(graph, 2) == [errno.EROFS] * 2


def test_bad_options() -> None:
    with pytest.raises(OptionError, match="'ENOSPACE' is not the name of an errno; the nearest is ENOSPC"):
        failing(error_no="ENOSPACE")
    with pytest.raises(OptionError, match="enable"):
        failing(enable="wriet")
    with pytest.raises(OptionError, match="failure"):
        failing(failure="101")
