"""What a loop's thread says reaches whoever waits in the event loop: whole, in order, and to its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.answers import Answer, Answers
from kvcluster.services.completion import Begun, Completion, Delta, Refused, Said

BEGUN = Begun(3, 0)
DONE = Completion("ab", "stop", 3, 2)
LOST = Refused(503, "replica_lost", "it is lost")
AWHILE_S = 30.0


async def whole(answer: Answer) -> list[Said]:
    said: list[Said] = []
    while not answer.is_over:
        said += await asyncio.wait_for(answer.more(), AWHILE_S)
    return said


def delta(text: str) -> Delta:
    return Delta(0, text, 1)


@given(steps=st.lists(st.lists(st.text(max_size=2), max_size=3), max_size=5))
def test_everything_that_the_thread_says_arrives_in_order(steps: Sequence[Sequence[str]]) -> None:
    async def heard() -> list[Said]:
        answers = Answers()
        with answers.awaited() as answer:
            told = [[(answer.key, delta(text)) for text in step] for step in steps]
            speaker = threading.Thread(target=lambda: [answers.hand_over(step) for step in [*told, last(answer)]])
            speaker.start()
            said = await whole(answer)
            speaker.join()
        return said

    assert asyncio.run(heard()) == [*(delta(text) for step in steps for text in step), DONE]


def last(answer: Answer) -> list[tuple[int, Said]]:
    return [(answer.key, DONE)]


def test_a_reader_that_was_slow_takes_all_that_was_said_meanwhile_at_once() -> None:
    async def takes() -> list[list[Said]]:
        answers = Answers()
        with answers.awaited() as answer:
            for said in (BEGUN, delta("a"), delta("b")):
                answers.hand_over([(answer.key, said)])
            await asyncio.sleep(0)
            first = await answer.more()
            answers.hand_over([(answer.key, DONE)])
            return [first, await answer.more()]

    assert asyncio.run(takes()) == [[BEGUN, delta("a"), delta("b")], [DONE]]


def test_two_requests_hear_only_what_is_said_of_them() -> None:
    async def heard() -> tuple[list[Said], list[Said]]:
        answers = Answers()
        with answers.awaited() as one, answers.awaited() as other:
            answers.hand_over([(one.key, DONE), (other.key, BEGUN), (other.key, LOST)])
            return await whole(one), await whole(other)

    assert asyncio.run(heard()) == ([DONE], [BEGUN, LOST])


def test_what_is_said_of_a_request_that_nobody_waits_for_reaches_nobody() -> None:
    async def heard() -> list[Said]:
        answers = Answers()
        with answers.awaited() as gone:
            pass
        with answers.awaited() as answer:
            answers.hand_over([(gone.key, delta("late")), (answer.key, DONE)])
            return await whole(answer)

    assert asyncio.run(heard()) == [DONE]


def test_after_the_last_word_nothing_more_is_heard() -> None:
    async def heard() -> list[Said]:
        answers = Answers()
        with answers.awaited() as answer:
            answers.hand_over([(answer.key, DONE)])
            answers.end(LOST)
            await asyncio.sleep(0)
            return await whole(answer)

    assert asyncio.run(heard()) == [DONE]


@pytest.mark.parametrize("ends_first", [True, False])
def test_the_end_of_a_loop_is_the_last_word_of_every_answer(ends_first: bool) -> None:
    async def heard() -> list[Said]:
        answers = Answers()
        if ends_first:
            answers.end(LOST)
        with answers.awaited() as answer:
            if not ends_first:
                answers.end(LOST)
            return await whole(answer)

    assert asyncio.run(heard()) == [LOST]


def test_whoever_asks_once_a_loop_has_ended_hears_it_before_the_event_loop_does() -> None:
    async def heard() -> list[Said]:
        answers = Answers()
        with answers.awaited():
            answers.end(LOST)
            with answers.awaited() as late:
                more = late.more()
                with pytest.raises(StopIteration) as said:
                    more.send(None)  # nothing else has run
                return list(said.value.value)

    assert asyncio.run(heard()) == [LOST]


def test_a_loop_that_speaks_after_the_event_loop_is_closed_is_not_disturbed() -> None:
    answers = Answers()

    async def gone() -> int:
        with answers.awaited() as answer:
            return answer.key

    key = asyncio.run(gone())
    answers.hand_over([(key, DONE)])
    answers.end(LOST)
