"""What an ended request leaves for others to join, and when it makes room."""

from __future__ import annotations

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import NeverFits, OutOfBudget
from kvcluster.wire import messages as wire
from tests.services.device_world import GRANULE, Device, DeviceWorld, Request, kind, refused, windows
from tests.services.sharing.conftest import OpenWorld

# --- what is retained -------------------------------------------------------------------------------------------------


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


# --- eviction ---------------------------------------------------------------------------------------------------------


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


def test_a_tenant_at_its_quota_evicts_its_own_and_what_it_retains_below_it_goes_for_nobody_else(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(capacity=32, quotas=Quotas({"acme": 8 * GRANULE})))
    mine, theirs = retained(world, 2), retained(world, 2, "acme")
    acme = world.client("acme").open(max_tokens=128)
    acme.grow(64, 4)
    assert set(world.seen().prefixes) == {*mine, theirs[1]}
    assert world.seen().tenants["acme"] == 8 * GRANULE
    refused(NeverFits, lambda: acme.grow(128, 5))
    error = refused(NeverFits, lambda: world.client().open(max_tokens=25 * 16))
    assert isinstance(error, NeverFits)
    assert error.capacity == 24 * GRANULE
    large = world.client().open(max_tokens=24 * 16)
    large.grow(24 * 16, 24)
    assert set(world.seen().prefixes) == {theirs[1]}
    assert world.seen().tenants["acme"] == 8 * GRANULE


def test_what_is_retained_under_quotas_that_are_more_than_the_device_goes_last_and_for_anybody(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(capacity=16, quotas=Quotas({"acme": 8 * GRANULE, "beta": 12 * GRANULE})))
    [theirs], [mine] = retained(world, 1, "acme"), retained(world, 1)
    large = world.client().open(max_tokens=256)
    large.grow(192, 12)
    assert set(world.seen().prefixes) == {theirs}
    assert theirs != mine
    large.grow(256, 4)
    assert not world.seen().prefixes


def test_a_device_that_is_measured_smaller_than_its_quotas_guards_nothing_and_what_nobody_may_take_goes_last(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(capacity=16, quotas=Quotas({"acme": 8 * GRANULE})))
    [theirs], [mine] = retained(world, 1, "acme"), retained(world, 1)
    assert world.service.measure(0.25) == 4 * GRANULE
    assert set(world.seen().prefixes) == {theirs}
    assert theirs != mine
    world.client().open(max_tokens=64).grow(64, 4)
    assert not world.seen().prefixes


def test_a_device_full_of_what_another_tenant_retains_is_nobody_s_to_keep(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16, quotas=Quotas(default_bytes=16 * GRANULE)))
    client = world.client("acme")
    request = client.open()
    request.grow(240, 15)
    request.close(240)
    world.service.gone(client.session)
    world.client("other").open().grow(256, 16)
    assert world.seen().tenants == {"other": 16 * GRANULE}
