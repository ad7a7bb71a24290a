"""Every driver call of every verb on a prefix fails once, or for ever, and so does every call of its undo.

After each: the books sum, what requests are charged is what their memories have mapped, whatever else is mapped is in
quarantine or haunts its prefix, and a third request that uses the prefix reads what it always read. Then the driver
works again: everything is closed, and what is left is freed by the end of the process and by nothing else.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError, KvClusterError, LimitReached, NotAllowed, NotShareable, Quarantined
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Join, Publish, Seal
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.arming import armed
from kvcluster.testing.faulty_driver import Call, Plan, failing, failing_every, failing_named, failing_then
from kvcluster.testing.invariants import assert_ledger_balances, assert_nothing_lost, picture
from tests.services.prefixes import M, fill_own
from tests.services.world import GRANULE, Sizes, World, digest, names

OpenWorld = Callable[..., World]
LAYOUTS = [Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR]


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


class Scene:
    """A prefix with two users: its publisher, grown since, and a witness; and a joiner that is what a verb needs."""

    def __init__(self, world: World, layout: Layout) -> None:
        self.world = world
        self.owner = world.grown(M, layout=layout)
        self.prefix: Prefix = self.owner.publish(64)
        self.witness = world.open(layout=layout)
        self.witness.join(self.prefix, 64)
        self.owner.commit(128, self.owner.grant(128))
        fill_own(self.owner)
        self.content = digest(self.witness)
        self.joiner = world.open(layout=layout)

    @property
    def memories(self) -> tuple[SequenceMemory, ...]:
        return (self.owner, self.witness, self.joiner)

    def joined(self) -> Scene:
        self.joiner.join(self.prefix, 64)
        self.joiner.commit(128, self.joiner.grant(128))
        fill_own(self.joiner)
        return self


def publish(scene: Scene) -> None:
    scene.owner.publish(128)


def join(scene: Scene) -> None:
    scene.joiner.join(scene.prefix, 64)


def join_and_grow(scene: Scene) -> None:
    [outcome] = scene.world.device.port.submit([Join(scene.joiner, scene.prefix, 64, grow_to=128)]).settle()
    if outcome.error:
        raise outcome.error


def leave(scene: Scene) -> None:
    scene.joiner.leave()


def release(scene: Scene) -> None:
    scene.joiner.release()


def close(scene: Scene) -> None:
    scene.joiner.close()


def close_and_retain(scene: Scene) -> None:
    scene.joiner.close(retain_tokens=128)


FRESH, JOINED = [publish, join, join_and_grow], [leave, release, close, close_and_retain]
VERBS = [*FRESH, *JOINED]


@dataclass(slots=True)
class Attempt:
    scene: Scene
    error: KvClusterError | None
    calls: tuple[Call, ...]

    @property
    def failed_calls(self) -> list[str]:
        return [call.name for call in self.calls if call.failed]


def attempt(world: World, verb: Callable[[Scene], None], plan: Plan, layout: Layout = Layout.SEQ_MAJOR) -> Attempt:
    scene = Scene(world, layout)
    if verb in JOINED:
        scene.joined()
    world.driver.follow(plan)
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakedOnPurpose)
        try:
            verb(scene)
        except KvClusterError as failure:
            error = failure
    return Attempt(scene, error, world.healed())


def assert_consistent(made: Attempt) -> None:
    world, scene = made.scene.world, made.scene
    assert_ledger_balances(world.device)
    mapped = sum(memory.committed_bytes for memory in scene.memories) // GRANULE
    assert world.granules("requests") <= mapped <= world.granules("requests") + world.granules("quarantine")
    assert digest(scene.witness) == scene.content
    assert world.granules(f"prefix/{scene.prefix.number}") == scene.witness.shared_bytes // GRANULE


def assert_ends_whole(made: Attempt) -> None:
    """Whoever is left closes; what stays is the process's and ends with it."""
    world = made.scene.world
    for memory in made.scene.memories:
        memory.close()
    assert_ledger_balances(world.device)
    assert world.granules("requests") == 0
    world.service.gone(world.device.port.session)
    accounts = world.device.statistics().accounts  # this process lives, so that its mappings do too: no audit
    kept = {name: size for name, size in accounts.items() if name.partition("/")[0] not in ("free", "retained")}
    assert sum(kept.values()) == GRANULE * made.failed_calls.count("release")  # a handle that the driver keeps


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_fails_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[Scene], None], layout: Layout
) -> None:
    for failing_call in itertools.count(1):
        made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing(failing_call), layout)
        assert_consistent(made)
        assert_ends_whole(made)
        if not made.failed_calls:
            assert made.error is None
            break
    assert failing_call > len({call.name for call in made.calls})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_undo_fails_too_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[Scene], None]
) -> None:
    for first, second in itertools.product(range(1, 60), range(1, 5)):
        made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing_then(first, second))
        assert_consistent(made)
        assert_ends_whole(made)
        if not made.failed_calls:
            break
    assert first > 1


