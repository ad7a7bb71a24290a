"""A device that dies takes nothing along: its clients go on with what they have, and grow through the next one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import pytest

from kvcluster.errors import DeviceUnreachable, NotAllowed, NotShareable, OutOfBudget, SessionEnded, StaleEpoch
from kvcluster.geometry.shareability import Refusal
from kvcluster.ids import GrantId
from kvcluster.services.asks import Ask, AskGrant, Grow, Publish, Seal, Shed
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of
from tests.services.restarts import RestartWorld, Way
from tests.services.world import GRANULE, TOKENS

CAPACITY = 64


@pytest.fixture
def world() -> Iterator[RestartWorld]:
    world = RestartWorld(CAPACITY)
    yield world
    world.close()


def stamp(memory: SequenceMemory, text: bytes, *, at: int = 0) -> None:
    ctypes.memmove(memory.address + at, text, len(text))


def read(memory: SequenceMemory, size: int, *, at: int = 0) -> bytes:
    return ctypes.string_at(memory.address + at, size)


def unsayable(world: RestartWorld) -> Ask:
    """It passes for an ask until it is to be put into words."""
    memory = world.memory(world.ports[0], 0)
    shape = memory.range.range_map.shape
    odd = replace(shape, groups=shape.groups * 65)  # more layer groups than a message holds
    object.__setattr__(memory.range.range_map, "shape", odd)
    return AskGrant(memory, Grant(GrantId(memory.request, 99), GRANULE))


def way_of(world: RestartWorld, number: int = 0) -> Way:
    way = world.ports[number].exchange.line
    assert isinstance(way, Way)
    return way


def test_a_request_keeps_its_bytes_and_grows_at_the_same_address_through_the_next_incarnation(
    world: RestartWorld,
) -> None:
    memory = world.memory(world.open_port(), 3 * TOKENS)
    stamp(memory, b"before")
    address = memory.address
    world.die()
    assert read(memory, 6) == b"before"
    world.all_in_touch()
    assert (world.granules("foreign"), world.granules("request")) == (3, 0)
    memory.commit(5 * TOKENS, memory.grant(5 * TOKENS))
    stamp(memory, b"after", at=4 * GRANULE)
    assert (memory.address, read(memory, 6), read(memory, 5, at=4 * GRANULE)) == (address, b"before", b"after")
    assert (world.granules("foreign"), world.granules("request")) == (3, 2)
    memory.close()
    assert world.granules("free") == CAPACITY


def test_what_survivors_have_is_charged_before_they_register_and_until_they_die(world: RestartWorld) -> None:
    port = world.open_port()
    world.memory(port, 7 * TOKENS)
    world.die()
    assert world.granules("foreign") == 7
    world.service.gone(port.session)
    assert world.granules("free") == CAPACITY
    port.memories()[0].holdings.end()
    world.ports.clear()


def test_nobody_gets_what_clients_still_have_of_the_incarnation_before(world: RestartWorld) -> None:
    first = world.memory(world.open_port(), 16 * TOKENS)
    seconds = [world.memory(world.open_port(), 16 * TOKENS) for _ in range(3)]
    world.die()
    world.all_in_touch()
    late = world.memory(world.open_port(), 0)
    with pytest.raises(OutOfBudget):
        late.grant(TOKENS)
    first.release()
    late.commit(TOKENS, late.grant(TOKENS))
    assert world.granules("foreign") == 48
    for memory in seconds:
        memory.close()
    assert world.granules("foreign") == 0


def test_a_commit_that_ran_and_was_not_answered_before_the_death_is_as_if_it_had_never_been(
    world: RestartWorld,
) -> None:
    memory = world.memory(world.open_port(), TOKENS)
    way_of(world).loses_replies = True
    pending = world.ports[0].submit([Grow(memory, 4 * TOKENS)])
    world.die()
    [outcome] = pending.settle()
    assert isinstance(outcome.error, DeviceUnreachable)
    world.all_in_touch()
    assert (memory.tokens, world.granules("foreign"), world.granules("request")) == (TOKENS, 1, 0)
    memory.commit(4 * TOKENS, memory.grant(4 * TOKENS))
    assert (memory.tokens, world.granules("request")) == (4 * TOKENS, 3)


def test_what_was_unmapped_for_a_release_that_nobody_answered_is_not_registered(world: RestartWorld) -> None:
    memory = world.memory(world.open_port(), 4 * TOKENS)
    way_of(world).loses_replies = True
    pending = world.ports[0].submit([Shed(memory)])
    world.die()
    [outcome] = pending.settle()
    assert outcome.error is None
    world.all_in_touch()
    assert (memory.tokens, world.granules("free")) == (0, CAPACITY)


def test_a_request_that_holds_nothing_keeps_its_place_in_the_queue(world: RestartWorld) -> None:
    port = world.open_port()
    older, younger = world.memory(port, TOKENS), world.memory(port, TOKENS)
    older.release()
    arrivals = (older.arrival, younger.arrival)
    world.die()
    world.all_in_touch()
    newest = world.memory(port, TOKENS)
    assert (older.arrival, younger.arrival) == arrivals
    assert (newest.arrival or 0) > max(arrival or 0 for arrival in arrivals)


def test_an_old_prefix_stays_readable_is_charged_once_and_goes_with_its_last_reader(world: RestartWorld) -> None:
    publisher, reader = world.memory(world.open_port(), 5 * TOKENS), world.memory(world.open_port(), 0)
    stamp(publisher, b"shared")
    prefix = publisher.publish(5 * TOKENS)
    reader.join(prefix, 5 * TOKENS)
    world.die()
    world.all_in_touch()
    assert (read(reader, 6), world.granules("foreign")) == (b"shared", 5)
    reader.commit(6 * TOKENS, reader.grant(6 * TOKENS))
    publisher.close()
    assert (read(reader, 6), world.granules("foreign")) == (b"shared", 5)
    reader.close()
    assert world.granules("free") == CAPACITY


@pytest.mark.parametrize("is_executed", [True, False], ids=["sealed", "not-sealed"])
def test_a_device_that_dies_in_a_publication_takes_no_row_along(world: RestartWorld, is_executed: bool) -> None:
    memory = world.memory(world.open_port(), 5 * TOKENS)
    stamp(memory, b"written")
    port = world.ports[0]
    [planned] = port.submit([Publish(memory, 4 * TOKENS)]).settle()
    assert planned.error is None
    if not is_executed:
        world.die()
    way_of(world).loses_replies = True
    pending = port.submit([Seal(memory)])
    if is_executed:
        world.die()
    world.all_in_touch()
    [outcome] = pending.settle()
    assert isinstance(outcome.error, DeviceUnreachable)
    assert (read(memory, 7), memory.tokens, world.granules("foreign")) == (b"written", 5 * TOKENS, 5)
    memory.commit(6 * TOKENS, memory.grant(6 * TOKENS))
    memory.close()
    assert world.granules("free") == CAPACITY


def test_a_plan_of_an_earlier_incarnation_is_not_sealed_and_no_row_is_unmapped_for_it(world: RestartWorld) -> None:
    memory = world.memory(world.open_port(), 5 * TOKENS)
    stamp(memory, b"written")
    world.ports[0].submit([Publish(memory, 4 * TOKENS)]).settle()
    world.die()
    world.all_in_touch()
    with pytest.raises(ValueError, match="groups"):
        world.ports[0].submit([Seal(memory), unsayable(world)])
    assert memory.holdings.publication is not None  # nothing of that frame was done
    [outcome] = world.ports[0].submit([Seal(memory)]).settle()
    assert isinstance(outcome.error, NotShareable)
    memory.commit(6 * TOKENS, memory.grant(6 * TOKENS))
    assert (read(memory, 7), memory.tokens) == (b"written", 6 * TOKENS)


def test_survivors_of_one_prefix_may_claim_more_than_there_is_until_they_register(world: RestartWorld) -> None:
    publisher = world.memory(world.open_port(), 16 * TOKENS)
    prefix = publisher.publish(16 * TOKENS)
    for _ in range(5):
        world.memory(world.open_port(), 0).join(prefix, 16 * TOKENS)
    world.die()
    assert world.granules("free") == 0
    world.all_in_touch()
    assert (world.granules("foreign"), world.granules("free")) == (16, CAPACITY - 16)


def test_memory_of_an_earlier_incarnation_is_not_shared_and_leaves_nothing_for_others(world: RestartWorld) -> None:
    memory = world.memory(world.open_port(), 5 * TOKENS)
    world.die()
    world.all_in_touch()
    with pytest.raises(NotShareable) as refused:
        memory.publish(5 * TOKENS)
    assert refused.value.kind == Refusal.FOREIGN
    assert memory.close(retain_tokens=5 * TOKENS) is None
    assert world.granules("free") == CAPACITY


def test_a_second_death_keeps_what_both_incarnations_gave(world: RestartWorld) -> None:
    memory = world.memory(world.open_port(), 2 * TOKENS)
    stamp(memory, b"first")
    world.die()
    world.all_in_touch()
    memory.commit(4 * TOKENS, memory.grant(4 * TOKENS))
    stamp(memory, b"second", at=3 * GRANULE)
    world.die()
    world.all_in_touch()
    assert (read(memory, 5), read(memory, 6, at=3 * GRANULE)) == (b"first", b"second")
    assert world.granules("foreign") == 4
    memory.release()
    memory.commit(TOKENS, memory.grant(TOKENS))
    assert (world.granules("foreign"), world.granules("request")) == (0, 1)


def test_a_device_that_dies_between_its_reply_and_the_redemption_is_lost_and_gave_nothing(world: RestartWorld) -> None:
    port = world.open_port()
    memory = world.memory(port, 2 * TOKENS)
    world.dies_at_redeem = True
    [outcome] = port.submit([Grow(memory, 4 * TOKENS)]).settle()
    assert isinstance(outcome.error, DeviceUnreachable)
    assert (port.is_lost, port.traffic.redemptions, memory.tokens) == (True, 1, 2 * TOKENS)
    world.dies_at_redeem = False
    world.all_in_touch()
    [outcome] = port.submit([Grow(memory, 4 * TOKENS)]).settle()
    assert (outcome.error, port.is_lost, port.traffic.redemptions, memory.tokens) == (None, False, 2, 4 * TOKENS)
    assert (world.granules("foreign"), world.granules("request")) == (2, 2)


def test_a_device_that_dies_while_its_clients_register_hears_all_of_it_at_the_next_birth(world: RestartWorld) -> None:
    memory = world.memory(world.open_port(), 2 * TOKENS)
    world.die()
    while world.ports[0].exchange.is_lost is False:
        world.ports[0].in_touch()
    world.die()
    world.all_in_touch()
    assert (memory.tokens, world.granules("foreign")) == (2 * TOKENS, 2)


@pytest.mark.parametrize(
    ("runs", "prefixes"),
    [
        ((wire.Run(group=0, fragment=0, start=15, count=2),), ()),
        ((wire.Run(group=1, fragment=0, start=0, count=1),), ()),
        ((wire.Run(group=0, fragment=1, start=0, count=1),), ()),
        ((wire.Run(group=0, fragment=0, start=0, count=2), wire.Run(group=0, fragment=0, start=1, count=1)), ()),
        (
            (wire.Run(group=0, fragment=0, start=1, count=1),),
            (wire.OldPrefix(epoch=1, prefix=1, runs=(wire.Run(group=0, fragment=0, start=0, count=2),)),),
        ),
        (
            (),
            (
                wire.OldPrefix(epoch=1, prefix=1, runs=(wire.Run(group=0, fragment=0, start=0, count=2),)),
                wire.OldPrefix(epoch=1, prefix=1, runs=(wire.Run(group=0, fragment=0, start=2, count=2),)),
            ),
        ),
    ],
    ids=["beyond-the-end", "no-such-group", "no-such-fragment", "twice", "inside-a-prefix", "a-prefix-twice"],
)
def test_windows_that_a_request_cannot_have_are_not_registered(
    world: RestartWorld, runs: tuple[wire.Run, ...], prefixes: tuple[wire.OldPrefix, ...]
) -> None:
    memory = world.memory(world.open_port(), TOKENS)
    memory.release()
    exchange = world.ports[0].exchange
    key = wire.RequestKey(number=memory.request.number)
    register = wire.Register(request=key, arrival=1, runs=runs, prefixes=prefixes)
    [result] = exchange.receive(exchange.send([register])).results
    assert result.fault is not None
    assert isinstance(error_of(result.fault), NotAllowed)
    assert world.granules("free") == CAPACITY


def test_a_device_that_knows_a_client_under_another_name_hears_that_nothing_is_left_of_the_first(
    world: RestartWorld,
) -> None:
    port = world.open_port()
    memory, new = world.memory(port, 4 * TOKENS), world.memory(port, 0)
    before = port.session
    world.uses_names_up = True
    world.die()
    with pytest.raises(SessionEnded):
        world.all_in_touch()
    assert (memory.state, new.state, port.memories()) == (MemoryState.CLOSED, MemoryState.CLOSED, ())
    assert (port.session != before, port.in_touch()) == (True, True)
    assert world.granules("free") == CAPACITY


def test_a_device_that_comes_back_with_other_granules_is_left_alone(world: RestartWorld) -> None:
    port = world.open_port()
    memory = world.memory(port, 4 * TOKENS)
    stamp(memory, b"mine")
    before = port.welcome
    world.die(granule_bytes=2 * GRANULE)
    with pytest.raises(DeviceUnreachable, match="granules"):
        world.all_in_touch()
    assert (port.welcome, read(memory, 4), way_of(world).is_open) == (before, b"mine", False)
    memory.holdings.end()
    world.ports.clear()


@pytest.mark.parametrize("verb", ["release", "close"])
def test_giving_back_that_was_meant_for_a_dead_incarnation_reaches_nothing_of_the_next(
    world: RestartWorld, verb: str
) -> None:
    """The client's number and name are those of a request that the next incarnation knows too."""
    memory = world.memory(world.open_port(), 4 * TOKENS)
    stamp(memory, b"mine")
    key = wire.RequestKey(number=memory.request.number)
    runs = (wire.Run(group=0, fragment=0, start=0, count=4),)
    back: wire.Operation = wire.Release(request=key, runs=runs, outcome="clean")
    if verb == "close":
        back = wire.Close(request=key)
    late = encode(wire.Frame(session=world.ports[0].session, seq=9, ack=0, epoch=1, ops=(back,)))
    world.die()
    world.all_in_touch()
    reply = decode_reply(world.service.frame(late))
    assert reply.fault is not None
    assert isinstance(error_of(reply.fault), StaleEpoch)
    assert (world.granules("foreign"), read(memory, 4), memory.tokens) == (4, b"mine", 4 * TOKENS)


