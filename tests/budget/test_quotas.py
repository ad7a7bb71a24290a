"""No grant carries a tenant past its quota; eviction happens for a grant that is given, and for no refusal."""

from __future__ import annotations

import pytest

from kvcluster.budget.admission import Headroom
from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.budget.quotas import Quotas
from kvcluster.errors import GrantRefused, InvariantBroken, OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.testing.clock import ManualClock
from tests.budget.retained import Retained

CAPACITY = 1000
REQUEST = RequestId("s", 1)


class Desk:
    """A governor over 1000 bytes, of which acme may have 400 and beta 300."""

    def __init__(self, quotas: Quotas | None = None) -> None:
        quotas = quotas or Quotas({"acme": 400, "beta": 300})
        self.ledger = Ledger(CAPACITY)
        self.retained = Retained(self.ledger, quotas)
        self.clock = ManualClock()
        self.governor = Governor(self.ledger, clock=self.clock, limits=Limits(), quotas=quotas, evictor=self.retained)
        self.grants = 0

    def ask(self, tenant: str, size_bytes: int, headroom: Headroom | None = None) -> GrantId:
        self.grants += 1
        identity = GrantId(REQUEST, self.grants)
        self.governor.ask(identity, size_bytes, tenant=tenant, headroom=headroom or Headroom(), oldest_arrival=None)
        return identity

    def refused(self, tenant: str, size_bytes: int, headroom: Headroom | None = None) -> int:
        """What the refusal says could be had."""
        before = dict(self.ledger.balances())
        with pytest.raises(OutOfBudget) as caught:
            self.ask(tenant, size_bytes, headroom)
        assert dict(self.ledger.balances()) == before
        return caught.value.free

    def take(self, tenant: str, size_bytes: int) -> Account:
        """Bytes that a request of the tenant holds."""
        account = account_of(REQUEST, tenant)
        self.governor.spend(self.ask(tenant, size_bytes), size_bytes, account=account)
        return account

    def retain(self, tenant: str, size_bytes: int) -> int:
        return self.retained.retain(tenant, size_bytes, self.take(tenant, size_bytes))


def test_a_tenant_gets_its_quota_and_no_byte_more_whatever_else_is_free() -> None:
    desk = Desk()
    desk.ask("acme", 150)
    desk.take("acme", 150)
    assert desk.refused("acme", 101) == 100
    desk.ask("acme", 100)
    assert desk.refused("acme", 1) == 0
    assert desk.ledger.used_by("acme") == 400
    desk.ask("other", 600)


def test_what_is_free_is_the_least_of_the_device_and_the_quota() -> None:
    desk = Desk()
    desk.ask("other", 800)
    assert desk.refused("acme", 300) == 200
    assert desk.refused("other", 300) == 200


def test_a_spent_returned_or_expired_grant_gives_the_quota_what_it_gives_the_device() -> None:
    desk = Desk()
    spent, returned, _ = (desk.ask("acme", 100) for _ in range(3))
    desk.governor.spend(spent, 30, account=account_of(REQUEST, "acme"))
    assert desk.ledger.used_by("acme") == 230
    desk.governor.give_back(returned)
    assert desk.ledger.used_by("acme") == 130
    desk.clock.advance(5)
    desk.governor.collect_expired()
    assert desk.ledger.used_by("acme") == 30


def test_a_commit_that_is_undone_leaves_the_grant_with_its_tenant() -> None:
    desk = Desk()
    grant, account = desk.ask("acme", 100), account_of(REQUEST, "acme")
    desk.governor.spend(grant, 60, account=account)
    desk.governor.unspend(grant, 60, account=account)
    assert dict(desk.ledger.balances()) == {FREE: 900, Account.granted("acme"): 100}


def test_a_headroom_of_the_quota_is_kept_for_the_tenant_s_own_older_requests() -> None:
    desk = Desk()
    assert desk.refused("acme", 301, Headroom(device_bytes=0, tenant_bytes=100)) == 300
    assert desk.refused("acme", 301, Headroom(device_bytes=800, tenant_bytes=0)) == 200
    desk.ask("other", 301, Headroom(device_bytes=0, tenant_bytes=CAPACITY))


def test_what_is_quarantined_and_retained_counts_in_the_quota() -> None:
    desk = Desk()
    desk.retain("acme", 100)
    desk.ledger.post(100, debit=desk.take("acme", 100), credit=Account.quarantine("acme"))
    assert desk.ledger.used_by("acme") == 200
    assert desk.refused("acme", 301) == 300  # its own retained bytes are to be had


def test_a_quota_below_what_a_tenant_has_leaves_nothing_and_never_less() -> None:
    desk = Desk()
    desk.governor.lose({"acme": 500})
    assert desk.refused("acme", 1) == 0


# --- eviction -----------------------------------------------------------------------------------------------------


def test_a_tenant_s_own_retained_prefixes_go_first_and_no_more_than_it_takes() -> None:
    desk = Desk(Quotas())
    pieces = [desk.retain(tenant, 200) for tenant in ("acme", "other", "acme", "acme")]
    desk.take("acme", 200)
    desk.ask("acme", 250)
    assert desk.retained.evicted == [pieces[0], pieces[2]]


