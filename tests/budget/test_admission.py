"""Wait-die at the device: what must stay free beside a newcomer, and who is the oldest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.admission import Admission
from kvcluster.budget.places import MOST, Places
from kvcluster.ids import RequestId

PLENTY = 10**6


def test_arrival_numbers_grow_and_are_never_used_again() -> None:
    admission = Admission()
    first = admission.arrive()
    admission.leave(first)
    assert admission.arrive() == first + 1


def test_the_oldest_is_the_lowest_number_that_is_open_running_or_not() -> None:
    admission = Admission()
    assert admission.oldest(reachable_bytes=PLENTY) is None
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(c, 10)
    assert admission.oldest(reachable_bytes=PLENTY) == a
    admission.leave(b)
    assert admission.oldest(reachable_bytes=PLENTY) == a
    admission.leave(a)
    assert admission.oldest(reachable_bytes=PLENTY) == c
    admission.leave(c)
    assert admission.oldest(reachable_bytes=PLENTY) is None


def test_a_newcomer_leaves_one_growth_of_each_that_runs() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.headroom_bytes(c, reachable_bytes=PLENTY) == 30


def test_who_runs_already_needs_no_headroom() -> None:
    admission = Admission()
    a, b = admission.arrive(), admission.arrive()
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.is_running(a)
    assert admission.headroom_bytes(a, reachable_bytes=PLENTY) == 0


def test_on_an_empty_device_nothing_is_kept_back() -> None:
    admission = Admission()
    assert admission.headroom_bytes(admission.arrive(), reachable_bytes=PLENTY) == 0


def test_a_newcomer_leaves_what_older_waiters_were_refused_and_an_older_one_ignores_younger() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.refused(b, 50)
    assert admission.headroom_bytes(c, reachable_bytes=PLENTY) == 50
    assert admission.headroom_bytes(b, reachable_bytes=PLENTY) == 0
    assert admission.headroom_bytes(a, reachable_bytes=PLENTY) == 0


def test_a_waiter_counts_once_with_what_it_was_refused_last() -> None:
    admission = Admission()
    a, b = admission.arrive(), admission.arrive()
    admission.refused(a, 50)
    admission.refused(a, 30)
    assert admission.headroom_bytes(b, reachable_bytes=PLENTY) == 30
    admission.satisfied(a)
    admission.satisfied(a)
    assert admission.headroom_bytes(b, reachable_bytes=PLENTY) == 0


def test_who_leaves_takes_its_growth_and_its_wish_along() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.refused(b, 50)
    admission.leave(a)
    admission.leave(b)
    admission.leave(b)
    assert admission.headroom_bytes(c, reachable_bytes=PLENTY) == 0


def test_a_waiter_that_only_a_process_s_end_could_serve_has_no_claim_on_younger_ones_and_is_not_the_oldest() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.refused(a, 50)
    admission.refused(b, 30)
    assert admission.headroom_bytes(c, reachable_bytes=49) == 30
    assert admission.oldest(reachable_bytes=49) == b
    assert admission.headroom_bytes(c, reachable_bytes=50) == 80
    assert admission.oldest(reachable_bytes=50) == a


def test_a_request_that_comes_back_is_as_old_as_it_was() -> None:
    admission = Admission()
    a, b = admission.arrive(), admission.arrive()
    admission.leave(a)
    assert admission.oldest(reachable_bytes=PLENTY) == b
    admission.come_back(a)
    assert admission.oldest(reachable_bytes=PLENTY) == a
    admission.leave(a)
    assert admission.oldest(reachable_bytes=PLENTY) == b


def test_a_place_in_the_queue_is_taken_once_and_the_oldest_places_are_forgotten() -> None:
    places = Places()
    for number in range(MOST + 1):
        places.leave(RequestId("s", number), number + 100)
    assert len(places) == MOST
    assert places.take(RequestId("s", 0)) is None
    assert places.take(RequestId("t", 1)) is None
    assert places.take(RequestId("s", 1)) == 101
    assert places.take(RequestId("s", 1)) is None
    places.forget("s")
    places.forget("s")
    assert len(places) == 0


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from(["runs", "stopped", "refused", "satisfied", "leave"]), st.integers(1, 6))))
def test_headroom_equals_a_plain_count_whatever_happened(acts: list[tuple[str, int]]) -> None:
    admission = Admission()
    running: dict[int, int] = {}
    waiting: dict[int, int] = {}
    alive = {admission.arrive() for _ in range(6)}
    for step, (act, who) in enumerate(acts):
        match act:
            case "runs" if who in alive:
                admission.runs(who, step)
                running[who] = step
            case "stopped":
                admission.stopped(who)
                running.pop(who, None)
            case "refused" if who in alive:
                admission.refused(who, step)
                waiting[who] = step
            case "satisfied":
                admission.satisfied(who)
                waiting.pop(who, None)
            case "leave":
                admission.leave(who)
                for held in (running, waiting):
                    held.pop(who, None)
                alive.discard(who)
    assert admission.oldest(reachable_bytes=PLENTY) == min(alive, default=None)
    for who in alive - set(running):
        older = sum(size for other, size in waiting.items() if other < who)
        assert admission.headroom_bytes(who, reachable_bytes=PLENTY) == sum(running.values()) + older
