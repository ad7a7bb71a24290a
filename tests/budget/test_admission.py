"""Wait-die at the device: what must stay free beside a newcomer, and who is the oldest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcluster.budget.admission import Admission


def test_arrival_numbers_grow_and_are_never_used_again() -> None:
    admission = Admission()
    first = admission.arrive()
    admission.leave(first)
    assert admission.arrive() == first + 1


def test_the_oldest_is_the_lowest_number_that_is_open_running_or_not() -> None:
    admission = Admission()
    assert admission.oldest() is None
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(c, 10)
    assert admission.oldest() == a
    admission.leave(b)
    assert admission.oldest() == a
    admission.leave(a)
    assert admission.oldest() == c
    admission.leave(c)
    assert admission.oldest() is None


def test_a_newcomer_leaves_one_growth_of_each_that_runs() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.headroom_bytes(c) == 30


def test_who_runs_already_needs_no_headroom() -> None:
    admission = Admission()
    a, b = admission.arrive(), admission.arrive()
    admission.runs(a, 10)
    admission.runs(b, 20)
    assert admission.is_running(a)
    assert admission.headroom_bytes(a) == 0


def test_on_an_empty_device_nothing_is_kept_back() -> None:
    admission = Admission()
    assert admission.headroom_bytes(admission.arrive()) == 0


def test_a_newcomer_leaves_what_older_waiters_were_refused_and_an_older_one_ignores_younger() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.refused(b, 50)
    assert admission.headroom_bytes(c) == 50
    assert admission.headroom_bytes(b) == 0
    assert admission.headroom_bytes(a) == 0


def test_a_waiter_counts_once_with_what_it_was_refused_last() -> None:
    admission = Admission()
    a, b = admission.arrive(), admission.arrive()
    admission.refused(a, 50)
    admission.refused(a, 30)
    assert admission.headroom_bytes(b) == 30
    admission.satisfied(a)
    admission.satisfied(a)
    assert admission.headroom_bytes(b) == 0


def test_who_leaves_takes_its_growth_and_its_wish_along() -> None:
    admission = Admission()
    a, b, c = (admission.arrive() for _ in range(3))
    admission.runs(a, 10)
    admission.refused(b, 50)
    admission.leave(a)
    admission.leave(b)
    admission.leave(b)
    assert admission.headroom_bytes(c) == 0


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
    assert admission.oldest() == min(alive, default=None)
    for who in alive - set(running):
        older = sum(size for other, size in waiting.items() if other < who)
        assert admission.headroom_bytes(who) == sum(running.values()) + older
