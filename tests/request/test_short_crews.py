"""Beams that are short of pages: they are refused, or begin again, and whoever stands behind them is served."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.errors import OutOfBudget
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Grow
from kvcluster.services.completion import TOO_LONG, Completion, CompletionRequest, Refused, answers_among
from kvcluster.services.pages.port import PagePort
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.request.settings import Fallback
from kvcluster.services.sequence import SequenceSpec
from tests.request.asking import answer, asked, prompt, texts, wide
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
Older = tuple[PagePort, SequencePages]
LATER = 40  # tokens that a crew says


@pytest.mark.parametrize("fallback", [Fallback.HOST, Fallback.WAIT])
def test_beams_that_never_fit_pages_are_refused_wherever_there_is_room_on_the_device(
    worlds: Worlds, fallback: Fallback
) -> None:
    world = worlds(granules=600, blocks=10)
    results = world.run(world.open(fallback=fallback), {1: wide(prompt(1, 60), 3), 2: asked(prompt(2, 8))})
    refused = results[1]
    assert isinstance(refused, Refused)
    assert refused.code == TOO_LONG
    assert "the host has" in refused.message
    assert isinstance(results[2], Completion)


def older_in_pages(world: World, most: int) -> Older:
    """Another client's sequence, older than all that come, with room for `most` tokens in its last."""
    assert world.pages is not None
    port = world.pages.open_port()
    memory = port.memory(SequenceSpec(world.model.geometry, Layout.TOKEN_MAJOR, most))
    [outcome] = port.submit([Grow(memory, 4)]).settle()
    assert outcome.error is None
    return port, memory


@pytest.mark.parametrize(("blocks", "neighbours"), [(24, 0), (48, 0), (48, 1)])
def test_an_older_client_that_wants_the_pages_of_several_beams_gets_them_and_the_crew_begins_again(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, blocks: int, neighbours: int
) -> None:
    world = worlds(granules=1, blocks=blocks)
    most = 4 * blocks - 12
    port, memory = older_in_pages(world, most)
    service = world.open(fallback=Fallback.HOST)
    plain = {key: asked(prompt(key, 20), LATER) for key in range(2, 2 + neighbours)}
    crew = wide(prompt(1, 3), 3, max_tokens=LATER)
    for key, request in {**plain, 1: crew}.items():
        service.submit(key, request)
    for _ in range(15):
        service.step()
    assert service.statistics().running == 3 + neighbours
    [outcome] = port.submit([Grow(memory, most)]).settle()
    assert isinstance(outcome.error, OutOfBudget)
    service.step()  # it hears of it, and gives back
    port.one(Grow(memory, most))
    assert service.statistics().running == 0
    memory.close()
    [results] = world.finish([service])
    undisturbed = answer(world, world.open(fallback=Fallback.HOST), crew)
    assert texts(results[1]) == texts(undisturbed)
    for key, request in plain.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(prompt_of(request), LATER))


def prompt_of(request: CompletionRequest) -> tuple[int, ...]:
    assert isinstance(request.prompt, tuple)
    return request.prompt


def test_no_more_run_than_may_in_both_places_together_and_a_crew_is_never_cut(worlds: Worlds) -> None:
    world = worlds(granules=600, blocks=200)
    service = world.open(max_num_seqs=4, max_num_batched_tokens=4, prefill_chunk_tokens=4)
    for key in range(4):
        service.submit(key, asked(prompt(key, 8), 30 if key else 10))
    service.submit(9, wide(prompt(9, 3), 4))
    answered: dict[int, object] = {}
    while len(answered) < 5:
        service.step()
        assert service.statistics().running <= 4
        answered.update(answers_among(service.said()))
        world.clock.advance(0.05)
    assert all(isinstance(said, Completion) for said in answered.values())