@pytest.mark.parametrize(
    "broken",
    ["create", "release", "map", "set_access", "unmap", "synchronize", "seal", "set_access unmap", "map unmap"],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_books_that_sum_where_a_call_fails_for_ever(
    open_world: OpenWorld, verb: Callable[[Scene], None], broken: str
) -> None:
    made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing_every(*broken.split()))
    assert_consistent(made)
    assert_ends_whole(made)


# --- each failure's own state ---------------------------------------------------------------------------------------


@pytest.fixture
def owner(world: World) -> SequenceMemory:
    """Six windows, one run."""
    return world.grown(M)


def test_an_unmap_that_fails_before_the_seal_leaves_the_windows_mapped_and_the_requests(
    world: World, owner: SequenceMemory
) -> None:
    content, mapped = digest(owner), picture(world.device).mappings
    world.driver.follow(failing_every("unmap"))
    with pytest.raises(Quarantined) as caught:
        owner.publish(M)
    assert "seal" not in names(world.healed())
    assert sum(piece.size_bytes for piece in caught.value.residue) == 5 * GRANULE
    assert (digest(owner), picture(world.device).mappings) == (content, mapped)
    assert (world.granules("requests"), world.granules("quarantine")) == (6, 0)
    with pytest.raises(NotAllowed, match="quarantined"):
        owner.commit(128, owner.grant(128))
    owner.release()
    assert (owner.committed_bytes, world.granules("requests")) == (0, 0)


def test_of_several_runs_those_that_were_unmapped_before_the_seal_are_given_back(world: World) -> None:
    owner = world.grown(M, layout=Layout.SEQ_MAJOR)  # four fragments of two windows
    world.driver.follow(failing_named("unmap", 3))
    with pytest.raises(Quarantined):
        owner.publish(64)
    world.healed()
    assert world.granules("requests") == 8 - 3 == owner.committed_bytes // GRANULE
    assert owner.tokens == 0
    owner.close()
    assert_nothing_lost(world.device)


def test_a_seal_that_the_device_refuses_loses_nothing_and_shares_nothing(world: World, owner: SequenceMemory) -> None:
    content = digest(owner)
    world.driver.follow(failing_named("seal", 3))
    with pytest.raises(NotShareable, match="seal") as caught:
        owner.publish(M)
    world.healed()
    assert caught.value.kind == "not-sealed"
    assert (digest(owner), owner.tokens, owner.sealed) == (content, 96, (5,))
    assert (owner.committed_bytes, owner.shared_bytes) == (6 * GRANULE, 0)
    assert world.granules("requests") == 6
    owner.commit(128, owner.grant(128))  # it goes on behind what is mapped for reading
    fill_own(owner)
    assert digest(owner, [(owner.address, 5 * GRANULE)])
    owner.close()
    assert_nothing_lost(world.device)
    assert world.handles("pooled") <= 4  # what was sealed by then is not lent again


@pytest.mark.parametrize("call", ["map", "set_access"])
def test_sealed_windows_that_cannot_be_mapped_again_are_left_and_the_prefix_lives_on(
    world: World, owner: SequenceMemory, call: str
) -> None:
    content = digest(owner, [(owner.address, 5 * GRANULE)])
    [planned] = world.device.port.submit([Publish(owner, M)]).settle()
    assert planned.error is None
    world.driver.follow(failing_every(call))
    number = owner.holdings.publication
    assert number is not None
    retained = world.device.port
    [outcome] = retained.submit([Seal(owner)]).settle()
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert outcome.prefix is None
    assert (owner.tokens, owner.shared_bytes, owner.committed_bytes) == (0, 0, GRANULE)
    assert world.granules("requests") == 1
    assert world.granules(f"prefix/{number.number}") == 0  # nobody else used it
    with pytest.raises(NotAllowed, match="torn"):
        owner.commit(M, owner.grant(M))
    owner.release()
    owner.commit(M, owner.grant(M))
    assert owner.publish(M).number != number.number
    assert content


