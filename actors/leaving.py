"""Owners of memory that nobody uses are asked to leave, until they have or the time is over.

An owner that leaves gives its memory and its file back; one that is killed leaves the file to the next start. It does
not leave while it has a session, and the session of a worker that was killed ends a moment after it, when the kernel
says that its process is dead: so an owner is asked more than once.
"""

from __future__ import annotations

import time

import ray

from actors.asking import OWNERS, Silent, actors_named, answers

_PAUSE_S = 0.05


def leave_all(timeout_s: float) -> dict[str, bool | Silent]:
    """Each owner of the cluster that this process is connected to ends as soon as it has no session.

    Returns what those last answered that have not by then: False of one that somebody has a session with.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        owners = actors_named(OWNERS)
        left_s = max(deadline - time.monotonic(), _PAUSE_S)
        said = answers(owners, lambda owner: owner.leave.remote(), timeout_s=left_s)
        for name, has_left in said.items():
            if has_left is True:
                ray.kill(owners[name])
        staying = {name: answer for name, answer in said.items() if answer is not True}
        if not staying or time.monotonic() >= deadline:
            return staying
        time.sleep(_PAUSE_S)
