"""The pump: how blocking calls drive a graph, from any number of threads, with no event loop.

A call runs its coroutine in the calling thread, under the pump's mutex. When the coroutine has to wait, the caller
takes the baton, if nobody holds it, and pumps: it waits for sockets, timers and posts with the mutex released, and runs
what they bring as turns under the mutex. Callers that find the baton taken sleep until their own call has ended or the
baton is handed to them. So a single thread pays no thread switch: it sends, waits and receives by itself.

When nobody calls, a daemon thread takes the baton after a moment, so that pings, upcalls and timers go on; it gives it
up as soon as a call has had to wait.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import socket
import threading
import time
import weakref
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from glustx.errors import FopCancelled
from glustx.gfapi.errors import UNDO_SECONDS, late
from glustx.gfapi.interrupt import Guard, Guarded, inside, pending, raise_pending, waiting
from glustx.gfapi.pump_socket import Dial, SocketChannel
from glustx.gfapi.waker import Waker
from glustx.gfapi.watch import EVENT_READ, Handler, make_watch
from glustx.rpc.channel import Address, Receiver
from glustx.runtime import Run, TimerHandle, drive, turn

log = logging.getLogger("glustx.gfapi")

T = TypeVar("T")

IDLE_SECONDS = 0.05
# A signal that comes just before a system call does not interrupt it: the main thread looks up now and then.
SIGNAL_SECONDS = 0.5
_FORKED = "this volume was opened before fork(); a child process has to open its own"
_CLOSED = "this volume is closed"

_pumps: weakref.WeakSet[Pump] = weakref.WeakSet()


class Call:
    """One blocking call. `gate` is locked while its thread sleeps without the baton.

    The defaults stand in the class: most calls end at once and need few of these.
    """

    done = False
    value: Any = None
    error: BaseException | None = None
    run: Run | None = None
    gate: Any = None
    queued = False
    timer: TimerHandle | None = None
    late = False

    def __init__(self, pump: Pump) -> None:
        self.pump = pump

    def begin(self, co: Coroutine[Any, Any, Any]) -> None:
        """Run the coroutine until it ends or waits."""
        self.run = drive(co, self.finish)

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Take the outcome and wake the caller where it sleeps; one that comes after `let_go` is nobody's."""
        if self.done:
            return
        self.value = value
        self.error = error
        self.done = True
        self.run = None  # it knows us: the two would keep the value until the next collection
        if self.gate is not None:
            self.open_gate()
        elif self.pump.holder is self:
            self.pump.wake()

    def let_go(self) -> None:
        """End for the caller, though the coroutine still undoes what it began."""
        self.finish(None, FopCancelled())

    def open_gate(self) -> None:
        """Let the thread that sleeps at the gate go on."""
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.release()


class _Timer:
    __slots__ = ("_pump", "work")

    def __init__(self, pump: Pump, work: Callable[[], None]) -> None:
        self._pump = pump
        self.work: Callable[[], None] | None = work

    def cancel(self) -> None:
        """Keep the call from being made; what it would have used is let go of at once."""
        if self.work is not None:
            self.work = None
            self._pump.dead_timers += 1


