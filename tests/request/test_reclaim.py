"""The device demands memory back for an older request of another actor: the youngest give theirs at their next step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.request import RequestService
from tests.request.conftest import PROMPTS
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LONG = 60  # tokens that the older request says


def request(prompt: tuple[int, ...], max_tokens: int) -> CompletionRequest:
    return CompletionRequest(prompt, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def long_prompt(start: int, count: int) -> tuple[int, ...]:
    return tuple(2 + (start + 11 * j + j * j) % 500 for j in range(count))


def until_refused(older: RequestService) -> None:
    """It grows, alone, as far as it can."""
    for _ in range(2 * LONG):
        older.step()
        if older.statistics().refusals:
            return
    raise AssertionError("the device was not too small")


@pytest.fixture
def held(worlds: Worlds) -> tuple[World, RequestService, RequestService]:
    """The older request runs in the first actor; the second's, which needs no growth, have nearly all the rest."""
    world = worlds(granules=14)
    older, younger = world.open(), world.open()
    older.submit(0, request(PROMPTS[0], LONG))
    older.step()
    for key, size in ((1, 20), (2, 18)):
        younger.submit(key, request(long_prompt(key, size), 8))
    younger.step()
    assert younger.statistics().running == 2
    return world, older, younger


def holders(world: World) -> list[str]:
    """The numbers, in their sessions, of the requests that hold bytes."""
    accounts = world.device.statistics().accounts
    return sorted(name.rpartition("/")[2] for name in accounts if name.startswith("request/"))


def test_a_refused_older_request_gets_the_memory_of_a_younger_one_of_another_actor(
    held: tuple[World, RequestService, RequestService], greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world, older, younger = held
    until_refused(older)
    assert younger.statistics().preemptions == 0  # it honours the demand at its own step, and not before
    free = world.free_bytes
    younger.step()
    done = younger.statistics()
    assert (done.preemptions, done.refusals) == (1, 0)
    assert world.free_bytes > free
    results = world.finish([older, younger])
    assert older.statistics().preemptions == 0
    for key, prompt, count in ((0, PROMPTS[0], LONG), (1, long_prompt(1, 20), 8), (2, long_prompt(2, 18), 8)):
        answer = (results[0] | results[1])[key]
        assert isinstance(answer, Completion)
        assert answer.text == tokenizer.decode(greedy(prompt, count))


def test_the_youngest_gives_first_and_no_more_than_is_missing(
    held: tuple[World, RequestService, RequestService],
) -> None:
    world, older, younger = held
    assert holders(world) == ["1.0", "1.0", "2.0"]
    until_refused(older)
    younger.step()
    assert younger.statistics().running == 1
    assert holders(world) == ["1.0", "1.0"]


def test_a_demand_that_comes_too_late_costs_nobody_anything(
    held: tuple[World, RequestService, RequestService],
) -> None:
    world, older, younger = held
    until_refused(older)
    for key in (1, 2):
        younger.cancel(key)
    younger.step()
    younger.step()
    assert younger.statistics().preemptions == 0
    world.finish([older, younger])
    assert older.statistics().requests_done == 1


def test_an_older_request_keeps_its_memory_whatever_a_younger_one_lacks(worlds: Worlds) -> None:
    world = worlds(granules=14)
    first, second = world.open(), world.open()
    first.submit(0, request(long_prompt(0, 60), 8))
    first.step()
    second.submit(1, request(PROMPTS[0], LONG))
    for _ in range(LONG):
        second.step()
    assert second.statistics().refusals > 0
    first.step()
    assert first.statistics().preemptions == 0
    world.finish([first, second])
