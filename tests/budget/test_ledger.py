"""The accounts of a device always sum to its capacity, and none goes below zero."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.ids import RequestId
from tests.examples import examples

CAPACITY = 1000
GRANTED = Account.granted("")
accounts = st.sampled_from(
    [
        FREE,
        GRANTED,
        Account.granted("acme"),
        Account.quarantine(""),
        account_of(RequestId("a", 1), "acme"),
        account_of(RequestId("a", 2)),
        Account.prefix(1, "acme"),
        Account.retained(1, "acme"),
    ]
)
postings = st.lists(st.tuples(st.integers(-10, CAPACITY + 10), accounts, accounts), max_size=40)


@settings(deadline=None, max_examples=examples(50))
@given(postings)
def test_whatever_is_posted_the_accounts_sum_to_the_capacity_and_match_a_plain_count(
    acts: list[tuple[int, Account, Account]],
) -> None:
    ledger, plain = Ledger(CAPACITY), {FREE: CAPACITY}
    for size_bytes, debit, credit in acts:
        if 0 <= size_bytes <= plain.get(debit, 0):
            ledger.post(size_bytes, debit=debit, credit=credit)
            plain[debit] = plain.get(debit, 0) - size_bytes
            plain[credit] = plain.get(credit, 0) + size_bytes
        else:
            with pytest.raises(InvariantBroken):
                ledger.post(size_bytes, debit=debit, credit=credit)
        assert dict(ledger.balances()) == {account: size for account, size in plain.items() if size}
        ledger.check()
    for kind in ("free", "granted", "quarantine", "request", "prefix", "retained"):
        assert ledger.total(kind) == sum(size for account, size in plain.items() if account.kind == kind)
    used = {tenant: sum(s for a, s in plain.items() if a != FREE and a.tenant == tenant) for tenant in ("", "acme")}
    assert {tenant: ledger.used_by(tenant) for tenant in used} == used
    assert dict(ledger.tenants()) == {tenant: size for tenant, size in used.items() if size}
    assert ledger.claimed_bytes == sum(used.values())


def test_a_posting_of_more_than_there_is_moves_nothing_and_says_the_figures() -> None:
    ledger = Ledger(CAPACITY)
    with pytest.raises(InvariantBroken, match="free has 1000 bytes and should pay 1001"):
        ledger.post(CAPACITY + 1, debit=FREE, credit=GRANTED)
    assert dict(ledger.balances()) == {FREE: CAPACITY}


def test_a_negative_amount_is_never_a_way_to_take_bytes_back() -> None:
    ledger = Ledger(CAPACITY)
    ledger.post(10, debit=FREE, credit=GRANTED)
    with pytest.raises(InvariantBroken):
        ledger.post(-10, debit=FREE, credit=GRANTED)
    assert ledger.balance(GRANTED) == 10


def test_an_account_without_bytes_is_not_listed() -> None:
    ledger, mine = Ledger(CAPACITY), account_of(RequestId("a" * 32, 3, 1))
    ledger.post(5, debit=FREE, credit=mine)
    assert str(mine) == f"request/{'a' * 32}/3.1"
    assert mine in ledger.balances()
    ledger.post(5, debit=mine, credit=FREE)
    assert list(ledger.balances()) == [FREE]


def test_two_lives_of_a_request_number_have_two_accounts() -> None:
    assert account_of(RequestId("s", 1, 0)) != account_of(RequestId("s", 1, 1))


def test_balances_cannot_be_written_from_outside() -> None:
    ledger = Ledger(CAPACITY)
    with pytest.raises(TypeError):
        ledger.balances()[FREE] = 0  # type: ignore[index]


@pytest.mark.parametrize("wrong", [CAPACITY - 1, CAPACITY + 1])
def test_a_check_finds_accounts_that_do_not_sum(wrong: int) -> None:
    ledger = Ledger(CAPACITY)
    ledger.capacity_bytes = wrong
    with pytest.raises(InvariantBroken, match=f"sum to 1000 of {wrong}"):
        ledger.check()


def test_a_named_tenant_stands_behind_the_account_and_the_nameless_one_does_not() -> None:
    request = RequestId("b" * 4, 3)
    named = [Account.granted("acme"), account_of(request, "acme"), Account.prefix(7, "acme"), Account.retained(7, "x")]
    assert [str(account) for account in named] == [
        "granted@acme",
        "request/bbbb/3.0@acme",
        "prefix/7@acme",
        "retained/7@x",
    ]
    assert [str(account) for account in (FREE, GRANTED, Account.quarantine(""))] == ["free", "granted", "quarantine"]


def test_two_tenants_of_a_kind_have_two_accounts() -> None:
    ledger = Ledger(CAPACITY)
    ledger.post(10, debit=FREE, credit=Account.quarantine("a"))
    with pytest.raises(InvariantBroken, match="quarantine@b has 0 bytes"):
        ledger.post(10, debit=Account.quarantine("b"), credit=FREE)
    assert (ledger.used_by("a"), ledger.used_by("b"), ledger.total("quarantine")) == (10, 0, 10)


def test_a_capacity_changes_at_the_cost_of_free_alone() -> None:
    ledger = Ledger(CAPACITY)
    ledger.post(300, debit=FREE, credit=GRANTED)
    for capacity, free in ((400, 100), (300, 0), (2000, 1700)):
        ledger.resize(capacity)
        ledger.check()
        assert (ledger.capacity_bytes, ledger.balance(FREE), ledger.claimed_bytes) == (capacity, free, 300)


def test_a_capacity_below_what_is_claimed_is_refused_and_changes_nothing() -> None:
    ledger = Ledger(CAPACITY)
    ledger.post(300, debit=FREE, credit=GRANTED)
    with pytest.raises(InvariantBroken, match="300 bytes are claimed, more than 299"):
        ledger.resize(299)
    assert (ledger.capacity_bytes, ledger.balance(FREE)) == (CAPACITY, 700)
    ledger.check()
