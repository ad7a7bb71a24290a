"""A client of host pages in a process of its own, without Ray: see `tests.nursery`, which starts it.

Commands come in on standard input, frames and answers go out, as with `tests.services.child`.
"""

from __future__ import annotations

import json
import signal
import sys

import torch

from kvcluster.attach.client import AttachClient, open_attach_client
from kvcluster.attach.protocol import HandedHandle
from kvcluster.driver.linux import duplicate
from kvcluster.errors import KvClusterError
from kvcluster.ids import new_session
from kvcluster.index.token_chain import packed
from kvcluster.paged.shape import PageShape
from kvcluster.paged.store import PageStore, attach_store
from kvcluster.services.correspondence import Correspondence, Traffic
from kvcluster.services.pages.asks import Fork
from kvcluster.services.pages.port import PagePort
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Reclaim
from tests.pages.frames import GROUPS
from tests.pages.world import GEOMETRY, PITCH_BYTES, ROOT, SIZE, Writer
from tests.services.child import PipeReply
from tests.services.ways import Way


class PipeTransport(Way):
    """Frames through standard output."""

    def __init__(self, attach: AttachClient) -> None:
        self._attach = attach

    def send(self, frame: bytes) -> PipeReply:
        print("frame", frame.hex(), flush=True)
        return PipeReply()

    def pushes(self) -> tuple[Reclaim, ...]:
        return tuple(push for push in self._attach.pushes() if isinstance(push, Reclaim))

    @property
    def is_fenced(self) -> bool:  # type: ignore[override]
        return self._attach.is_fenced

    def surrender(self) -> None:
        self._attach.surrender()

    def close(self) -> None:
        self._attach.close()


class Child:
    def __init__(self, address: str) -> None:
        session = new_session()
        attach = open_attach_client(address, session, timeout_s=20)
        self.transport = PipeTransport(attach)
        self.port = PagePort(session, attach.welcome, _attached(attach), self.transport)
        self.letters = Correspondence(session, attach.welcome.epoch, Traffic())
        self.writers: list[Writer] = []

    def begin(self, prompt: list[int]) -> int:
        """A new sequence; how many of its tokens were found."""
        self.writers.append(Writer(self.port))
        return self.writers[-1].begin(prompt)

    def append(self, number: int, tokens: list[int]) -> None:
        self.writers[number].append(tokens)

    def publish(self, number: int) -> None:
        self.writers[number].publish()

    def fork(self, number: int, count: int) -> None:
        """The children get the numbers that follow."""
        parent = self.writers[number]
        children = [Writer(self.port) for _ in range(count)]
        self.port.one(Fork(parent.memory, tuple(child.memory for child in children), len(parent.tokens)))
        for child in children:
            child.tokens, child.told = list(parent.tokens), parent.told
        self.writers += children

    def end(self, number: int, retain: bool = False) -> None:
        self.writers[number].end(retain=retain)

    def check(self, number: int) -> bool:
        writer = self.writers[number]
        writer.check()
        return True

    def blocks(self, number: int) -> list[int]:
        return list(self.writers[number].memory.numbers)

    def stray_write(self, block: int) -> None:
        """Write into a block, whoever has it."""
        self.port.store.tensor[block] = 99.0

    def raw(self, what: str) -> str:
        """Frames of a client that says only half: a find, a grant, or both, of a request without a sequence here."""
        key = wire.RequestKey(number=1_000)
        opened = wire.Open(request=key, groups=GROUPS, max_tokens=32, cache_root=ROOT)
        find = wire.Find(request=key, token_ids=packed(list(range(20, 31))))
        grant = wire.Grant(request=key, grant=1, size_bytes=PITCH_BYTES, tokens=20)
        chosen: dict[str, tuple[wire.Operation, ...]] = {"find": (find,), "grant": (grant,), "both": (find, grant)}
        reply = self.letters.receive(self.letters.send([opened, *chosen[what]], self.transport))
        return " ".join(answer.verb for result in reply.results for answer in result.answers)

    def in_touch(self) -> bool:
        return self.port.in_touch()

    def hang_up(self) -> None:
        """End the connection, and live on with the pages mapped."""
        self.transport.close()


def _attached(attach: AttachClient) -> PageStore:
    """The pages, from their one descriptor."""
    found: list[int] = []

    def take(handed: HandedHandle) -> None:
        assert handed.fd is not None
        found.append(duplicate(handed.fd))

    attach.redeem(1, take)
    shape = PageShape.of(GEOMETRY, block_size=attach.welcome.block_tokens)
    assert attach.welcome.block_tokens == SIZE
    return attach_store(found[0], shape, attach.welcome.blocks, torch.float32)


def serve(address: str) -> None:
    signal.alarm(120)  # whatever a test does, this process ends
    child = Child(address.replace("@", "\0"))
    print(json.dumps("ready"), flush=True)
    while line := sys.stdin.readline():
        verb, *arguments = json.loads(line)
        try:
            answer = getattr(child, verb)(*arguments)
        except KvClusterError as error:
            answer = {"error": type(error).__name__, "says": str(error)}
        print(json.dumps(answer), flush=True)
