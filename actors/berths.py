"""Which host device a replica sits at, so that each has its part of a deployment's replicas on this node.

Serve numbers its replicas, and gives a dead one's number away while the dead one may still hold memory; two that start
together may count the same sessions. So a replica takes a berth: a name among this machine's abstract sockets, which
the kernel gives to one process, and takes back with that process's end, whatever kind of end that is. As many berths
as the settings name come first, one device after the other; where all are held (Serve starts a new replica before the
old one has ended) a replica waits a little, and then takes one more beside them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WAIT_S = 10.0  # Ray kills a stopped process after 5 s
MOST_ROUNDS = 64  # of berths at one device
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Berth:
    """A berth at `device`; this process's own until it is closed, or the process has ended."""

    device: str
    held: socket.socket

    def close(self) -> None:
        self.held.close()


class NoBerth(Exception):
    """Every name for a berth is taken: more replicas than a node can have, or another user holds the names."""


def take_berth(owner: str, devices: Sequence[str], *, each: int, wait_s: float = WAIT_S) -> Berth:
    """A berth at one of `devices`, which hold `each` of them. `owner` names the deployment and the node.

    Raises:
        NoBerth: there is none, not even one more. Nothing is held.
    """
    deadline, pause = time.monotonic() + wait_s, threading.Event()
    while (berth := _first_free(owner, devices, range(each))) is None and time.monotonic() < deadline:
        pause.wait(_PAUSE_S)
    berth = berth or _first_free(owner, devices, range(each, MOST_ROUNDS))
    if berth is None:
        raise NoBerth(f"all {MOST_ROUNDS} berths at each of {', '.join(devices)} are held: end what holds them")
    return berth


def _first_free(owner: str, devices: Sequence[str], rounds: range) -> Berth | None:
    for device, address in _addresses(owner, devices, rounds):
        if (held := _bound(address)) is not None:
            return Berth(device, held)
    return None


def _addresses(owner: str, devices: Sequence[str], rounds: range) -> Iterator[tuple[str, str]]:
    for number in rounds:
        for device in devices:
            digest = hashlib.sha256(f"{os.getuid()}\n{owner}\n{device}".encode()).hexdigest()[:32]
            yield device, f"\0kvcluster-berth-{digest}-{number}"


def _bound(address: str) -> socket.socket | None:
    """A socket of this name, which nobody connects to; None where another process has it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(address)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return held
