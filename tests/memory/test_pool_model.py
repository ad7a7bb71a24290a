"""The pool against a plain model, whatever is asked of it and whichever call fails: who has what, and what is in it."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcluster.errors import DriverError, Quarantined
from kvcluster.memory.handle import Handle, HandleState, bytes_of
from kvcluster.testing.faulty_driver import failing, failing_every, failing_then, never
from tests.examples import examples
from tests.memory.store import BULK, CAPACITY, GRANULE, Store

TENANTS = ["a", "b", "c"]
LIMIT = 5
plans = st.one_of(
    st.builds(failing, st.integers(1, 8)),
    st.builds(failing_then, st.integers(1, 8), st.integers(1, 4)),
    st.builds(failing_every, st.sampled_from(["create", "release", "scrub"])),
)


class PoolModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store(limit=LIMIT)
        self.pool = self.store.pool
        self.out: dict[Handle, str] = {}  # and whose they are
        self.shared: list[Handle] = []
        self.quarantined: list[Handle] = []
        self.lost = dict.fromkeys(TENANTS, 0)
        self.had: dict[Handle, str] = {}  # handles that another process got, and whose they were then
        self.destroyed: set[tuple[int, int]] = set()

    @rule(plan=plans)
    def the_driver_breaks(self, plan: object) -> None:
        self.store.driver.follow(plan)  # type: ignore[arg-type]

    @rule()
    def the_driver_heals(self) -> None:
        self.store.driver.follow(never())

    @rule(
        sizes=st.lists(st.sampled_from([GRANULE, GRANULE, GRANULE, BULK]), max_size=6),
        tenant=st.sampled_from(TENANTS),
        knows=st.booleans(),
    )
    def takes(self, sizes: list[int], tenant: str, knows: bool) -> None:
        if sum(sizes) > self.promised():
            return
        known = frozenset(handle.identity for handle in self.out) if knows else frozenset()
        try:
            taken = self.pool.take(sizes, tenant=tenant, known=known)
        except (DriverError, Quarantined):
            return
        assert [handle.size_bytes for handle in taken] == sizes
        assert not set(taken) & {*self.out, *self.shared, *self.quarantined}
        for handle in taken:
            assert (handle.tenant, handle.state) == (tenant, HandleState.OUT)
            assert self.store.read(handle) <= {0, ord(tenant)}
            assert self.had.get(handle, tenant) == tenant
            self.store.write(handle, tenant.encode())
            self.out[handle] = tenant

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def another_process_gets_some(self, data: st.DataObject) -> None:
        for handle in self.some(data):
            handle.was_handed_over = True
            self.had[handle] = self.out[handle]

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def some_come_back(self, data: st.DataObject) -> None:
        self.pool.give_back(self.taken_out(self.some(data)))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def some_are_sealed_and_shared(self, data: st.DataObject) -> None:
        handles = self.taken_out(self.some(data))
        for handle in handles:
            self.store.tidy.seal(handle.physical)
            handle.is_sealed = True
        self.pool.share(handles)
        self.shared += handles

    @rule()
    def the_shared_are_destroyed(self) -> None:
        self.pool.destroy(self.shared)
        assert {handle.state for handle in self.shared} <= {HandleState.GONE, HandleState.QUARANTINED}
        self.shared.clear()

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def some_are_quarantined(self, data: st.DataObject) -> None:
        handles = self.taken_out(self.some(data))
        self.pool.quarantine(handles)
        self.quarantined += handles

    @rule()
    def the_process_is_gone(self) -> None:
        self.pool.give_back(self.quarantined)
        self.quarantined.clear()

    @rule(granules=st.integers(0, LIMIT))
    def trims(self, granules: int) -> None:
        self.pool.trim(granules * GRANULE)
        assert self.pool.pooled_bytes <= granules * GRANULE

    @rule(granules=st.integers(0, CAPACITY))
    def fills(self, granules: int) -> None:
        target_bytes = min(granules * GRANULE, self.promised())
        before = self.pool.pooled_bytes
        self.pool.fill(target_bytes)
        assert before <= self.pool.pooled_bytes <= max(before, min(target_bytes, self.pool.limit_bytes))

    @rule(granules=st.integers(0, 3))
    def the_capacity_changes(self, granules: int) -> None:
        wanted = (CAPACITY - granules) * GRANULE
        self.pool.resize(max(wanted, self.pool.created_bytes - self.pool.pooled_bytes))
        self.pool.resize(max(wanted, self.pool.created_bytes))  # what would not go is claimed from now on

    # --- the model ------------------------------------------------------------------------------------------------

    def promised(self) -> int:
        """What a ledger could have free: all that nobody has."""
        lost = sum(self.lost.values())
        return self.pool.capacity_bytes - bytes_of([*self.out, *self.shared, *self.quarantined]) - lost

    def some(self, data: st.DataObject) -> list[Handle]:
        return data.draw(st.lists(st.sampled_from(list(self.out)), unique=True, max_size=4))

    def taken_out(self, handles: list[Handle]) -> list[Handle]:
        for handle in handles:
            del self.out[handle]
        return handles

    @invariant()
    def every_handle_is_counted_where_the_model_has_it(self) -> None:
        for tenant, size_bytes in self.pool.drain_lost().items():
            self.lost[tenant or "a"] += size_bytes
        _, out, quarantined = self.store.counts()
        assert out * GRANULE == bytes_of([*self.out, *self.shared])
        assert quarantined * GRANULE == bytes_of(self.quarantined) + sum(self.lost.values())
        assert self.pool.pooled_bytes <= self.pool.limit_bytes
        assert self.pool.pooled_bytes <= self.promised()

    @invariant()
    def no_identity_is_destroyed_twice_and_none_that_lives_is_reported(self) -> None:
        gone = {(identity.number, identity.generation) for identity in self.pool.drain_forgotten()}
        living = {(handle.identity.number, handle.identity.generation) for handle in [*self.out, *self.shared]}
        assert not gone & (self.destroyed | living)
        self.destroyed |= gone

    @invariant()
    def what_a_tenant_wrote_stays_until_it_comes_back(self) -> None:
        for handle, tenant in self.out.items():
            assert self.store.read(handle) == {ord(tenant)}

    def teardown(self) -> None:
        self.store.driver.follow(never())
        with suppress(DriverError):
            self.pool.give_back([*self.out, *self.quarantined])
            self.pool.destroy(self.shared)
            self.pool.trim(0)
        lost = sum(self.lost.values()) + sum(self.pool.drain_lost().values())
        left = self.pool.created_bytes
        self.store.clear()
        assert left == lost


TestPoolModel = PoolModel.TestCase
TestPoolModel.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
