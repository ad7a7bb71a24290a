"""Publish, join, leave, retain as a user of one process sees them: bytes, addresses, who pays, and what is refused."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from kvcluster.errors import NotAllowed, NotShareable, OutOfBudget
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Grow, Join, Publish, Seal, Shed
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.invariants import assert_ledger_balances, assert_nothing_lost, mappings, picture
from tests.services.prefixes import M, fill_own, published, sealed_pieces
from tests.services.world import GEOMETRY, GRANULE, World, digest, names

each_layout = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def accesses(memory: SequenceMemory) -> list[str]:
    """The kernel's access of every mapping of the memory, in address order."""
    start, stop = memory.address, memory.address + memory.reserved_bytes
    return [line.split()[1] for line in mappings() if start <= int(line.partition("-")[0], 16) < stop]


@each_layout
def test_a_publisher_keeps_address_and_bytes_and_pays_for_the_rest_only(world: World, layout: Layout) -> None:
    owner = world.grown(M, layout=layout)
    address, content, windows, committed = owner.address, digest(owner), owner.windows, owner.committed_bytes
    prefix = owner.publish(M)
    assert (owner.address, owner.windows, digest(owner)) == (address, windows, content)
    assert owner.shared_bytes == world.granules(f"prefix/{prefix.number}") * GRANULE
    assert owner.committed_bytes == world.granules("requests") * GRANULE == committed - owner.shared_bytes
    assert owner.tokens >= M
    assert prefix.reusable_tokens == min(M - 1, owner.shared_bytes // GEOMETRY.token_bytes)
    owner.close()
    assert_nothing_lost(world.device)


@each_layout
def test_who_joins_reads_the_same_bytes_and_pays_nothing_for_them(world: World, layout: Layout) -> None:
    owner, prefix = published(world, layout=layout)
    content = digest(owner, sealed_pieces(owner))
    joiner = world.open(layout=layout)
    before = dict(world.device.audit().accounts)
    assert joiner.join(prefix, M) == prefix.reusable_tokens
    assert world.device.audit().accounts == before
    assert (joiner.committed_bytes, joiner.shared_bytes) == (0, owner.shared_bytes)
    assert joiner.sealed == joiner.windows == owner.sealed
    assert digest(joiner) == content
    joiner.commit(200, joiner.grant(200))
    assert joiner.tokens >= 200
    assert digest(joiner, sealed_pieces(joiner)) == content
    joiner.close()
    owner.close()
    assert_nothing_lost(world.device)


def test_shared_windows_are_mapped_for_reading_and_own_ones_for_writing(world: World) -> None:
    owner, prefix = published(world)
    joiner = world.open()
    joiner.join(prefix, M)
    joiner.commit(128, joiner.grant(128))
    assert accesses(owner) == ["r--s"] * 5 + ["rw-s"]
    assert accesses(joiner) == ["r--s"] * 5 + ["rw-s"] * 3


def test_a_publish_is_two_frames_and_one_unmap_and_one_set_access_a_run(world: World) -> None:
    owner = world.grown(M, layout=Layout.SEQ_MAJOR)  # four fragments
    frames = world.device.statistics().frames
    world.healed()
    owner.publish(M)
    calls = names(world.driver.since_plan())
    assert world.device.statistics().frames == frames + 2
    assert [calls.count(name) for name in ("unmap", "seal", "map", "set_access", "create")] == [4, 4, 4, 4, 0]


def test_join_and_growth_share_a_frame_and_a_redemption(world: World) -> None:
    _, prefix = published(world)
    port, joiner = world.device.port, world.open()
    traffic = port.exchange.traffic
    messages, redemptions = traffic.control_messages, traffic.redemptions
    [outcome] = port.submit([Join(joiner, prefix, M, grow_to=128)]).settle()
    assert outcome.error is None
    assert (joiner.tokens, joiner.joined_tokens, joiner.committed_bytes) == (128, 80, 3 * GRANULE)
    assert (traffic.control_messages, traffic.redemptions) == (messages + 2, redemptions + 1)


@pytest.mark.parametrize("grow_to", [-1, 0, 257, 2**64])
def test_a_join_that_grows_to_what_cannot_be_is_misuse_and_sends_nothing(world: World, grow_to: int) -> None:
    _, prefix = published(world)
    joiner = world.open()
    before = picture(world.device)
    with pytest.raises(ValueError, match="has room for 1 to 256"):
        world.device.port.submit([Join(joiner, prefix, M, grow_to)])
    assert picture(world.device) == before
    joiner.join(prefix, M)


def test_many_join_and_grow_in_one_frame(world: World) -> None:
    owner, prefix = published(world)
    content = digest(owner, sealed_pieces(owner))
    joiners = [world.open() for _ in range(5)]
    outcomes = world.device.port.submit([Join(joiner, prefix, M, grow_to=96) for joiner in joiners]).settle()
    assert [outcome.error for outcome in outcomes] == [None] * 5
    assert {digest(joiner, sealed_pieces(joiner)) for joiner in joiners} == {content}
    assert world.granules("requests") == 6
    assert world.granules(f"prefix/{prefix.number}") == 5


def test_a_join_whose_growth_is_refused_is_not_done_either(world: World) -> None:
    owner, prefix = published(world)
    joiner, hungry = world.open(), world.open(64 * 16)
    hungry.commit(50 * 16, hungry.grant(50 * 16))
    before = picture(world.device)
    [outcome] = world.device.port.submit([Join(joiner, prefix, M, grow_to=256)]).settle()
    assert isinstance(outcome.error, OutOfBudget)
    after = picture(world.device)
    assert (after.accounts, after.mappings) == (before.accounts, before.mappings)
    assert (joiner.tokens, joiner.shared_bytes, joiner.joined_tokens) == (0, 0, 0)
    assert owner.tokens >= M


@pytest.mark.parametrize(("tokens", "expected"), [(90, 80), (81, 80), (80, 79), (64, 63), (33, 32), (17, 16)])
def test_a_shorter_match_joins_what_lies_inside_it_and_leaves_a_token_to_compute(
    world: World, tokens: int, expected: int
) -> None:
    owner, prefix = published(world)
    joiner = world.open()
    assert joiner.join(prefix, tokens) == expected
    assert joiner.shared_bytes == tokens // 16 * GRANULE
    assert digest(joiner) == digest(owner, [(owner.address, joiner.shared_bytes)])


def test_the_last_to_leave_frees_the_bytes_whoever_that_is(world: World) -> None:
    owner, prefix = published(world)
    content = digest(owner, sealed_pieces(owner))
    joiners = [world.open() for _ in range(3)]
    for joiner in joiners:
        joiner.join(prefix, M)
    owner.close()
    assert world.granules(f"prefix/{prefix.number}") == 5
    for joiner in joiners[:2]:
        joiner.leave()
        assert (joiner.shared_bytes, joiner.tokens) == (0, 0)
        assert world.granules(f"prefix/{prefix.number}") == 5
    assert digest(joiners[2]) == content
    joiners[2].release()
    assert world.granules("free") == 64
    with pytest.raises(NotShareable, match="no such prefix"):
        joiners[0].join(prefix, M)


def test_a_memory_that_left_joins_again_and_one_that_holds_something_does_not(world: World) -> None:
    _, prefix = published(world)
    joiner = world.open()
    joiner.join(prefix, M)
    joiner.leave()
    assert joiner.join(prefix, M) == 80
    with pytest.raises(NotAllowed):
        joiner.join(prefix, M)
    holder = world.grown(16)
    with pytest.raises(NotAllowed):
        holder.join(prefix, M)
    assert holder.tokens == 16


def test_a_memory_that_leaves_what_lies_before_its_own_is_torn_until_a_release(world: World) -> None:
    _, prefix = published(world)
    joiner = world.open()
    joiner.join(prefix, M)
    joiner.commit(128, joiner.grant(128))
    joiner.leave()
    assert (joiner.tokens, joiner.shared_bytes, joiner.committed_bytes) == (0, 0, 3 * GRANULE)
    other = world.open()
    for ask in (Grow(joiner, 128), Join(joiner, prefix, M)):
        torn, fine = world.device.port.submit([ask, Grow(other, 16)]).settle()
        assert isinstance(torn.error, NotAllowed)
        assert "torn" in str(torn.error)
        assert fine.error is None
    other.close()
    with pytest.raises(NotAllowed, match="torn"):
        joiner.publish(M)
    joiner.release()
    assert world.granules("requests") == 1
    assert joiner.join(prefix, M) == 80


def test_a_prefix_grows_by_a_second_publish_and_a_joiner_of_it_has_both(world: World) -> None:
    owner, first = published(world, 32)
    owner.commit(M, owner.grant(M))
    fill_own(owner)
    second = owner.publish(M)
    assert (world.granules(f"prefix/{first.number}"), world.granules(f"prefix/{second.number}")) == (2, 3)
    joiner = world.open()
    assert joiner.join(second, M) == 80
    assert digest(joiner) == digest(owner, sealed_pieces(owner))
    owner.close()
    assert world.granules(f"prefix/{first.number}") == 2  # the second one stands on it
    joiner.close()
    assert_nothing_lost(world.device)


def test_a_prefix_of_another_device_or_another_life_of_it_is_no_such_prefix(world: World) -> None:
    _, prefix = published(world)
    frames = world.device.statistics().frames
    for stranger in (replace(prefix, device="host:1"), replace(prefix, epoch=7)):
        joiner = world.open()
        with pytest.raises(NotShareable) as caught:
            joiner.join(stranger, M)
        assert caught.value.kind == "no-such-prefix"
    assert world.device.statistics().frames == frames
    with pytest.raises(NotShareable, match="no such prefix: 99"):
        world.open().join(replace(prefix, number=99), M)


def test_a_prefix_travels_pickled_and_joins_the_same(world: World) -> None:
    _, prefix = published(world)
    sent: Prefix = pickle.loads(pickle.dumps(prefix))
    assert sent == prefix
    assert world.open().join(sent, M) == prefix.reusable_tokens


def test_a_prefix_is_its_tenants(world: World) -> None:
    _, prefix = published(world)
    stranger = world.device.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, 256, tenant="other"))
    with pytest.raises(NotShareable) as caught:
        stranger.join(prefix, M)
    assert caught.value.kind == "no-such-prefix"


