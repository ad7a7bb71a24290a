"""One client's sequence, as the host knows it: its block table, and its place in the queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcluster.ids import RequestId
from kvcluster.paged.block_table import BlockTable
from kvcluster.units import ceil_div


@dataclass(slots=True, eq=False)
class SequenceTable:
    """`own` blocks of its table it pays for alone. `is_quarantined`: it may still write to what it gave back."""

    request: RequestId
    arrival: int
    tenant: str
    max_tokens: int
    block_tokens: int
    block_bytes: int
    cache_root: bytes = b""
    token_ids: bytes = b""
    table: BlockTable = field(default_factory=BlockTable)
    own: set[int] = field(default_factory=set)
    is_quarantined: bool = False

    @property
    def held_bytes(self) -> int:
        """What it pays for."""
        return len(self.own) * self.block_bytes

    @property
    def shares(self) -> bool:
        """Whether it has blocks that others have, or may have."""
        return len(self.table.blocks) > len(self.own) or self.table.lends is not None

    @property
    def freed_bytes(self) -> int:
        """What its end would free for certain."""
        return self.held_bytes

    def growth_bytes(self, tokens: int) -> int:
        """The most that so many more tokens can take: their blocks, and a copy of a begun one that others have too."""
        if self.is_quarantined:
            return 0
        at, begun = divmod(self.table.frozen, self.block_tokens)
        copies = begun > 0 and at < len(self.table.blocks) and self.table.blocks[at] not in self.own
        most = max(0, ceil_div(self.max_tokens, self.block_tokens) - len(self.table.blocks))
        return self.block_bytes * (min(ceil_div(tokens, self.block_tokens), most) + copies)
