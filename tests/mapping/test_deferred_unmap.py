"""Windows stay mapped while work may use them: nothing is called until a fence is done, and nothing waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError, NotAllowed, Quarantined
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import LeakedOnPurpose, RangeState, Unmapped
from kvcluster.testing.capturing import Capturer
from kvcluster.testing.faulty_driver import failing_every, never
from tests.mapping.world import World, new_world

RUNS = (WindowRun(0, 0, 0, 3), WindowRun(1, 0, 1, 1))


@pytest.fixture
def world() -> Iterator[World]:
    with new_world() as world:
        world.mapped(*RUNS)
        yield world


def names(world: World) -> list[str]:
    return [call.name for call in world.calls()]


def test_nothing_is_unmapped_and_nothing_quarantined_while_the_fences_work_is_under_way(world: World) -> None:
    before = world.picture()
    with world.host.working():
        fence = world.host.fence()
        world.driver.follow(never())
        assert world.range.unmap_runs(RUNS, after=fence) == Unmapped((), RUNS, None)
        assert names(world) == []
        assert world.picture() == before
    assert world.range.unmap_runs(RUNS, after=fence) == Unmapped(RUNS, (), None)


def test_a_fence_that_is_done_spares_the_wait_for_all_work(world: World) -> None:
    fence = world.host.fence()
    world.driver.follow(never())
    with world.host.working():  # begun after the fence
        assert world.range.unmap_runs(RUNS, after=fence).done == RUNS
    assert names(world) == ["unmap", "unmap"]


def test_a_range_goes_on_growing_while_windows_are_leaving(world: World) -> None:
    with world.host.working():
        fence = world.host.fence()
        world.range.unmap_runs(RUNS[:1], after=fence)
        world.mapped(WindowRun(0, 1, 0, 2))
    assert world.range.unmap_runs(RUNS[:1], after=fence).done == RUNS[:1]
    assert world.range.mapped_runs() == (WindowRun(0, 1, 0, 2), RUNS[1])


def test_a_fence_that_cannot_tell_quarantines_the_range(world: World) -> None:
    fence = world.driver.fence()
    world.driver.follow(failing_every("fence_done"))
    unmapped = world.range.unmap_runs(RUNS, after=fence)
    assert (unmapped.done, unmapped.still) == ((), RUNS)
    assert unmapped.error is not None
    assert (world.range.state, world.range.mapped_runs()) == (RangeState.QUARANTINED, RUNS)


def test_close_is_refused_while_the_fences_work_is_under_way(world: World) -> None:
    before = world.picture()
    with world.host.working():
        fence = world.host.fence()
        world.driver.follow(never())
        with pytest.raises(NotAllowed, match="under way"):
            world.range.close(after=fence)
        assert (names(world), world.picture()) == ([], before)
    world.range.close(after=fence)
    assert names(world) == ["unmap", "unmap", "free_address"]


def test_close_leaks_on_purpose_where_the_fence_cannot_tell(world: World) -> None:
    fence = world.driver.fence()
    world.driver.follow(failing_every("fence_done"))
    with pytest.warns(LeakedOnPurpose), pytest.raises(Quarantined):
        world.range.close(after=fence)
    assert (world.range.state, world.range.mapped_runs()) == (RangeState.CLOSED, RUNS)


def test_a_range_with_nothing_mapped_is_closed_without_waiting_for_work(world: World) -> None:
    world.range.unmap_runs(RUNS)
    world.driver.follow(never())
    with world.host.working():
        world.range.close()
    assert names(world) == ["free_address"]


def test_an_unmap_during_a_capture_is_refused_and_the_range_is_as_it_was(world: World) -> None:
    before = world.picture()
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match=r"unmap_runs .* EBUSY"):
        world.range.unmap_runs(RUNS)
    assert world.picture() == before
    assert world.range.unmap_runs(RUNS).done == RUNS


@pytest.mark.parametrize("meanwhile", list(Meanwhile))
def test_a_capture_that_would_begin_in_the_middle_waits_for_the_end(world: World, meanwhile: Meanwhile) -> None:
    run = WindowRun(0, 1, 0, 2)
    handles = world.handles(1, 1)
    verbs: tuple[Callable[[], object], ...] = (
        lambda: world.range.map_runs((run,), handles),
        lambda: world.range.unmap_runs(RUNS),
        world.range.close,
    )
    for number, verb in zip((3, 2, 2), verbs, strict=True):
        with Capturer(meanwhile, look=lambda: len(world.driver.log())) as capturer:
            world.driver.follow(capturer.begins_at(number))
            verb()
            assert capturer.seen() == len(world.driver.log())
    assert world.range.state is RangeState.CLOSED


def test_a_close_during_a_capture_leaks_nothing_and_may_be_tried_again(world: World) -> None:
    before = world.picture()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError):
            world.range.close()
    assert world.picture() == before
    world.range.close()
    assert world.range.state is RangeState.CLOSED


def test_a_map_during_a_capture_is_refused_and_changes_nothing(world: World) -> None:
    run = WindowRun(0, 1, 0, 2)
    handles = world.handles(1, 1)
    before = world.picture()
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError):
        world.range.map_runs((run,), handles)
    assert world.picture() == before
    world.range.map_runs((run,), handles)
