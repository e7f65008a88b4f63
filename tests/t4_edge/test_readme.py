"""README stays true: its peers are tested by the tests it names, its commands and options exist, its figures agree."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from glustx.cli.failures import INTERRUPTED, MISMATCH, NO_SPACE, NOT_CONNECTED, TERMINATED, USAGE
from glustx.cli.main import app
from tests.kit import PACKAGES, ROOT

README = (ROOT / "README.md").read_text()
CI = (ROOT / ".ci" / "run").read_text()
PEERS = [
    [cell.strip().strip("`") for cell in line.strip("|").split("|")]
    for line in README[README.index("## Peers") : README.index("## More")].splitlines()
    if line.startswith("| `")
]
COMMANDS = sorted({line.partition("#")[0].strip() for line in README.splitlines() if line.startswith("    glustx ")})
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_there_are_peers_and_commands() -> None:
    assert len(PEERS) >= 4 and len(COMMANDS) >= 5


@pytest.mark.parametrize(("peer", "packages", "what", "test"), PEERS, ids=[row[0] for row in PEERS])
def test_a_peer_is_tested_where_it_says(peer: str, packages: str, what: str, test: str) -> None:
    named = packages.split(", ")
    assert PACKAGES[peer] in named
    text = (ROOT / test).read_text()
    assert re.search(r"^(    )?(async )?def test_", text, re.MULTILINE), f"{test} holds no test"
    wanted = set(re.findall(r'"([^"]+)"', " ".join(re.findall(r"need_peer\(([^)]*)\)", text))))
    fixtures = (ROOT / "tests" / "t4_edge" / "conftest.py").read_text()
    assert peer in wanted or f'"{peer}"' in text or f'"{peer}"' in fixtures, f"{test} does not ask for {peer}"
    for package in named:
        assert re.search(rf"\s{package}\s", CI), f".ci/run does not install {package}"


def test_ci_installs_every_peer_that_tests_ask_for() -> None:
    missing = {package for package in PACKAGES.values() if not re.search(rf"\s{re.escape(package)}\s", CI)}
    assert not missing


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_is_one(command: str) -> None:
    words = shlex.split(command)[1:]
    found = get_command(app)
    while words and hasattr(found, "commands"):
        assert words[0] in found.commands, f"{command}: there is no {words[0]}"
        found = found.commands[words.pop(0)]
    assert not hasattr(found, "commands"), f"{command} names no command"
    known = {option for param in found.params for option in (*param.opts, *param.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word in known, f"{command}: there is no {word}"


def test_exit_codes() -> None:
    said = README[README.index("Exit codes:") :].partition("interrupted.")[0]
    for code in (USAGE, MISMATCH, NO_SPACE, NOT_CONNECTED, INTERRUPTED, TERMINATED):
        assert re.search(rf"\b{code}\b", said)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (document.parent / target).exists(), target
    for path in re.findall(r"`((?:glustx|tests|docs|bench|volfiles)/[\w./*-]*)`", text):
        if path != "glustx/xlators/performance/read_ahead.py":  # the example of one to be written
            assert list(ROOT.glob(path.rstrip("/"))), path
    for target in re.findall(r"^ {4}make (\w+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target
