"""What each single failure of a verb leaves: the memory's state, whose the bytes are, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.errors import DriverError, GrantRefused, KvClusterError, NotAllowed, Quarantined
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import End, Grow, Shed
from kvcluster.testing.faulty_driver import failing, failing_every, failing_named
from kvcluster.testing.invariants import assert_nothing_lost, picture
from tests.services.world import GRANULE, Sizes, World, digest, names

OpenWorld = Callable[..., World]
FIRST, MORE = 16, 80  # tokens before the operation, and what it grows to
CLIENT_CALLS = {"map", "set_access", "unmap", "synchronize", "free_address"}


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


def test_the_third_create_fails_the_earlier_are_undone_newest_first_and_the_grant_is_held_again(world: World) -> None:
    memory = world.grown(FIRST)
    grant = memory.grant(MORE)
    before = picture(world.device)
    world.driver.follow(failing_named("create", 3))
    with pytest.raises(DriverError, match="create"):
        memory.commit(MORE, grant)
    calls = world.healed()
    assert names(calls) == ["create", "create", "create", "release", "release"]
    assert picture(world.device) == before
    assert world.granules("granted") == 4
    memory.commit(MORE, grant)  # the very same grant
    assert world.granules("requests") == 5


def test_the_clients_half_fails_its_windows_come_back_free_and_the_grant_stays_spent(world: World) -> None:
    memory = world.grown(FIRST)
    grant = memory.grant(MORE)
    before = picture(world.device)
    world.driver.follow(failing_named("map", 3))
    with pytest.raises(DriverError, match="map"):
        memory.commit(MORE, grant)
    calls = world.healed()
    assert [name for name in names(calls) if name in CLIENT_CALLS] == ["map", "map", "map", "unmap"]
    assert (world.granules("free"), world.granules("granted"), world.granules("requests")) == (63, 0, 1)
    assert picture(world.device).mappings == before.mappings
    with pytest.raises(GrantRefused, match="spent"):
        memory.commit(MORE, grant)


def test_an_undo_that_fails_leaves_the_windows_mapped_listed_quarantined_and_charged(world: World) -> None:
    memory = world.grown(FIRST)
    content = digest(memory)
    world.driver.follow(failing_every("set_access", "unmap"))
    with pytest.raises(Quarantined) as caught:
        memory.commit(MORE, memory.grant(MORE))
    world.healed()
    assert sum(piece.size_bytes for piece in caught.value.residue) == 4 * GRANULE
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("free")) == (1, 4, 59)
    assert memory.committed_bytes == 5 * GRANULE
    assert sum(run.count for run in memory.range.mapped_runs()) == 5
    assert digest(memory) == content
    with pytest.raises(NotAllowed, match="no more commits"):
        memory.commit(MORE, memory.grant(MORE))


def test_a_memory_in_quarantine_still_gives_back_all_that_is_its_own(world: World) -> None:
    memory = world.grown(FIRST)
    world.driver.follow(failing_every("set_access", "unmap"))
    with pytest.raises(Quarantined):
        memory.commit(MORE, memory.grant(MORE))
    world.healed()
    memory.close()  # everything can be unmapped by now; the device does not take that back
    assert memory.committed_bytes == 0
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("free")) == (0, 4, 60)
    assert world.device.statistics().open_requests == 0


def test_a_create_whose_undo_fails_charges_what_was_lost_and_leaves_the_memory_usable(world: World) -> None:
    memory = world.grown(FIRST)
    grant = memory.grant(MORE)
    world.driver.follow(lambda name, before: (name == "create" and len(before) == 2) or name == "release")
    with pytest.raises(Quarantined):
        memory.commit(MORE, grant)
    world.healed()
    assert (world.granules("granted"), world.granules("quarantine"), world.granules("requests")) == (2, 2, 1)
    with pytest.raises(GrantRefused, match="too-small"):
        memory.commit(MORE, grant)
    memory.commit(MORE, memory.grant(MORE))
    assert world.granules("requests") == 5


def test_a_close_that_cannot_wait_frees_nothing_warns_once_and_stays_charged(world: World) -> None:
    memory = world.grown(48)
    mapped = picture(world.device).mappings
    world.driver.follow(failing_every("synchronize"))
    with pytest.warns(LeakedOnPurpose) as caught, pytest.raises(Quarantined):
        memory.close()
    assert [str(warning.message) for warning in caught if f"({3 * GRANULE} bytes)" in str(warning.message)]
    assert len(caught) == 1
    assert set(names(world.healed())) == {"synchronize"}
    assert picture(world.device).mappings == mapped
    assert (world.granules("quarantine"), world.granules("free")) == (3, 61)
    assert world.device.statistics().open_requests == 0
    memory.close()
    assert world.granules("quarantine") == 3


def test_a_close_that_could_not_wait_once_does_not_free_on_hope_at_the_second_call(world: World) -> None:
    memory = world.grown(48)
    world.driver.follow(failing(1))
    with pytest.warns(LeakedOnPurpose), pytest.raises(Quarantined):
        memory.close()
    assert names(world.healed()) == ["synchronize"]


def test_a_release_that_cannot_wait_says_so_and_quarantines_every_window(world: World) -> None:
    memory = world.grown(48)
    world.driver.follow(failing_every("synchronize"))
    with pytest.raises(Quarantined) as caught:
        memory.release()
    assert sum(piece.size_bytes for piece in caught.value.residue) == 3 * GRANULE
    assert isinstance(caught.value.__cause__, DriverError)
    world.healed()
    assert (world.granules("quarantine"), world.granules("requests")) == (3, 0)
    assert (memory.tokens, memory.committed_bytes) == (0, 3 * GRANULE)
    memory.close()
    assert (memory.committed_bytes, world.granules("quarantine")) == (0, 3)


def test_a_release_that_fails_in_one_fragment_gives_the_others_back(world: World) -> None:
    memory = world.grown(48, layout=Layout.SEQ_MAJOR)  # four fragments of one window
    world.driver.follow(failing_named("unmap", 2))
    with pytest.raises(Quarantined):
        memory.release()
    world.healed()
    assert (world.granules("quarantine"), world.granules("requests"), world.granules("free")) == (1, 0, 63)
    with pytest.raises(NotAllowed):
        memory.commit(16, memory.grant(16))
    memory.release()  # nothing more to say
    memory.close()
    assert world.granules("quarantine") == 1


def test_an_address_that_could_not_be_freed_is_freed_by_the_next_close(world: World) -> None:
    memory = world.grown(48)
    world.driver.follow(failing_every("free_address"))
    with pytest.raises(DriverError, match="free_address"):
        memory.close()
    with pytest.raises(DriverError, match="free_address"):
        memory.close()
    world.healed()
    assert_nothing_lost(world.device)
    memory.close()
    calls = names(world.driver.log())
    assert calls[-1] == "free_address"
    memory.close()
    assert names(world.driver.log()) == calls


def test_a_handle_that_cannot_be_released_is_charged_for_good_and_shrinks_what_ever_fits(
    open_world: OpenWorld,
) -> None:
    world = open_world(Sizes(pool=0))
    memory = world.grown(48)
    world.driver.follow(failing_every("release"))
    memory.release()
    world.healed()
    assert (world.granules("quarantine"), world.granules("free")) == (3, 61)
    memory.close()
    assert world.granules("quarantine") == 3
    with pytest.raises(KvClusterError, match="at most 249856"):
        world.open(62 * 16).grant(16)


def test_closing_the_device_charges_what_its_pool_could_not_release(world: World) -> None:
    world.grown(48).close()
    assert world.handles("pooled") == 3
    world.driver.follow(failing_every("release"))
    world.service.close()
    world.healed()
    assert (world.granules("quarantine"), world.handles("pooled")) == (3, 0)


def test_one_requests_failure_in_a_frame_touches_no_other_request(world: World) -> None:
    first, second, third = (world.grown(FIRST) for _ in range(3))
    world.driver.follow(failing_named("map", 5))  # the first of the second request's
    outcomes = world.device.port.submit([Grow(first, MORE), Grow(second, MORE), Grow(third, MORE)]).settle()
    world.healed()
    assert [type(outcome.error) for outcome in outcomes] == [type(None), DriverError, type(None)]
    assert [memory.tokens for memory in (first, second, third)] == [80, 16, 80]
    assert world.granules("requests") == 11


def test_give_back_and_growth_share_a_frame_and_one_failure_leaves_the_other_done(world: World) -> None:
    leaving, shedding, growing = (world.grown(FIRST) for _ in range(3))
    world.driver.follow(failing_named("unmap", 1))
    outcomes = world.device.port.submit([End(leaving), Shed(shedding), Grow(growing, MORE)]).settle()
    world.healed()
    assert [type(outcome.error) for outcome in outcomes] == [Quarantined, type(None), type(None)]
    assert (world.granules("quarantine"), world.granules("requests")) == (1, 5)
