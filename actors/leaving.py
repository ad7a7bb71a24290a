"""Owners of memory that nobody uses are asked to leave, until they have or the time is over.

An owner that leaves gives its memory and its file back; one that is killed leaves the file to the next start. It does
not leave while it has a session, and the session of a worker that was killed ends a moment after it, when the kernel
says that its process is dead: so an owner is asked more than once. One that says nothing is asked once, and holds up
nobody else.
"""

from __future__ import annotations

import time
from typing import Any

import ray

from actors.asking import OWNERS, Pending, Silent, actors_named, heard

_ROUND_S = 0.25  # for what is asked; after it those that have answered are asked again
_PAUSE_S = 0.05


def leave_all(timeout_s: float) -> dict[str, bool | Silent]:
    """Each owner of the cluster that this process is connected to ends as soon as it has no session.

    Returns what those last answered that have not by then: False of one that somebody has a session with.
    """
    deadline = time.monotonic() + timeout_s
    asked: dict[str, Any] = {}  # whose answer is still to come
    while True:
        owners = actors_named(OWNERS)
        asked = {name: asked.get(name) or owner.leave.remote() for name, owner in owners.items()}
        round_s = min(_ROUND_S, max(deadline - time.monotonic(), _PAUSE_S))
        said = heard(asked, timeout_s=round_s)
        for name, has_left in said.items():
            if has_left is True:
                ray.kill(owners[name])
        staying = {name: answer for name, answer in said.items() if answer is not True}
        if not staying or time.monotonic() >= deadline:
            return staying
        asked = {name: asked[name] for name, answer in staying.items() if isinstance(answer, Pending)}
        time.sleep(_PAUSE_S)
