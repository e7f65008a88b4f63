"""A brick in the place of stock's glusterfsd: started by glusterd, found by it, asked and ended by it.

The parent stays until the brick has signed in at the portmap. What must hold besides: the pid file holds the serving
process, its name is `glusterfsd`, its command line is what glusterd wrote, and SIGUSR1 writes a statedump where
glusterd looks for it.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from glustx import linux, logs, volfile
from glustx.graph import Graph
from glustx.mgmt.brick import BrickConfig, OnSignal, run_brick
from glustx.mgmt.brickargs import BrickArguments, amend, parse_arguments
from glustx.mgmt.daemon import Announcer, PidFile, daemonize, set_process_name
from glustx.mgmt.state import ServeError
from glustx.volfile import VolfileError

log = logging.getLogger("glustx.brick")

NAME = "glusterfsd"
RUN = Path("/var/run/gluster")

# Stock's `volume stop` does not wait for the brick's end, and a `volume start` may come right behind it.
_PATIENCE = 10.0

# Translators of clients that leave work to a brick's features/index.
_NEED_INDEX = {"cluster/replicate": "replicated", "cluster/disperse": "dispersed"}


def run(words: Sequence[str]) -> int:
    """Serve a brick by stock's command line and return the exit status; of a daemon neither parent nor child returns.

    The status is 0, or what glusterd makes sense of: EADDRINUSE makes it try another port, anything else is a failure.
    """
    try:
        arguments = parse_arguments(words)
        handler = logs.set_up(arguments.level, file=arguments.log_file, utc=not arguments.local_time)
    except (ServeError, OSError) as error:
        Announcer(None).failed(f"{NAME}: {error}", 1)
        return 1
    announcer = Announcer(None) if arguments.foreground else daemonize()
    set_process_name(NAME)
    status = 1
    try:
        status = _serve(arguments, handler, announcer)
    except BaseException as error:
        log.critical("the brick ends", exc_info=error)
        announcer.failed(f"{NAME}: {error!r}", 1)
    if not arguments.foreground:
        _end(status)
    return status


def _serve(arguments: BrickArguments, handler: logging.Handler, announcer: Announcer) -> int:
    pid_file = PidFile(arguments.pid_file) if arguments.pid_file is not None else None
    on_signal: OnSignal = {
        signal.SIGHUP: functools.partial(_rotate, handler),
        signal.SIGUSR1: functools.partial(_statedump, arguments.brick),
    }
    try:
        if pid_file is not None:
            pid_file.take()
        for note in arguments.notes:
            log.info("%s", note)
        run_brick(_config(arguments), arguments.volume, announcer.ready, on_signal)
    except ServeError as error:
        log.error("%s", error)
        status = error.number if 0 < error.number < 256 else 1
        announcer.failed(f"{NAME}: {error}", status)
        return status
    finally:
        if pid_file is not None:
            pid_file.remove()
    log.info("the brick has ended")
    return 0


def _config(arguments: BrickArguments) -> BrickConfig:
    return BrickConfig(
        arguments.volfile,
        arguments.server if arguments.volfile is None else None,
        arguments.volfile_id,
        arguments.socket,
        strict=False,
        amend=functools.partial(amend, arguments=arguments),
        refuse=(arguments.client_volfile_id, _refuse_clients),
        brick=arguments.brick,
        host=arguments.server.host if arguments.server is not None else "localhost",
        patience=_PATIENCE,
    )


def _refuse_clients(text: str) -> None:
    """Refuse (ServeError) a volume whose clients count on what this brick does not keep."""
    try:
        types = {volume.type for volume in volfile.parse(text, strict=False).volumes}
    except VolfileError as error:
        raise ServeError(f"the volfile of the volume's clients cannot be read: {error}") from None
    for kind, word in _NEED_INDEX.items():
        if kind in types:
            raise ServeError(
                f"bricks of {word} volumes are not offered: {kind} finds what must be healed in features/index, "
                "which this brick does not keep"
            )


def _rotate(handler: logging.Handler, graph: Graph | None) -> None:
    """Go on in a new log file, after logrotate has moved the old one away."""
    if isinstance(handler, logs.LogFile):
        try:
            handler.reopen()
        except OSError as error:
            log.error("the log goes on in the old file: %s", error)


def _end(status: int) -> NoReturn:
    """End a daemon at once: the interpreter's own end takes longer than everything that is left to do."""
    logging.shutdown()
    os._exit(status)


# -- statedumps --------------------------------------------------------------------------------------------------------


def _statedump(brick: str, graph: Graph | None) -> None:
    """Write a statedump where glusterd and its tools look for one."""
    if graph is None:
        return
    began = _stamp()
    heap = "".join(f"mallinfo_{name}={value}\n" for name, value in linux.heap_figures().items())
    text = f"DUMP-START-TIME: {began}\n\n[mallinfo]\n{heap}\n{graph.statedump()}\nDUMP-END-TIME: {_stamp()}\n"
    name = f"{brick.strip('/').replace('/', '-') or 'glusterdump'}.{os.getpid()}.dump.{int(time.time())}"
    folder = _dump_folder(graph)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Under its name only when it is whole.
        fd, temporary = tempfile.mkstemp(prefix="dump", dir=folder)
        with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(temporary, folder / name)
    except OSError as error:
        log.error("no statedump in %s: %s", folder, error)
    else:
        log.info("statedump %s", folder / name)


def _dump_folder(graph: Graph) -> Path:
    """The folder that the administrator wants statedumps in: by the options file, by the volfile, or stock's."""
    for name in ("glusterdump.options", f"glusterdump.{os.getpid()}.options"):
        try:
            words = (RUN / name).read_text("utf-8", "surrogateescape").split()
        except OSError:
            continue
        for word in words:
            if word.startswith("path=/"):
                return Path(word.removeprefix("path="))
        break
    return Path(graph.spec.root.options.get("statedump-path") or RUN)


def _stamp() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d} +0000"
