"""What the device refuses: it waits, is served from host pages, or is told when to come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.services.asks import Grow
from kvcluster.services.completion import Completion, Refused, answers_among
from kvcluster.services.request.settings import Fallback
from kvcluster.services.sequence import SequenceSpec
from tests.request.asking import Counting, asked, prompt
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
TOKENS = 30


def test_what_the_device_refuses_is_served_from_host_pages_with_the_same_text(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=9, blocks=200)
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: prompt(key, 20 + 3 * key) for key in range(6)}
    results = world.run(service, {key: asked(ids, TOKENS) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, TOKENS))
    assert service.statistics().fallbacks > 0


def test_what_the_device_refuses_finds_in_host_pages_what_others_computed_there(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=17, blocks=200)
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: (*prompt(0, 80), *prompt(key + 1, 9)) for key in range(5)}
    results = world.run(service, {key: asked(ids, TOKENS) for key, ids in prompts.items()})
    assert service.statistics().fallbacks >= 3
    cached = 0
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, TOKENS))
        cached += said.cached_tokens
    assert cached >= 2 * 80


def test_what_never_fits_the_device_is_served_from_host_pages(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=4, blocks=60)
    ids = prompt(1, 100)
    said = world.run(world.open(fallback=Fallback.HOST), {1: asked(ids, TOKENS)})[1]
    assert isinstance(said, Completion)
    assert said.text == tokenizer.decode(greedy(ids, TOKENS))


def test_what_fits_nowhere_is_refused_and_the_next_one_is_served(worlds: Worlds) -> None:
    world = worlds(granules=4, blocks=20)
    results = world.run(world.open(fallback=Fallback.HOST), {1: asked(prompt(1, 100)), 2: asked(prompt(2, 10))})
    assert isinstance(results[1], Refused)
    assert isinstance(results[2], Completion)


def test_host_pages_that_are_short_too_let_everybody_finish(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=9, blocks=40)
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: prompt(key, 20 + 3 * key) for key in range(8)}
    results = world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, 60))
    assert service.statistics().preemptions > 0


def test_without_the_policy_host_pages_are_left_alone(worlds: Worlds) -> None:
    world = worlds(granules=9, blocks=60)
    service = world.open()
    world.run(service, {key: asked(prompt(key, 30), TOKENS) for key in range(4)})
    assert service.statistics().fallbacks == 0
    assert world.pages is not None
    assert world.pages.audit().requests == 0


@pytest.mark.parametrize("common", [3, 4, 5, 11, 12, 13, 40])
def test_a_hit_in_host_pages_changes_no_text(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, common: int) -> None:
    """The device is too small for anything, so that all of it happens in pages."""
    world = worlds(granules=1, blocks=200)
    service = world.open(fallback=Fallback.HOST)
    first, second = (*prompt(0, common), *prompt(1, 9)), (*prompt(0, common), *prompt(2, 7))
    texts = [world.run(service, {1: asked(ids, TOKENS)})[1] for ids in (first, second, first)]
    assert [text.text for text in texts] == [  # type: ignore[union-attr]
        tokenizer.decode(greedy(ids, TOKENS)) for ids in (first, second, first)
    ]
    found = [text.cached_tokens for text in texts]  # type: ignore[union-attr]
    assert found[0] == 0
    assert found[1] == common
    assert found[2] == len(first) - 1


def test_samples_in_host_pages_share_their_prompt(worlds: Worlds) -> None:
    world = worlds(granules=1, blocks=300)
    service = world.open(fallback=Fallback.HOST)
    ids, draw = prompt(5, 96), {"temperature": 1.0, "seed": 3}
    together = world.run(service, {1: asked(ids, TOKENS, n=4, **draw)})[1]
    assert isinstance(together, Completion)
    alone = [world.run(world.open(prefix_cache=False), {1: asked(ids, TOKENS, sample=i, **draw)})[1] for i in range(4)]
    assert isinstance(alone[0], Refused)  # the device is too small, and nobody asks for pages
    other = worlds(granules=100)
    alone = [other.run(other.open(), {1: asked(ids, TOKENS, sample=i, **draw)})[1] for i in range(4)]
    assert [choice.text for choice in together.choices] == [one.text for one in alone]  # type: ignore[union-attr]


def test_a_caller_is_told_when_to_come_back_where_waiting_is_not_wanted(worlds: Worlds) -> None:
    world = worlds(granules=9)
    service = world.open(fallback=Fallback.REFUSE)
    results = world.run(service, {key: asked(prompt(key, 40), TOKENS) for key in range(4)})
    refused = [result for result in results.values() if isinstance(result, Refused)]
    assert isinstance(results[0], Completion)
    assert refused
    for one in refused:
        assert (one.status_code, one.code) == (429, "kv_memory_full")
        assert one.retry_after_s is not None
        assert f"ask again in {one.retry_after_s:.1f} s" in one.message


def test_one_that_has_begun_is_never_sent_away(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    world = worlds(granules=14)
    service = world.open(fallback=Fallback.REFUSE)
    prompts = {key: prompt(key, 10) for key in range(3)}
    results = world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    begun = {key: result for key, result in results.items() if isinstance(result, Completion)}
    assert service.statistics().preemptions > 0
    assert len(begun) >= 2
    for key, said in begun.items():
        assert said.text == tokenizer.decode(greedy(prompts[key], 60))


def test_what_is_preempted_goes_on_in_host_pages_without_being_computed_again(
    model: Model, tokenizer: Tokenizer, greedy: Greedy
) -> None:
    counting = Counting(model)
    world = World(counting, tokenizer, granules=14, blocks=200)  # type: ignore[arg-type]
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: prompt(key, 10) for key in range(3)}
    results = world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    assert service.statistics().moves > 0
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, 60))
    assert counting.tokens == 3 * (10 + 59)
    world.close()


def test_what_moved_goes_back_when_the_device_has_room(model: Model, tokenizer: Tokenizer, greedy: Greedy) -> None:
    counting = Counting(model)
    world = World(counting, tokenizer, granules=14, blocks=200)  # type: ignore[arg-type]
    service = world.open(fallback=Fallback.HOST)
    lengths = {0: 60, 1: 60, 2: 100}
    prompts = {key: prompt(key, 10) for key in lengths}
    for key, ids in prompts.items():
        service.submit(key, asked(ids, lengths[key]))
    while service.step():
        world.clock.advance(0.05)
    results = dict(answers_among(service.said()))
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, lengths[key]))
    assert service.statistics().moves >= 2
    assert counting.tokens == sum(10 + length - 1 for length in lengths.values())
    world.close()


@pytest.mark.parametrize("blocks", [6, 12, 20, 30])
def test_a_move_that_the_pages_refuse_is_a_preemption(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, blocks: int
) -> None:
    world = worlds(granules=14, blocks=blocks)
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: prompt(key, 10) for key in range(4)}
    results = world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, 60))


@pytest.mark.parametrize("steps", [5, 20, 30, 40, 60, 80])
def test_a_cancel_of_what_moved_gives_all_back_in_both_places(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=14, blocks=60)
    service = world.open(fallback=Fallback.HOST)
    for key in range(4):
        service.submit(key, asked(prompt(key, 10), 70))
    for _ in range(steps):
        service.step()
    for key in range(4):
        service.cancel(key)
    while service.step():
        pass
    assert world.free_bytes == world.device.audit().capacity_bytes


@pytest.mark.parametrize("most_seqs", [1, 2, 3, 16])
@pytest.mark.parametrize("granules", [4, 5, 6, 8, 10])
def test_a_text_that_is_turned_away_takes_the_others_of_its_request_along_and_nobody_else(
    worlds: Worlds, granules: int, most_seqs: int
) -> None:
    world = worlds(granules=granules)
    service = world.open(fallback=Fallback.REFUSE, max_num_seqs=most_seqs)
    results = world.run(service, {1: asked(prompt(1, 20), TOKENS, n=4), 2: asked(prompt(2, 3), 8)})
    assert set(results) == {1, 2}


def test_those_that_wait_for_pages_which_others_keep_begin_on_the_device_when_it_has_room(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=9, blocks=40)
    assert world.pages is not None
    port = world.pages.open_port()
    memory = port.memory(SequenceSpec(world.model.geometry, Layout.TOKEN_MAJOR, 160))
    port.one(Grow(memory, 160))
    service = world.open(fallback=Fallback.HOST)
    prompts = {key: prompt(key, 20) for key in range(4)}
    results = world.run(service, {key: asked(ids, 40) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, 40))
    memory.close()
