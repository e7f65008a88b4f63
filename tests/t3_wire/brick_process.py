"""A brick in a process of its own, so that its memory and descriptors can be counted.

python -m tests.t3_wire.brick_process FOLDER [protocol/server's options as KEY=VALUE...]
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from glustx import fops, volgen
from glustx.linux import keep_freed_memory
from glustx.rpc.channel import Address
from glustx.values import ROOT_LOC
from glustx.xlators.storage.posix import prepare_brick
from tests.conformance.served import served
from tests.kit import PATIENCE, ROOT, Process, Stopwatch
from tests.t3_wire.attacks import Attacker

MIB = 1 << 20


def main(folder: str, options: list[str]) -> None:
    """Serve until stdin ends; the first line tells the port."""
    namespace = "trusted" if os.geteuid() == 0 else "user"
    prepare_brick(folder, namespace=namespace)
    keep_freed_memory()
    more = {
        "storage/posix": {"xattr-namespace": namespace},
        "protocol/server": dict(option.split("=", 1) for option in options),
    }
    with served(volgen.brick_volfile("test", folder, 0, options=more)) as brick:
        print(f"port {brick.address.port}", flush=True)
        sys.stdin.read()


class BrickProcess:
    """Starts it, tells what it uses.

    Args:
        folder: of the brick.
        options: of protocol/server.
    """

    def __init__(self, folder: Path, **options: object) -> None:
        words = [f"{key.replace('_', '-')}={value}" for key, value in options.items()]
        argv = [sys.executable, "-m", "tests.t3_wire.brick_process", str(folder), *words]
        self.name = str(folder)
        self.process = Process(argv, cwd=ROOT, stdin=-1)

    def __enter__(self) -> BrickProcess:
        port = self.process.wait_line(lambda line: int(line.split()[1]) if line.startswith("port ") else None)
        self.address = Address("127.0.0.1", port)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()

    def attacker(self, client: str = "", timeout: float = PATIENCE) -> Attacker:
        """A client that has not logged in."""
        return Attacker(self.address, self.name, timeout=timeout, client=client)

    def resident(self) -> int:
        """Bytes of memory that it has."""
        with open(f"/proc/{self.process.popen.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        """How many it has open."""
        return len(os.listdir(f"/proc/{self.process.popen.pid}/fd"))


class Bystander:
    """A client that behaves, asking every few milliseconds while the others do not; tells how long it had to wait."""

    def __init__(self, brick: BrickProcess) -> None:
        self.brick = brick
        self.waits: list[float] = []
        self.longest = 0.0  # of them, by a Stopwatch
        self._end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            with self.brick.attacker() as peer:
                peer.login()
                while True:
                    began, watch = time.perf_counter(), Stopwatch()
                    peer.fop(fops.Stat(ROOT_LOC))
                    self.waits.append(time.perf_counter() - began)
                    self.longest = max(self.longest, watch.seconds())
                    if self._end.wait(0.005):
                        break
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end.set()
        self._thread.join(2 * PATIENCE)
        if error is None and self._error is not None:
            raise self._error

    def quantile(self, share: float) -> float:
        """The wait, in seconds, that this share of its calls did not exceed."""
        waits = sorted(self.waits)
        return waits[min(len(waits) - 1, int(len(waits) * share))]


@contextlib.contextmanager
def others_served(brick: BrickProcess, what: str) -> Iterator[Bystander]:
    """Within the block somebody else is served in less than a second; prints how long it had to wait, and how long when
    nothing else went on."""
    with Bystander(brick) as idle:
        time.sleep(0.15)
    with Bystander(brick) as bystander:
        yield bystander
    for name, row in (("idle", idle), (what, bystander)):
        print(f"{name:40} {len(row.waits):5} calls, p50 {row.quantile(0.5) * 1e3:7.2f} ms,"
              f" p99 {row.quantile(0.99) * 1e3:7.2f} ms, longest {max(row.waits) * 1e3:7.2f} ms")  # fmt: skip
    assert bystander.longest < 1.0


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
