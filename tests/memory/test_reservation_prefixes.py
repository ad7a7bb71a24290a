"""Windows that a reservation shares: they are not missing, not its own, and not its bill."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.errors import NotAllowed
from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.geometry.windows import Window, runs_of, windows_of
from kvcluster.ids import WindowRun
from kvcluster.memory.handle import Handle
from kvcluster.memory.reservation import ReservationState
from kvcluster.memory.shared_prefix import Extent, SharedPrefix
from tests.examples import examples
from tests.memory.reservations import MOST, SHAPE, bulk, given_windows, handles, reservation

SLIDING = Shape((GroupShape(1, 256), GroupShape(1, 256, Keeps.RING, 3), GroupShape(1, 256, Keeps.SNAPSHOT, 2)), 4096)


def shared_prefix(shape: Shape, tokens: int) -> SharedPrefix:
    windows = shape.shared_windows(tokens)
    prefix = SharedPrefix(1, "", shape, Extent(tokens, windows, (0,) * len(windows)))
    prefix.take(handles(shape.window_count(windows)))
    return prefix


def test_what_a_prefix_has_is_not_missing_and_is_nobodys_bill() -> None:
    mine, prefix = reservation(), shared_prefix(SHAPE, 40)
    mine.use(prefix, (2,))
    assert (mine.state, mine.held_bytes, mine.shared) == (ReservationState.SHARED, 0, (2,))
    assert mine.missing(70) == (WindowRun(0, 0, 2, 3), WindowRun(0, 1, 2, 3))
    given_windows(mine, 70)
    assert (mine.state, mine.missing(70)) == (ReservationState.SHARED, ())
    with pytest.raises(NotAllowed):
        mine.detach([WindowRun(0, 0, 1, 1)])


def test_a_prefix_that_is_used_no_longer_leaves_a_hole() -> None:
    mine, prefix = reservation(), shared_prefix(SHAPE, 40)
    mine.use(prefix, (2,))
    given_windows(mine, 70)
    assert mine.part().prefix is prefix
    assert mine.state is ReservationState.COMMITTED
    assert mine.missing(70) == (WindowRun(0, 0, 0, 2), WindowRun(0, 1, 0, 2))
    mine.detach(mine.own.held_runs())
    assert mine.state is ReservationState.RESERVED


def test_windows_given_back_beside_a_prefix_are_missing_again() -> None:
    mine = reservation()
    mine.use(shared_prefix(SHAPE, 40), (2,))
    given_windows(mine, 70)
    mine.detach([WindowRun(0, 0, 2, 1), WindowRun(0, 1, 4, 1)])
    assert mine.missing(70) == (WindowRun(0, 0, 2, 1), WindowRun(0, 1, 4, 1))


def test_a_ring_is_missing_up_to_its_size_and_a_snapshot_where_it_is_asked_for() -> None:
    mine = reservation(SLIDING)
    assert mine.missing(40) == (WindowRun(0, 0, 0, 3), WindowRun(1, 0, 0, 3))
    given_windows(mine, 40)
    assert mine.missing(160) == (WindowRun(0, 0, 3, 7),)
    assert mine.missing(40, snapshot=True) == (WindowRun(2, 0, 0, 2),)


def test_a_shared_snapshot_is_missing_where_one_of_its_own_is_asked_for() -> None:
    mine = reservation(SLIDING)
    mine.use(shared_prefix(SLIDING, 40), (2, 0, 2))
    assert mine.missing(40) == (WindowRun(0, 0, 2, 1), WindowRun(1, 0, 0, 3))
    given_windows(mine, 40)
    snapshot = mine.missing(40, snapshot=True)
    assert snapshot == (WindowRun(2, 0, 0, 2),)
    mine.attach(snapshot, handles(2))
    assert mine.missing(40, snapshot=True) == ()


def test_a_growth_never_counts_what_is_shared() -> None:
    mine = reservation()
    mine.use(shared_prefix(SHAPE, 144), (9,))
    assert mine.growth_bytes(160) == 2 * 4096


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.tuples(st.sampled_from(["grow", "back", "use", "part"]), st.integers(1, MOST), st.randoms())))
def test_own_and_shared_windows_equal_plain_sets_whatever_is_done(steps: list[tuple[str, int, Random]]) -> None:
    mine, own = reservation(), dict[Window, Handle]()
    for act, amount, random in steps:
        start = mine.shared[0]
        if act == "grow":
            missing = mine.missing(amount)
            wanted = {Window(0, f, n) for f in (0, 1) for n in range(start, -(-amount // 16))}
            assert set(windows_of(missing)) == wanted - own.keys()
            found = cut_at_random(missing, random)
            mine.attach(missing, found)
            covered = (handle for handle in found for _ in range(handle.size_bytes // 4096))
            own |= dict(zip(windows_of(missing), covered, strict=True))
        elif act == "back":
            gone = {handle for handle in own.values() if random.random() < 0.5}
            windows = [window for window, handle in own.items() if handle in gone]
            assert set(mine.detach(runs_of(windows))) == gone
            own = {window: handle for window, handle in own.items() if handle not in gone}
        elif act == "use" and amount // 16 > start and not any(w.number < amount // 16 for w in own):
            mine.use(shared_prefix(SHAPE, amount), (amount // 16,))
        elif act == "part" and mine.uses:
            mine.part()
        assert set(windows_of(mine.own.held_runs())) == own.keys()
        assert mine.held_bytes == len(own) * 4096


def cut_at_random(runs: tuple[WindowRun, ...], random: Random) -> list[Handle]:
    granules: list[int] = []
    for run in runs:
        left = run.count
        while left:
            granules.append(random.randint(1, left))
            left -= granules[-1]
    return bulk(*granules)
