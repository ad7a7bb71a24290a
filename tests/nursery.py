"""A process that has imported what clients of one kind need, and forks a client whenever it is asked for one.

To import what it needs takes a new process longer than all that a test does with it. Run as `python -m tests.nursery
MODULE SOCKET`, where `serve(*words)` of the module is a client, with commands on its standard input and answers on its
standard output. The nursery computes nothing and has one thread, so that a fork of it is as good as a new process.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any

from kvcluster.failpoints import arm_with
from tests.piped import ROOT, TIMEOUT_S

MOST_BYTES = 4096
NO_ENV: Mapping[str, str] = MappingProxyType({})


class Nursery:
    """The process, asked from a test's. `close` ends it; its children are ended one by one before.

    Every child has `env` in its environment, and what it is born with: where libraries are must be said here.
    """

    def __init__(self, module: str, env: Mapping[str, str] = NO_ENV) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.nursery", module, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env={**os.environ, **env})
        self._socket.settimeout(TIMEOUT_S)

    def born(self, *words: str, env: Mapping[str, str] = NO_ENV, failpoints: str = "") -> Newborn:
        """A client, with `env` in its environment; a failpoint that is armed in it may kill it."""
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        pid = self.ask("bear", words, dict(env), failpoints, hands=(read_in, write_out))
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
    client, asked = importlib.import_module(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    while True:
        message, hands, _, _ = socket.recv_fds(asked, MOST_BYTES, 2)
        answer = None
        match json.loads(message) if message else None:
            case "bear", words, env, failpoints:
                if not (answer := os.fork()):
                    asked.close()
                    prepare(hands, env, failpoints)
                    client.serve(*words)
                    return
                for descriptor in hands:
                    os.close(descriptor)
            case "wait", pid, options:
                found, status = os.waitpid(pid, options)
                answer = os.waitstatus_to_exitcode(status) if found else None
            case None:
                return
        asked.send(json.dumps(answer).encode())


def prepare(hands: Sequence[int], env: Mapping[str, str], failpoints: str) -> None:
    """In the fork: with these descriptors as standard input and output."""
    for place, descriptor in enumerate(hands):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.update(env)
    if failpoints:
        arm_with(failpoints)


if __name__ == "__main__":
    main()
