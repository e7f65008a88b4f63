"""The runtime: waiters, hand-driven coroutines, turns, cancellation, and what is built on them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glustx.errors import FopCancelled, FopError
from glustx.runtime import (
    Lock,
    ManualReactor,
    Queue,
    TimedOut,
    Waiter,
    drive,
    fan_out,
    run_now,
    shield,
    sleep,
    spawn,
    turn,
    wait_for,
)
from glustx.workers import Workers
from tests.fakes import Call


async def give(value: Any) -> Any:
    return value


async def wait(waiter: Waiter[Any]) -> Any:
    return await waiter


async def fail(error: BaseException) -> None:
    raise error


# -- waiters and drive ------------------------------------------------------------------------------------------------


def test_a_coroutine_that_never_suspends_needs_no_run() -> None:
    ends: list[tuple[Any, Any]] = []
    runs = []
    turn(lambda: runs.append(drive(give(7), lambda value, error: ends.append((value, error)))))
    assert runs == [None]
    assert ends == [(7, None)]


def test_value_and_error_at_once_and_later() -> None:
    assert Call(give(1)).result() == 1
    assert Call(fail(FopError(5))).errno == 5
    waiter: Waiter[int] = Waiter()
    call = Call(wait(waiter))
    assert not call.done
    waiter.set(2)
    assert call.result() == 2
    waiter = Waiter()
    call = Call(wait(waiter))
    waiter.fail(FopError(28))
    assert call.errno == 28


def test_many_suspensions() -> None:
    waiters: list[Waiter[int]] = [Waiter() for _ in range(50)]

    async def total() -> int:
        return sum([await waiter for waiter in waiters])

    call = Call(total())
    for number, waiter in enumerate(reversed(waiters)):
        assert not call.done
        waiter.set(number)
    assert call.result() == sum(range(50))


def test_a_waiter_that_is_set_already_does_not_suspend() -> None:
    waiter: Waiter[str] = Waiter()
    waiter.set("there")
    assert run_now(wait(waiter)) == "there"


def test_the_first_setting_of_a_waiter_counts() -> None:
    waiter: Waiter[int] = Waiter()
    waiter.set(1)
    waiter.set(2)
    waiter.fail(FopError(5))
    assert run_now(wait(waiter)) == 1
    waiter = Waiter()
    waiter.fail(FopError(5))
    waiter.set(1)
    with pytest.raises(FopError):
        run_now(wait(waiter))


def test_awaiting_anything_else_is_an_error_in_the_fop() -> None:
    class Foreign:
        def __await__(self) -> Any:
            yield "a future of some loop"

    async def fop() -> Any:
        return await Foreign()

    call = Call(fop())
    assert isinstance(call.error, TypeError)
    assert "only a Waiter" in str(call.error)


def test_two_coroutines_may_not_await_one_waiter() -> None:
    waiter: Waiter[int] = Waiter()
    first, second = Call(wait(waiter)), Call(wait(waiter))
    assert isinstance(second.error, RuntimeError)
    waiter.set(3)
    assert first.result() == 3


def test_run_now_refuses_to_wait() -> None:
    waiter: Waiter[int] = Waiter()
    with pytest.raises(RuntimeError, match="waiting"):
        run_now(wait(waiter))
    waiter.set(1)  # nobody is left to hear it


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_resumption_never_runs_inside_another_step() -> None:
    log: list[str] = []
    waiters: list[Waiter[None]] = [Waiter() for _ in range(3)]

    async def sleeper(index: int) -> None:
        await waiters[index]
        log.append(f"woken {index}")
        if index + 1 < len(waiters):
            waiters[index + 1].set(None)
            log.append(f"still {index}")

    async def waker() -> None:
        log.append("before")
        waiters[0].set(None)
        log.append("after")

    calls = [Call(sleeper(index)) for index in range(3)]
    Call(waker())
    assert log == ["before", "after", "woken 0", "still 0", "woken 1", "still 1", "woken 2"]
    assert all(call.done for call in calls)


def test_a_cancellation_never_runs_inside_another_step() -> None:
    log: list[str] = []
    waiter: Waiter[None] = Waiter()

    async def victim() -> None:
        try:
            await waiter
        finally:
            log.append("victim undone")

    call = Call(victim())

    async def killer() -> None:
        log.append("before")
        call.cancel()
        log.append("after")

    Call(killer())
    assert log == ["before", "after", "victim undone"]
    assert call.cancelled


def test_nested_turns_join_the_outer_one() -> None:
    log: list[int] = []
    waiter: Waiter[None] = Waiter()

    async def sleeper() -> None:
        await waiter
        log.append(2)

    Call(sleeper())

    def work() -> None:
        turn(waiter.set, None)
        log.append(1)

    turn(work)
    assert log == [1, 2]


def test_a_chain_of_ten_thousand_hand_overs_needs_no_stack() -> None:
    lock = Lock()
    order: list[int] = []

    async def user(index: int) -> None:
        async with lock:
            order.append(index)

    async def first() -> None:
        async with lock:
            await gate

    gate: Waiter[None] = Waiter()
    Call(first())
    calls = [Call(user(index)) for index in range(10_000)]
    gate.set(None)
    assert order == list(range(10_000))
    assert all(call.done for call in calls)


def test_when_one_finish_raises_the_others_still_hear() -> None:
    first: Waiter[None] = Waiter()
    second: Waiter[None] = Waiter()
    heard: list[str] = []

    def bad(value: Any, error: BaseException | None) -> None:
        raise ValueError("an edge with a bug")

    turn(drive, wait(first), bad)
    turn(drive, wait(second), lambda value, error: heard.append("second"))

    def both() -> None:
        first.set(None)
        second.set(None)

    with pytest.raises(ValueError, match="an edge"):
        turn(both)
    assert heard == ["second"]
    assert run_now(give(1)) == 1  # turns work as before


def test_threads_have_turns_of_their_own() -> None:
    results: list[int] = []

    def worker() -> None:
        waiter: Waiter[int] = Waiter()
        call = Call(wait(waiter))
        waiter.set(threading.get_ident())
        results.append(call.result())

    async def outer() -> None:
        thread = threading.Thread(target=worker)
        thread.start()
        thread.join()
        # While this step is under way, the other thread's turn has come to its own end.
        assert len(results) == 1
        assert results[0] != threading.get_ident()

    Call(outer()).result()


# -- cancellation -----------------------------------------------------------------------------------------------------


def test_cancel_strikes_where_the_coroutine_waits() -> None:
    waiter: Waiter[int] = Waiter()
    undone: list[str] = []

    async def fop() -> int:
        try:
            return await waiter
        except FopCancelled:
            undone.append("here")
            raise

    call = Call(fop())
    call.cancel()
    assert call.cancelled
    assert undone == ["here"]
    waiter.set(1)
    call.cancel()
    assert call.cancelled


def test_cancel_with_an_error_of_ones_own() -> None:
    call = Call(wait(Waiter()))
    assert call.run is not None
    call.run.cancel(FopError(110))
    assert call.errno == 110


def test_an_undo_may_wait() -> None:
    undo: Waiter[None] = Waiter()

    async def fop() -> None:
        try:
            await Waiter()
        finally:
            await undo

    call = Call(fop())
    call.cancel()
    assert not call.done
    call.run.cancel(FopError(5))  # type: ignore[union-attr]
    assert call.errno == 5  # the undo itself may be called off


def test_cancel_twice_before_the_strike_strikes_once() -> None:
    strikes: list[int] = []
    undo: Waiter[None] = Waiter()

    async def fop() -> None:
        try:
            await Waiter()
        except FopCancelled:
            strikes.append(1)
            await undo
            raise

    call = Call(fop())

    def twice() -> None:
        call.cancel()
        call.cancel()

    turn(twice)
    assert strikes == [1]
    assert not call.done
    undo.set(None)
    assert call.cancelled


def test_cancel_after_delivery_lets_the_value_arrive_and_strikes_at_the_next_wait() -> None:
    first: Waiter[int] = Waiter()
    got: list[int] = []

    async def fop() -> None:
        got.append(await first)
        await Waiter()

    call = Call(fop())

    def race() -> None:
        first.set(5)
        call.cancel()

    turn(race)
    assert got == [5]
    assert call.cancelled


def test_cancel_after_delivery_of_the_last_value_is_too_late() -> None:
    first: Waiter[int] = Waiter()
    call = Call(wait(first))

    def race() -> None:
        first.set(5)
        call.cancel()

    turn(race)
    assert call.result() == 5


def test_delivery_between_cancel_and_strike_is_seen_by_who_undoes() -> None:
    waiter: Waiter[int] = Waiter()
    seen: list[bool] = []

    async def fop() -> None:
        try:
            await waiter
        except FopCancelled:
            seen.append(waiter.done)
            raise

    call = Call(fop())

    def race() -> None:
        call.cancel()
        waiter.set(5)

    turn(race)
    assert seen == [True]
    assert call.cancelled


def test_what_was_waited_for_at_the_strike_wakes_nobody_later() -> None:
    first: Waiter[int] = Waiter()
    second: Waiter[int] = Waiter()
    undo: Waiter[int] = Waiter()
    got: list[int] = []

    async def fop() -> None:
        await first
        try:
            await second
        finally:
            got.append(await undo)

    call = Call(fop())

    def race() -> None:
        first.set(1)
        call.cancel()

    turn(race)
    second.set(2)
    assert got == []
    undo.set(3)
    assert got == [3]
    assert call.cancelled


def test_a_coroutine_may_cancel_itself() -> None:
    log: list[str] = []
    calls: list[Call] = []
    gate: Waiter[None] = Waiter()

    async def fop() -> None:
        await gate
        calls[0].cancel()
        log.append("this step still ends")
        await Waiter()
        log.append("not reached")

    calls.append(Call(fop()))
    gate.set(None)
    assert log == ["this step still ends"]
    assert calls[0].cancelled


def test_close_runs_finally_blocks_and_finishes_nothing() -> None:
    undone: list[str] = []
    waiter: Waiter[None] = Waiter()

    async def fop() -> None:
        try:
            await waiter
        finally:
            undone.append("closed")

    call = Call(fop())
    call.close()
    assert undone == ["closed"]
    assert not call.done
    waiter.set(None)
    call.cancel()
    assert not call.done


# -- shield, spawn ----------------------------------------------------------------------------------------------------


def test_shield_lets_the_inner_end_and_then_raises_the_cancellation() -> None:
    gate: Waiter[int] = Waiter()
    ended: list[int] = []

    async def unlock() -> int:
        ended.append(await gate)
        return 1

    call = Call(shield(unlock()))
    for _ in range(3):
        call.cancel()
        assert not call.done
    gate.set(9)
    assert ended == [9]
    assert call.cancelled


def test_shield_passes_value_and_error() -> None:
    assert run_now(shield(give(3))) == 3
    with pytest.raises(FopError):
        run_now(shield(fail(FopError(5))))
    gate: Waiter[int] = Waiter()
    call = Call(shield(wait(gate)))
    gate.fail(FopError(30))
    assert call.errno == 30


def test_closing_a_shield_closes_what_it_shields() -> None:
    undone: list[str] = []

    async def inner() -> None:
        try:
            await Waiter()
        finally:
            undone.append("inner")

    call = Call(shield(inner()))
    call.close()
    assert undone == ["inner"]


def test_spawn_runs_beside_its_caller() -> None:
    gate: Waiter[int] = Waiter()

    async def fop() -> int:
        beside = spawn(wait(gate))
        assert not beside.done
        gate.set(4)
        assert not beside.done  # its resumption is queued behind this step
        return await beside + await spawn(give(1))

    assert Call(fop()).result() == 5


# -- fan_out ----------------------------------------------------------------------------------------------------------


def test_fan_out_keeps_order_and_errors() -> None:
    gates: list[Waiter[int]] = [Waiter() for _ in range(3)]
    call = Call(fan_out([wait(gates[0]), give(1), fail(FopError(5)), wait(gates[1]), wait(gates[2])]))
    gates[2].set(12)
    gates[0].fail(FopError(28))
    assert not call.done
    gates[1].set(11)
    first, second, third, fourth, fifth = call.result()
    assert (first.error.errno, second.get(), fourth.get(), fifth.get()) == (28, 1, 11, 12)
    with pytest.raises(FopError):
        third.get()


def test_fan_out_of_nothing_and_of_what_never_waits() -> None:
    assert run_now(fan_out([])) == []
    assert [outcome.get() for outcome in run_now(fan_out(give(n) for n in range(3)))] == [0, 1, 2]


def test_cancelling_fan_out_cancels_the_children_and_waits_for_their_undo() -> None:
    undo: Waiter[None] = Waiter()
    log: list[str] = []

    async def child(name: str) -> None:
        try:
            await Waiter()
        finally:
            await undo if name == "slow" else None
            log.append(name)

    call = Call(fan_out([child("quick"), child("slow"), give(1)]))
    call.cancel()
    assert log == ["quick"]
    assert not call.done
    undo.set(None)
    assert log == ["quick", "slow"]
    assert call.cancelled


def test_closing_fan_out_closes_the_children() -> None:
    log: list[int] = []

    async def child(number: int) -> None:
        try:
            await Waiter()
        finally:
            log.append(number)

    Call(fan_out(child(n) for n in range(3))).close()
    assert log == [0, 1, 2]


# -- Lock, Queue ------------------------------------------------------------------------------------------------------


def test_lock_is_first_come_first_served() -> None:
    lock = Lock()
    order: list[int] = []
    gates: list[Waiter[None]] = [Waiter() for _ in range(4)]

    async def user(index: int) -> None:
        async with lock:
            order.append(index)
            await gates[index]

    for index in range(4):
        Call(user(index))
    for gate in gates:
        gate.set(None)
    assert order == [0, 1, 2, 3]
    assert not lock.locked


@pytest.mark.parametrize("when", ["waiting", "handed over and then cancelled", "cancelled and then handed over"])
def test_a_lock_is_not_lost_with_a_cancelled_waiter(when: str) -> None:
    lock = Lock()
    gate: Waiter[None] = Waiter()
    order: list[str] = []

    async def holder() -> None:
        async with lock:
            await gate

    async def user(name: str) -> None:
        async with lock:
            order.append(name)
            await Waiter() if name == "second" else None

    Call(holder())
    second, third = Call(user("second")), Call(user("third"))

    def race() -> None:
        if when != "handed over and then cancelled":
            second.cancel()
        if when != "waiting":
            gate.set(None)
            # holder's resumption is queued; it releases after the cancellation has been asked for or before.
        if when == "handed over and then cancelled":
            second.cancel()

    turn(race)
    if when == "waiting":
        gate.set(None)
    assert second.cancelled
    assert third.done
    assert order[-1] == "third"
    assert not lock.locked


def test_queue_hands_items_over_in_order() -> None:
    queue: Queue[int] = Queue()
    queue.put(1)
    queue.put(2)
    assert len(queue) == 2
    assert [run_now(queue.get()), run_now(queue.get())] == [1, 2]
    first, second = Call(queue.get()), Call(queue.get())
    turn(lambda: (queue.put(3), queue.put(4)))
    assert (first.result(), second.result()) == (3, 4)


@pytest.mark.parametrize("others", [0, 1])
def test_an_item_is_not_lost_with_a_cancelled_getter(others: int) -> None:
    queue: Queue[int] = Queue()
    victim = Call(queue.get())
    rest = [Call(queue.get()) for _ in range(others)]

    def race() -> None:
        victim.cancel()
        queue.put(1)

    turn(race)
    assert victim.cancelled
    assert (rest[0].result() if others else run_now(queue.get())) == 1
    Call(queue.get()).cancel()
    queue.put(2)
    assert run_now(queue.get()) == 2


class _Actors:
    """What a random program does with one lock: checked against mutual exclusion and no loss."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.calls: list[Call] = []
        self.gates: list[Waiter[None]] = []
        self.inside = 0

    def enter(self) -> None:
        gate: Waiter[None] = Waiter()
        self.gates.append(gate)
        self.calls.append(Call(self._use(gate)))

    async def _use(self, gate: Waiter[None]) -> None:
        async with self.lock:
            self.inside += 1
            assert self.inside == 1
            try:
                await gate
            finally:
                self.inside -= 1


