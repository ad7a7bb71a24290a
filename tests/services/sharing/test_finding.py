"""What is found by its tokens: by whom, from when on, how much of it, and that nothing is kept twice."""

from __future__ import annotations

import pytest

from kvcluster.wire import messages as wire
from tests.services.device_world import (
    ROOT,
    WITH_RING,
    Device,
    DeviceWorld,
    kind,
    windows,
)
from tests.services.sharing.conftest import OpenWorld
from tests.services.sharing.finders import IDS, looking, ringed, written

# --- from when on -----------------------------------------------------------------------------------------------------


def test_what_was_published_is_found_from_its_seal_on_and_not_before(world: DeviceWorld) -> None:
    owner = written(world, 96)
    assert looking(world).find(IDS) == wire.Found()
    published = owner.publish(70)
    assert looking(world).find(IDS) == wire.Found()
    owner.seal(published.prefix)
    finder = looking(world)
    found = finder.find(IDS)
    assert found == wire.Found(known=70, prefix=published.prefix, tokens=64, runs=(windows(0, 4),))
    assert finder.client.handles() == owner.client.handles()
    assert world.seen().prefixes[published.prefix].users == 2


def test_what_an_ended_request_leaves_is_found_with_the_tokens_that_followed(world: DeviceWorld) -> None:
    owner = written(world, 70)
    owner.grow(96, 1)
    number = owner.close(96, IDS[70:96])
    assert looking(world).find(IDS) == wire.Found(known=96, prefix=number or 0, tokens=96, runs=(windows(0, 6),))


