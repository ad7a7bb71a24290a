"""A ring's windows lie at two addresses with the same memory, and count once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from kvcluster.driver.protocol import Access
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import RangeState
from kvcluster.testing.faulty_driver import never
from tests.mapping.world import PAGE, RINGS, World, bytes_of, new_world

PART, WHOLE, EVERY, SNAPSHOT = (
    WindowRun(1, 0, 1, 2),
    WindowRun(1, 1, 0, 4),
    WindowRun(0, 0, 0, 2),
    WindowRun(2, 1, 0, 3),
)


@pytest.fixture
def world() -> Iterator[World]:
    with new_world(RINGS) as world:
        yield world


def test_what_is_written_at_one_address_is_read_at_the_other(world: World) -> None:
    world.mapped(PART)
    for number, (first, second) in enumerate(zip(world.windows(PART), world.copies(PART), strict=True)):
        ctypes.memset(first, number + 1, PAGE)
        assert ctypes.string_at(second, PAGE) == bytes([number + 1]) * PAGE
        ctypes.memset(second, number + 7, PAGE)
        assert ctypes.string_at(first, PAGE) == bytes([number + 7]) * PAGE


def test_a_whole_ring_is_one_piece_of_twice_its_length(world: World) -> None:
    world.mapped(WHOLE)
    first = world.windows(WHOLE)[0]
    ctypes.memmove(first + 3 * PAGE + PAGE // 2, b"k" * (2 * PAGE), 2 * PAGE)  # over the ring's end
    assert ctypes.string_at(first, 2 * PAGE) == b"k" * (PAGE + PAGE // 2) + bytes(PAGE // 2)


def test_a_handle_of_several_windows_lies_whole_at_both_addresses(world: World) -> None:
    world.range.map_runs((WHOLE,), world.handles(1, 2, 1))
    ctypes.memset(world.windows(WHOLE)[1], 5, 2 * PAGE)
    assert ctypes.string_at(world.copies(WHOLE)[1], 2 * PAGE) == bytes([5]) * (2 * PAGE)
    with pytest.raises(ValueError, match="whole mappings"):
        world.range.unmap_runs((WindowRun(1, 1, 0, 2),))
    assert world.range.unmap_runs((WindowRun(1, 1, 1, 2),)).done == (WindowRun(1, 1, 1, 2),)


def test_a_window_counts_once(world: World) -> None:
    world.mapped(PART, WHOLE, EVERY, SNAPSHOT)
    assert world.range.mapped_bytes == bytes_of((PART, WHOLE, EVERY, SNAPSHOT))
    assert world.range.mapped_runs() == (EVERY, PART, WHOLE, SNAPSHOT)
    assert len(world.picture().kernel) == 2 + 2 * 2 + 2 * 4 + 3


def test_a_call_is_made_for_each_address_and_one_for_a_whole_ring(world: World) -> None:
    world.driver.follow(never())
    world.range.map_runs((PART, WHOLE), world.handles(*[1] * 6))
    world.range.unmap_runs((PART, WHOLE))
    names = [call.name for call in world.calls()]
    part, whole = ["map", "map", "set_access"] * 2, ["map"] * 8 + ["set_access"]
    assert names == ["create"] * 6 + part + whole + ["synchronize", "unmap", "unmap", "unmap"]


def test_a_ring_that_grows_by_windows_is_unmapped_as_one(world: World) -> None:
    for number in range(4):
        world.mapped(WindowRun(1, 1, number, 1))
    world.driver.follow(never())
    assert world.range.unmap_runs((WHOLE,)).done == (WHOLE,)
    assert [(call.name, call.size_bytes) for call in world.calls()] == [("synchronize", 0), ("unmap", 8 * PAGE)]


def test_unmapped_windows_are_mapped_again_at_the_same_addresses(world: World) -> None:
    world.mapped(PART, WHOLE)
    kernel = world.picture().kernel
    world.range.unmap_runs((PART, WHOLE))
    assert (world.picture().kernel, world.range.mapped_bytes) == ((), 0)
    world.mapped(WHOLE, PART)
    assert world.picture().kernel == kernel


def test_windows_beyond_the_ring_are_refused(world: World) -> None:
    world.driver.follow(never())
    with pytest.raises(ValueError, match="does not lie in"):
        world.range.map_runs((WindowRun(1, 0, 3, 2),), [])
    assert world.calls() == []


@pytest.mark.parametrize(("access", "permissions"), [(Access.READ, "r--s"), (Access.READ_WRITE, "rw-s")])
def test_windows_are_mapped_for_what_is_asked(world: World, access: Access, permissions: str) -> None:
    world.range.map_runs((EVERY, SNAPSHOT), world.handles(*[1] * 5), access=access)
    assert {kind for _, kind in world.picture().kernel} == {permissions}


def test_windows_for_reading_and_for_writing_are_one_run(world: World) -> None:
    world.range.map_runs((WindowRun(0, 0, 0, 2),), world.handles(1, 1), access=Access.READ)
    world.mapped(WindowRun(0, 0, 2, 1))
    assert world.range.mapped_runs() == (WindowRun(0, 0, 0, 3),)
    assert [kind for _, kind in world.picture().kernel] == ["r--s", "r--s", "rw-s"]


def test_close_takes_both_copies(world: World) -> None:
    world.mapped(PART, WHOLE)
    world.range.close()
    assert (world.range.state, world.picture().kernel) == (RangeState.CLOSED, ())
