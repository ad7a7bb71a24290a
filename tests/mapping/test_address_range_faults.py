"""Every driver call of every act fails once, and so does every undo."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kvcluster import failpoints
from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError, NotAllowed, Quarantined
from kvcluster.failpoints import Failpoint
from kvcluster.ids import WindowRun
from kvcluster.mapping.address_range import LeakedOnPurpose, RangeState, open_range
from kvcluster.testing.faulty_driver import failing, failing_every, failing_named, failing_then, never
from tests.mapping.world import PAGE, RANGE_MAP, World, bytes_of, new_world

BEFORE = WindowRun(0, 0, 0, 1)
RUNS = (WindowRun(0, 0, 1, 3), WindowRun(0, 1, 0, 2), WindowRun(1, 0, 1, 1))
GRANULES = (1, 2, 1, 1, 1)
ROOT = Path(__file__).parents[2]
PLAIN = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
CALLS = 8  # of one map_runs: five maps and three set_access


@pytest.fixture
def world() -> Iterator[World]:
    with new_world() as world:
        world.mapped(BEFORE)
        yield world


def _record_is_true(world: World) -> bool:
    """The range records exactly what the kernel maps."""
    return world.recorded() == {address for address, _ in world.picture().kernel}


def test_a_map_that_fails_at_any_call_changes_nothing() -> None:
    for failing_call in itertools.count(1):
        with new_world() as world:
            world.mapped(BEFORE)
            handles = world.handles(*GRANULES)
            before = world.picture()
            world.driver.follow(failing(failing_call))
            failure = _failure_of_map(world, handles)
            if failure is None:
                break
            assert failure.name == "EIO"
            assert world.picture() == before
    assert failing_call == CALLS + 1


def _failure_of_map(world: World, handles: Sequence[PhysicalHandle]) -> DriverError | None:
    try:
        world.range.map_runs(RUNS, handles)
    except DriverError as failure:
        return failure
    return None


def test_what_was_mapped_is_undone_newest_first_with_one_unmap_a_run(world: World) -> None:
    handles = world.handles(*GRANULES)
    world.driver.follow(failing(7))  # the map of the third run
    with pytest.raises(DriverError):
        world.range.map_runs(RUNS, handles)
    undone = [(call.address, call.size_bytes) for call in world.calls() if call.name == "unmap"]
    expected = [(world.windows(run)[0], run.count * PAGE) for run in (RUNS[1], RUNS[0])]
    assert undone == expected


def test_a_run_that_fails_half_way_is_undone_as_far_as_it_got(world: World) -> None:
    handles = world.handles(*GRANULES)
    world.driver.follow(failing(2))
    with pytest.raises(DriverError):
        world.range.map_runs(RUNS, handles)
    assert [(call.name, call.size_bytes) for call in world.calls()] == [
        ("map", PAGE),
        ("map", 2 * PAGE),
        ("unmap", PAGE),
    ]


@pytest.mark.parametrize("failing_call", range(1, CALLS + 1))
def test_an_undo_that_fails_is_quarantined_and_the_others_are_undone(failing_call: int) -> None:
    for failing_undo in itertools.count(1):
        with new_world() as world:
            world.mapped(BEFORE)
            handles = world.handles(*GRANULES)
            before = world.picture()
            world.driver.follow(failing_then(failing_call, failing_undo))
            with pytest.raises((DriverError, Quarantined)) as caught:
                world.range.map_runs(RUNS, handles)
            if not isinstance(caught.value, Quarantined):
                assert world.picture() == before
                return
            _check_quarantine(world, caught.value)


def _check_quarantine(world: World, error: Quarantined) -> None:
    assert isinstance(error.__cause__, DriverError)
    assert _record_is_true(world)
    still = world.range.mapped_bytes - PAGE
    assert still > 0
    assert sum(piece.size_bytes for piece in error.residue) == still
    assert sum(call.name == "unmap" for call in world.calls()) >= len(error.residue)
    assert world.range.state is RangeState.QUARANTINED
    with pytest.raises(NotAllowed):
        world.range.map_runs((WindowRun(1, 0, 0, 1),), world.handles(1))


def test_when_no_undo_works_everything_that_was_mapped_is_listed(world: World) -> None:
    handles = world.handles(*GRANULES)
    world.driver.follow(lambda name, before: len(before) >= 7)
    with pytest.raises(Quarantined) as caught:
        world.range.map_runs(RUNS, handles)
    assert [piece.size_bytes for piece in caught.value.residue] == [3 * PAGE, 2 * PAGE, PAGE]
    assert world.range.mapped_runs() == (WindowRun(0, 0, 0, 4), *RUNS[1:])
    assert _record_is_true(world)


def test_an_unmap_that_fails_keeps_its_run_and_the_others_go(world: World) -> None:
    world.mapped(*RUNS)
    world.driver.follow(failing_named("unmap", 2))
    unmapped = world.range.unmap_runs(RUNS)
    assert (unmapped.done, unmapped.still) == ((RUNS[0], RUNS[2]), (RUNS[1],))
    assert unmapped.error is not None
    assert unmapped.error.address == world.windows(RUNS[1])[0]
    assert world.range.state is RangeState.QUARANTINED
    assert world.range.mapped_runs() == (BEFORE, RUNS[1])
    assert _record_is_true(world)


def test_nothing_is_unmapped_while_work_may_be_running(world: World) -> None:
    world.mapped(*RUNS)
    kernel = world.picture().kernel
    world.driver.follow(failing_every("synchronize"))
    unmapped = world.range.unmap_runs(RUNS)
    assert (unmapped.done, unmapped.still) == ((), RUNS)
    assert unmapped.error is not None
    assert [call.name for call in world.calls()] == ["synchronize"]
    assert world.picture().kernel == kernel
    assert world.range.state is RangeState.QUARANTINED


def test_close_leaks_on_purpose_when_work_may_be_running(world: World) -> None:
    world.mapped(*RUNS)
    kernel = world.picture().kernel
    world.driver.follow(failing_every("synchronize"))
    with pytest.warns(LeakedOnPurpose) as warned, pytest.raises(Quarantined) as caught:
        world.range.close()
    assert [call.name for call in world.calls()] == ["synchronize"]
    assert world.picture().kernel == kernel
    assert len(warned) == 1
    assert f"{7 * PAGE} bytes" in str(warned[0].message)
    assert hex(world.range.address) in str(warned[0].message)
    assert sum(piece.size_bytes for piece in caught.value.residue) == bytes_of((BEFORE, *RUNS))
    assert len(caught.value.residue) == len(world.range.mapped_runs())


def test_a_leak_is_told_as_quarantined_even_where_warnings_are_errors(world: World) -> None:
    world.driver.follow(failing_every("synchronize"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Quarantined) as caught:
            world.range.close()
    assert isinstance(caught.value.__cause__, DriverError)
    assert sum(piece.size_bytes for piece in caught.value.residue) == PAGE
    assert f"{PAGE} bytes" in caught.value.__notes__[0]
    assert world.range.state is RangeState.CLOSED


def test_a_plain_python_shows_one_warning_with_the_figures_of_a_leak() -> None:
    command = [sys.executable, "-m", "tests.mapping.leak"]
    said = subprocess.run(command, cwd=ROOT, env=PLAIN, capture_output=True, text=True, timeout=60, check=True)
    [line] = [line for line in said.stderr.splitlines() if "LeakedOnPurpose" in line]
    address, size_bytes = said.stdout.split()
    assert f"({size_bytes} bytes) stay mapped at {address} until the process ends" in line


def test_after_a_leak_another_close_says_and_does_nothing(world: World) -> None:
    world.driver.follow(failing_every("synchronize"))
    with pytest.warns(LeakedOnPurpose), pytest.raises(Quarantined):
        world.range.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.range.close()
    assert world.range.mapped_bytes == PAGE
    assert len(world.calls()) == 1


def test_a_close_that_fails_at_any_unmap_keeps_that_run_and_may_be_tried_again() -> None:
    for failing_unmap in range(1, 4):
        with new_world() as world:
            world.mapped(*RUNS)
            world.driver.follow(failing_named("unmap", failing_unmap))
            with pytest.raises(Quarantined) as caught:
                world.range.close()
            assert world.range.mapped_runs() == (RUNS[failing_unmap - 1],)
            assert caught.value.residue[0].size_bytes == world.range.mapped_bytes
            assert "free_address" not in [call.name for call in world.calls()]
            assert _record_is_true(world)
            world.range.close()
            assert world.range.state is RangeState.CLOSED


def test_a_close_that_cannot_free_the_address_may_be_tried_again(world: World) -> None:
    world.driver.follow(failing_named("free_address", 1))
    with pytest.raises(DriverError, match="free_address"):
        world.range.close()
    assert (world.range.state, world.range.mapped_runs()) == (RangeState.OPEN, ())
    world.range.close()
    assert world.range.state is RangeState.CLOSED


def test_a_failed_reserve_frees_nothing(world: World) -> None:
    world.driver.follow(failing(1))
    with pytest.raises(DriverError, match="reserve"):
        open_range(world.driver, RANGE_MAP)
    assert [call.name for call in world.calls()] == ["reserve"]


@pytest.fixture
def passed() -> Iterator[list[Failpoint]]:
    points: list[Failpoint] = []
    failpoints.arm(points.append)
    yield points
    failpoints.arm(None)


def test_each_mapped_and_each_accessible_run_pass_a_failpoint(world: World, passed: list[Failpoint]) -> None:
    handles = world.handles(*GRANULES)
    passed.clear()
    world.range.map_runs(RUNS, handles)
    mapped, accessible = Failpoint.CLIENT_MAPPED, Failpoint.CLIENT_ACCESSIBLE
    assert passed == [mapped, accessible] * len(RUNS)


@pytest.mark.parametrize("passage", range(1, 2 * len(RUNS) + 1))
def test_a_failpoint_that_raises_leaves_nothing_mapped(world: World, passage: int) -> None:
    handles = world.handles(*GRANULES)
    before = world.picture()
    passages = itertools.count(1)

    def raise_at(point: Failpoint) -> None:
        if next(passages) == passage:
            raise RuntimeError(point.value)

    failpoints.arm(raise_at)
    try:
        with pytest.raises(RuntimeError, match=r"client\.commit"):
            world.range.map_runs(RUNS, handles)
    finally:
        failpoints.arm(None)
    world.driver.follow(never())
    assert world.picture() == before
