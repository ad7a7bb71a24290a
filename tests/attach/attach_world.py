"""A service that records what it is told, child processes, and raw sockets."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kvcluster.attach.client import AttachClient
from kvcluster.attach.protocol import HandedHandle
from kvcluster.attach.server import AttachServer, Descriptors
from kvcluster.attach.sockets import MAX_DESCRIPTORS, close_all, packet_socket
from kvcluster.errors import Carried, InvariantBroken, NotAllowed, UnknownRequest
from kvcluster.ids import ImportKey
from kvcluster.wire.codec import decode_socket, encode
from kvcluster.wire.messages import Message
from kvcluster.wire.socket import Hello, Push, SocketMessage, Welcome

TIMEOUT_S = 30.0
ROOT = Path(__file__).parents[2]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def contents(client: AttachClient, seq: int) -> list[str]:
    """What is written in the memories of ticket `seq`."""
    texts: list[str] = []
    client.redeem(seq, lambda handle: texts.append(text_of(handle)))
    return texts


def text_of(handle: HandedHandle) -> str:
    assert handle.fd is not None
    return os.pread(handle.fd, 100, 0).decode()


def memory_with(text: str) -> int:
    fd = os.memfd_create("kvcluster-test")
    os.pwrite(fd, text.encode(), 0)
    return fd


@contextmanager
def room_for(more: int) -> Iterator[None]:
    """This process can open so many more descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(more + 1)]
    close_all(tuple(free))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Recorder:
    """A service. Ticket n hands out handles (0, n) to (n - 1, n); ticket `empty` none; from `void_from` on nothing.

    What is put into `to_say` is pushed with the next turn of the server's loop.
    """

    heartbeat_s: float = 5.0
    empty: int = 10**6
    void_from: int | None = None
    most_open: int = 0  # descriptors of this process, after a piece was made
    hello_error: Carried | None = None
    redeem_error: Exception | None = None
    to_say: deque[tuple[str, Push]] = field(default_factory=deque)
    calls: list[tuple[str, str]] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    _news: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.gate.set()

    def hello(self, hello: Hello, *, pid: int) -> Welcome:
        self._note("hello", hello.session)
        self.pids[hello.session] = pid
        if self.hello_error is not None:
            raise self.hello_error
        return Welcome(
            device="host:0", epoch=1, granule_bytes=4096, capacity_bytes=2**20, lease_s=30, heartbeat_s=self.heartbeat_s
        )

    def redeem(self, session: str, seq: int, start: int = 0, known: frozenset[ImportKey] = frozenset()) -> Descriptors:
        self._note("redeem", session)
        if not self.gate.wait(TIMEOUT_S):
            raise AssertionError("the gate was never opened")
        if self.redeem_error is not None:
            raise self.redeem_error
        if seq > self.empty:
            raise UnknownRequest(request=str(seq))
        if start == self.void_from:
            raise NotAllowed(reason=f"frame {seq} has no ticket, or its windows were released")
        total = 0 if seq == self.empty else seq
        numbers = range(start, min(start + MAX_DESCRIPTORS, total))
        keys = [ImportKey(number, seq) for number in numbers]
        fds = [None if key in known else memory_with(f"{key.handle.number}/{seq}") for key in keys]
        if any(fds):
            self.most_open = max(self.most_open, open_fds())
        handed = (HandedHandle(key, 4096, fd) for key, fd in zip(keys, fds, strict=True))
        return Descriptors(tuple(handed), total)

    def heartbeat(self, session: str) -> None:
        self._note("heartbeat", session)

    def disconnected(self, session: str) -> None:
        self._note("disconnected", session)

    def gone(self, session: str) -> None:
        self._note("gone", session)

    def surrendered(self, session: str) -> None:
        self._note("surrendered", session)

    def idle(self) -> None:
        self._note("idle", "")

    def all_pushes(self) -> list[tuple[str, Push]]:
        return [self.to_say.popleft() for _ in range(len(self.to_say))]

    def of(self, session: str) -> list[str]:
        """What was said of `session`, in order."""
        with self._news:
            return [what for what, whose in self.calls if whose == session]

    def wait_for(self, what: str, session: str, times: int = 1) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.calls.count((what, session)) >= times, TIMEOUT_S), self.calls

    def _note(self, what: str, session: str) -> None:
        with self._news:
            self.calls.append((what, session))
            self._news.notify_all()


class Serving:
    """A server on a thread, and what ended it if not `close`."""

    def __init__(self, server: AttachServer) -> None:
        self.server = server
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.server.serve()
        except (ArithmeticError, InvariantBroken) as error:
            self.failure = error

    def wait(self) -> None:
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.server.close()
        self.wait()


class ChildClient:
    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "tests.attach.child", address.replace("\0", "@")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.hear()

    def hear(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Return when no thread of it runs any more."""
        os.kill(self.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(self.pid, os.WUNTRACED)[1])

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(TIMEOUT_S)

    def end(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class RawClient:
    """A socket that says what it is told to, well or badly formed."""

    def __init__(self, address: str) -> None:
        self.socket = packet_socket()
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(address)

    def say(self, message: Message) -> None:
        self.socket.send(encode(message))

    def hear(self) -> SocketMessage | None:
        """None: the end of the connection."""
        try:
            data = self.socket.recv(2**16)
        except ConnectionResetError:
            return self.hear()
        return decode_socket(data) if data else None

    def hello(self, session: str) -> SocketMessage | None:
        self.say(Hello(session=session))
        return self.hear()
