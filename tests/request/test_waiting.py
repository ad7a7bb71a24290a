"""How long a refused request waits, and how often it asks meanwhile: by the clock, with two actors on one device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.request import RequestService
from kvcluster.services.request.back_off import MOST_S
from tests.request.test_policy import RandomTokens
from tests.request.world import World

Worlds = Callable[..., World]
STEP_S = 0.02


def request(prompt_tokens: int, max_tokens: int) -> CompletionRequest:
    return CompletionRequest((5,) * prompt_tokens, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def turn(world: World, *services: RequestService) -> None:
    """A step of each, and the time that it takes."""
    for service in services:
        service.step()
    world.clock.advance(STEP_S)


def pass_time(world: World, waiting: RequestService, seconds: float) -> int:
    """Let time pass for one that waits; returns how often it asked."""
    before, until = waiting.statistics().refusals, world.clock() + seconds
    while world.clock() < until:
        turn(world, waiting)
    return waiting.statistics().refusals - before


@pytest.fixture
def held(worlds: Worlds) -> tuple[World, RequestService, RequestService]:
    """A device whose first actor has nearly all of it; the second's request waits."""
    world = worlds(granules=14)
    holding, waiting = world.open(), world.open()
    holding.submit(1, request(80, 20))
    turn(world, holding)
    waiting.submit(2, request(60, 20))
    return world, holding, waiting


def test_while_nothing_comes_back_a_waiter_asks_less_and_less(
    held: tuple[World, RequestService, RequestService],
) -> None:
    world, _, waiting = held
    asks = [pass_time(world, waiting, seconds) for seconds in (1, 1, 28, 30, 60)]
    assert asks[0] <= 5
    assert asks[1] <= 1
    assert asks[2:] == [pytest.approx(seconds / MOST_S, abs=2) for seconds in (28, 30, 60)]


@pytest.mark.parametrize("held_for_s", [0.0, 0.5, 3.1, 61.7])
@pytest.mark.parametrize("released_before", [False, True])
def test_memory_that_came_free_is_used_within_the_bound(
    held: tuple[World, RequestService, RequestService], held_for_s: float, released_before: bool
) -> None:
    world, holding, waiting = held
    if released_before:
        holding.submit(3, request(5, 1))
        while not holding.said():
            turn(world, holding)
    pass_time(world, waiting, held_for_s)
    while not holding.said():
        turn(world, holding)
    turn(world, holding)  # its windows go back
    freed_at = world.clock()
    while not waiting.statistics().running:
        turn(world, waiting)
    assert world.clock() - freed_at <= MOST_S + 2 * STEP_S


def test_waiters_do_not_make_two_actors_talk_more_than_a_message_in_twenty_tokens(tokenizer: Tokenizer) -> None:
    world = World(RandomTokens(), tokenizer, granules=140, granule_bytes=64 * 1024)  # type: ignore[arg-type]
    busy, waiting = world.open(max_num_seqs=8), world.open(max_num_seqs=8)
    for key in range(8):
        busy.submit(key, request(8, 120))
    turn(world, busy)
    for key in range(8):
        waiting.submit(key, request(1000, 100))
    while busy.statistics().running:
        turn(world, busy, waiting)
    both = [service.statistics() for service in (busy, waiting)]
    tokens = sum(statistics.generated_tokens for statistics in both)
    assert both[1].refusals > 0
    assert sum(statistics.control_messages for statistics in both) <= 0.05 * tokens
    world.finish([busy, waiting])
    world.close()
