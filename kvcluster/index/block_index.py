"""Which blocks of host pages hold these tokens: a tree of whole blocks, one block of memory each.

A block is listed once it is full and written. It is found behind the block before it by its tokens' ids themselves, so
nothing is hashed to find it, and no digest that collides serves other tokens. Its content is the digest of its chain
(`token_chain`): by that it is known to whoever keeps a history of what was here. A tree is reached through its root
alone (`index.identity`).

Tokens that are listed already keep their block, unless it gives way to another one with the same content. Where it
does not, nothing is listed behind it: so whoever has a listed block has all that come before it too, and a block that
nobody uses is followed by none that somebody does.

Blocks are ids of `paged.counts`, number and generation: what was listed under an id is gone with it, and a number that
is used again is nobody's old block. Who uses a block, and which goes next, is not known here.

Memory: 335 bytes a block of 16 tokens (measured), gone with the block.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from kvcluster.index.token_chain import ID_BYTES, blocks_of, common_tokens, following

MOST_LOOKED_AT = 16  # blocks that go on behind the last whole one, the newest first


@dataclass(frozen=True, slots=True)
class FoundBlocks:
    """Whole `blocks`, in order; and the block whose first `partial_tokens` tokens come next, where there is one."""

    blocks: tuple[int, ...]
    partial: int | None = None
    partial_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Listing:
    """Blocks that are `new` in the index, and those that are `gone` from it for some of them."""

    new: tuple[int, ...]
    gone: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Entry:
    """A block, or what all blocks under one root begin behind. Few have more than one `child`: it is the newest."""

    digest: bytes
    ids: bytes
    block: int
    parent: _Entry | None
    child: _Entry | None = None
    children: OrderedDict[bytes, _Entry] | None = None  # by their ids, where there are several

    def behind(self, ids: bytes) -> _Entry | None:
        """The child with these ids."""
        child = self.child
        if child is None or child.ids == ids:
            return child
        return None if self.children is None else self.children.get(ids)

    def newest_first(self) -> Iterable[_Entry]:
        if self.children is not None:
            return reversed(self.children.values())
        return () if self.child is None else (self.child,)

    def leaf(self) -> _Entry:
        """The oldest child's oldest child, to the end; itself where it has none."""
        entry = self
        while entry.child is not None:
            entry = entry.child if entry.children is None else next(iter(entry.children.values()))
        return entry

    def add(self, child: _Entry) -> None:
        if self.child is not None:
            if self.children is None:
                self.children = OrderedDict([(self.child.ids, self.child)])
            self.children[child.ids] = child
        self.child = child

    def remove(self, child: _Entry) -> None:
        if self.children is None:
            self.child = None
            return
        del self.children[child.ids]
        self.child = next(reversed(self.children.values()))
        if len(self.children) == 1:
            self.children = None


class BlockIndex:
    """Of one pool with blocks of `block_tokens` tokens. For one thread."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._by_digest: dict[bytes, _Entry] = {}
        self._by_block: dict[int, _Entry] = {}
        self._roots: dict[bytes, _Entry] = {}

    def __len__(self) -> int:
        """How many blocks are listed."""
        return len(self._by_block)

    def __contains__(self, block: int) -> bool:
        return block in self._by_block

    @property
    def roots(self) -> int:
        """Under how many roots something is listed."""
        return len(self._roots)

    def look_up(self, root: bytes, token_ids: bytes) -> FoundBlocks:
        """The blocks of the longest beginning of these tokens that is listed."""
        last = self._roots.get(root)
        if last is None:
            return FoundBlocks(())
        blocks: list[int] = []
        for ids in blocks_of(token_ids, self._block_tokens):
            entry = last.child
            if entry is None or (entry.ids != ids and (entry := last.behind(ids)) is None):
                break
            blocks.append(entry.block)
            last = entry
        found_bytes = len(blocks) * self._block_tokens * ID_BYTES
        return FoundBlocks(tuple(blocks), *_partial(last, token_ids[found_bytes:]))

    def insert(
        self,
        root: bytes,
        token_ids: bytes,
        blocks: Sequence[int],
        *,
        gives_way: Callable[[int], bool] = lambda block: False,
    ) -> Listing:
        """List `blocks`, one sequence's, which hold the whole blocks of these tokens from the first one on.

        Where a block is listed for the same tokens and `gives_way`, the sequence's own takes its place; where not, that
        is the end of it, as where a block is listed for other tokens. Tokens beyond the last block are not looked at.
        """
        new, gone = [], []
        last = self._roots.get(root) or _Entry(root, b"", -1, None)
        for block, ids in zip(blocks, blocks_of(token_ids, self._block_tokens), strict=False):
            entry = last.behind(ids)
            if entry is None or entry.block != block:
                if block in self._by_block:
                    break
                if entry is None:
                    entry = self._listed(last, ids, block)
                elif gives_way(entry.block):
                    gone.append(self._replaced(entry, block))
                if entry is None or entry.block != block:
                    break
                new.append(block)
            last = entry
        return Listing(tuple(new), tuple(gone))

    def content(self, block: int) -> bytes:
        """What stands for all tokens up to its end. Raises KeyError for one that is not listed."""
        return self._by_block[block].digest

    def contents(self, blocks: Iterable[int]) -> list[bytes]:
        """The same of several, in their order."""
        by_block = self._by_block
        return [by_block[block].digest for block in blocks]

    def block_of(self, content: bytes) -> int:
        """The block of this content. Raises KeyError where none is listed."""
        return self._by_digest[content].block

    def going(self, block: int) -> Iterator[int]:
        """All that is listed behind it, and itself, in an order in which they can be removed.

        Each is to be removed before the next is asked for; where it is not, there is no next. Whoever needs many blocks
        takes them from here: a step a block, however long the sequence is.
        """
        top = entry = self._by_block.get(block)
        while entry is not None and top is not None:
            entry = entry.leaf()
            yield entry.block
            if entry is top or entry.block in self._by_block:
                return
            entry = entry.parent

    def remove(self, block: int) -> None:
        """Nobody finds it any more.

        Raises:
            ValueError: others are listed behind it, or it is not listed. Nothing changed.
        """
        entry = self._by_block.get(block)
        if entry is None or entry.child is not None:
            raise ValueError(f"block {block} is not listed, or is followed by others")
        del self._by_block[block], self._by_digest[entry.digest]
        parent = entry.parent
        assert parent is not None  # what has none is no block
        parent.remove(entry)
        if parent.parent is None and parent.child is None:
            del self._roots[parent.digest]

    def _listed(self, parent: _Entry, ids: bytes, block: int) -> _Entry | None:
        """A new entry; none where its content cannot be told from another's, because their digests collide."""
        digest = following(parent.digest, ids)
        if digest in self._by_digest:
            return None
        if parent.parent is None:
            self._roots[parent.digest] = parent
        entry = self._by_digest[digest] = self._by_block[block] = _Entry(digest, ids, block, parent)
        parent.add(entry)
        return entry

    def _replaced(self, entry: _Entry, block: int) -> int:
        """Put `block` in the place of the one that was there, which is returned."""
        before, entry.block = entry.block, block
        del self._by_block[before]
        self._by_block[block] = entry
        return before


def _partial(last: _Entry, rest: bytes) -> tuple[int | None, int]:
    """Of what goes on behind an entry, the block that shares most of `rest`, and how many tokens."""
    best, block = 0, None
    for entry in islice(last.newest_first(), MOST_LOOKED_AT) if rest else ():
        if (common := common_tokens(entry.ids, rest)) > best:
            best, block = common, entry.block
    return block, best
