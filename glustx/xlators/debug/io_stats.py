"""debug/io-stats: counts, errors, bytes and latency of every fop, for `volume profile` and statedumps.

It sits at the top of a stack and sees what callers see. The table of each fop holds a gate; what is behind the gate
(nothing, a counter, a counter with a clock) follows the options, so that figures nobody wants cost one function call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from glustx import fops
from glustx.fops import FOPS, Fop, Reply
from glustx.graph import Graph
from glustx.inode import Fd, PerFd
from glustx.options import OptionSet, option
from glustx.xlator import Xlator, handles
from glustx.xlators.debug.io_stats_counts import FOLD_AT, FopStats, table

log = logging.getLogger("glustx.io-stats")

Method = Callable[[Any], Coroutine[Any, Any, Any]]

_LEVELS = {
    "": logging.NOTSET,
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "NONE": logging.CRITICAL + 1,
}


class _Gate:
    """Where a fop goes now; options move it."""

    __slots__ = ("to",)

    def __init__(self, to: Method) -> None:
        self.to = to


class _FdStats:
    """What passed through one fd, for `dump-fd-stats`."""

    __slots__ = ("opened", "read", "reads", "writes", "written")

    def __init__(self, now: float) -> None:
        self.opened = now
        self.reads = self.writes = self.read = self.written = 0


class IoStats(Xlator):
    """Counts what passes; see `profile` and `statedump`."""

    class Options(OptionSet):
        """Options of debug/io-stats."""

        count_fop_hits: bool = option(True, "Count fops, their errors and the bytes they carry.", live=True)
        latency_measurement: bool = option(True, "Time every fop; counts them as well.", live=True)
        dump_fd_stats: bool = option(False, "Log what passed through an fd when it is released.", live=True)
        log_level: str = option(
            "",
            "Least level of glustx's own logs while the graph is up; empty leaves it.",
            choices=tuple(_LEVELS),
            live=True,
        )
        accepted = (
            "unique-id",
            "volume-id",
            "threads",
            "global-threading",
            "sys-log-level",
            "logger",
            "log-format",
            "log-buf-size",
            "log-flush-timeout",
            "fop-sample-*",
            "ios-*",
        )

    def wire(self, graph: Graph) -> None:
        """Resolve the fops: each to its gate."""
        super().wire(graph)
        self.stats = {name: FopStats() for name in FOPS}
        self.interval = 0
        self.began = self.interval_began = graph.reactor.time()
        self._fds: PerFd[_FdStats] = PerFd()
        self._dumps_fds = False
        below = self.subvolumes[0].table
        self._ways: dict[type[Fop], tuple[_Gate, Method, Method, Method]] = {}
        for cls in list(self.table):
            stats, down = self.stats[cls.name], below[cls]
            size = _SIZES.get(cls)
            if size is None:
                ways = (_counter(stats, down), _timer(stats, down))
            else:
                ways = (self._sized(stats, down, size, timed=False), self._sized(stats, down, size, timed=True))
            gate = _Gate(down)
            self._ways[cls] = (gate, down, *ways)
            self.table[cls] = _through(gate)
        self._set_gates()

    @handles(fops.ALL_EFFECTS)
    async def counted(self, req: Fop) -> Reply:
        """Count a fop; `wire` puts its gate in the table."""
        reply: Reply = await self._ways[type(req)][0].to(req)
        return reply

    def _set_gates(self) -> None:
        options = self.options
        which = 2 if options.latency_measurement else 1 if options.count_fop_hits else 0
        for gate, *ways in self._ways.values():
            gate.to = ways[which]
        gate, *ways = self._ways[fops.Release]
        self._dumps_fds = options.dump_fd_stats
        if options.dump_fd_stats:
            way = ways[which]

            async def release(req: fops.Release) -> Any:
                self._log_fd(req.fd)
                return await way(req)

            gate.to = release

    def options_changed(self, old: Any) -> None:
        """Move the gates and the log level."""
        self._set_gates()
        if self.options.log_level != old.log_level:
            logging.getLogger("glustx").setLevel(_LEVELS[self.options.log_level])

    async def start(self) -> None:
        """Set the log level, when the volfile names one."""
        self._level_before = logging.getLogger("glustx").level
        if self.options.log_level:
            logging.getLogger("glustx").setLevel(_LEVELS[self.options.log_level])

    async def stop(self) -> None:
        """Put the log level back."""
        logging.getLogger("glustx").setLevel(self._level_before)

    # -- sizes of reads and writes, fds ----------------------------------------------------------------------------

    def _sized(self, stats: FopStats, down: Method, size: Callable[[Any, Any], int], *, timed: bool) -> Method:
        clock = time.perf_counter_ns
        now, samples, lengths, fold = stats.now, stats.samples, stats.lengths, stats.fold

        async def sized(req: Any) -> Any:
            start = clock()
            try:
                reply = await down(req)
            except BaseException:
                now.errors += 1
                if timed:
                    samples.append(clock() - start)
                else:
                    now.count += 1
                raise
            if timed:
                samples.append(clock() - start)
            else:
                now.count += 1
            length = size(req, reply)
            lengths.append(length)
            if len(lengths) >= FOLD_AT:
                fold()
            if self._dumps_fds:
                self._count_fd(req, length)
            return reply

        return sized

    def _count_fd(self, req: Any, length: int) -> None:
        seen = self._fds.get(req.fd)
        if seen is None:
            seen = _FdStats(self.graph.reactor.time())
            self._fds.set(req.fd, seen)
        if isinstance(req, fops.Read):
            seen.reads += 1
            seen.read += length
        else:
            seen.writes += 1
            seen.written += length

    def _log_fd(self, fd: Fd) -> None:
        seen = self._fds.pop(fd)
        if seen is not None:
            log.info(
                "%s: %s was in use for %.3f s: %d reads of %d bytes, %d writes of %d bytes",
                self.name,
                fd,
                self.graph.reactor.time() - seen.opened,
                seen.reads,
                seen.read,
                seen.writes,
                seen.written,
            )

    # -- what people see -------------------------------------------------------------------------------------------

    def profile(self, *, peek: bool = False) -> dict[str, Any]:
        """Return the figures since the last reset ("cumulative") and since the last call ("interval") as plain values.

        Args:
            peek: True leaves the interval under way; otherwise the next one begins.
        """
        now = self.graph.reactor.time()
        cumulative = {name: stats.cumulative() for name, stats in self.stats.items()}
        interval = {name: stats.now for name, stats in self.stats.items()}
        answer = {
            "cumulative": table(cumulative, now - self.began),
            "interval": {"number": self.interval, **table(interval, now - self.interval_began)},
        }
        if not peek:
            self.interval += 1
            self.interval_began = now
            for stats in self.stats.values():
                stats.next_interval()
        return answer

    def reset(self) -> None:
        """Forget all figures."""
        self.interval = 0
        self.began = self.interval_began = self.graph.reactor.time()
        for stats in self.stats.values():
            stats.reset()

    def statedump(self) -> dict[str, Any]:
        """Show the cumulative figures of every fop that came, latencies in microseconds."""
        figures = self.profile(peek=True)["cumulative"]
        state: dict[str, Any] = {"data_read": figures["read"], "data_written": figures["written"]}
        for name, row in figures["fops"].items():
            state[f"fop.{name}.count"] = row["count"]
            state[f"fop.{name}.errors"] = row["errors"]
            if "avg" in row:
                state[f"fop.{name}.latency"] = f"avg:{row['avg']},min:{row['min']},max:{row['max']}"
        return state


def _read_size(_: fops.Read, reply: fops.ReadReply) -> int:
    return len(reply.data)


def _write_size(_: fops.Write, reply: fops.WriteReply) -> int:
    return reply.count


_SIZES: dict[type[Fop], Callable[[Any, Any], int]] = {fops.Read: _read_size, fops.Write: _write_size}


def _through(gate: _Gate) -> Method:
    def enter(req: Any) -> Coroutine[Any, Any, Any]:
        return gate.to(req)

    return enter


def _counter(stats: FopStats, down: Method) -> Method:
    now = stats.now

    async def counted(req: Any) -> Any:
        now.count += 1
        try:
            return await down(req)
        except BaseException:
            now.errors += 1
            raise

    return counted


def _timer(stats: FopStats, down: Method) -> Method:
    clock = time.perf_counter_ns
    now, samples, fold = stats.now, stats.samples, stats.fold

    async def timed(req: Any) -> Any:
        start = clock()
        try:
            return await down(req)
        except BaseException:
            now.errors += 1
            raise
        finally:
            samples.append(clock() - start)
            if len(samples) >= FOLD_AT:
                fold()

    return timed
