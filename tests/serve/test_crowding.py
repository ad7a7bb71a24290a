"""When a gateway refuses by itself, because a replica has said that it is busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from actors.crowding import PROBE_S, Crowding
from actors.openai.places import Full
from kvcluster.services.completion import BUSY, TOO_MANY, Begun, Refused
from kvcluster.services.pacing import Pace
from kvcluster.testing.clock import ManualClock

REFUSAL = Refused(TOO_MANY, BUSY, "busy", 1.0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def crowding(clock: ManualClock) -> Crowding:
    return Crowding(Pace(least_s=0.1, most_s=30.0, clock=clock), clock)


def refuse(crowding: Crowding, texts: int = 1) -> None:
    """A replica has no room for so many."""
    with crowding.visit(texts) as visit:
        visit.heard(REFUSAL)


@pytest.fixture
def there() -> Iterator[ExitStack]:
    """Where those stay that were let through."""
    with ExitStack() as there:
        yield there


def is_let_through(crowding: Crowding, there: ExitStack, texts: int = 1) -> bool:
    """Whether one goes to a replica now."""
    try:
        there.enter_context(crowding.visit(texts))
    except Full:
        return False
    return True


def test_where_no_replica_refuses_nobody_is_held_up(crowding: Crowding) -> None:
    with ExitStack() as inside:
        for _ in range(1_000):
            inside.enter_context(crowding.visit(1)).heard(Begun(1, 0))


def test_after_a_refusal_as_many_go_as_have_ended(crowding: Crowding, there: ExitStack) -> None:
    with ExitStack() as inside:
        inside.enter_context(crowding.visit(2))
        refuse(crowding)
        assert not is_let_through(crowding, there)
    assert [is_let_through(crowding, there) for _ in range(3)] == [True, True, False]


def test_one_goes_now_and_then_to_find_out_and_one_that_begins_opens_for_all(
    crowding: Crowding, there: ExitStack, clock: ManualClock
) -> None:
    refuse(crowding)
    clock.advance(PROBE_S)
    with crowding.visit(1) as probe:
        assert not is_let_through(crowding, there)
        probe.heard(Begun(1, 0))
        assert [is_let_through(crowding, there) for _ in range(3)] == [True, True, True]


def test_one_that_begins_in_another_s_place_says_nothing_of_more_room(crowding: Crowding, there: ExitStack) -> None:
    with ExitStack() as inside:
        inside.enter_context(crowding.visit(1))
        refuse(crowding)
    with crowding.visit(1) as next_one:
        next_one.heard(Begun(1, 0))
        assert not is_let_through(crowding, there)


def test_a_replica_without_room_for_many_may_have_some_for_fewer(crowding: Crowding, there: ExitStack) -> None:
    refuse(crowding, texts=4)
    assert not is_let_through(crowding, there, 4)
    assert is_let_through(crowding, there, 3)
    refuse(crowding, texts=2)
    assert not is_let_through(crowding, there, 3)


def test_a_refusal_for_another_reason_holds_up_nobody(crowding: Crowding, there: ExitStack) -> None:
    with crowding.visit(1) as visit:
        visit.heard(Refused(429, "kv_memory_full", "full", 1.0))
    assert is_let_through(crowding, there)


def test_each_that_is_refused_is_told_a_later_time(crowding: Crowding) -> None:
    refuse(crowding)
    told = []
    for _ in range(4):
        with pytest.raises(Full) as full, crowding.visit(1):
            pass
        told.append(full.value.retry_after_s)
    assert told == sorted(set(told))
