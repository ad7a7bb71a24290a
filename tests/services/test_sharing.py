"""One physical prefix of many requests, at the device: who pays, who may join, and when its memory goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import KvClusterError, NeverFits, NotAllowed, NotShareable, OutOfBudget
from kvcluster.wire import messages as wire
from tests.services.device_world import GRANULE, WITH_RING, Client, Device, DeviceWorld, Request, refused, windows

OpenWorld = Callable[[Device], DeviceWorld]


@pytest.fixture
def open_device() -> Iterator[OpenWorld]:
    worlds: list[DeviceWorld] = []

    def open_one(device: Device) -> DeviceWorld:
        worlds.append(DeviceWorld(device))
        return worlds[-1]

    yield open_one
    for world in worlds:
        world.clear()


@pytest.fixture
def world(open_device: OpenWorld) -> DeviceWorld:
    return open_device(Device())


@pytest.fixture
def owner(world: DeviceWorld) -> Request:
    """A request with six windows, 96 tokens."""
    request = world.client().open()
    request.grow(96, 6)
    return request


@pytest.fixture
def prefix(owner: Request) -> int:
    """The first 70 tokens of it: four windows."""
    return owner.share(70)


def kind(act: object) -> str:
    error = refused(NotShareable, act)
    assert isinstance(error, NotShareable)
    assert error.reason.strip()
    return str(error.kind)


# --- publish and seal -----------------------------------------------------------------------------------------------


def test_a_plan_moves_nothing_and_a_seal_moves_whole_granules_to_the_prefix(world: DeviceWorld, owner: Request) -> None:
    before = world.claims()
    published = owner.publish(70)
    assert published.runs == (windows(0, 4),)
    assert world.claims() == before
    sealed = owner.seal(published.prefix)
    assert (sealed.runs, sealed.refusal) == (published.runs, None)
    assert (world.granules("request"), world.granules("prefix"), world.granules("free")) == (2, 4, 58)
    assert world.seen().handles["shared"] == 4 * GRANULE


def test_a_seal_hands_its_windows_over_again_in_window_order(owner: Request) -> None:
    first = owner.client.handles()
    owner.share(70)
    assert owner.client.handles() == first[:4]


def test_the_publisher_goes_on_growing_behind_what_it_shares(world: DeviceWorld, owner: Request, prefix: int) -> None:
    assert owner.grow(112, 1) == (windows(6, 1),)
    assert (world.granules("request"), world.granules("prefix")) == (3, 4)
    assert world.seen().prefixes[prefix].users == 1


def test_the_windows_of_a_prefix_are_nobodys_to_release(world: DeviceWorld, owner: Request, prefix: int) -> None:
    before = world.claims()
    refused(NotAllowed, lambda: owner.release(windows(3, 2)))
    assert world.claims() == before


@pytest.mark.parametrize("tokens", [1, 15])
def test_a_prefix_without_a_whole_granule_is_refused_with_the_figures(owner: Request, tokens: int) -> None:
    assert kind(lambda: owner.publish(tokens)) == "smaller-than-a-granule"


def test_tokens_without_memory_are_not_published(world: DeviceWorld, owner: Request) -> None:
    before = world.claims()
    refused(NotAllowed, lambda: owner.publish(112))
    refused(NotAllowed, lambda: owner.publish(17 * 16))
    assert world.claims() == before


def test_a_request_plans_one_prefix_at_a_time_and_may_give_it_up(world: DeviceWorld, owner: Request) -> None:
    first = owner.publish(70)
    refused(NotAllowed, lambda: owner.publish(90))
    owner.leave(first.prefix)
    assert owner.publish(90).prefix != first.prefix
    refused(NotAllowed, lambda: owner.seal(first.prefix))
    assert len(world.seen().prefixes) == 1


def test_a_window_given_back_ends_the_plan_that_it_belongs_to(world: DeviceWorld, owner: Request) -> None:
    published = owner.publish(70)
    owner.release(windows(5, 1))
    assert set(world.seen().prefixes) == {published.prefix}
    owner.release(windows(3, 1))
    assert not world.seen().prefixes
    refused(NotAllowed, lambda: owner.seal(published.prefix))


def test_a_plan_is_found_by_nobody_before_it_is_sealed(world: DeviceWorld, owner: Request) -> None:
    published = owner.publish(70)
    assert kind(lambda: world.client().open().join(published.prefix, 70)) == "no-such-prefix"


def test_a_bulk_handle_across_the_end_is_refused_and_single_ones_below_the_shareable_tokens_are_not(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(bulk=4))
    client = world.client()
    bulky, fine = client.open(), client.open(shareable_tokens=96)
    bulky.grow(128, 8)
    assert len(client.handles()) == 2
    assert "shareable tokens" in str(refused(NotShareable, lambda: bulky.publish(96)))
    bulky.share(64)
    assert len(client.handles()) == 1
    fine.grow(256, 16)
    assert len(client.handles()) == 6 + 2 + 2
    fine.share(96)
    assert len(client.handles()) == 6


def test_windows_of_a_bulk_handle_are_given_back_together(open_device: OpenWorld) -> None:
    world = open_device(Device(bulk=4))
    request = world.client().open()
    request.grow(96, 6)
    before = world.claims()
    refused(NotAllowed, lambda: request.release(windows(0, 2)))
    refused(NotAllowed, lambda: request.release(windows(3, 2)))
    assert world.claims() == before
    request.release(windows(0, 4))
    assert world.granules("request") == 2


# --- join -----------------------------------------------------------------------------------------------------------


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


# --- prefixes on prefixes -------------------------------------------------------------------------------------------


def test_a_joiner_publishes_what_lies_beyond_and_others_join_both_at_once(world: DeviceWorld, prefix: int) -> None:
    middle = world.client().open()
    middle.join(prefix, 70)
    shared = middle.client.handles()
    middle.grow(128, 4)
    second = middle.share(120)
    assert middle.client.handles() != shared
    own = middle.client.handles()
    assert len(own) == 3
    last = world.client().open()
    joined = last.join(second, 120)
    assert (joined.runs, joined.tokens) == ((windows(0, 7),), 112)
    assert last.client.handles() == [*shared, *own]
    assert world.granules("prefix") == 7


def test_a_prefix_lives_as_long_as_one_that_was_built_on_it(world: DeviceWorld, owner: Request, prefix: int) -> None:
    middle, last = world.client().open(), world.client().open()
    middle.join(prefix, 70)
    middle.grow(128, 4)
    second = middle.share(120)
    last.join(second, 120)
    owner.leave(prefix)
    refused(NotAllowed, lambda: middle.leave(prefix))  # the newest first
    middle.client.ask(middle.leave_op(second), middle.leave_op(prefix))
    assert set(world.seen().prefixes) == {prefix, second}
    last.leave(second)
    assert not world.seen().prefixes
    assert world.granules("prefix") == 0


def test_what_is_shared_already_is_not_published_again(owner: Request, prefix: int) -> None:
    assert kind(lambda: owner.publish(70)) == "smaller-than-a-granule"
    assert kind(lambda: owner.publish(40)) == "smaller-than-a-granule"
    assert owner.publish(96).runs == (windows(4, 2),)


# --- leave, and the end of whoever uses it --------------------------------------------------------------------------


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
    assert world.seen().prefixes[prefix].ghosts == 1
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
    assert (seen.users, seen.ghosts) == (0, 1)
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


# --- rings ----------------------------------------------------------------------------------------------------------


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


# --- what is retained -----------------------------------------------------------------------------------------------


def test_an_ended_request_s_whole_granules_stay_and_are_sealed_by_the_first_join(
    world: DeviceWorld, owner: Request
) -> None:
    handles = owner.client.handles()
    *_, closed = owner.client.ask(owner.release_op(windows(4, 2)), owner.close_op(70))
    assert isinstance(closed, wire.Closed)
    assert closed.prefix is not None
    assert (world.granules("retained"), world.seen().prefixes[closed.prefix].state) == (4, "writing")
    assert world.seen().retained_bytes == 4 * GRANULE
    joiner = world.client().open()
    assert joiner.join(closed.prefix, 70).tokens == 64
    assert joiner.client.handles() == handles[:4]
    assert (world.granules("retained"), world.granules("prefix")) == (0, 4)
    assert world.seen().prefixes[closed.prefix].state == "sealed"
    joiner.leave(closed.prefix)
    assert world.granules("retained") == 4


def test_what_is_retained_builds_on_what_was_joined_and_keeps_it(
    world: DeviceWorld, owner: Request, prefix: int
) -> None:
    joiner = world.client().open()
    joiner.client.ask(joiner.join_op(prefix, 70), *joiner.grow_ops(128, 4))
    owner.leave(prefix)
    *_, closed = joiner.client.ask(joiner.release_op(windows(7, 1)), joiner.leave_op(prefix), joiner.close_op(112))
    assert isinstance(closed, wire.Closed)
    assert closed.prefix is not None
    assert (world.granules("retained"), world.granules("prefix"), world.granules("quarantine")) == (7, 0, 0)
    assert world.client().open().join(closed.prefix, 112).runs == (windows(0, 7),)
    assert (world.granules("retained"), world.granules("prefix")) == (0, 7)


def test_too_few_tokens_to_help_anybody_are_freed(world: DeviceWorld, owner: Request) -> None:
    owner.release(windows(1, 5))
    assert owner.close(15) is None
    assert (world.granules("retained"), world.granules("quarantine")) == (0, 1)


def test_what_lies_behind_a_hole_is_freed_and_not_retained(world: DeviceWorld, owner: Request) -> None:
    owner.release(windows(2, 1), outcome="quarantined")
    assert owner.close(96) is not None
    assert (world.granules("retained"), world.granules("quarantine"), world.granules("free")) == (2, 1, 61)


def test_a_retained_prefix_that_cannot_be_sealed_refuses_that_join_and_stays(
    world: DeviceWorld, owner: Request
) -> None:
    number = owner.close(96)
    assert number is not None
    before = world.claims()
    world.driver.follow(lambda name, _: name == "seal")
    joiner = world.client().open()
    assert kind(lambda: joiner.join(number, 96)) == "not-sealed"
    assert world.claims() == before
    world.healed()
    assert joiner.join(number, 96).tokens == 95


# --- eviction -------------------------------------------------------------------------------------------------------


def retained(world: DeviceWorld, count: int, tenant: str = "") -> list[int]:
    """So many retained prefixes of four granules, the first the longest."""
    numbers = []
    for _ in range(count):
        request = world.client(tenant).open(max_tokens=64)
        request.grow(64, 4)
        number = request.close(64)
        assert number is not None
        numbers.append(number)
    return numbers


def test_what_is_retained_counts_as_free_and_goes_the_least_recently_used_first(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    first, second, third = retained(world, 3)
    user = world.client().open()
    user.join(first, 64)
    user.leave(first)
    grower = world.client().open()
    grower.grow(128, 8)
    assert set(world.seen().prefixes) == {first, third}
    assert world.seen().evictions == 1
    error = refused(OutOfBudget, lambda: world.client().open().grow(144, 9))
    assert isinstance(error, OutOfBudget)
    assert error.free == 7 * GRANULE  # beside one growth of the other's
    assert set(world.seen().prefixes) == {first, third}  # a refusal evicts nothing
    grower.grow(256, 8)
    assert not world.seen().prefixes
    assert second not in world.seen().prefixes


def test_what_is_used_is_never_evicted(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    first, second, _ = retained(world, 3)
    user = world.client().open()
    user.join(first, 64)
    grower = world.client().open()
    error = refused(OutOfBudget, lambda: grower.grow(208, 13))
    assert isinstance(error, OutOfBudget)
    assert error.free == 11 * GRANULE  # beside one growth of the user's
    grower.grow(176, 11)
    assert set(world.seen().prefixes) == {first}
    assert second != first


def test_children_are_evicted_before_those_they_build_on(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    [first] = retained(world, 1)
    request = world.client().open()
    request.client.ask(request.join_op(first, 64), *request.grow_ops(128, 4))
    request.client.ask(request.leave_op(first), request.close_op(128))
    child = max(world.seen().prefixes)
    grower = world.client().open()
    grower.grow(192, 12)
    assert set(world.seen().prefixes) == {first}
    assert child != first
    grower.grow(256, 4)
    assert not world.seen().prefixes


def test_a_tenant_at_its_quota_evicts_its_own_and_what_tenants_with_a_quota_retain_goes_last(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(capacity=32, quotas=Quotas({"acme": 8 * GRANULE})))
    mine, theirs = retained(world, 2), retained(world, 2, "acme")
    acme = world.client("acme").open(max_tokens=128)
    acme.grow(64, 4)
    assert set(world.seen().prefixes) == {*mine, theirs[1]}
    assert world.seen().tenants["acme"] == 8 * GRANULE
    refused(NeverFits, lambda: acme.grow(128, 5))
    large = world.client().open(max_tokens=512)
    large.grow(320, 20)
    assert set(world.seen().prefixes) == {mine[1], theirs[1]}
    large.grow(368, 3)
    assert set(world.seen().prefixes) == {theirs[1]}
    large.grow(432, 4)
    assert not world.seen().prefixes
    refused(OutOfBudget, lambda: large.grow(512, 5))
    assert world.seen().tenants["acme"] == 4 * GRANULE  # what it uses


def test_a_device_full_of_what_another_tenant_retains_is_nobody_s_to_keep(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16, quotas=Quotas(default_bytes=16 * GRANULE)))
    client = world.client("acme")
    request = client.open()
    request.grow(240, 15)
    request.close(240)
    world.service.gone(client.session)
    world.client("other").open().grow(256, 16)
    assert world.seen().tenants == {"other": 16 * GRANULE}


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
