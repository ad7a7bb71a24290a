"""Grants, quotas and eviction in any order of operations, against plain dicts: who has what, and who gets what."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.budget.admission import Headroom
from kvcluster.budget.governor import Governor, Limits
from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.budget.quotas import Quotas
from kvcluster.errors import GrantRefused, KvClusterError, NotAllowed, OutOfBudget
from kvcluster.ids import GrantId, RequestId
from kvcluster.testing.clock import ManualClock
from tests.budget.retained import Retained
from tests.examples import examples

CAPACITY = 100
TENANTS = ["acme", "beta", "free1", "free2"]
tenants = st.sampled_from(TENANTS)
sizes = st.integers(1, 60)
numbers = st.integers(1, 14)


class GovernorModel(RuleBasedStateMachine):
    """Quotas that are more than the capacity: bounds, and nothing is guarded."""

    quotas = Quotas({"acme": 40, "beta": 70})

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.ledger = Ledger(CAPACITY)
        self.retained = Retained(self.ledger, self.quotas)
        self.governor = Governor(
            self.ledger, clock=self.clock, limits=Limits(), quotas=self.quotas, evictor=self.retained
        )
        self.state: dict[int, str] = {}  # by number; a number that is not here was never used
        self.held: dict[int, tuple[str, int, float]] = {}  # tenant, bytes, when it ends
        self.request = dict.fromkeys(TENANTS, 0)  # bytes that its requests have
        self.quarantine = dict.fromkeys(TENANTS, 0)
        self.lost = dict.fromkeys(TENANTS, 0)

    @rule(number=numbers, tenant=tenants, size=sizes, device=st.integers(0, 30), own=st.integers(0, 30))
    def asks(self, number: int, tenant: str, size: int, device: int, own: int) -> None:
        self.expire()
        number = number if number < 10 else max(self.state, default=0) + 1
        most = max(0, self.most(tenant, device, own))
        evicted, is_new = len(self.retained.evicted), number not in self.state
        others = {
            name: self.guarded(name) for name in TENANTS if name != tenant and self.used(name) <= self.share(name)
        }
        error = self.asked(number, size, tenant, Headroom(device, own))
        assert all(self.guarded(name) == kept for name, kept in others.items())
        assert is_new == (not isinstance(error, NotAllowed))
        if error is None:
            assert size <= most
            self.state[number] = "held"
            self.held[number] = tenant, size, self.clock() + 5.0
        elif is_new:
            assert size > most or self.retained.stuck
            assert len(self.retained.evicted) == evicted or self.retained.stuck
            assert self.refused(error).free == max(0, self.most(tenant, device, own))

    @rule(number=numbers, size=sizes)
    def spends(self, number: int, size: int) -> None:
        number = self.one(number)
        if self.allowed(number, size):
            tenant, _, _ = self.held[number]
            self.governor.spend(self.grant(number), size, account=self.account(tenant))
            self.end(number, "spent")
            self.request[tenant] += size

    @rule(number=numbers, size=sizes)
    def spends_and_undoes_it(self, number: int, size: int) -> None:
        number = self.one(number)
        if self.allowed(number, size):
            account = self.account(self.held[number][0])
            self.governor.spend(self.grant(number), size, account=account)
            self.governor.unspend(self.grant(number), size, account=account)
            self.held[number] = self.held.pop(number)  # it is the newest now

    @rule(number=numbers)
    def gives_back(self, number: int) -> None:
        number = self.one(number)
        if self.allowed(number, 0):
            self.governor.give_back(self.grant(number))
            self.end(number, "returned")

    @rule(number=numbers, tenant=tenants, size=sizes)
    def asks_and_undoes_it(self, number: int, tenant: str, size: int) -> None:
        self.expire()
        if number not in self.state and size <= self.most(tenant, 0, 0) and not self.retained.stuck:
            self.governor.ask(self.grant(number), size, tenant=tenant, oldest_arrival=None)
            self.governor.forget(self.grant(number))

    @rule(seconds=st.sampled_from([0.5, 2.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def the_request_closes(self) -> None:
        self.expire()
        self.governor.close(RequestId("s", 1))
        for number in list(self.held):
            self.end(number, "returned")

    @rule(tenant=tenants, size=sizes, to=st.sampled_from(["free", "retained", "quarantine"]))
    def memory_comes_back(self, tenant: str, size: int, to: str) -> None:
        size = min(size, self.request[tenant])
        self.request[tenant] -= size
        match to:
            case "free":
                self.ledger.post(size, debit=self.account(tenant), credit=FREE)
                self.governor.freed(size)
            case "retained" if size:
                self.retained.retain(tenant, size, self.account(tenant))
            case _:
                self.ledger.post(size, debit=self.account(tenant), credit=Account.quarantine(tenant))
                self.quarantine[tenant] += size

    @rule(tenant=tenants, size=sizes)
    def an_ended_request_leaves_a_retained_prefix(self, tenant: str, size: int) -> None:
        quota = self.quotas.of(tenant)
        if size <= self.free() and (quota is None or self.used(tenant) + size <= quota):
            self.retained.retain(tenant, size, FREE)

    @rule(tenant=tenants)
    def a_process_is_gone(self, tenant: str) -> None:
        self.ledger.post(self.quarantine[tenant], debit=Account.quarantine(tenant), credit=FREE)
        self.quarantine[tenant] = 0

    @rule(tenant=tenants, size=st.integers(1, 20), number=numbers)
    def the_driver_loses_some(self, tenant: str, size: int, number: int) -> None:
        self.expire()
        size = min(size, self.free() + sum(held for _, held, _ in self.held.values()))
        self.governor.lose({tenant: size}, out_of=self.grant(number))
        self.lost[tenant] += size
        if number in self.held:
            self.pays(number, size)
        for newest in reversed(list(self.held)):
            self.pays(newest, max(0, -self.free()))
        assert self.free() >= 0

    @rule(stuck=st.booleans())
    def evictions_fail_or_work_again(self, stuck: bool) -> None:
        self.retained.stuck = stuck

    # --- the model ------------------------------------------------------------------------------------------------

    def grant(self, number: int) -> GrantId:
        return GrantId(RequestId("s", 1), number)

    def account(self, tenant: str) -> Account:
        return account_of(RequestId("s", 1), tenant)

    def pays(self, number: int, size: int) -> None:
        """The held grant pays for a loss, as far as it goes."""
        tenant, held, ends = self.held[number]
        self.held[number] = tenant, held - min(held, size), ends

    def allowed(self, number: int, size: int) -> bool:
        """Whether the grant pays so much; if not, the refusal names the right reason."""
        reason = self.state.get(number, "missing")
        if reason == "held":
            reason = "too-small" if self.held[number][1] < size else ""
        assert self.checked(number, size) == reason
        return not reason

    def checked(self, number: int, size: int) -> str:
        """The reason of the governor's refusal, if it is one."""
        try:
            self.governor.check(self.grant(number), size)
        except GrantRefused as refused:
            return refused.reason
        return ""

    def asked(self, number: int, size: int, tenant: str, headroom: Headroom) -> KvClusterError | None:
        """The refusal, if it is one."""
        try:
            self.governor.ask(self.grant(number), size, tenant=tenant, headroom=headroom, oldest_arrival=None)
        except (NotAllowed, OutOfBudget) as refused:
            return refused
        return None

    def refused(self, error: KvClusterError) -> OutOfBudget:
        assert isinstance(error, OutOfBudget)
        return error

    def one(self, number: int) -> int:
        """A held one, where there is any and the number drawn is high; else the number drawn."""
        self.expire()
        held = list(self.held)
        return held[number % len(held)] if held and number >= 6 else number

    def end(self, number: int, state: str) -> None:
        del self.held[number]
        self.state[number] = state

    def expire(self) -> None:
        for number, (_, _, ends) in list(self.held.items()):
            if ends <= self.clock():
                self.end(number, "expired")

    def used(self, tenant: str) -> int:
        held = sum(size for owner, size, _ in self.held.values() if owner == tenant)
        quarantined = self.quarantine[tenant] + self.lost[tenant] + self.retained.stuck_bytes[tenant]
        return held + self.kept(tenant) + self.request[tenant] + quarantined

    def free(self) -> int:
        return CAPACITY - sum(self.used(tenant) for tenant in TENANTS)

    def most(self, tenant: str, device: int, own: int) -> int:
        """The most that one ask could get."""
        kept = {name: self.kept(name) for name in TENANTS}
        unguarded = self.free() + sum(kept.values()) - sum(self.guarded(name) for name in TENANTS) - device
        others = sum(self.guarded(name) for name in TENANTS if name != tenant)
        on_device = unguarded + self.guarded(tenant)
        if unguarded <= 0:
            on_device = min(self.guarded(tenant), self.free() + sum(kept.values()) - others - own)
        quota = self.quotas.of(tenant)
        return on_device if quota is None else min(on_device, quota - self.used(tenant) + kept[tenant] - own)

    def kept(self, tenant: str) -> int:
        return sum(size for owner, size in self.retained.pieces.values() if owner == tenant)

    def share(self, tenant: str) -> int:
        return self.quotas.by_tenant.get(tenant, CAPACITY)

    def guarded(self, tenant: str) -> int:
        """What nobody else may have of what it retains: all, but for what losses carried past its quota."""
        quota = self.quotas.by_tenant.get(tenant)
        if quota is None or sum(self.quotas.by_tenant.values()) > CAPACITY:
            return 0
        return max(0, min(self.kept(tenant), quota - self.used(tenant) + self.kept(tenant)))

    @invariant()
    def the_ledger_has_what_the_model_has_and_no_quota_is_passed_but_by_losses(self) -> None:
        self.expire()
        self.governor.collect_expired()
        self.ledger.check()
        assert self.ledger.balance(FREE) == self.free()
        for tenant in TENANTS:
            assert self.ledger.used_by(tenant) == self.used(tenant)
            quota = self.quotas.of(tenant)
            assert quota is None or self.ledger.used_by(tenant) <= quota + self.lost[tenant]
            held = sum(size for owner, size, _ in self.held.values() if owner == tenant)
            assert self.governor.held_bytes(tenant) == self.ledger.balance(Account.granted(tenant)) == held
        assert self.governor.held_bytes() == self.ledger.total("granted")


class GuardedModel(GovernorModel):
    """Quotas that fit: what a tenant retains below its quota goes for nobody else."""

    quotas = Quotas({"acme": 40, "beta": 50})


class DefaultModel(GovernorModel):
    """A default quota bounds those that are not named, and is not guarded."""

    quotas = Quotas({"acme": 40}, default_bytes=50)


TestGovernorModel = GovernorModel.TestCase
TestGovernorModel.settings = settings(max_examples=examples(60), stateful_step_count=60, deadline=None)
TestGuardedModel = GuardedModel.TestCase
TestGuardedModel.settings = settings(max_examples=examples(80), stateful_step_count=60, deadline=None)
TestDefaultModel = DefaultModel.TestCase
TestDefaultModel.settings = settings(max_examples=examples(40), stateful_step_count=60, deadline=None)
