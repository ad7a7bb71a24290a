"""The processes of a Ray of our own: started undisturbed, and all ended with us.

Two things that `ray.init` and `ray.shutdown` leave to chance. An exception that a signal raises inside `ray.init`
leaves a half-built worker, which crashes the process at its end (seen: SIGSEGV after an orderly stop). And
`ray.shutdown` ends the raylet before it has ended its agents, which then live on for seconds, children of nobody.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
START_ENDS_WITHIN_S = 2.0  # after a signal; the whole stop has 5 s
END_TIMEOUT_S = 0.5
_TICK_S = 0.02


@dataclass(frozen=True, slots=True)
class Process:
    """A process, and when it started, in ticks since the machine did: a number used again is another process."""

    pid: int
    started: int


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block is over, and then raise KeyboardInterrupt.

    A block that goes on for `START_ENDS_WITHIN_S` after the signal is not waited for: Ray's processes and this one
    are ended as they are. In another than the main thread nothing is held back, since no signal arrives there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[threading.Timer] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if not heard:
            heard.append(threading.Timer(START_ENDS_WITHIN_S, _leave))
            heard[0].start()

    before = {number: signal.signal(number, hear) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in heard:
            timer.cancel()
    if heard:
        raise KeyboardInterrupt


def _leave() -> None:
    kill(ray_processes())
    os.write(sys.stderr.fileno(), b"kvcluster: stopped while Ray was starting\n")
    os._exit(130)


@contextmanager
def all_ended() -> Iterator[None]:
    """Ray's processes that are ours before the block are gone after it: by themselves, or by force."""
    ours = ray_processes()
    yield
    deadline = time.monotonic() + END_TIMEOUT_S
    while any(map(_lives, ours)) and time.monotonic() < deadline:
        time.sleep(_TICK_S)
    kill(ours)


def ray_processes() -> tuple[Process, ...]:
    """Children of this process that are Ray's, and theirs, whoever they are."""
    parents = dict(_all_processes())
    found = [process for process, parent in parents.items() if parent == os.getpid() and _is_ray(process)]
    for ancestor in found:  # grows while it is walked
        found += [process for process, parent in parents.items() if parent == ancestor.pid]
    return tuple(found)


def kill(processes: tuple[Process, ...]) -> None:
    """End those that still live."""
    for process in filter(_lives, processes):
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _all_processes() -> Iterator[tuple[Process, int]]:
    """Each process, and its parent's id."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (fields := _stat(int(folder.name))):
            yield Process(int(folder.name), int(fields[19])), int(fields[1])


def _stat(pid: int) -> list[str] | None:
    """What /proc says after the name, from the state on; None where the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def _lives(process: Process) -> bool:
    fields = _stat(process.pid)
    return fields is not None and int(fields[19]) == process.started and fields[0] != "Z"


def _is_ray(process: Process) -> bool:
    try:
        return b"ray" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False
