"""A process with sessions at host pages and no model: an ask at a time, or half of one. Runs as an actor."""

from __future__ import annotations

import os

from actors.host_proxies import open_page_port
from actors.hosts import Host
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import End, Find, Grow
from kvcluster.services.correspondence import Correspondence
from kvcluster.services.pages.asks import Fork
from kvcluster.services.pages.port import PagePort
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.sequence import SequenceSpec
from kvcluster.wire import messages as wire

IDS = tuple(range(3, 3 + 49))  # three blocks of 16, and a token
ROOT = b"r" * 32


class HostClient:
    """One process; each `begin` is half of an ask, in a session of its own, which goes on with nothing."""

    def __init__(self, host: Host, geometry: KvGeometry) -> None:
        self._host = host
        self._geometry = geometry
        self._port = open_page_port(host)
        self._begun: list[PagePort] = []
        self._sequences: list[SequencePages] = []

    def pid(self) -> int:
        return os.getpid()

    def leave_blocks(self) -> None:
        """A sequence of `IDS` that ends, and is found by whoever begins so."""
        memory = self._sequence()
        self._port.one(Find(memory, packed(IDS), len(IDS)))
        self._port.one(End(memory, len(IDS)))

    def hold(self, blocks: int) -> int:
        """A sequence of so many, which is kept. Returns its bytes."""
        memory = self._sequence(blocks * self._port.block_tokens)
        self._port.one(Grow(memory, memory.spec.max_tokens))
        self._sequences.append(memory)
        return memory.committed_bytes

    def fork(self, children: int) -> int:
        """A sequence, and children of it that have written behind the fork: bytes that all of them pay for alone."""
        parent = self._sequence()
        self._port.one(Grow(parent, 40))
        forked = tuple(self._sequence() for _ in range(children))
        self._port.one(Fork(parent, forked, 40))
        for child in forked:
            self._port.one(Grow(child, 41))
        self._sequences += [parent, *forked]
        return sum(sequence.committed_bytes for sequence in self._sequences)

    def begin(self, what: str) -> str:
        """A request that is granted room ("grant") or finds blocks ("find"), and commits nothing: what was answered."""
        key = wire.RequestKey(number=1)
        port = open_page_port(self._host)
        self._begun.append(port)
        groups = (wire.Group(fragments=1, stride_bytes=self._geometry.token_bytes),)
        opened = wire.Open(request=key, groups=groups, max_tokens=64, cache_root=ROOT)
        ops: dict[str, wire.Operation] = {
            "grant": wire.Grant(request=key, grant=1, size_bytes=port.welcome.granule_bytes, tokens=64),
            "find": wire.Find(request=key, token_ids=packed(IDS)),
        }
        letters = Correspondence(port.session, port.welcome.epoch, port.exchange.traffic)
        reply = letters.receive(letters.send([opened, ops[what]], port.exchange.line))
        return " ".join(answer.verb for result in reply.results for answer in result.answers)

    def _sequence(self, most_tokens: int = 64) -> SequencePages:
        return self._port.memory(SequenceSpec(self._geometry, Layout.TOKEN_MAJOR, most_tokens, cache_root=ROOT))
