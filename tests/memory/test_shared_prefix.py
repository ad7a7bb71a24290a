"""A prefix: which handles each part of it has, who keeps it alive, and who turns idle when nobody does."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import InvariantBroken, NotShareable
from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.ids import HandleId, RequestId, WindowRun
from kvcluster.memory.handle import Handle, HandleState
from kvcluster.memory.shared_prefix import Extent, PrefixState, SharedPrefix, SharedPrefixes
from tests.examples import examples

GRANULE = 4096
SHAPE = Shape((GroupShape(1, 256), GroupShape(2, 128)), GRANULE)
RINGS = Shape((GroupShape(1, 256), GroupShape(1, 256, Keeps.RING, 3), GroupShape(1, 256, Keeps.SNAPSHOT, 2)), GRANULE)
ONE = Shape((GroupShape(1, 256),), GRANULE)
numbers = count()


def handles(*granules: int) -> list[Handle]:
    made = (PhysicalHandle(next(numbers), size * GRANULE) for size in granules)
    return [Handle(HandleId(physical.number, 0), physical, HandleState.OUT) for physical in made]


def prefix_of(
    shape: Shape, tokens: int, parent: SharedPrefix | None = None, base: tuple[int, ...] = ()
) -> SharedPrefix:
    windows = shape.shared_windows(tokens)
    extent = Extent(tokens, windows, base or (0,) * len(windows))
    prefix = SharedPrefix(1, "", shape, extent, parent)
    prefix.take(handles(*[1] * sum(run.count for run in prefix.runs)))
    return prefix


def test_a_part_is_the_first_windows_of_each_fragment_and_their_handles_in_that_order() -> None:
    prefix = prefix_of(SHAPE, 96)
    assert prefix.extent.windows == (6, 3)
    part = prefix.part((4, 2))
    assert part.runs == (WindowRun(0, 0, 0, 4), WindowRun(1, 0, 0, 2), WindowRun(1, 1, 0, 2))
    own = prefix.handles
    assert part.handles == (*own[:4], *own[6:8], *own[9:11])


def test_a_part_reaches_through_the_prefixes_below_and_takes_the_snapshot_of_its_own_boundary() -> None:
    first = prefix_of(RINGS, 64)
    second = prefix_of(RINGS, 112, first, (4, 0, 0))
    part = second.part(second.extent.windows)
    assert part.runs == (WindowRun(0, 0, 0, 7), WindowRun(2, 0, 0, 2))
    assert part.handles == (*first.handles[:4], *second.handles)
    assert second.size_bytes == 5 * GRANULE


def test_a_child_of_a_part_takes_no_more_of_its_parent_than_that_part() -> None:
    first = prefix_of(ONE, 96)
    second = prefix_of(ONE, 112, first, (4,))
    assert second.part((7,)).handles == (*first.handles[:4], *second.handles)
    assert second.part((3,)).handles == first.handles[:3]


def test_no_handle_is_joined_in_part() -> None:
    first = SharedPrefix(1, "", ONE, Extent(96, (6,), (0,)))
    first.take(handles(1, 4, 1))
    second = SharedPrefix(2, "", ONE, Extent(160, (10,), (6,)), first)
    second.take(handles(3, 1))
    edges = [0, 1, 1, 1, 1, 5, 6, 6, 6, 9, 10]
    assert [second.whole((wanted,))[0] for wanted in range(11)] == edges
    assert [first.whole((wanted,))[0] for wanted in range(7)] == edges[:7]


def test_fragments_that_were_cut_differently_are_joined_where_both_have_an_edge() -> None:
    prefix = SharedPrefix(1, "", Shape((GroupShape(2, 256),), GRANULE), Extent(64, (4,), (0,)))
    prefix.take(handles(2, 2, 1, 1, 1, 1))
    assert [prefix.whole((wanted,))[0] for wanted in range(5)] == [0, 0, 2, 2, 4]


def test_a_chain_of_thousands_is_walked_without_recursion() -> None:
    shape = Shape((GroupShape(1, GRANULE),), GRANULE)
    prefixes, parent = SharedPrefixes(), None
    for n in range(3000):
        parent = prefixes.plan("", shape, Extent(n + 1, (n + 1,), (n,)), parent)
        parent.take(handles(1))
    assert parent is not None
    assert len(parent.part((3000,)).handles) == 3000
    assert len(prefixes.settle(parent)) == 3000  # idle, all of them


# --- all prefixes of a device -----------------------------------------------------------------------------------------


def planned(prefixes: SharedPrefixes, parent: SharedPrefix | None = None, tenant: str = "") -> SharedPrefix:
    start = parent.extent.windows[0] if parent else 0
    return prefixes.plan(tenant, ONE, Extent((start + 2) * 16, (start + 2,), (start,)), parent)


def test_a_number_is_never_used_again() -> None:
    prefixes = SharedPrefixes()
    first = planned(prefixes)
    prefixes.remove(first)
    assert planned(prefixes).number == first.number + 1
    assert first.state is PrefixState.DRAINED
    with pytest.raises(InvariantBroken):
        first.move(PrefixState.SEALED)


@pytest.mark.parametrize("hidden", ["another tenant's", "not shared yet", "gone", "never"])
def test_what_one_may_not_know_of_is_not_found_and_it_is_not_told_why(hidden: str) -> None:
    prefixes = SharedPrefixes()
    prefix = planned(prefixes, tenant="acme" if hidden == "another tenant's" else "")
    if hidden == "not shared yet":
        prefix.owner = RequestId("s", 1)
    if hidden == "gone":
        prefixes.remove(prefix)
    number = prefix.number + (hidden == "never")
    with pytest.raises(NotShareable, match=f"^there is no such prefix: {number}$"):
        prefixes.find(number, "")


def test_users_pins_and_children_keep_a_prefix_and_all_below_it() -> None:
    prefixes = SharedPrefixes()
    low = planned(prefixes)
    middle = planned(prefixes, low)
    high = planned(prefixes, middle)
    assert prefixes.settle(high) == [high, middle, low]
    assert prefixes.use(high, RequestId("s", 1)) == [high, middle, low]
    assert prefixes.pin(low, "t") == []
    assert prefixes.part(high, RequestId("s", 1)) == [high, middle]
    assert prefixes.process_gone("t") == [low]
    assert not prefixes.pinned_by("t")


class PrefixModel(RuleBasedStateMachine):
    """Users, pins and children at random: who is idle is what is counted from nothing, and each turn is told once."""

    def __init__(self) -> None:
        super().__init__()
        self.prefixes = SharedPrefixes()
        self.idle: set[SharedPrefix] = set()  # as it was told

    @rule(data=st.data(), is_child=st.booleans())
    def plans(self, data: st.DataObject, is_child: bool) -> None:
        there = list(self.prefixes)
        parent = data.draw(st.sampled_from(there)) if is_child and there else None
        self.turned(self.prefixes.settle(planned(self.prefixes, parent)))
        if parent:
            self.turned(self.prefixes.settle(parent))

    @rule(data=st.data(), act=st.sampled_from(["use", "part", "pin", "gone", "remove"]), who=st.integers(1, 3))
    def acts(self, data: st.DataObject, act: str, who: int) -> None:
        there = list(self.prefixes)
        if not there:
            return
        prefix = data.draw(st.sampled_from(there))
        if act == "use":
            self.turned(self.prefixes.use(prefix, RequestId("s", who)))
        elif act == "part":
            self.turned(self.prefixes.part(prefix, RequestId("s", who)))
        elif act == "pin":
            self.turned(self.prefixes.pin(prefix, str(who)))
        elif act == "gone":
            self.turned(self.prefixes.process_gone(str(who)))
        elif not prefix.children and not prefix.pins:
            self.idle.discard(prefix)
            self.turned(self.prefixes.remove(prefix))

    def turned(self, turned: list[SharedPrefix]) -> None:
        assert [prefix for prefix in turned if prefix.is_idle is (prefix in self.idle)] == []
        self.idle ^= set(turned)
        assert not any(first in second.chain() for first, second in pairwise(turned))  # children first

    @invariant()
    def idle_is_what_nobody_uses_and_nothing_used_builds_on(self) -> None:
        for prefix in self.prefixes:
            assert prefix.is_idle is self.counted_idle(prefix) is (prefix in self.idle)

    def counted_idle(self, prefix: SharedPrefix) -> bool:
        return not prefix.users and not prefix.pins and all(map(self.counted_idle, prefix.children))


TestPrefixModel = PrefixModel.TestCase
TestPrefixModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


@given(st.integers(1, 400), st.integers(1, 400))
def test_a_part_never_has_more_than_the_prefix_nor_more_than_lies_inside(tokens: int, equal: int) -> None:
    prefix = prefix_of(SHAPE, tokens)
    inside = tuple(map(min, SHAPE.shared_windows(equal), prefix.extent.windows))
    part = prefix.part(prefix.whole(inside))
    assert part.windows == inside
    assert len(part.handles) == SHAPE.window_count(inside)
    assert set(part.handles) <= set(prefix.handles)