def test_another_tenant_s_retained_prefixes_go_where_the_own_are_not_enough() -> None:
    desk = Desk(Quotas())
    pieces = [desk.retain(tenant, 300) for tenant in ("other", "acme")]
    desk.take("acme", 400)
    desk.ask("acme", 301)
    assert sorted(desk.retained.evicted) == pieces


def test_the_quota_is_made_room_in_although_the_device_has_room() -> None:
    desk = Desk()
    desk.retain("acme", 100)
    kept = desk.retain("other", 100)
    desk.take("acme", 250)
    desk.ask("acme", 100)
    assert list(desk.retained.pieces) == [kept]
    assert desk.ledger.used_by("acme") == 350


def test_others_retained_prefixes_do_not_widen_a_quota() -> None:
    desk = Desk()
    desk.retain("other", 300)
    desk.take("acme", 400)
    assert desk.refused("acme", 1) == 0


def test_a_refusal_evicts_nothing_and_counts_what_could_be_evicted() -> None:
    desk = Desk(Quotas())
    desk.retain("acme", 200)
    desk.retain("other", 300)
    desk.take("other", 400)
    assert desk.refused("acme", 601) == 600
    assert desk.retained.evicted == []
    desk.ask("acme", 600)
    assert len(desk.retained.evicted) == 2


def test_what_a_tenant_retains_below_its_quota_goes_for_nobody_else() -> None:
    desk = Desk()
    desk.retain("beta", 200)
    desk.take("beta", 100)
    assert desk.refused("other", 701) == 700
    desk.ask("other", 700)
    assert desk.ledger.used_by("beta") == 300


def test_where_the_quotas_are_more_than_the_capacity_all_that_is_retained_goes_and_nothing_that_is_used() -> None:
    desk = Desk(Quotas({"acme": 701, "beta": 300}))
    desk.retain("beta", 200)
    desk.take("beta", 100)
    assert desk.refused("other", 901) == 900
    desk.ask("other", 900)
    assert desk.ledger.used_by("beta") == 100


def test_a_default_quota_is_a_bound_and_guards_nothing() -> None:
    desk = Desk(Quotas({"acme": 400}, default_bytes=300))
    desk.retain("someone", 300)
    desk.take("other", 300)
    desk.take("third", 300)
    desk.take("acme", 400)
    assert desk.ledger.retained_by("someone") == 0


def test_what_no_quota_names_goes_first_then_what_losses_carried_past_a_quota_and_no_more() -> None:
    desk = Desk()
    [beyond, below], unnamed = [desk.retain("acme", 100) for _ in range(2)], desk.retain("other", 100)
    desk.take("acme", 200)
    desk.governor.lose({"acme": 50})
    desk.take("beta", 300)
    desk.take("other", 150)
    assert desk.refused("third", 151) == 150
    desk.take("third", 150)
    assert desk.retained.evicted == [unnamed, beyond]
    assert list(desk.retained.pieces) == [below]


def test_a_tenant_uses_what_is_guarded_for_it_again_whoever_waits_for_the_device() -> None:
    desk = Desk()
    desk.retain("acme", 200)
    desk.retain("acme", 200)
    desk.take("other", 600)
    waiting = Headroom(device_bytes=600)
    assert desk.refused("other", 1, waiting) == 0
    assert desk.refused("acme", 401, waiting) == 400
    desk.ask("acme", 150, waiting)
    assert desk.ledger.retained_by("acme") == 200  # no more than it takes
    assert desk.refused("acme", 251, Headroom(device_bytes=600, tenant_bytes=100)) == 150


def test_a_tenant_leaves_its_own_older_request_what_only_its_own_retained_bytes_can_give() -> None:
    desk = Desk()
    desk.retain("acme", 390)
    desk.take("other", 610)
    assert desk.refused("acme", 390, Headroom(device_bytes=10, tenant_bytes=10)) == 380


def test_a_tenant_uses_what_is_free_too_only_beside_what_others_wait_for() -> None:
    desk = Desk()
    desk.retain("acme", 100)
    desk.take("other", 600)
    assert desk.refused("acme", 301, Headroom(device_bytes=100)) == 300
    assert desk.refused("acme", 101, Headroom(device_bytes=300)) == 100
    desk.ask("acme", 300, Headroom(device_bytes=100))
    assert desk.ledger.retained_by("acme") == 0


# --- what others learn ------------------------------------------------------------------------------------------------


def test_a_refusal_does_not_tell_whether_another_tenant_uses_or_keeps_what_is_guarded_for_it() -> None:
    using, keeping = Desk(), Desk()
    using.take("acme", 400)
    keeping.retain("acme", 400)
    assert told(using) == told(keeping)


def test_a_refusal_does_not_tell_whether_what_may_be_evicted_is_there() -> None:
    empty, keeping = Desk(), Desk()
    keeping.retain("other", 300)
    assert told(empty) == told(keeping)


