"""What a device tells whoever routes requests: the blocks of what it lists, once each, and what it has room for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcluster.index.events import block_name, names_in
from kvcluster.index.identity import root_for
from kvcluster.index.token_chain import digests, packed
from kvcluster.services.device import DeviceService
from kvcluster.services.known_blocks import NEVER, KnownBlocks
from tests.services.device_world import GRANULE, MOST_TOKENS, ROOT, TOKENS, Client, DeviceWorld

LONG = list(range(4 * TOKENS))
SHORT = [*LONG[: 2 * TOKENS], *range(900, 900 + 2 * TOKENS)]


@pytest.fixture
def world() -> Iterator[DeviceWorld]:
    world = DeviceWorld()
    yield world
    world.clear()


def _answered(client: Client, *prompts: list[int]) -> None:
    """Requests of these tokens were computed at one time, and what they leave is kept."""
    requests = [client.open(shareable_tokens=MOST_TOKENS, root=ROOT) for _ in prompts]
    for request, ids in zip(requests, prompts, strict=True):
        request.find(ids)
        request.grow(len(ids), len(ids) // TOKENS)
    for request, ids in zip(requests, prompts, strict=True):
        request.close(len(ids))


def _names(ids: list[int], tenant: str = "") -> set[bytes]:
    return {block_name(digest) for digest in digests(root_for(tenant, ROOT), packed(ids))}


def _told(service: DeviceService, before: KnownBlocks | None = None) -> KnownBlocks:
    """What came behind `before`, or all."""
    return service.known_since(*((before.epoch, before.news.number) if before else (0, NEVER)))


def test_what_a_request_leaves_is_told_under_the_root_of_its_tenant(world: DeviceWorld) -> None:
    nothing = _told(world.service)
    _answered(world.client("kim"), LONG)
    told = _told(world.service, nothing)
    assert set(names_in(told.news.stored)) == _names(LONG, "kim")
    assert told.news.after == nothing.news.number


def test_a_block_that_two_kept_prefixes_begin_with_is_removed_only_when_the_last_of_them_went(
    world: DeviceWorld,
) -> None:
    client = world.client()
    _answered(client, LONG, SHORT)
    both = _told(world.service)
    assert set(names_in(both.news.stored)) == _names(LONG) | _names(SHORT)
    client.open(max_tokens=60 * TOKENS).grow(60 * TOKENS, 60)
    one = _told(world.service, both)
    assert set(names_in(one.news.removed)) == _names(LONG) - _names(SHORT)
    client.open().grow(4 * TOKENS, 4)
    none = _told(world.service, one)
    assert none.news.after is None
    assert not none.news.stored


def test_another_incarnations_number_is_answered_with_all_that_is_known(world: DeviceWorld) -> None:
    _answered(world.client(), LONG)
    told = _told(world.service)
    again = world.service.known_since(told.epoch + 1, told.news.number)
    assert again.news.after is None
    assert set(names_in(again.news.stored)) == _names(LONG)


def test_what_is_kept_only_until_it_is_needed_is_told_as_free(world: DeviceWorld) -> None:
    client = world.client()
    _answered(client, LONG)
    assert world.granules("retained") == 4
    assert _told(world.service).free_bytes == 64 * GRANULE
    client.open().grow(3 * TOKENS, 3)
    assert _told(world.service).free_bytes == 61 * GRANULE
