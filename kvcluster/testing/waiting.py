"""What a test waits for, and who of a cluster's owners has not got everything back yet, in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from kvcluster.services.statistics import AuditedDevice

TIMEOUT_S = 60.0
POLL_S = 0.05


def unquiet(audited: AuditedDevice, lives: Sequence[int]) -> Iterator[str]:
    figures = audited.figures
    if figures is None:
        yield f"{audited.device}: {audited.complaint}"
        return
    held_bytes = figures.capacity_bytes - figures.free_bytes - figures.retained_bytes
    if held_bytes:
        yield f"{audited.device}: {held_bytes} bytes are somebody's"
    strangers = set(figures.pids.values()) - set(lives)
    if strangers:
        yield f"{audited.device}: sessions of processes {sorted(strangers)}, which are no workers"


def eventually(holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        sentence = what if isinstance(what, str) else what()
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:.0f} s: {sentence}"
        time.sleep(POLL_S)
