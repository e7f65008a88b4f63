"""The examples of docs/gfapi.md run, on a served volume, as they stand there but for the server's name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from glustx import gfapi
from glustx.docgen import PAGES
from glustx.gfapi import exceptions, glfs
from tests.peers import ServedVolume

PAGE = PAGES["gfapi"][1]()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVolume]:
    with ServedVolume(tmp_path_factory.mktemp("brick"), "vm") as volume:
        yield volume


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, served: ServedVolume, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLES[number]
    if "setfsuid" in text and os.geteuid():
        pytest.skip("needs root: what others own cannot be made")
    assert text.count('"gluster://server/vm"') + text.count('Volume("server", "vm")') == 1
    text = text.replace("gluster://server/vm", served.url("").rstrip("/"))
    text = text.replace('Volume("server", "vm")', f'Volume("127.0.0.1", "vm", port={served.port})')
    exec(compile(text, f"example {number + 1} of docs/gfapi.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if "print(volume.getxattr" in text:
        assert printed.splitlines()[0] == "b'hello' 5" and printed.splitlines()[-1] == "greeting"


def test_there_are_examples_of_all_that_is_told() -> None:
    assert len(EXAMPLES) == 4


def test_every_public_name_has_its_entry() -> None:
    for name in gfapi.__all__:
        assert f"\n## {name}\n" in PAGE or f"- `{name}`: " in PAGE, name
    for name in exceptions.__all__:
        assert f"- `{name}`: " in PAGE, name
    for kind in (gfapi.Volume, gfapi.File, gfapi.Dir, gfapi.DirEntry, gfapi.StatResult):
        section = PAGE.split(f"\n## {kind.__name__}\n")[1].split("\n## ")[0]
        for name, value in vars(kind).items():
            if not name.startswith("_") and (callable(value) or isinstance(value, property)):
                assert re.search(rf"^- `{name}[`(]", section, re.MULTILINE), f"{kind.__name__}.{name}"
    for name in vars(glfs):
        if name.startswith("glfs_"):
            assert f"- `{name}(" in PAGE, name


def test_the_page_lists_what_the_parity_script_leaves_out() -> None:
    """The script that must say the same of both is written around the traps, so they are told to users."""
    script = Path(__file__).parent.parent / "t4_edge" / "libgfapi_python_script.py"
    assert "docs/gfapi.md" in script.read_text()
    section = PAGE.split("## Where libgfapi-python behaves otherwise")[1].split("\n## ")[0]
    for told in ("end of a file", "EISDIR", "File.close", "whole seconds", "2 GiB"):
        assert told in section
