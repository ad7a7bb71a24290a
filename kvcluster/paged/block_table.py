"""Block tables: which blocks hold a sequence's tokens, in order; growing, forking and permuting them. No memory here.

Tokens below `frozen` are written, and others may read them: a block of which one holds a part is replaced by a copy
before this sequence writes into the rest, as long as anybody else has the block (copy-on-write). So a fork costs no
block, and of n that go on from it the last to write keeps the block itself.

What is to be copied is told, and is done by whoever has the memory, before anybody writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcluster.paged.counts import BlockCounts
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `tokens` tokens of block `source` belong into block `target`."""

    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Growth:
    """From its entry `start` on the table is `blocks`, of which `taken` are new; `before` it had there until now.

    `lent` is the block that it began with until now, whose first tokens are in the first new one from now on.
    """

    start: int
    blocks: tuple[int, ...]
    taken: tuple[int, ...]
    before: tuple[int, ...]
    copies: tuple[Copy, ...] = ()
    lent: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class BlockTable:
    """One sequence's `blocks`. `lends` is a block that others keep, whose first tokens it is to begin its next with."""

    blocks: list[int] = field(default_factory=list)
    frozen: int = 0
    lends: tuple[int, int] | None = None  # a pinned block, and how many of its tokens


class BlockTables:
    """What can be done to tables over one pool's counts. All or nothing each, as its errors say."""

    def __init__(self, counts: BlockCounts, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"a block holds at least 1 token, not {block_size}")
        self.counts = counts
        self.block_size = block_size

    def room(self, table: BlockTable) -> int:
        """Tokens that its blocks hold."""
        return len(table.blocks) * self.block_size

    def missing(self, table: BlockTable, tokens: int) -> int:
        """Blocks that `grow` would take."""
        return max(0, ceil_div(tokens, self.block_size) - len(table.blocks)) + (
            self._shared_at(table, tokens) is not None
        )

    def grow(self, table: BlockTable, tokens: int) -> Growth:
        """Make the first `tokens` tokens lie in its blocks, and those above `frozen` in blocks that it has alone.

        The caller makes the copies, or gives the growth back (`undo`); then it ends it (`settle`).

        Raises:
            OutOfBlocks: too few are free. Nothing changed.
            ValueError: no tokens.
        """
        if tokens < 1:
            raise ValueError(f"a table grows to at least 1 token, not {tokens}")
        replaced = self._shared_at(table, tokens)
        taken = self.counts.allocate(self.missing(table, tokens))
        start = len(table.blocks) if replaced is None else replaced
        before = tuple(table.blocks[start:])
        lent: tuple[int, int] | None = None
        copies: tuple[Copy, ...] = ()
        blocks = (*taken[:1], *before[1:], *taken[1:]) if before else tuple(taken)
        if before:
            copies = (Copy(before[0], taken[0], table.frozen % self.block_size),)
        elif taken and table.lends is not None:
            lent, table.lends = table.lends, None
            copies = (Copy(lent[0], taken[0], lent[1]),)
        table.blocks = [*table.blocks[:start], *blocks]
        return Growth(start, blocks, tuple(taken), before, copies, lent)

    def settle(self, growth: Growth) -> None:
        """The copies are made: what was copied from is needed no longer."""
        self.counts.drop(growth.before[:1])
        if growth.lent is not None:
            self.counts.unpin(growth.lent[0])

    def undo(self, table: BlockTable, growth: Growth) -> None:
        """As if it had not grown."""
        table.blocks = [*table.blocks[: growth.start], *growth.before]
        table.lends = growth.lent if growth.lent is not None else table.lends
        self.counts.drop(growth.taken)

    def fork(self, table: BlockTable, tokens: int, count: int) -> list[BlockTable]:
        """So many tables that begin with its first `tokens` tokens, in the same blocks. It goes on from there too, and
        has what came behind no longer.

        Raises:
            ValueError: fewer than 1 child, no tokens, or more than it holds. Nothing changed.
        """
        if count < 1:
            raise ValueError(f"a fork has at least 1 child, not {count}")
        self._check_held(table, tokens)
        self.truncate(table, tokens)
        shared = table.blocks
        for _ in range(count):
            self.counts.reference(shared)
        table.frozen = tokens
        return [BlockTable(list(shared), tokens) for _ in range(count)]

    def permute(self, tables: Sequence[BlockTable], parents: Sequence[int], tokens: int) -> None:
        """Table i goes on from the first `tokens` tokens of the table `parents[i]`. No byte moves.

        Raises:
            ValueError: not a parent each, one that is none of these, a table twice, no tokens, or more than a parent
                holds. Nothing changed.
        """
        if len(parents) != len(tables) or len({*map(id, tables)}) != len(tables):
            raise ValueError(f"{len(tables)} tables have {len(parents)} parents: each table once, and one parent each")
        if not all(0 <= parent < len(tables) for parent in parents):
            raise ValueError(f"parents {list(parents)} are not all among {len(tables)} tables")
        for parent in parents:
            self._check_held(tables[parent], tokens)
        before = [table.blocks for table in tables]
        after = [list(before[parent][: ceil_div(tokens, self.block_size)]) for parent in parents]
        for blocks in after:
            self.counts.reference(blocks)
        for table, old, new in zip(tables, before, after, strict=True):
            self._return_lent(table)
            self.counts.drop(old)
            table.blocks, table.frozen = new, tokens

    def begin(self, table: BlockTable, blocks: Sequence[int], lent: tuple[int, int] | None) -> None:
        """An empty table begins with whole blocks that an index found, and the first tokens of one more.

        Raises:
            ValueError: the table is not empty, a block is nobody's, or none or all of the tokens of one are lent.
                Nothing changed.
        """
        if table.blocks or table.lends:
            raise ValueError("only an empty table begins with what was found")
        if lent is not None and not 0 < lent[1] < self.block_size:
            raise ValueError(f"{lent[1]} tokens are none, or all, of a block of {self.block_size}")
        self.counts.reference(blocks)
        if lent is not None:
            try:
                self.counts.pin(lent[0])
            except ValueError:
                self.counts.drop(blocks)
                raise
        table.blocks, table.lends = list(blocks), lent
        table.frozen = len(blocks) * self.block_size + (lent[1] if lent else 0)

    def truncate(self, table: BlockTable, tokens: int) -> None:
        """Only the first `tokens` tokens stay, which are written.

        Raises:
            ValueError: fewer than 0, or more than it holds. Nothing changed.
        """
        if not 0 <= tokens <= self.room(table):
            raise ValueError(f"a table of {self.room(table)} tokens cannot be cut to {tokens}")
        keep = ceil_div(tokens, self.block_size)
        self._return_lent(table)
        gone, table.blocks = table.blocks[keep:], table.blocks[:keep]
        table.frozen = tokens
        self.counts.drop(gone)

    def drop(self, table: BlockTable) -> None:
        """It names no block any more."""
        self.truncate(table, 0)

    def written_into(self, table: BlockTable, tokens: int) -> int | None:
        """The entry of a block that is begun, which tokens above `frozen` up to `tokens` are to be written into."""
        at, begun = divmod(table.frozen, self.block_size)
        return at if begun and at < len(table.blocks) and tokens > table.frozen else None

    def _shared_at(self, table: BlockTable, tokens: int) -> int | None:
        """The same where it is to be replaced first, because others have the block."""
        at = self.written_into(table, tokens)
        if at is None:
            return None
        block = table.blocks[at]
        is_shared = self.counts.references(block) > 1 or self.counts.is_resident(block) or self.counts.is_pinned(block)
        return at if is_shared else None

    def _return_lent(self, table: BlockTable) -> None:
        lent, table.lends = table.lends, None
        if lent is not None:
            self.counts.unpin(lent[0])

    def _check_held(self, table: BlockTable, tokens: int) -> None:
        if not 1 <= tokens <= self.room(table):
            raise ValueError(f"a table of {self.room(table)} tokens has not the first {tokens}")