def test_what_was_published_stays_when_nobody_uses_it_until_its_memory_is_needed(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    owner = written(world, 64)
    number = owner.share(64)
    owner.leave(number)
    assert (world.granules("retained"), world.seen().listed_prefixes) == (4, 1)
    assert looking(world).find(IDS).prefix == number


def test_memory_that_is_needed_takes_what_nobody_uses_and_it_is_found_no_longer(open_device: OpenWorld) -> None:
    world = open_device(Device(capacity=16))
    written(world, 64).close(64)
    world.client().open().grow(256, 16)
    assert (world.seen().listed_prefixes, looking(world).find(IDS)) == (0, wire.Found())


def test_without_a_cache_root_nothing_is_found_and_nothing_is_listed(world: DeviceWorld) -> None:
    written(world, 64, root=b"").close(64)
    written(world, 64).close(64)
    assert world.seen().listed_prefixes == 1
    assert looking(world, root=b"").find(IDS) == wire.Found()


def test_tokens_that_were_never_named_are_published_and_found_by_nobody(world: DeviceWorld) -> None:
    owner = written(world, 40)
    owner.grow(96, 3)
    number = owner.share(96)
    assert looking(world).find(IDS) == wire.Found()
    owner.leave(number)
    assert not world.seen().prefixes


def test_a_request_that_never_looked_may_name_all_its_tokens_at_its_end(world: DeviceWorld) -> None:
    owner = looking(world)
    owner.grow(64, 4)
    number = owner.close(64, IDS[:64])
    assert looking(world).find(IDS).prefix == number


# --- how much ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("equal", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 69, 70, 71, 200])
def test_a_hit_of_any_length_joins_the_whole_granules_that_are_equal(world: DeviceWorld, equal: int) -> None:
    owner = written(world, 96)
    number = owner.share(70)
    common = min(equal, 70)
    found = looking(world).find([*IDS[:equal], 7, 7])
    if common < 16:
        assert found == wire.Found()
    else:
        tokens = min(common // 16, 4) * 16
        assert (found.prefix, found.tokens, found.runs) == (number, tokens, (windows(0, tokens // 16),))


def test_a_hit_on_the_whole_prompt_leaves_its_last_token_to_compute(world: DeviceWorld) -> None:
    written(world, 64).close(64)
    found = looking(world).find(IDS[:64])
    assert (found.tokens, found.runs) == (63, (windows(0, 4),))


def test_of_several_the_longest_is_joined_and_where_it_cannot_be_sealed_the_next(world: DeviceWorld) -> None:
    written(world, 32).close(32)
    longer = looking(world)
    found = longer.find(IDS[:96])
    longer.grow(96, 4)
    longer.client.ask(longer.leave_op(found.prefix), longer.close_op(96))
    number = max(world.seen().prefixes)
    world.driver.follow(lambda name, _: name == "seal")
    one = looking(world)
    assert one.find(IDS).prefix == found.prefix  # which was sealed when it was joined
    world.healed()
    assert looking(world).find(IDS).prefix == number


def test_what_cannot_be_sealed_is_as_if_it_were_not_known(world: DeviceWorld) -> None:
    written(world, 64).close(64)
    before = world.claims()
    world.driver.follow(lambda name, _: name == "seal")
    finder = looking(world)
    assert finder.find(IDS) == wire.Found()
    world.healed()
    assert world.claims() == before
    finder.grow(96, 6)


def test_tokens_are_told_apart_from_the_first_to_the_last(world: DeviceWorld) -> None:
    written(world, 64).close(64)
    assert looking(world).find([7, *IDS[1:]]) == wire.Found()
    assert looking(world).find([*IDS[:20], 7, *IDS[21:]]).tokens == 16


# --- nothing twice ----------------------------------------------------------------------------------------------------


def test_what_is_found_already_is_not_published_again_and_not_kept_twice(world: DeviceWorld) -> None:
    one, two, three = written(world, 96), written(world, 96), written(world, 96)
    one.share(70)
    assert kind(lambda: two.publish(70)) == "already-shared"
    assert kind(lambda: two.publish(64)) == "already-shared"
    assert two.close(70) is None
    assert (world.granules("retained"), world.granules("quarantine")) == (0, 2)
    number = three.share(96)  # which reaches further
    assert looking(world).find(IDS).prefix == number


def test_a_longer_end_is_kept_beside_a_shorter_one(world: DeviceWorld) -> None:
    one, two = written(world, 96), written(world, 96)
    one.client.ask(one.release_op(windows(4, 2)), one.close_op(64))
    number = two.close(96)
    assert number is not None
    assert (looking(world).find(IDS).prefix, world.granules("retained")) == (number, 4)


def test_a_longer_one_whose_bulk_handle_reaches_across_serves_nobody_and_refuses_nothing(
    open_device: OpenWorld,
) -> None:
    world = open_device(Device(bulk=4))
    bulky, fine = looking(world), world.client().open(shareable_tokens=96, root=ROOT)
    for request in (bulky, fine):
        request.find(IDS[:128])
        request.grow(128, 8)
    bulky.share(128)
    number = fine.share(96)
    found = looking(world).find([*IDS[:96], 7])
    assert found.runs in ((windows(0, 4),), (windows(0, 6),))
    assert number in world.seen().prefixes


# --- who may ----------------------------------------------------------------------------------------------------------


def test_a_tenant_that_names_another_s_root_finds_nothing_and_hears_of_nothing(world: DeviceWorld) -> None:
    written(world, 64, tenant="acme").close(64)
    assert looking(world, tenant="other").find(IDS) == wire.Found()
    assert looking(world).find(IDS) == wire.Found()
    assert looking(world, tenant="acme").find(IDS).tokens == 64
    ringed(world.client("acme"), 96).close()
    assert world.client("other").open(WITH_RING, root=ROOT).find(IDS) == wire.Found()


def test_a_root_that_ends_as_a_tenant_begins_is_not_taken_for_another(world: DeviceWorld) -> None:
    written(world, 64, tenant="ab", root=b"root").close(64)
    assert looking(world, tenant="b", root=b"roota").find(IDS) == wire.Found()


def test_another_root_and_another_shape_find_nothing(world: DeviceWorld) -> None:
    written(world, 64).close(64)
    assert looking(world, root=b"o" * 32).find(IDS) == wire.Found()
    two_pieces = (wire.Group(fragments=2, stride_bytes=128),)
    other = world.client().open(two_pieces, root=ROOT)
    assert other.find(IDS) == wire.Found()
    other.grow(64, 4)
    assert other.share(64)  # nobody else has that in this shape
    assert looking(world).find(IDS).tokens == 64