@given(st.lists(st.lists(st.tuples(st.sampled_from(["enter", "let", "cancel"]), st.integers(0, 9)), max_size=4)))
def test_lock_against_random_programs(program: list[list[tuple[str, int]]]) -> None:
    actors = _Actors()

    def step(actions: list[tuple[str, int]]) -> None:
        for what, index in actions:
            if what == "enter":
                actors.enter()
            elif actors.calls and what == "let":
                actors.gates[index % len(actors.gates)].set(None)
            elif actors.calls:
                actors.calls[index % len(actors.calls)].cancel()

    for actions in program:
        turn(step, actions)
    for gate in actors.gates:
        gate.set(None)
    assert all(call.done for call in actors.calls)
    assert all(call.error is None or call.cancelled for call in actors.calls)
    assert not actors.lock.locked


# -- time -------------------------------------------------------------------------------------------------------------


def test_sleep_and_its_cancellation() -> None:
    reactor = ManualReactor()
    call = Call(sleep(reactor, 2))
    reactor.advance(1.9)
    assert not call.done
    reactor.advance(0.2)
    assert call.done
    call = Call(sleep(reactor, 2))
    call.cancel()
    assert call.cancelled
    reactor.advance(3)


def test_timers_run_in_order_each_as_a_turn() -> None:
    reactor = ManualReactor()
    log: list[tuple[str, float]] = []
    for name, delay in (("b", 2.0), ("a", 1.0), ("c", 2.0)):
        reactor.call_later(delay, lambda name=name: log.append((name, reactor.time())))  # type: ignore[misc]
    reactor.advance(5)
    assert log == [("a", 1.0), ("b", 2.0), ("c", 2.0)]
    assert reactor.time() == 5


