"""Options: what texts mean, bounds, unknown keys, families of keys, notes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx.errors import OptionError
from glustx.graph import find_type, known_types
from glustx.options import (
    OptionSet,
    Percent,
    Seconds,
    Size,
    option,
    parse_bool,
    parse_seconds,
    parse_size,
    wildcard,
)


class Sample(OptionSet):
    """One option of each kind."""

    enabled: bool = option(True, "A switch.", live=True)
    thread_count: int = option(16, "A number.", low=1, high=64)
    ratio: float = option(0.5, "A fraction.", low=0)
    cache: Size = option(Size(1 << 20), "Bytes.", key="cache-size", high=1 << 30)
    share: Percent = option(Percent(5.0), "A share.", low=0, high=100)
    patience: Seconds = option(Seconds(42), "A time.", low=0)
    mode: str = option("fast", "A word.", choices=("fast", "safe"))
    directory: str = option(..., "A path.")
    allow: dict[str, str] = wildcard("auth.addr.*.allow", "Who may come.")
    accepted = ("stock-*", "transport.keepalive")


def parse(strict: bool = True, **texts: str) -> tuple[Any, list[str]]:
    given_texts = {"directory": "/b", **{key.replace("__", ".").replace("_", "-"): text for key, text in texts.items()}}
    return Sample.parse("vol-x", given_texts, strict=strict)


def test_defaults_and_values() -> None:
    options, notes = parse()
    assert options.values() == {
        "enabled": True,
        "thread-count": 16,
        "ratio": 0.5,
        "cache-size": 1 << 20,
        "share": 5.0,
        "patience": 42,
        "mode": "fast",
        "directory": "/b",
    }
    assert options.allow == {}
    assert notes == []


@pytest.mark.parametrize(
    ("key", "text", "field", "value"),
    [
        ("enabled", "off", "enabled", False),
        ("enabled", " Enable ", "enabled", True),
        ("thread-count", "0x10", "thread_count", 16),
        ("thread_count", "3", "thread_count", 3),
        ("ratio", "1e-3", "ratio", 0.001),
        ("cache-size", "64KB", "cache", 65536),
        ("cache-size", "1.5MiB", "cache", 1572864),
        ("share", "7.5%", "share", 7.5),
        ("patience", "2min", "patience", 120.0),
        ("mode", "safe", "mode", "safe"),
    ],
)
def test_texts(key: str, text: str, field: str, value: Any) -> None:
    options, _ = Sample.parse("vol-x", {"directory": "/b", key: text})
    assert getattr(options, field) == value


@pytest.mark.parametrize(
    ("key", "text", "why"),
    [
        ("enabled", "perhaps", "'perhaps' is neither on nor off"),
        ("thread-count", "many", "'many' is not a whole number"),
        ("thread-count", "1.5", "not a whole number"),
        ("thread-count", "0", "'0' is outside 1..64"),
        ("thread-count", "65", "'65' is outside 1..64"),
        ("ratio", "-0.1", "'-0.1' is outside 0.."),
        ("ratio", "nan", "'nan' is not a number one can use"),
        ("ratio", "inf", "'inf' is not a number one can use"),
        ("cache-size", "-1", "'-1' is not a size"),
        ("cache-size", "5 parsecs", "is not a size"),
        ("cache-size", "2GB", r"outside \.\."),
        ("share", "nan%", "not a number one can use"),
        ("share", "100.5", "outside 0..100"),
        ("patience", "5 fortnights", "is not a time"),
        ("mode", "Fast", "'Fast' is not one of fast, safe"),
    ],
)
def test_bad_texts(key: str, text: str, why: str) -> None:
    with pytest.raises(OptionError, match=why) as caught:
        Sample.parse("vol-x", {"directory": "/b", key: text})
    assert (caught.value.xlator, caught.value.key) == ("vol-x", key)
    assert str(caught.value).startswith(f"volume vol-x, option {key}: ")


def test_a_required_option() -> None:
    with pytest.raises(OptionError, match="volume vol-x, option directory: is required"):
        Sample.parse("vol-x", {})


def test_unknown_keys() -> None:
    with pytest.raises(OptionError, match="no such option; the nearest is thread-count"):
        parse(tread_count="3")
    with pytest.raises(OptionError, match=r"no such option$"):
        parse(qwertzuiop="3")
    options, notes = parse(strict=False, tread_count="3")
    assert options.thread_count == 16
    assert notes == ["option tread-count of vol-x is unknown and ignored; the nearest is thread-count"]
    with pytest.raises(OptionError):  # a bad value of a known key is refused from anybody
        parse(strict=False, thread_count="x")


def test_families_and_accepted_keys() -> None:
    options, notes = parse(auth__addr__brick__allow="*", stock_thing="1", transport__keepalive="1")
    assert options.allow == {"auth.addr.brick.allow": "*"}
    assert notes == [
        "option stock-thing of vol-x is accepted and has no effect",
        "option transport.keepalive of vol-x is accepted and has no effect",
    ]
    assert options.values()["auth.addr.brick.allow"] == "*"
    assert parse()[0].allow == {}, "one instance's family is not another's"


def test_secrets_are_not_shown() -> None:
    class Secret(OptionSet):
        password: str = option("", "What nobody shall see.")
        login: dict[str, str] = wildcard("auth.login.*", "Users.")

    options, _ = Secret.parse("v", {"password": "hush", "auth.login.a.password": "hush", "auth.login.b.allow": "a"})
    assert options.password == "hush"  # type: ignore[attr-defined]
    assert options.values() == {"auth.login.b.allow": "a"}


def test_options_are_inherited_and_may_be_redefined() -> None:
    class Special(Sample):
        thread_count: int = option(4, "Fewer.", high=8)
        extra: int = option(1, "One more.")

    options, _ = Special.parse("v", {"directory": "/b", "extra": "2", "enabled": "off"})
    values: Any = options
    assert (values.thread_count, values.extra, values.enabled) == (4, 2, False)
    assert Sample(directory="/").thread_count == 16
    with pytest.raises(OptionError, match=r"outside \.\.8"):
        Special.parse("v", {"directory": "/b", "thread-count": "9"})
    assert [info.key for info in Special.infos].count("thread-count") == 1


def test_made_by_hand() -> None:
    assert Sample(directory="/x", thread_count=3).thread_count == 3
    with pytest.raises(TypeError, match="no option colour"):
        Sample(colour="red")


@given(st.integers(0, 1 << 70), st.sampled_from(["", "B", "K", "KB", "k", "M", "MiB", "G", "T", "P"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    factor = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}[unit[:1].upper()]
    assert parse_size(f"{number}{unit}") == number * factor


@given(st.text(max_size=12))
def test_any_text_parses_or_raises_value_error(text: str) -> None:
    for parser in (parse_size, parse_seconds, parse_bool):
        try:
            value = parser(text)
        except ValueError:
            continue
        assert value >= 0
    for key in ("enabled", "thread-count", "ratio", "cache-size", "share", "patience", "mode"):
        with contextlib.suppress(OptionError):
            Sample.parse("v", {"directory": "/b", key: text})


@pytest.mark.parametrize("type_name", known_types())
def test_every_option_has_a_sentence_and_a_default_that_fits(type_name: str) -> None:
    seen: set[str] = set()
    for info in find_type(type_name).Options.infos:
        assert info.doc.endswith("."), f"{type_name} {info.key}: the doc is no sentence"
        assert info.key not in seen, f"{type_name} {info.key} is declared twice"
        seen.add(info.key)
        if not info.required and not info.pattern:
            assert not info.choices or info.default in info.choices
            assert info.low is None or info.default >= info.low
            assert info.high is None or info.default <= info.high
