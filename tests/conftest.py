"""For all layers: the repository's root on the import path, and the logs of running programs beside a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.kit import Process


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        for process in list(Process.live):
            report.sections.append((f"output of {process}", process.log(4096)))
    return report
