"""The oldest request gets its memory in the end, whoever retains what, and though all others ask before it each time.

Requests come, run and end in any order, and what they leave is retained, free, lost, or in quarantine until a process
is dead. Then each round all that run end, all of them retained; and the youngest ask first. A request that waited for
a round and is the oldest has what it wants at the end of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.budget.admission import Admission
from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.budget.quotas import Quotas
from kvcluster.errors import OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.testing.clock import ManualClock
from tests.budget.retained import Retained
from tests.examples import examples

CAPACITY = 100
TENANTS = ("acme", "beta", "free1", "free2")


@dataclass(eq=False)
class Open:
    """A request that wants `wish` bytes at once."""

    request: RequestId
    tenant: str
    arrival: int
    wish: int
    is_running: bool = False
    has_waited: bool = False


class Starvation(RuleBasedStateMachine):
    quotas = Quotas({"acme": 40, "beta": 50})

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.retained = Retained(self.ledger, self.quotas)
        self.governor = Governor(
            self.ledger, clock=ManualClock(), limits=Limits(), quotas=self.quotas, evictor=self.retained
        )
        self.admission = Admission(self.ledger, self.quotas)
        self.open: list[Open] = []
        self.came = 0
        self.quarantine: Counter[str] = Counter()  # until a process is dead
        self.lost: Counter[str] = Counter()

    # --- what happens ---------------------------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(TENANTS), part=st.floats(0.01, 1), asks=st.booleans())
    def one_comes(self, tenant: str, part: float, asks: bool) -> None:
        most = self.most(tenant)
        if most:
            self.came += 1
            arrival = self.admission.arrive(tenant)
            self.open.append(Open(RequestId("s", self.came), tenant, arrival, max(1, int(part * most))))
            if asks:
                self.ask(self.open[-1], growth=3)

    @rule(data=st.data(), growth=st.integers(0, 5))
    def one_asks(self, data: st.DataObject, growth: int) -> None:
        waiting = [one for one in self.open if not one.is_running]
        if waiting:
            self.ask(data.draw(st.sampled_from(waiting)), growth)

    @rule(data=st.data(), to=st.sampled_from(["retained", "retained", "free", "quarantine"]))
    def one_ends(self, data: st.DataObject, to: str) -> None:
        running = [one for one in self.open if one.is_running]
        if running:
            self.end(data.draw(st.sampled_from(running)), to)

    @rule()
    def a_process_is_dead(self) -> None:
        for tenant, size in self.quarantine.items():
            self.ledger.post(size, debit=Account.quarantine(tenant), credit=FREE)
        self.quarantine.clear()

    @rule(tenant=st.sampled_from(TENANTS), size=st.integers(1, 8))
    def some_is_lost(self, tenant: str, size: int) -> None:
        size = min(size, self.ledger.balance(FREE))
        self.governor.lose({tenant: size})
        self.lost[tenant] += size

    @rule(tenant=st.sampled_from(TENANTS))
    def all_of_a_tenant_is_wanted_at_once(self, tenant: str) -> None:
        """As much as it may ask for, on top of what others keep."""
        self.one_comes(tenant, 1.0, True)

    # --- each act -------------------------------------------------------------------------------------------------

    def ask(self, one: Open, growth: int) -> bool:
        grant = GrantId(one.request, one.request.number)
        try:
            self.governor.ask(
                grant,
                one.wish,
                tenant=one.tenant,
                headroom=self.admission.headroom(one.arrival),
                oldest_arrival=self.admission.oldest(),
            )
        except OutOfBudget:
            self.admission.refused(one.arrival, one.wish)
            return False
        self.governor.spend(grant, one.wish, account=account_of(one.request, one.tenant))
        self.admission.satisfied(one.arrival)
        self.admission.runs(one.arrival, growth)
        one.is_running = True
        return True

    def end(self, one: Open, to: str) -> None:
        account = account_of(one.request, one.tenant)
        match to:
            case "retained":
                self.retained.retain(one.tenant, one.wish, account)
            case "quarantine":
                self.ledger.post(one.wish, debit=account, credit=Account.quarantine(one.tenant))
                self.quarantine[one.tenant] += one.wish
            case _:
                self.ledger.post(one.wish, debit=account, credit=FREE)
        self.close(one)

    def close(self, one: Open) -> None:
        self.admission.leave(one.arrival)
        self.open.remove(one)

    def most(self, tenant: str) -> int:
        return self.quotas.most_bytes(
            tenant, CAPACITY, gone_bytes=self.lost.total(), gone_of=lambda other: self.lost[other]
        )

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def nobody_has_more_than_its_quota_but_for_losses(self) -> None:
        self.ledger.check()
        for tenant, quota in self.quotas.by_tenant.items():
            assert self.ledger.used_by(tenant) <= quota + self.lost[tenant]

    def teardown(self) -> None:
        self.a_process_is_dead()
        while self.open:
            for one in [one for one in self.open if one.is_running]:
                self.end(one, "retained")
            for one in [one for one in self.open if one.wish > self.most(one.tenant)]:
                self.close(one)  # told that it never fits
            if self.open:
                self.all_ask_the_youngest_first()

    def all_ask_the_youngest_first(self) -> None:
        oldest = min(self.open, key=lambda one: one.arrival)
        for one in sorted(self.open, key=lambda one: -one.arrival):
            is_served = self.ask(one, growth=0)
            assert is_served or one is not oldest or not one.has_waited
            one.has_waited |= one is oldest


class NothingGuarded(Starvation):
    """Quotas that are more than the capacity."""

    quotas = Quotas({"acme": 70, "beta": 50})


class AllGuarded(Starvation):
    """Quotas that leave nothing to others, and one that bounds them."""

    quotas = Quotas({"acme": 60, "beta": 40}, default_bytes=30)


class NoQuotas(Starvation):
    quotas = Quotas()


TestStarvation = Starvation.TestCase
TestStarvation.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestNothingGuarded = NothingGuarded.TestCase
TestNothingGuarded.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestAllGuarded = AllGuarded.TestCase
TestAllGuarded.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
TestNoQuotas = NoQuotas.TestCase
TestNoQuotas.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
