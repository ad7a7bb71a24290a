"""When a gateway refuses by itself, because a replica has said that it is busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from actors.crowding import PROBE_S, Crowding, Visit
from actors.openai.places import Full
from actors.openai.seams import Unavailable
from kvcluster.services.completion import BUSY, TOO_MANY, Begun, Refused
from kvcluster.services.pacing import DEFAULT_S, Pace
from kvcluster.testing.clock import ManualClock

REFUSAL = Refused(TOO_MANY, BUSY, "busy", 1.0)
BEGUN = Begun(1, 0)
MOST_S = 30.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def crowding(clock: ManualClock) -> Crowding:
    return Crowding(Pace(least_s=0.1, most_s=MOST_S, clock=clock), clock)


class Places:
    """A model's, all of whose texts are this gateway's: as many are computed as there are, and one more is refused."""

    def __init__(self, crowding: Crowding, most: int) -> None:
        self._crowding = crowding
        self._most = most
        self._running: list[ExitStack] = []

    def come(self, texts: int = 1) -> float | None:
        """So many, each by itself, of one request. When it is to come back; None where all are computed."""
        with ExitStack() as came:
            try:
                for visit in [came.enter_context(self._crowding.visit(1)) for _ in range(texts)]:
                    self._take(visit, texts)
            except Full as full:
                return full.retry_after_s
            except Busy:
                return REFUSAL.retry_after_s
            self._running.append(came.pop_all())
        return None

    def _take(self, visit: Visit, texts: int) -> None:
        if len(self._running) + texts > self._most:
            visit.heard(REFUSAL)
            raise Busy
        visit.heard(BEGUN)

    def end(self) -> None:
        """The one that is there for the longest time."""
        self._running.pop(0).close()

    def end_all(self) -> None:
        while self._running:
            self.end()


class Busy(Exception):
    """A replica has no room."""


def refuse(crowding: Crowding, texts: int = 1) -> None:
    """A replica has no room for so many."""
    with crowding.visit(texts) as visit:
        visit.heard(REFUSAL)


def begin(crowding: Crowding, inside: ExitStack, texts: int = 1) -> None:
    """So many are computed."""
    inside.enter_context(crowding.visit(texts)).heard(BEGUN)


@pytest.fixture
def there() -> Iterator[ExitStack]:
    """Where those stay that were let through."""
    with ExitStack() as there:
        yield there


@pytest.fixture
def full(crowding: Crowding, there: ExitStack) -> Crowding:
    """It is full, and somebody is computed for to the end."""
    begin(crowding, there)
    refuse(crowding)
    return crowding


def is_let_through(crowding: Crowding, there: ExitStack, texts: int = 1) -> bool:
    """Whether one goes to a replica now."""
    try:
        there.enter_context(crowding.visit(texts))
    except Full:
        return False
    return True


def told_s(crowding: Crowding) -> float:
    with pytest.raises(Full) as full, crowding.visit(1):
        pass
    return full.value.retry_after_s


def test_where_no_replica_refuses_nobody_is_held_up(crowding: Crowding) -> None:
    with ExitStack() as inside:
        for _ in range(1_000):
            begin(crowding, inside)


def test_after_a_refusal_as_many_go_as_have_ended(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    with ExitStack() as inside:
        begin(crowding, inside, 2)
        refuse(crowding)
        assert not is_let_through(crowding, there)
    assert [is_let_through(crowding, there) for _ in range(3)] == [True, True, False]


def test_one_goes_now_and_then_to_find_out_and_one_that_begins_opens_for_all(
    full: Crowding, there: ExitStack, clock: ManualClock
) -> None:
    clock.advance(PROBE_S)
    with full.visit(1) as probe:
        assert not is_let_through(full, there)
        probe.heard(BEGUN)
        assert [is_let_through(full, there) for _ in range(3)] == [True, True, True]


def test_one_that_begins_in_another_s_place_says_nothing_of_more_room(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    with ExitStack() as inside:
        begin(crowding, inside)
        refuse(crowding)
    with crowding.visit(1) as next_one:
        next_one.heard(BEGUN)
        assert not is_let_through(crowding, there)


def test_a_replica_without_room_for_many_may_have_some_for_fewer(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    refuse(crowding, texts=4)
    assert not is_let_through(crowding, there, 4)
    assert is_let_through(crowding, there, 3)
    refuse(crowding, texts=2)
    assert not is_let_through(crowding, there, 3)


def test_a_refusal_for_another_reason_holds_up_nobody(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    with crowding.visit(1) as visit:
        visit.heard(Refused(429, "kv_memory_full", "full", 1.0))
    assert is_let_through(crowding, there)


def test_requests_for_fewer_texts_make_no_room_by_ending_where_they_took_none_that_was_counted(
    crowding: Crowding, there: ExitStack
) -> None:
    begin(crowding, there)
    refuse(crowding, texts=4)
    for _ in range(100):
        with crowding.visit(1) as visit:
            visit.heard(BEGUN)
    assert not is_let_through(crowding, there, 4)


def test_requests_for_fewer_texts_take_the_places_that_came_free(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    with ExitStack() as inside:
        begin(crowding, inside, 4)
        refuse(crowding, texts=4)
    begin(crowding, there)
    assert not is_let_through(crowding, there, 4)


def test_what_fails_before_it_began_makes_no_room_and_no_pace(
    full: Crowding, there: ExitStack, clock: ManualClock
) -> None:
    before_s = told_s(full)
    for _ in range(50):
        clock.advance(PROBE_S)
        with suppress(Unavailable), full.visit(1):
            raise Unavailable("replica_lost", "it fails at once", retry_after_s=1.0)
    assert not is_let_through(full, there)
    assert told_s(full) > before_s


def test_the_texts_of_a_replica_that_is_lost_make_no_room(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    lost = ExitStack()
    for _ in range(4):
        begin(crowding, lost)
    refuse(crowding)
    with suppress(Unavailable), lost:
        raise Unavailable("replica_lost", "it is lost", retry_after_s=1.0)
    assert not is_let_through(crowding, there)


def test_a_place_that_was_given_and_not_used_goes_to_the_next(crowding: Crowding, there: ExitStack) -> None:
    begin(crowding, there)
    with ExitStack() as inside:
        begin(crowding, inside)
        refuse(crowding)
    with crowding.visit(1):
        assert not is_let_through(crowding, there)
    assert [is_let_through(crowding, there) for _ in range(2)] == [True, False]


def test_when_everybody_has_left_nobody_is_held_up(crowding: Crowding, there: ExitStack, clock: ManualClock) -> None:
    places = Places(crowding, 3)
    assert [places.come() for _ in range(8)][:4] == [None, None, None, REFUSAL.retry_after_s]
    places.end_all()
    clock.advance(3_600.0)
    assert [is_let_through(crowding, there) for _ in range(10)] == [True] * 10


def test_a_request_of_several_prompts_goes_at_its_first_try_where_all_had_ended_before_the_last_refusal_came(
    crowding: Crowding, clock: ManualClock
) -> None:
    places = Places(crowding, 8)
    with crowding.visit(1) as late:
        with ExitStack() as inside:
            begin(crowding, inside)
        late.heard(REFUSAL)
    clock.advance(60.0)
    assert places.come(8) is None
    places.end_all()


def test_each_that_is_refused_is_told_a_later_time(full: Crowding) -> None:
    told = [told_s(full) for _ in range(4)]
    assert told == sorted(set(told))


def test_what_is_told_falls_when_the_load_goes_and_quiet_traffic_does_not_raise_it(
    crowding: Crowding, clock: ManualClock
) -> None:
    places, under_load = Places(crowding, 4), list[float]()
    for _ in range(4):
        places.come()
    for _ in range(100):  # one ends every 0.1 s, and two come
        under_load += [told for _ in range(2) if (told := places.come()) is not None]
        clock.advance(0.1)
        places.end()
    assert max(under_load[-20:]) > 5 * min(under_load)
    places.end_all()
    for _ in range(64):
        clock.advance(10.0)
        assert places.come() is None
        clock.advance(0.2)
        places.end()
    burst = [told for _ in range(6) if (told := places.come()) is not None]
    assert len(burst) == 2
    assert max(burst) <= DEFAULT_S
    places.end_all()


def test_while_it_is_full_a_replica_is_asked_by_no_more_than_one_at_a_time_and_seldom(
    full: Crowding, there: ExitStack, clock: ManualClock
) -> None:
    asked = 0
    for _ in range(1_000):
        clock.advance(0.01)
        with suppress(Full), full.visit(1) as visit:
            asked += 1
            visit.heard(REFUSAL)
    assert asked <= 1_000 * 0.01 / PROBE_S


def test_it_knows_how_much_memory_was_free_for_as_long_as_it_goes_by_that_refusal(
    crowding: Crowding, there: ExitStack
) -> None:
    with ExitStack() as inside:
        begin(crowding, inside)
        with crowding.visit(1) as visit:
            visit.heard(Refused(TOO_MANY, BUSY, "busy", 1.0, need_bytes=9, free_bytes=5))
        assert crowding.free_bytes == 5
    assert crowding.free_bytes is None
