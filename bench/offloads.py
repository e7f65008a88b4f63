"""What a gateway has the brick do instead of the network: WRITE SAME, EXTENDED COPY, VERIFY, UNMAP, by libiscsi.

    python bench/offloads.py [--size 40] [--folder /tmp] [--check]

Needs root (a loop file system, a network namespace to count bytes in) and the Debian packages libiscsi7 and xfsprogs.
The bytes are those of the loopback interface, both ways and headers included, of initiator and brick traffic together.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import struct
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.paired import machine, scratch
from tests.gateway import GatewayProcess, sparse
from tests.kit import NetNamespace
from tests.peers import ServedVolume

NAME = "iqn.2026-12.org.example:offloads"
GIB = 1 << 30
BLOCK = 512
NONE, READ, WRITE = 0, 1, 2


class Data(ctypes.Structure):
    """struct iscsi_data."""

    _fields_ = [("size", ctypes.c_size_t), ("data", ctypes.c_void_p)]


class Initiator:
    """One session of libiscsi.

    Args:
        url: `iscsi://host:port/target/lun`.
        name: the initiator's name.
    """

    def __init__(self, url: str, name: str = "iqn.2026-12.org.example:bench") -> None:
        lib = self.lib = ctypes.CDLL("libiscsi.so.7")
        for function in ("iscsi_create_context", "scsi_create_task", "iscsi_scsi_command_sync"):
            getattr(lib, function).restype = ctypes.c_void_p
        lib.iscsi_get_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p(lib.iscsi_create_context(name.encode()))
        host, target, lun = url.removeprefix("iscsi://").split("/")
        self.lun = int(lun)
        lib.iscsi_set_targetname(self.context, target.encode())
        lib.iscsi_set_session_type(self.context, 2)
        lib.iscsi_set_header_digest(self.context, 1)
        if lib.iscsi_full_connect_sync(self.context, host.encode(), self.lun):
            raise OSError(lib.iscsi_get_error(self.context).decode())

    def do(self, cdb: bytes, data: bytes = b"", size: int = 0) -> None:
        """Run a command; OSError unless it ends GOOD.

        Args:
            data: what is sent.
            size: bytes that are expected.
        """
        padded = (ctypes.c_ubyte * 16)(*cdb)
        direction = WRITE if data else READ if size else NONE
        task = self.lib.scsi_create_task(len(cdb), padded, direction, len(data) or size)
        sent = Data(len(data), ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p))
        done = self.lib.iscsi_scsi_command_sync(
            self.context, self.lun, ctypes.c_void_p(task), ctypes.byref(sent) if data else None
        )
        status = ctypes.cast(done, ctypes.POINTER(ctypes.c_int))[0] if done else -1
        text = self.lib.iscsi_get_error(self.context).decode() if status else ""
        self.lib.scsi_free_scsi_task(ctypes.c_void_p(task))
        if status:
            raise OSError(f"command {cdb[0]:#x}: status {status}: {text}")

    def close(self) -> None:
        """Log out."""
        self.lib.iscsi_logout_sync(self.context)
        self.lib.iscsi_destroy_context(self.context)


def loopback_bytes() -> int:
    """Bytes that the loopback interface of this namespace has carried."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    raise RuntimeError("no loopback interface")


