"""Answers to the brick operations of stock's management daemon, out of the graph of a running brick.

`gluster volume stop`, `profile`, and `status VOLUME clients|client-list|inode|fd|mem|callpool` come here. What this
brick does not do is refused with a sentence, which `gluster` shows.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from glustx import linux
from glustx.fops import FOPS, STOCK_LAST
from glustx.graph import Graph
from glustx.rpc import brickops as b
from glustx.rpc import dict_v1
from glustx.rpc.brickops import BrickOpReply, BrickOpRequest
from glustx.rpc.connection import Handler, ProcUnavail, RpcConnection
from glustx.rpc.message import Call
from glustx.xlator import Xlator
from glustx.xlators.debug.io_stats import IoStats
from glustx.xlators.protocol.server import Server
from glustx.xlators.protocol.server_session import ServerSession

log = logging.getLogger("glustx.brick")

Facts = dict[str, "str | int"]

_CLIENT_PID = re.compile(r"-PID:(\d+)-")
_REFUSED = {
    b.XLATOR_OP: "this process heals nothing",
    b.XLATOR_DEFRAG: "this process rebalances nothing",
    b.VOLUME_BARRIER_OP: "barriers are not offered",
    b.BRICK_BARRIER: "barriers are not offered, so neither are snapshots",
    b.ATTACH: "a process serves one brick; turn cluster.brick-multiplex off",
    b.DUMP_METRICS: "there are no metrics but those of `gluster volume profile` and statedumps",
    b.SVC_ATTACH: "this process is a brick",
    b.SVC_DETACH: "this process is a brick",
}


class Refusal(Exception):
    """An operation that is not done, as a sentence for whoever asked for it."""


class Operations:
    """Answers for one process.

    Args:
        graph: what it serves.
        end: ends the process, after the answer has been sent.
    """

    def __init__(self, graph: Graph, end: Callable[[], None]) -> None:
        self._graph = graph
        self._end = end
        self._answers: dict[int, Callable[[BrickOpRequest], Facts]] = {
            b.TERMINATE: self._terminate,
            b.XLATOR_INFO: self._info,
            b.STATUS: self._status,
        }

    def programs(self) -> dict[tuple[int, int], Handler]:
        """Return the program for a connection's table."""
        return {(b.BRICK_OPERATIONS.number, b.BRICK_OPERATIONS.version): self.handle}

    def handle(self, connection: RpcConnection, call: Call, body: bytes) -> bytes:
        """Answer one call; XdrError for arguments that are none."""
        answer = self._answers.get(call.proc)
        if answer is None and call.proc not in _REFUSED:
            raise ProcUnavail
        request = BrickOpRequest.decode(body)
        try:
            if answer is None:
                raise Refusal(_REFUSED[call.proc])
            facts = answer(request)
        except Refusal as refusal:
            log.warning("%s is refused: %s", b.BRICK_OPERATIONS.procedure(call.proc), refusal)
            return BrickOpReply(-1, 0, {}, str(refusal)).encode()
        return BrickOpReply(output=dict_v1.pack_all(facts)).encode()

    def _brick(self, name: str) -> Xlator:
        for child in self._graph.root.subvolumes:
            if child.name == name:
                return child
        known = ", ".join(child.name for child in self._graph.root.subvolumes)
        raise Refusal(f"no brick {name!r} here, but {known}")

    # -- TERMINATE -------------------------------------------------------------------------------------------------

    def _terminate(self, request: BrickOpRequest) -> Facts:
        try:
            self._brick(request.name)
        except Refusal as refusal:
            # As in stock: whoever wants a brick down is content when it is not here.
            log.warning("TERMINATE: %s", refusal)
            return {}
        log.info("told to end the brick %s", request.name)
        self._end()
        return {}

    # -- XLATOR_INFO: profile --------------------------------------------------------------------------------------

    def _info(self, request: BrickOpRequest) -> Facts:
        if b"top-op" in request.input or b"clear-stats" in request.input:
            raise Refusal("`gluster volume top` is not offered; `gluster volume profile` is")
        stats = self._stats(self._brick(request.name))
        wanted = dict_v1.number(request.input, b"info-op", b.INFO_ALL)
        if not b.INFO_ALL <= wanted <= b.INFO_CLEAR:
            wanted = b.INFO_ALL
        facts: Facts = {"info-op": wanted}
        if wanted == b.INFO_CLEAR:
            stats.reset()
            return {**facts, "stats-cleared": 1}
        peek = wanted == b.INFO_CUMULATIVE or dict_v1.text(request.input, b"peek") in ("on", "yes", "true", "1")
        profile = stats.profile(peek=peek)
        if wanted != b.INFO_INCREMENTAL:
            facts.update(_span("cumulative", -1, profile["cumulative"]))
        if wanted != b.INFO_CUMULATIVE:
            facts.update(_span("interval", profile["interval"]["number"], profile["interval"]))
        return facts

    def _stats(self, top: Xlator) -> IoStats:
        for xlator in _below(top):
            if isinstance(xlator, IoStats):
                return xlator
        raise Refusal(f"brick {top.name} has no debug/io-stats, which counts for `gluster volume profile`")

    # -- STATUS ----------------------------------------------------------------------------------------------------

    def _status(self, request: BrickOpRequest) -> Facts:
        brick = self._brick(dict_v1.text(request.input, b"brick-name"))
        wanted = dict_v1.number(request.input, b"cmd") & b.STATUS_MASK
        if wanted in (b.STATUS_CLIENTS, b.STATUS_CLIENT_LIST):
            return self._clients(brick)
        if wanted == b.STATUS_INODE:
            return self._inodes()
        if wanted == b.STATUS_FD:
            return self._fds(brick)
        if wanted == b.STATUS_MEM:
            return {f"mallinfo.{name}": value for name, value in linux.heap_figures().items()}
        if wanted == b.STATUS_CALLPOOL:
            return self._calls(brick)
        raise Refusal(f"status {wanted:#x} is not known")

    def _sessions(self, brick: Xlator) -> list[ServerSession]:
        server = self._graph.root
        return [s for s in server.sessions if s.child is brick] if isinstance(server, Server) else []

    def _clients(self, brick: Xlator) -> Facts:
        facts: Facts = {}
        sessions = self._sessions(brick)
        for index, session in enumerate(sessions):
            channel = session.last_channel
            facts[f"client{index}.hostname"] = session.peer
            facts[f"client{index}.bytesread"] = channel.received if channel is not None else 0
            facts[f"client{index}.byteswrite"] = channel.sent if channel is not None else 0
            facts[f"client{index}.opversion"] = session.op_version
            facts[f"client{index}.name"] = session.program or "unknown"
        return {**facts, "clientcount": len(sessions)}

    def _inodes(self) -> Facts:
        inodes = list(self._graph.inodes)
        held = sum(1 for inode in inodes if inode.holds)
        table = "conn0.itable"
        return {
            "conncount": 1,
            f"{table}.lru_limit": self._graph.inodes.limit,
            f"{table}.active_size": held,
            f"{table}.lru_size": len(inodes) - held,
            f"{table}.purge_size": 0,
        }

    def _fds(self, brick: Xlator) -> Facts:
        facts: Facts = {}
        sessions = self._sessions(brick)
        for index, session in enumerate(sessions):
            table = f"conn{index}.fdtable"
            fds = session.fds.by_number()
            # A client says its process id only within its name, and without one `gluster` passes an fd over.
            pid = _CLIENT_PID.search(session.client)
            for number, fd in fds.items():
                facts[f"{table}.fdentry{number}.pid"] = pid[1] if pid else 0
                facts[f"{table}.fdentry{number}.refcount"] = 1
                facts[f"{table}.fdentry{number}.flags"] = fd.flags
            size = max(fds, default=-1) + 1
            facts[f"{table}.refcount"] = 1
            facts[f"{table}.maxfds"] = size
            facts[f"{table}.firstfree"] = next(number for number in range(size + 1) if number not in fds)
            facts[f"{table}.openfds"] = len(fds)
        return {**facts, "conncount": len(sessions)}

    def _calls(self, brick: Xlator) -> Facts:
        facts: Facts = {}
        count = 0
        for session in self._sessions(brick):
            for req in session.runs.values():
                stack = f"callpool.stack{count}"
                caller = req.caller
                facts[f"{stack}.uid"], facts[f"{stack}.gid"], facts[f"{stack}.pid"] = caller.uid, caller.gid, caller.pid
                facts[f"{stack}.unique"] = count
                facts[f"{stack}.op"] = req.name.upper()
                facts[f"{stack}.type"] = 1  # a fop
                facts[f"{stack}.count"] = 1
                facts[f"{stack}.frame0.translator"] = brick.name
                facts[f"{stack}.frame0.complete"] = 0
                facts[f"{stack}.frame0.windto"] = req.name
                count += 1
        return {**facts, "callpool.count": count}


