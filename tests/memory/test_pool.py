"""Handles between two uses: newest first, bounded, all or nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from kvcluster.errors import DriverError, InvariantBroken, Quarantined
from kvcluster.memory.handle import HandleState
from kvcluster.memory.pool import HandlePool
from kvcluster.testing.faulty_driver import FaultyDriver, failing, failing_every, failing_named, never
from kvcluster.testing.tidy_driver import TidyDriver

GRANULE = 4096


class Store:
    """A pool of at most three handles over a driver of sixteen."""

    def __init__(self) -> None:
        self.tidy = TidyDriver(granule_bytes=GRANULE, capacity_bytes=16 * GRANULE)
        self.driver = FaultyDriver(self.tidy)
        self.pool = HandlePool(self.driver, handle_bytes=GRANULE, limit_bytes=3 * GRANULE + 100)

    def counts(self) -> tuple[int, int, int]:
        """Granules pooled, out, quarantined; the driver holds exactly those."""
        pooled, out, quarantined = (
            self.pool.bytes_in(state) // GRANULE
            for state in (HandleState.POOLED, HandleState.OUT, HandleState.QUARANTINED)
        )
        assert self.pool.created_bytes == (pooled + out + quarantined) * GRANULE
        assert self.driver.memory_info().held_bytes == self.pool.created_bytes
        return pooled, out, quarantined


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.driver.follow(never())
    store.tidy.clear()


def test_what_comes_back_is_given_out_again_newest_first(store: Store) -> None:
    a, b, c = store.pool.take(3)
    store.pool.give_back([a, b, c])
    assert store.counts() == (3, 0, 0)
    assert store.pool.take(2) == [c, b]
    assert store.driver.calls()["create"] == 3
    store.pool.give_back([c, b])


def test_a_handle_given_out_again_has_a_new_generation(store: Store) -> None:
    [handle] = store.pool.take(1)
    first = handle.identity
    store.pool.give_back([handle])
    [again] = store.pool.take(1)
    assert (again.identity.number, again.identity.generation) == (first.number, first.generation + 1)
    store.pool.give_back([again])


def test_no_identity_is_ever_used_twice(store: Store) -> None:
    seen = set()
    for count in (1, 5, 2, 6):
        handles = store.pool.take(count)
        identities = {handle.identity for handle in handles}
        assert not identities & seen
        seen |= identities
        store.pool.give_back(handles)


def test_the_pool_keeps_its_bound_and_releases_the_oldest(store: Store) -> None:
    handles = store.pool.take(5)
    store.pool.give_back(handles)
    assert store.counts() == (3, 0, 0)
    assert store.pool.take(3) == [handles[4], handles[3], handles[2]]
    store.pool.give_back(handles[2:])


def test_taking_none_is_nothing(store: Store) -> None:
    assert store.pool.take(0) == []
    assert store.counts() == (0, 0, 0)


def test_a_third_create_that_fails_undoes_the_earlier_two_newest_first_and_leaves_the_pool(store: Store) -> None:
    kept = store.pool.take(2)
    store.pool.give_back(kept)
    store.driver.follow(failing_named("create", 3))
    with pytest.raises(DriverError):
        store.pool.take(5)
    calls = store.driver.since_plan()
    assert [call.name for call in calls] == ["create", "create", "create", "release", "release"]
    assert store.counts() == (2, 0, 0)
    assert store.pool.drain_lost() == 0
    assert store.pool.take(2) == [kept[1], kept[0]]
    store.pool.give_back(kept)


def test_an_undo_that_fails_too_is_quarantined_reported_once_and_stops_no_other(store: Store) -> None:
    store.driver.follow(lambda name, before: len(before) in (2, 3))  # the third create, and the first release
    with pytest.raises(Quarantined) as caught:
        store.pool.take(4)
    [residue] = caught.value.residue
    assert residue.size_bytes == GRANULE
    assert [call.name for call in store.driver.since_plan()][3:] == ["release", "release"]
    assert store.counts() == (0, 0, 1)
    assert store.pool.drain_lost() == GRANULE
    assert store.pool.drain_lost() == 0


def test_taking_fails_at_any_call_and_changes_nothing_or_says_what_it_lost(store: Store) -> None:
    for failing_call in itertools.count(1):
        store.driver.follow(failing(failing_call))
        try:
            taken = store.pool.take(4)
        except DriverError:
            assert store.counts() == (0, 0, 0)
        else:
            break
    assert failing_call == 5
    store.driver.follow(failing_every("release"))
    store.pool.give_back(taken)
    assert store.counts() == (3, 0, 1)
    assert store.pool.drain_lost() == GRANULE


def test_a_handle_that_is_not_out_cannot_come_back(store: Store) -> None:
    [handle] = store.pool.take(1)
    store.pool.give_back([handle])
    with pytest.raises(InvariantBroken):
        store.pool.give_back([handle])


def test_quarantined_handles_are_counted_and_come_back_to_the_pool_only_explicitly(store: Store) -> None:
    handles = store.pool.take(2)
    store.pool.quarantine(handles)
    assert store.counts() == (0, 0, 2)
    assert not set(store.pool.take(2)) & set(handles)
    store.pool.give_back(handles)
    assert store.counts() == (2, 2, 0)
