"""The books of one reserved range, against brute force over its granules."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.driver.books import AddressBook, Piece, RuleBroken, Shelf

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


@settings(max_examples=200, deadline=None)
@given(st.lists(runs, max_size=40))
def test_a_shelf_allows_and_counts_what_its_granules_say(acts: list[tuple[bool, int, int]]) -> None:
    shelf, cells = Shelf(START, GRANULES), [0] * GRANULES
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
    if mapping:
        grown = shelf.occupy(shelf.vacancy(address, count), Piece(address, count, "owner"))
    else:
        grown = shelf.vacate(shelf.filled(address, count))
    assert grown == shelf.mappings - before


def test_pieces_are_given_in_address_order_with_their_owners() -> None:
    shelf = Shelf(0, 10)
    for address, owner in ((6, "c"), (0, "a"), (3, "b")):
        shelf.occupy(shelf.vacancy(address, 2), Piece(address, 2, owner))
    assert [(piece.address, piece.owner) for piece in shelf.pieces()] == [(0, "a"), (3, "b"), (6, "c")]


def test_a_book_finds_the_shelf_of_every_address_and_none_between() -> None:
    book = AddressBook(granule_bytes=1)
    shelves = [Shelf(10, 5), Shelf(15, 5), Shelf(30, 1)]
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
    shelf = Shelf(10, 5)
    book.add(shelf)
    book.remove(book.empty_shelf(10, 5))
    with pytest.raises(RuleBroken, match="not reserved"):
        book.shelf_at(12, 1)


def test_a_run_does_not_reach_into_the_next_shelf() -> None:
    book = AddressBook(granule_bytes=1)
    for shelf in (Shelf(0, 4), Shelf(4, 4)):
        book.add(shelf)
    with pytest.raises(RuleBroken, match="leaves"):
        book.shelf_at(2, 4).vacancy(2, 4)
