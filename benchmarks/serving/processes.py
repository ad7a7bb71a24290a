"""The serving processes as the kernel sees them: resident bytes, descriptors, threads, mappings, names.

They are the descendants of one process. Memory of a device is memfds, which no process's own figures show whole:
their blocks are counted once for each inode. Reading it all takes about 2 ms a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
GATEWAY, REPLICA, DEVICE = "gateway", "replica", "device"
TITLES = {  # the first that a process's title holds
    ":Gateway": GATEWAY,
    "ServeReplica:": REPLICA,
    "DeviceActor": DEVICE,
    "HostKvActor": "host pages",
    "ProxyActor": "proxy",
    "ServeController": "controller",
}
OURS = tuple(TITLES.values())


@dataclass(frozen=True, slots=True)
class Seen:
    """One process."""

    name: str
    rss_bytes: int
    descriptors: int
    threads: int
    mappings: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Census:
    """All processes of a tree, by process id; and the bytes of their memfds and of /dev/shm."""

    processes: Mapping[int, Seen]
    memfd_bytes: int
    shm_bytes: int

    @property
    def serving(self) -> dict[int, Seen]:
        """Those that serve; Ray's own come and go."""
        return {pid: one for pid, one in self.processes.items() if kind(one.name) in OURS}

    def summary(self) -> dict[str, float]:
        """Sums over the processes that serve."""
        serving = self.serving.values()
        return {
            "processes": len(serving),
            "rss_mb": round(sum(one.rss_bytes for one in serving) / 1e6, 1),
            "descriptors": sum(one.descriptors for one in serving),
            "threads": sum(one.threads for one in serving),
            "mappings": sum(one.mappings for one in serving),
            "memfd_mb": round(self.memfd_bytes / 1e6, 1),
            "shm_mb": round(self.shm_bytes / 1e6, 1),
        }


def kind(name: str) -> str:
    """Which of OURS a process title is of; else the title's first word."""
    found = [one for words, one in TITLES.items() if words in name]
    return found[0] if found else name.split(" ")[0]


def census(root: int) -> Census:
    """Of a process and all its descendants, now."""
    pids = list(descendants(root))
    processes = {}
    for pid in pids:
        with suppress(*GONE):
            processes[pid] = _seen(pid)
    return Census(processes, _memfd_bytes(pids), _shm_bytes())


def descendants(root: int) -> Iterator[int]:
    """A process and all that came of it, as far as they still have their parents."""
    children: dict[int, list[int]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(*GONE):
            children.setdefault(_stat(pid)[1], []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def growth(before: Census, after: Census) -> dict[str, dict[str, float]]:
    """Of each process that served at both times, by name and process id: what it has more than before."""
    grown = {}
    for pid, late in after.serving.items():
        if early := before.serving.get(pid):
            grown[f"{kind(late.name)} {pid}"] = {
                "rss_mb": round((late.rss_bytes - early.rss_bytes) / 1e6, 1),
                "descriptors": late.descriptors - early.descriptors,
                "threads": late.threads - early.threads,
                "mappings": late.mappings - early.mappings,
            }
    return grown


def busy_s() -> float:
    """CPU seconds of the whole machine since it started."""
    words = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, _ = words
    return (user + nice + system + irq + softirq) / TICKS


def _stat(pid: int) -> tuple[str, int, float]:
    """Name, parent, CPU seconds."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    name, _, rest = text.rpartition(")")
    words = rest.split()
    return name.partition("(")[2], int(words[1]), (int(words[11]) + int(words[12])) / TICKS


def _seen(pid: int) -> Seen:
    folder = Path(f"/proc/{pid}")
    title = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    pages = int(folder.joinpath("statm").read_text(encoding="ascii").split()[1])
    mappings = folder.joinpath("maps").read_bytes().count(b"\n")
    descriptors, threads = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
    return Seen(title, pages * PAGE_BYTES, descriptors, threads, mappings, _stat(pid)[2])


def _memfd_bytes(pids: Iterable[int]) -> int:
    """Each inode once, whoever holds it."""
    blocks: dict[int, int] = {}
    for pid in pids:
        with suppress(*GONE):
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(*GONE):
                    if os.readlink(path).startswith("/memfd:"):
                        status = os.stat(path)
                        blocks[status.st_ino] = status.st_blocks
    return 512 * sum(blocks.values())


def _shm_bytes() -> int:
    """Of all that is in /dev/shm, whoever made it."""
    shm = os.statvfs("/dev/shm")
    return (shm.f_blocks - shm.f_bfree) * shm.f_frsize