class Pump:
    """Reactor and network of a graph that is driven by the threads that call it.

    Args:
        idle: seconds without a waiting call after which the background thread takes over.
    """

    def __init__(self, idle: float = IDLE_SECONDS) -> None:
        self.holder: object | None = None
        self.channels: set[SocketChannel | Dial] = set()
        self._idle = idle
        self._mutex = threading.Lock()
        self._guard = Guard()
        self._guarded = Guarded(self._mutex)
        self._selector = make_watch()
        self._timers: list[tuple[float, int, _Timer]] = []
        self.dead_timers = 0
        self._order = itertools.count()
        self._posted: deque[Callable[[], None]] = deque()
        self._queue: deque[Call] = deque()
        self._calls: set[Call] = set()
        self._waits = 0
        self._refusal = ""
        self._asleep = False
        self._woken = False
        self._waker = Waker()
        self._selector.register(self._waker.fd, EVENT_READ, None)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        _pumps.add(self)

    @property
    def usable(self) -> bool:
        """False once the pump is closed, and in a process forked from the one that made it."""
        return not self._refusal

    # -- calling -----------------------------------------------------------------------------------------------------

    def run(self, co: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Drive a coroutine from the calling thread and return its value or raise its error.

        Args:
            timeout: seconds after which it is cancelled. What it has to undo by then goes on without the caller when it
                takes longer than a moment.

        Raises:
            TimedOut: it was cancelled for that reason.
            RuntimeError: the pump is closed, or belongs to the parent process, or the call comes from inside a call.
        """
        ident = get_ident()
        if self._refusal or ident in inside:
            co.close()
            raise RuntimeError(self._refusal or "a blocking call from inside another one of the same thread")
        call = Call(self)
        try:
            # `with self._guarded`, written out: most calls end in here, and it is half of what they cost.
            inside.add(ident)
            self._mutex.acquire()
            try:
                if self._posted:
                    self._run_posted()
                turn(call.begin, co)
            finally:
                self._mutex.release()
                inside.discard(ident)
            if pending:
                raise_pending()
            if not call.done:
                self._wait(call, timeout)
        except BaseException:
            # KeyboardInterrupt, mostly: the fop undoes what it began while others pump.
            self._abandon(call)
            raise
        error = call.error
        if error is not None:
            if call.late and isinstance(error, FopCancelled):
                error = late(error, co, timeout)
            try:
                raise error
            finally:
                del error, call  # or the traceback would keep itself alive
        value: T = call.value
        return value

    def _wait(self, call: Call, timeout: float | None) -> None:
        """Pump, or sleep while others do, until the call has ended."""
        while True:
            with self._guarded:
                if call.done:
                    self._forget(call)
                    return
                waiting.add(get_ident())
                if timeout is not None and call.timer is None:
                    call.timer = self.call_later(timeout, lambda: self._expire(call))
                self._waits += 1
                self._calls.add(call)
                gate = None
                if self.holder is None:
                    self.holder = call
                elif self.holder is not call:
                    gate = call.gate = allocate_lock()
                    gate.acquire()
                    self._queue.append(call)
                    call.queued = True
            if gate is not None:
                # It is opened when the call has ended or has got the baton.
                while not gate.acquire(True, SIGNAL_SECONDS):
                    pass
                continue
            while not self._pump_once(call):
                pass
            return

    def _forget(self, call: Call) -> None:
        """Inside a turn of its own thread: the call waits no more. What it holds stays here no longer than that."""
        waiting.discard(get_ident())
        self._calls.discard(call)
        call.gate = None
        if call.queued:
            call.queued = False
            self._queue.remove(call)
        if call.timer is not None:
            call.timer.cancel()
        if self.holder is call:
            self._pass_on()

    def _expire(self, call: Call) -> None:
        if call.run is not None and not call.done:
            call.late = True
            call.run.cancel()
            self.call_later(UNDO_SECONDS, call.let_go)

    def _abandon(self, call: Call) -> None:
        with self._guarded:
            self._forget(call)
            if call.run is not None:
                call.run.cancel()

    def _pass_on(self) -> None:
        """Hand the baton to the first call that still waits, or lay it down."""
        while self._queue:
            call = self._queue.popleft()
            call.queued = False
            if not call.done and call.gate is not None:
                self.holder = call
                call.open_gate()
                return
        self.holder = None

    # -- pumping -----------------------------------------------------------------------------------------------------

    def _pump_once(self, call: Call | None) -> bool:
        """Wait for something to happen and run it. Return True when `call` has ended; the baton is passed on then."""
        # From here on whoever brings something rings; what was brought before is seen by the tests that follow.
        self._asleep = True
        hurry = self._posted or (call is not None and call.done)
        ready = self._selector.select(0 if hurry else self._patience(SIGNAL_SECONDS if call is not None else None))
        with self._guarded:
            self._asleep = False
            self._react(ready)
            if call is not None and call.done:
                self._forget(call)
                return True
        return False

    def _patience(self, most: float | None) -> float | None:
        """Return how long to wait: until the next timer, and not longer than `most`."""
        timers = self._timers
        if not timers:
            return most
        left = max(0.0, timers[0][0] - time.monotonic())
        return left if most is None or left < most else most

    def _react(self, ready: list[tuple[Handler | None, int]]) -> None:
        for handler, mask in ready:
            if handler is None:
                self._waker.drain()
                self._woken = False
            else:
                try:
                    handler(mask)
                except Exception:
                    log.exception("a socket's reader failed")
        if self._timers:
            now = time.monotonic()
            while self._timers and self._timers[0][0] <= now:
                timer = heapq.heappop(self._timers)[2]
                work, timer.work = timer.work, None
                if work is not None:
                    _safely(work)
                else:
                    self.dead_timers -= 1
        if self._posted:
            self._run_posted()

    def _run_posted(self) -> None:
        posted = self._posted
        while posted:
            _safely(posted.popleft())

    def wake(self) -> None:
        """Make whoever waits in the selector come back."""
        if self._asleep and not self._woken:
            self._woken = True
            self._waker.ring()

    # -- reactor -----------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def call_later(self, delay: float, work: Callable[[], None]) -> TimerHandle:
        """Run `work` as a turn after `delay` seconds; to be called inside a turn."""
        timer = _Timer(self, work)
        when = time.monotonic() + delay
        first = not self._timers or when < self._timers[0][0]
        heapq.heappush(self._timers, (when, next(self._order), timer))
        if self.dead_timers > 64 + len(self._timers) // 2:
            # Most are cancelled long before their time. Replaced in one step: another thread may be reading the first.
            self._timers[:] = sorted(entry for entry in self._timers if entry[2].work is not None)
            self.dead_timers = 0
        if first:
            self.wake()
        return timer

    def post(self, work: Callable[[], None]) -> None:
        """Run `work` as a turn soon; callable from any thread."""
        if self._refusal:
            raise RuntimeError(self._refusal)
        self._posted.append(work)
        self.wake()

    # -- network -----------------------------------------------------------------------------------------------------

    def dial(self, address: Address, receiver: Receiver) -> None:
        """Connect without waiting; `receiver` hears connection_made, or connection_lost with the OSError."""
        Dial(self, address, receiver).begin()

    def watch(self, sock: socket.socket, old: int, new: int, handler: Callable[[int], None]) -> None:
        """Change what the selector watches a socket for (selectors.EVENT_READ, EVENT_WRITE, 0 for nothing)."""
        if not new:
            self._selector.unregister(sock)
        elif not old:
            self._selector.register(sock, new, handler)
        else:
            self._selector.modify(sock, new, handler)
        if not self._selector.live:
            self.wake()

    def resolve(self, host: str, port: int, found: Callable[[list[tuple[int, Any]], Exception | None], None]) -> None:
        """Look a name up on a thread of its own and call `found` with (family, address) pairs, or none and an error."""

        def work() -> None:
            pairs: list[tuple[int, Any]] = []
            error: Exception | None = None
            try:
                for family, _, _, _, name in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                    pairs.append((int(family), name))
            except OSError as failure:
                error = failure
            try:
                self.post(lambda: found(pairs, error))
            except RuntimeError:
                pass  # closed meanwhile: nobody waits for the name

        threading.Thread(target=work, name="glustx-resolve", daemon=True).start()

    # -- background and end ------------------------------------------------------------------------------------------

    def start_background(self) -> None:
        """Start the thread that pumps when nobody calls."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._background, name="glustx-pump", daemon=True)
            self._thread.start()

    def _background(self) -> None:
        seen = -1
        while not self._stop.wait(self._idle):
            with self._guarded:
                if self.holder is not None or self._waits != seen:
                    seen = self._waits
                    continue
                self.holder = self
            try:
                while self._waits == seen and not self._stop.is_set():
                    self._pump_once(None)
            except Exception:
                log.exception("the background pump failed and goes on")
            finally:
                with self._guarded:
                    seen = self._waits
                    self._pass_on()

    def close(self) -> None:
        """End the pump: calls that wait fail with RuntimeError, sockets are closed. A second call does nothing."""
        if self._refusal:
            return
        with self._guarded:
            self._refusal = _CLOSED
            self._stop.set()
            for call in list(self._calls):
                if call.run is not None:
                    call.run.close()
                call.finish(None, RuntimeError(_CLOSED))
            for channel in list(self.channels):
                channel.drop()
            self.wake()
        self._take_last(5.0)
        self._guard.close()
        self._selector.close()
        self._waker.close()

    def _take_last(self, seconds: float) -> None:
        """Wait until nobody pumps any more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._guarded:
                if self.holder is None:
                    self.holder = _CLOSED
                    return
                self.wake()
            time.sleep(0.001)

    def disown(self) -> None:
        """In a forked child: refuse all calls; the parent's sockets are left alone."""
        self._refusal = _FORKED
        self._mutex = threading.Lock()
        self._guarded = Guarded(self._mutex)


def _safely(work: Callable[[], None]) -> None:
    try:
        turn(work)
    except Exception:
        log.exception("a timer or a posted call failed")


def _after_fork() -> None:
    for pump in list(_pumps):
        pump.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
