"""Which address is reserved and what is mapped where: the rules, checked before the hardware is asked.

A `Shelf` is one reserved range; the pieces on it are whole handles, found by each granule that they cover, so that
no check depends on how much is mapped. An `AddressBook` holds a driver's shelves. They call nothing and know no
system calls: ask (`filled`), do, tell (`vacate`); or write down (`place`), do, and strike out what was not done.

        [ shelf ......................................................... )
        [ piece )[ piece )[ gap .......... )[ piece .......... )[ gap ... )

On the host every piece and every gap is one mapping of the kernel, which are limited: `mappings` counts them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol

MOST_DESCRIPTOR = 2**31 - 1
MOST_BYTES = 2**63 - 1  # a size_t holds twice as much, and of anything larger its lowest bits: another, smaller range


class RuleBroken(Exception):
    """A sentence that says which rule."""


class Piece(NamedTuple):
    """[address, end) holds the whole of what `owner` names. A tuple, because one is made for every handle mapped."""

    address: int
    size_bytes: int
    owner: Any

    @property
    def end(self) -> int:
        return self.address + self.size_bytes


_piece: Callable[[tuple[int, int, Any]], Piece] = partial(tuple.__new__, Piece)  # at half the constructor's price


class Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


def side_by_side(address: int, owners: Sequence[Sized]) -> list[Piece]:
    """A piece for each of them, from `address` on."""
    sizes = [owner.size_bytes for owner in owners]
    return list(map(_piece, zip(accumulate(sizes, initial=address), sizes, owners, strict=False)))


@dataclass(slots=True)
class Shelf:
    """One reserved range [address, end) and the pieces mapped in it; all are multiples of `granule_bytes`."""

    address: int
    size_bytes: int
    granule_bytes: int
    end: int = field(init=False)
    mappings: int = field(init=False, default=1)
    """Pieces and gaps."""

    _granules: range = field(init=False)
    _cells: dict[int, Piece] = field(init=False)  # by the address of each granule, and one beyond either end
    _is_uniform: bool = field(init=False, default=True)  # no piece was ever larger than a granule

    def __post_init__(self) -> None:
        self.end = self.address + self.size_bytes
        self._granules = range(self.address, self.end, self.granule_bytes)
        before = self.address - self.granule_bytes
        self._cells = {cell: Piece(cell, self.granule_bytes, None) for cell in (before, self.end)}  # no gap there

    def pieces(self) -> tuple[Piece, ...]:
        """In address order."""
        return _each_once(self._cells[cell] for cell in sorted(self._cells)[1:-1])

    def vacancy(self, address: int, size_bytes: int) -> None:
        """Check that [address, address + size_bytes) lies on the shelf and nothing is mapped in it.

        Raises:
            RuleBroken: it does not.
        """
        if size_bytes < 1 or address < self.address or address + size_bytes > self.end:
            raise self._outside(size_bytes)
        if size_bytes % self.granule_bytes or address not in self._granules:
            raise RuleBroken(f"the address or the size is no multiple of {self.granule_bytes}")
        if not self._cells.keys().isdisjoint(self._covered(address, size_bytes)):
            raise RuleBroken("something is mapped there already")

    def place(self, pieces: Sequence[Piece]) -> int:
        """Write adjacent pieces down; returns by how many the mappings grew.

        Raises:
            RuleBroken: there are none, they leave the shelf, or something is mapped there. Nothing is written down.
        """
        address, end = (pieces[0].address, pieces[-1].end) if pieces else (self.address, self.address)
        self.vacancy(address, end - address)
        if len(covered := self._covered(address, end - address)) == len(pieces):
            self._cells.update(zip(covered, pieces, strict=True))
        else:
            self._is_uniform = False
            for piece in pieces:
                self._cells.update(dict.fromkeys(self._covered(piece.address, piece.size_bytes), piece))
        gaps_beside = (address - self.granule_bytes not in self._cells) + (end not in self._cells)
        grown = len(pieces) + gaps_beside - 1  # they were one gap
        self.mappings += grown
        return grown

    def filled(self, address: int, size_bytes: int) -> tuple[Piece, ...]:
        """The whole pieces that fill [address, address + size_bytes) without a gap.

        Raises:
            RuleBroken: they do not, or a piece lies there in part only.
        """
        if size_bytes < 1 or address < self.address or address + size_bytes > self.end:
            raise self._outside(size_bytes)
        try:
            pieces = tuple(map(self._cells.__getitem__, self._covered(address, size_bytes)))
        except KeyError:
            raise RuleBroken("the range is not filled by whole mappings") from None
        if self._is_uniform and not size_bytes % self.granule_bytes:
            return pieces
        pieces = _each_once(pieces)
        if pieces[0].address != address or pieces[-1].end != address + size_bytes:
            raise RuleBroken("the range is not filled by whole mappings")
        return pieces

    def vacate(self, pieces: Sequence[Piece]) -> int:
        """Strike out adjacent pieces, as `filled` gave them; returns by how many the mappings grew."""
        address, end = pieces[0].address, pieces[-1].end
        for cell in self._covered(address, end - address):
            del self._cells[cell]
        gaps_beside = (address - self.granule_bytes not in self._cells) + (end not in self._cells)
        grown = 1 - len(pieces) - gaps_beside
        self.mappings += grown
        return grown

    def _covered(self, address: int, size_bytes: int) -> range:
        return range(address, address + size_bytes, self.granule_bytes)

    def _outside(self, size_bytes: int) -> RuleBroken:
        return RuleBroken("the range is empty" if size_bytes < 1 else "the range leaves the reserved one")


def _each_once(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Of a piece that covers many granules, one."""
    return tuple(next(same) for _, same in groupby(pieces, key=id))