def test_wait_for() -> None:
    reactor = ManualReactor()
    waiter: Waiter[int] = Waiter()
    call = Call(wait_for(reactor, waiter, 1))
    waiter.set(3)
    assert call.result() == 3
    waiter = Waiter()
    call = Call(wait_for(reactor, waiter, 1))
    reactor.advance(1)
    assert isinstance(call.error, TimedOut)
    waiter.set(3)
    assert isinstance(call.error, TimedOut)


# -- workers ----------------------------------------------------------------------------------------------------------


def test_workers_bring_results_and_errors_to_the_reactor() -> None:
    reactor, workers = ManualReactor(), Workers(2)

    async def fop() -> tuple[int, bool]:
        thread = await workers.submit(reactor, threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await workers.submit(reactor, divmod, 1, 0)
        return thread, thread != threading.get_ident()

    thread, other = reactor.wait(fop())
    assert other
    assert thread


def test_workers_grow_to_their_limit_and_run_everything() -> None:
    reactor, workers = ManualReactor(), Workers(3)
    barrier = threading.Barrier(3, timeout=20)  # passes only when three jobs run at a time
    names: list[str] = []

    def job() -> None:
        barrier.wait()
        names.append(threading.current_thread().name)

    async def many() -> None:
        for outcome in await fan_out(wait(workers.submit(reactor, job)) for _ in range(30)):
            outcome.get()

    reactor.wait(many())
    assert len(names) == 30
    assert len(set(names)) == 3


def test_a_job_that_has_begun_ends_though_its_fop_is_gone() -> None:
    reactor, workers = ManualReactor(), Workers(1)
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def job() -> None:
        begun.set()
        assert go.wait(60)
        ended.set()

    async def fop() -> None:
        await workers.submit(reactor, job)

    call = Call(fop())
    assert begun.wait(60)
    call.cancel()
    assert call.cancelled
    go.set()
    assert ended.wait(60)
    reactor.wait(fop())  # the worker still serves
    assert call.cancelled


def test_a_pool_serves_two_reactors_on_two_threads() -> None:
    workers = Workers(2)
    seen: dict[str, set[int]] = {}
    failures: list[BaseException] = []

    def loop(name: str) -> None:
        reactor = ManualReactor()

        async def fop() -> None:
            for _ in range(50):
                await workers.submit(reactor, int)
                seen.setdefault(name, set()).add(threading.get_ident())

        try:
            reactor.wait(fop())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=loop, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert {name: len(idents) for name, idents in seen.items()} == {"a": 1, "b": 1}
    assert seen["a"] != seen["b"]


def test_workers_keep_neither_reactor_nor_arguments_alive() -> None:
    class Buffer:
        pass

    workers = Workers(1)
    reactor, buffer = ManualReactor(), Buffer()
    refs: list[weakref.ref[Any]] = [weakref.ref(reactor), weakref.ref(buffer)]

    async def fop(reactor: ManualReactor, job: Callable[..., Any], *args: Any) -> None:
        await workers.submit(reactor, job, *args)

    reactor.wait(fop(reactor, id, buffer))
    reactor.wait(fop(reactor, int))  # the worker has let go of the job before
    del reactor, buffer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
