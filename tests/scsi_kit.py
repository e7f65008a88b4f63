"""A gateway without sockets: one unit on a brick in this process, and commands as bytes in and results out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from glustx.errors import FopError
from glustx.fops import Create, Fop, Ftruncate, Release
from glustx.graph import Graph, Surroundings
from glustx.inode import Fd
from glustx.runtime import ManualReactor, Waiter, turn
from glustx.scsi.config import LunConfig, TargetConfig
from glustx.scsi.gateway import Gateway
from glustx.scsi.sense import Sense
from glustx.scsi.task import CHECK_CONDITION, GOOD, SIMPLE, Nexus, Result, Task
from glustx.scsi.unit import LogicalUnit
from glustx.values import NULL_GFID, ROOT_GFID, Loc, new_gfid
from glustx.xdata import GFID_REQ, Xdata, gfuuid
from glustx.xlator import Wind

MEMORY = "volume m\n type storage/memory\nend-volume\n"
NAME = "iqn.2026-12.org.example:disks"


class Pending:
    """A command that was sent: `result` is set when it has ended, and it stands in `ended`."""

    def __init__(self, ended: list[Pending]) -> None:
        self.all_ended = ended
        self.result: Result | None = None
        self.done = False

    def ended(self, task: Task, result: Result | None) -> None:
        self.result = result
        self.done = True
        self.all_ended.append(self)


class Rig:
    """A started gateway with one target, one unit on a file of `size` bytes, and one initiator logged in.

    Args:
        volfile: its last volume is the graph.
        size: of the file.
        options: of the unit.
    """

    def __init__(self, volfile: str = MEMORY, size: int = 1 << 20, **options: Any) -> None:
        self.reactor = ManualReactor()
        self.graph = Graph.load(volfile, Surroundings(self.reactor))
        self.reactor.wait(self.graph.start())
        fd = Fd(NULL_GFID, 2)
        loc = Loc(pargfid=ROOT_GFID, name=b"disk")
        gfid = Xdata({GFID_REQ: gfuuid(new_gfid())})
        self.reactor.wait(self.graph.top(Create(loc=loc, fd=fd, flags=0o102, mode=0o600, xdata=gfid)))
        self.reactor.wait(self.graph.top(Ftruncate(fd, size)))
        self.reactor.wait(self.graph.top(Release(fd)))
        self.gateway = Gateway({"m": self.graph.top}, self.reactor)
        self.config = TargetConfig(name=NAME, luns={0: LunConfig(path="/disk", **options)})
        self.reactor.wait(self.gateway.start([self.config]))
        self.target = self.gateway.targets[NAME]
        self.unit: LogicalUnit = self.target.units[0]
        self.tag = 0
        self.ended: list[Pending] = []
        self.nexus = self.login("iqn.2026-12.org.example:one,i,0x000000000001")

    def login(self, initiator: str) -> Nexus:
        """Log an initiator in; the unit attention of a new nexus is taken away."""
        nexus = self.target.login(initiator, 1, None)
        nexus.attentions.clear()
        return nexus

    def begin(
        self,
        cdb: str | bytes,
        data: Any = b"",
        *,
        nexus: Nexus | None = None,
        attribute: int = SIMPLE,
        expected: int | None = None,
        lun: int = 0,
    ) -> tuple[Task, Pending]:
        """Send a command, taking of the data-out what the transport would, and do not wait for its end."""
        cdb = bytes.fromhex(cdb) if isinstance(cdb, str) else cdb
        nexus = nexus or self.nexus
        self.tag += 1
        pending = Pending(self.ended)
        wanted = self.target.data_out_length(nexus, lun, cdb)
        expected = len(data) if expected is None else expected
        task = Task(nexus, lun, self.tag, cdb, data[:wanted], attribute, pending.ended, expected)

        def go() -> None:
            self.target.enlist(task)
            self.target.submit(task)

        turn(go)
        return task, pending

    def wait(self, pending: Pending) -> Result:
        """Wait for a command's end and return its result."""
        self.reactor.run_until(lambda: pending.done)
        assert pending.result is not None
        return pending.result

    def run(self, cdb: str | bytes, data: Any = b"", **more: Any) -> Result:
        """Do a command and return its result."""
        return self.wait(self.begin(cdb, data, **more)[1])

    def good(self, cdb: str | bytes, data: Any = b"", **more: Any) -> bytes:
        """Do a command that must end GOOD and return its data-in."""
        result = self.run(cdb, data, **more)
        assert result.status == GOOD, f"{cdb!r}: {result.sense}"
        return b"".join(result.data)

    def sense(self, cdb: str | bytes, data: Any = b"", **more: Any) -> Sense:
        """Do a command that must end with CHECK CONDITION and return its sense."""
        result = self.run(cdb, data, **more)
        assert result.status == CHECK_CONDITION and result.sense is not None, f"{cdb!r}: status {result.status:#x}"
        return result.sense

    def close(self) -> None:
        """Stop the gateway and its graph."""
        self.reactor.wait(self.gateway.stop())
        self.reactor.wait(self.graph.stop())


def cdb_10(opcode: int, lba: int, count: int, flags: int = 0) -> bytes:
    """Return a 10-byte CDB of the common form."""
    return bytes([opcode, flags]) + lba.to_bytes(4, "big") + b"\0" + count.to_bytes(2, "big") + b"\0"


def cdb_12(opcode: int, lba: int, count: int, flags: int = 0) -> bytes:
    """Return a 12-byte CDB of the common form."""
    return bytes([opcode, flags]) + lba.to_bytes(4, "big") + count.to_bytes(4, "big") + b"\0\0"


def cdb_16(opcode: int, lba: int, count: int, flags: int = 0) -> bytes:
    """Return a 16-byte CDB of the common form."""
    return bytes([opcode, flags]) + lba.to_bytes(8, "big") + count.to_bytes(4, "big") + b"\0\0"


class Faulty:
    """The graph below a backing, with fops that fail as told.

    Attributes:
        errors: class of fop -> errno, or what takes the fop and returns an errno or 0.
        gates: class of fop -> waiter; the next such fop waits for it, and those after it do not.
        counts: class of fop -> how many came.
    """

    def __init__(self, rig: Rig) -> None:
        self.child: Wind = rig.unit.backing.child
        self.xlator = self.child.xlator
        self.errors: dict[type[Fop], int | Callable[[Any], int]] = {}
        self.gates: dict[type[Fop], Waiter[None]] = {}
        self.counts: Counter[type[Fop]] = Counter()
        rig.unit.backing.child = cast(Wind, self)

    async def __call__(self, req: Fop) -> Any:
        self.counts[type(req)] += 1
        gate = self.gates.pop(type(req), None)
        if gate is not None:
            await gate
        error = self.errors.get(type(req), 0)
        code = error(req) if callable(error) else error
        if code:
            raise FopError(code, "on request")
        return await self.child(req)
