"""A find beside what else its group asks: all or nothing, no pin and no mark left; and who is told to publish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvcluster.errors import NeverFits, NotAllowed, OutOfBudget
from kvcluster.wire import messages as wire
from tests.services.device_world import (
    EVERY,
    GRANULE,
    ROOT,
    WITH_RING,
    Device,
    DeviceWorld,
    Request,
    kind,
    refused,
    windows,
)
from tests.services.sharing.conftest import OpenWorld
from tests.services.sharing.finders import IDS, beside, looking, ringed, written

# --- in what state ----------------------------------------------------------------------------------------------------


def test_whoever_holds_or_uses_something_does_not_look(world: DeviceWorld) -> None:
    owner = written(world, 64)
    prefix = owner.share(64)
    user = looking(world)
    user.join(prefix, 64)
    before = world.claims()
    for request in (owner, user):
        refused(NotAllowed, lambda request=request: request.find(IDS))
    assert world.claims() == before
    assert owner.client.ask(owner.leave_op(prefix))
    assert owner.find(IDS).prefix == prefix  # it holds nothing any more


@pytest.mark.parametrize("ids", [b"\0" * 5, b"\0" * 4 * 257])
def test_what_are_no_ids_or_too_many_is_refused_and_changes_nothing(world: DeviceWorld, ids: bytes) -> None:
    request = looking(world)
    before = world.claims()
    refused(NotAllowed, lambda: request.client.ask(wire.Find(request=request.key, token_ids=ids)))
    assert (world.claims(), world.seen().lookups) == (before, 0)


def test_a_find_comes_first_in_its_group(world: DeviceWorld) -> None:
    request = looking(world)
    refused(NotAllowed, lambda: request.client.ask(*request.grow_ops(16, 1), request.find_op(IDS)))
    refused(NotAllowed, lambda: request.client.ask(request.find_op(IDS), request.find_op(IDS)))
    refused(NotAllowed, lambda: request.client.ask(request.find_op(IDS), request.close_op()))


def pages_ops(request: Request) -> Sequence[wire.Operation]:
    key = request.key
    return (
        wire.Fork(request=key, children=(wire.RequestKey(number=99),), tokens=1),
        wire.Permute(request=key, members=(key,), parents=(0,), tokens=1),
        wire.Share(request=key, tokens=1),
        wire.Drop(request=key),
    )


@pytest.mark.parametrize("verb", range(4))
def test_a_verb_of_host_pages_is_refused_by_a_device_with_its_name(world: DeviceWorld, verb: int) -> None:
    owner = written(world, 64)
    operation, before = pages_ops(owner)[verb], world.claims()
    error = refused(NotAllowed, lambda: owner.client.ask(operation))
    assert str(error) == f"{operation.verb} is for host pages, and this is a device"
    assert world.claims() == before


# --- one step ---------------------------------------------------------------------------------------------------------


def test_a_find_its_grant_and_its_commit_are_one_group_whole_or_not_at_all(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    number = written(world, 64).close(64)
    hog = world.client().open()
    hog.grow(128, 8)
    request = looking(world)
    before, figures = world.claims(), world.seen()
    refused(OutOfBudget, lambda: request.client.ask(request.find_op(IDS), *beside(request, 224)))
    assert world.claims()[0] == before[0]
    assert (world.seen().lookups, world.seen().found_tokens) == (figures.lookups, figures.found_tokens)
    assert world.seen().prefixes[number or 0].users == 0
    found, _, committed = request.client.ask(request.find_op(IDS), *beside(request, 112))
    assert isinstance(found, wire.Found)
    assert isinstance(committed, wire.Committed)
    assert (found.prefix, found.tokens, committed.runs) == (number, 64, (windows(4, 3),))
    assert len(request.client.handles()) == 7


def test_what_was_found_is_not_evicted_by_the_grant_beside_it(open_device: OpenWorld) -> None:
    """Eviction frees what is idle alone: not what the same group has just begun to use, nor what that builds on."""
    world = open_device(Device(capacity=16))
    written(world, 64).close(64)
    child = looking(world)
    found = child.find(IDS[:128])
    child.grow(128, 4)
    child.client.ask(child.leave_op(found.prefix), child.close_op(128))
    other = written_other(world)
    assert (world.granules("retained"), world.granules("free")) == (12, 4)
    request = looking(world)
    found_ops = request.client.ask(request.find_op(IDS[:130]), *beside(request, 256))
    assert isinstance(found_ops[0], wire.Found)
    assert found_ops[0].tokens == 128
    assert other not in world.seen().prefixes
    assert (world.granules("prefix"), world.granules("request")) == (8, 8)


def written_other(world: DeviceWorld) -> int | None:
    """Four granules of other tokens, retained."""
    other = looking(world)
    other.find([5] * 64)
    other.grow(64, 4)
    return other.close(64)


def test_a_client_that_ends_right_after_its_find_leaves_no_pin(world: DeviceWorld) -> None:
    number = written(world, 64).close(64)
    assert number is not None
    for end in (world.service.disconnected, world.service.gone):
        request = looking(world)
        request.find(IDS)
        assert world.seen().prefixes[number].users == 1
        end(request.client.session)
        world.service.gone(request.client.session)
        seen = world.seen().prefixes[number]
        assert (seen.users, seen.pins, world.granules("retained")) == (0, 0, 4)


def test_a_number_used_again_while_its_first_life_ends_is_another_request(world: DeviceWorld) -> None:
    """The first life's tokens and its join are not the second's."""
    prefix = written(world, 64).close(64) or 0
    client = world.client()
    first = client.open(root=ROOT)
    client.ask(first.find_op(IDS), *beside(first, 96))
    client.ask(first.leave_op(prefix, "quarantined"), first.close_op())
    client.ask(wire.Open(request=first.key, groups=EVERY, max_tokens=64, cache_root=ROOT))
    assert (world.granules("quarantine"), world.seen().prefixes[prefix].pins) == (2, 1)
    first.grow(64, 4)
    assert first.close(64) is not None
    assert world.seen().listed_prefixes == 1  # the second life's tokens were never named
    world.service.gone(client.session)
    assert world.seen().prefixes[prefix].pins == 0


def test_what_was_evicted_is_not_found_whatever_lies_there_now(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    gone = written(world, 64).close(64)
    hog = world.client().open()
    hog.grow(256, 16)
    assert looking(world).find(IDS) == wire.Found()
    hog.release(windows(0, 16))
    number = written(world, 64).close(64)
    assert number not in (gone, None)
    assert looking(world).find(IDS).prefix == number


def test_more_tokens_than_ever_fit_are_refused_with_nothing_joined(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    number = written(world, 64).close(64)
    request = looking(world)
    too_much = wire.Grant(request=request.key, grant=1, size_bytes=17 * GRANULE)
    refused(NeverFits, lambda: request.client.ask(request.find_op(IDS), too_much))
    assert world.seen().prefixes[number or 0].users == 0


# --- rings ------------------------------------------------------------------------------------------------------------


def test_with_a_ring_the_second_is_told_what_is_known_and_the_third_joins_what_it_published(world: DeviceWorld) -> None:
    ringed(world.client(), 96).close(96)
    second = world.client().open(WITH_RING, root=ROOT)
    assert second.find([*IDS[:70], *[7] * 30]) == wire.Found(known=64)
    second.grow(96, 11, snapshot=True)
    number = second.share(64)
    third = world.client().open(WITH_RING, root=ROOT)
    found = third.find([*IDS[:90]])
    assert (found.prefix, found.tokens, found.known) == (number, 63, 80)


def test_one_open_request_at_a_time_is_told_to_publish(world: DeviceWorld) -> None:
    ringed(world.client(), 96).close(96)
    one, two, three = (world.client().open(WITH_RING, root=ROOT) for _ in range(3))
    assert one.find(IDS[:96]).known == 96
    assert two.find(IDS[:96]).known == 0
    one.close()
    assert three.find(IDS[:96]).known == 96
    world.service.disconnected(three.client.session)
    assert world.client().open(WITH_RING, root=ROOT).find(IDS[:96]).known == 96


def test_who_looks_again_does_not_take_itself_for_another(world: DeviceWorld) -> None:
    request = world.client().open(WITH_RING, root=ROOT)
    assert request.find(IDS[:96]).known == 0
    assert request.find([*IDS[:96], 1, 2]).known == 0


def test_a_group_that_is_refused_leaves_no_mark(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=24))
    ringed(world.client(), 96).close()
    hog = world.client().open()
    hog.grow(160, 10)
    one, two = (world.client().open(WITH_RING, root=ROOT) for _ in range(2))
    refused(OutOfBudget, lambda: one.client.ask(one.find_op(IDS[:160]), *beside(one, 160)))
    assert two.find(IDS[:160]).known == 96  # neither claimed by the first, nor as far as that would have computed


def test_several_boundaries_of_one_prompt_are_found_each_by_who_has_it(world: DeviceWorld) -> None:
    twin, owner = ringed(world.client(), 96), ringed(world.client(), 96)
    near = owner.share(48)
    owner.grow(96, 2, snapshot=True)
    far = owner.share(96)
    assert world.client().open(WITH_RING, root=ROOT).find([*IDS[:90], 1]).prefix == near
    assert world.client().open(WITH_RING, root=ROOT).find(IDS).prefix == far
    assert kind(lambda: twin.publish(48)) == "already-shared"
    assert kind(lambda: twin.publish(96)) == "already-shared"
    assert twin.publish(80).prefix > far  # a boundary of its own


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_figures_say_how_often_somebody_looked_and_what_it_spared(world: DeviceWorld) -> None:
    written(world, 64).close(64)
    looking(world).find(IDS[:100])
    seen = world.seen()
    assert (seen.lookups, seen.asked_tokens, seen.found_tokens, seen.listed_prefixes) == (2, 164, 64, 1)
