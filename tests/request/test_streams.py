"""A streamed request: it begins once, each step says what it may, and all of it together is the unstreamed answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Begun, Completion, CompletionRequest, Delta, Refused, Telling
from kvcluster.services.request.settings import Fallback
from tests.request.asking import BEAM_TOKENS, TOKENS, asked, prompt, wide
from tests.request.conftest import PROMPTS
from tests.request.mortal import Mortal
from tests.request.told import Told, listen, told
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LONG = 60


def streamed(world: World, requests: dict[int, CompletionRequest], **settings: Any) -> dict[int, Told]:
    service = world.open(**settings)
    for key, request in requests.items():
        tells = Telling.PARTS if request.tells is Telling.WHOLE else request.tells
        service.submit(key, replace(request, tells=tells))
    return told(world, [service])


def unstreamed(worlds: Worlds, requests: dict[int, CompletionRequest]) -> dict[int, Completion | Refused]:
    """What is said where there is room for all, and nobody listens before the end."""
    world = worlds(granules=400)
    return world.run(world.open(), requests)


DRAWN = {key: asked(PROMPTS[key], LONG, n=1 + key % 3, temperature=0.9, seed=key) for key in range(4)}
GREEDY = {key: asked(PROMPTS[key], LONG) for key in range(4)}


@pytest.mark.parametrize("requests", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("granules", [400, 14])
def test_a_streamed_request_says_what_the_unstreamed_one_says_and_begins_once(
    worlds: Worlds, requests: dict[int, CompletionRequest], granules: int
) -> None:
    world = worlds(granules=granules)
    heard = streamed(world, requests)
    assert {key: each.completion for key, each in heard.items()} == unstreamed(worlds, requests)
    preemptions = world.services[0].statistics().preemptions
    assert (preemptions > 0) == (granules == 14)
    for key, each in heard.items():
        assert each.begun[0].prompt_tokens == len(PROMPTS[key])
        assert len(each.deltas) == requests[key].n * LONG


@pytest.mark.parametrize("requests", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("granules", [400, 14])
def test_a_request_that_wants_no_parts_hears_that_it_begins_once_and_then_the_whole(
    worlds: Worlds, requests: dict[int, CompletionRequest], granules: int
) -> None:
    heard = streamed(
        worlds(granules=granules), {key: replace(each, tells=Telling.BEGUN) for key, each in requests.items()}
    )
    assert {key: each.answer for key, each in heard.items()} == unstreamed(worlds, requests)
    assert {key: (len(each.begun), each.deltas) for key, each in heard.items()} == dict.fromkeys(requests, (1, []))


def test_a_token_is_told_at_the_step_that_chose_it(worlds: Worlds) -> None:
    world = worlds(granules=40)
    service = world.open()
    service.submit(1, asked(PROMPTS[0], TOKENS, tells=Telling.PARTS))
    heard: dict[int, Told] = {1: Told()}
    for step in range(1, TOKENS + 1):
        service.step()
        listen(heard, [service])
        assert sum(delta.tokens for delta in heard[1].deltas) == step
    assert heard[1].completion.completion_tokens == TOKENS


def test_moves_to_host_pages_and_back_are_not_heard(worlds: Worlds) -> None:
    world = worlds(granules=14, blocks=200)
    heard = streamed(world, GREEDY, fallback=Fallback.HOST)
    assert world.services[0].statistics().moves > 0
    assert {key: each.completion for key, each in heard.items()} == unstreamed(worlds, GREEDY)


@pytest.mark.parametrize("steps", [1, 5, 9])
def test_a_successor_tells_its_caller_all_of_the_text(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=512, grace_s=60.0)
    requests = {key: replace(request, tells=Telling.PARTS) for key, request in DRAWN.items()}
    dead = Mortal(world)
    dead.submit(requests)
    dead.step(steps)
    dead.die()
    successor = Mortal(world)
    successor.submit({key: replace(request, died_with=(dead.session,)) for key, request in requests.items()})
    heard = told(world, [successor.service])
    assert successor.service.statistics().adoptions > 0
    assert {key: each.completion for key, each in heard.items()} == unstreamed(worlds, DRAWN)
    successor.close()


def test_what_was_complete_when_its_worker_died_begins_and_ends_at_once(worlds: Worlds) -> None:
    world = worlds(granules=512, grace_s=60.0)
    dead = Mortal(world)
    dead.submit({1: asked(PROMPTS[1], n=2, tells=Telling.PARTS)})
    dead.finish()
    dead.die()
    successor = Mortal(world)
    successor.submit({1: asked(PROMPTS[1], n=2, tells=Telling.PARTS, died_with=(dead.session,))})
    [heard] = told(world, [successor.service]).values()
    assert [delta.tokens for delta in heard.deltas] == [TOKENS, TOKENS]
    assert heard.completion.completion_tokens == 2 * TOKENS
    assert successor.service.statistics().generated_tokens == 0
    successor.close()


def test_no_piece_shows_what_a_stop_string_takes_back(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    whole = tokenizer.decode(greedy(PROMPTS[3], 30))
    for cut in ((3, 9), (10, 11), (5, 17)):
        stop = whole[slice(*cut)]
        [heard] = streamed(worlds(granules=40), {1: asked(PROMPTS[3], 30, stop=("never said", stop))}).values()
        assert heard.completion.finish_reason == "stop"
        assert heard.text() == whole[: whole.index(stop)]


def test_beams_are_told_at_once_when_their_search_is_over(worlds: Worlds) -> None:
    world = worlds(granules=10, blocks=200)
    request = wide(prompt(1, 16), 3)
    service = world.open()
    service.submit(1, replace(request, tells=Telling.PARTS))
    heard = told(world, [service])[1]
    assert [delta.choice for delta in heard.deltas] == [0, 1, 2]
    assert heard.completion.completion_tokens == 3 * BEAM_TOKENS
    assert heard.completion == world.run(service, {2: request})[2]


def test_beams_that_begin_again_begin_once_for_their_caller(worlds: Worlds) -> None:
    world = worlds(granules=10, blocks=40)
    requests = {key: replace(wide(prompt(key, 10 + key), 4), tells=Telling.PARTS) for key in range(4)}
    service = world.open()
    for key, request in requests.items():
        service.submit(key, request)
    heard = told(world, [service])
    assert service.statistics().preemptions > 0
    assert all(each.completion.completion_tokens for each in heard.values())


def test_nobody_is_told_before_the_end_who_does_not_stream(worlds: Worlds) -> None:
    world = worlds(granules=60)
    service = world.open()
    service.submit(1, asked(PROMPTS[0]))
    service.submit(2, asked(PROMPTS[1], tells=Telling.PARTS))
    heard = told(world, [service])
    assert (heard[1].begun, heard[1].deltas) == ([], [])
    assert heard[2].deltas


def test_one_that_never_fits_is_refused_before_anything_is_said(worlds: Worlds) -> None:
    [heard] = streamed(worlds(granules=4), {1: asked(prompt(1, 100))}).values()
    assert isinstance(heard.answer, Refused)
    assert heard.begun == []


def test_texts_of_a_request_that_has_begun_wait_where_others_are_sent_away(worlds: Worlds) -> None:
    """Three of its four texts find no room: their caller has heard that it began."""
    world = worlds(granules=9)
    service = world.open(fallback=Fallback.REFUSE)
    service.submit(1, asked(prompt(1, 20), 30, n=4, tells=Telling.PARTS))
    service.step()
    service.submit(2, asked(prompt(2, 40), 30, tells=Telling.PARTS))
    heard = told(world, [service])
    assert heard[1].completion.completion_tokens == 4 * 30
    assert isinstance(heard[2].answer, Refused)
    assert heard[2].begun == []


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_after_a_cancel_nothing_is_said_not_even_what_was_there_to_be_taken(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=60)
    service = world.open()
    for key in (1, 2):
        service.submit(key, asked(PROMPTS[key], tells=Telling.PARTS))
    for _ in range(steps):
        service.step()
    service.cancel(1)
    heard: dict[int, Told] = {}
    listen(heard, [service])
    assert set(told(world, [service], heard)) == {2}
    assert heard[2].completion.completion_tokens == TOKENS


def test_an_answer_that_was_not_taken_when_its_cancel_came_is_never_given_and_its_key_is_free(worlds: Worlds) -> None:
    world = worlds(granules=60)
    service = world.open()
    service.submit(1, asked(PROMPTS[1], 2, tells=Telling.PARTS))
    while service.statistics().requests_done == 0:
        service.step()
    service.cancel(1)
    with pytest.raises(ValueError, match="request 1 is not over"):
        service.submit(1, asked(PROMPTS[1]))
    assert service.said() == []
    service.step()
    service.submit(1, asked(PROMPTS[1], 3, tells=Telling.PARTS))
    assert told(world, [service])[1].completion.completion_tokens == 3


def test_a_cancel_after_the_answer_was_taken_is_of_nothing(worlds: Worlds) -> None:
    world = worlds(granules=60)
    service = world.open()
    service.submit(1, asked(PROMPTS[1], 2, tells=Telling.PARTS))
    assert told(world, [service])[1].completion.completion_tokens == 2
    service.cancel(1)
    service.submit(1, asked(PROMPTS[1], 3, tells=Telling.PARTS))
    assert told(world, [service])[1].completion.completion_tokens == 3


def test_a_character_is_told_when_it_is_whole(worlds: Worlds) -> None:
    """Drawn at random, tokens of the tiny model are often a part of one."""
    world = worlds(granules=100)
    heard = streamed(world, {key: asked(PROMPTS[0], 40, temperature=5.0, seed=key) for key in range(6)})
    for each in heard.values():
        assert not any(delta.text.endswith("\N{REPLACEMENT CHARACTER}") for delta in each.deltas[:-1])
        assert each.completion.text == each.text()


def test_what_is_said_is_a_begun_deltas_and_the_answer_in_this_order(worlds: Worlds) -> None:
    world = worlds(granules=60)
    service = world.open()
    service.submit(1, asked(PROMPTS[1], 2, tells=Telling.PARTS))
    while service.step():
        pass
    assert [type(said) for _, said in service.said()] == [Begun, Delta, Delta, Completion]
