"""libiscsi's test suite, iscsi-test-cu: one process per test, and what came of it.

    python -m tests.iscsi_suite URL [URL]        runs all of it and prints a table

One process per test, because 1.19 lets one test's hooks leak into the next. A skipped test counts as passed there; here
it does not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence

TEST_SECONDS = 120.0
PROGRAM = ("iscsi-test-cu",)

# Faults of the suite itself, seen on tgt and LIO as well.
HARNESS_FAULTS = {
    # Run alone it fails everywhere in 1.19; 1.20 has mended it.
    "iSCSI.iSCSITMF.LUNResetSimpleAsync",
    # Sends blocks of FFh by WRITE SAME with UNMAP and wants zeroes read; SBC has the blocks written then.
    "SCSI.WriteSame10.UnmapUntilEnd",
    # Wants the SANITIZE of a whole unit to take more than three seconds.
    "SCSI.Sanitize.Reset",
}


def names_of(program: Sequence[str] = PROGRAM) -> list[str]:
    """Return the names of all tests, each once (SCSI.Suite.Test or iSCSI.Suite.Test)."""
    listed = subprocess.run([*program, "-l"], capture_output=True, text=True).stdout.split()
    return [name for name in listed if name.count(".") == 2 and name.startswith(("SCSI.", "iSCSI."))]


def run(test: str, urls: Sequence[str], program: Sequence[str] = PROGRAM) -> tuple[str, str]:
    """Run one test and return ("pass" | "skip" | "fail" | "time-out", output)."""
    argv = [*program, "-d", "-S", "-n", "-t", test, *urls]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TEST_SECONDS, errors="replace")
    except subprocess.TimeoutExpired as error:
        return "time-out", str(error.stdout)
    text = done.stdout + done.stderr
    summary = re.search(r"tests\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", text)
    if summary is None or int(summary[2]) != 1:
        return "fail", text
    if int(summary[4]) or int(summary[3]) != 1:
        return "fail", text
    return ("skip" if "[SKIPPED]" in text else "pass"), text


def run_all(names: Iterable[str], urls: Sequence[str], program: Sequence[str] = PROGRAM) -> dict[str, str]:
    """Run tests one after the other; print those that fail."""
    results = {}
    for name in names:
        results[name], text = run(name, urls, program)
        if results[name] in ("fail", "time-out"):
            print(f"---- {results[name]}: {name}\n{text}", flush=True)
    return results


def main() -> int:
    """Run the suite against the URLs of the command line."""
    words = sys.argv[1:]
    program = list(PROGRAM)
    if words and words[0].startswith("--program="):
        program = words.pop(0).partition("=")[2].split()
    urls = [word for word in words if "://" in word]
    only = [word for word in words if "://" not in word]
    names = [name for name in names_of(program) if not only or any(each in name for each in only)]
    results = run_all(names, urls, program)
    for state in ("skip", "fail", "time-out"):
        print(f"{state}: {', '.join(name for name, found in results.items() if found == state)}")
    print(dict(Counter(results.values())))
    return int(any(found in ("fail", "time-out") for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
