"""An audit finds each way in which the books can be wrong, and says both figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.budget.ledger import FREE, Account, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.geometry.residency import GroupShape
from kvcluster.ids import GrantId, RequestId
from kvcluster.memory.handle import HandleState
from kvcluster.services.audit import audit_memory
from kvcluster.services.device_memory import DeviceMemory, MemorySettings, Opening
from kvcluster.services.work import Work
from kvcluster.testing.clock import ManualClock
from kvcluster.testing.tidy_driver import TidyDriver

GRANULE = 4096
REQUEST, OTHER = RequestId("s", 1), RequestId("s", 2)
GRANTED, QUARANTINE = Account.granted(""), Account.quarantine("")


class Books:
    """A device's memory with four windows committed, two more that are a prefix's, and a granule of grant held.

    Another request has joined the prefix, and holds nothing; of a third, two windows are retained, and can be found.
    """

    def __init__(self) -> None:
        self.driver = TidyDriver(granule_bytes=GRANULE, capacity_bytes=32 * GRANULE)
        settings = MemorySettings(16 * GRANULE, GRANULE, 16 * GRANULE)
        self.memory = DeviceMemory(self.driver, settings, clock=ManualClock())
        self.grown(REQUEST, 1, 6)
        self.grown(RequestId("s", 3), 2, 2)
        self.done(lambda work: self.memory.close(RequestId("s", 3), work, retain_tokens=32, token_ids=bytes(128)))
        self.share()
        self.done(lambda work: self.memory.spending.grant(GrantId(REQUEST, 3), GRANULE, work))

    def grown(self, request: RequestId, grant: int, granules: int) -> None:
        self.memory.open(request, Opening((GroupShape(1, 256),), 160, cache_root=b"root"))
        self.done(lambda work: self.memory.spending.grant(GrantId(request, grant), granules * GRANULE, work))
        self.done(lambda work: self.memory.spending.commit(GrantId(request, grant), 16 * granules, work))

    def share(self) -> None:
        owner, sharing = self.memory.requests.find(REQUEST), self.memory.sharing
        self.done(lambda work: sharing.publish(owner, 32, work))
        self.done(lambda work: sharing.seal(owner, 2, work))
        self.memory.open(OTHER, Opening((GroupShape(1, 256),), 160))
        self.done(lambda work: sharing.join(self.memory.requests.find(OTHER), 2, 32, work))

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
    books.memory.books.ledger.post(GRANULE, debit=FREE, credit=GRANTED)


def charged_to_a_stranger(books: Books) -> None:
    books.memory.books.ledger.post(GRANULE, debit=FREE, credit=account_of(RequestId("s", 2)))


def charged_too_little(books: Books) -> None:
    books.memory.books.ledger.post(GRANULE, debit=account_of(REQUEST), credit=FREE)


def quarantined_by_nobody(books: Books) -> None:
    books.memory.books.ledger.post(GRANULE, debit=FREE, credit=QUARANTINE)


def quarantined_without_a_handle(books: Books) -> None:
    quarantined_by_nobody(books)
    books.memory.books.quarantine.lose({"": GRANULE})


def taken_by_nobody(books: Books) -> None:
    books.memory.books.pool.take([GRANULE], tenant="")


def charged_to_another_tenant(books: Books) -> None:
    books.memory.books.ledger.post(GRANULE, debit=account_of(REQUEST), credit=account_of(REQUEST, "acme"))


def charged_to_a_prefix_too_much(books: Books) -> None:
    books.memory.books.ledger.post(GRANULE, debit=FREE, credit=Account.prefix(2, ""))


def retained_and_used_at_once(books: Books) -> None:
    books.memory.books.ledger.post(2 * GRANULE, debit=Account.prefix(2, ""), credit=Account.retained(2, ""))


def idle_and_used_at_once(books: Books) -> None:
    next(prefix for prefix in books.memory.books.prefixes if prefix.users).is_idle = True


def used_by_a_stranger(books: Books) -> None:
    next(prefix for prefix in books.memory.books.prefixes if prefix.users).users.add(RequestId("s", 9))


def used_without_the_prefix_knowing(books: Books) -> None:
    next(prefix for prefix in books.memory.books.prefixes if prefix.users).users.discard(OTHER)


def written_by_nobody(books: Books) -> None:
    books.memory.requests.find(REQUEST).writing = next(iter(books.memory.books.prefixes))


def created_behind_the_pool(books: Books) -> None:
    books.driver.create(GRANULE)


def pooled_beyond_what_is_free(books: Books) -> None:
    books.memory.books.pool.give_back(books.memory.books.pool.take([GRANULE] * 7, tenant=""))
    books.memory.books.ledger.resize(9 * GRANULE)


def pooled_and_reachable_by_nobody(books: Books) -> None:
    books.memory.books.pool.give_back([handle := books.memory.books.pool.take([GRANULE], tenant="")[0]])
    handle.move(HandleState.OUT)  # behind the pool's back


def reserved_by_nobody(books: Books) -> None:
    books.memory.requests.reserved_bytes += 1


def found_and_not_there(books: Books) -> None:
    books.memory.books.index.insert(b"root", bytes(128), 99)


def found_with_more_tokens_than_it_has(books: Books) -> None:
    index, [number] = books.memory.books.index, [*books.memory.books.index]
    index.remove(number)
    index.insert(b"root", bytes(4 * 33), number)


def found_and_not_kept(books: Books) -> None:
    next(prefix for prefix in books.memory.books.prefixes if prefix.content).is_kept = False


def claimed_by_a_stranger(books: Books) -> None:
    books.memory.books.index.claim(b"root", bytes(64), RequestId("s", 9))


def capacity_that_grew(books: Books) -> None:
    books.memory.books.ledger.capacity_bytes += GRANULE


@pytest.mark.parametrize(
    "wrong",
    [
        granted_by_nobody,
        charged_to_a_stranger,
        charged_too_little,
        quarantined_by_nobody,
        quarantined_without_a_handle,
        taken_by_nobody,
        charged_to_another_tenant,
        charged_to_a_prefix_too_much,
        retained_and_used_at_once,
        idle_and_used_at_once,
        used_by_a_stranger,
        used_without_the_prefix_knowing,
        written_by_nobody,
        created_behind_the_pool,
        pooled_beyond_what_is_free,
        pooled_and_reachable_by_nobody,
        reserved_by_nobody,
        capacity_that_grew,
        found_and_not_there,
        found_with_more_tokens_than_it_has,
        found_and_not_kept,
        claimed_by_a_stranger,
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


@pytest.mark.parametrize("bulk_bytes", [-GRANULE, 1024, GRANULE + 1])
def test_a_bulk_handle_that_is_no_whole_number_of_granules_is_refused(bulk_bytes: int) -> None:
    with pytest.raises(ValueError, match=rf"{bulk_bytes} bytes .* 4096 bytes"):
        MemorySettings(16 * GRANULE, GRANULE, 0, bulk_bytes=bulk_bytes)
