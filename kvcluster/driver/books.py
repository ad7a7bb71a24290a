"""Which address is reserved and what is mapped where: the rules, checked before the hardware is asked.

A `Shelf` is one reserved range; the pieces on it are whole handles. An `AddressBook` holds a driver's shelves.
Both are sorted by address, so that a check costs O(log n). They call nothing and know no system calls: first ask
(`vacancy`, `filled`), then do, then tell (`occupy`, `vacate`).

        [ shelf ......................................................... )
        [ piece )[ piece )[ gap .......... )[ piece .......... )[ gap ... )

On the host every piece and every gap is one mapping of the kernel, which are limited: `mappings` counts them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class RuleBroken(Exception):
    """A sentence that says which rule."""


class Piece(NamedTuple):
    """[address, end) holds the whole of what `owner` names. A tuple, because one is made in every map call."""

    address: int
    size_bytes: int
    owner: Any

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


@dataclass(slots=True)
class Shelf:
    """One reserved range [address, end) and the pieces mapped in it."""

    address: int
    size_bytes: int
    _starts: list[int] = field(default_factory=list)
    _pieces: dict[int, Piece] = field(default_factory=dict)
    _gaps: int = 1

    @property
    def end(self) -> int:
        return self.address + self.size_bytes

    @property
    def mappings(self) -> int:
        """Pieces and gaps."""
        return len(self._starts) + self._gaps

    def pieces(self) -> tuple[Piece, ...]:
        """In address order."""
        return tuple(self._pieces[start] for start in self._starts)

    def vacancy(self, address: int, size_bytes: int) -> int:
        """Check that [address, address + size_bytes) lies on the shelf and nothing is mapped in it.

        Returns how many pieces lie before it, which `occupy` wants to know.

        Raises:
            RuleBroken: it does not.
        """
        self._check_inside(address, size_bytes)
        place = bisect_left(self._starts, address + size_bytes)
        if place and self._end_before(place) > address:
            raise RuleBroken("something is mapped there already")
        return place

    def filled(self, address: int, size_bytes: int) -> tuple[Piece, ...]:
        """The whole pieces that fill [address, address + size_bytes) without a gap.

        Raises:
            RuleBroken: they do not, or a piece lies there in part only.
        """
        self._check_inside(address, size_bytes)
        end = address + size_bytes
        first = bisect_left(self._starts, address)
        starts = self._starts[first : bisect_left(self._starts, end, first)]
        pieces = tuple([self._pieces[start] for start in starts])
        if sum([piece[1] for piece in pieces]) != size_bytes or pieces[-1].end > end:  # disjoint, and none before
            raise RuleBroken("the range is not filled by whole mappings")
        return pieces

    def occupy(self, place: int, piece: Piece) -> int:
        """Write down a piece whose vacancy was found at `place`; returns by how many the mappings grew."""
        address, size_bytes, _ = piece
        gaps = (self._end_before(place) < address) + self._gap_after(address + size_bytes)
        self._starts.insert(place, address)
        self._pieces[address] = piece
        self._gaps += gaps - 1  # one gap became so many, and a piece
        return gaps

    def vacate(self, pieces: tuple[Piece, ...]) -> int:
        """Strike out adjacent pieces, as `filled` gave them; returns by how many the mappings grew."""
        first = bisect_left(self._starts, pieces[0].address)
        del self._starts[first : first + len(pieces)]
        for piece in pieces:
            del self._pieces[piece.address]
        gone = (self._end_before(first) < pieces[0].address) + self._gap_after(pieces[-1].end)
        self._gaps += 1 - gone
        return 1 - gone - len(pieces)

    def _check_inside(self, address: int, size_bytes: int) -> None:
        if size_bytes < 1:
            raise RuleBroken("the range is empty")
        if address < self.address or address + size_bytes > self.address + self.size_bytes:
            raise RuleBroken("the range leaves the reserved one")

    def _end_before(self, place: int) -> int:
        """Where the first `place` pieces end, or where the shelf begins."""
        if not place:
            return self.address
        address, size_bytes, _ = self._pieces[self._starts[place - 1]]
        return address + size_bytes

    def _gap_after(self, end: int) -> bool:
        return end not in self._pieces and end < self.address + self.size_bytes


@dataclass(slots=True)
class AddressBook:
    """A driver's shelves. Sizes and addresses are multiples of `granule_bytes`."""

    granule_bytes: int
    _starts: list[int] = field(default_factory=list)
    _shelves: dict[int, Shelf] = field(default_factory=dict)

    def add(self, shelf: Shelf) -> None:
        insort(self._starts, shelf.address)
        self._shelves[shelf.address] = shelf

    def remove(self, shelf: Shelf) -> None:
        del self._starts[bisect_left(self._starts, shelf.address)]
        del self._shelves[shelf.address]

    def check_size(self, size_bytes: int) -> None:
        """
        Raises:
            RuleBroken: no positive multiple of the granule.
        """
        if size_bytes < 1 or size_bytes % self.granule_bytes:
            raise RuleBroken(f"{size_bytes} bytes are no positive multiple of {self.granule_bytes}")

    def shelf_at(self, address: int, size_bytes: int) -> Shelf:
        """The shelf on which `address` lies, for a range that is aligned.

        Raises:
            RuleBroken: misaligned, or not on a shelf.
        """
        granule_bytes = self.granule_bytes
        if size_bytes < 1 or size_bytes % granule_bytes:
            raise RuleBroken(f"{size_bytes} bytes are no positive multiple of {granule_bytes}")
        if address % granule_bytes:
            raise RuleBroken(f"the address is no multiple of {granule_bytes}")
        after = bisect_right(self._starts, address)
        shelf = self._shelves[self._starts[after - 1]] if after else None
        if shelf is None or address >= shelf.address + shelf.size_bytes:
            raise RuleBroken("the address is not reserved")
        return shelf

    def empty_shelf(self, address: int, size_bytes: int) -> Shelf:
        """The shelf that is exactly this range, with nothing on it.

        Raises:
            RuleBroken: no such shelf, or something is mapped on it.
        """
        shelf = self._shelves.get(address)
        if shelf is None or shelf.size_bytes != size_bytes:
            raise RuleBroken("this is not exactly a reserved range")
        if shelf.pieces():
            raise RuleBroken("something is still mapped in the range")
        return shelf
