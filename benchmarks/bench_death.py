"""What the death of a client costs: from its pidfd's firing to free bytes in the device's ledger.

A child with so many windows of 64 KiB, each of which it has written to, is killed by SIGKILL. Another process, which
waits for nothing but a pidfd of its own, notes when the kernel says that the child is dead; this one asks the device
for its figures, every millisecond, until they say that every byte is free. Then a client asks for a window: what it
waits for is the rest of what the device does about the death under its lock. The device, its attach server and the
filler are those of a device actor, on threads of this process.

    python -m benchmarks.bench_death [--rounds 7] [--windows 1 64 1024 8192]

The target is a time and no ratio: 100 ms from the pidfd to free bytes, at every size. So that a busy machine shows,
each round also says the CPU time of the thread that serves, from the kill to free bytes, and times what the kernel
alone takes to free as many pages of one bare memfd. Handles are released step by step after their bytes are free, so
that at many windows the ratio to that is far below 1; released at once it was 3 to 5.
"""

from __future__ import annotations

import argparse
import mmap
import os
import select
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO

from benchmarks.harness import Ratio, ratio, report
from kvcluster.attach.client import open_attach_client
from kvcluster.attach.protocol import HandedHandle
from kvcluster.attach.server import open_attach_server
from kvcluster.driver.host import open_host_driver
from kvcluster.services.device import DeviceService, DeviceSettings
from kvcluster.services.device_settings import MemorySettings, pool_bytes_for
from kvcluster.services.filler import Filler
from kvcluster.units import KIB
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from kvcluster.wire.socket import Hello

GRANULE = 64 * KIB
MOST_RUN = 1024  # windows of a frame
TARGET_MS = 100.0
TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Death:
    """One round, in milliseconds: to free bytes in the ledger, the serving thread's CPU time until then, to the answer
    of who asks next, and the bare memfd."""

    free_ms: float
    cpu_ms: float
    served_ms: float
    bare_ms: float


class Device:
    """A device of `windows` windows and a few more."""

    def __init__(self, windows: int) -> None:
        capacity_bytes = (windows + 8) * GRANULE
        self.driver = open_host_driver(granule_bytes=GRANULE, capacity_bytes=capacity_bytes)
        memory = MemorySettings(capacity_bytes, GRANULE, pool_bytes_for(capacity_bytes))
        self.service = DeviceService(self.driver, DeviceSettings("host", memory), clock=time.monotonic)
        self.server = open_attach_server("host", self.service)
        self.filler = Filler(self.service.fill)
        self._threads = [threading.Thread(target=work) for work in (self.server.serve, self.filler.run)]
        for thread in self._threads:
            thread.start()

    def cpu_s(self) -> float:
        """Of the thread that serves."""
        ident = self._threads[0].ident
        assert ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(ident))

    def commit(self, session: str, seq: int, windows: int) -> None:
        """One request of its own, named by the frame. Raises what it is refused with."""
        key = wire.RequestKey(number=seq)
        groups = (wire.Group(fragments=1, stride_bytes=GRANULE),)
        ops = (
            wire.Open(request=key, groups=groups, max_tokens=windows),
            wire.Grant(request=key, grant=seq, size_bytes=windows * GRANULE),
            wire.Commit(request=key, grant=seq, tokens=windows),
        )
        frame = wire.Frame(session=session, seq=seq, ack=seq - 1, epoch=1, ops=ops)
        reply = decode_reply(self.service.frame(encode(frame)))
        for fault in (reply.fault, *(result.fault for result in reply.results)):
            if fault is not None:
                raise error_of(fault)
        self.filler.wake()

    def close(self) -> None:
        self.server.close()
        self.filler.end()
        for thread in self._threads:
            thread.join()
        self.service.close()
        self.driver.close()


@contextmanager
def opened(windows: int) -> Iterator[Device]:
    device = Device(windows)
    try:
        yield device
    finally:
        device.close()


