"""Which blocks are free, and who has the others: references, pins and residence, counted apart. No memory here.

    references   block tables that name the block
    pins         whoever may read it and has no reference: between looking it up and using it, while copying from it, or
                 a process whose session is over
    residence    an index finds it

A block is free when nobody has it for any reason, and never while somebody has. Free blocks are a stack: what came
back last goes out first, while its bytes are still near. A block's id is its number and its generation, which is
another one for each life; so an id that is kept too long is known as stale, and never names its block's next owner.

Ids are one int each, generation above number, and most blocks have one reference: so a bulk call is a few calls of
slices and sets, and only blocks of several tables are counted one by one. Allocating and freeing takes about twice a
bare loop that pops and appends, where lists of counts by number took 6 to 8 times as long as that loop. Misuse is a
ValueError, and changes nothing.
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
    """`num_blocks` blocks, all free, in their life `generation`. For one thread.

    Raises:
        ValueError: no blocks, more than a number can name, or a negative generation.
    """

    def __init__(self, num_blocks: int, *, generation: int = 0) -> None:
        if not 1 <= num_blocks <= _NUMBER:
            raise ValueError(f"a pool has at least 1 and at most {_NUMBER} blocks, not {num_blocks}")
        if generation < 0:
            raise ValueError(f"a block's first life is not {generation}")
        first = block_id(0, generation)
        self.num_blocks = num_blocks
        self._free = list(range(first + num_blocks - 1, first - 1, -1))  # under the ids of their next lives
        self._referenced: set[int] = set()
        self._more: dict[int, int] = {}  # references beyond the first
        self._pins: Counter[int] = Counter()
        self._resident: set[int] = set()

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return len(self._free)

    @property
    def resident(self) -> int:
        """Blocks that an index finds."""
        return len(self._resident)

    @property
    def references_in_all(self) -> int:
        """Entries of all tables."""
        return len(self._referenced) + sum(self._more.values())

    def references(self, block: int) -> int:
        """Tables that name it. Raises ValueError for an id that is not of a block in use."""
        self._check_had([block])
        return self._count(block)

    def is_pinned(self, block: int) -> bool:
        """Whether somebody is about to use it, or to copy from it."""
        return block in self._pins

    def is_resident(self, block: int) -> bool:
        """Whether an index finds it."""
        return block in self._resident

    def is_had(self, block: int) -> bool:
        """Whether anybody has it, for any reason."""
        return block in self._referenced or block in self._resident or block in self._pins

    def is_idle(self, block: int) -> bool:
        """Whether only an index has it."""
        return block in self._resident and block not in self._pins and block not in self._referenced

    def idle_among(self, blocks: Sequence[int]) -> Sequence[int]:
        """Those of these that only an index has, in their order."""
        if self._resident.issuperset(blocks) and self._referenced.isdisjoint(blocks) and not self._pins:
            return blocks
        return [block for block in blocks if self.is_idle(block)]

    # --- references -----------------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """So many free blocks, with one reference each.

        Raises:
            OutOfBlocks: fewer are free. Nothing changed.
            ValueError: a negative count.
        """
        free = self._free
        if count < 0:
            raise ValueError(f"{count} blocks cannot be allocated")
        if count > len(free):
            raise OutOfBlocks(need=count, free=len(free))
        rest = len(free) - count
        taken = free[rest:]
        del free[rest:]
        taken.reverse()
        self._referenced.update(taken)
        return taken

    def reference(self, blocks: Sequence[int]) -> None:
        """One more table names each of these.

        Raises:
            ValueError: one of them is nobody's, or its id is stale or unknown. Nothing changed.
        """
        self._check_had(blocks)
        referenced, more = self._referenced, self._more
        known = len(referenced)
        if referenced.isdisjoint(blocks):
            referenced.update(blocks)
            if len(referenced) != known + len(blocks):  # one is named twice
                more.update({block: times - 1 for block, times in Counter(blocks).items() if times > 1})
            return
        for block in blocks:
            if block in referenced:
                more[block] = more.get(block, 0) + 1
            else:
                referenced.add(block)

    def drop(self, blocks: Sequence[int]) -> None:
        """One table less names each of these; those that nobody has any more are free.

        Raises:
            ValueError: one of them has no reference (so often), or its id is stale or unknown. Nothing changed.
        """
        referenced, more = self._referenced, self._more
        if not referenced.issuperset(blocks):
            raise _refusal(next(block for block in blocks if block not in referenced))
        if more and not more.keys().isdisjoint(blocks):
            self._drop_counted(Counter(blocks))
            return
        rest = len(referenced) - len(blocks)
        referenced.difference_update(blocks)
        if len(referenced) != rest:  # fewer went than were named
            referenced.update(blocks)
            raise _refusal(Counter(blocks).most_common(1)[0][0])
        self._free_unless_kept(blocks)

    def _drop_counted(self, times: Counter[int]) -> None:
        """So many tables less name each of these, of which some have several references."""
        left = {block: self._count(block) - less for block, less in times.items()}
        for block, count in left.items():
            if count < 0:
                raise _refusal(block)
        for block, count in left.items():
            self._more.pop(block, None)
            if count > 1:
                self._more[block] = count - 1
        last = [block for block, count in left.items() if not count]
        self._referenced.difference_update(last)
        self._free_unless_kept(last)

    # --- pins and residence ---------------------------------------------------------------------------------------

    def pin(self, block: int) -> None:
        """It is not free, whatever else ends, until it is unpinned. Raises ValueError for one that is nobody's."""
        self._check_had([block])
        self._pins[block] += 1

    def unpin(self, block: int) -> None:
        """Raises ValueError where it is not pinned. Nothing changed."""
        if block not in self._pins:
            raise ValueError(f"{_named(block)} is not pinned")
        self._pins[block] -= 1
        if not self._pins[block]:
            del self._pins[block]
            if block not in self._referenced:
                self._free_unless_kept([block])

    def reside(self, block: int) -> None:
        """An index finds it from now on. Raises ValueError for one that is nobody's, or is found already."""
        self._check_had([block])
        if block in self._resident:
            raise ValueError(f"{_named(block)} is resident already")
        self._resident.add(block)

    def vacate(self, block: int) -> None:
        """No index finds it any more. Raises ValueError where none did. Nothing changed."""
        if block not in self._resident:
            raise ValueError(f"{_named(block)} is not resident")
        self._resident.remove(block)
        if block not in self._referenced:
            self._free_unless_kept([block])

    # --- truth ----------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Each block is free or somebody's, once, and free under the id of its next life.

        Raises:
            InvariantBroken: it is not.
        """
        had = self._referenced | self._pins.keys() | self._resident
        times = Counter(map(number_of, (*self._free, *had)))
        wrong = [number for number in range(self.num_blocks) if times.pop(number, 0) != 1] + sorted(times)
        miscounted = [block for block, more in self._more.items() if more < 1 or block not in self._referenced]
        miscounted += [block for block, pins in self._pins.items() if pins < 1]
        if wrong or miscounted:
            raise InvariantBroken(
                sentence=f"blocks {wrong} are free and had, or neither, or twice; counts of {miscounted} are wrong"
            )

    def _count(self, block: int) -> int:
        return self._more.get(block, 0) + (block in self._referenced)

    def _check_had(self, blocks: Sequence[int]) -> None:
        if self._referenced.issuperset(blocks) or self._resident.issuperset(blocks):
            return
        if not all(map(self.is_had, blocks)):
            raise _refusal(next(block for block in blocks if not self.is_had(block)))

    def _free_unless_kept(self, blocks: Sequence[int]) -> None:
        """Those of `blocks`, which no table names, are free under the ids of their next lives, but for others' ones."""
        if self._resident.issuperset(blocks):
            return
        for keepers in (self._resident, self._pins.keys()):
            if keepers and not keepers.isdisjoint(blocks):
                blocks = [block for block in blocks if block not in keepers]
        self._free += [block + _LIFE for block in blocks]


def _named(block: int) -> str:
    return f"block {number_of(block)} of generation {generation_of(block)}"


def _refusal(block: int) -> ValueError:
    return ValueError(f"{_named(block)} has no reference (so often): it is gone, or was never given out")
