"""What this process's control groups still let it have: a container's limit, and every limit around it.

A limit holds for a group with all that is in it, so the least of the group's and its ancestors' rooms counts. What
a group uses includes the page cache, which the kernel gives up before it kills: its idle part (`inactive_file`) is
room. Version 2 and version 1 are read, both where both are there. What cannot be read sets no limit.
Source: the kernel's documentation, "Control Group v2" and "Memory Resource Controller".
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Version:
    """Where a version keeps a group's figures; `idle` is a line of memory.stat, for the group and all within."""

    mount: str
    most: str
    used: str
    idle: str


_V1 = _Version("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def group_room(root: Path = Path("/")) -> int:
    """Bytes that the control groups of this process can still give; `sys.maxsize` where nothing limits them."""
    rooms = (_room(folder, version) for version, path in _groups(root) for folder in _up(root / version.mount, path))
    return max(0, min(rooms, default=sys.maxsize))


def _groups(root: Path) -> Iterator[tuple[_Version, str]]:
    """The version and the path of each group of ours that counts memory."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield _V2, path
        elif "memory" in controllers.split(","):
            yield _V1, path


def _up(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder, its ancestors', and the mount itself, which is a container's own group."""
    names = [name for name in PurePosixPath(path).parts if name not in ("/", "..")]
    for depth in range(len(names), -1, -1):
        yield mount.joinpath(*names[:depth])


def _room(folder: Path, version: _Version) -> int:
    most, used = _text(folder / version.most), _text(folder / version.used)
    if not most.isdecimal() or not used.isdecimal():  # no such group, or "max"
        return sys.maxsize
    return int(most) - int(used) + _idle_bytes(_text(folder / "memory.stat"), version.idle)


def _idle_bytes(statistics: str, name: str) -> int:
    figures = dict(line.split() for line in statistics.splitlines())
    return int(figures.get(name, 0))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
