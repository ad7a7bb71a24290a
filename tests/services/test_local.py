"""A device in this very process, and a client's port: what they promise beside the verbs themselves."""

from __future__ import annotations

import os

import pytest
import torch

import kvcluster
from kvcluster.errors import DriverError, NeverFits, NotAllowed, NotShareable, OutOfBudget, Quarantined, SessionEnded
from kvcluster.services.asks import MOST_ASKS, End, Grow, Shed
from kvcluster.services.local import LocalDevice, open_device
from kvcluster.services.memory_state import MemoryState
from kvcluster.testing.faulty_driver import failing_every
from kvcluster.testing.invariants import assert_nothing_lost, mappings, picture
from kvcluster.units import KIB
from tests.services.world import GEOMETRY, GRANULE, World, digest, names


def test_one_device_opens_grows_and_leaves_nothing_behind() -> None:
    before = (len(os.listdir("/proc/self/fd")), mappings())
    with kvcluster.open_device("host", memory="1MiB", granule="4KiB") as device:
        with device.open(GEOMETRY, max_tokens=256) as memory:
            memory.commit(200, memory.grant(200))
            memory.views(torch.float32).k[1][0, :200] = 7.0
            assert memory.views(torch.float32).k[1][0, 199, 15] == 7.0
        assert_nothing_lost(device)
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before


def test_closing_the_device_closes_the_memories_that_were_forgotten() -> None:
    before = (len(os.listdir("/proc/self/fd")), mappings())
    with open_device(memory="1MiB", granule="4KiB") as device:
        forgotten = [device.open(GEOMETRY, max_tokens=256) for _ in range(3)]
        for memory in forgotten[1:]:
            memory.commit(100, memory.grant(100))
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before
    assert {memory.state for memory in forgotten} == {MemoryState.CLOSED}


def test_closing_the_device_closes_all_the_rest_where_one_memory_cannot_be_closed(world: World) -> None:
    broken, fine = world.grown(16), world.grown(48)
    world.driver.follow(lambda name, before: name == "unmap" and sum(call.name == "unmap" for call in before) == 1)
    with pytest.raises(Quarantined):
        world.device.close()
    world.healed()
    assert {broken.state, fine.state} == {MemoryState.CLOSED}
    assert sorted((broken.committed_bytes, fine.committed_bytes))[0] == 0
    assert world.device.statistics().open_requests == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "gpu:7"}, "no device that can be opened here"),
        ({"memory": "much"}, "is not a size"),
        ({"granule": "3KiB"}, "a granule is a power of two"),
    ],
)
def test_a_device_that_there_is_not_is_refused_with_the_remedy(arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        open_device(**arguments)


def test_a_reservation_larger_than_the_device_never_fits_and_the_memory_can_be_closed(world: World) -> None:
    memory = world.open(65 * 16)
    with pytest.raises(NeverFits) as caught:
        memory.grant(1)
    assert caught.value.capacity == 64 * GRANULE
    memory.close()
    assert_nothing_lost(world.device)


def test_a_memory_that_was_never_used_is_closed_without_a_message(world: World) -> None:
    world.open().close()
    assert world.device.statistics().frames == 0
    assert names(world.driver.log()) == ["reserve", "free_address"]


def test_an_ask_that_was_never_settled_does_not_keep_the_device_from_closing(world: World) -> None:
    settled, unsettled = world.grown(16), world.open()
    world.device.port.submit([Grow(unsettled, 32)])
    world.device.close()
    assert settled.state is MemoryState.CLOSED
    assert world.granules("quarantine") == 2


def test_a_closed_memory_takes_nothing_more_and_closing_again_does_nothing(world: World) -> None:
    memory = world.grown(48)
    memory.close()
    calls = len(world.driver.log())
    memory.close()
    assert len(world.driver.log()) == calls
    for verb in (lambda: memory.grant(16), memory.release):
        with pytest.raises(NotAllowed, match="closed"):
            verb()
    assert (memory.tokens, memory.committed_bytes) == (0, 0)


def test_a_memory_has_one_ask_in_flight(world: World) -> None:
    memory = world.open()
    pending = world.device.port.submit([Grow(memory, 16)])
    with pytest.raises(NotAllowed, match="one ask in flight"):
        world.device.port.submit([Shed(memory)])
    assert pending.ready()
    assert [ask.memory for ask in pending.asks] == [memory]
    pending.settle()
    with pytest.raises(NotAllowed, match="one ask in flight"):
        world.device.port.submit([Grow(memory, 32), Shed(memory)])
    assert memory.tokens == 16


def test_a_frame_that_carries_too_much_is_refused_before_anything_is_unmapped(world: World) -> None:
    memories = [world.open() for _ in range(MOST_ASKS + 1)]
    memories[0].commit(16, memories[0].grant(16))
    calls = len(world.driver.log())
    with pytest.raises(ValueError, match="use several"):
        world.device.port.submit([End(memory) for memory in memories])
    assert len(world.driver.log()) == calls
    assert memories[0].state is MemoryState.OPEN


def test_asks_of_many_requests_share_a_frame_and_a_redemption(world: World) -> None:
    port, memories = world.device.port, [world.open() for _ in range(5)]
    outcomes = port.submit([Grow(memory, 32) for memory in memories]).settle()
    assert [outcome.error for outcome in outcomes] == [None] * 5
    assert (port.exchange.traffic.control_messages, port.exchange.traffic.redemptions) == (2, 1)
    assert [memory.arrival for memory in memories] == [1, 2, 3, 4, 5]
    assert len({digest(memory) for memory in memories}) <= 5
    port.submit([Shed(memory) for memory in memories]).settle()
    assert port.exchange.traffic.control_messages == 4
    assert port.submit([Shed(memory) for memory in memories]).settle()[0].error is None
    assert port.exchange.traffic.control_messages == 4  # nothing had to be said


def test_a_refusal_reaches_its_own_ask_and_no_other(world: World) -> None:
    first, second = world.open(64 * 16), world.open(64 * 16)
    outcomes = world.device.port.submit([Grow(first, 40 * 16), Grow(second, 40 * 16)]).settle()
    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, OutOfBudget)
    assert second.arrival == 2
    assert second.state is MemoryState.OPEN


