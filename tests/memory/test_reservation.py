"""The owner's side of a request: which windows have memory, and what is missing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.errors import InvariantBroken, NotAllowed
from kvcluster.geometry.residency import GroupShape, Shape
from kvcluster.geometry.windows import runs_of, windows_of
from kvcluster.ids import WindowRun
from kvcluster.memory.reservation import ReservationState
from kvcluster.testing.strategies import amounts, shapes
from tests.examples import examples
from tests.memory.reservations import MOST, bulk, given_windows, handles, reservation


def test_what_is_missing_is_a_run_a_fragment_and_asking_changes_nothing() -> None:
    mine = reservation()
    assert mine.missing(17) == (WindowRun(0, 0, 0, 2), WindowRun(0, 1, 0, 2))
    assert mine.missing(17) == mine.missing(17)
    assert mine.state is ReservationState.RESERVED


def test_what_is_there_is_not_missing() -> None:
    mine = reservation()
    given_windows(mine, 17)
    assert mine.state is ReservationState.COMMITTED
    assert mine.missing(32) == ()
    assert mine.missing(33) == (WindowRun(0, 0, 2, 1), WindowRun(0, 1, 2, 1))


def test_more_tokens_than_were_reserved_are_refused() -> None:
    mine = reservation()
    with pytest.raises(NotAllowed, match="161 tokens are more than the 160 reserved"):
        mine.missing(MOST + 1)


def test_a_window_given_back_from_the_middle_is_missing_again_and_only_that() -> None:
    mine = reservation()
    given_windows(mine, 80)
    mine.detach([WindowRun(0, 0, 2, 1)])
    assert mine.missing(80) == (WindowRun(0, 0, 2, 1),)
    assert mine.missing(96) == (WindowRun(0, 0, 2, 1), WindowRun(0, 0, 5, 1), WindowRun(0, 1, 5, 1))


def test_handles_come_back_in_the_order_of_the_runs_that_name_them() -> None:
    mine = reservation()
    found = given_windows(mine, 48)
    assert mine.detach([WindowRun(0, 1, 0, 3), WindowRun(0, 0, 1, 2)]) == [*found[3:], *found[1:3]]
    assert mine.own.held_runs() == (WindowRun(0, 0, 0, 1),)


@pytest.mark.parametrize(
    "runs",
    [
        [WindowRun(0, 0, 3, 1)],  # no memory there
        [WindowRun(0, 0, 0, 1), WindowRun(0, 0, 0, 1)],  # twice
        [WindowRun(0, 0, 0, 2), WindowRun(0, 0, 1, 1)],  # overlapping
        [WindowRun(0, 7, 0, 1)],  # no such fragment
        [WindowRun(5, 0, 0, 1)],  # no such group
        [WindowRun(0, 0, -1, 1)],
        [WindowRun(0, 0, 2, 2)],  # one beyond the last
        [WindowRun(0, 0, 0, 2**62)],  # absurdly many
    ],
)
def test_a_window_that_is_not_held_is_refused_and_nothing_is_taken(runs: list[WindowRun]) -> None:
    mine = reservation()
    given_windows(mine, 48)
    before = mine.own.held_runs()
    with pytest.raises(NotAllowed):
        mine.detach(runs)
    assert mine.own.held_runs() == before
    assert mine.held_bytes == 6 * 4096


def test_giving_everything_back_leaves_a_reservation_without_bytes() -> None:
    mine = reservation()
    given_windows(mine, 48)
    mine.detach(mine.own.held_runs())
    assert (mine.state, mine.held_bytes) == (ReservationState.RESERVED, 0)
    assert mine.missing(16) == (WindowRun(0, 0, 0, 1), WindowRun(0, 1, 0, 1))


def test_a_quarantined_reservation_takes_no_more_windows_and_gives_back_what_it_has() -> None:
    mine = reservation()
    given_windows(mine, 48)
    mine.quarantine()
    mine.quarantine()
    with pytest.raises(NotAllowed, match="takes no more commits"):
        mine.missing(64)
    assert mine.growth_bytes(16) == 0
    mine.detach(mine.own.held_runs())
    assert mine.state is ReservationState.QUARANTINED
    mine.close()


def test_a_closed_reservation_is_closed_for_good() -> None:
    mine = reservation()
    mine.close()
    with pytest.raises(InvariantBroken):
        mine.quarantine()


def test_one_growth_is_what_more_tokens_can_take_and_never_more_than_is_left() -> None:
    mine = reservation()
    assert mine.growth_bytes(16) == 2 * 4096
    given_windows(mine, MOST)
    assert mine.growth_bytes(16) == 0


@settings(deadline=None, max_examples=examples(50))
@given(shapes(), amounts(40), st.data())
def test_held_windows_equal_a_plain_set_whatever_was_committed_and_given_back(
    shape: Shape, tokens: list[int], data: st.DataObject
) -> None:
    mine, plain = reservation(shape, 40), set()
    for amount in tokens:
        wanted = shape.windows(amount)
        missing = mine.missing(amount)
        needed = set(windows_of(shape.runs(shape.windows(0), wanted))) - plain
        assert set(windows_of(missing)) == needed
        mine.attach(missing, handles(len(needed), shape.granule_bytes))
        plain |= needed
        gone = set(data.draw(st.lists(st.sampled_from(sorted(plain)), unique=True)))
        mine.detach(runs_of(gone))
        plain -= gone
        assert set(windows_of(mine.own.held_runs())) == plain
        assert mine.held_bytes == len(plain) * shape.granule_bytes


# --- handles of several windows ---------------------------------------------------------------------------------------


def test_a_handle_covers_adjacent_windows_and_comes_back_whole_or_not_at_all() -> None:
    mine = reservation()
    found = bulk(4, 1, 4, 1)
    mine.attach(mine.missing(80), found)
    assert (mine.held_bytes, mine.missing(80)) == (10 * 4096, ())
    for part in (WindowRun(0, 0, 0, 3), WindowRun(0, 0, 3, 2), WindowRun(0, 1, 1, 4)):
        with pytest.raises(NotAllowed, match="not all of them"):
            mine.detach([part])
    assert mine.held_bytes == 10 * 4096
    assert mine.detach([WindowRun(0, 0, 0, 2), WindowRun(0, 0, 2, 2)]) == [found[0]]
    assert mine.missing(80) == (WindowRun(0, 0, 0, 4),)
    mine.attach([WindowRun(0, 0, 0, 4)], found[:1])
    assert mine.own.backing(mine.own.held_runs()) == found


def test_a_window_of_a_bulk_handle_named_twice_does_not_stand_for_its_neighbour() -> None:
    mine = reservation()
    mine.attach(mine.missing(32), bulk(2, 2))
    with pytest.raises(NotAllowed, match="a window twice"):
        mine.detach([WindowRun(0, 0, 0, 1), WindowRun(0, 0, 0, 1)])
    assert len(mine.detach(mine.own.held_runs())) == 2


@pytest.mark.parametrize("granules", [(4, 1, 4), (5, 5, 5), (4, 4, 2), (6, 4), (10,)])
def test_handles_that_do_not_fill_their_runs_are_our_bug(granules: tuple[int, ...]) -> None:
    mine = reservation()
    with pytest.raises(InvariantBroken):
        mine.attach(mine.missing(80), bulk(*granules))


def test_what_is_contiguous_ends_at_a_hole_and_at_a_handle_that_reaches_beyond() -> None:
    mine = reservation()
    mine.attach(mine.missing(112), bulk(1, 1, 4, 1, 1, 1, 4, 1))
    assert mine.own.contiguous((0,), (7,)) == (7,)
    assert mine.own.contiguous((0,), (5,)) == (2,)
    assert mine.own.contiguous((2,), (6,)) == (6,)
    mine.detach([WindowRun(0, 1, 1, 1)])
    assert mine.own.contiguous((0,), (7,)) == (1,)
    assert mine.own.contiguous((2,), (7,)) == (7,)
    assert mine.own.contiguous((1,), (7,)) == (1,)


def test_what_is_held_below_counts_whole_handles_only() -> None:
    mine = reservation(Shape((GroupShape(1, 256),), 4096))
    mine.attach(mine.missing(96), bulk(1, 4, 1))
    assert mine.own.held_below((4,)) == (WindowRun(0, 0, 0, 1),)
    assert mine.own.held_below((5,)) == (WindowRun(0, 0, 0, 5),)
