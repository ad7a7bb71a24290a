"""While a graph is captured nothing can be released: nothing is lost for that, and it is made up for afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.testing.faulty_driver import failing_every
from tests.memory.store import BULK, CAPACITY, GRANULE, Store


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store()
    yield store
    store.clear()


def sealed(store: Store, count: int) -> list[Handle]:
    handles = store.take(count)
    for handle in handles:
        store.driver.seal(handle.physical)
        handle.is_sealed = handle.was_handed_over = True
    store.pool.share(handles)
    return handles


def test_what_comes_back_beyond_the_bound_stays_pooled_and_goes_with_the_next(store: Store) -> None:
    handles = store.take(6)
    with capture_gate.closed(Meanwhile.REFUSE):
        store.pool.give_back(handles[:5])
    assert (store.counts(), store.pool.drain_lost()) == ((5, 1, 0), {})
    store.pool.give_back(handles[5:])
    assert store.counts() == (3, 0, 0)


def test_sealed_memory_waits_to_be_released_and_is_lent_to_nobody(store: Store) -> None:
    handles = sealed(store, 2)
    with capture_gate.closed(Meanwhile.REFUSE):
        store.pool.destroy(handles)
    assert (store.counts(), store.pool.drain_lost(), store.pool.drain_forgotten()) == ((2, 0, 0), {}, [])
    known = frozenset(handle.identity for handle in handles)
    assert not set(store.pool.take([GRANULE] * 2, tenant="a", known=known)) & set(handles)
    assert store.counts() == (2, 2, 0)
    store.pool.trim(3 * GRANULE)
    assert (store.counts(), set(store.pool.drain_forgotten())) == ((0, 2, 0), set(known))


def test_memory_that_waits_to_be_released_makes_room(store: Store) -> None:
    handles = sealed(store, CAPACITY)
    with capture_gate.closed(Meanwhile.REFUSE):
        store.pool.destroy(handles)
        with pytest.raises(DriverError, match=r"release .* EBUSY"):
            store.take(1)
    assert store.counts() == (CAPACITY, 0, 0)
    store.take(CAPACITY)
    assert store.counts() == (0, CAPACITY, 0)


def test_a_pooled_handle_that_cannot_make_room_is_still_there(store: Store) -> None:
    store.pool.give_back(store.take(CAPACITY - 2)[:3])
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match="EBUSY"):
        store.pool.take([BULK], tenant="a")
    assert (store.counts(), store.pool.drain_lost()) == ((3, CAPACITY - 5, 0), {})
    store.pool.take([BULK], tenant="a")


def test_what_cannot_be_scrubbed_now_is_neither_lent_nor_destroyed(store: Store) -> None:
    [handle] = store.take(1, "a")
    store.write(handle, b"s")
    store.pool.give_back([handle])
    with capture_gate.closed(Meanwhile.REFUSE), pytest.raises(DriverError, match="EBUSY"):
        store.take(1, "b")
    assert (store.counts(), store.pool.drain_lost()) == ((1, 0, 0), {})
    [again] = store.take(1, "b")
    assert (again is handle, store.read(again)) == (True, {0})


def test_less_capacity_is_made_up_for_afterwards(store: Store) -> None:
    store.pool.give_back(store.take(3))
    with capture_gate.closed(Meanwhile.REFUSE):
        store.pool.resize(GRANULE)
    assert store.pool.bytes_in(HandleState.POOLED) == 3 * GRANULE
    store.pool.resize(GRANULE)
    assert store.counts() == (1, 0, 0)


def test_a_release_that_fails_outside_a_capture_is_a_loss(store: Store) -> None:
    handles = sealed(store, 2)
    with capture_gate.closed(Meanwhile.REFUSE):
        store.pool.destroy(handles)
    store.driver.follow(failing_every("release"))
    store.pool.trim(0)
    assert (store.counts(), store.pool.drain_lost()) == ((0, 0, 2), {"": 2 * GRANULE})
