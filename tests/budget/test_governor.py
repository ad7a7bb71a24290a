"""No grant, no commit: what a grant goes through, and what it never does."""

from __future__ import annotations

import pytest

from kvcluster.budget.admission import Headroom
from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.errors import GrantRefused, InvariantBroken, NotAllowed, OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.testing.clock import ManualClock

REQUEST, OTHER = RequestId("s", 1), RequestId("s", 2)
ONE = GrantId(REQUEST, 1)
CAPACITY = 1000
GRANTED, QUARANTINE = Account.granted(""), Account.quarantine("")


class Desk:
    """A governor over a ledger of 1000 bytes, and what its tests look at."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger(CAPACITY)
        self.governor = Governor(self.ledger, clock=self.clock, limits=limits or Limits())

    def ask(self, identity: GrantId = ONE, size_bytes: int = 100, headroom_bytes: int = 0) -> GrantId:
        self.governor.ask(identity, size_bytes, headroom=Headroom(headroom_bytes), oldest_arrival=7)
        return identity

    def refused(self, identity: GrantId, size_bytes: int = 100) -> GrantRefused:
        before = dict(self.ledger.balances())
        with pytest.raises(GrantRefused) as caught:
            self.governor.check(identity, size_bytes)
        assert dict(self.ledger.balances()) == before
        return caught.value

    def state(self, identity: GrantId) -> str:
        """What a commit by this grant would find."""
        try:
            self.governor.check(identity, 0)
        except GrantRefused as refused:
            return refused.reason
        return "held"

    def balanced(self) -> None:
        self.ledger.check()
        assert self.governor.held_bytes() == self.ledger.balance(GRANTED)


def test_a_grant_holds_its_bytes_so_that_nobody_else_gets_them() -> None:
    desk = Desk()
    desk.ask(size_bytes=600)
    with pytest.raises(OutOfBudget) as caught:
        desk.ask(GrantId(OTHER, 2), 600)
    assert (caught.value.need, caught.value.free, caught.value.oldest_arrival) == (600, 400, 7)
    assert desk.state(ONE) == "held"
    assert desk.state(GrantId(OTHER, 2)) == "missing"
    desk.balanced()


def test_a_grant_leaves_the_headroom_free_and_the_refusal_counts_it_as_taken() -> None:
    desk = Desk()
    with pytest.raises(OutOfBudget) as caught:
        desk.ask(size_bytes=600, headroom_bytes=401)
    assert caught.value.free == 599
    desk.ask(size_bytes=600, headroom_bytes=400)


def test_more_headroom_than_is_free_reads_as_nothing_free_and_never_as_less() -> None:
    desk = Desk()
    with pytest.raises(OutOfBudget) as caught:
        desk.ask(size_bytes=1, headroom_bytes=CAPACITY + 500)
    assert caught.value.free == 0


def test_spending_pays_what_is_needed_and_returns_the_rest() -> None:
    desk = Desk()
    desk.ask(size_bytes=100)
    desk.governor.spend(ONE, 60, account=account_of(REQUEST))
    assert dict(desk.ledger.balances()) == {FREE: 940, account_of(REQUEST): 60}
    assert desk.state(ONE) == "spent"
    desk.balanced()


def test_a_spent_grant_whose_commit_is_undone_is_held_again_whole() -> None:
    desk = Desk()
    desk.ask(size_bytes=100)
    desk.governor.spend(ONE, 60, account=account_of(REQUEST))
    desk.governor.unspend(ONE, 60, account=account_of(REQUEST))
    assert desk.state(ONE) == "held"
    assert dict(desk.ledger.balances()) == {FREE: 900, GRANTED: 100}
    desk.governor.check(ONE, 100)


def test_a_grant_held_again_expires_even_if_its_time_ended_while_it_was_spent() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.spend(ONE, 60, account=account_of(REQUEST))
    desk.clock.advance(6)
    desk.governor.collect_expired()
    desk.governor.unspend(ONE, 60, account=account_of(REQUEST))
    assert desk.state(ONE) == "expired"
    assert dict(desk.ledger.balances()) == {FREE: CAPACITY}


def test_a_grant_that_nobody_asked_for_is_missing() -> None:
    assert Desk().refused(ONE).reason == "missing"


def test_a_spent_grant_is_refused_as_spent() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.spend(ONE, 100, account=account_of(REQUEST))
    assert desk.refused(ONE).reason == "spent"


def test_a_grant_expires_on_its_second_and_its_bytes_are_free() -> None:
    desk = Desk()
    desk.ask()
    desk.clock.advance(4.999)
    desk.governor.check(ONE, 100)
    desk.clock.advance(0.001)
    assert desk.state(ONE) == "expired"
    assert desk.refused(ONE).reason == "expired"
    assert desk.ledger.balance(FREE) == CAPACITY


def test_expired_bytes_are_there_for_the_next_who_asks() -> None:
    desk = Desk()
    desk.ask(size_bytes=CAPACITY)
    desk.clock.advance(5)
    desk.ask(GrantId(OTHER, 2), CAPACITY)
    desk.balanced()


def test_a_returned_grant_is_refused_as_returned_and_returns_once() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.give_back(ONE)
    assert desk.refused(ONE).reason == "returned"
    with pytest.raises(GrantRefused, match="returned"):
        desk.governor.give_back(ONE)
    assert desk.ledger.balance(FREE) == CAPACITY


def test_another_requests_grant_is_foreign() -> None:
    desk = Desk()
    desk.ask(GrantId(OTHER, 1))
    assert desk.refused(ONE).reason == "foreign"
    with pytest.raises(GrantRefused, match="foreign"):
        desk.governor.give_back(ONE)


def test_another_sessions_number_is_another_grant() -> None:
    desk = Desk()
    desk.ask(GrantId(RequestId("t", 1), 1))
    assert desk.refused(ONE).reason == "missing"


def test_a_grant_too_small_says_what_is_needed_and_what_it_holds() -> None:
    desk = Desk()
    desk.ask(size_bytes=99)
    refusal = desk.refused(ONE, 100)
    assert (refusal.reason, refusal.need, refusal.granted) == ("too-small", 100, 99)
    desk.governor.check(ONE, 99)


def test_a_number_is_used_once_in_a_session_whatever_became_of_its_grant() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.give_back(ONE)
    for identity in (ONE, GrantId(OTHER, 1)):
        with pytest.raises(NotAllowed, match="choose a new number"):
            desk.ask(identity)


def test_a_forgotten_grant_was_never_asked_for() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.forget(ONE)
    assert desk.refused(ONE).reason == "missing"
    assert desk.ledger.balance(FREE) == CAPACITY


def test_a_grant_is_forgotten_also_where_its_time_ended_meanwhile() -> None:
    desk = Desk()
    desk.ask()
    desk.clock.advance(5)
    desk.governor.collect_expired()
    desk.governor.forget(ONE)
    assert desk.refused(ONE).reason == "missing"
    assert desk.ledger.balance(FREE) == CAPACITY


def test_a_number_asked_for_again_after_it_was_forgotten_has_its_own_full_time() -> None:
    desk = Desk()
    desk.ask()
    desk.governor.forget(ONE)
    desk.clock.advance(3)
    desk.ask()
    desk.clock.advance(3)
    assert desk.state(ONE) == "held"
    desk.clock.advance(2)
    assert desk.state(ONE) == "expired"


def test_what_a_failed_undo_leaves_behind_leaves_the_grant() -> None:
    desk = Desk()
    desk.ask(size_bytes=100)
    desk.governor.lose({"": 30}, out_of=ONE)
    assert dict(desk.ledger.balances()) == {FREE: 900, GRANTED: 70, QUARANTINE: 30}
    assert desk.refused(ONE, 71).granted == 70
    desk.governor.give_back(ONE)
    assert dict(desk.ledger.balances()) == {FREE: 970, QUARANTINE: 30}


def test_closing_a_request_returns_what_it_holds() -> None:
    desk = Desk()
    for number in (1, 2, 3):
        desk.ask(GrantId(REQUEST, number))
    desk.ask(GrantId(OTHER, 4))
    desk.governor.spend(ONE, 100, account=account_of(REQUEST))
    desk.governor.close(REQUEST)
    assert dict(desk.ledger.balances()) == {FREE: 800, GRANTED: 100, account_of(REQUEST): 100}
    assert desk.state(GrantId(REQUEST, 2)) == "returned"
    desk.clock.advance(5)
    desk.governor.collect_expired()
    assert desk.ledger.balance(FREE) == 900


def test_closing_a_request_that_never_asked_changes_nothing() -> None:
    desk = Desk()
    desk.governor.close(REQUEST)
    desk.balanced()


def test_a_grant_that_expired_cannot_be_spent_by_mistake() -> None:
    desk = Desk()
    desk.ask()
    desk.clock.advance(5)
    desk.governor.collect_expired()
    with pytest.raises(InvariantBroken):
        desk.governor.spend(ONE, 100, account=account_of(REQUEST))


def test_the_wait_told_grows_with_what_is_missing_and_shrinks_with_what_comes_back() -> None:
    desk = Desk(Limits(least_retry_s=0.01, most_retry_s=1e9, busy_retry_s=1e9))
    desk.ask(size_bytes=CAPACITY)
    desk.governor.freed(100)
    waits = [desk.governor.refusal(size, oldest_arrival=None).retry_after_s for size in (10, 100, 900)]
    assert waits == sorted(waits)
    assert waits[0] < waits[2]
    desk.governor.freed(900)
    assert desk.governor.refusal(900, oldest_arrival=None).retry_after_s < waits[2]


def test_the_wait_told_is_short_while_somebody_has_bytes_that_may_come_back() -> None:
    desk = Desk()
    desk.ask(size_bytes=CAPACITY)
    assert desk.governor.refusal(1, oldest_arrival=None).retry_after_s == 0.1
    desk.governor.freed(1)
    for elapsed_s in (0, 100, 1e5, 1e9):
        desk.clock.advance(elapsed_s)
        assert desk.governor.refusal(900, oldest_arrival=None).retry_after_s == 2.0


def test_with_only_the_quarantine_in_the_way_the_wait_told_is_at_most_the_limit_and_the_quarantine_is_named() -> None:
    desk = Desk()
    desk.governor.freed(1)
    desk.ledger.post(CAPACITY, debit=FREE, credit=QUARANTINE)
    refusal = desk.governor.refusal(900, oldest_arrival=None)
    assert (refusal.retry_after_s, refusal.quarantined) == (30.0, CAPACITY)
    assert desk.governor.refusal(900, headroom=Headroom(1), oldest_arrival=None).retry_after_s == 2.0


def test_a_grant_that_was_never_checked_cannot_be_spent_by_mistake() -> None:
    desk = Desk()
    with pytest.raises(InvariantBroken, match="was not checked before"):
        desk.governor.spend(ONE, 100, account=account_of(REQUEST))
    assert dict(desk.ledger.balances()) == {FREE: CAPACITY}


def test_the_time_that_a_grant_is_held_is_told() -> None:
    assert Desk(Limits(grant_s=7.0)).governor.grant_s == 7.0
