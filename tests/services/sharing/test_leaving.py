"""When a prefix's memory goes: with its last user, and never before whoever may have it mapped is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import KvClusterError, NeverFits, NotAllowed, NotShareable
from kvcluster.wire import messages as wire
from tests.services.device_world import WITH_RING, Client, DeviceWorld, Request, kind, refused, windows


def test_bytes_go_when_the_last_user_has_left(world: DeviceWorld, owner: Request, prefix: int) -> None:
    joiners = [world.client().open() for _ in range(3)]
    for joiner in joiners:
        joiner.join(prefix, 70)
    owner.client.ask(owner.release_op(windows(4, 2)), owner.leave_op(prefix), owner.close_op())
    for joiner in joiners:
        assert (world.granules("prefix"), world.granules("free")) == (4, 60)
        joiner.leave(prefix)
    assert (world.granules("prefix"), world.granules("free")) == (0, 64)
    assert kind(lambda: joiners[0].join(prefix, 70)) == "no-such-prefix"


def test_sealed_memory_is_never_pooled(world: DeviceWorld, owner: Request, prefix: int) -> None:
    owner.client.ask(owner.release_op(windows(4, 2)), owner.leave_op(prefix))
    assert world.pooled() == 2
    assert world.service.statistics().driver_calls["release"] == 4


def test_who_left_may_join_again_once_it_holds_nothing(world: DeviceWorld, owner: Request, prefix: int) -> None:
    joiner = world.client().open()
    joiner.client.ask(joiner.join_op(prefix, 70), *joiner.grow_ops(90, 2))
    joiner.client.ask(joiner.release_op(windows(4, 2)), joiner.leave_op(prefix))
    assert joiner.join(prefix, 70).tokens == 64


def test_the_owners_death_leaves_the_joiners_what_they_joined(world: DeviceWorld, owner: Request, prefix: int) -> None:
    joiner = world.client().open()
    joiner.join(prefix, 70)
    handles = joiner.client.handles()
    world.service.disconnected(owner.client.session)
    assert (world.granules("prefix"), world.granules("quarantine")) == (4, 2)
    assert world.seen().prefixes[prefix].pins == 1
    world.service.gone(owner.client.session)
    assert (world.granules("prefix"), world.granules("quarantine"), world.granules("free")) == (4, 0, 60)
    assert joiner.client.handles() == handles
    assert world.client().open().join(prefix, 70).tokens == 64
    joiner.leave(prefix)
    assert world.granules("prefix") == 4  # the third one


@pytest.mark.parametrize("end", ["leave", "close", "disconnect"])
def test_whoever_may_still_have_it_mapped_keeps_it_until_that_process_is_gone(
    world: DeviceWorld, owner: Request, prefix: int, end: str
) -> None:
    joiner = world.client().open()
    joiner.join(prefix, 70)
    owner.leave(prefix)
    ends: dict[str, Callable[[], object]] = {
        "leave": lambda: joiner.leave(prefix, "quarantined"),
        "close": joiner.close,
        "disconnect": lambda: world.service.disconnected(joiner.client.session),
    }
    ends[end]()
    seen = world.seen().prefixes[prefix]
    assert (seen.users, seen.pins) == (0, 1)
    assert world.granules("prefix") == 4
    world.service.gone(joiner.client.session)
    assert world.granules("prefix") == 0
    assert not world.seen().prefixes


def test_an_orphan_that_only_shares_is_waited_for(world: DeviceWorld, owner: Request, prefix: int) -> None:
    joiner = world.client().open()
    joiner.join(prefix, 70)
    world.service.disconnected(joiner.client.session)
    assert world.seen().sessions[joiner.client.session] == "orphaned"


def test_a_ticket_of_shared_handles_is_good_until_that_request_leaves(world: DeviceWorld, prefix: int) -> None:
    client = world.client()
    first, second = client.open(), client.open()
    first.join(prefix, 70)
    mine = client.seq
    second.join(prefix, 70)
    other = client.seq
    first.leave(prefix)
    refused(NotAllowed, lambda: client.service.handles(client.session, mine))
    assert len(client.service.handles(client.session, other)) == 4
    second.close()
    refused(NotAllowed, lambda: client.service.handles(client.session, other))


def test_leave_stands_before_close_and_joins_stand_first(world: DeviceWorld, owner: Request, prefix: int) -> None:
    joiner = world.client().open()
    for ops in (
        (joiner.grow_ops(16, 1)[0], joiner.join_op(prefix, 70)),
        (joiner.join_op(prefix, 70), joiner.leave_op(prefix)),
        (owner.close_op(), owner.leave_op(prefix)),
        (owner.leave_op(prefix), *owner.grow_ops(112, 1)),
        (wire.Publish(request=owner.key, tokens=96), owner.close_op()),
        (wire.Seal(request=owner.key, prefix=prefix), owner.close_op()),
    ):
        refused(NotAllowed, lambda ops=ops: ops[0].request and owner_of(ops, owner, joiner).ask(*ops))
    assert world.seen().prefixes[prefix].users == 1


def owner_of(ops: tuple[wire.Operation, ...], owner: Request, joiner: Request) -> Client:
    return owner.client if isinstance(ops[0], wire.Close | wire.Leave | wire.Publish | wire.Seal) else joiner.client


def test_a_join_and_a_seal_that_are_sent_again_are_done_once(world: DeviceWorld, owner: Request) -> None:
    published, client = owner.publish(70), owner.client
    seal = client.frame(wire.Seal(request=owner.key, prefix=published.prefix))
    first = client.service.frame(seal)
    joiner = world.client().open()
    join = joiner.client.frame(joiner.join_op(published.prefix, 70))
    second = joiner.client.service.frame(join)
    before, calls = world.claims(), len(world.driver.log())
    assert (client.service.frame(seal), joiner.client.service.frame(join)) == (first, second)
    assert (world.claims(), len(world.driver.log())) == (before, calls)
    assert world.seen().prefixes[published.prefix].users == 2


@pytest.mark.parametrize(
    "group",
    [
        wire.Group(fragments=1, stride_bytes=256, keeps="ring"),
        wire.Group(fragments=1, stride_bytes=256, keeps="snapshot"),
        wire.Group(fragments=1, stride_bytes=256, windows=3),
        wire.Group(fragments=1, stride_bytes=256, keeps="snapshot", windows=2**60),
        wire.Group(fragments=2**60, stride_bytes=256, keeps="snapshot", windows=1),
        wire.Group(fragments=2**60, stride_bytes=256, keeps="ring", windows=1),
    ],
)
def test_a_shape_that_cannot_be_is_refused_before_anything_is_built(world: DeviceWorld, group: wire.Group) -> None:
    before = world.claims()
    error = refused(KvClusterError, lambda: world.client().open((*WITH_RING[:1], group)))
    assert isinstance(error, NotAllowed | NeverFits)
    assert (world.claims(), world.seen().reserved_bytes) == (before, 0)


def test_absurd_figures_cost_nothing(world: DeviceWorld, prefix: int) -> None:
    fresh = world.client().open(max_tokens=256, shareable_tokens=2**62)
    before = world.claims()
    refused(NotShareable, lambda: fresh.join(2**62, 70))
    refused(NotAllowed, lambda: fresh.publish(2**62))
    refused(NotAllowed, lambda: fresh.join(prefix, 2**62))
    assert world.claims() == before
    assert fresh.close(2**62) is None