def write_same(disk: Initiator, size: int) -> None:
    """Zero `size` bytes, 1 GiB in a command."""
    for first in range(0, size, GIB):
        count = min(GIB, size - first) // BLOCK
        disk.do(struct.pack(">BBQIBB", 0x93, 0, first // BLOCK, count, 0, 0), bytes(BLOCK))


def extended_copy(disk: Initiator, naa: list[bytes], size: int) -> None:
    """Copy `size` bytes from the first unit to the second: EXTENDED COPY(LID1), 64 segments at a time."""
    units = b"".join(
        struct.pack(">BBHBBBB20sI", 0xE4, 0, 0, 0x01, 0x03, 0, len(each), each, BLOCK & 0xFFFFFF) for each in naa
    )
    blocks, segments, each = size // BLOCK, [], 65528
    for first in range(0, blocks, each):
        count = min(each, blocks - first)
        segments.append(struct.pack(">BBHHHHHQQ", 0x02, 0x02, 0x18, 0, 1, 0, count, first, first))
    for index in range(0, len(segments), 64):
        body = b"".join(segments[index : index + 64])
        head = struct.pack(">BBHIII", 0, 0x18, len(units), 0, len(body), 0)
        data = head + units + body
        disk.do(struct.pack(">BB8xIBB", 0x83, 0, len(data), 0, 0), data)


def unmap_beside_reads(url: str, size: int) -> tuple[float, float, float]:
    """UNMAP `size` bytes while another session reads the first block; return seconds, median and greatest latency."""
    reader, writer = Initiator(url, "iqn.2026-12.org.example:reader"), Initiator(url)
    ended = threading.Event()
    latencies: list[float] = []

    def read() -> None:
        while not ended.is_set():
            began = time.perf_counter()
            reader.do(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0), size=8 * BLOCK)
            latencies.append(time.perf_counter() - began)

    thread = threading.Thread(target=read)
    thread.start()
    began = time.perf_counter()
    step = 512 << 20
    try:
        for first in range(step, size, step):
            body = struct.pack(">QI4x", first // BLOCK, step // BLOCK)
            data = struct.pack(">HH4x", len(body) + 6, len(body)) + body
            writer.do(struct.pack(">BB5xHB", 0x42, 0, len(data), 0), data)
    finally:
        seconds = time.perf_counter() - began
        ended.set()
        thread.join()
    reader.close()
    writer.close()
    latencies.sort()
    return seconds, latencies[len(latencies) // 2], latencies[-1]


def naa_of(gateway: GatewayProcess) -> list[bytes]:
    """The NAA designators of the two units, from the configuration that this bench made."""
    return [bytes.fromhex(f"3{index + 1}00000000000001") for index in range(2)]


def main() -> int:
    """Measure each and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=40, help="GiB of the image")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--check", action="store_true", help="fail where a bound is missed")
    options = parser.parse_args()
    size = options.size * GIB
    missed: list[str] = []

    def tell(what: str, seconds: float, wire: int, bound: float, most: float) -> None:
        print(json.dumps({"what": what, "seconds": round(seconds, 3), "wire_bytes": wire}), flush=True)
        if seconds > bound or wire > most:
            missed.append(f"{what}: {seconds:.2f} s (bound {bound}), {wire} bytes (bound {most:.0f})")

    with ExitStack() as stack:
        netns = stack.enter_context(NetNamespace())
        stack.enter_context(netns.entered())
        folder = scratch(stack, options.folder, "xfs", 3 * size)
        print(json.dumps(machine(folder)))
        brick = stack.enter_context(sparse(folder / "brick", {"a.img": size, "b.img": size, "t.img": 1 << 40}))
        fd = os.open(brick / "a.img", os.O_RDWR)
        # Allocated, as an image that a machine has written to; the file system under the loop stays sparse.
        os.posix_fallocate(fd, 0, size)
        os.close(fd)
        gateway = stack.enter_context(GatewayProcess())
        naa = naa_of(gateway)
        gateway.disk(
            NAME, {f"{brick}:/{n}.img": (f"naa={naa[i].hex()}",) if i < 2 else "" for i, n in enumerate("abt")}
        )
        disk = Initiator(gateway.url(NAME))
        before, began = loopback_bytes(), time.perf_counter()
        extended_copy(disk, naa, size)
        tell(
            f"EXTENDED COPY of {options.size} GiB, xfs",
            time.perf_counter() - began,
            loopback_bytes() - before,
            2.0,
            1e6,
        )
        before, began = loopback_bytes(), time.perf_counter()
        write_same(disk, size)
        tell(
            f"WRITE SAME of {options.size} GiB of zeroes",
            time.perf_counter() - began,
            loopback_bytes() - before,
            1.0,
            65536,
        )
        disk.close()
        seconds, median, most = unmap_beside_reads(gateway.url(NAME, 2), 1 << 40)
        figures = {"median_ms": round(median * 1e3, 3), "most_ms": round(most * 1e3, 3)}
        print(json.dumps({"what": "reads beside UNMAP of 1 TiB", "seconds": round(seconds, 3), **figures}), flush=True)
        if most > 0.01:
            missed.append(f"reads beside UNMAP took up to {most * 1e3:.1f} ms")
        served = stack.enter_context(ServedVolume(folder / "served", "remote", netns))
        with open(folder / "served" / "v.img", "wb") as file:
            for number in range(1024):
                file.write(struct.pack(">Q", number) * (1 << 17))
        gateway.disk(NAME + "2", {f"{served.url('').rstrip('/')}:/v.img": ""})
        disk = Initiator(gateway.url(NAME + "2"))
        before, began = loopback_bytes(), time.perf_counter()
        disk.do(struct.pack(">BBQIBB", 0x8F, 0, 0, GIB // BLOCK, 0, 0))
        tell(
            "VERIFY of 1 GiB on a remote brick", time.perf_counter() - began, loopback_bytes() - before, 60.0, GIB / 100
        )
        disk.close()
    for line in missed:
        print(line)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
