"""The ledger against one plain dict, with a capacity that changes: what is refused changes nothing, the rest sums."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.budget.ledger import FREE, Account, Ledger, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.ids import RequestId
from tests.examples import examples

CAPACITY = 1000
KINDS = ["free", "granted", "request", "prefix", "retained", "quarantine"]
tenants = st.sampled_from(["", "acme", "beta"])
accounts = st.one_of(
    st.just(FREE),
    st.builds(Account.granted, tenants),
    st.builds(Account.quarantine, tenants),
    st.builds(Account.prefix, st.integers(1, 2), tenants),
    st.builds(Account.retained, st.integers(1, 2), tenants),
    st.builds(account_of, st.builds(RequestId, st.just("s"), st.integers(1, 3)), tenants),
)


class LedgerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(CAPACITY)
        self.plain: dict[Account, int] = {FREE: CAPACITY}

    @rule(size=st.integers(-5, CAPACITY + 5), debit=accounts, credit=accounts)
    def posts(self, size: int, debit: Account, credit: Account) -> None:
        may = 0 <= size <= self.plain.get(debit, 0)
        assert self.succeeds(lambda: self.ledger.post(size, debit=debit, credit=credit)) == may
        if may:
            self.plain[debit] = self.plain.get(debit, 0) - size
            self.plain[credit] = self.plain.get(credit, 0) + size

    @rule(data=st.data(), credit=accounts)
    def posts_some_of_what_is_there(self, data: st.DataObject, credit: Account) -> None:
        debit = data.draw(st.sampled_from(list(self.plain)))
        self.posts(data.draw(st.integers(0, self.plain[debit])), debit, credit)

    @rule(capacity=st.integers(0, 2 * CAPACITY))
    def changes_the_capacity(self, capacity: int) -> None:
        claimed = sum(size for account, size in self.plain.items() if account != FREE)
        assert self.succeeds(lambda: self.ledger.resize(capacity)) == (capacity >= claimed)
        if capacity >= claimed:
            self.plain[FREE] = capacity - claimed

    def succeeds(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except InvariantBroken:
            return False
        return True

    @invariant()
    def every_figure_is_that_of_the_plain_dict(self) -> None:
        self.ledger.check()
        there = {account: size for account, size in self.plain.items() if size}
        assert dict(self.ledger.balances()) == there
        assert self.ledger.capacity_bytes == sum(there.values())
        for kind in KINDS:
            assert self.ledger.total(kind) == sum(size for account, size in there.items() if account.kind == kind)
        used: dict[str, int] = {}
        for account, size in there.items():
            if account != FREE:
                used[account.tenant] = used.get(account.tenant, 0) + size
        assert dict(self.ledger.tenants()) == used
        assert self.ledger.claimed_bytes == sum(used.values())


TestLedgerModel = LedgerModel.TestCase
TestLedgerModel.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
