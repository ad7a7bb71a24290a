"""Which prefix that nobody uses goes next: a tenant's by its policy, leaves first, at a cost that does not grow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.geometry.residency import GroupShape, Shape
from kvcluster.ids import RequestId
from kvcluster.memory.shared_prefix import Extent, SharedPrefix, SharedPrefixes
from kvcluster.services.retained import MOST_EMPTY, RetainedPrefixes
from tests.examples import examples

SHAPE = Shape((GroupShape(1, 256),), 4096)
TENANTS = ("", "other", "acme")
USER = RequestId("s", 1)


class Shelves:
    """Prefixes of a device and the idle ones among them; "acme" is a tenant that a quota names."""

    def __init__(self) -> None:
        self.prefixes = SharedPrefixes()
        self.retained = RetainedPrefixes({"acme"})

    def planned(self, tenant: str = "", parent: SharedPrefix | None = None, content: bytes = b"") -> SharedPrefix:
        windows = parent.extent.windows[0] if parent else 0
        prefix = self.prefixes.plan(tenant, SHAPE, Extent(16 * windows + 16, (windows + 1,), (windows,)), parent)
        prefix.content = content
        return prefix

    def kept(self, tenant: str = "", parent: SharedPrefix | None = None, content: bytes = b"") -> SharedPrefix:
        """A prefix that its request has left."""
        prefix = self.planned(tenant, parent, content)
        self.turned(self.prefixes.settle(prefix))
        return prefix

    def joined(self, prefix: SharedPrefix) -> None:
        """Somebody uses it, and leaves it again."""
        self.turned(self.prefixes.use(prefix, USER))
        self.turned(self.prefixes.part(prefix, USER))

    def turned(self, turned: list[SharedPrefix]) -> None:
        for prefix in turned:
            (self.retained.idle if prefix.is_idle else self.retained.used)(prefix)

    def removed(self, prefix: SharedPrefix) -> None:
        self.retained.gone(prefix)
        self.turned(self.prefixes.remove(prefix))

    def evicted(self, next_one: Callable[[], SharedPrefix | None]) -> list[SharedPrefix]:
        """All that go, one after the other."""
        gone = []
        while (prefix := next_one()) is not None:
            assert not prefix.children
            self.removed(prefix)
            gone.append(prefix)
        return gone

    def evicted_one(self) -> SharedPrefix:
        """The next of tenants that no quota names is gone; there is one."""
        prefix = self.retained.next_unnamed()
        assert prefix is not None
        self.removed(prefix)
        return prefix

    def all_of(self, tenant: str = "") -> list[SharedPrefix]:
        return self.evicted(lambda: self.retained.next_of(tenant))


@pytest.fixture
def shelves() -> Shelves:
    return Shelves()


def test_a_child_goes_before_what_it_builds_on(shelves: Shelves) -> None:
    low = shelves.kept()
    high = shelves.kept(parent=low)
    assert shelves.all_of() == [high, low]


def test_what_is_used_does_not_go_nor_does_what_it_builds_on(shelves: Shelves) -> None:
    low, other = shelves.kept(), shelves.kept()
    high = shelves.kept(parent=low)
    shelves.turned(shelves.prefixes.use(high, USER))
    assert shelves.all_of() == [other]
    shelves.turned(shelves.prefixes.part(high, USER))
    assert shelves.all_of() == [high, low]


def test_where_a_parent_would_go_next_all_that_is_built_on_it_goes_first(shelves: Shelves) -> None:
    low = shelves.planned()
    high = shelves.planned(parent=low)
    tops = [shelves.planned(parent=high) for _ in range(3)]
    for prefix in (low, high, *tops):  # a parent before its children: nobody else would say it so
        shelves.prefixes.settle(prefix)
        shelves.retained.idle(prefix)
    assert shelves.all_of() == [*tops, high, low]


def test_a_child_that_is_used_again_in_the_middle_of_its_parents_turn_stays(shelves: Shelves) -> None:
    low = shelves.kept()
    first, second = (shelves.kept(parent=low) for _ in range(2))
    gone = shelves.retained.next_of("")
    assert gone in (first, second)
    shelves.removed(gone)
    left = second if gone is first else first
    shelves.turned(shelves.prefixes.use(left, USER))
    assert shelves.retained.next_of("") is None
    shelves.turned(shelves.prefixes.part(left, USER))
    assert shelves.all_of() == [left, low]


def test_prefixes_of_the_same_content_go_each_by_itself(shelves: Shelves) -> None:
    same = [shelves.kept(content=b"tokens") for _ in range(3)]
    shelves.turned(shelves.prefixes.use(same[0], USER))
    assert set(shelves.all_of()) == set(same[1:])
    again = shelves.kept(content=b"tokens")
    shelves.turned(shelves.prefixes.part(same[0], USER))
    assert set(shelves.all_of()) == {same[0], again}


def test_a_plan_that_was_given_up_was_never_known(shelves: Shelves) -> None:
    plan = shelves.planned()
    plan.owner = USER
    shelves.removed(plan)
    assert shelves.all_of() == []


def test_among_tenants_that_no_quota_names_the_longest_idle_goes_first(shelves: Shelves) -> None:
    stale, fresh, named = shelves.kept(), shelves.kept("other"), shelves.kept("acme")
    assert shelves.retained.next_unnamed() is stale
    shelves.joined(stale)
    assert shelves.evicted(shelves.retained.next_unnamed) == [fresh, stale]
    assert shelves.retained.next_among(["acme"]) is named


def test_among_tenants_that_are_asked_for_the_longest_idle_goes_first(shelves: Shelves) -> None:
    first, second = shelves.kept("acme"), shelves.kept("other")
    assert shelves.retained.next_among(["other", "acme", "nobody"]) is first
    assert shelves.retained.next_among(["other"]) is second
    assert shelves.retained.next_among([]) is None


def test_a_tenant_that_had_nothing_left_stands_in_line_again(shelves: Shelves) -> None:
    first = shelves.kept()
    assert shelves.evicted(shelves.retained.next_unnamed) == [first]
    second = shelves.kept()
    assert shelves.evicted(shelves.retained.next_unnamed) == [second]


def test_tenants_without_a_prefix_are_forgotten_in_the_end(shelves: Shelves) -> None:
    for number in range(2 * MOST_EMPTY):
        shelves.removed(shelves.kept(f"tenant {number}"))
    assert shelves.retained.remembered == MOST_EMPTY
    kept = shelves.kept("tenant 1")
    assert shelves.retained.next_unnamed() is kept


# --- what it costs ----------------------------------------------------------------------------------------------------


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """The lines that Python runs inside."""
    lines, before = [0], sys.gettrace()

    def seen(frame: FrameType, event: str, argument: object) -> object:
        lines[0] += event == "line"
        return seen

    sys.settrace(seen)  # type: ignore[arg-type]
    try:
        yield lines
    finally:
        sys.settrace(before)


def roots(shelves: Shelves, count: int) -> list[SharedPrefix]:
    return [shelves.kept(content=b"%d" % n) for n in range(count)]


def one_family(shelves: Shelves, count: int) -> list[SharedPrefix]:
    root = shelves.kept(content=b"root")
    return [root, *(shelves.kept(parent=root, content=b"%d" % n) for n in range(count - 1))]


def pairs_of_many_tenants(shelves: Shelves, count: int) -> list[SharedPrefix]:
    return [shelves.kept(str(n // 2), content=b"%d" % n) for n in range(count)]


@pytest.mark.parametrize("made", [roots, one_family, pairs_of_many_tenants])
def test_a_join_and_an_eviction_cost_the_same_with_a_hundred_prefixes_and_with_ten_thousand(
    made: Callable[[Shelves, int], list[SharedPrefix]],
) -> None:
    few, many = (lines_of(made, count) for count in (100, 10_000))
    assert many[0] <= 1.5 * few[0]
    assert many[1] <= 1.5 * few[1]


def lines_of(made: Callable[[Shelves, int], list[SharedPrefix]], count: int) -> tuple[float, float]:
    """Lines of a join with its leaving, and of an eviction, with so many prefixes."""
    shelves = Shelves()
    prefixes = made(shelves, count)
    with counted_lines() as joining:
        for prefix in prefixes[:: count // 100]:
            shelves.joined(prefix)
    with counted_lines() as evicting:
        gone = [shelves.evicted_one() for _ in range(min(count // 2, 1_000))]
    return joining[0] / 100, evicting[0] / len(gone)


# --- any order --------------------------------------------------------------------------------------------------------


class RetainedModel(RuleBasedStateMachine):
    """Prefixes come, are used, and go in any order: what is next is always idle and a leaf, and nothing is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.shelves = Shelves()

    @rule(data=st.data(), tenant=st.sampled_from(TENANTS), content=st.integers(0, 4), is_child=st.booleans())
    def one_is_kept(self, data: st.DataObject, tenant: str, content: int, is_child: bool) -> None:
        family = [prefix for prefix in self.there if prefix.tenant == tenant]
        parent = data.draw(st.sampled_from(family)) if is_child and family else None
        self.shelves.kept(tenant, parent, b"%d" % content if content else b"")

    @rule(data=st.data(), act=st.sampled_from(["use", "part"]), who=st.integers(1, 3))
    def one_is_used_or_left(self, data: st.DataObject, act: str, who: int) -> None:
        if self.there:
            prefix = data.draw(st.sampled_from(self.there))
            change = self.shelves.prefixes.use if act == "use" else self.shelves.prefixes.part
            self.shelves.turned(change(prefix, RequestId("s", who)))

    @rule(tenant=st.sampled_from(TENANTS))
    def the_next_goes(self, tenant: str) -> None:
        prefix = self.shelves.retained.next_of(tenant)
        if prefix is not None:
            self.shelves.removed(prefix)

    @rule(data=st.data())
    def any_leaf_goes(self, data: st.DataObject) -> None:
        leaves = [prefix for prefix in self.there if prefix.is_idle and not prefix.children]
        if leaves:
            self.shelves.removed(data.draw(st.sampled_from(leaves)))

    @property
    def there(self) -> list[SharedPrefix]:
        return list(self.shelves.prefixes)

    @invariant()
    def the_next_is_idle_and_a_leaf_and_there_is_one_where_any_is_idle(self) -> None:
        retained = self.shelves.retained
        for tenant in TENANTS:
            self.is_next(retained.next_of(tenant), {tenant})
        self.is_next(retained.next_unnamed(), {"", "other"})
        self.is_next(retained.next_among(["acme", ""]), {"acme", ""})

    def is_next(self, prefix: SharedPrefix | None, tenants: set[str]) -> None:
        idle = [p for p in self.there if p.is_idle and p.tenant in tenants]
        assert (prefix is None) is (not idle)
        if prefix is not None:
            assert prefix in idle
            assert not prefix.children

    def teardown(self) -> None:
        for prefix in self.there:
            for user in list(prefix.users):
                self.shelves.turned(self.shelves.prefixes.part(prefix, user))
        for tenant in TENANTS:
            self.shelves.all_of(tenant)
        assert not self.there


TestRetainedModel = RetainedModel.TestCase
TestRetainedModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
