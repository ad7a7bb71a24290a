"""Handles created ahead: bounded, never in the way of what needs memory, and never a deadlock."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest

from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.memory.handle import Handle, HandleState, bytes_of
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.faulty_driver import failing, failing_every
from tests.memory.store import BULK, CAPACITY, GRANULE, Store


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(limit=6)
    yield store
    store.clear()


def test_a_few_are_created_a_call_until_the_target_is_pooled(store: Store) -> None:
    steps = [(store.pool.fill(5 * GRANULE, most=2), store.counts()[0]) for _ in range(4)]
    assert steps == [(True, 2), (True, 4), (False, 5), (False, 5)]
    assert store.pool.created_ahead == 5


def test_what_was_created_ahead_is_taken_without_a_create(store: Store) -> None:
    store.pool.fill(4 * GRANULE)
    made = store.made()
    store.take(4)
    assert store.made() == made


def test_the_filler_passes_neither_the_pools_bound_nor_the_capacity(store: Store) -> None:
    assert not store.pool.fill(100 * GRANULE, most=100)
    assert store.counts() == (6, 0, 0)
    store.take(CAPACITY - 2)
    assert not store.pool.fill(100 * GRANULE, most=100)
    assert store.counts() == (2, CAPACITY - 2, 0)


def test_a_target_of_less_than_a_granule_creates_nothing(store: Store) -> None:
    assert not store.pool.fill(GRANULE - 1)
    assert store.driver.log() == ()


def test_the_filler_destroys_nothing_to_make_room(store: Store) -> None:
    store.pool.give_back(store.pool.take([BULK], tenant="a"))
    assert not store.pool.fill(4 * GRANULE)
    assert store.pool.pooled_bytes == BULK
    assert store.made() == 1


def test_a_create_that_fails_ends_filling_for_this_time_and_keeps_what_is_there(store: Store) -> None:
    store.driver.follow(failing(3))
    assert not store.pool.fill(6 * GRANULE)
    assert store.counts() == (2, 0, 0)
    assert store.pool.fill(6 * GRANULE, most=2)


def test_new_memory_that_cannot_be_scrubbed_is_not_pooled(store: Store) -> None:
    store.take(1, "a")
    store.take(1, "b")
    store.driver.follow(failing_every("scrub"))
    assert not store.pool.fill(6 * GRANULE)
    assert store.counts() == (0, 2, 0)


class Device:
    """What a device service does under its lock, as far as pool, ledger and governor are concerned."""

    def __init__(self, store: Store) -> None:
        self.store, self.lock = store, threading.Lock()
        self.ledger = Ledger(CAPACITY * GRANULE)
        self.governor = Governor(self.ledger, clock=ManualClock(), limits=Limits())
        self.handles: dict[RequestId, list[Handle]] = {}
        self.grants = 0

    def commit(self, request: RequestId, tenant: str, sizes: list[int]) -> bool:
        """Whether there was room."""
        with self.lock:
            self.grants += 1
            identity = GrantId(request, self.grants)
            try:
                self.governor.ask(identity, sum(sizes), tenant=tenant, oldest_arrival=None)
            except OutOfBudget:
                return False
            self.handles.setdefault(request, []).extend(self.store.pool.take(sizes, tenant=tenant))
            self.governor.spend(identity, sum(sizes), account=account_of(request, tenant))
            self.check()
            return True

    def release(self, request: RequestId, tenant: str) -> None:
        with self.lock:
            handles = self.handles.pop(request, [])
            self.ledger.post(bytes_of(handles), debit=account_of(request, tenant), credit=FREE)
            self.store.pool.give_back(handles)
            self.check()

    def fill(self) -> bool:
        with self.lock:
            more = self.store.pool.fill(self.ledger.balance(FREE) + self.ledger.total("granted"))
            self.check()
            return more

    def trim(self, limit_bytes: int) -> None:
        with self.lock:
            self.store.pool.trim(limit_bytes)
            self.check()

    def check(self) -> None:
        self.ledger.check()
        self.store.counts()
        spendable = self.ledger.balance(FREE) + self.ledger.total("granted")
        assert self.store.pool.bytes_in(HandleState.POOLED) <= spendable
        assert self.ledger.total("request") == self.store.pool.bytes_in(HandleState.OUT)


def committer(device: Device, number: int) -> None:
    draw, tenant, request = random.Random(number), "ab"[number % 2], RequestId("s", number)
    for _ in range(1500):
        if not device.commit(request, tenant, draw.choices([GRANULE, BULK], [3, 1], k=draw.randint(1, 3))):
            device.release(request, tenant)
    device.release(request, tenant)


def filler(device: Device) -> None:
    for _ in range(3000):
        device.fill()


def trimmer(device: Device) -> None:
    for count in range(1000):
        device.trim(count % 5 * GRANULE)


def capturer() -> None:
    for _ in range(1000):
        with capture_gate.closed(Meanwhile.WAIT):
            pass


def test_filling_beside_commits_releases_trims_and_captures_ends(store: Store) -> None:
    device = Device(store)
    failures: list[BaseException] = []

    def watched(act: object, *args: object) -> threading.Thread:
        def run() -> None:
            try:
                act(*args)  # type: ignore[operator]
            except BaseException as failure:  # noqa: BLE001 (told to the test's own thread)
                failures.append(failure)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    threads = [watched(committer, device, number) for number in (1, 2)]
    threads += [watched(filler, device), watched(trimmer, device), watched(capturer)]
    for thread in threads:
        thread.join(timeout=60)
    assert not [thread for thread in threads if thread.is_alive()]
    assert failures == []
    assert device.ledger.balance(FREE) == CAPACITY * GRANULE
    assert device.ledger.balance(Account.quarantine("a")) == 0
