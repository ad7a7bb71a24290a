"""Pages of tiny blocks with sequences whose rows say whose they are: for tests that check content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import End, Find, Grow, Outcome, Publish, Shed
from kvcluster.services.pages.local import LocalPages, open_pages
from kvcluster.services.pages.port import PagePort
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.sequence import SequenceSpec

SIZE = 4  # tokens a block
GEOMETRY = KvGeometry.uniform(layers=2, kv_heads=1, head_dim=4, element_bytes=4)
PITCH_BYTES = 4096
ROOT, OTHER = b"r" * 32, b"o" * 32


@contextmanager
def small_pages(blocks: int) -> Iterator[LocalPages]:
    with open_pages(GEOMETRY, dtype=torch.float32, memory=blocks * PITCH_BYTES, block_size=SIZE) as pages:
        yield pages
        pages.audit()


class Writer:
    """One sequence, its tokens, and its rows: row i of every layer holds token i and all before it, in one number."""

    def __init__(self, port: PagePort, *, root: bytes = ROOT, most: int = 64, tenant: str = "") -> None:
        spec = SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, most, tenant=tenant, cache_root=root)
        self.port = port
        self.root = root
        self.memory: SequencePages = port.memory(spec)
        self.tokens: list[int] = []
        self.told = 0  # tokens whose ids the host has

    def begin(self, prompt: Sequence[int], *, room: int = 0) -> int:
        """Find and grow for a prompt; how many tokens were there. Raises what it is refused with."""
        joined = self.port.one(Find(self.memory, packed(prompt), len(prompt) + room)).joined_tokens
        self.told = len(prompt)
        assert self.written() == rows_of(prompt[:joined])
        self.tokens = list(prompt)
        self._write(joined, len(prompt))
        return joined

    def append(self, tokens: Sequence[int]) -> None:
        """Grow and write; raises what it is refused with."""
        before = len(self.tokens)
        self.port.one(Grow(self.memory, before + len(tokens)))
        self.tokens += tokens
        self._write(before, len(self.tokens))

    def publish(self) -> None:
        self.port.one(Publish(self.memory, min(self.told, len(self.tokens))))

    def shed(self) -> Outcome:
        return self.port.one(Shed(self.memory))

    def end(self, *, retain: bool = False) -> None:
        kept = len(self.tokens) if retain else 0
        more = packed(self.tokens[self.told :]) if retain else b""
        self.port.one(End(self.memory, kept, more))

    def written(self) -> list[float]:
        """The rows that lie in the pages, of the tokens that are there; raises where layers disagree."""
        views = self.memory.views(torch.float32)
        count = len(self.tokens) if self.tokens else self.memory.joined_tokens
        flat = [views.pool[views.table[at // SIZE], 0, :, 0, at % SIZE, 0].tolist() for at in range(count)]
        assert all(first == second for first, second in flat)
        return [first for first, _ in flat]

    def check(self) -> None:
        assert self.written() == rows_of(self.tokens)

    def _write(self, start: int, stop: int) -> None:
        rows = torch.tensor(rows_of(self.tokens)[start:stop]).view(1, 1, -1, 1).expand(2, 1, -1, 4)
        for place in self.memory.views(torch.float32).writable(start, stop):
            place.copy_(rows)


def rows_of(tokens: Sequence[int]) -> list[float]:
    """What row i holds: a number that all tokens up to it decide, exact in float32."""
    rows, so_far = [], 1
    for token in tokens:
        so_far = (so_far * 31 + token + 7) % 99_991
        rows.append(float(so_far))
    return rows
