"""For all layers: the repository's root on the import path, seeds that are printed, logs that must be announced, and
the output of running programs beside a failure."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.kit import Process


def _seed(said: str) -> int:
    return random.SystemRandom().randrange(1 << 32) if said == "random" else int(said)


# One seed for all that is drawn, and the same in every run, so that a change fails for what it does. GLUSTX_TEST_SEED
# sets another; "random" draws one, as `make long` does.
SEED = _seed(os.environ.get("GLUSTX_TEST_SEED") or "0")

# Nothing here may depend on how busy the machine is, or on what an earlier run has found.
hypothesis.settings.register_profile(
    "glustx", deadline=None, database=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("glustx")


@pytest.hookimpl(tryfirst=True)  # before hypothesis's own plugin reads its option
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "logs(pattern): a glustx logger is expected to say a WARNING or ERROR like this")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {SEED} (GLUSTX_TEST_SEED={SEED} repeats it), hypothesis: {config.option.hypothesis_seed}"


@pytest.fixture
def seeded() -> random.Random:
    """A generator that draws the same for the same seed of the run, whatever ran before."""
    return random.Random(SEED)


class _Strict(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class ExpectedLogs:
    """Patterns of warnings that a test announces while it runs."""

    def __init__(self, patterns: list[str]) -> None:
        self.patterns = patterns

    def expect(self, pattern: str) -> None:
        """Announce a WARNING or ERROR whose text matches `pattern` (re.search)."""
        self.patterns.append(pattern)


@pytest.fixture(autouse=True)
def expected_logs(request: pytest.FixtureRequest) -> Iterator[ExpectedLogs]:
    """Fails a test in which a glustx logger says WARNING or more and nobody announced it (marker `logs`, or
    `expected_logs.expect(pattern)`); fails it as well when what was announced did not come."""
    handler = _Strict()
    logger = logging.getLogger("glustx")
    logger.addHandler(handler)
    expected = ExpectedLogs([str(mark.args[0]) for mark in request.node.iter_markers("logs")])
    try:
        yield expected
    finally:
        logger.removeHandler(handler)
    texts = [f"{record.levelname} {record.name}: {record.getMessage()}" for record in handler.records]
    surprises = [text for text in texts if not any(re.search(pattern, text) for pattern in expected.patterns)]
    if surprises:
        pytest.fail("unannounced logs:\n" + "\n".join(surprises), pytrace=False)
    missing = [pattern for pattern in expected.patterns if not any(re.search(pattern, text) for text in texts)]
    if missing:
        pytest.fail(f"announced and not logged: {missing}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    report = yield
    if report.failed:
        for process in list(Process.live):
            report.sections.append((f"output of {process}", process.log(4096)))
    return report
