"""Another process with a driver of its own: it imports, looks, stores, and may die of it.

The parent describes the driver (`ChildDriver`); the child is `python -m` this package. It takes memory over a
socket, does one act, and says what it read before the store that should end it. What ends it is the hardware's: a
SIGSEGV where the memory is the CPU's, an error of the copy where it is the device's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvcluster.driver.protocol import Driver, PhysicalHandle

REFUSED = 3
LENGTH = 8


@dataclass(frozen=True, slots=True)
class Ended:
    """What the child read, and what `waitpid` says of its end."""

    read: bytes
    status: int

    @property
    def was_stopped(self) -> bool:
        """By the hardware, and by nothing else."""
        return self.status in (-signal.SIGSEGV, REFUSED)


@dataclass(frozen=True, slots=True)
class ChildDriver:
    """How another process opens its driver: a function, "module:name", its keywords, and more environment."""

    opener: str
    arguments: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=dict)

    def act(self, act: str, driver: Driver, handle: PhysicalHandle) -> Ended:
        """Hand `handle` to a child that does `act` with it, and wait for its end."""
        descriptor = driver.export_fd(handle)
        try:
            with self._started(act, handle.size_bytes) as (child, peer):
                socket.send_fds(peer, [b"."], [descriptor])
                read = peer.recv(LENGTH)
                child.wait()
        finally:
            os.close(descriptor)
        return Ended(read, child.returncode)

    def bequeath(self, size_bytes: int, content: bytes) -> int:
        """A descriptor of memory with these first bytes, whose creator was killed; the caller closes it."""
        with self._started("bequeath", size_bytes) as (child, peer):
            peer.sendall(content)
            _, descriptors, _, _ = socket.recv_fds(peer, 1, 1)
            child.kill()
            child.wait()
        os.set_inheritable(descriptors[0], False)
        return descriptors[0]

    @contextmanager
    def _started(self, act: str, size_bytes: int) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
        ours, theirs = socket.socketpair()
        told = json.dumps([self.opener, dict(self.arguments), act, size_bytes, theirs.fileno()])
        command = [sys.executable, "-m", __package__, told]
        environment = os.environ | self.environment
        with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment) as child:
            theirs.close()
            yield child, ours
