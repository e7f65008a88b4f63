"""The volfile parser and printer: what is taken, what is refused and in which words, and that text survives a round."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx import volfile
from glustx.volfile import Volfile, VolfileError, VolumeSpec, nearest, parse

GOLDEN = sorted((Path(__file__).parent.parent / "golden" / "volfiles").glob("*.vol"))

A = "volume a type debug/io-stats end-volume\n"
BODY = "volume b type debug/io-stats "


def options(text: str, *, strict: bool = True) -> dict[str, str]:
    return parse(f"{BODY}{text} end-volume", strict=strict).root.options


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.name)
def test_stock_volfiles_print_as_they_were_written(path: Path) -> None:
    text = path.read_text()
    parsed = volfile.load(path)
    assert volfile.format(parsed) == text
    assert parsed.source == str(path)
    assert parsed.warnings == ()
    assert [volume.line for volume in parsed.volumes] == [
        number for number, line in enumerate(text.splitlines(), 1) if line.startswith("volume ")
    ]


def test_there_are_golden_volfiles() -> None:
    assert {path.name for path in GOLDEN} >= {"w1.tcp-fuse.vol", "d3.tcp-fuse.vol", "w1.10.9.9.1.bricks-b1.vol"}


def test_tree_with_positions() -> None:
    text = "# top\nvolume below\n\ttype storage/posix\n  option directory /srv\n\nend-volume\n" + (
        "volume top type cluster/x subvolumes below option k v end-volume"
    )
    parsed = parse(text, "t.vol")
    below, top = parsed.volumes
    assert parsed.root is top
    assert parsed.by_name == {"below": below, "top": top}
    assert (below.name, below.type, below.options, below.subvolumes) == (
        "below",
        "storage/posix",
        {"directory": "/srv"},
        (),
    )
    assert (below.line, below.column, below.type_position) == (2, 8, (3, 7))
    assert below.option_positions == {"directory": (4, 10)}
    assert below.value_positions == {"directory": (4, 20)}
    assert top.subvolumes == ("below",)
    assert top.subvolume_positions == ((7, 38),)
    error = parsed.error("no such directory", "/srv", below.value_positions["directory"], ["/srw"])
    assert str(error) == "t.vol:4:20: no such directory; did you mean '/srw'?"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("option k v", {"k": "v"}),
        ("option k v#x", {"k": "v#x"}),
        ("option k v # x\n", {"k": "v"}),
        ("option k #x\n v", {"k": "v"}),
        ("option k 'a", {"k": "'a"}),
        ('option k"v"', {"k": "v"}),
        ('option "k"v', {"k": "v"}),
        ('option "k""v"', {"k": "v"}),
        ('option k "v"#x\n', {"k": "v"}),
        ('option k "a b\tc#d"', {"k": "a b\tc#d"}),
        (r'option k "a\"b\\c\d\`"', {"k": 'a"b\\cd`'}),
        ("option\r\nk\r\nv\r\n", {"k": "v"}),
        ('option "option" "end-volume"', {"option": "end-volume"}),
        ("option optional end-volumes", {"optional": "end-volumes"}),
        ("option auth.addr./b-1.allow 10.0.0.*,(x)", {"auth.addr./b-1.allow": "10.0.0.*,(x)"}),
        ("option k \N{SNOWMAN}\N{NO-BREAK SPACE}", {"k": "\N{SNOWMAN}\N{NO-BREAK SPACE}"}),
        ("", {}),
    ],
)
def test_words(text: str, expected: dict[str, str]) -> None:
    assert options(text) == expected
    assert options(text, strict=False) == expected


@pytest.mark.parametrize("body", ["option k v subvolumes a", "subvolumes a option k v", "subvolumeS a option k v"])
def test_options_before_and_after_subvolumes(body: str) -> None:
    assert parse(f"{A} {BODY} {body} end-volume").root == VolumeSpec("b", "debug/io-stats", {"k": "v"}, ("a",))


def test_last_volume_is_root_and_need_not_reach_the_others() -> None:
    assert parse(A + BODY + "end-volume volume c type x/y end-volume").root.name == "c"


def test_bytes_that_are_no_utf8_survive() -> None:
    value = b"/srv/\xff\xfe"
    parsed = parse(b"volume a type storage/posix option directory " + value + b" end-volume")
    assert parsed.root.options["directory"].encode("utf-8", "surrogateescape") == value
    assert value in volfile.format(parsed).encode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("text", "place", "found", "near", "reason"),
    [
        ("", (1, 1), "", "", "defines no volume"),
        ("# only\n", (2, 1), "", "", "defines no volume"),
        ("voluem a", (1, 1), "voluem", "volume", "starts with 'volume'"),
        ("VOLUME a", (1, 1), "VOLUME", "volume", "starts with 'volume'"),
        ("\ufeffvolume a", (1, 1), "\ufeffvolume", "volume", "starts with 'volume'"),
        (A + "option k v", (2, 1), "option", "", "starts with 'volume'"),
        ("volume", (1, 7), "", "", "needs a name, found the end of the file"),
        ("volume type x/y", (1, 8), "type", "", "keyword used as a word must be quoted"),
        ('volume "" type x/y end-volume', (1, 8), "", "", "name cannot be empty"),
        ("volume a end-volume", (1, 10), "end-volume", "", "must begin with its 'type'"),
        ("volume a option k v type x/y end-volume", (1, 10), "option", "", "must begin with its 'type'"),
        ("volume a tpye x/y", (1, 10), "tpye", "type", "must begin with its 'type'"),
        ("volume a type end-volume", (1, 15), "end-volume", "", "needs a category/name"),
        ('volume a type "" end-volume', (1, 15), "", "", "type cannot be empty"),
        ("volume a type x/y type x/y", (1, 19), "type", "", "second 'type'"),
        ("volume a type x/y", (1, 18), "", "", "no 'end-volume' before the end of the file"),
        ("volume a type x/y\nvolume b", (2, 1), "volume", "", "no 'end-volume' before 'volume'"),
        ("volume a type x/y end_volume", (1, 19), "end_volume", "end-volume", "found 'end_volume' instead of"),
        ("volume a type x/y subvolume b", (1, 19), "subvolume", "subvolumes", "instead of option or subvolumes or"),
        ("volume a type x/y option k v w", (1, 30), "w", "", "a value with blanks needs quotes"),
        ("volume a type x/y option k end-volume", (1, 28), "end-volume", "", "option 'k' needs a value"),
        ("volume a type x/y option", (1, 25), "", "", "needs a key and a value"),
        ("volume a type x/y option type v", (1, 26), "type", "", "keyword used as a word must be quoted"),
        ("volume a type x/y subvolumes end-volume", (1, 30), "end-volume", "", "at least one name"),
        (A + BODY + "subvolumes a subvolumes a", (2, 43), "subvolumes", "", "second 'subvolumes'"),
        (A + A, (2, 8), "a", "", "already defined at line 1, column 8"),
        ('volume a type x/y option k "v', (1, 28), '"', "", "not closed on its line"),
        ('volume a type x/y option k "v\n"', (1, 28), '"', "", "not closed on its line"),
        ('volume a type x/y option k "v\\\n"', (1, 28), '"', "", "not closed on its line"),
        (A + '"', (2, 1), '"', "", "not closed on its line"),
        ("volume a type x/y option k \\v", (1, 28), "\\", "", "backslash outside quotes"),
        ("volume a type x/y option k v\\", (1, 29), "\\", "", "backslash outside quotes"),
        (A + "\0", (2, 1), "\0", "", "NUL"),
        (A + "# \\\0", (2, 4), "\0", "", "NUL"),
        ("volume a type x/y\noption k `id`", (2, 10), "`", "", "never run"),
        ("volume a type x/y\noption k x`id`", (2, 11), "`", "", "never run"),
        ('volume a type x/y option k "`id`"', (1, 29), "`", "", "never run"),
        (r'volume a type x/y option k "\\`id`"', (1, 31), "`", "", "never run"),
        ("# `id`\n" + A, (1, 3), "`", "", "never run"),
    ],
)
def test_refused(text: str, place: tuple[int, int], found: str, near: str, reason: str) -> None:
    for strict in (True, False):
        with pytest.raises(VolfileError) as caught:
            parse(text, "bad.vol", strict=strict)
        error = caught.value
        assert (error.file, error.line, error.column, error.found, error.nearest) == ("bad.vol", *place, found, near)
        assert reason in str(error)
        assert str(error).startswith(f"bad.vol:{error.line}:{error.column}: ")
        assert "\n" not in str(error)
        assert str(error).endswith(f"did you mean {near!r}?") or not near


@pytest.mark.parametrize(
    ("body", "left", "place", "near", "reason"),
    [
        ("subvolumes client-O a", VolumeSpec("b", "x/y", {}, ("a",)), (3, 30), "client-0", "is not defined before it"),
        ("subvolumes a b", VolumeSpec("b", "x/y", {}, ("a",)), (3, 32), "", "names itself"),
        ('subvolumes a ""', VolumeSpec("b", "x/y", {}, ("a",)), (3, 32), "", "is not defined before it"),
        ('option k ""', VolumeSpec("b", "x/y"), (3, 28), "", "option 'k' has an empty value"),
        ('option "" v', VolumeSpec("b", "x/y"), (3, 26), "", "an option has an empty key"),
    ],
)
def test_only_logged_by_stock(body: str, left: VolumeSpec, place: tuple[int, int], near: str, reason: str) -> None:
    text = (
        f"{A}volume client-0 type x/y end-volume\nvolume b type x/y {body} end-volume\nvolume zzz type x/y end-volume"
    )
    with pytest.raises(VolfileError, match=reason) as caught:
        parse(text, "f.vol")
    assert (caught.value.line, caught.value.column, caught.value.nearest) == (*place, near)
    passed = parse(text, "f.vol", strict=False)
    assert passed.by_name["b"] == left
    assert len(passed.warnings) == 1
    assert passed.warnings[0].startswith(f"f.vol:{place[0]}:{place[1]}: ")
    assert reason in passed.warnings[0] and passed.warnings[0].endswith("it is left out")


@pytest.mark.parametrize("strict", [True, False])
def test_a_repeated_option_takes_the_last_value_and_warns_without_showing_it(strict: bool) -> None:
    parsed = parse(BODY + "option password first\noption password second end-volume", "f.vol", strict=strict)
    assert parsed.root.options == {"password": "second"}
    assert parsed.root.value_positions == {"password": (2, 17)}
    assert parsed.warnings == ("f.vol:2:8: volume 'b': option 'password' is given twice; the last value counts",)


def test_values_stay_out_of_the_repr() -> None:
    parsed = parse(BODY + "option password hunter2 end-volume")
    assert "hunter2" not in repr(parsed) and "password" in repr(parsed)


def test_limits_hold_before_work_is_done() -> None:
    started = time.process_time()
    with pytest.raises(VolfileError, match="over 4 MiB"):
        parse("#" * (volfile.MAX_TEXT + 1))
    assert time.process_time() - started < 0.1
    assert parse(A + "#" * (volfile.MAX_TEXT - len(A))).root.name == "a"
    text = "".join(f"volume v{index} type x/y end-volume\n" for index in range(volfile.MAX_VOLUMES))
    assert len(parse(text).volumes) == volfile.MAX_VOLUMES
    with pytest.raises(VolfileError, match="more than 10000 volumes") as caught:
        parse(text + "volume")
    assert caught.value.line == volfile.MAX_VOLUMES + 1
    repeated = "option k v\n" * (volfile.MAX_WARNINGS + 1)
    assert len(parse(f"{BODY}{repeated}end-volume").warnings) == volfile.MAX_WARNINGS
    with pytest.raises(VolfileError, match="the whole file is refused"):
        parse(f"{BODY}{repeated}option k v end-volume")


@pytest.mark.parametrize(
    "text",
    ['"' + "a" * 500_000, '"' + '\\"' * 250_000, "a" * 500_000, "\\" * 500_001 + "`", " " * 500_000 + "x"],
    ids=["open quote", "escapes", "long word", "backslashes", "blanks"],
)
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    started = time.process_time()
    with pytest.raises(VolfileError) as caught:
        parse(text)
    assert time.process_time() - started < 1.0
    assert len(str(caught.value)) < 300


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.vol"
    path.write_text(A + "volume")
    with pytest.raises(VolfileError) as caught:
        volfile.load(path)
    assert str(caught.value).startswith(f"{path}:2:7: ")
    path.write_bytes(b"#" * (volfile.MAX_TEXT + 1))
    with pytest.raises(VolfileError, match=r"x\.vol: the text is over 4 MiB"):
        volfile.load(path)
    with pytest.raises(FileNotFoundError):
        volfile.load(tmp_path / "none.vol")


def test_nearest() -> None:
    assert nearest("Cluster/Replicat", ["cluster/replicate", "cluster/distribute"]) == "cluster/replicate"
    assert nearest("q", ["cluster/replicate"]) == ""
    assert nearest("a" * 256, ["a" * 256]) == ""


def test_format_quotes_only_where_needed() -> None:
    volume = VolumeSpec("v", "x/y", {"plain": "a#b'(", "type": "#a", "k": 'a "b" \\ `c`', "cr": "a\rb"})
    assert volfile.format(Volfile((volume,))).splitlines() == [
        "volume v",
        "    type x/y",
        "    option plain a#b'(",
        '    option "type" "#a"',
        r'    option k "a \"b\" \\ \`c\`"',
        '    option cr "a',
        'b"',
        "end-volume",
    ]


@pytest.mark.parametrize(
    ("volume", "what"),
    [
        (VolumeSpec("v", "x/y", {"password": ""}), "the value of option password is empty"),
        (VolumeSpec("v", "x/y", {"password": "hunter2\n"}), "the value of option password"),
        (VolumeSpec("v", "x/y", {"": "v"}), "an option key"),
        (VolumeSpec("v\0", "x/y"), "a name"),
    ],
)
def test_format_refuses_what_no_volfile_can_hold(volume: VolumeSpec, what: str) -> None:
    with pytest.raises(VolfileError, match=what) as caught:
        volfile.format(Volfile((volume,)))
    assert "hunter2" not in str(caught.value)


words = st.one_of(
    st.sampled_from([*volfile.KEYWORDS, "subvolumeS", "a", "#", '"', "\\", "`", "\\`", " ", "\r", "a b", "\x0b"]),
    st.text(st.characters(exclude_characters="\n\0"), min_size=1, max_size=12),
)


@st.composite
def volfiles(draw: st.DrawFn) -> Volfile:
    names = draw(st.lists(words, min_size=1, max_size=6, unique=True))
    volumes = []
    for index, name in enumerate(names):
        below = draw(st.lists(st.sampled_from(names[:index]), max_size=4)) if index else []
        volumes.append(VolumeSpec(name, draw(words), draw(st.dictionaries(words, words, max_size=5)), tuple(below)))
    return Volfile(tuple(volumes))


@given(volfiles())
def test_what_is_printed_parses_to_the_same(tree: Volfile) -> None:
    text = volfile.format(tree)
    parsed = parse(text)
    assert parsed == tree
    assert parsed.warnings == ()
    assert volfile.format(parsed) == text
    assert [list(volume.options) for volume in parsed.volumes] == [list(volume.options) for volume in tree.volumes]


@given(volfiles())
def test_line_breaks_carry_no_meaning(tree: Volfile) -> None:
    text = volfile.format(tree)
    lines = [line.strip(" ") for line in text.split("\n") if line]
    assert parse(" ".join(lines)) == tree
    assert parse("\r\n\t".join(lines)) == tree


soup = st.lists(
    st.sampled_from([*volfile.KEYWORDS, "a", "b", "x/y", '"', "\\", "`", "#", "\n", " ", '"a"', "\0"]), max_size=40
)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200), soup.map(" ".join), soup.map("".join)), st.booleans())
def test_anything_parses_or_is_refused_with_a_place_in_the_text(text: str | bytes, strict: bool) -> None:
    try:
        parsed = parse(text, strict=strict)
    except VolfileError as caught:
        error = caught
    else:
        assert parse(volfile.format(parsed)) == parsed
        return
    lines = (text if isinstance(text, str) else text.decode("utf-8", "surrogateescape")).split("\n")
    assert 1 <= error.line <= len(lines)
    assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    there = lines[error.line - 1][error.column - 1 :]
    assert there.startswith((error.found, '"'))