def test_what_is_freed_pays_what_is_owed_before_anybody_else_has_it(world: RestartWorld) -> None:
    """Two survivors of one prefix claim more than there is; one registers and leaves it, the other is slow."""
    publisher = world.memory(world.open_port(), 16 * TOKENS)
    prefix = publisher.publish(16 * TOKENS)
    others = [world.memory(world.open_port(), 0) for _ in range(5)]
    for other in others:
        other.join(prefix, 16 * TOKENS)
    world.die()
    world.in_touch(world.ports[0])
    publisher.close()
    assert world.granules("free") == 0
    late = world.memory(world.open_port(), 0)
    with pytest.raises(OutOfBudget):
        late.grant(TOKENS)
    world.all_in_touch()
    assert (world.granules("foreign"), world.granules("free")) == (16, CAPACITY - 16)


def test_a_device_that_dies_between_two_frames_of_a_registration_leaves_all_of_it_to_the_next(
    world: RestartWorld,
) -> None:
    port = world.open_port(most_registered=1)
    memories = [world.memory(port, 4 * TOKENS) for _ in range(3)]
    world.die()
    world.limit_frames(2)  # the new device dies after the second frame
    assert not world.look(port)
    assert world.granules("foreign") == 12
    world.all_in_touch()
    assert world.granules("foreign") == 12
    for memory in memories:
        memory.close()
    assert world.granules("free") == CAPACITY


