"""Every driver call of every verb fails once, or for ever, and so does every call of the undo.

After each: the books sum, what the device charges is what the memory has, earlier bytes are unchanged, and whatever
could not be taken back is in quarantine and charged. Call numbers run until the verb succeeds untouched.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvcluster.errors import DriverError, KvClusterError, Quarantined
from kvcluster.failpoints import Failpoint
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Grow
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.arming import armed
from kvcluster.testing.faulty_driver import Call, Plan, failing, failing_every, failing_then
from kvcluster.testing.invariants import assert_ledger_balances, picture
from tests.services.world import GRANULE, Sizes, World, digest

OpenWorld = Callable[..., World]
FIRST, MORE = 16, 80  # tokens before the operation, and what it grows to
DEVICE_CALLS, CLIENT_CALLS = {"create", "release"}, {"map", "set_access", "unmap", "synchronize", "free_address"}


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


@dataclass(slots=True)
class Attempt:
    """A memory, one verb on it under a plan of faults, and what came of it."""

    world: World
    memory: SequenceMemory
    error: KvClusterError | None
    calls: tuple[Call, ...]

    @property
    def failed_calls(self) -> list[str]:
        return [call.name for call in self.calls if call.failed]


def grow(world: World, memory: SequenceMemory) -> None:
    [outcome] = world.device.port.submit([Grow(memory, MORE)]).settle()
    if outcome.error:
        raise outcome.error


def commit(world: World, memory: SequenceMemory) -> None:
    memory.commit(MORE, memory.grant(MORE))


def release(world: World, memory: SequenceMemory) -> None:
    memory.release()


def close(world: World, memory: SequenceMemory) -> None:
    memory.close()


VERBS = [grow, commit, release, close]
LAYOUTS = [Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR]


def attempt(
    world: World, verb: Callable[[World, SequenceMemory], None], plan: Plan, layout: Layout = Layout.TOKEN_MAJOR
) -> Attempt:
    memory = world.grown(FIRST, layout=layout, max_tokens=256)
    world.driver.follow(plan)
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakedOnPurpose)  # shown, once and with figures, in a test of its own
        try:
            verb(world, memory)
        except KvClusterError as failure:
            error = failure
    return Attempt(world, memory, error, world.healed())


def assert_consistent(made: Attempt) -> None:
    """What the device charges to requests is what memories hold; whatever else is mapped is in quarantine."""
    world, memory = made.world, made.memory
    assert_ledger_balances(world.device)
    shape = memory.range.range_map.shape
    usable = shape.window_count(memory.windows)
    assert world.granules("requests") == usable
    residue = memory.committed_bytes // GRANULE - usable
    assert 0 <= residue <= world.granules("quarantine")
    assert world.granules("granted") == 0 or isinstance(made.error, DriverError | Quarantined)
    if made.error is None:  # a handle that the driver keeps is the device's loss, not the client's
        assert world.granules("quarantine") == made.failed_calls.count("release")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_fails_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[World, SequenceMemory], None], layout: Layout
) -> None:
    for failing_call in itertools.count(1):
        made = attempt(open_world(Sizes(pool=0)), verb, failing(failing_call), layout)
        assert_consistent(made)
        if not made.failed_calls:
            assert made.error is None
            break
    assert failing_call > len({call.name for call in made.calls})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_undo_fails_too_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[World, SequenceMemory], None]
) -> None:
    for first in itertools.count(1):
        for second in range(1, 6):
            made = attempt(open_world(Sizes(pool=0)), verb, failing_then(first, second), Layout.SEQ_MAJOR)
            assert_consistent(made)
            if len(made.failed_calls) < 2:  # so many calls do not follow
                break
        if not made.failed_calls:
            break
    assert first > 1


@pytest.mark.parametrize(
    "broken", [*sorted(DEVICE_CALLS | CLIENT_CALLS), "set_access unmap", "map unmap", "map release"]
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_books_that_sum_where_a_call_fails_for_ever(
    open_world: OpenWorld, verb: Callable[[World, SequenceMemory], None], broken: str
) -> None:
    made = attempt(open_world(Sizes(pool=0)), verb, failing_every(*broken.split()), Layout.SEQ_MAJOR)
    assert_consistent(made)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_commit_that_fails_at_any_call_keeps_address_bytes_and_place_and_works_when_tried_again(
    open_world: OpenWorld, layout: Layout
) -> None:
    for failing_call in itertools.count(1):
        world = open_world()
        memory = world.grown(FIRST, layout=layout)
        before, content, address, windows = picture(world.device), digest(memory), memory.address, memory.windows
        world.driver.follow(failing(failing_call))
        try:
            grow(world, memory)
        except DriverError:
            world.healed()
        else:
            break
        assert picture(world.device).claims() == before.claims()
        assert (digest(memory), memory.address, memory.windows) == (content, address, windows)
        grow(world, memory)
        assert memory.tokens >= MORE
    assert failing_call > 5


POINTS = ["device.commit.planned", "device.commit.taken", "device.commit.charged"]
CLIENT_POINTS = ["client.commit.mapped", "client.commit.accessible"]


@pytest.mark.parametrize("point", [*POINTS, *CLIENT_POINTS])
def test_a_commit_that_stops_at_a_failpoint_of_its_transaction_changes_nobodys_claims(world: World, point: str) -> None:
    memory = world.grown(FIRST)
    grant = memory.grant(MORE)
    before, content = picture(world.device), digest(memory)
    with armed(f"{point}=raise"), pytest.raises(DriverError):
        memory.commit(MORE, grant)
    after = picture(world.device)
    assert (after.mappings, digest(memory)) == (before.mappings, content)
    assert world.granules("granted") == (4 if point in POINTS else 0)
    memory.commit(MORE, grant if point in POINTS else memory.grant(MORE))
    assert memory.tokens == MORE


def test_a_commit_and_a_release_pass_every_failpoint_of_theirs_and_a_commit_in_order(world: World) -> None:
    memory = world.open()
    with armed("device.frame.stored=delay:0") as arms:
        grow(world, memory)
        assert list(arms.passed) == [point for point in Failpoint if point.split(".")[1] in {"commit", "frame"}]
        memory.release()
        assert set(arms.passed) == {p for p in Failpoint if p.split(".")[1] in {"commit", "frame", "release"}}
