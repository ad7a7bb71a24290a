"""How much of this machine's memory one device can really use: descriptors, mappings, and memory itself.

A granule in use is a descriptor of the device's process and a mapping of the worker's (two, in a ring). Counted for
this process, which has hardly any of its own; `services.memory_check` refuses a size when a device is opened.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.config import settings_from
from kvcluster.driver.control_groups import group_room
from kvcluster.driver.limits import SPARE_BYTES, descriptor_room, mapping_room
from kvcluster.services.doctor.finding import Finding, note, ok, problem
from kvcluster.units import GIB, KIB, MIB, format_bytes

_DEFAULTS = settings_from({"model": "none"}).host_sizes
_DEFAULT_GRANULES = _DEFAULTS.capacity_bytes // _DEFAULTS.granule_bytes
_GRANULES = (64 * KIB, 2 * MIB)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the machine, and this process's control groups (None: unlimited), can still give."""

    machine_bytes: int
    group_bytes: int | None

    @property
    def room_bytes(self) -> int:
        least = self.machine_bytes if self.group_bytes is None else min(self.machine_bytes, self.group_bytes)
        return max(0, least - SPARE_BYTES)


def findings() -> Iterator[Finding]:
    memory = measure_memory()
    yield memory_finding(memory)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    handles = max(0, descriptor_room() - MAX_DESCRIPTORS)
    yield bound(
        "descriptors",
        f"open files are limited to {_shown(soft)} (soft, raised by itself) and {_shown(hard)} (hard)",
        granules=handles,
        memory=memory,
        remedy="raise the hard limit (ulimit -Hn) or use a larger granule (--granule 2MiB)",
    )
    yield bound(
        "mappings",
        f"vm.max_map_count is {_map_count():,}",
        granules=mapping_room(),
        memory=memory,
        remedy="raise it (sysctl -w vm.max_map_count=1048576) or use a larger granule (--granule 2MiB)",
    )


def bound(topic: str, limit: str, *, granules: int, memory: Memory, remedy: str) -> Finding:
    """What so many granules a process come to, beside the memory that there is."""
    small, large = (format_bytes(granules * size_bytes) for size_bytes in _GRANULES)
    sentence = f"{limit}: at most {granules:,} granules a process, {small} at 64 KiB and {large} at 2 MiB"
    if granules < _DEFAULT_GRANULES:
        default = format_bytes(_DEFAULTS.capacity_bytes)
        return problem(topic, f"{sentence}, less than a device of the default size ({default}).", remedy=remedy)
    if granules * _GRANULES[0] < memory.room_bytes:
        return note(topic, f"{sentence}; memory itself would allow {format_bytes(memory.room_bytes)}.", remedy=remedy)
    return ok(topic, f"{sentence}.")


def memory_finding(memory: Memory) -> Finding:
    group = "nothing" if memory.group_bytes is None else f"control groups to {format_bytes(memory.group_bytes)}"
    sentence = f"{format_bytes(memory.machine_bytes)} are available, limited by {group}"
    if memory.room_bytes < _DEFAULTS.capacity_bytes:
        remedy = "end what uses it, raise the container's limit, or give devices less (--device-memory)"
        return problem("memory", f"{sentence}; less {format_bytes(SPARE_BYTES)} in spare, too little.", remedy=remedy)
    return ok("memory", f"{sentence}; devices may have {format_bytes(memory.room_bytes)} of it.")


def measure_memory(root: Path = Path("/")) -> Memory:
    """As the kernel says; `root` is where its files are."""
    group_bytes = group_room(root)
    fields = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
    [machine_bytes] = [int(field[1]) * KIB for field in fields if field[0] == "MemAvailable:"]
    return Memory(machine_bytes, group_bytes if group_bytes < 2**20 * GIB else None)


def _map_count() -> int:
    return int(Path("/proc/sys/vm/max_map_count").read_text())


def _shown(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else f"{limit:,}"
