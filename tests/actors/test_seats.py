"""A seat says how far its actor is, and never skips a stage."""

from __future__ import annotations

import itertools

import pytest

from actors.seats import STAGES, Seat, Stage
from actors.spec import Opened, Placed
from kvcluster.errors import InvariantBroken

PID = 7


PLACED, OPENED = Placed("host:0", PID), Opened(PID, "host:0")


def brought_to(stage: Stage) -> Seat:
    seat = Seat(0, "host:0")
    if stage is not Stage.EMPTY:
        move(seat, Stage.PLACED)
    if stage is Stage.READY:
        move(seat, Stage.READY)
    return seat


def move(seat: Seat, to: Stage) -> None:
    match to:
        case Stage.EMPTY:
            seat.leave()
        case Stage.PLACED:
            seat.is_placed(PLACED)
        case Stage.READY:
            seat.is_open(OPENED)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Stage, Stage)))
def test_a_seat_goes_from_stage_to_stage_as_its_table_says_and_has_a_process_from_its_place_on(
    before: Stage, after: Stage
) -> None:
    seat = brought_to(before)
    if after in STAGES[before]:
        move(seat, after)
        assert (seat.stage, seat.is_ready) == (after, after is Stage.READY)
        assert seat.pid == (0 if after is Stage.EMPTY else PID)
        return
    with pytest.raises(InvariantBroken, match=f"Stage goes from {before.name} to {after.name}"):
        move(seat, after)
    assert seat.stage is before
