"""Who may join a prefix, what it gets, and what it pays: by granules, by tenants, and with rings."""

from __future__ import annotations

import pytest

from kvcluster.errors import NeverFits, NotAllowed, NotShareable, OutOfBudget
from kvcluster.wire import messages as wire
from tests.services.device_world import GRANULE, WITH_RING, Device, DeviceWorld, Request, kind, refused, windows
from tests.services.sharing.conftest import OpenWorld

# --- join -------------------------------------------------------------------------------------------------------------


def test_joiners_map_the_same_handles_and_the_prefix_is_billed_once(world: DeviceWorld, owner: Request) -> None:
    prefix = owner.share(70)
    handles = owner.client.handles()
    for _ in range(16):
        joiner = world.client().open()
        joined = joiner.join(prefix, 70)
        assert (joined.tokens, joined.runs, joined.additional_owned_bytes) == (64, (windows(0, 4),), 0)
        assert joiner.client.handles() == handles
    assert (world.granules("request"), world.granules("prefix"), world.granules("free")) == (2, 4, 58)
    assert world.seen().prefixes[prefix].users == 17


def test_a_join_its_grant_and_its_commit_are_one_group_whole_or_not_at_all(world: DeviceWorld, prefix: int) -> None:
    joiner = world.client().open(max_tokens=64 * 16)
    before = world.claims()
    too_much = joiner.grow_ops(64 * 16, 60)
    refused(OutOfBudget, lambda: joiner.client.ask(joiner.join_op(prefix, 70), *too_much))
    assert world.claims() == before
    assert world.seen().prefixes[prefix].users == 1
    _, _, committed = joiner.client.ask(joiner.join_op(prefix, 70), *joiner.grow_ops(90, 2))
    assert isinstance(committed, wire.Committed)
    assert committed.runs == (windows(4, 2),)
    assert len(joiner.client.handles()) == 6


@pytest.mark.parametrize(
    ("equal", "count", "first"), [(70, 4, 64), (64, 4, 63), (63, 3, 48), (17, 1, 16), (500, 4, 64)]
)
def test_a_shorter_match_joins_the_whole_granules_inside_it(
    world: DeviceWorld, prefix: int, equal: int, count: int, first: int
) -> None:
    joined = world.client().open(max_tokens=512).join(prefix, equal)
    assert (joined.runs, joined.tokens) == ((windows(0, count),), first)


def test_a_match_of_less_than_a_granule_is_refused_and_nothing_changes(world: DeviceWorld, prefix: int) -> None:
    joiner = world.client().open()
    before = world.claims()
    assert kind(lambda: joiner.join(prefix, 15)) == "smaller-than-a-granule"
    assert world.claims() == before
    assert dict(world.seen().sharing_refusals) == {"smaller-than-a-granule": 1}


def test_a_match_that_ends_inside_a_bulk_handle_joins_the_whole_ones_before_it(open_device: OpenWorld) -> None:
    world = open_device(Device(bulk=4))
    owner = world.client().open()
    owner.grow(128, 8)
    prefix = owner.share(128)
    assert world.client().open().join(prefix, 127).runs == (windows(0, 4),)
    assert kind(lambda: world.client().open().join(prefix, 63)) == "smaller-than-a-granule"


def test_another_tenant_and_another_shape_are_told_the_same_as_of_a_prefix_that_never_was(
    world: DeviceWorld, prefix: int
) -> None:
    mine, theirs = world.client().open(WITH_RING), world.client("acme").open()
    said = [refused(NotShareable, lambda r=r, n=n: r.join(n, 70)) for r, n in ((mine, prefix), (theirs, prefix))]
    never = refused(NotShareable, lambda: theirs.join(prefix + 1, 70))
    assert {str(error) for error in said} == {f"there is no such prefix: {prefix}"}
    assert str(never) == f"there is no such prefix: {prefix + 1}"


def test_whoever_holds_or_uses_something_does_not_join(world: DeviceWorld, owner: Request, prefix: int) -> None:
    holder, user = world.client().open(), world.client().open()
    holder.grow(16, 1)
    user.join(prefix, 70)
    before = world.claims()
    for request in (owner, holder, user):
        refused(NotAllowed, lambda request=request: request.join(prefix, 70))
    assert world.claims() == before


def test_a_joiner_is_told_that_it_never_fits_by_what_it_shares_too(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    owner = world.client().open()
    owner.grow(160, 10)
    joiner = world.client().open()
    joiner.join(owner.share(160), 160)
    refused(NeverFits, lambda: joiner.grow(256, 7))


# --- rings ------------------------------------------------------------------------------------------------------------


def test_with_a_ring_a_snapshot_is_committed_published_and_joined_at_its_boundary_alone(world: DeviceWorld) -> None:
    owner = world.client().open(WITH_RING)
    owner.grow(96, 9)
    refused(NotAllowed, lambda: owner.publish(70))  # no snapshot
    assert owner.grow(96, 2, snapshot=True) == (windows(0, 2, 2),)
    prefix = owner.share(70)
    assert world.granules("prefix") == 6
    assert kind(lambda: world.client().open(WITH_RING).join(prefix, 64)) == "no-boundary"
    joiner = world.client().open(WITH_RING)
    joined = joiner.join(prefix, 65)
    assert (joined.tokens, joined.runs) == (64, (windows(0, 4), windows(0, 2, 2)))
    assert joiner.grow(65, 4) == (windows(4, 1), windows(0, 3, 1))  # its ring is its own


def test_a_joiner_s_own_snapshot_takes_the_place_of_the_one_that_it_read(world: DeviceWorld) -> None:
    owner = world.client().open(WITH_RING)
    owner.grow(96, 11, snapshot=True)
    first = owner.share(70)
    joiner = world.client().open(WITH_RING)
    joiner.client.ask(joiner.join_op(first, 70), *joiner.grow_ops(140, 8))
    assert joiner.grow(140, 2, snapshot=True) == (windows(0, 2, 2),)
    second = joiner.share(130)
    last = world.client().open(WITH_RING)
    assert last.join(second, 130).runs == (windows(0, 8), windows(0, 2, 2))
    assert last.client.handles()[4:] == joiner.client.handles()


def test_nothing_of_a_ring_is_retained_but_what_was_published(world: DeviceWorld) -> None:
    owner = world.client().open(WITH_RING)
    owner.grow(96, 11, snapshot=True)
    prefix = owner.share(70)
    owner.client.ask(owner.release_op(windows(0, 3, 1)), owner.leave_op(prefix), owner.close_op(96))
    assert (world.granules("retained"), world.granules("free"), world.granules("quarantine")) == (6, 58, 0)
    assert world.client().open(WITH_RING).join(prefix, 96).tokens == 64


def test_statistics_say_what_is_shared_by_whom_and_why_not(world: DeviceWorld, prefix: int) -> None:
    joiner = world.client().open()
    joiner.join(prefix, 70)
    kind(lambda: world.client().open().join(99, 70))
    seen = world.seen()
    assert (seen.prefixes[prefix].tokens, seen.prefixes[prefix].size_bytes) == (70, 4 * GRANULE)
    assert (seen.prefixes[prefix].users, seen.prefixes[prefix].state) == (2, "sealed")
    assert dict(seen.sharing_refusals) == {"no-such-prefix": 1}
    assert dict(seen.tenants) == {"": 6 * GRANULE}
    assert seen.committed_bytes == 2 * GRANULE
