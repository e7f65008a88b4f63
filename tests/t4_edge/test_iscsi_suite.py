"""libiscsi's own test suite against a gateway: nothing fails, and every test runs on one of four LUNs at least."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.gateway import GatewayProcess, sparse
from tests.iscsi_suite import HARNESS_FAULTS, names_of, run
from tests.kit import need_peer

NAME = "iqn.2026-12.org.example:suite"
# Some tests run only where physical blocks are larger than logical ones, some only where they are not, and so on.
UNITS = {
    "512n": ("pblocksize=512",),
    "512e": ("pblocksize=4096",),
    "removable": ("pblocksize=512", "removable=on"),
    "read-only": ("pblocksize=512", "readonly=on"),
}
# WRITE ATOMIC, which no file system promises over a loss of power, and CRYPTO ERASE are not offered.
NOT_OFFERED = re.compile(r"SCSI\.WriteAtomic16\..*|SCSI\.Sanitize\.(CryptoErase|Readonly|Reservations)")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    need_peer("iscsi-test-cu")
    folder = tmp_path_factory.mktemp("brick")
    with sparse(folder, {f"{name}.img": 1 << 30 for name in UNITS}), GatewayProcess() as process:
        process.disk(NAME, {f"{folder}:/{name}.img": options for name, options in UNITS.items()})
        yield process


@pytest.mark.timeout(600)
def test_all_of_it(gateway: GatewayProcess) -> None:
    results: dict[str, str] = {}
    said: dict[str, str] = {}
    for lun, unit in enumerate(UNITS):
        for name in names_of():
            # What has run on the first LUN need not run again: only the skipped go on to the next.
            if results.get(name, "skip") != "skip" or name in HARNESS_FAULTS or NOT_OFFERED.fullmatch(name):
                continue
            results[name], text = run(name, [gateway.url(NAME, lun)] * 2)
            if results[name] not in ("pass", "skip"):
                said[f"{name} on {unit}"] = text
    print(said)
    failed = sorted(said)
    skipped = sorted(name for name, result in results.items() if result == "skip")
    assert not failed, f"{failed}\n{gateway.process.log()}"
    assert not skipped
    assert len(results) == len(names_of()) - 12