def test_a_failing_set_access_withdraws_a_joiners_mapping_and_keeps_the_prefix(
    world: World, owner: SequenceMemory
) -> None:
    prefix, joiner = owner.publish(M), world.open()
    before, content = picture(world.device), digest(owner)
    world.driver.follow(failing_every("set_access"))
    with pytest.raises(DriverError, match="set_access"):
        joiner.join(prefix, M)
    world.healed()
    after = picture(world.device)
    assert (after.mappings, after.accounts) == (before.mappings, before.accounts)
    assert (joiner.shared_bytes, joiner.tokens, digest(owner)) == (0, 0, content)
    assert joiner.join(prefix, M) == 80


def test_a_join_whose_undo_fails_haunts_the_prefix_until_the_process_is_gone(
    world: World, owner: SequenceMemory
) -> None:
    prefix, joiner = owner.publish(M), world.open()
    world.driver.follow(failing_every("set_access", "unmap"))
    with pytest.raises(Quarantined):
        joiner.join(prefix, M)
    world.healed()
    assert (joiner.committed_bytes, joiner.shared_bytes, joiner.tokens) == (0, 5 * GRANULE, 0)
    assert world.granules("quarantine") == 0  # they are the prefix's, and nobody else's
    owner.close()
    joiner.close()
    assert joiner.shared_bytes == 0
    assert world.granules(f"prefix/{prefix.number}") == 5
    world.service.gone(world.device.port.session)
    assert_nothing_lost(world.device)


def test_when_a_growth_fails_beside_a_join_the_prefix_stays_joined(world: World, owner: SequenceMemory) -> None:
    prefix, joiner = owner.publish(M), world.open()
    world.driver.follow(failing_named("set_access", 2))
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=128)]).settle()
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert (joiner.joined_tokens, joiner.shared_bytes, joiner.committed_bytes) == (80, 5 * GRANULE, 0)
    joiner.commit(128, joiner.grant(128))
    assert joiner.tokens == 128


def test_when_a_join_fails_beside_its_growth_nothing_is_mapped_and_everything_goes_back(
    world: World, owner: SequenceMemory
) -> None:
    prefix, joiner = owner.publish(M), world.open()
    world.driver.follow(failing_named("set_access", 1))
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=128)]).settle()
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert (joiner.shared_bytes, joiner.committed_bytes, world.granules("requests")) == (0, 0, 1)
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=128)]).settle()
    assert outcome.error is None


def test_while_a_graph_is_captured_nothing_is_shared_left_or_closed_and_nothing_changes(
    world: World, owner: SequenceMemory
) -> None:
    prefix, joiner = owner.publish(M), world.open()
    joiner.join(prefix, M)
    other = world.grown(M)
    before = picture(world.device)
    with capture_gate.closed(Meanwhile.REFUSE):
        for verb in (joiner.leave, joiner.release, joiner.close, lambda: other.publish(M)):
            with pytest.raises(DriverError):
                verb()
    assert picture(world.device) == before
    assert other.publish(M)
    joiner.close()
    assert joiner.shared_bytes == 0


def test_no_room_for_descriptors_or_mappings_leaves_the_prefix_to_others(world: World, owner: SequenceMemory) -> None:
    """Whatever the redemption refuses with, the seal has happened: the publisher leaves."""
    witness = world.open()

    def no_room(seq: int) -> None:
        raise LimitReached(limit="descriptors", need=1, free=0, remedy="close some")

    prefix = owner.publish(64)
    witness.join(prefix, 64)
    content = digest(witness)
    owner.commit(128, owner.grant(128))
    fill_own(owner)
    world.device.port.submit([Publish(owner, 128)]).settle()
    transport = world.device.port.transport
    redeem, transport.redeem = transport.redeem, no_room  # type: ignore[method-assign, assignment]
    [outcome] = world.device.port.submit([Seal(owner)]).settle()
    transport.redeem = redeem  # type: ignore[method-assign]
    assert isinstance(outcome.error, LimitReached)
    assert owner.tokens == 0
    assert digest(witness) == content
    owner.close()
    witness.close()
    assert_nothing_lost(world.device)


@pytest.mark.parametrize("point", ["client.seal.sealed", "client.commit.mapped", "client.commit.accessible"])
def test_a_seal_that_stops_at_a_failpoint_leaves_the_prefix_and_loses_no_byte(world: World, point: str) -> None:
    owner = world.grown(M)
    with armed(f"{point}=raise"), pytest.raises(DriverError):
        owner.publish(M)
    assert (owner.tokens, world.granules("requests"), world.granules("quarantine")) == (0, 1, 0)
    owner.close()
    assert_nothing_lost(world.device)
