"""A grant's number is used once, its end is remembered for a while, and no table grows for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.grants import MOST_ENDED
from kvcluster.budget.ledger import FREE, Ledger, account_of
from kvcluster.budget.numbers import MOST_RANGES, Numbers
from kvcluster.errors import GrantRefused, NotAllowed
from kvcluster.ids import GrantId, RequestId
from kvcluster.testing.clock import ManualClock
from tests.examples import examples

REQUEST = RequestId("s", 1)
CAPACITY = 1000


def governor() -> Governor:
    return Governor(Ledger(CAPACITY), clock=ManualClock(), limits=Limits())


def spend(desk: Governor, number: int, request: RequestId = REQUEST) -> None:
    desk.ask(GrantId(request, number), 1, oldest_arrival=None)
    desk.spend(GrantId(request, number), 0, account=account_of(request))


def reason(desk: Governor, number: int) -> str:
    with pytest.raises(GrantRefused) as caught:
        desk.check(GrantId(REQUEST, number), 0)
    return caught.value.reason


def test_a_long_life_of_spent_grants_costs_no_more_than_a_bound() -> None:
    desk = governor()
    for number in range(3 * MOST_ENDED):
        spend(desk, number)
    assert desk.remembered == MOST_ENDED + 1


def test_a_late_commit_is_told_what_became_of_its_grant_while_that_is_remembered_and_missing_after() -> None:
    desk = governor()
    for number in range(MOST_ENDED + 1):
        spend(desk, number)
    assert (reason(desk, 1), reason(desk, 0)) == ("spent", "missing")


def test_a_number_is_never_given_again_however_long_ago_it_was_used() -> None:
    desk = governor()
    for number in range(MOST_ENDED + 10):
        spend(desk, number)
    for number in (0, 5, MOST_ENDED + 9):
        with pytest.raises(NotAllowed, match="choose a new number"):
            spend(desk, number)


def test_a_number_is_used_for_the_whole_session_also_after_its_request_closed() -> None:
    desk = governor()
    spend(desk, 1)
    desk.close(REQUEST)
    with pytest.raises(NotAllowed):
        spend(desk, 1, RequestId("s", 2))
    spend(desk, 1, RequestId("t", 1))


def test_a_client_that_leaves_gaps_cannot_make_the_table_grow() -> None:
    desk = governor()
    for number in range(0, 4 * MOST_RANGES, 2):
        spend(desk, number)
    assert desk.remembered == MOST_ENDED + MOST_RANGES


def test_an_ended_session_is_forgotten() -> None:
    desk = governor()
    spend(desk, 1)
    desk.close(REQUEST)
    desk.end("s")
    desk.end("s")
    assert desk.remembered == 0


def test_a_commit_is_undone_also_where_its_grant_was_forgotten_meanwhile_and_its_bytes_are_free() -> None:
    ledger = Ledger(CAPACITY)
    desk = Governor(ledger, clock=ManualClock(), limits=Limits())
    first = GrantId(REQUEST, 0)
    desk.ask(first, 100, oldest_arrival=None)
    desk.spend(first, 60, account=account_of(REQUEST))
    for number in range(1, MOST_ENDED + 1):
        spend(desk, number)
    desk.unspend(first, 60, account=account_of(REQUEST))
    assert dict(ledger.balances()) == {FREE: CAPACITY}
    desk.forget(first)
    desk.forget(GrantId(RequestId("nobody", 1), 1))


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=80))
def test_numbers_hold_what_a_plain_set_holds(acts: list[tuple[bool, int]]) -> None:
    numbers, plain = Numbers(), set[int]()
    for adds, number in acts:
        (numbers.add if adds else numbers.discard)(number)
        (plain.add if adds else plain.discard)(number)
        assert {number for number in range(-1, 22) if number in numbers} == plain
        assert numbers.ranges == sum(number - 1 not in plain for number in plain)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.integers(0, 60), max_size=80))
def test_with_gaps_closed_nothing_that_was_added_is_missing_and_nothing_above_is_added(added: list[int]) -> None:
    numbers = Numbers(most_ranges=3)
    for number in added:
        numbers.add(number)
        assert numbers.ranges <= 3
    assert all(number in numbers for number in added)
    assert max(added, default=-1) + 1 not in numbers
    assert min(added, default=0) - 1 not in numbers
