"""What a request shares: which granules, when they are nobody's own any more, and prefixes upon prefixes."""

from __future__ import annotations

import pytest

from kvcluster.errors import NotAllowed, NotShareable
from tests.services.device_world import GRANULE, Device, DeviceWorld, Request, kind, refused, windows
from tests.services.sharing.conftest import OpenWorld

# --- publish and seal -------------------------------------------------------------------------------------------------


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


# --- prefixes on prefixes ---------------------------------------------------------------------------------------------


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
