"""What a crashed cluster left behind: actors whose Ray is gone, memory whose device is gone, and files of owners.

The name of a host device's memory has its creator's process id in it (`driver.linux`), and a creator keeps a
descriptor of each memory as long as it lives. So what a process holds, by a mapping or a descriptor, has lost its
device where its creator has none of it. A GPU's memory says nothing of the kind. Only this user's processes can be
looked at; one that ends meanwhile is passed over.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvcluster.run_folder import run_folders
from kvcluster.services.abandoned_files import AbandonedFile, abandoned_files
from kvcluster.services.doctor.finding import Finding, note, ok, problem
from kvcluster.units import format_bytes

_PROC = Path("/proc")
_ACTOR = re.compile(r"ray::(DeviceActor|HostKvActor|RequestActor|Supervisor)\b")
_NAME = re.compile(r"/memfd:kvcluster-(\d+) ")
_MAPPED = re.compile(rf"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) +{_NAME.pattern}", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    """One memfd, by its inode; `creator` is a process id."""

    inode: int
    creator: int


@dataclass(frozen=True, slots=True)
class Process:
    """A process and our memory in it: what it maps, and what it has a descriptor of; bytes by memory."""

    pid: int
    parent: str
    command: str
    mapped: dict[Memory, int] = field(default_factory=dict)
    opened: dict[Memory, int] = field(default_factory=dict)


def findings() -> Iterator[Finding]:
    files = [file for folder in run_folders() for file in abandoned_files(folder)]
    yield from judge(tuple(processes()), files)


def judge(seen: tuple[Process, ...], files: Sequence[AbandonedFile] = ()) -> Iterator[Finding]:
    """A finding for each leftover, or one that there is none."""
    found = [*_without_ray(seen), *_without_device(seen), *map(_file, files)]
    yield from found or [ok("leftovers", "no actor without its Ray, no memory without its device, no file of either.")]


def _file(left: AbandonedFile) -> Finding:
    """It blocks nobody."""
    if not left.clients:
        sentence = f"{left.path} is of a device or host pages that no longer run."
        return note("leftovers", sentence, remedy="nothing: the next start of any of them removes it")
    pids = ", ".join(map(str, sorted(set(left.clients))))
    sentence = f"{left.path} is of a device or host pages that do not run now, and process {pids} has memory of them."
    return note("leftovers", sentence, remedy=f"nothing while their cluster starts them again, else: kill {pids}")


def _without_ray(seen: tuple[Process, ...]) -> Iterator[Finding]:
    for process in seen:
        if (actor := _ACTOR.match(process.command)) and process.parent != "raylet":
            sentence = f"process {process.pid} is a {actor[1]} whose Ray is gone; it keeps its memory."
            yield problem("leftovers", sentence, remedy=f"kill {process.pid}")


def _without_device(seen: tuple[Process, ...]) -> Iterator[Finding]:
    owned = {memory for process in seen for memory in process.opened if memory.creator == process.pid}
    for process in seen:
        held = {**process.opened, **process.mapped}
        lost_bytes = sum(size_bytes for memory, size_bytes in held.items() if memory not in owned)
        if lost_bytes:
            name = process.command.split(" ")[0]
            sentence = (
                f"process {process.pid} ({name}) holds {format_bytes(lost_bytes)} of memory whose device is gone; "
                "it is free once that process ends."
            )
            yield note("leftovers", sentence, remedy=f"nothing while it still works, else: kill {process.pid}")


def processes() -> Iterator[Process]:
    """Each process of this user that is an actor of ours or has memory of ours."""
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            try:
                process = _look(folder)
            except OSError:  # it has ended, or is another user's
                continue
            if process.mapped or process.opened or _ACTOR.match(process.command):
                yield process


def _look(folder: Path) -> Process:
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
    return Process(int(folder.name), _name_of(parent), command, _mapped(folder), _opened(folder))


def _name_of(pid: str) -> str:
    try:
        return (_PROC / pid / "comm").read_text().strip()
    except OSError:
        return ""


def _mapped(folder: Path) -> dict[Memory, int]:
    """Each memory once, though it may be mapped at several places."""
    mapped: dict[Memory, int] = {}
    for start, stop, inode, creator in _MAPPED.findall((folder / "maps").read_text(errors="replace")):
        memory = Memory(int(inode), int(creator))
        mapped[memory] = max(mapped.get(memory, 0), int(stop, 16) - int(start, 16))
    return mapped


def _opened(folder: Path) -> dict[Memory, int]:
    opened = {}
    for entry in os.scandir(folder / "fd"):
        try:
            if named := _NAME.match(os.readlink(entry.path)):
                status = os.stat(entry.path)
                opened[Memory(status.st_ino, int(named[1]))] = status.st_size
        except OSError:  # closed meanwhile
            continue
    return opened
