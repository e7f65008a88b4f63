"""Our volfile parser against stock's own, which libglusterfs exports: the same texts must give the same trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from glustx import volfile
from glustx.volfile import Volfile, VolfileError, parse
from glustx.volgen import brick_volfile, client_volfile, embedded_volfile
from tests.kit import need_peer

PARSER = Path(__file__).with_name("stock_volfile.py")
TYPES = ("debug/io-stats", "features/utime")
OURS_ALONE = ("backslash outside quotes", "not closed on its line", "NUL")


@pytest.fixture(scope="module", autouse=True)
def stock() -> None:
    need_peer("glusterfs")


def stock_blocks(text: str) -> list[list[str]] | None:
    """The lines of each volume as stock reads `text`, or None when it refuses."""
    done = subprocess.run([sys.executable, PARSER], input=text.encode(), capture_output=True, timeout=60)
    assert done.returncode in (0, 1), f"{text!r}: exit {done.returncode}\n{done.stderr.decode(errors='replace')}"
    if done.returncode == 1:
        return None
    # Stock prints options in the order of its hash chain and quotes nothing.
    return [sorted(block.strip("\n").split("\n")) for block in done.stdout.decode().split("\n\n")]


def our_blocks(tree: Volfile) -> list[list[str]]:
    blocks = []
    for volume in tree.volumes:
        lines = [f"volume {volume.name}", f"    type {volume.type}", "end-volume"]
        lines += [f"    option {key} {value}" for key, value in volume.options.items()]
        if volume.subvolumes:
            lines.append(f"    subvolumes {' '.join(volume.subvolumes)}")
        blocks.append(sorted(lines))
    return blocks


def ours_or_reason(text: str) -> Volfile | str:
    try:
        return parse(text, strict=False)
    except VolfileError as error:
        return str(error)


def compare(text: str) -> None:
    theirs = stock_blocks(text)
    ours = ours_or_reason(text)
    event(f"stock {'refuses' if theirs is None else 'takes'}, we {'refuse' if isinstance(ours, str) else 'take'}")
    if isinstance(ours, str):
        assert theirs is None or any(reason in ours for reason in OURS_ALONE), f"stock takes it: {ours}"
    elif theirs is None:
        bare = [volume for volume in ours.volumes if not volume.options and not volume.subvolumes]
        unknown = [volume for volume in ours.volumes if volume.type not in TYPES]
        assert bare or unknown, f"stock refuses what we take: {text!r}"
    else:
        assert our_blocks(ours) == theirs


@pytest.mark.parametrize(
    "text",
    [
        "volume a type debug/io-stats option k v end-volume",
        "volume a type debug/io-stats option k v#x end-volume",
        'volume a type debug/io-stats option k "v"#x\nend-volume',
        'volume a type debug/io-stats option k"v" end-volume',
        'volume a type debug/io-stats option "k""v"end-volume',
        'volume a type debug/io-stats option k "a b" end-volume',
        r'volume a type debug/io-stats option k "a\"b\\c\d\`" end-volume',
        'volume a type debug/io-stats option "option" "type" end-volume',
        "volume a type debug/io-stats option k 1 option k 2 end-volume",
        'volume a type debug/io-stats option k "" end-volume',
        'volume a type debug/io-stats option "" v end-volume',
        "volume a type debug/io-stats subvolumes a none end-volume",
        "volume a type debug/io-stats option k v end-volume volume b type features/utime subvolumeS a a end-volume",
        "volume a\r\ntype\tdebug/io-stats option k v end-volume\r\n# end",
        'volume "a b" type "debug/io-stats" option k v end-volume',
    ],
)
def test_stock_reads_the_same(text: str) -> None:
    assert our_blocks(parse(text, strict=False)) == stock_blocks(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# x",
        "VOLUME a type debug/io-stats option k v end-volume",
        'volume "" type debug/io-stats option k v end-volume',
        'volume a type "" option k v end-volume',
        "volume a option k v type debug/io-stats end-volume",
        "volume a option k v end-volume",
        "volume a type debug/io-stats option type v end-volume",
        "volume a type debug/io-stats option k end-volume",
        "volume a type debug/io-stats option k v w end-volume",
        "volume a type debug/io-stats type debug/io-stats option k v end-volume",
        "volume a type debug/io-stats option k v subvolumes a subvolumes a end-volume",
        "volume a type debug/io-stats subvolumes end-volume",
        "volume a type debug/io-stats option k v",
        "volume a type debug/io-stats option k v volume b",
        "volume a type debug/io-stats option k v end-volume volume a type debug/io-stats option k v end-volume",
        "volume a type debug/io-stats option k v end-volume x",
    ],
)
def test_stock_refuses_it_too(text: str) -> None:
    assert stock_blocks(text) is None
    with pytest.raises(VolfileError):
        parse(text, strict=False)


# No backticks: stock would run what stands between them.
good = st.sampled_from(["a", "b", "c", "k", "v#w", '"a"', '"x y"', '""', r'"\"\\"', "#c\nd", "e\r\n", '"type"'])
words = st.one_of(good, good, st.sampled_from(["#c\n", "\r\n", '"', "\\", "g\\", *TYPES, *volfile.KEYWORDS]))


@st.composite
def nearly_volfiles(draw: st.DrawFn) -> str:
    tokens: list[str] = []
    for name in draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True)):
        tokens += ["volume", name, "type", draw(st.sampled_from(TYPES))]
        for _ in range(draw(st.integers(0, 2))):
            tokens += ["option", draw(good), draw(good)]
        if draw(st.booleans()):
            tokens += ["subvolumes", *draw(st.lists(good, min_size=1, max_size=3))]
        if draw(st.booleans()):
            tokens += ["option", "k", draw(good)]
        tokens.append("end-volume")
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(tokens) - 1))
        tokens[at : at + draw(st.integers(0, 1))] = draw(st.lists(words, max_size=1))
        if not tokens:
            break
    return draw(st.sampled_from([" ", "\n"])).join(tokens)


@settings(max_examples=100, deadline=None)
@given(nearly_volfiles())
def test_stock_and_we_agree_on_anything(text: str) -> None:
    compare(text)


@pytest.mark.parametrize(
    "text",
    [
        client_volfile("v", [("127.0.0.1", 1, "/b"), ("::1", None, "/srv/a b")], username="u", password="p"),
        brick_volfile("v", "/srv/a b", 1, volume_id="11111111-2222-4333-8444-555555555555"),
        embedded_volfile("v", "/b"),
    ],
    ids=["client", "brick", "embedded"],
)
def test_stock_loads_what_we_generate(text: str) -> None:
    """With stock's translators loaded: a type it lacks would be refused."""
    # io-threads and locks have no options here and the printer is ours, so quoting is proven as well.
    assert stock_blocks(text) == our_blocks(parse(text))
