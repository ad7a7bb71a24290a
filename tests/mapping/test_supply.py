"""Handles given out by bytes, against a loop over them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.mapping.supply import Supply


def _by_hand(sizes: list[int], size_bytes: int) -> int:
    """How many of the first handles it takes."""
    count = held_bytes = 0
    while held_bytes < size_bytes and count < len(sizes):
        held_bytes += sizes[count]
        count += 1
    return count


@given(st.lists(st.integers(1, 5), max_size=12), st.lists(st.integers(0, 9), max_size=8))
def test_each_gets_the_next_handles_until_they_hold_its_bytes(sizes: list[int], wishes: list[int]) -> None:
    handles = [PhysicalHandle(number, size) for number, size in enumerate(sizes)]
    supply, place = Supply(handles), 0
    for wish in wishes:
        count = _by_hand(sizes[place:], wish)
        assert list(supply.next(wish)) == handles[place : place + count]
        place += count
        assert supply.given_bytes == sum(sizes[:place])
        assert supply.is_empty == (place == len(sizes))
