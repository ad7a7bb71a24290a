"""What this process holds of ours, so that a test can be shown to have left nothing: "Whole" of the main job.

Everything is the kernel's word but for the threads. While Ray runs in this process its own connections come and go,
so that only what must be ours is judged then: memory, pidfds, and sockets that keep packets (Ray has none of them).
Sockets and mappings of other processes go with those processes; whether these are gone is the other half.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc/self")
SETTLE_S = 5.0  # what was told to end may take a moment: a process to be waited for, a thread to return
_SEQPACKET = "0005"
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Held:
    """One moment, in seconds since the machine started. Descriptors are named by what they lead to."""

    at: float
    descriptors: Counter[str]
    mappings: tuple[str, ...]
    threads: frozenset[str]
    children: frozenset[str]

    def more_than(self, before: Held) -> dict[str, object]:
        """What is here and was not then, by kind; empty for nothing."""
        more = {
            "descriptors": dict(self.descriptors - before.descriptors),
            "mappings": sorted(set(self.mappings) - set(before.mappings)),
            "threads": sorted(self.threads - before.threads),
            "children": sorted(child for child in self.children - before.children if _born_at(child) >= before.at),
        }
        return {kind: found for kind, found in more.items() if found}


def held() -> Held:
    """As of now."""
    return Held(_now(), _descriptors(), _mappings(), _threads(), _children())


def left_since(before: Held) -> dict[str, object]:
    """What is held more than then, once all that is on its way to an end has ended."""
    if not (left := held().more_than(before)):
        return {}
    gc.collect()
    deadline, pause = time.monotonic() + SETTLE_S, threading.Event()
    while (left := held().more_than(before)) and time.monotonic() < deadline:
        pause.wait(0.01)
    return left


def ray_runs() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _descriptors() -> Counter[str]:
    targets = Counter(filter(None, map(_target, os.listdir(PROC / "fd"))))
    if not ray_runs():
        return targets
    packets = _packet_sockets()
    ours = {target for target in targets if "memfd:kvcluster" in target or "pidfd" in target or target in packets}
    return Counter({target: targets[target] for target in ours})


def _target(fd: str) -> str | None:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:  # the folder itself, closed since
        return None


def _packet_sockets() -> set[str]:
    rows = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {f"socket:[{row.split()[6]}]" for row in rows if row.split()[4] == _SEQPACKET}


def _mappings() -> tuple[str, ...]:
    maps = (PROC / "maps").read_bytes()
    if b"memfd:kvcluster" not in maps:
        return ()
    return tuple(line for line in maps.decode().splitlines() if "memfd:kvcluster" in line)


def _threads() -> frozenset[str]:
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate())


def _children() -> frozenset[str]:
    """The kernel's list may lack one now and then, while others end."""
    found: set[str] = set()
    for task in os.listdir(PROC / "task"):
        try:
            found.update((PROC / "task" / task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # a thread that has ended since
            continue
    return frozenset(found)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _TICK_S


def _born_at(pid: str) -> float:
    """When the process was started, to a tick; never, if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return float("-inf")
    return int(stat.rpartition(")")[2].split()[19]) * _TICK_S