@dataclass(slots=True)
class AddressBook:
    """A driver's shelves. Sizes and addresses are multiples of `granule_bytes`."""

    granule_bytes: int
    _starts: list[int] = field(default_factory=list)
    _shelves: dict[int, Shelf] = field(default_factory=dict)
    _latest: Shelf = field(default_factory=partial(Shelf, 0, 0, 1))  # found last, and most often the next one too

    def add(self, shelf: Shelf) -> None:
        insort(self._starts, shelf.address)
        self._shelves[shelf.address] = shelf

    def remove(self, shelf: Shelf) -> None:
        del self._starts[bisect_left(self._starts, shelf.address)]
        del self._shelves[shelf.address]
        self._latest = Shelf(0, 0, 1)

    def check_size(self, size_bytes: int) -> None:
        """
        Raises:
            RuleBroken: no positive multiple of the granule, or more than any address space has.
        """
        if size_bytes < 1 or size_bytes % self.granule_bytes:
            raise RuleBroken(f"{size_bytes} bytes are no positive multiple of {self.granule_bytes}")
        if size_bytes > MOST_BYTES:
            raise RuleBroken(f"{size_bytes} bytes are more than any address space has")

    def check_import(self, descriptor: int, size_bytes: int) -> None:
        """
        Raises:
            RuleBroken: no such size, or what can be no descriptor.
        """
        self.check_size(size_bytes)
        if not 0 <= descriptor <= MOST_DESCRIPTOR:
            raise RuleBroken(f"{descriptor} is no descriptor")

    def shelf_at(self, address: int, size_bytes: int) -> Shelf:
        """The shelf on which `address` lies, for a range that is aligned.

        Raises:
            RuleBroken: misaligned, or not on a shelf.
        """
        if size_bytes < 1 or size_bytes % self.granule_bytes or address % self.granule_bytes:
            self.check_size(size_bytes)
            raise RuleBroken(f"the address is no multiple of {self.granule_bytes}")
        return self.shelf_of(address)

    def shelf_of(self, address: int) -> Shelf:
        """As `shelf_at`, without a look at the alignment, which a shelf looks at itself.

        Raises:
            RuleBroken: the address is on no shelf.
        """
        shelf = self._latest
        if shelf.address <= address < shelf.end:
            return shelf
        after = bisect_right(self._starts, address)
        if not after or address >= (shelf := self._shelves[self._starts[after - 1]]).end:
            raise RuleBroken("the address is not reserved")
        self._latest = shelf
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
