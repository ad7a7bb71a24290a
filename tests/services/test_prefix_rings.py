"""Prefixes of models with sliding windows: the window before the boundary is copied out, shared, and copied in."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from kvcluster.errors import DriverError, KvClusterError, NotShareable, OutOfBudget
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import Keeps
from kvcluster.services.asks import Join, TakeSnapshot
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.faulty_driver import Plan, failing, failing_then
from kvcluster.testing.invariants import assert_ledger_balances, assert_nothing_lost, picture
from tests.services.rings import CHUNK, WINDOW, compute, compute_behind, opened, wrong_rows
from tests.services.world import GRANULE, Sizes, World, names

OpenWorld = Callable[..., World]
M = 200  # several laps of the ring
each_layout = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def published(world: World, *, layout: Layout = Layout.TOKEN_MAJOR) -> tuple[SequenceMemory, Prefix]:
    owner = opened(world, layout=layout)
    compute(owner, 0, M)
    return owner, owner.publish(M)


@each_layout
def test_a_joiner_goes_on_at_the_boundary_with_the_window_before_it_in_its_ring(world: World, layout: Layout) -> None:
    owner, prefix = published(world, layout=layout)
    boundary = prefix.reusable_tokens
    assert M - 43 <= boundary < M  # a granule of the smallest rows
    assert wrong_rows(owner, M) == []
    joiner = opened(world, layout=layout)
    assert joiner.join(prefix, M) == boundary
    assert joiner.committed_bytes == 0
    joiner.commit(M, joiner.grant(M))
    assert wrong_rows(joiner, boundary) == []
    assert joiner.committed_bytes < owner.shared_bytes + owner.committed_bytes
    joiner.close()
    owner.close()
    assert_nothing_lost(world.device)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 31, 64])
def test_a_joiners_chunk_need_not_be_the_publishers(world: World, chunk_tokens: int) -> None:
    _, prefix = published(world)
    joiner = opened(world, chunk_tokens=chunk_tokens)
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=M)]).settle()
    assert outcome.error is None
    assert wrong_rows(joiner, prefix.reusable_tokens) == []


def test_the_publisher_goes_on_and_what_it_overwrites_is_its_own_ring_alone(world: World) -> None:
    owner, prefix = published(world)
    boundary = prefix.reusable_tokens
    compute(owner, M, 400)
    assert wrong_rows(owner, 400) == []
    joiner = opened(world)
    joiner.join(prefix, M)
    joiner.commit(M, joiner.grant(M))
    assert wrong_rows(joiner, boundary) == []


def test_a_prefix_shorter_than_the_window_shares_what_there_is(world: World) -> None:
    owner = opened(world)
    compute(owner, 0, 30)
    prefix = owner.publish(30)
    joiner = opened(world)
    assert joiner.join(prefix, 30) == 21
    joiner.commit(30, joiner.grant(30))
    assert wrong_rows(joiner, 21) == []


def test_the_window_arrives_with_the_first_commit_that_holds_it(world: World) -> None:
    _, prefix = published(world)
    joiner = opened(world)
    joiner.join(prefix, M)
    assert joiner.tokens == 0  # its rings hold nothing
    joiner.commit(15, joiner.grant(15))
    joiner.commit(M, joiner.grant(M))
    assert wrong_rows(joiner, prefix.reusable_tokens) == []


def test_a_match_that_ends_before_the_boundary_is_refused_with_that_reason(world: World) -> None:
    _, prefix = published(world)
    joiner = opened(world)
    with pytest.raises(NotShareable) as caught:
        joiner.join(prefix, prefix.reusable_tokens)
    assert caught.value.kind == "no-boundary"
    assert joiner.join(prefix, M) == prefix.reusable_tokens


def test_a_window_that_was_overwritten_is_not_published_and_nothing_changes(world: World) -> None:
    owner = opened(world)
    compute(owner, 0, 300)
    before = picture(world.device)
    with pytest.raises(NotShareable) as caught:
        owner.publish(M, written=300)
    assert caught.value.kind == "no-boundary"
    assert picture(world.device) == before
    assert owner.publish(300).tokens == 300


def test_no_room_for_the_snapshot_is_a_refusal_and_nothing_changes(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=40))
    owner, hog = opened(world), world.grown(18 * 16, max_tokens=18 * 16)
    compute(owner, 0, M)
    before = picture(world.device)
    with pytest.raises(OutOfBudget) as caught:
        owner.publish(M)
    assert caught.value.need == 5 * GRANULE  # 50 rows of 384 bytes
    assert picture(world.device) == before
    assert wrong_rows(owner, M) == []
    hog.close()
    assert owner.publish(M).tokens == M


def test_a_joiner_publishes_further_with_a_snapshot_of_its_own(world: World) -> None:
    owner, prefix = published(world)
    joiner = opened(world)
    joiner.join(prefix, M)
    compute_behind(joiner, prefix.reusable_tokens, 300)
    longer = joiner.publish(300)
    late = opened(world)
    assert late.join(longer, 300) == longer.reusable_tokens > prefix.reusable_tokens
    late.commit(300, late.grant(300))
    assert wrong_rows(late, longer.reusable_tokens) == []
    for memory in (owner, joiner, late):
        memory.close()
    assert_nothing_lost(world.device)


def test_after_the_first_lap_a_growth_of_the_rings_makes_no_driver_call(world: World) -> None:
    rings_only = KvGeometry((LayerGroup((0, 1), kv_heads=1, head_dim=24, window_tokens=WINDOW),), 4)
    memory = world.device.port.memory(SequenceSpec(rings_only, Layout.TOKEN_MAJOR, 4000, chunk_tokens=CHUNK))
    memory.commit(100, memory.grant(100))
    assert memory.tokens == 4000
    world.healed()
    frames = world.device.statistics().frames
    memory.commit(100, memory.grant(100))
    assert memory.bytes_to_reach(4000) == 0
    assert names(world.driver.since_plan()) == []
    assert world.device.statistics().frames == frames + 2
    with pytest.raises(NotShareable) as caught:
        memory.publish(100)
    assert caught.value.kind == "sliding-only"


# --- faults ---------------------------------------------------------------------------------------------------------


def ring_commit(world: World, memory: SequenceMemory) -> None:
    memory.commit(400, memory.grant(400))


def snapshot(world: World, memory: SequenceMemory) -> None:
    [outcome] = world.device.port.submit([TakeSnapshot(memory, M, M)]).settle()
    if outcome.error:
        raise outcome.error


def publish(world: World, memory: SequenceMemory) -> None:
    memory.publish(M)


def release(world: World, memory: SequenceMemory) -> None:
    memory.release()


@pytest.mark.parametrize("verb", [ring_commit, snapshot, publish, release])
def test_a_verb_on_rings_that_fails_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[World, SequenceMemory], None]
) -> None:
    for failing_call in itertools.count(1):
        calls, failed = attempt(open_world, verb, failing(failing_call))
        if not failed:
            break
        for undo in range(1, min(2, calls - failing_call) + 1):
            _, failed = attempt(open_world, verb, failing_then(failing_call, undo))
            assert failed == 2
    assert failing_call > 3


def attempt(open_world: OpenWorld, verb: Callable[[World, SequenceMemory], None], plan: Plan) -> tuple[int, int]:
    """The verb with these faults, in a world of its own: how many calls it made, and how many of them failed."""
    world = open_world(Sizes(pool=0))
    memory = opened(world)
    compute(memory, 0, 60 if verb is ring_commit else M)
    world.driver.follow(plan)
    error: KvClusterError | None = None
    try:
        verb(world, memory)
    except KvClusterError as failure:
        error = failure
    calls = world.healed()
    failed = sum(call.failed for call in calls)
    assert_ledger_balances(world.device)
    mapped = memory.committed_bytes // GRANULE
    assert world.granules("requests") <= mapped <= world.granules("requests") + world.granules("quarantine")
    if isinstance(error, DriverError) and memory.tokens >= M:
        assert wrong_rows(memory, M) == []
    assert failed or error is None
    memory.close()
    assert world.granules("requests") == 0
    return len(calls), failed


def test_every_group_of_a_snapshot_is_one_that_keeps_nothing_else(world: World) -> None:
    owner, _ = published(world)
    shape = owner.holdings.shape
    sealed = [group.keeps for group, count in zip(shape.groups, owner.sealed, strict=True) if count]
    assert sealed == [Keeps.EVERY, Keeps.SNAPSHOT]


@pytest.mark.parametrize("written", [-1, 89, 10**9])
def test_tokens_that_cannot_have_been_written_are_misuse_and_nothing_is_sent(world: World, written: int) -> None:
    owner, plain = opened(world), world.grown(90)
    compute(owner, 0, M)
    frames = world.device.statistics().frames
    with pytest.raises(ValueError, match=f"cannot have {written} tokens written: {M} are to be published"):
        owner.publish(M, written=written)
    with pytest.raises(ValueError, match="90 are to be published and 96 are committed"):
        plain.publish(90, written=written)
    with pytest.raises(ValueError, match=f"{written} tokens written"):
        world.device.port.submit([TakeSnapshot(owner, M, written)])
    assert world.device.statistics().frames == frames
    assert plain.publish(90, written=96).tokens == 90