def told(desk: Desk) -> dict[str, object]:
    """All that a refusal tells, after memory has come back and long ago."""
    desk.governor.freed(1)
    desk.clock.advance(1e6)
    return desk.governor.refusal(CAPACITY, tenant="third", oldest_arrival=None).fields()


# --- how much one may ask for -----------------------------------------------------------------------------------------


def most(quotas: Quotas, tenant: str, **gone: int) -> int:
    return quotas.most_bytes(tenant, CAPACITY, gone_bytes=sum(gone.values()), gone_of=lambda other: gone.get(other, 0))


def test_one_may_ask_for_its_quota_or_for_what_is_nobody_s() -> None:
    quotas = Quotas({"acme": 400, "beta": 300})
    assert [most(quotas, tenant) for tenant in ("acme", "beta", "other")] == [400, 300, 300]
    assert most(Quotas({"acme": 400, "beta": 600}), "other") == 0
    assert most(Quotas({"acme": 400, "beta": 601}), "other") == CAPACITY
    assert most(Quotas({"acme": 2000}), "acme") == CAPACITY
    assert most(Quotas({"acme": 400}, default_bytes=700), "other") == 600
    assert most(Quotas({"acme": 400}, default_bytes=500), "other") == 500


def test_what_is_gone_is_missing_to_who_lost_it_and_beyond_a_quota_to_all() -> None:
    quotas = Quotas({"acme": 400, "beta": 300})
    assert [most(quotas, tenant, acme=100) for tenant in ("acme", "beta", "other")] == [300, 300, 300]
    assert [most(quotas, tenant, other=100) for tenant in ("acme", "beta", "other")] == [400, 300, 200]
    assert [most(quotas, tenant, other=400) for tenant in ("acme", "beta", "other")] == [300, 200, 0]
    assert [most(quotas, tenant, acme=500) for tenant in ("acme", "beta", "other")] == [0, 300, 200]
    assert most(quotas, "other", other=2000) == 0


# --- losses and failures ----------------------------------------------------------------------------------------------


def test_the_headroom_is_made_by_eviction_too() -> None:
    desk = Desk(Quotas())
    desk.retain("acme", 500)
    desk.ask("acme", 400, Headroom(device_bytes=200))
    assert desk.ledger.balance(FREE) == 600


def test_an_eviction_whose_driver_calls_fail_ends_in_a_refusal_and_the_books_sum() -> None:
    desk = Desk(Quotas())
    desk.retain("acme", 500)
    desk.take("acme", 500)
    desk.retained.stuck = True
    with pytest.raises(OutOfBudget) as caught:
        desk.ask("acme", 100)
    assert (caught.value.free, caught.value.quarantined) == (0, 500)
    desk.ledger.check()
    assert desk.governor.held_bytes() == desk.ledger.total("granted") == 0


def test_a_device_with_nothing_but_retained_prefixes_is_not_busy() -> None:
    desk = Desk(Quotas())
    desk.retain("acme", 500)
    desk.governor.freed(1)
    desk.clock.advance(1e6)
    assert desk.governor.refusal(CAPACITY + 1, oldest_arrival=None).retry_after_s == 30.0


# --- losses -------------------------------------------------------------------------------------------------------


def test_a_loss_comes_out_of_the_grant_named_then_out_of_free_then_out_of_the_newest_grants() -> None:
    desk = Desk(Quotas())
    oldest, newest, named = desk.ask("a", 300), desk.ask("b", 200), desk.ask("c", 100)
    desk.governor.lose({"x": 650}, out_of=named)
    assert dict(desk.ledger.balances()) == {
        Account.granted("a"): 300,
        Account.granted("b"): 50,
        Account.quarantine("x"): 650,
    }
    desk.governor.check(oldest, 300)
    for grant, left in ((newest, 50), (named, 0)):
        with pytest.raises(GrantRefused) as caught:
            desk.governor.check(grant, 51)
        assert (caught.value.reason, caught.value.granted) == ("too-small", left)
    desk.governor.close(REQUEST)
    assert desk.ledger.balance(FREE) == 350


def test_a_loss_of_several_tenants_is_charged_to_each() -> None:
    desk = Desk()
    grant = desk.ask("acme", 100)
    desk.governor.lose({"acme": 60, "beta": 70}, out_of=grant)
    assert desk.ledger.balance(Account.quarantine("acme")) == 60
    assert desk.ledger.balance(Account.quarantine("beta")) == 70
    assert desk.ledger.balance(FREE) == CAPACITY - 130
    desk.governor.give_back(grant)


def test_a_grant_that_is_held_no_longer_pays_for_no_loss() -> None:
    desk = Desk()
    grant = desk.ask("acme", 100)
    desk.governor.give_back(grant)
    desk.governor.lose({"acme": 60}, out_of=grant)
    assert dict(desk.ledger.balances()) == {FREE: 940, Account.quarantine("acme"): 60}


def test_a_loss_of_more_than_is_free_and_granted_is_our_bug() -> None:
    desk = Desk()
    desk.take("other", 900)
    with pytest.raises(InvariantBroken, match="neither free nor granted"):
        desk.governor.lose({"other": 101})