def _below(top: Xlator) -> Iterator[Xlator]:
    yield top
    for child in top.subvolumes:
        yield from _below(child)


def _span(kind: str, number: int, figures: dict[str, Any]) -> Iterator[tuple[str, str | int]]:
    """Yield a span of a profile by stock's keys; fops go by stock's numbers, latencies are nanoseconds."""
    yield kind, number
    yield f"{number}-duration", int(figures["duration"])
    yield f"{number}-total-read", figures["read"]
    yield f"{number}-total-write", figures["written"]
    for size, hits in figures["blocks"].items():
        for way in ("read", "write"):
            if hits[f"{way}s"]:
                # `gluster` has no row below 1 byte; a READ at the end of a file has none.
                yield f"{number}-{way}-{max(size, 1)}", hits[f"{way}s"]
    for name, row in figures["fops"].items():
        fop = FOPS[name].gf_fop
        if not 0 <= fop <= STOCK_LAST:
            continue
        yield f"{number}-{fop}-hits", row["count"]
        if row.get("avg"):
            yield f"{number}-{fop}-avglatency", f"{row['avg'] * 1000:f}"
            yield f"{number}-{fop}-minlatency", f"{row['min'] * 1000:f}"
            yield f"{number}-{fop}-maxlatency", f"{row['max'] * 1000:f}"
