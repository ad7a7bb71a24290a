"""The books of one reserved range, against brute force over its granules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.driver.books import AddressBook, Piece, RuleBroken, Shelf, side_by_side
from tests.examples import examples

START, GRANULES = 100, 12
runs = st.tuples(st.booleans(), st.integers(0, GRANULES), st.integers(0, 4))


def _vacant(cells: list[int], first: int, count: int) -> bool:
    return count > 0 and first + count <= GRANULES and not any(cells[first : first + count])


def _whole(cells: list[int], first: int, count: int) -> bool:
    inside = cells[first : first + count]
    before, after = cells[first - 1 : first] if first else [], cells[first + count : first + count + 1]
    torn = bool(inside) and (inside[:1] == before or inside[-1:] == after)
    return count > 0 and first + count <= GRANULES and all(inside) and not torn


def _kernel_mappings(cells: list[int]) -> int:
    """Pieces, and gaps between them."""
    return sum(1 for _ in groupby(cells))


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(runs, max_size=40))
def test_a_shelf_allows_and_counts_what_its_granules_say(acts: list[tuple[bool, int, int]]) -> None:
    shelf, cells = Shelf(START, GRANULES, 1), [0] * GRANULES
    for number, (mapping, first, count) in enumerate(acts, start=1):
        legal = _vacant(cells, first, count) if mapping else _whole(cells, first, count)
        try:
            _act(shelf, mapping, START + first, count)
        except RuleBroken:
            assert not legal
        else:
            assert legal
            cells[first : first + count] = [number if mapping else 0] * count
        assert shelf.mappings == _kernel_mappings(cells)
        assert sum(piece.size_bytes for piece in shelf.pieces()) == sum(cell > 0 for cell in cells)


def _act(shelf: Shelf, mapping: bool, address: int, count: int) -> None:
    before = shelf.mappings
    grown = shelf.place([Piece(address, count, "owner")]) if mapping else shelf.vacate(shelf.filled(address, count))
    assert grown == shelf.mappings - before


@dataclass(frozen=True, slots=True)
class _Owner:
    size_bytes: int


def test_pieces_are_given_in_address_order_with_their_owners() -> None:
    shelf = Shelf(0, 10, 1)
    for address, owner in ((6, "c"), (0, "a"), (3, "b")):
        shelf.place([Piece(address, 2, owner)])
    assert [(piece.address, piece.owner) for piece in shelf.pieces()] == [(0, "a"), (3, "b"), (6, "c")]


def test_a_book_finds_the_shelf_of_every_address_and_none_between() -> None:
    book = AddressBook(granule_bytes=1)
    shelves = [Shelf(10, 5, 1), Shelf(15, 5, 1), Shelf(30, 1, 1)]
    for shelf in shelves:
        book.add(shelf)
    for address in range(40):
        owner = next((s for s in shelves if s.address <= address < s.end), None)
        if owner is None:
            with pytest.raises(RuleBroken, match="not reserved"):
                book.shelf_at(address, 1)
        else:
            assert book.shelf_at(address, 1) is owner


def test_a_removed_shelf_is_not_found() -> None:
    book = AddressBook(granule_bytes=1)
    shelf = Shelf(10, 5, 1)
    book.add(shelf)
    book.remove(book.empty_shelf(10, 5))
    with pytest.raises(RuleBroken, match="not reserved"):
        book.shelf_at(12, 1)


def test_a_run_does_not_reach_into_the_next_shelf() -> None:
    book = AddressBook(granule_bytes=1)
    for shelf in (Shelf(0, 4, 1), Shelf(4, 4, 1)):
        book.add(shelf)
    with pytest.raises(RuleBroken, match="leaves"):
        book.shelf_at(2, 4).vacancy(2, 4)


@pytest.mark.parametrize(("address", "size_bytes"), [(31, 4), (30, 3), (34, 2), (32, 5)])
def test_what_is_no_multiple_of_the_granule_is_refused_and_changes_nothing(address: int, size_bytes: int) -> None:
    shelf = Shelf(30, 16, 4)
    shelf.place([Piece(34, 4, "owner")])
    for act in (shelf.filled, shelf.vacancy, lambda a, s: shelf.place([Piece(a, s, "other")])):
        with pytest.raises(RuleBroken):
            act(address, size_bytes)
    assert [piece.owner for piece in shelf.filled(34, 4)] == ["owner"]
    assert (shelf.mappings, len(shelf.pieces())) == (3, 1)


@pytest.mark.parametrize("sizes", [(1,), (1, 1, 1), (2,), (2, 1), (1, 2), (3, 1, 1)], ids=str)
@pytest.mark.parametrize("first", range(6))
def test_a_run_is_written_down_as_its_pieces_one_after_another(first: int, sizes: tuple[int, ...]) -> None:
    whole, apart = Shelf(0, 12, 1), Shelf(0, 12, 1)
    pieces = side_by_side(first, [_Owner(size) for size in sizes])
    for shelf in (whole, apart):
        shelf.place([Piece(11, 1, "stays")])
    assert whole.place(pieces) == sum(apart.place([piece]) for piece in pieces)
    assert (whole.pieces(), whole.mappings) == (apart.pieces(), apart.mappings)
    for size, piece in zip(sizes, pieces, strict=True):
        assert (piece.address, piece.size_bytes) == (first, size)
        assert whole.filled(first, size) == (piece,)
        first += size


def test_of_a_run_that_does_not_fit_nothing_is_written_down() -> None:
    shelf = Shelf(0, 8, 1)
    shelf.place([Piece(3, 1, "stays")])
    for first, sizes in ((0, (1, 1, 2)), (6, (1, 2)), (4, ())):
        with pytest.raises(RuleBroken):
            shelf.place(side_by_side(first, [_Owner(size) for size in sizes]))
        assert (shelf.pieces(), shelf.mappings) == ((Piece(3, 1, "stays"),), 3)


@pytest.mark.parametrize("done", range(4))
def test_what_was_placed_and_not_done_was_never_there(done: int) -> None:
    shelf, other = Shelf(0, 8, 1), Shelf(0, 8, 1)
    pieces = side_by_side(1, [_Owner(size) for size in (1, 2, 1)])
    for written, count in ((shelf, 3), (other, done)):
        for first in (0, 7):
            written.place([Piece(first, 1, "stays")])
        if pieces[:count]:
            written.place(pieces[:count])
    if pieces[done:]:
        shelf.vacate(pieces[done:])
    assert (shelf.pieces(), shelf.mappings) == (other.pieces(), other.mappings)
