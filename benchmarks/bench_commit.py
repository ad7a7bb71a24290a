"""What the books cost: commit, release and join beside the same system calls in a bare Python loop over ctypes.

    driver   map of n and set_access, then unmap, through the host driver
    whole    grant and commit, then release, of a request on a LocalDevice: frame, ledger, transaction, driver.
             warm: the pool has the handles. cold: there is no pool, and both arms create and close their memory.
             grow, warm: the same with grant and commit in one frame, as an engine asks
    join     map of n and set_access READ of sealed memory, then unmap: what was imported before is at hand (a client
             keeps its imports). new: import x n before it, with the descriptors at hand, and release after it;
             beside the bare maps, and beside the system calls of an import and a release as well (same calls).
             whole: join, then leave, of a sealed prefix on a LocalDevice

for 16 and 256 granules of 64 KiB and of 2 MiB. The arms of a comparison take turns within one process, 256 granules
or more a turn; each round gives one ratio, of the whole cycle and of its first half alone. Nothing here waits for
anything, so that what is compared is the thread's CPU seconds, in the kernel and out of it: another process's turn
on the core is not ours. No page is touched, which would cost both arms the same and far more than the calls (1,085
us for 2 MiB). That a growth with a full pool makes no create is counted here and tested in
tests/services/test_growth.py.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import gc
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.harness import Ratio, ratio, report
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Access, PhysicalHandle
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.asks import Grow
from kvcluster.services.device_memory import MemorySettings
from kvcluster.services.local import LocalDevice, open_local_device
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.transaction import Progress
from kvcluster.units import KIB, MIB

TARGETS = {
    "driver": 1.5,
    "whole, warm": 2.5,
    "whole, cold": 2.5,
    "grow, warm": 2.5,
    "join": 1.5,
    "join, new": 1.5,
    "join, whole": 2.5,
}

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.mprotect.restype = ctypes.c_int
_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10
_HERE = mmap.MAP_SHARED | _FIXED
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Arm(Protocol):
    """One way to do it: `begin` is the half that is compared alone too, `end` undoes it."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Size:
    count: int
    granule_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.count * self.granule_bytes

    @property
    def cycles(self) -> int:
        """In one turn."""
        return max(1, 256 // self.count)

    def __str__(self) -> str:
        return f"{self.count} x {self.granule_bytes // KIB} KiB"


class Bare:
    """The system calls alone, at an address of its own; `descriptors` None makes and closes the memory as well."""

    def __init__(self, size: Size, protection: int, descriptors: Sequence[int] | None) -> None:
        self._size = size
        self._protection = protection
        self._given = descriptors
        self._made: list[int] = []
        self._address: int = _LIBC.mmap(0, size.total_bytes, 0, _RESERVED, -1, 0)

    def begin(self) -> None:
        call, here, granule_bytes = _LIBC.mmap, self._address, self._size.granule_bytes
        for descriptor in self._create() if self._given is None else self._given:
            if call(here, granule_bytes, 0, _HERE, descriptor, 0) == _FAILED:
                raise OSError(ctypes.get_errno(), "mmap")
            here += granule_bytes
        if _LIBC.mprotect(self._address, self._size.total_bytes, self._protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def end(self) -> None:
        if _LIBC.mmap(self._address, self._size.total_bytes, 0, _RESERVED | _FIXED, -1, 0) == _FAILED:
            raise OSError(ctypes.get_errno(), "mmap")
        for descriptor in self._made:
            os.close(descriptor)
        self._made.clear()

    def _create(self) -> Iterator[int]:
        for _ in range(self._size.count):
            descriptor = os.memfd_create("bare", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.posix_fallocate(descriptor, 0, self._size.granule_bytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._made.append(descriptor)
            yield descriptor


class BareImports(Bare):
    """Beside the maps, what an import asks of the kernel before it keeps a descriptor: seals, size, mode, a duplicate.

    The descriptors are those of sealed memory, as they come from another process.
    """

    def begin(self) -> None:
        for descriptor in self._given or ():
            fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            os.lseek(descriptor, 0, os.SEEK_END)
            fcntl.fcntl(descriptor, fcntl.F_GETFL)
            self._made.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 0))
        super().begin()


class ThroughDriver:
    """Commit and release, the driver's part of them; once the memory is sealed, join and leave."""

    def __init__(self, size: Size) -> None:
        self._size = size
        self._driver = open_host_driver(granule_bytes=size.granule_bytes, capacity_bytes=size.total_bytes)
        self._address = self._driver.reserve(size.total_bytes)
        self._handles = [self._driver.create(size.granule_bytes) for _ in range(size.count)]
        self._access = Access.READ_WRITE

    def begin(self) -> None:
        self._driver.map(self._address, self._handles, Progress())
        self._driver.set_access(self._address, self._size.total_bytes, self._access)

    def end(self) -> None:
        self._driver.unmap(self._address, self._size.total_bytes)

    def descriptors(self) -> list[int]:
        return [self._driver.export_fd(handle) for handle in self._handles]

    def seal(self) -> None:
        for handle in self._handles:
            self._driver.seal(handle)
        self._access = Access.READ

    def close(self) -> None:
        for handle in self._handles:
            self._driver.release(handle)
        self._driver.free_address(self._address, self._size.total_bytes)
        self._driver.close()


class JoinThroughDriver:
    """Join and leave, the driver's part of them, with the descriptors at hand."""

    def __init__(self, size: Size, descriptors: Sequence[int]) -> None:
        self._size = size
        self._descriptors = descriptors
        self._handles: list[PhysicalHandle] = []
        self._driver = open_host_driver(granule_bytes=size.granule_bytes, capacity_bytes=0)
        self._address = self._driver.reserve(size.total_bytes)

    def begin(self) -> None:
        granule_bytes = self._size.granule_bytes
        for descriptor in self._descriptors:
            self._handles.append(self._driver.import_fd(descriptor, granule_bytes))
        self._driver.map(self._address, self._handles, Progress())
        self._driver.set_access(self._address, self._size.total_bytes, Access.READ)

    def end(self) -> None:
        self._driver.unmap(self._address, self._size.total_bytes)
        for handle in self._handles:
            self._driver.release(handle)
        self._handles.clear()

    def close(self) -> None:
        self._driver.free_address(self._address, self._size.total_bytes)
        self._driver.close()


class OnDevice:
    """A device in this process with room for twice the size (so that its pool may be full beside it), and a request."""

    def __init__(self, size: Size, *, pool_bytes: int) -> None:
        capacity_bytes = 2 * size.total_bytes
        driver = open_host_driver(granule_bytes=size.granule_bytes, capacity_bytes=capacity_bytes)
        settings = MemorySettings(capacity_bytes, size.granule_bytes, pool_bytes)
        self._device: LocalDevice = open_local_device(driver, settings)
        geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=512, element_bytes=2)  # 2 KiB a token
        self._tokens = size.total_bytes // geometry.token_bytes
        self._spec = SequenceSpec(geometry, Layout.TOKEN_MAJOR, self._tokens)
        self._memory: SequenceMemory = self._device.port.memory(self._spec)

    def close(self) -> None:
        self._device.close()


class Whole(OnDevice):
    """Grant, commit and release of the request."""

    def begin(self) -> None:
        self._memory.commit(self._tokens, self._memory.grant(self._tokens))

    def end(self) -> None:
        self._memory.release()

    def creates(self) -> int:
        return self._device.driver.calls().get("create", 0)


class WholeGrow(Whole):
    """Grant and commit in one frame."""

    def begin(self) -> None:
        [outcome] = self._device.port.submit([Grow(self._memory, self._tokens)]).settle()
        if outcome.error:
            raise outcome.error


class WholeJoin(OnDevice):
    """Another request shares all it has; this one joins it and leaves it."""

    def __init__(self, size: Size) -> None:
        super().__init__(size, pool_bytes=0)
        publisher = self._device.port.memory(self._spec)
        publisher.commit(self._tokens, publisher.grant(self._tokens))
        self._prefix = publisher.publish(self._tokens)

    def begin(self) -> None:
        self._memory.join(self._prefix, self._tokens)

    def end(self) -> None:
        self._memory.leave()


def compared(name: str, ours: Arm, bare: Arm, *, cycles: int, rounds: int) -> dict[str, Ratio]:
    """Both arms a turn each round; the ratios of the whole cycles, and of the first halves alone."""
    halves: dict[int, tuple[list[float], list[float]]] = {0: ([], []), 1: ([], [])}
    for number in range(-rounds // 10, rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            first, second = _timed((ours, bare)[which], cycles)
            if number >= 0:  # the others are the warm-up
                halves[which][0].append(first)
                halves[which][1].append(first + second)
    mine, theirs = halves[0], halves[1]
    return {name: ratio(mine[1], theirs[1]), f"{name}, first half": ratio(mine[0], theirs[0])}


def _timed(arm: Arm, cycles: int) -> tuple[float, float]:
    first = second = 0.0
    for _ in range(cycles):
        start = time.thread_time()
        arm.begin()
        middle = time.thread_time()
        arm.end()
        first, second = first + middle - start, second + time.thread_time() - middle
    return first, second


@contextmanager
def _descriptors(driver: ThroughDriver) -> Iterator[list[int]]:
    descriptors = driver.descriptors()
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def measure(size: Size, *, rounds: int) -> dict[str, Ratio]:
    with ExitStack() as ending:
        driver = ThroughDriver(size)
        ending.callback(driver.close)
        figures = _commits(size, driver, rounds=rounds)
        driver.seal()
        at_hand = ending.enter_context(_descriptors(driver))
        bare = Bare(size, mmap.PROT_READ, at_hand)
        figures |= compared(f"join, {size}", driver, bare, cycles=size.cycles, rounds=rounds)
        return figures | _other_joins(size, at_hand, bare, rounds=rounds)


def _other_joins(size: Size, at_hand: Sequence[int], bare: Bare, *, rounds: int) -> dict[str, Ratio]:
    with ExitStack() as ending:
        new, whole = JoinThroughDriver(size, at_hand), WholeJoin(size)
        for device in (new, whole):
            ending.callback(device.close)
        figures = compared(f"join, new, {size}", new, bare, cycles=size.cycles, rounds=rounds)
        same = BareImports(size, mmap.PROT_READ, at_hand)
        figures |= compared(f"join, new, same calls, {size}", new, same, cycles=size.cycles, rounds=rounds)
        return figures | compared(f"join, whole, {size}", whole, bare, cycles=size.cycles, rounds=rounds)


def _commits(size: Size, driver: ThroughDriver, *, rounds: int) -> dict[str, Ratio]:
    with ExitStack() as ending:
        bare = Bare(size, mmap.PROT_READ | mmap.PROT_WRITE, ending.enter_context(_descriptors(driver)))
        figures = compared(f"driver, {size}", driver, bare, cycles=size.cycles, rounds=rounds)
        warm, cold = Whole(size, pool_bytes=size.total_bytes), Whole(size, pool_bytes=0)
        grow = WholeGrow(size, pool_bytes=size.total_bytes)
        for device in (warm, cold, grow):
            ending.callback(device.close)
        for filling in (warm, grow):
            _timed(filling, 1)  # fills the pool
        created = warm.creates()
        figures |= compared(f"whole, warm, {size}", warm, bare, cycles=size.cycles, rounds=rounds)
        figures |= compared(f"grow, warm, {size}", grow, bare, cycles=size.cycles, rounds=rounds)
        figures[f"creates with a full pool, {size}"] = Ratio(*[float(warm.creates() - created)] * 3)
        bare = Bare(size, mmap.PROT_READ | mmap.PROT_WRITE, None)
        figures |= compared(f"whole, cold, {size}", cold, bare, cycles=1, rounds=max(10, rounds // 10))
        return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    gc.freeze()
    figures: dict[str, Ratio] = {}
    for granule_bytes in (64 * KIB, 2 * MIB):
        for count in (16, 256):
            figures |= measure(Size(count, granule_bytes), rounds=rounds)
    report("commit", figures, targets=TARGETS, rounds=rounds)


if __name__ == "__main__":
    main()
