"""Handles between two uses: newest first, bounded, all or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError, InvariantBroken, Quarantined
from kvcluster.memory.handle import HandleState
from kvcluster.memory.pool import HandlePool
from kvcluster.testing.faulty_driver import failing, failing_every, failing_named
from kvcluster.testing.tidy_driver import TidyDriver
from tests.memory.store import BULK, CAPACITY, GRANULE, Store


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.clear()


def test_what_comes_back_is_given_out_again_newest_first(store: Store) -> None:
    a, b, c = store.take(3)
    store.pool.give_back([a, b, c])
    assert store.counts() == (3, 0, 0)
    assert store.take(2) == [c, b]
    assert store.made() == 3
    store.pool.give_back([c, b])


def test_a_handle_given_out_again_has_the_same_identity_because_it_is_the_same_memory(store: Store) -> None:
    [handle] = store.take(1)
    first = handle.identity
    store.pool.give_back([handle])
    [again] = store.take(1)
    assert (again, again.identity) == (handle, first)
    store.pool.give_back([again])


def test_new_memory_under_an_old_number_has_another_generation(store: Store) -> None:
    [handle] = store.take(1)
    store.pool.destroy([handle])
    [other] = store.take(1)
    assert other is not handle
    assert (other.identity.number, other.identity.generation) == (handle.identity.number, 1)
    store.pool.give_back([other])


def test_no_two_handles_ever_have_the_same_identity(store: Store) -> None:
    seen = {}
    for count in (1, 5, 2, 6):
        handles = store.take(count)
        assert all(seen.setdefault(handle.identity, handle) is handle for handle in handles)
        store.pool.give_back(handles)


def test_the_pool_keeps_its_bound_and_releases_the_oldest(store: Store) -> None:
    handles = store.take(5)
    store.pool.give_back(handles)
    assert store.counts() == (3, 0, 0)
    assert store.take(3) == [handles[4], handles[3], handles[2]]
    store.pool.give_back(handles[2:])


def test_taking_none_is_nothing(store: Store) -> None:
    assert store.take(0) == []
    assert store.counts() == (0, 0, 0)


def test_a_third_create_that_fails_undoes_the_earlier_two_newest_first_and_leaves_the_pool(store: Store) -> None:
    kept = store.take(2)
    store.pool.give_back(kept)
    store.driver.follow(failing_named("create", 3))
    with pytest.raises(DriverError):
        store.take(5)
    calls = store.driver.since_plan()
    assert [call.name for call in calls] == ["create", "create", "create", "release", "release"]
    assert store.counts() == (2, 0, 0)
    assert store.pool.drain_lost() == {}
    assert store.take(2) == [kept[1], kept[0]]
    store.pool.give_back(kept)


def test_an_undo_that_fails_too_is_quarantined_reported_once_and_stops_no_other(store: Store) -> None:
    store.driver.follow(lambda name, before: len(before) in (2, 3))  # the third create, and the first release
    with pytest.raises(Quarantined) as caught:
        store.take(4)
    [residue] = caught.value.residue
    assert residue.size_bytes == GRANULE
    assert [call.name for call in store.driver.since_plan()][3:] == ["release", "release"]
    assert store.counts() == (0, 0, 1)
    assert store.pool.drain_lost() == {"": GRANULE}
    assert store.pool.drain_lost() == {}


def test_taking_fails_at_any_call_and_changes_nothing_or_says_what_it_lost(store: Store) -> None:
    for failing_call in itertools.count(1):
        store.driver.follow(failing(failing_call))
        try:
            taken = store.take(4)
        except DriverError:
            assert store.counts() == (0, 0, 0)
        else:
            break
    assert failing_call == 5
    store.driver.follow(failing_every("release"))
    store.pool.give_back(taken)
    assert store.counts() == (3, 0, 1)
    assert store.pool.drain_lost() == {"": GRANULE}


def test_a_handle_that_is_not_out_cannot_come_back(store: Store) -> None:
    [handle] = store.take(1)
    store.pool.give_back([handle])
    with pytest.raises(InvariantBroken):
        store.pool.give_back([handle])


def test_quarantined_handles_are_counted_and_come_back_to_the_pool_only_explicitly(store: Store) -> None:
    handles = store.take(2)
    store.pool.quarantine(handles)
    assert store.counts() == (0, 0, 2)
    assert not set(store.take(2)) & set(handles)
    store.pool.give_back(handles)
    assert store.counts() == (2, 2, 0)


def test_handles_come_in_the_order_of_the_sizes_asked_for(store: Store) -> None:
    store.pool.give_back(store.take(1))
    taken = store.pool.take([BULK, GRANULE, BULK, GRANULE, GRANULE], tenant="a")
    assert [handle.size_bytes for handle in taken] == [BULK, GRANULE, BULK, GRANULE, GRANULE]
    assert len(set(taken)) == 5
    assert store.counts() == (0, 11, 0)


def test_a_size_that_is_neither_is_refused_before_any_call(store: Store) -> None:
    for sizes in ([2 * GRANULE], [GRANULE, 0]):
        with pytest.raises(ValueError, match="handles are of 4096 or 16384 bytes"):
            store.pool.take(sizes, tenant="a")
    assert store.driver.log() == ()


def test_a_pooled_handle_of_the_wrong_size_makes_room_oldest_first(store: Store) -> None:
    oldest, middle, newest, *rest = store.take(CAPACITY)
    store.pool.give_back([oldest])
    store.pool.give_back([middle])
    store.pool.give_back([newest])
    store.pool.destroy(rest[:2])
    store.pool.take([BULK], tenant="a")
    assert (oldest.state, middle.state, newest.state) == (HandleState.GONE, HandleState.GONE, HandleState.POOLED)
    assert store.counts() == (1, 15, 0)


def test_what_makes_room_and_would_not_go_is_lost_and_another_makes_room(store: Store) -> None:
    handles = store.take(CAPACITY)
    store.pool.give_back(handles[:2])
    store.pool.destroy(handles[2:5])
    store.driver.follow(failing(1))
    store.pool.take([BULK], tenant="a")
    assert store.counts() == (0, 15, 1)
    assert store.pool.drain_lost() == {"": GRANULE}


def test_where_nothing_can_make_room_the_take_fails_with_the_drivers_word_and_changes_nothing_else(
    store: Store,
) -> None:
    handles = store.take(CAPACITY)
    store.pool.give_back(handles[:1])
    store.pool.destroy(handles[1:4])
    store.driver.follow(failing_every("release"))
    with pytest.raises(DriverError, match="release"):
        store.pool.take([BULK], tenant="a")
    assert store.counts() == (0, 12, 1)


def test_more_than_the_capacity_is_never_created_whoever_asks(store: Store) -> None:
    with pytest.raises(InvariantBroken, match="no room"):
        store.take(CAPACITY + 1)
    assert store.counts() == (0, 0, 0)
    assert len(store.take(CAPACITY)) == CAPACITY


def test_what_the_undo_could_not_release_is_counted_by_size(store: Store) -> None:
    store.driver.follow(lambda name, before: name == "release" or len(before) == 2)
    with pytest.raises(Quarantined) as caught:
        store.pool.take([BULK, GRANULE, GRANULE], tenant="a")
    [residue] = caught.value.residue
    assert residue.size_bytes == BULK + GRANULE
    assert store.counts() == (0, 0, 5)


def test_sealed_memory_is_never_pooled(store: Store) -> None:
    sealed, plain = store.take(2)
    store.tidy.seal(sealed.physical)
    sealed.is_sealed = True
    store.pool.give_back([sealed, plain])
    assert (sealed.state, plain.state) == (HandleState.GONE, HandleState.POOLED)
    assert store.counts() == (1, 0, 0)


def test_shared_handles_are_destroyed_and_a_failing_release_is_quarantined_and_lost(store: Store) -> None:
    handles = store.take(2)
    store.pool.share(handles)
    assert store.pool.bytes_in(HandleState.SHARED) == 2 * GRANULE
    store.driver.follow(failing(1))
    store.pool.destroy(handles)
    assert [handle.state for handle in handles] == [HandleState.QUARANTINED, HandleState.GONE]
    assert store.counts() == (0, 0, 1)
    assert store.pool.drain_lost() == {"a": GRANULE}


def test_a_quarantined_handle_that_will_not_go_stays_quarantined(store: Store) -> None:
    [handle] = store.take(1)
    store.pool.quarantine([handle])
    store.driver.follow(failing(1))
    store.pool.destroy([handle])
    assert store.counts() == (0, 0, 1)
    store.pool.destroy([handle])
    assert store.counts() == (0, 0, 0)


def test_a_smaller_capacity_releases_pooled_handles_and_only_those(store: Store) -> None:
    handles = store.take(6)
    store.pool.give_back(handles[:3])
    store.pool.resize(4 * GRANULE)
    assert [handle.state for handle in handles[:3]] == [HandleState.GONE, HandleState.GONE, HandleState.POOLED]
    assert store.counts() == (1, 3, 0)


def test_only_handles_that_another_process_had_are_reported_as_destroyed_and_each_once(store: Store) -> None:
    mine, theirs = store.take(2)
    theirs.was_handed_over = True
    store.pool.give_back([mine, theirs])
    store.pool.trim(0)
    assert store.pool.drain_forgotten() == [theirs.identity]
    assert store.pool.drain_forgotten() == []


def test_a_driver_that_breaks_off_at_a_release_leaves_the_handle_pooled_and_on_the_list() -> None:
    class Bursting(TidyDriver):
        def release(self, handle: PhysicalHandle) -> None:
            raise RuntimeError("at release")

    driver = Bursting(granule_bytes=GRANULE, capacity_bytes=8 * GRANULE)
    pool = HandlePool(
        driver, granule_bytes=GRANULE, bulk_bytes=BULK, capacity_bytes=4 * GRANULE, limit_bytes=4 * GRANULE
    )
    pool.give_back(pool.take([GRANULE] * 3, tenant="a"))
    for act in (lambda: pool.trim(0), lambda: pool.resize(0), lambda: pool.take([BULK], tenant="a")):
        with pytest.raises(RuntimeError):
            act()
        assert pool.pooled_bytes == pool.bytes_in(HandleState.POOLED) == pool.created_bytes == 3 * GRANULE
        pool.resize(4 * GRANULE)
    driver.clear()
