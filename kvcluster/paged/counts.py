"""Which blocks are free, and who has the others: references, pins and residence, counted apart. No memory here.

    references   block tables that name the block
    pins         somebody between looking it up and using it, or copying from it
    residence    an index finds it

A block is free when nobody has it for any reason, and never while somebody has. Free blocks are a stack: what came
back last goes out first, while its bytes are still near. A block's id is its number and its generation, which is
another one for each life; so an id that is kept too long is known as stale, and never names its block's next owner.

Ids are one int each, generation above number: bulk calls make no objects. Misuse is a ValueError, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvcluster.errors import InvariantBroken, OutOfBlocks

NUMBER_BITS = 32
_NUMBER = (1 << NUMBER_BITS) - 1
_LIFE = 1 << NUMBER_BITS


def number_of(block: int) -> int:
    """Where the block lies."""
    return block & _NUMBER


def generation_of(block: int) -> int:
    """Which of its lives it is."""
    return block >> NUMBER_BITS


def block_id(number: int, generation: int) -> int:
    return generation << NUMBER_BITS | number


class BlockCounts:
    """`num_blocks` blocks, all free. For one thread."""

    def __init__(self, num_blocks: int) -> None:
        if not 1 <= num_blocks <= _NUMBER:
            raise ValueError(f"a pool has at least 1 and at most {_NUMBER} blocks, not {num_blocks}")
        self._ids = list(range(num_blocks))  # each block's id in its present life, or its next one
        self._references = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._pins: Counter[int] = Counter()
        self._resident: set[int] = set()

    @property
    def num_blocks(self) -> int:
        return len(self._ids)

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    def references(self, block: int) -> int:
        """Tables that name it. Raises ValueError for an id that is not of a block in use."""
        self._check(block)
        return self._references[block & _NUMBER]

    def is_pinned(self, block: int) -> bool:
        return block in self._pins

    def is_resident(self, block: int) -> bool:
        return block in self._resident

    def is_idle(self, block: int) -> bool:
        """Whether only an index has it."""
        return block in self._resident and block not in self._pins and not self._references[block & _NUMBER]

    # --- references -----------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """So many free blocks, with one reference each.

        Raises:
            OutOfBlocks: fewer are free. Nothing changed.
            ValueError: a negative count.
        """
        free, references = self._free, self._references
        if not 0 <= count <= len(free):
            if count < 0:
                raise ValueError(f"{count} blocks cannot be allocated")
            raise OutOfBlocks(need=count, free=len(free))
        taken = free[len(free) - count :]
        del free[len(free) - count :]
        taken.reverse()
        for block in taken:
            references[block & _NUMBER] = 1
        return taken

    def reference(self, blocks: Sequence[int]) -> None:
        """One more table names each of these.

        Raises:
            ValueError: one of them is nobody's, or its id is stale or unknown. Nothing changed.
        """
        for block in blocks:
            self._check(block)
        for block in blocks:
            self._references[block & _NUMBER] += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """One table less names each of these; those that nobody has any more are free.

        Raises:
            ValueError: one of them has no reference (so often), or its id is stale or unknown. Nothing changed.
        """
        ids, references, last = self._ids, self._references, []
        done = 0
        try:
            for block in blocks:
                number = block & _NUMBER
                left = references[number] - 1
                if ids[number] != block or left < 0:
                    raise IndexError
                references[number] = left
                done += 1
                if not left:
                    last.append(block)
        except IndexError:
            for block in blocks[:done]:
                references[block & _NUMBER] += 1
            raise self._refusal(blocks[done]) from None
        self._free_all(last)

    # --- pins and residence ---------------------------------------------------------------------------------------

    def pin(self, block: int) -> None:
        """It is not free, whatever else ends, until it is unpinned. Raises ValueError for one that is nobody's."""
        self._check(block)
        self._pins[block] += 1

    def unpin(self, block: int) -> None:
        """Raises ValueError where it is not pinned. Nothing changed."""
        if block not in self._pins:
            raise ValueError(f"block {number_of(block)} of generation {generation_of(block)} is not pinned")
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
            self._free_all([block])

    def reside(self, block: int) -> None:
        """An index finds it from now on. Raises ValueError for one that is nobody's, or is found already."""
        self._check(block)
        if block in self._resident:
            raise ValueError(f"block {number_of(block)} is resident already")
        self._resident.add(block)

    def vacate(self, block: int) -> None:
        """No index finds it any more. Raises ValueError where none did. Nothing changed."""
        if block not in self._resident:
            raise ValueError(f"block {number_of(block)} of generation {generation_of(block)} is not resident")
        self._resident.remove(block)
        self._free_all([block])

    # --- truth ----------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Each block is free or somebody's, once, and free under the id of its next life.

        Raises:
            InvariantBroken: it is not.
        """
        free = Counter(map(number_of, self._free))
        held = {n for n, count in enumerate(self._references) if count} | {*map(number_of, self._pins)}
        held |= {*map(number_of, self._resident)}
        wrong = [n for n in range(self.num_blocks) if free[n] + (n in held) != 1]
        stale = [b for b in (*self._free, *self._pins, *self._resident) if self._ids[number_of(b)] != b]
        if wrong or stale or min(self._references) < 0 or any(count < 1 for count in self._pins.values()):
            raise InvariantBroken(sentence=f"blocks {wrong} are free and had, or neither; ids {stale} are stale")

    def _check(self, block: int) -> None:
        number = block & _NUMBER
        if not 0 <= number < len(self._ids) or self._ids[number] != block:
            raise self._refusal(block)
        if not (self._references[number] or block in self._resident or block in self._pins):
            raise self._refusal(block)

    def _refusal(self, block: int) -> ValueError:
        number, generation = number_of(block), generation_of(block)
        if number >= self.num_blocks:
            return ValueError(f"there is no block {number}: the pool has {self.num_blocks}")
        if self._ids[number] != block:
            now = generation_of(self._ids[number])
            return ValueError(f"block {number} of generation {generation} is gone: it is in generation {now}")
        return ValueError(f"block {number} of generation {generation} has no reference (so often)")

    def _free_all(self, blocks: Sequence[int]) -> None:
        """Those of `blocks` that nobody has any more are free, under the id of their next life."""
        ids, free, resident, pins, references = self._ids, self._free, self._resident, self._pins, self._references
        for block in blocks:
            if block in resident or block in pins or references[block & _NUMBER]:
                continue
            following = block + _LIFE
            ids[block & _NUMBER] = following
            free.append(following)
