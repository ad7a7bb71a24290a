"""Wait-die at the device: what must stay free beside a newcomer, and who is the oldest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.admission import Admission, Headroom
from kvcluster.budget.ledger import FREE, Account, Ledger
from kvcluster.budget.places import MOST, Places
from kvcluster.budget.quotas import Quotas
from kvcluster.ids import RequestId
from tests.examples import examples

PLENTY = 10**6


def queue(capacity_bytes: int = PLENTY, **quotas: int) -> Admission:
    return Admission(Ledger(capacity_bytes), Quotas(quotas))


def test_arrival_numbers_grow_and_are_never_used_again() -> None:
    admission = queue()
    first = admission.arrive()
    admission.leave(first)
    assert admission.arrive() == first + 1


def test_the_oldest_is_the_lowest_number_that_is_open_running_or_not() -> None:
    admission = queue()
    assert admission.oldest() is None
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(c, 10)
    assert admission.oldest() == a
    admission.leave(b)
    assert admission.oldest() == a
    admission.leave(a)
    assert admission.oldest() == c
    admission.leave(c)
    assert admission.oldest() is None


def test_a_newcomer_leaves_one_growth_of_each_that_runs() -> None:
    admission = queue()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.headroom(c).device_bytes == 30


def test_who_runs_already_needs_no_headroom() -> None:
    admission = queue()
    a, b = admission.arrive(), admission.arrive()
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.is_running(a)
    assert admission.headroom(a).device_bytes == 0


def test_on_an_empty_device_nothing_is_kept_back() -> None:
    admission = queue()
    assert admission.headroom(admission.arrive()).device_bytes == 0


def test_a_newcomer_leaves_what_older_waiters_were_refused_and_an_older_one_ignores_younger() -> None:
    admission = queue()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.refused(b, 50)
    assert admission.headroom(c).device_bytes == 50
    assert admission.headroom(b).device_bytes == 0
    assert admission.headroom(a).device_bytes == 0


def test_a_waiter_counts_once_with_what_it_was_refused_last() -> None:
    admission = queue()
    a, b = admission.arrive(), admission.arrive()
    admission.refused(a, 50)
    admission.refused(a, 30)
    assert admission.headroom(b).device_bytes == 30
    admission.satisfied(a)
    admission.satisfied(a)
    assert admission.headroom(b).device_bytes == 0


def test_who_leaves_takes_its_growth_and_its_wish_along() -> None:
    admission = queue()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.refused(b, 50)
    admission.leave(a)
    admission.leave(b)
    admission.leave(b)
    assert admission.headroom(c).device_bytes == 0


def test_a_waiter_that_only_a_process_s_end_could_serve_has_no_claim_on_younger_ones_and_is_not_the_oldest() -> None:
    ledger = Ledger(100)
    admission = Admission(ledger, Quotas())
    a, b, c = (admission.arrive() for _ in range(3))
    admission.refused(a, 50)
    admission.refused(b, 30)
    ledger.post(50, debit=FREE, credit=Account.quarantine("x"))
    assert (admission.headroom(c).device_bytes, admission.oldest()) == (80, a)
    ledger.post(1, debit=FREE, credit=Account.quarantine("y"))
    assert (admission.headroom(c).device_bytes, admission.oldest()) == (30, b)


def test_within_a_quota_a_newcomer_leaves_what_its_own_tenants_older_requests_need() -> None:
    admission = queue(acme=100)
    a, b, c, d = (admission.arrive(tenant) for tenant in ("acme", "other", "acme", "acme"))
    admission.runs(a, 10)
    admission.runs(b, 20)
    admission.refused(c, 30)
    assert admission.headroom(d) == Headroom(device_bytes=60, tenant_bytes=40)
    assert admission.headroom(c) == Headroom(device_bytes=30, tenant_bytes=10)
    assert admission.headroom(a) == Headroom()


def test_a_tenant_at_its_quota_has_no_claim_on_what_is_free() -> None:
    ledger = Ledger(1000)
    admission = Admission(ledger, Quotas({"acme": 100}))
    a, b, c = (admission.arrive(tenant) for tenant in ("acme", "acme", "other"))
    admission.runs(a, 10)
    admission.refused(b, 50)
    for used, claim in ((0, 60), (40, 60), (75, 25), (100, 0)):
        ledger.post(used - ledger.used_by("acme"), debit=FREE, credit=Account.granted("acme"))
        assert admission.headroom(c) == Headroom(device_bytes=claim)


def test_what_a_waiters_tenant_retains_lowers_its_claim_only_where_nobody_else_may_have_it() -> None:
    for acme, claim in ((70, 70), (50, 0)):  # with beta's quota of 50, more than the device, and not
        ledger, quotas = Ledger(100), Quotas({"acme": acme, "beta": 50})
        admission = Admission(ledger, quotas)
        ledger.post(acme, debit=FREE, credit=Account.retained(1, "acme"))
        older, younger = admission.arrive("acme"), admission.arrive("beta")
        admission.refused(older, acme)
        assert admission.headroom(younger).device_bytes == claim


def test_a_waiter_that_wants_what_others_may_keep_has_no_claim_on_anybody() -> None:
    ledger = Ledger(100)
    admission = Admission(ledger, Quotas({"acme": 60}))
    older, younger = admission.arrive(), admission.arrive("acme")
    ledger.post(10, debit=FREE, credit=Account.quarantine(""))
    admission.refused(older, 30)
    assert (admission.oldest(), admission.headroom(younger).device_bytes) == (older, 30)
    admission.refused(older, 31)
    assert (admission.oldest(), admission.headroom(younger).device_bytes) == (younger, 0)


def test_a_waiter_that_its_quota_without_the_quarantine_cannot_hold_is_not_the_oldest() -> None:
    ledger = Ledger(1000)
    admission = Admission(ledger, Quotas({"acme": 100}))
    a, b = admission.arrive("acme"), admission.arrive("acme")
    admission.refused(a, 50)
    ledger.post(50, debit=FREE, credit=Account.quarantine("acme"))
    assert admission.oldest() == a
    ledger.post(1, debit=FREE, credit=Account.quarantine("acme"))
    assert admission.oldest() == b
    assert admission.headroom(b) == Headroom()


def test_quotas_are_by_name_with_a_default_for_everybody_else() -> None:
    quotas = Quotas({"acme": 5, "": 7}, default_bytes=3)
    assert [quotas.of(tenant) for tenant in ("acme", "", "other")] == [5, 7, 3]
    assert Quotas().of("acme") is None


@pytest.mark.parametrize(("by_tenant", "default"), [({"a": -1}, None), ({}, -1)])
def test_a_negative_quota_is_refused(by_tenant: dict[str, int], default: int | None) -> None:
    with pytest.raises(ValueError, match="at least 0 bytes"):
        Quotas(by_tenant, default)


def test_a_request_that_comes_back_is_as_old_as_it_was() -> None:
    admission = queue()
    a, b = admission.arrive(), admission.arrive()
    admission.leave(a)
    assert admission.oldest() == b
    admission.come_back(a)
    assert admission.oldest() == a
    admission.leave(a)
    assert admission.oldest() == b


def test_a_place_in_the_queue_is_taken_once_and_the_oldest_places_are_forgotten() -> None:
    places = Places()
    for number in range(MOST + 1):
        places.leave(RequestId("s", number), number + 100)
    assert len(places) == MOST
    assert places.take(RequestId("s", 0)) is None
    assert places.take(RequestId("t", 1)) is None
    assert places.take(RequestId("s", 1)) == 101
    assert places.take(RequestId("s", 1)) is None
    places.forget("s")
    places.forget("s")
    assert len(places) == 0


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.tuples(st.sampled_from(["runs", "stopped", "refused", "satisfied", "leave"]), st.integers(1, 6))))
def test_headroom_equals_a_plain_count_whatever_happened(acts: list[tuple[str, int]]) -> None:
    admission = queue()
    running: dict[int, int] = {}
    waiting: dict[int, int] = {}
    alive = {admission.arrive() for _ in range(6)}
    for step, (act, who) in enumerate(acts):
        match act:
            case "runs" if who in alive:
                admission.runs(who, step)
                running[who] = step
            case "stopped":
                admission.stopped(who)
                running.pop(who, None)
            case "refused" if who in alive:
                admission.refused(who, step)
                waiting[who] = step
            case "satisfied":
                admission.satisfied(who)
                waiting.pop(who, None)
            case "leave":
                admission.leave(who)
                for held in (running, waiting):
                    held.pop(who, None)
                alive.discard(who)
    assert admission.oldest() == min(alive, default=None)
    for who in alive - set(running):
        older = sum(size for other, size in waiting.items() if other < who)
        assert admission.headroom(who).device_bytes == sum(running.values()) + older