@contextmanager
def client(device: Device, session: str, windows: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has written into so many windows of the device."""
    command = [sys.executable, "-m", "benchmarks.bench_death", "--child", device.server.address.replace("\0", "@")]
    child = subprocess.Popen([*command, session, str(windows)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"here\n"
        for seq, start in enumerate(range(0, windows, MOST_RUN), 1):
            device.commit(session, seq, min(MOST_RUN, windows - start))
        child.stdin.write(b"committed\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"written\n"
        yield child


def child(address: str, session: str, windows: int) -> None:
    """Map and write every window, and wait to be killed."""
    attach = open_attach_client(address.replace("@", "\0"), session, timeout_s=TIMEOUT_S)
    print("here", flush=True)
    sys.stdin.readline()
    mapped: list[mmap.mmap] = []

    def take(handle: HandedHandle) -> None:
        assert handle.fd is not None
        mapped.append(mmap.mmap(handle.fd, handle.size_bytes))
        mapped[-1][:] = b"x" * handle.size_bytes

    for seq in range(1, -(-windows // MOST_RUN) + 1):
        attach.redeem(seq, take)
    print("written", flush=True)
    signal.pause()


@contextmanager
def watcher(pid: int) -> Iterator[IO[bytes]]:
    """A process that says when the kernel says that another is dead: the clock's second, which is the same for all."""
    command = [sys.executable, "-m", "benchmarks.bench_death", "--watch", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"watching\n"
        yield process.stdout


def watch(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    print("watching", flush=True)
    poller.poll()
    fired_s = time.perf_counter()
    print(fired_s, flush=True)
    os.close(pidfd)


def death(device: Device, number: int, windows: int) -> Death:
    session, asker = f"dying-{number}", f"asking-{number}"
    device.service.hello(Hello(session=asker), pid=os.getpid())
    with client(device, session, windows) as process, watcher(process.pid) as watched:
        before_s = device.cpu_s()
        process.kill()
        while (seen := device.service.statistics()).free_bytes < seen.capacity_bytes:
            time.sleep(0.001)
        free_s, cpu_s = time.perf_counter(), device.cpu_s() - before_s
        device.commit(asker, 1, 1)
        served_s = time.perf_counter()
        fired_s = float(watched.readline())
    device.service.gone(asker)
    return Death(1000 * (free_s - fired_s), 1000 * cpu_s, 1000 * (served_s - fired_s), bare_ms(windows))


def bare_ms(windows: int) -> float:
    """What the kernel takes to free as much of one memfd."""
    fd = os.memfd_create("bare")
    os.posix_fallocate(fd, 0, windows * GRANULE)
    began = time.perf_counter()
    os.close(fd)
    return 1000 * (time.perf_counter() - began)


def measure(windows: int, *, rounds: int) -> list[Death]:
    with opened(windows) as device:
        death(device, 0, windows)  # warms up
        deaths = [death(device, number, windows) for number in range(1, rounds + 1)]
    for number, one in enumerate(deaths, 1):
        print(
            f"{windows} windows, round {number} of {rounds}: free after {one.free_ms:.1f} ms ({one.cpu_ms:.1f} CPU), "
            f"the next is served after {one.served_ms:.1f} ms, a bare memfd closes in {one.bare_ms:.1f} ms",
            file=sys.stderr,
        )
    return deaths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 64, 1024, 8192])
    parser.add_argument("--child", nargs=3, metavar=("ADDRESS", "SESSION", "WINDOWS"), help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.watch:
        return watch(chosen.watch)
    if chosen.child:
        return child(*chosen.child[:2], int(chosen.child[2]))
    measured = {windows: measure(windows, rounds=chosen.rounds) for windows in chosen.windows}
    ratios: dict[str, Ratio] = {}
    for windows, deaths in measured.items():
        free = [one.free_ms for one in deaths]
        ratios[f"{windows} windows: to free bytes / {TARGET_MS:.0f} ms"] = ratio(free, [TARGET_MS] * len(free))
        ratios[f"{windows} windows: CPU to free bytes / {TARGET_MS:.0f} ms"] = ratio(
            [one.cpu_ms for one in deaths], [TARGET_MS] * len(deaths)
        )
        ratios[f"{windows} windows: to free bytes / bare memfd"] = ratio(free, [one.bare_ms for one in deaths])
    medians = {
        windows: {name: statistics.median(asdict(one)[name] for one in deaths) for name in Death.__slots__}
        for windows, deaths in measured.items()
    }
    return report("death", ratios, medians_ms=medians, target_ms=TARGET_MS)


if __name__ == "__main__":
    main()
