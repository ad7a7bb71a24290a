"""A client in a process of its own, without Ray: commands come in on standard input, frames and answers go out.

`tests.nursery` starts it. A line "frame HEX" is a frame, whose reply is the next line that comes in; any other line
answers the command.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.host import open_host_driver
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.ids import new_session
from kvcluster.services.imports import Imports
from kvcluster.services.port import DevicePort
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.wire.socket import Reclaim
from tests.services.ways import Way

GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=16, element_bytes=4)  # 256 bytes a token

MOST = 4096


class PipeReply:
    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        return bytes.fromhex(sys.stdin.readline())


class PipeTransport(Way):
    """Frames through standard output, descriptors through the attach socket."""

    def __init__(self, attach: AttachClient, imports: Imports) -> None:
        self._attach = attach
        self._imports = imports

    def send(self, frame: bytes) -> PipeReply:
        print("frame", frame.hex(), flush=True)
        return PipeReply()

    def redeem(self, seq: int) -> Sequence[PhysicalHandle]:
        return self._imports.redeem(seq)

    def settled(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.settled(handles)

    def hold(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.hold(handles)

    def let_go(self, handles: Sequence[PhysicalHandle]) -> None:
        self._imports.let_go(handles)

    def pushes(self) -> tuple[Reclaim, ...]:
        return self._imports.pushes()

    def close(self) -> None:
        self._imports.close()
        self._attach.close()


class Child:
    def __init__(self, address: str, capacity_bytes: int, gpu: str) -> None:
        session = new_session()
        attach = open_attach_client(address, session, timeout_s=20)
        self.driver = _driver(gpu, attach.welcome.granule_bytes, capacity_bytes)
        self.imports = Imports(attach, self.driver)
        self.port = DevicePort(session, attach.welcome, self.driver, PipeTransport(attach, self.imports))
        self.memories: list[SequenceMemory] = []

    def session(self) -> str:
        return self.port.session

    def open(self, layout: str = "token-major", root: str = "") -> int:
        """A new memory; returns its number."""
        spec = SequenceSpec(GEOMETRY, Layout(layout), MOST, cache_root=root.encode())
        self.memories.append(self.port.memory(spec))
        return len(self.memories) - 1

    def commit(self, number: int, tokens: int) -> int:
        memory = self.memories[number]
        memory.commit(tokens, memory.grant(tokens))
        return memory.committed_bytes

    def publish(self, number: int, tokens: int) -> Prefix:
        return self.memories[number].publish(tokens)

    def join(self, number: int, prefix: dict[str, int], tokens: int) -> int:
        return self.memories[number].join(Prefix(**prefix), tokens)  # type: ignore[arg-type]

    def find(self, number: int, token_ids: list[int], tokens: int) -> int:
        return self.memories[number].find(token_ids, tokens)

    def leave(self, number: int) -> None:
        self.memories[number].leave()

    def release(self, number: int) -> None:
        self.memories[number].release()

    def close(self, number: int, retain_tokens: int = 0) -> Prefix | None:
        return self.memories[number].close(retain_tokens=retain_tokens)

    def fill(self, number: int, offset: int, size_bytes: int, byte: int) -> None:
        ctypes.memset(self.memories[number].address + offset, byte, size_bytes)

    def digest(self, number: int, offset: int, size_bytes: int) -> str:
        return hashlib.sha256(ctypes.string_at(self.memories[number].address + offset, size_bytes)).hexdigest()

    def figures(self, number: int) -> list[int]:
        memory = self.memories[number]
        return [memory.tokens, memory.committed_bytes, memory.shared_bytes]

    def imported(self) -> list[int]:
        """Imports kept, imports made so far, redemptions."""
        return [len(self.imports), self.driver.calls().get("import_fd", 0), self.port.exchange.traffic.redemptions]

    def descriptors(self) -> int:
        return len([fd for fd in os.listdir("/proc/self/fd") if self._is_memory(fd)])

    def listen(self) -> int:
        return len(self.port.exchange.pushes())

    def hang_up(self) -> None:
        """End the session's connection, and live on with everything mapped."""
        self.port.close()

    def _is_memory(self, fd: str) -> bool:
        try:
            return "memfd:kvcluster" in os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            return False


def _driver(gpu: str, granule_bytes: int, capacity_bytes: int) -> Driver:
    if gpu:
        return open_cuda_driver(gpu)
    return open_host_driver(granule_bytes=granule_bytes, capacity_bytes=capacity_bytes)


def serve(address: str, capacity_bytes: str, gpu: str) -> None:
    """Be a client of the device at this address; "" is the host's."""
    signal.alarm(120)  # whatever a test does, this process ends
    child = Child(address.replace("@", "\0"), int(capacity_bytes), gpu)
    print(json.dumps("ready"), flush=True)
    while line := sys.stdin.readline():
        verb, *arguments = json.loads(line)
        try:
            answer = getattr(child, verb)(*arguments)
        except KvClusterError as error:
            answer = {"error": type(error).__name__, "says": str(error)}
        if isinstance(answer, Prefix):
            names = ("device", "epoch", "number", "tokens", "reusable_tokens")
            answer = {name: getattr(answer, name) for name in names}
        print(json.dumps(answer), flush=True)
