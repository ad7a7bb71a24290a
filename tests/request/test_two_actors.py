"""Two request services on one device that is too small for both: wait-die lets both finish."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.services.completion import CompletionRequest
from tests.request.conftest import PROMPTS
from tests.request.world import Results, World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
LENGTHS = (80, 40, 70, 60, 75, 25, 65, 50)


def halves() -> list[dict[int, CompletionRequest]]:
    """The eight prompts, dealt to two services."""
    asked = {
        i: CompletionRequest(PROMPTS[i], max_tokens=length, temperature=0, ignore_eos=True)
        for i, length in enumerate(LENGTHS)
    }
    return [{i: request for i, request in asked.items() if i % 2 == half} for half in range(2)]


def texts(results: list[Results]) -> list[str]:
    both = results[0] | results[1]
    return [both[i].text for i in range(len(LENGTHS))]


@pytest.fixture
def wanted(greedy: Greedy, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(greedy(PROMPTS[i], length)) for i, length in enumerate(LENGTHS)]


@pytest.mark.parametrize(("layout", "granules"), [(Layout.TOKEN_MAJOR, 16), (Layout.SEQ_MAJOR, 36)])
def test_two_actors_that_take_turns_both_finish(
    worlds: Worlds, wanted: list[str], layout: Layout, granules: int
) -> None:
    world = worlds(granules=granules, layout=layout)
    services = [world.open(), world.open()]
    for service, half in zip(services, halves(), strict=True):
        for key, request in half.items():
            service.submit(key, request)
    assert texts(world.finish(services)) == wanted
    assert sum(service.statistics().preemptions for service in services) > 0


@pytest.mark.parametrize("seed", range(3))
def test_two_actors_both_finish_however_their_steps_fall(worlds: Worlds, wanted: list[str], seed: int) -> None:
    draw = random.Random(seed)
    world = worlds(granules=draw.choice([13, 14, 18, 24]))
    services = [world.open(margin_steps=draw.choice([1, 4, 16])), world.open(max_num_seqs=draw.choice([2, 16]))]
    late = [(draw.randrange(60), half, key) for half in range(2) for key in halves()[half]]
    for moment in range(60):
        for _, half, key in (arriving for arriving in late if arriving[0] == moment):
            services[half].submit(key, halves()[half][key])
        services[draw.randrange(2)].step()
        world.clock.advance(draw.choice([0, 0.01, 0.2]))
    assert texts(world.finish(services, turn=lambda: draw.randrange(2))) == wanted


def test_the_oldest_on_the_device_never_loses_its_memory(worlds: Worlds) -> None:
    world = worlds(granules=20)
    first, second = world.open(), world.open()
    first.submit(0, CompletionRequest(PROMPTS[0], max_tokens=140, temperature=0, ignore_eos=True))
    first.step()
    for key in range(1, 5):
        second.submit(key, CompletionRequest(PROMPTS[key], max_tokens=100, temperature=0, ignore_eos=True))
    world.finish([first, second])
    assert first.statistics().preemptions == 0
    assert second.statistics().preemptions > 0
