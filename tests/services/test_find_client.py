"""Find as a user of one process sees it: what is mapped, who pays, and what each failure on either side leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError, LimitReached, NotAllowed, OutOfBudget, Quarantined
from kvcluster.geometry.model import KvGeometry
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import MOST_ID_BYTES, End, Find, Outcome, Publish, Seal, load_of
from kvcluster.services.frames import in_frames
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.faulty_driver import failing_every, failing_named
from kvcluster.testing.invariants import assert_nothing_lost, picture
from tests.services.prefixes import sealed_pieces
from tests.services.world import GRANULE, Sizes, World, digest, fill

OpenWorld = Callable[..., World]
ROOT = b"r" * 32
IDS = range(7000, 7256)
M = 90  # tokens: five whole granules and a part


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def looking(world: World) -> SequenceMemory:
    return world.open(cache_root=ROOT)


def answered(world: World, tokens: int = M) -> str:
    """A prompt was computed and its request has ended; a hash of what it leaves."""
    memory = looking(world)
    assert memory.find(IDS[:tokens], tokens) == 0
    fill(memory)
    content = digest(memory, [(memory.address, tokens // 16 * GRANULE)])
    memory.close(retain_tokens=tokens)
    return content


def find(world: World, memory: SequenceMemory, ids: Sequence[int], grow_to: int) -> Outcome:
    [outcome] = world.device.port.submit([Find(memory, packed(ids), grow_to)]).settle()
    return outcome


def test_who_finds_reads_what_was_written_and_pays_for_the_rest_alone(world: World) -> None:
    content = answered(world)
    memory = looking(world)
    frames = world.device.statistics().frames
    assert memory.find(IDS[:200], 200) == 80
    assert world.device.statistics().frames == frames + 1
    assert (memory.shared_bytes, memory.committed_bytes) == (5 * GRANULE, 8 * GRANULE)
    assert memory.tokens >= 200
    assert digest(memory, sealed_pieces(memory)) == content
    memory.close()
    assert world.device.statistics().listed_prefixes == 1


def test_a_find_of_nothing_known_is_a_growth(world: World) -> None:
    memory = looking(world)
    outcome = find(world, memory, IDS[:M], M)
    assert (outcome.error, outcome.joined_tokens, outcome.known_tokens) == (None, 0, 0)
    assert (memory.shared_bytes, memory.committed_bytes) == (0, 6 * GRANULE)
    memory.close()
    assert_nothing_lost(world.device)


def test_each_turn_of_a_conversation_finds_all_turns_before_it(world: World) -> None:
    known = 0
    for turn in range(1, 5):
        prompt, answer = IDS[: turn * 48 - 16], turn * 48
        memory = looking(world)
        assert memory.find(prompt, answer) == known
        memory.close(retain_tokens=answer, token_ids=IDS[len(prompt) : answer])
        known = answer
    assert world.device.statistics().listed_prefixes == 4
    world.device.audit()


def test_who_looks_again_after_giving_everything_back_finds_what_it_published_itself(world: World) -> None:
    memory = looking(world)
    memory.find(IDS[:M], M)
    fill(memory)
    prefix, content = memory.publish(M), digest(memory, sealed_pieces(memory))
    memory.release()
    assert memory.joined_tokens == 0
    outcome = find(world, memory, IDS[:100], 100)
    assert (outcome.error, outcome.joined_tokens, outcome.known_tokens) == (None, 80, M)
    assert world.device.statistics().prefixes[prefix.number].users == 1
    assert digest(memory, sealed_pieces(memory)) == content


def test_the_asks_of_a_publication_share_what_is_there_and_are_none_where_that_shares_no_more(world: World) -> None:
    memory = looking(world)
    memory.find(IDS[:M], M)
    assert memory.publication(15, written=M) == ()
    asks = memory.publication(M, written=M)
    assert asks == (Publish(memory, M), Seal(memory))
    for ask in asks:
        [outcome] = world.device.port.submit([ask]).settle()
        assert outcome.error is None
    assert memory.publication(M, written=M) == memory.publication(70, written=M) == ()
    assert looking(world).find(IDS, M) == 80


# --- refused ----------------------------------------------------------------------------------------------------------


def test_no_room_beside_what_is_found_joins_nothing(open_world: OpenWorld) -> None:
    world = open_world(Sizes(capacity=16))
    answered(world)
    hog, memory = world.grown(128), looking(world)
    before = dict(world.device.audit().accounts)
    outcome = find(world, memory, IDS[:200], 240)
    assert isinstance(outcome.error, OutOfBudget)
    assert (outcome.joined_tokens, memory.shared_bytes, memory.committed_bytes) == (0, 0, 0)
    assert world.device.audit().accounts == before
    hog.close()
    assert find(world, memory, IDS[:200], 240).joined_tokens == 80


@pytest.mark.parametrize("ids", [b"", b"abc", bytes(4 * 257)])
def test_what_are_no_ids_of_this_memory_is_misuse_and_nothing_is_sent(world: World, ids: bytes) -> None:
    memory, frames = looking(world), world.device.statistics().frames
    with pytest.raises(ValueError, match=r"room for 1 to 256|no whole number"):
        world.device.port.submit([Find(memory, ids, 16)])
    assert world.device.statistics().frames == frames


def test_ids_that_are_none_are_misuse_at_the_end_too_and_nothing_was_unmapped(world: World) -> None:
    memory = world.grown(M)
    before = picture(world.device)
    with pytest.raises(ValueError, match="no whole number"):
        world.device.port.submit([End(memory, 64, b"abcde")])
    with pytest.raises(ValueError, match="token id"):
        memory.close(retain_tokens=64, token_ids=[-1])
    assert picture(world.device) == before


def test_who_holds_something_does_not_look(world: World) -> None:
    memory = world.grown(M)
    with pytest.raises(NotAllowed, match="finds before it holds"):
        memory.find(IDS, 128)
    assert memory.tokens == 96


def test_a_frame_carries_as_many_ids_as_its_limit(world: World) -> None:
    ids = bytes(MOST_ID_BYTES // 4)
    memories = [world.open(max_tokens=MOST_ID_BYTES // 16) for _ in range(5)]
    asks = [Find(memory, ids, 16) for memory in memories]
    assert load_of(*asks[:4]).id_bytes == MOST_ID_BYTES
    assert [len(frame) for frame in in_frames(asks)] == [4, 1]
    with pytest.raises(ValueError, match=f"{MOST_ID_BYTES // 4} ids"):
        world.device.port.submit(asks)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_when_a_growth_fails_beside_what_was_found_the_prefix_stays_joined(world: World) -> None:
    answered(world)
    memory = looking(world)
    world.driver.follow(failing_named("set_access", 2))
    outcome = find(world, memory, IDS[:120], 128)
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert (outcome.joined_tokens, outcome.known_tokens) == (80, M)
    assert (memory.joined_tokens, memory.shared_bytes, memory.committed_bytes) == (80, 5 * GRANULE, 0)
    memory.commit(128, memory.grant(128))
    assert memory.tokens == 128


@pytest.mark.parametrize("calls", [("map",), ("set_access",)])
def test_when_what_was_found_cannot_be_mapped_everything_goes_back(world: World, calls: tuple[str, ...]) -> None:
    answered(world)
    memory, before = looking(world), picture(world.device)
    world.driver.follow(failing_every(*calls))
    outcome = find(world, memory, IDS[:120], 128)
    world.healed()
    assert isinstance(outcome.error, DriverError)
    assert (outcome.joined_tokens, memory.shared_bytes, memory.committed_bytes) == (0, 0, 0)
    after = picture(world.device)
    assert (after.accounts, after.mappings) == (before.accounts, before.mappings)
    assert find(world, memory, IDS[:120], 128).joined_tokens == 80


def test_a_find_whose_undo_fails_pins_the_prefix_until_the_process_is_gone(world: World) -> None:
    answered(world)
    memory = looking(world)
    world.driver.follow(failing_every("set_access", "unmap"))
    outcome = find(world, memory, IDS[:120], 128)
    world.healed()
    assert isinstance(outcome.error, Quarantined)
    memory.close()
    [prefix] = world.device.statistics().prefixes.values()
    assert (prefix.users, prefix.pins) == (0, 1)
    world.service.gone(world.device.port.session)
    assert {name.partition("/")[0] for name in world.device.audit().accounts} == {"free", "retained"}


def test_a_redemption_that_is_refused_leaves_the_prefix_to_others(world: World) -> None:
    answered(world)
    memory, transport = looking(world), world.device.port.exchange.line

    def no_room(seq: int) -> None:
        raise LimitReached(limit="descriptors", need=1, free=0, remedy="close some")

    redeem, transport.redeem = transport.redeem, no_room  # type: ignore[method-assign, assignment]
    outcome = find(world, memory, IDS[:120], 128)
    transport.redeem = redeem  # type: ignore[method-assign]
    assert isinstance(outcome.error, LimitReached)
    [prefix] = world.device.audit().prefixes.values()
    assert (prefix.users, prefix.pins) == (0, 0)
    assert find(world, memory, IDS[:120], 128).joined_tokens == 80


def test_in_a_capture_nothing_is_looked_for_and_what_was_answered_is_settled_after_it(world: World) -> None:
    answered(world)
    memory, before = looking(world), picture(world.device)
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match="EBUSY"):
        memory.find(IDS, 128)
    assert picture(world.device) == before
    pending = world.device.port.submit([Find(memory, packed(IDS), 128)])
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match="EBUSY"):
        pending.settle()
    [outcome] = pending.settle()
    assert (outcome.error, outcome.joined_tokens) == (None, 80)


def test_two_geometries_under_one_root_never_share_a_byte(world: World) -> None:
    answered(world)
    half = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=16, element_bytes=4)
    other = world.device.open(half, max_tokens=256, cache_root=ROOT)
    assert other.find(IDS, 200) == 0
    other.close(retain_tokens=200)
    assert looking(world).find(IDS, 200) == 80
