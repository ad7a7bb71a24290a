"""Every driver call of a ring's windows fails once, and so does every undo; a window is mapped while a copy is."""

from __future__ import annotations

import itertools

import pytest

from kvcluster.driver.protocol import Access
from kvcluster.errors import DriverError, Quarantined
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import RangeState
from kvcluster.testing.faulty_driver import failing, failing_named, failing_then, never
from tests.mapping.world import PAGE, RINGS, World, new_world

BEFORE = WindowRun(1, 0, 0, 1)
RUNS = (WindowRun(0, 0, 0, 1), WindowRun(1, 0, 1, 2), WindowRun(1, 1, 0, 4), WindowRun(2, 0, 0, 3))
GRANULES = (1, 2, 1, 3, 1, 1, 1)
CALLS = 2 + 2 * 2 + (4 + 1) + 4
UNMAPS = 1 + 2 + 1 + 1


def _both_addresses(world: World) -> set[int]:
    return {address for run in world.range.mapped_runs() for address in (*world.windows(run), *world.copies(run))}


def _check_record(world: World) -> None:
    """A window that the kernel maps anywhere is recorded, and no other is."""
    kernel = {address for address, _ in world.picture().kernel}
    assert kernel <= _both_addresses(world)
    for run in world.range.mapped_runs():
        for first, *second in zip(world.windows(run), *filter(None, [world.copies(run)]), strict=True):
            assert kernel & {first, *second}


def test_a_map_that_fails_at_any_call_changes_nothing() -> None:
    for failing_call in itertools.count(1):
        with new_world(RINGS) as world:
            world.mapped(BEFORE)
            handles = world.handles(*GRANULES)
            before = world.picture()
            world.driver.follow(failing(failing_call))
            try:
                world.range.map_runs(RUNS, handles, access=Access.READ)
            except DriverError:
                assert world.picture() == before
            else:
                break
    assert failing_call == CALLS + 1


@pytest.mark.parametrize("failing_call", range(1, CALLS + 1))
def test_an_undo_that_fails_leaves_what_is_mapped_recorded_and_charged_once(failing_call: int) -> None:
    for failing_undo in itertools.count(1):
        with new_world(RINGS) as world:
            world.mapped(BEFORE)
            handles = world.handles(*GRANULES)
            before = world.picture()
            world.driver.follow(failing_then(failing_call, failing_undo))
            with pytest.raises((DriverError, Quarantined)) as caught:
                world.range.map_runs(RUNS, handles)
            if not isinstance(caught.value, Quarantined):
                assert world.picture() == before
                return
            assert world.range.state is RangeState.QUARANTINED
            assert sum(piece.size_bytes for piece in caught.value.residue) == world.range.mapped_bytes - PAGE > 0
            _check_record(world)
            world.driver.follow(never())
            world.range.close()
            assert world.picture().kernel == ()


def test_when_no_undo_works_a_ring_window_is_listed_once() -> None:
    with new_world(RINGS) as world:
        handles = world.handles(1, 1)
        world.driver.follow(lambda name, before: len(before) >= 5)  # the set_access of the second copy, and all undos
        with pytest.raises(Quarantined) as caught:
            world.range.map_runs((WindowRun(1, 0, 1, 2),), handles)
        assert [piece.size_bytes for piece in caught.value.residue] == [2 * PAGE]
        assert world.range.mapped_bytes == 2 * PAGE
        assert len(world.picture().kernel) == 4


@pytest.mark.parametrize("failing_unmap", range(1, UNMAPS + 1))
def test_an_unmap_that_fails_at_either_address_keeps_the_window_and_the_others_go(failing_unmap: int) -> None:
    run_of_unmap = (RUNS[0], RUNS[1], RUNS[1], RUNS[2], RUNS[3])
    with new_world(RINGS) as world:
        world.range.map_runs(RUNS, world.handles(*GRANULES))
        world.driver.follow(failing_named("unmap", failing_unmap))
        unmapped = world.range.unmap_runs(RUNS)
        kept = run_of_unmap[failing_unmap - 1]
        assert unmapped.still == (kept,) == world.range.mapped_runs()
        assert unmapped.done == tuple(run for run in RUNS if run != kept)
        assert unmapped.error is not None
        assert world.range.state is RangeState.QUARANTINED
        assert world.range.mapped_bytes == kept.count * PAGE
        _check_record(world)
        assert world.range.unmap_runs((kept,)).done == (kept,)
        assert (world.picture().kernel, world.range.mapped_bytes) == ((), 0)


def test_a_retry_unmaps_only_the_copy_that_is_left() -> None:
    run = WindowRun(1, 0, 1, 2)
    with new_world(RINGS) as world:
        world.mapped(run)
        world.driver.follow(failing_named("unmap", 1))
        assert world.range.unmap_runs((run,)).still == (run,)
        world.driver.follow(never())
        assert world.range.unmap_runs((run,)).done == (run,)
        assert [(call.name, call.address) for call in world.calls()] == [
            ("synchronize", 0),
            ("unmap", world.windows(run)[0]),
        ]


def test_a_close_that_fails_at_any_unmap_keeps_that_run_and_may_be_tried_again() -> None:
    for failing_unmap in range(1, UNMAPS + 1):
        with new_world(RINGS) as world:
            world.range.map_runs(RUNS, world.handles(*GRANULES))
            world.driver.follow(failing_named("unmap", failing_unmap))
            with pytest.raises(Quarantined) as caught:
                world.range.close()
            assert sum(piece.size_bytes for piece in caught.value.residue) == world.range.mapped_bytes > 0
            _check_record(world)
            world.range.close()
            assert (world.range.state, world.picture().kernel) == (RangeState.CLOSED, ())