def test_what_a_port_acknowledges_the_device_forgets(world: World) -> None:
    memory = world.open()
    for tokens in range(16, 160, 16):
        memory.commit(tokens, memory.grant(tokens))
    assert world.device.statistics().stored_replies == 1  # the last, whose ack travels with the next


def test_two_ports_of_one_device_do_not_see_each_other(world: World) -> None:
    mine = world.grown(48)
    other = world.device.open_port()
    assert world.device.port.session != other.session
    assert other.memories() == ()
    assert world.device.port.memories() == (mine,)
    other.close()
    assert digest(mine)
    assert len(world.device.statistics().sessions) == 1


def test_after_the_session_s_end_every_ask_is_refused_and_memories_close_here(world: World) -> None:
    memory = world.grown(48)
    world.service.disconnected(world.device.port.session)
    before = picture(world.device)
    with pytest.raises(SessionEnded):
        memory.commit(64, memory.grant(64))
    assert picture(world.device) == before
    with pytest.raises(SessionEnded):
        memory.close()
    assert memory.committed_bytes == 0
    assert world.granules("quarantine") == 3  # charged until this process is gone


def test_no_address_left_is_the_drivers_word_and_nothing_was_opened(world: World) -> None:
    world.driver.follow(failing_every("reserve"))
    with pytest.raises(DriverError, match="reserve"):
        world.open()
    assert world.device.port.memories() == ()
    assert world.device.statistics().frames == 0


def test_the_default_granule_is_64_kib() -> None:
    with open_device(memory="1MiB") as device:
        assert isinstance(device, LocalDevice)
        assert device.port.welcome.granule_bytes == 64 * KIB


def test_views_are_printed_without_reading_memory_that_is_not_mapped(world: World) -> None:
    memory = world.grown(10)
    assert "KvViews(tokens=" in repr(memory.views(torch.float32))
    memory.close()
    assert "KvViews(tokens=0" in repr(memory.views(torch.float32))


def test_a_prefix_of_another_device_of_the_same_name_is_told_apart() -> None:
    with open_device(memory="1MiB", granule="4KiB") as one, open_device(memory="1MiB", granule="4KiB") as two:
        for device in (one, two):
            memory = device.open(GEOMETRY, max_tokens=256)
            memory.commit(200, memory.grant(200))
        [here], [there] = one.port.memories(), two.port.memories()
        prefix, other = here.publish(200), there.publish(200)
        assert (prefix.device, prefix.number) == (other.device, other.number)
        joiner = two.open(GEOMETRY, max_tokens=256)
        with pytest.raises(NotShareable):
            joiner.join(prefix, 200)
        assert joiner.join(other, 200) > 0
