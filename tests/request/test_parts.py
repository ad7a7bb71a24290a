"""The pure parts of the loop: what to ask for, what a refusal leads to, which states follow which."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.errors import InvariantBroken, OutOfBudget
from kvcluster.geometry.residency import GroupShape, Shape
from kvcluster.services.asks import End, Load, load_of
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.frames import in_frames
from kvcluster.services.request.back_off import BackOff
from kvcluster.services.request.generation import PHASE_MOVES, Phase
from kvcluster.services.request.inbox import Cancelled, Inbox, Submitted
from kvcluster.services.request.margin import admission_tokens, needed_tokens, topped_up_tokens
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.wait_die import GiveBack, Preempt, StartOver, Wait, remedy
from kvcluster.states import moved


@dataclass(frozen=True)
class HeldPrefixes:
    prefix_count: int = 0


@dataclass(frozen=True)
class HeldMemory:
    committed_bytes: int
    returnable_runs: int = 1
    holdings: HeldPrefixes = HeldPrefixes()


@dataclass(frozen=True)
class Runner:
    """As much of a running request as wait-die looks at."""

    arrival: int
    held_bytes: int
    preempted_in_vain: bool = False
    is_blocked: bool = False
    joined: int = 0
    back_off: BackOff = field(default_factory=BackOff)
    crew: Beams | None = None

    @property
    def lead(self) -> Runner:
        return self.crew.members[0] if self.crew else self


@dataclass(eq=False)
class Beams:
    members: list[Runner] = field(default_factory=list)


def beams(*members: Runner) -> list[Runner]:
    """The same as beams of one search, the first of them its lead."""
    crew = Beams()
    crew.members += [replace(member, crew=crew) for member in members]
    return crew.members


def refusal(need: int, oldest: int) -> OutOfBudget:
    return OutOfBudget(need=need, free=0, oldest_arrival=oldest, retry_after_s=1, quarantined=0, capacity=99)


def told_to_wait(retry_after_s: float, *, free: int = 0) -> OutOfBudget:
    return OutOfBudget(need=9, free=free, oldest_arrival=1, retry_after_s=retry_after_s, quarantined=0, capacity=99)


OLD, MIDDLE, YOUNG = Runner(3, 10), Runner(5, 10), Runner(8, 10)
RUNNING = [OLD, MIDDLE, YOUNG]


@pytest.mark.parametrize(
    ("refused", "need", "oldest", "expected"),
    [
        (OLD, 5, 3, Preempt((YOUNG,))),
        (OLD, 10, 1, Preempt((YOUNG,))),
        (OLD, 11, 3, Preempt((YOUNG, MIDDLE))),
        (OLD, 99, 3, Preempt((YOUNG, MIDDLE))),
        (MIDDLE, 99, 3, Preempt((YOUNG,))),
        (YOUNG, 5, 3, GiveBack()),
        (YOUNG, 5, 8, Wait()),
    ],
)
def test_wait_die_takes_from_the_youngest_first_and_lets_only_the_oldest_wait(
    refused: Runner, need: int, oldest: int, expected: object
) -> None:
    assert remedy(refused, refusal(need, oldest), RUNNING) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(("oldest", "expected"), [(3, Wait()), (1, GiveBack())])
def test_after_preempting_in_vain_nobody_else_is_preempted(oldest: int, expected: object) -> None:
    vain = Runner(3, 10, preempted_in_vain=True)
    assert remedy(vain, refusal(5, oldest), [vain, MIDDLE, YOUNG]) == expected  # type: ignore[list-item,arg-type]


def test_what_only_a_process_s_end_could_serve_preempts_nobody_and_keeps_nothing() -> None:
    blocked = Runner(3, 10, is_blocked=True)
    assert remedy(blocked, refusal(5, 3), [blocked, MIDDLE, YOUNG]) == GiveBack()  # type: ignore[list-item,arg-type]


def test_of_beams_the_lead_is_the_victim_once_and_counts_for_all_of_them() -> None:
    lead, *others = beams(MIDDLE, Runner(6, 10), Runner(7, 10))
    running = [OLD, lead, *others, YOUNG]
    assert remedy(OLD, refusal(11, 3), running) == Preempt((YOUNG, lead))  # type: ignore[arg-type]
    assert remedy(OLD, refusal(99, 3), running) == Preempt((YOUNG, lead))  # type: ignore[arg-type]
    with_younger_beam = [OLD, *beams(MIDDLE, Runner(9, 10))]
    assert remedy(Runner(8, 10), refusal(5, 3), with_younger_beam) == GiveBack()  # type: ignore[arg-type]


def test_a_beam_takes_nothing_from_its_own_crew_and_waits_where_its_lead_is_the_oldest() -> None:
    lead, other, last = beams(OLD, MIDDLE, Runner(7, 10))
    assert remedy(other, refusal(5, 3), [lead, other, last]) == Wait()  # type: ignore[arg-type]
    assert remedy(other, refusal(5, 1), [lead, other, last]) == GiveBack()  # type: ignore[arg-type]
    assert remedy(other, refusal(5, 3), [lead, other, last, YOUNG]) == Preempt((YOUNG,))  # type: ignore[arg-type]


@pytest.mark.parametrize(("joined", "in_vain", "expected"), [(40, 8, StartOver()), (40, 7, Wait()), (0, 99, Wait())])
def test_the_oldest_begins_again_without_a_prefix_that_may_keep_what_it_lacks(
    joined: int, in_vain: int, expected: object
) -> None:
    oldest = Runner(3, 10, joined=joined, back_off=BackOff(in_vain=in_vain))
    assert remedy(oldest, refusal(5, 3), [oldest]) == expected  # type: ignore[arg-type,list-item]


def test_a_wait_doubles_while_nothing_comes_back_and_begins_anew_when_something_did() -> None:
    waits, back_off = [], BackOff()
    for free in (5, 5, 5, 5, 4, 4, 4, 6, 6):
        back_off = back_off.after(told_to_wait(0.1, free=free))
        waits.append(round(back_off.wait_s, 1))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 0.1, 0.2]


def test_a_wait_is_never_shorter_than_the_device_said() -> None:
    assert BackOff(wait_s=1.0, free_bytes=0).after(told_to_wait(7.0)).wait_s == 7.0


@given(
    stride=st.integers(1, 300),
    granule=st.sampled_from([64, 256]),
    length=st.integers(0, 500),
    margin=st.integers(1, 40),
)
def test_a_top_up_lets_two_steps_pass_and_begins_no_granule_for_the_margin(
    stride: int, granule: int, length: int, margin: int
) -> None:
    shape = Shape((GroupShape(1, stride),), granule)
    tokens = topped_up_tokens(shape, length, 10_000, margin)
    assert tokens >= length + 2
    needed, filled = shape.windows(length + 2), shape.whole_windows(length + margin)
    assert shape.windows(tokens) <= max(needed, filled)


@given(known=st.integers(1, 500), left=st.integers(0, 100), margin=st.integers(1, 40))
def test_nothing_is_asked_for_beyond_the_most_that_is_ever_held(known: int, left: int, margin: int) -> None:
    most = known + left
    shape = Shape((GroupShape(1, 100),), 4096)
    assert known <= admission_tokens(known, most, margin) <= most
    assert needed_tokens(known, most) <= most
    assert topped_up_tokens(shape, known, most, margin) <= most


@pytest.mark.parametrize(("before", "after"), list(itertools.product(Phase, Phase)))
def test_a_generation_changes_phase_only_as_the_table_says(before: Phase, after: Phase) -> None:
    if after in PHASE_MOVES[before]:
        assert moved(before, after, PHASE_MOVES) is after
    else:
        with pytest.raises(InvariantBroken):
            moved(before, after, PHASE_MOVES)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=60),
    most=st.builds(Load, st.integers(1, 5), st.integers(12, 30), st.integers(9, 20), st.integers(0, 9)),
)
def test_frames_keep_the_order_and_none_is_too_large(sizes: list[tuple[int, int]], most: Load) -> None:
    asks = [End(HeldMemory(0, runs, HeldPrefixes(prefixes))) for runs, prefixes in sizes]  # type: ignore[arg-type]
    frames = list(in_frames(asks, most=most))
    assert [ask for frame in frames for ask in frame] == asks
    for frame, following in itertools.pairwise([*frames, []]):
        assert frame
        assert load_of(*frame).fits(most)
        assert not following or not load_of(*frame, following[0]).fits(most)  # as few as can be


def test_news_come_out_once_and_in_order() -> None:
    inbox, request = Inbox(), CompletionRequest("a")
    inbox.cancel(1)
    inbox.submit(1, request)
    inbox.submit(2, request)
    inbox.cancel(1)
    assert inbox.take() == [Submitted(1, request), Submitted(2, request), Cancelled(1)]
    assert inbox.take() == []


def test_a_key_is_in_use_until_its_answer_was_taken_or_its_cancel_was_heard() -> None:
    inbox, request = Inbox(), CompletionRequest("a")
    for key in (1, 2):
        inbox.submit(key, request)
    inbox.cancel(2)
    inbox.cancel(2)
    assert inbox.over([1, 2]) == {2}
    inbox.submit(1, request)
    with pytest.raises(ValueError, match="request 2 is not over"):
        inbox.submit(2, request)
    assert inbox.take().count(Cancelled(2)) == 1
    inbox.heard(2)
    assert inbox.over([]) == set()
    inbox.submit(2, request)


@pytest.mark.parametrize(
    "wrong",
    [{"max_num_seqs": 0}, {"margin_steps": 0}, {"prefill_chunk_tokens": -1}, {"max_num_batched_tokens": 15}],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RequestSettings(**wrong)