def test_less_than_a_granule_is_refused_with_the_reason_and_changes_nothing(world: World) -> None:
    owner = world.grown(M)
    content, before = digest(owner), picture(world.device)
    with pytest.raises(NotShareable) as caught:
        owner.publish(15)
    assert caught.value.kind == "smaller-than-a-granule"
    assert (digest(owner), picture(world.device)) == (content, before)
    assert owner.publish(16).reusable_tokens == 15


def test_what_is_not_there_is_not_published_and_nothing_is_sent(world: World) -> None:
    owner = world.grown(M)
    frames = world.device.statistics().frames
    for tokens in (0, owner.tokens + 1):
        with pytest.raises(ValueError, match="has room for 1 to 96"):
            owner.publish(tokens)
    with pytest.raises(NotAllowed, match="sealed next"):
        world.device.port.submit([Seal(owner)])
    assert world.device.statistics().frames == frames


def test_between_plan_and_seal_a_memory_is_sealed_or_given_back_and_nothing_else(world: World) -> None:
    owner, other = world.grown(M), world.grown(M)
    port = world.device.port
    assert [outcome.error for outcome in port.submit([Publish(owner, M), Publish(other, M)]).settle()] == [None, None]
    with pytest.raises(NotAllowed, match="sealed next"):
        port.submit([Grow(owner, 128)])
    sealed, shed = port.submit([Seal(owner), Shed(other)]).settle()
    assert (sealed.error, shed.error) == (None, None)
    assert sealed.prefix is not None
    assert world.open().join(sealed.prefix, M) == 80
    assert (other.tokens, other.committed_bytes) == (0, 0)
    assert_ledger_balances(world.device)
    other.commit(M, other.grant(M))
    assert other.publish(M).number != sealed.prefix.number


