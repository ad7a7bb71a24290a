"""The accounts of a device always sum to its capacity, and none goes below zero."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.ledger import FREE, GRANTED, QUARANTINE, Account, Ledger, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.ids import RequestId

CAPACITY = 1000
accounts = st.sampled_from([FREE, GRANTED, QUARANTINE, Account("request", "a/1.0"), Account("request", "a/2.0")])
postings = st.lists(st.tuples(st.integers(-10, CAPACITY + 10), accounts, accounts), max_size=40)


@settings(deadline=None, max_examples=50)
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
