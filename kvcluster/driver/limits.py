"""How many descriptors, mappings and bytes this process may still use, so that we refuse before the kernel does.

At vm.max_map_count (65,530) even *unmapping* fails, because it puts a reservation in the mapping's place: some
are kept in spare. A memfd has no limit of its own: allocating its pages on a full machine does not fail, it wakes
the out-of-memory killer (measured). The limits are the process's, so all its drivers share one allowance each.
Between two measurements an allowance counts by itself; it measures again each time half of what it found is used,
so that what others use is noticed in time.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvcluster.driver.control_groups import group_room
from kvcluster.errors import LimitReached
from kvcluster.units import KIB, MIB

SPARE_DESCRIPTORS = 256  # what a size leaves to the rest of the process: sockets, files, Ray
SPARE_MAPPINGS = 1_024  # threads, libraries, and unmapping
LAST_DESCRIPTORS = 128  # what a driver leaves; less, so that the rest may grow once a size was accepted
LAST_MAPPINGS = 512
SPARE_BYTES = 256 * MIB  # for everybody else on the machine


def descriptor_room(spare: int = SPARE_DESCRIPTORS) -> int:
    """Descriptors that our handles may still use and leave `spare`, once the soft limit is raised to the hard one."""
    used = len(os.listdir("/proc/self/fd")) - 1
    return max(0, _most_descriptors() - used - spare)


def mapping_room(spare: int = SPARE_MAPPINGS) -> int:
    """Kernel mappings that our windows may still use and leave `spare`."""
    most = int(Path("/proc/sys/vm/max_map_count").read_bytes())
    used = Path("/proc/self/maps").read_bytes().count(b"\n")
    return max(0, most - used - spare)


def memory_room() -> int:
    """Bytes of memory that the machine, and this process's control groups, can still give."""
    return max(0, min(_machine_room(), group_room()) - SPARE_BYTES)


def _machine_room() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    return sys.maxsize


def raise_descriptor_limit() -> None:
    """The soft limit becomes the hard one, for the whole process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _most_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (_most_descriptors(), hard))


def _most_descriptors() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(Path("/proc/sys/fs/nr_open").read_bytes()) if hard == resource.RLIM_INFINITY else hard


class Allowance:
    """What may still be used of one limit. Asked before a system call, told after it."""

    def __init__(self, limit: str, *, remedy: str, measure: Callable[[], int]) -> None:
        self._limit = limit
        self._remedy = remedy
        self._measure = measure
        self._lock = threading.Lock()
        self._left = 0
        self._soon = 0  # time to measure again

    def ensure(self, need: int) -> None:
        """Nothing is taken.

        Raises:
            LimitReached: fewer than `need` are left.
        """
        if need <= self._left >= self._soon:  # a look, which needs no lock
            return
        with self._lock:
            self._left = self._measure()
            self._soon = self._left // 2
            if self._left < need:
                raise self.refusal(need, self._left)

    def used(self, count: int) -> None:
        """`count` more are in use; fewer, if it is negative.

        Without the lock: what two threads may lose by it the next measurement puts right, and until then the kernel's
        own refusal is told as ours.
        """
        self._left -= count

    def refusal(self, need: int, free: int) -> LimitReached:
        return LimitReached(limit=self._limit, need=need, free=free, remedy=self._remedy)


DESCRIPTORS = Allowance(
    "descriptors",
    remedy="raise the hard limit (ulimit -Hn) or choose a larger granule",
    measure=partial(descriptor_room, LAST_DESCRIPTORS),
)
MAPPINGS = Allowance(
    "mappings",
    remedy="raise vm.max_map_count (sysctl) or choose a larger granule",
    measure=partial(mapping_room, LAST_MAPPINGS),
)
MEMORY = Allowance("bytes of memory", remedy="choose a smaller capacity", measure=memory_room)