@pytest.mark.parametrize("outcome", ["clean", "quarantined"])
def test_foreign_windows_that_may_still_be_mapped_are_charged_through_the_next_death_too(
    world: RestartWorld, outcome: str
) -> None:
    memory = world.memory(world.open_port(), 4 * TOKENS)
    world.die()
    world.all_in_touch()
    exchange, runs = world.ports[0].exchange, (wire.Run(group=0, fragment=0, start=0, count=4),)
    key = wire.RequestKey(number=memory.request.number)
    release = wire.Release.model_validate({"request": key, "runs": runs, "outcome": outcome})
    exchange.receive(exchange.send([release]))
    row = world.table.rows[world.ports[0].session]
    assert row == (4 * GRANULE if outcome == "quarantined" else 0)
    memory.holdings.end()
    memory.closed()
    world.ports.clear()
    world.die()
    assert world.granules("foreign") == row // GRANULE


@pytest.mark.parametrize("death", ["dies_at_surrender", "dies_of_surrender"])
def test_a_session_that_was_given_up_is_free_though_its_device_died_before_it_heard_so(
    world: RestartWorld, death: str
) -> None:
    port = world.open_port()
    world.memory(port, 4 * TOKENS)
    world.fence()
    setattr(world, death, True)
    with pytest.raises(SessionEnded):
        world.in_touch(port)
    assert world.granules("foreign") == 4
    world.all_in_touch()
    assert (world.granules("free"), len(world.service.audit().sessions)) == (CAPACITY, 1)
