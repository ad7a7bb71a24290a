"""What rises in a second, and for whom nobody can say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcluster.services.answered import Answered
from kvcluster.services.completion import Begun, Completion, Delta, Refused
from kvcluster.services.paces import SHORTEST_S, Looks
from kvcluster.services.standing import (
    ClusterStanding,
    OwnerStanding,
    WorkerStanding,
    WorkerState,
    WorkerWord,
    decoded_word,
    encoded_word,
)
from kvcluster.testing.clock import ManualClock

NODE = "0123456789abcdef"
OWNER = OwnerStanding("device", "host:0", NODE, 11, 1, epoch=7, refusals={"OutOfBudget": 4})
WORD = WorkerWord(21, "host:0", WorkerState.SERVING, generated_tokens=100, answered=Answered(refused={"busy": 2}))
WORKER = WorkerStanding("app#model#1", NODE, 21, WORD)


def later(owner: OwnerStanding = OWNER, worker: WorkerStanding = WORKER) -> ClusterStanding:
    """The second look of two that are 2 s apart."""
    clock = ManualClock()
    seen = iter([ClusterStanding((OWNER,), (WORKER,), ()), ClusterStanding((owner,), (worker,), ())])
    looks = Looks(lambda: next(seen), clock=clock)
    assert looks.look().workers[0].tokens_per_s is None
    clock.advance(2.0)
    return looks.look()


def test_what_rose_between_two_looks_is_told_a_second() -> None:
    word = replace(WORD, generated_tokens=150, answered=Answered(refused={"busy": 3, "new": 2}))
    found = later(replace(OWNER, refusals={"OutOfBudget": 9}), replace(WORKER, word=word))
    assert found.owners[0].refusals_per_s == {"OutOfBudget": 2.5}
    assert (found.workers[0].tokens_per_s, found.workers[0].refused_per_s) == (25.0, {"busy": 0.5, "new": 1.0})


@pytest.mark.parametrize(
    "change",
    [
        lambda worker: replace(worker, pid=22),
        lambda worker: replace(worker, name="app#model#2"),
        lambda worker: replace(worker, word=None, complaint="it does not answer"),
    ],
)
def test_a_worker_of_another_process_has_no_pace_yet(change: Callable[[WorkerStanding], WorkerStanding]) -> None:
    found = later(worker=change(WORKER))
    assert (found.workers[0].tokens_per_s, found.workers[0].refused_per_s) == (None, {})


@pytest.mark.parametrize("changes", [{"epoch": 8}, {"pid": 12}, {"complaint": "it does not answer"}])
def test_an_owner_that_began_again_has_no_pace_yet(changes: dict[str, object]) -> None:
    assert later(replace(OWNER, refusals={}, **changes)).owners[0].refusals_per_s == {}  # type: ignore[arg-type]


def test_two_looks_at_one_moment_make_no_pace() -> None:
    clock = ManualClock()
    looks = Looks(lambda: ClusterStanding((OWNER,), (WORKER,), ()), clock=clock)
    looks.look()
    clock.advance(SHORTEST_S / 2)
    assert looks.look().workers[0].tokens_per_s is None


SAID = st.one_of(
    st.just(Begun(3, 1)),
    st.just(Delta(0, "x", 1)),
    st.builds(Completion, st.just(""), st.just("stop"), st.integers(0, 9), st.integers(0, 9)),
    st.builds(Refused, st.just(429), st.sampled_from(["a", "b"]), st.just("")),
)


@given(st.lists(SAID, max_size=8), st.integers(0, 8))
def test_each_end_is_counted_once_however_the_steps_cut_what_is_said(said: list, cut: int) -> None:  # type: ignore[type-arg]
    found = Answered().after(said[:cut]).after(said[cut:])
    completions = [each for each in said if isinstance(each, Completion)]
    codes = [each.code for each in said if isinstance(each, Refused)]
    assert found == Answered(
        completed=len(completions),
        prompt_tokens=sum(each.prompt_tokens for each in completions),
        cached_tokens=0,
        completion_tokens=sum(each.completion_tokens for each in completions),
        refused={code: codes.count(code) for code in set(codes)},
    )


def test_a_word_goes_through_plain_values_and_what_is_none_is_not_taken_for_one() -> None:
    assert decoded_word(encoded_word(WORD)) == WORD
    for said in (None, 3, {}, {"pid": 1}, {**encoded_word(WORD), "state": "asleep"}, {**encoded_word(WORD), "x": 1}):
        assert decoded_word(said) is None