def test_what_an_ended_request_leaves_is_joined_until_its_memory_is_needed(world: World) -> None:
    ended = world.grown(M)
    content = digest(ended, [(ended.address, 5 * GRANULE)])
    retained = ended.close(retain_tokens=M)
    assert retained is not None
    assert (world.granules(f"retained/{retained.number}"), world.granules("requests")) == (5, 0)
    joiner = world.open()
    assert joiner.join(retained, M) == retained.reusable_tokens == 80
    assert digest(joiner) == content
    joiner.release()
    assert world.granules(f"retained/{retained.number}") == 5
    hungry = world.open(64 * 16)
    hungry.commit(64 * 16, hungry.grant(64 * 16))
    with pytest.raises(NotShareable):
        joiner.join(retained, M)


def test_a_published_prefix_whose_last_user_retains_it_stays_too(world: World) -> None:
    owner, prefix = published(world, 32)
    owner.commit(M, owner.grant(M))
    fill_own(owner)
    content = digest(owner, [(owner.address, 5 * GRANULE)])
    retained = owner.close(retain_tokens=M)
    assert retained is not None
    assert world.granules(f"retained/{prefix.number}") + world.granules(f"retained/{retained.number}") == 5
    joiner = world.open()
    assert joiner.join(retained, M) == 80
    assert digest(joiner) == content


def test_nothing_is_retained_of_less_than_a_granule_and_more_than_is_there_is_misuse(world: World) -> None:
    ended = world.grown(M)
    with pytest.raises(ValueError, match="has room for 0 to 96"):
        ended.close(retain_tokens=97)
    assert ended.committed_bytes == 6 * GRANULE
    assert ended.close(retain_tokens=15) is None
    assert_nothing_lost(world.device)
    assert ended.close(retain_tokens=15) is None
