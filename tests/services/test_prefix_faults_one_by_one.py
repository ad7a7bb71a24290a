"""What each single failure of a verb on a prefix leaves: its own state, and what the other users have."""

from __future__ import annotations

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError, LimitReached, NotAllowed, NotShareable, Quarantined
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Join, Publish, Seal
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.arming import armed
from kvcluster.testing.faulty_driver import failing_every, failing_named
from kvcluster.testing.invariants import assert_nothing_lost, picture
from tests.services.prefixes import M, fill_own
from tests.services.world import GRANULE, World, digest, names


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


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


def test_a_join_whose_undo_fails_pins_the_prefix_until_the_process_is_gone(world: World, owner: SequenceMemory) -> None:
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
    assert outcome.joined_tokens == 80
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
    assert outcome.joined_tokens == 0
    assert (joiner.shared_bytes, joiner.committed_bytes, world.granules("requests")) == (0, 0, 1)
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=128)]).settle()
    assert (outcome.error, outcome.joined_tokens) == (None, 80)


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
    transport = world.device.port.exchange.line
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
