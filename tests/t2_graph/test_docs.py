"""Pages written from the code are as the code says."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from glustx import docgen
from glustx.fops import FOPS
from glustx.graph import known_types
from glustx.rpc.codec import call_terms
from tests.fakes import ALL_FOPS

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("page", docgen.PAGES)
def test_pages_are_up_to_date(page: str) -> None:
    name, make = docgen.PAGES[page]
    there = (ROOT / name).read_text() if (ROOT / name).exists() else ""
    changes = "".join(difflib.unified_diff(there.splitlines(True), make().splitlines(True), name, "the code", n=1))
    assert not changes, f"run `python -m glustx.docgen write` and look at the change:\n{changes}"


def test_the_matrix_names_every_fop_and_translator() -> None:
    text = docgen.matrix()
    for name in FOPS:
        block = text.split(f"\n{name}  (")[1].split("\n\n")[0]
        assert sorted(word for word in block.split() if "/" in word) == known_types()


def test_every_option_is_listed() -> None:
    text = docgen.options_page()
    for kind in docgen.translators():
        section = text.split(f"## {kind.type_name}\n")[1].split("\n## ")[0]
        assert all(f"| `{info.key}` |" in section for info in kind.Options.infos)


def test_every_body_lists_every_field() -> None:
    text = docgen.fops_page()
    for cls in ALL_FOPS:
        body = text.split(f"struct {cls.name}_req {{")[1].split("};")[0]
        assert body.count(";") >= len(call_terms(cls)) + 1


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert docgen.main(["matrix"]) == 0
    assert capsys.readouterr().out == docgen.matrix()
    for name, _ in docgen.PAGES.values():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    assert docgen.main(["write", str(tmp_path)]) == 0
    assert (tmp_path / "docs/options.md").read_text() == docgen.options_page()
    assert docgen.main(["everything"]) == 2
    assert "usage:" in capsys.readouterr().err
