"""libgfapi-python 1.2 on stock's libgfapi.so, and the same script on glustx.gfapi: both say the same of one brick."""

from __future__ import annotations

import difflib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import glustx.gfapi
from tests.kit import ROOT, NetNamespace, need_peer
from tests.peers import ServedVolume, StockVolume, Volume

SCRIPT = Path(__file__).parent / "libgfapi_python_script.py"
RUN = SCRIPT.with_name("libgfapi_python_run.py")
LIST = """
import gluster.gfapi as g
print(*(f"{c}.{n}" for c in g.__all__ for n in vars(getattr(g, c)) if not n.startswith("_")))
"""


@pytest.fixture(scope="module", params=["glustx", pytest.param("stock", marks=pytest.mark.long)])
def volume(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volume]:
    stock = ["glusterd", "gluster"] if request.param == "stock" else []
    need_peer("namespaces", "libgfapi.so.0", "pypi:gfapi", *stock)
    folder = tmp_path_factory.mktemp("brick")
    kind = ServedVolume if request.param == "glustx" else StockVolume
    with NetNamespace() as netns, kind(folder, "v1", netns) as served:
        yield served


def lines(volume: Volume, script: Path, folder: Path) -> list[str]:
    """What the script says of the volume, which it leaves empty."""
    folder.mkdir()
    env = ["env", f"PYTHONPATH={ROOT}"]
    argv = [volume.host, str(volume.port), volume.volume, str(folder)]
    run = [RUN] if script == SCRIPT else []
    done = volume.run(*env, sys.executable, *run, script, *argv)
    assert done.stderr == "", done.stderr
    return done.stdout.splitlines()


def test_the_same_script_says_the_same(volume: Volume, tmp_path: Path) -> None:
    other = tmp_path / "script.py"
    text = SCRIPT.read_text()
    other.write_text(text.replace("from gluster.gfapi", "from glustx.gfapi"))
    changed = [line for line in difflib.ndiff(text.splitlines(), other.read_text().splitlines()) if line[0] == "+"]
    assert [line.split()[1:3] for line in changed] == [["from", "glustx.gfapi"], ["from", "glustx.gfapi.exceptions"]]
    theirs = lines(volume, SCRIPT, tmp_path / "theirs")
    ours = lines(volume, other, tmp_path / "ours")
    assert len(theirs) > 200 and theirs[-1] == "empty: []"
    diff = "\n".join(difflib.unified_diff(theirs, ours, "libgfapi-python", "glustx", lineterm="", n=1))
    assert not diff, diff


def test_the_script_uses_all_of_it_and_ours_has_it(tmp_path: Path) -> None:
    need_peer("libgfapi.so.0", "pypi:gfapi")
    (tmp_path / "list.py").write_text(LIST)
    argv = [sys.executable, RUN, tmp_path / "list.py"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert "Volume.copytree" in names and "File.zerofill" in names and len(names) > 80
    # What belongs to its own innards: the C structures, and Python 2.
    inner = {"Dir.next", "Dir.fd", "File.fd", "Volume.fs"}
    text = SCRIPT.read_text()
    for name in sorted(set(names) - inner):
        kind, method = name.split(".")
        assert f".{method}" in text or f'"{method}"' in text, f"the script does not use {name}"
        ours = getattr(glustx.gfapi, kind)
        assert hasattr(ours, method) or method in ours.__annotations__, f"glustx.gfapi has no {name}"
