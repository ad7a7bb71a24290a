"""What a device is told of a request's tokens: no row is ever listed under another's ids, and ids are bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import DriverError, LimitReached, NotAllowed
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES, packed
from kvcluster.services.asks import End, Find, Grow
from kvcluster.services.told import MOST_TOLD_BYTES, Told, ToldIds
from kvcluster.services.work import Work
from kvcluster.testing.faulty_driver import failing_every
from kvcluster.wire import messages as wire
from tests.services.device_world import ROOT, Device, DeviceWorld, Request, refused
from tests.services.sharing.finders import IDS, looking
from tests.services.world import GEOMETRY, World

OpenDevice = Callable[[Device], DeviceWorld]
WIDE = (wire.Group(fragments=1, stride_bytes=1),)  # a granule holds 4,096 tokens
MANY = bytes(wire.MOST_TOKENS * ID_BYTES)


def holding(world: DeviceWorld) -> Request:
    """64 tokens, of which it has named 32."""
    request = looking(world)
    request.find(IDS[:32])
    request.grow(64, 4)
    return request


@pytest.mark.parametrize("told", [0, 31, 33, 64])
def test_ids_that_follow_another_number_than_the_device_was_told_are_refused_and_nothing_is_listed(
    open_device: OpenDevice, told: int
) -> None:
    world = open_device(Device())
    request, before = holding(world), world.claims()
    more = packed(IDS[32:64])
    close = wire.Close(request=request.key, retain_tokens=64, token_ids=more, told_tokens=told)
    refused(NotAllowed, lambda: request.client.ask(close))
    assert (world.claims(), world.seen().listed_prefixes) == (before, 0)
    assert request.close(64, IDS[32:64]) is not None
    assert looking(world).find(IDS[:100]).tokens == 64


@pytest.mark.parametrize("more", [b"odd", packed(IDS[32:256]) + packed([1])])
def test_what_are_no_ids_or_too_many_at_the_end_is_refused_and_nothing_changed(
    open_device: OpenDevice, more: bytes
) -> None:
    world = open_device(Device())
    request, before = holding(world), world.claims()
    close = wire.Close(request=request.key, retain_tokens=64, token_ids=more, told_tokens=32)
    refused(NotAllowed, lambda: request.client.ask(close))
    assert world.claims() == before


@pytest.mark.parametrize("again", [0, 16, 40])
def test_a_find_that_was_executed_and_could_not_be_mapped_shifts_no_row_that_is_listed_later(
    world: World, again: int
) -> None:
    """`again` tokens were found for good before: what follows them is what whoever asks goes by."""
    port, memory = world.device.port, world.device.open(GEOMETRY, max_tokens=256, cache_root=ROOT)
    if again:
        memory.find(IDS[:again], again)
        memory.release()
    world.driver.follow(failing_every("map"))
    [failed] = port.submit([Find(memory, packed(IDS[:48]), 64)]).settle()
    world.healed()
    assert isinstance(failed.error, DriverError)
    port.submit([Grow(memory, 64)]).settle()
    port.submit([End(memory, 64, packed(IDS[again:64]))]).settle()
    twice, once = world.device.open(GEOMETRY, max_tokens=256, cache_root=ROOT), IDS[:48]
    assert twice.find([*once, *once], 96) == 48
    twice.close()
    after = world.device.open(GEOMETRY, max_tokens=256, cache_root=ROOT)
    assert after.find(IDS[:100], 100) == 64
    after.close()


def test_a_session_tells_so_many_ids_and_no_more_and_the_end_of_a_request_makes_room(open_device: OpenDevice) -> None:
    world = open_device(Device(capacity=64))
    client = world.client()
    most = MOST_TOLD_BYTES // len(MANY)
    requests = [client.open(WIDE, max_tokens=wire.MOST_TOKENS) for _ in range(most + 1)]
    finds = [wire.Find(request=request.key, token_ids=MANY) for request in requests]
    for find in finds[:-1]:
        client.ask(find)
        client.ask(find)  # the same ids, once more: counted once
    error = refused(LimitReached, lambda: client.ask(finds[-1]))
    assert isinstance(error, LimitReached)
    assert (error.need, error.free) == (len(MANY), 0)
    world.seen()
    requests[0].close()
    client.ask(finds[-1])
    world.seen()


class Sender:
    """A request, as far as its ids are concerned."""

    def __init__(self, session: str, number: int) -> None:
        self.request = RequestId(session, number)
        self.token_ids = b""


def test_ids_are_counted_exactly_whatever_is_told_undone_and_ended() -> None:
    told, one, two, other = ToldIds(), Sender("s", 1), Sender("s", 2), Sender("t", 1)
    for verb in (told.tell, told.complete):
        undone = Work()
        with undone.txn:
            verb(one, bytes(400), undone)
        assert (one.token_ids, told.bytes_of("s")) == (b"", 0)
    for sender, size in ((one, 400), (two, 40), (other, 8), (one, 100)):
        kept = Work()
        with kept.txn:
            told.tell(sender, bytes(size), kept)
            kept.txn.keep()
    assert (told.bytes_of("s"), told.bytes_of("t")) == (140, 8)
    for sender in (one, two, other):
        told.put(sender, b"")
    assert (told.bytes_of("s"), told.bytes_of("t")) == (0, 0)


def test_less_may_be_told_than_before_even_where_no_more_may() -> None:
    told, one = ToldIds(), Sender("s", 1)
    told.put(one, bytes(MOST_TOLD_BYTES + 400))
    told.check_room("s", -4)
    told.check_room("s", 0)
    with pytest.raises(LimitReached):
        told.check_room("s", 4)


def test_a_client_names_what_its_owner_lacks_behind_what_it_was_told() -> None:
    ids = packed(range(10, 20))
    assert Told(0, 0).unsaid(ids) == ids
    assert (Told(4, 0).tokens, Told(4, 0).unsaid(ids)) == (4, packed(range(14, 20)))
    assert (Told(4, 4).tokens, Told(4, 4).unsaid(ids)) == (4, ids)
    assert (Told(2, 4).tokens, Told(2, 4).unsaid(ids)) == (4, ids)  # its owner has 2, and refuses what follows 4
