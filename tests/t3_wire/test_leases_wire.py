"""Leases of gfapi's open files on a brick of ours, over TCP: recall while others wait, ends, both versions of the
program, and what a recall looks like on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from glustx.gfapi import AsyncVolume, Source, Volume
from glustx.rpc.callbacks import RecallLease, body_of, decode_callback, told_by
from glustx.rpc.programs import CBK_RECALL_LEASE
from glustx.upcall import LeaseRecall
from tests.conformance.served import Served, client_volfile, served, server_volfile
from tests.conformance.test_wire import MEMORY
from tests.t2_graph.gfapi_faces import fails

BELOW = (
    MEMORY
    + """
volume leases
    type features/leases
    option leases {leases}
    option lease-lock-recall-timeout 60
    subvolumes locks
end-volume
volume io-threads
    type performance/io-threads
    option thread-count 1
    subvolumes leases
end-volume
"""
)
CACHES = """
volume open-behind
    type performance/open-behind
    subvolumes client
end-volume
volume quick-read
    type performance/quick-read
    subvolumes open-behind
end-volume
"""
PATIENCE = 30.0


@pytest.fixture(scope="module")
def brick() -> Iterator[Served]:
    with served(server_volfile(BELOW.format(leases="on"), "io-threads")) as brick:
        yield brick


def source(brick: Served, more: str = "", options: str = "") -> Source:
    return Source(volume="test", text=client_volfile(brick.address, more, options), origin="<client>")


@pytest.fixture(params=["400", "330", "caches"])
def pair(brick: Served, request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Volume]]:
    more = CACHES if request.param == "caches" else ""
    options = "    option testing.old-protocol on" if request.param == "330" else ""
    with Volume(source(brick, more, options)) as one, Volume(source(brick, more, options)) as two:
        one.create("/f").close()
        yield one, two
        two.unlink("/f")


@contextlib.contextmanager
def beside(work: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=work)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_reader_waits_until_the_writer_has_given_back(pair: tuple[Volume, Volume]) -> None:
    one, two = pair
    recalled, seen = threading.Event(), []
    with one.open("/f", "r+b") as file:
        file.lease(recalled=recalled.set)
        assert file.test_lease() == (False, True)
        file.pwrite(b"first", 0)

        def look() -> None:
            with two.open("/f", "rb") as other:
                seen.append(other.pread(99, 0))

        with beside(look):
            assert recalled.wait(PATIENCE)
            file.pwrite(b"last.", 0)  # under the lease, while the other one waits
            assert not seen
            file.unlease()
        assert seen == [b"last."]
        assert file.test_lease() == (False, False)
        file.lease(exclusive=False)  # once more
        with fails(errno.EBUSY):
            file.lease()


def test_readers_share_and_a_writer_recalls_them(pair: tuple[Volume, Volume]) -> None:
    one, two = pair
    first, second = threading.Event(), threading.Event()
    with one.open("/f", "rb") as mine, two.open("/f", "rb") as yours:
        mine.lease(exclusive=False, recalled=first.set)
        yours.lease(exclusive=False, recalled=second.set)
        with beside(lambda: one.truncate("/f", 3)) as writing:
            assert first.wait(PATIENCE) and second.wait(PATIENCE)
            mine.unlease()
            assert writing.is_alive()
            yours.unlease()
        assert mine.fgetsize() == 3


def test_closing_gives_it_back(pair: tuple[Volume, Volume]) -> None:
    one, two = pair
    file = one.open("/f", "r+b")
    file.lease()
    with fails(errno.EAGAIN), two.open("/f", os.O_RDWR | os.O_NONBLOCK) as other:
        other.pwrite(b"x", 0)  # behind open-behind it fails here
    file.close()
    with two.open("/f", "r+b") as other:
        other.lease()


def test_a_client_that_goes_leaves_no_lease(brick: Served) -> None:
    recalled = threading.Event()
    with Volume(source(brick)) as two:
        with Volume(source(brick)) as one:
            one.create("/g").close()
            one.open("/g", "r+b").lease(recalled=recalled.set)
        with two.open("/g", "r+b") as other:
            other.lease()
        two.unlink("/g")
    assert not recalled.is_set()


def test_what_others_have_open_forbids_it(pair: tuple[Volume, Volume]) -> None:
    one, two = pair
    with two.open("/f", "r+b") as other, one.open("/f", "rb") as file:
        other.pwrite(b"x", 0)  # it is open by now, also behind open-behind
        with fails(errno.EPERM):
            file.lease(exclusive=False)


def test_leases_are_lost_with_the_brick() -> None:
    recalled = threading.Event()
    with served(server_volfile(BELOW.format(leases="on"), "io-threads")) as brick:
        volume = Volume(source(brick))
        file = volume.create("/f")
        file.lease(recalled=recalled.set)
    assert recalled.wait(PATIENCE)
    with contextlib.suppress(OSError):
        file.close()
    volume.close()


def test_off() -> None:
    with served(server_volfile(BELOW.format(leases="off"), "io-threads")) as brick, Volume(source(brick)) as volume:
        with volume.create("/f") as file, fails(errno.ENOSYS):
            file.lease()


def test_asyncio(brick: Served) -> None:
    async def main() -> None:
        async with AsyncVolume(source(brick)) as one, AsyncVolume(source(brick)) as two:
            recalled = asyncio.Event()
            async with await one.create("/a") as file:
                await file.lease(recalled=recalled.set)
                change = asyncio.ensure_future(two.truncate("/a", 5))
                await asyncio.wait_for(recalled.wait(), PATIENCE)
                assert not change.done()
                await file.unlease()
                await asyncio.wait_for(change, PATIENCE)
            await two.unlink("/a")

    asyncio.run(main())


@pytest.mark.logs("what was to be called at the recall of a lease failed")
def test_a_callback_that_fails_spoils_nothing(pair: tuple[Volume, Volume]) -> None:
    one, two = pair

    def fail() -> None:
        raise RuntimeError("no")

    with one.open("/f", "rb") as file:
        file.lease(exclusive=False, recalled=fail)
        with fails(errno.EAGAIN), two.open("/f", os.O_WRONLY | os.O_NONBLOCK) as other:
            other.pwrite(b"x", 0)
        assert file.pread(1, 0) == b""


@pytest.mark.parametrize("id_", [b"", b"\1" * 15, bytes(16)])
def test_an_id_is_sixteen_bytes(pair: tuple[Volume, Volume], id_: bytes) -> None:
    with pair[0].open("/f", "rb") as file, fails(errno.EINVAL):
        file.lease(lease_id=id_)


def test_the_recall_on_the_wire() -> None:
    told = LeaseRecall("client", b"\1" * 16, 0, b"\2" * 16)
    body = body_of(told)
    assert isinstance(body, RecallLease)
    raw = body.encode()
    assert raw == b"\1" * 16 + bytes(4) + b"\2" * 16 + bytes(4)  # gfid, type, tid, an empty dict
    assert told_by(decode_callback(CBK_RECALL_LEASE, raw)) == LeaseRecall("", b"\1" * 16, 0, b"\2" * 16)
