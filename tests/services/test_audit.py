"""An audit finds each way in which the books can be wrong, and says both figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.budget.ledger import FREE, GRANTED, QUARANTINE, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.geometry.residency import GroupShape
from kvcluster.ids import GrantId, RequestId
from kvcluster.memory.handle import HandleState
from kvcluster.services.audit import audit_memory
from kvcluster.services.device_memory import DeviceMemory, MemorySettings
from kvcluster.services.work import Work
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver

GRANULE = 4096
REQUEST = RequestId("s", 1)


class Books:
    """A device's memory with four windows committed and a granule of grant held."""

    def __init__(self) -> None:
        self.driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=32 * GRANULE)
        self.memory = DeviceMemory(
            self.driver, MemorySettings(16 * GRANULE, GRANULE, 16 * GRANULE), clock=ManualClock()
        )
        self.memory.open(REQUEST, (GroupShape(1, 256),), 160)
        self.done(lambda work: self.memory.grant(GrantId(REQUEST, 1), 4 * GRANULE, work))
        self.done(lambda work: self.memory.commit(GrantId(REQUEST, 1), 64, work))
        self.done(lambda work: self.memory.grant(GrantId(REQUEST, 2), GRANULE, work))

    def done(self, act: Callable[[Work], object]) -> None:
        work = Work()
        with work.txn:
            act(work)
            work.txn.keep()
        work.follow()


@pytest.fixture
def books() -> Iterator[Books]:
    books = Books()
    yield books
    books.driver.clear()


def granted_by_nobody(books: Books) -> None:
    books.memory.ledger.post(GRANULE, debit=FREE, credit=GRANTED)


def charged_to_a_stranger(books: Books) -> None:
    books.memory.ledger.post(GRANULE, debit=FREE, credit=account_of(RequestId("s", 2)))


def charged_too_little(books: Books) -> None:
    books.memory.ledger.post(GRANULE, debit=account_of(REQUEST), credit=FREE)


def quarantined_by_nobody(books: Books) -> None:
    books.memory.ledger.post(GRANULE, debit=FREE, credit=QUARANTINE)


def quarantined_without_a_handle(books: Books) -> None:
    quarantined_by_nobody(books)
    books.memory.quarantine.lose(GRANULE)


def taken_by_nobody(books: Books) -> None:
    books.memory.pool.take(1)


def created_behind_the_pool(books: Books) -> None:
    books.driver.create(GRANULE)


def pooled_beyond_what_is_free(books: Books) -> None:
    books.memory.pool.give_back(books.memory.pool.take(13))


def pooled_and_reachable_by_nobody(books: Books) -> None:
    books.memory.pool.give_back([handle := books.memory.pool.take(1)[0]])
    handle.move(HandleState.OUT)  # behind the pool's back


def reserved_by_nobody(books: Books) -> None:
    books.memory.reserved_bytes += 1


def capacity_that_grew(books: Books) -> None:
    books.memory.ledger.capacity_bytes += GRANULE


@pytest.mark.parametrize(
    "wrong",
    [
        granted_by_nobody,
        charged_to_a_stranger,
        charged_too_little,
        quarantined_by_nobody,
        quarantined_without_a_handle,
        taken_by_nobody,
        created_behind_the_pool,
        pooled_beyond_what_is_free,
        pooled_and_reachable_by_nobody,
        reserved_by_nobody,
        capacity_that_grew,
    ],
)
def test_an_audit_finds_what_does_not_sum(books: Books, wrong: Callable[[Books], None]) -> None:
    audit_memory(books.memory, books.driver)
    wrong(books)
    with pytest.raises(InvariantBroken, match=r"\d+"):
        audit_memory(books.memory, books.driver)


@pytest.mark.parametrize("capacity_bytes", [0, 1024, GRANULE + 1, 16 * GRANULE - 1])
def test_a_capacity_that_is_no_whole_number_of_granules_is_refused_in_one_sentence(capacity_bytes: int) -> None:
    with pytest.raises(ValueError, match=rf"{capacity_bytes} bytes .* 4096 bytes"):
        MemorySettings(capacity_bytes, GRANULE, 0)
