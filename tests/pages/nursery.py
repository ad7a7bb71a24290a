"""A process that has imported what a client of host pages needs, and forks a client whenever it is asked for one.

To import torch takes a process longer than all that a test does with it. Run as `python -m tests.pages.nursery SOCKET`;
it computes nothing itself, so that a fork of it is as good as a new process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any

from kvcluster.failpoints import ENVIRONMENT
from kvcluster.testing.arming import arm_from_environment
from tests.pages.child import serve
from tests.piped import ROOT, TIMEOUT_S

MOST_BYTES = 4096


class Nursery:
    """The process, asked from a test's. `close` ends it; its children are ended one by one before."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.pages.nursery", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT)
        self._socket.settimeout(TIMEOUT_S)

    def born(self, address: str, failpoints: str = "") -> Newborn:
        """A client of the pages at this address."""
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        pid = self.ask("bear", address, failpoints, hands=(read_in, write_out))
        for descriptor in (read_in, write_out):
            os.close(descriptor)
        return Newborn(self, pid, (open(write_in, "w"), open(read_out)))

    def ask(self, verb: str, *arguments: Any, hands: Sequence[int] = ()) -> Any:
        socket.send_fds(self._socket, [json.dumps([verb, *arguments]).encode()], hands)
        return json.loads(self._socket.recv(MOST_BYTES))

    def close(self) -> None:
        self._socket.close()
        self._process.wait(TIMEOUT_S)


class Newborn:
    """`tests.piped.Process`: a child of the nursery, which alone can wait for it."""

    def __init__(self, nursery: Nursery, pid: int, pipes: tuple[IO[str], IO[str]]) -> None:
        self._nursery, self._pid = nursery, pid
        self._ended: int | None = None
        self.stdin, self.stdout = pipes

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Its alarm ends it in any case."""
        ended = self._waited(0)
        assert ended is not None
        return ended

    def kill(self) -> None:
        if self._ended is None:  # until it is waited for its number is nobody else's
            os.kill(self._pid, signal.SIGKILL)

    def _waited(self, options: int) -> int | None:
        if self._ended is None:
            self._ended = self._nursery.ask("wait", self._pid, options)
        return self._ended


def main() -> None:
    asked = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, hands, _, _ = socket.recv_fds(asked, MOST_BYTES, 2)
        answer = None
        match json.loads(message) if message else None:
            case "bear", address, failpoints:
                if not (answer := os.fork()):
                    asked.close()
                    return live(address, failpoints, hands)
                for descriptor in hands:
                    os.close(descriptor)
            case "wait", pid, options:
                found, status = os.waitpid(pid, options)
                answer = os.waitstatus_to_exitcode(status) if found else None
            case None:
                return None
        asked.send(json.dumps(answer).encode())


def live(address: str, failpoints: str, hands: Sequence[int]) -> None:
    """In the fork: be a client, with these descriptors as standard input and output."""
    for place, descriptor in enumerate(hands):
        os.dup2(descriptor, place)
        os.close(descriptor)
    if failpoints:
        os.environ[ENVIRONMENT] = failpoints
        arm_from_environment()
    serve(address)


if __name__ == "__main__":
    main()
