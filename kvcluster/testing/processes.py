"""Processes that began with a mark in their environment, and what of ours they hold: from /proc, for the test kit.

A child of a Ray worker may outlive its parent and belong to nobody, but what stood in its environment when it began it
keeps to its end, so that a cluster's processes are found whatever became of those that started them. The process that
sets the mark is none of them: its own environment, as the kernel shows it, is that of its start.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

MARK = "KVCLUSTER_TEST_CLUSTER"
OURS = "kvcluster-"  # in the name of every memfd and socket


def marked(mark: str) -> list[int]:
    """Processes that began with MARK=`mark` in their environment and have not ended."""
    entry = f"{MARK}={mark}".encode()
    return [int(pid) for pid in os.listdir("/proc") if pid.isdecimal() and entry in _environment(pid)]


def name_of(pid: int) -> str:
    """What the process calls itself: a Ray worker by its actor's class."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process that has ended"
    return b" ".join(word for word in words[:4] if word).decode(errors="replace")


def held_by(pid: int) -> dict[str, int]:
    """Descriptors and mappings of our memory, and our sockets, of one process, by kind; empty for nothing."""
    held = Counter[str]()
    sockets = _our_sockets()
    for target in _targets(pid):
        held["descriptors"] += f"memfd:{OURS}" in target
        held["sockets"] += target in sockets
    held["mappings"] += _maps(pid).count(f"memfd:{OURS}".encode())
    return {kind: count for kind, count in held.items() if count}


def _environment(pid: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


def _targets(pid: int) -> list[str]:
    try:
        return [target for name in os.listdir(f"/proc/{pid}/fd") if (target := _target(f"/proc/{pid}/fd/{name}"))]
    except OSError:  # it has ended
        return []


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # it is closed by now
        return ""


def _maps(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return b""


def _our_sockets() -> set[str]:
    """Listening ones, as descriptors name them."""
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {f"socket:[{row[6]}]" for row in rows if len(row) > 7 and row[7].startswith(f"@{OURS}")}
