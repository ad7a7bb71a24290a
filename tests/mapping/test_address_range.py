"""One range of address: what is mapped where, and what is refused before a driver call."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterator, Sequence

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import NotAllowed
from kvcluster.geometry.residency import GroupShape, RangeMap, Shape
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import RangeState, Unmapped, open_range
from kvcluster.testing.faulty_driver import failing_every, never
from tests.mapping.world import PAGE, RANGE_MAP, World, bytes_of, new_world

RUNS = (WindowRun(0, 0, 0, 3), WindowRun(0, 1, 0, 2), WindowRun(1, 0, 1, 1))


@pytest.fixture
def world() -> Iterator[World]:
    with new_world() as world:
        yield world


def test_a_new_range_holds_nothing(world: World) -> None:
    assert world.range.address % PAGE == 0
    assert (world.range.mapped_bytes, world.range.mapped_runs()) == (0, ())
    assert world.picture().kernel == ()


def test_every_window_of_a_mapped_run_is_writable(world: World) -> None:
    world.mapped(*RUNS)
    expected = tuple((address, "rw-s") for run in RUNS for address in world.windows(run))
    assert world.picture().kernel == expected
    assert world.range.mapped_runs() == RUNS
    assert world.range.mapped_bytes == bytes_of(RUNS)


def test_handles_lie_in_window_order(world: World) -> None:
    handles = world.handles(1, 2, 1, 1, 1)
    for number, handle in enumerate(handles):
        world.driver.scrub(handle)
        _write(world, handle, number + 1)
    world.range.map_runs(RUNS, handles)
    windows = [address for run in RUNS for address in world.windows(run)]
    assert [ctypes.c_uint8.from_address(address).value for address in windows] == [1, 2, 0, 3, 4, 5]


def _write(world: World, handle: PhysicalHandle, value: int) -> None:
    """Put `value` into the handle's first byte, through the range's last two windows."""
    spare = WindowRun(0, 1, 8, handle.size_bytes // PAGE)
    world.range.map_runs((spare,), (handle,))
    ctypes.c_uint8.from_address(world.windows(spare)[0]).value = value
    assert world.range.unmap_runs((spare,)).done == (spare,)


def test_a_run_costs_one_set_access_and_one_unmap(world: World) -> None:
    world.driver.follow(never())
    world.range.map_runs(RUNS, world.handles(1, 2, 1, 1, 1))
    world.range.unmap_runs(RUNS)
    names = [call.name for call in world.calls()]
    assert names == (
        ["create"] * 5
        + ["map", "map", "set_access", "map", "map", "set_access", "map", "set_access"]
        + ["synchronize", "unmap", "unmap", "unmap"]
    )


def test_a_sequence_grows_at_the_same_address_and_keeps_its_bytes(world: World) -> None:
    world.mapped(WindowRun(0, 0, 0, 2))
    first = world.windows(WindowRun(0, 0, 0, 2))[0]
    ctypes.memmove(first, b"k" * (2 * PAGE), 2 * PAGE)
    world.mapped(WindowRun(0, 0, 2, 5))
    assert world.range.mapped_runs() == (WindowRun(0, 0, 0, 7),)
    assert ctypes.string_at(first, 7 * PAGE) == b"k" * (2 * PAGE) + bytes(5 * PAGE)


def test_released_windows_are_mapped_again_without_a_reserve(world: World) -> None:
    world.mapped(*RUNS)
    assert world.range.unmap_runs(RUNS) == Unmapped(RUNS, (), None)
    assert world.picture().kernel == ()
    world.mapped(*RUNS)
    assert world.driver.calls()["reserve"] == 1


def test_part_of_a_run_is_unmapped(world: World) -> None:
    world.mapped(WindowRun(0, 0, 0, 6))
    world.range.unmap_runs((WindowRun(0, 0, 2, 1), WindowRun(0, 0, 4, 2)))
    assert world.range.mapped_runs() == (WindowRun(0, 0, 0, 2), WindowRun(0, 0, 3, 1))


def test_full_fragments_stay_runs_of_their_own(world: World) -> None:
    runs = (WindowRun(0, 0, 0, 10), WindowRun(0, 1, 0, 10), WindowRun(1, 0, 0, 3))
    world.mapped(*runs)
    assert world.range.mapped_runs() == runs
    assert world.range.mapped_bytes == RANGE_MAP.size_bytes


def test_nothing_to_map_or_unmap_makes_no_call(world: World) -> None:
    world.driver.follow(never())
    world.range.map_runs((), ())
    assert world.range.unmap_runs(()) == Unmapped((), (), None)
    assert world.calls() == []


@pytest.mark.parametrize(
    ("runs", "granules", "reason"),
    [
        pytest.param((WindowRun(0, 0, 0, 3),), (1, 1), "do not fill", id="too few handles"),
        pytest.param((WindowRun(0, 0, 0, 3),), (1, 1, 1, 1), "more handles", id="too many handles"),
        pytest.param((WindowRun(0, 0, 0, 3),), (2, 2), "do not fill", id="a handle beyond its run"),
        pytest.param((WindowRun(0, 0, 0, 1), WindowRun(0, 0, 1, 1)), (2,), "do not fill", id="a handle over two runs"),
        pytest.param((WindowRun(0, 0, 0, 2), WindowRun(0, 0, 1, 2)), (1, 1, 1, 1), "overlap", id="overlapping runs"),
        pytest.param((WindowRun(0, 0, 3, 1), WindowRun(0, 0, 3, 1)), (1, 1), "overlap", id="the same run twice"),
        pytest.param((WindowRun(0, 1, 5, 1),), (1,), "mapped there already", id="mapped already"),
        pytest.param((WindowRun(0, 1, 4, 3),), (3,), "mapped there already", id="mapped already in the middle"),
        pytest.param((WindowRun(0, 0, 8, 3),), (1, 1, 1), "does not lie in", id="beyond the fragment"),
        pytest.param((WindowRun(0, 0, -1, 1),), (1,), "does not lie in", id="before the fragment"),
        pytest.param((WindowRun(2, 0, 0, 1),), (1,), "does not lie in", id="no such group"),
        pytest.param((WindowRun(0, 2, 0, 1),), (1,), "does not lie in", id="no such fragment"),
        pytest.param((WindowRun(0, 0, 0, 0),), (), "does not lie in", id="an empty run"),
    ],
)
def test_handles_that_do_not_fit_are_refused_before_any_driver_call(
    world: World, runs: Sequence[WindowRun], granules: Sequence[int], reason: str
) -> None:
    world.mapped(WindowRun(0, 1, 5, 1))
    handles = world.handles(*granules)
    before = world.picture()
    world.driver.follow(never())
    with pytest.raises(ValueError, match=reason):
        world.range.map_runs(runs, handles)
    assert world.calls() == []
    assert world.picture() == before


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        pytest.param((WindowRun(0, 0, 0, 1),), "whole mappings", id="a part of a handle"),
        pytest.param((WindowRun(0, 0, 1, 2),), "whole mappings", id="another part"),
        pytest.param((WindowRun(0, 0, 0, 4),), "whole mappings", id="beyond what is mapped"),
        pytest.param((WindowRun(1, 0, 0, 1),), "whole mappings", id="nothing"),
        pytest.param((WindowRun(0, 0, 0, 3), WindowRun(0, 0, 2, 1)), "overlap", id="overlapping"),
        pytest.param((WindowRun(0, 0, 9, 2),), "does not lie in", id="beyond the fragment"),
        pytest.param((WindowRun(0, 0, 0, 3), WindowRun(1, 0, 0, 1)), "whole mappings", id="one right, one wrong"),
    ],
)
def test_runs_that_are_not_mapped_whole_are_not_unmapped(world: World, runs: Sequence[WindowRun], reason: str) -> None:
    world.range.map_runs((WindowRun(0, 0, 0, 3),), world.handles(2, 1))
    before = world.picture()
    world.driver.follow(never())
    with pytest.raises(ValueError, match=reason):
        world.range.unmap_runs(runs)
    assert world.calls() == []
    assert world.picture() == before


def test_a_range_takes_a_kernel_mapping_for_each_window_and_for_the_rest_of_each_fragment(world: World) -> None:
    assert world.kernel_mappings() == 1
    world.mapped(WindowRun(0, 0, 0, 2), WindowRun(0, 1, 0, 1), WindowRun(1, 0, 0, 1))
    assert world.kernel_mappings() == 4 + 3
    world.mapped(WindowRun(1, 0, 1, 2))
    assert world.kernel_mappings() == 6 + 2


def test_a_granule_that_the_driver_cannot_map_is_refused(world: World) -> None:
    world.driver.follow(never())
    with pytest.raises(ValueError, match="no multiple"):
        open_range(world.driver, RangeMap(Shape((GroupShape(1, 100),), PAGE // 2), 10))
    assert world.calls() == []


def test_close_gives_everything_back_and_a_second_close_does_nothing(world: World) -> None:
    world.mapped(*RUNS)
    world.driver.follow(never())
    world.range.close()
    world.range.close()
    assert [call.name for call in world.calls()] == ["synchronize", "unmap", "unmap", "unmap", "free_address"]
    assert (world.range.state, world.range.mapped_bytes) == (RangeState.CLOSED, 0)


def _quarantined(world: World) -> None:
    world.mapped(WindowRun(0, 0, 0, 1))
    world.driver.follow(failing_every("unmap"))
    assert world.range.unmap_runs((WindowRun(0, 0, 0, 1),)).still == (WindowRun(0, 0, 0, 1),)
    world.driver.follow(never())


@pytest.mark.parametrize("act", ["map_runs", "unmap_runs"])
def test_a_closed_range_takes_and_gives_nothing(world: World, act: str) -> None:
    world.range.close()
    world.driver.follow(never())
    with pytest.raises(NotAllowed, match="closed"):
        world.range.map_runs((), ()) if act == "map_runs" else world.range.unmap_runs(())
    assert world.calls() == []


def test_a_quarantined_range_takes_no_windows(world: World) -> None:
    _quarantined(world)
    with pytest.raises(NotAllowed, match="quarantined"):
        world.range.map_runs((WindowRun(1, 0, 0, 1),), world.handles(1))
    assert world.range.mapped_runs() == (WindowRun(0, 0, 0, 1),)


def test_a_quarantined_range_may_still_be_unmapped_and_stays_quarantined(world: World) -> None:
    _quarantined(world)
    assert world.range.unmap_runs((WindowRun(0, 0, 0, 1),)).done == (WindowRun(0, 0, 0, 1),)
    assert (world.range.state, world.picture().kernel) == (RangeState.QUARANTINED, ())


def test_a_quarantined_range_closes_once_its_windows_can_be_unmapped(world: World) -> None:
    _quarantined(world)
    world.range.close()
    assert (world.range.state, world.range.mapped_bytes) == (RangeState.CLOSED, 0)


def test_a_range_that_nobody_closed_touches_no_driver_when_it_dies(world: World) -> None:
    lost = open_range(world.driver, RANGE_MAP)
    address = lost.address
    world.driver.follow(never())
    del lost
    assert world.calls() == []
    world.driver.free_address(address, RANGE_MAP.size_bytes)


def test_what_was_unmapped_survives_pickling() -> None:
    value = Unmapped(RUNS, (), None)
    assert pickle.loads(pickle.dumps(value)) == value
