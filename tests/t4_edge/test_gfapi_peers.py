"""gfapi against volumes served over TCP: a brick of glustx by `glustx serve`, and a stock brick by stock glusterd."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.kit import NetNamespace, need_peer
from tests.peers import ServedVolume, StockVolume

SCRIPT = Path(__file__).parent / "gfapi_script.py"


@pytest.mark.parametrize("server", ["glustx", "stock"])
def test_gfapi_on_a_served_volume(server: str, tmp_path: Path) -> None:
    need_peer("namespaces", *(["glusterd", "gluster"] if server == "stock" else []))
    folder = tmp_path / "brick"
    folder.mkdir()
    kind = ServedVolume if server == "glustx" else StockVolume
    with NetNamespace() as netns, kind(folder, "v1", netns) as volume:
        done = volume.run("env", f"PYTHONPATH={SCRIPT.parent.parent.parent}", sys.executable, SCRIPT, volume.url("top"))
    report = json.loads(done.stdout)
    print(report)
    assert report["zerofill_1gib_seconds"] < 5
    assert done.stderr == ""
