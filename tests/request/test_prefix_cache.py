"""What one request computed spares the next one its computing, and changes nothing of what it says."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.index.events import block_name, names_in
from kvcluster.index.identity import root_for
from kvcluster.index.token_chain import digests, packed
from kvcluster.services.completion import Completion, Refused
from kvcluster.services.known_blocks import NEVER
from kvcluster.services.request.identity import cache_identity
from kvcluster.services.request.settings import Fallback, RequestSettings
from tests.request.asking import GRANULE_TOKENS, TOKENS, Counting, answer, asked, joined, prompt
from tests.request.world import Results, World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]


@pytest.mark.parametrize("common", [*range(1, 10), 15, 16, 17, 31, 32, 33, 64])
def test_the_text_on_a_hit_is_that_on_a_miss_and_that_of_generate(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, common: int
) -> None:
    world = worlds(granules=200)
    service = world.open()
    first = (*prompt(0, common), *prompt(1, 9))
    second = (*prompt(0, common), *prompt(2, 7))
    texts = [answer(world, service, asked(ids)) for ids in (first, second, first)]
    assert [text.text for text in texts] == [tokenizer.decode(greedy(ids, TOKENS)) for ids in (first, second, first)]
    assert [text.cached_tokens for text in texts] == [0, joined(common, len(second)), joined(len(first), len(first))]


def test_a_hit_on_the_whole_prompt_leaves_its_last_token_to_compute(
    model: Model, tokenizer: Tokenizer, greedy: Greedy
) -> None:
    counting = Counting(model)
    world = World(counting, tokenizer, granules=100)  # type: ignore[arg-type]
    service = world.open()
    ids = prompt(3, 4 * GRANULE_TOKENS)
    cold, warm = answer(world, service, asked(ids, 5)), answer(world, service, asked(ids, 5))
    assert cold == warm
    assert warm.text == tokenizer.decode(greedy(ids, 5))
    assert warm.cached_tokens == len(ids) - 1
    assert counting.tokens == len(ids) + 4 + 1 + 4
    world.close()


def test_what_follows_a_hit_is_computed_with_its_past(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    """Chunks of 5 begin inside granules; each must see all that came with the hit."""
    world = worlds(granules=200)
    service = world.open(prefill_chunk_tokens=5)
    base = prompt(4, 40)
    answer(world, service, asked(base))
    longer = (*base, *prompt(5, 33))
    said = answer(world, service, asked(longer))
    assert said.cached_tokens == joined(40, len(longer))
    assert said.text == tokenizer.decode(greedy(longer, TOKENS))


def test_a_chat_finds_its_earlier_turns_and_what_was_answered(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=300)
    service = world.open()
    chat: tuple[int, ...] = prompt(6, 20)
    for turn in range(4):
        known = (len(chat) - 9 - 1 if turn else 0) // GRANULE_TOKENS * GRANULE_TOKENS
        said = answer(world, service, asked(chat))
        reply = greedy(chat, TOKENS)
        assert said.text == tokenizer.decode(reply)
        assert said.cached_tokens == known
        chat = (*chat, *reply, *prompt(7 + turn, 9))


def test_requests_that_wait_for_one_that_computes_what_they_share_find_it(
    model: Model, tokenizer: Tokenizer, greedy: Greedy
) -> None:
    """Eight at once: the beginning is computed once."""
    counting = Counting(model)
    world = World(counting, tokenizer, granules=400)  # type: ignore[arg-type]
    service = world.open(prefill_chunk_tokens=32)
    common = prompt(8, 12 * GRANULE_TOKENS)
    prompts = {key: (*common, *prompt(20 + key, 5 + key)) for key in range(8)}
    results = world.run(service, {key: asked(ids) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, TOKENS))
        assert said.cached_tokens == (len(common) if key else 0)
    own = sum(len(ids) - len(common) for ids in prompts.values())
    assert counting.tokens == len(common) + own + 8 * (TOKENS - 1)
    assert service.statistics().publications == 1
    assert service.statistics().hit_tokens == 7 * len(common)
    world.close()


def test_nobody_waits_for_one_that_has_gone(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    world = worlds(granules=200)
    service = world.open(prefill_chunk_tokens=16)
    common = prompt(9, 10 * GRANULE_TOKENS)
    service.submit(1, asked((*common, 3)))
    service.submit(2, asked((*common, 4)))
    service.step()
    assert service.statistics().running == 1
    service.cancel(1)
    results = world.finish([service])[0]
    assert set(results) == {2}
    assert results[2].text == tokenizer.decode(greedy((*common, 4), TOKENS))  # type: ignore[union-attr]


def test_what_is_short_is_computed_side_by_side(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open()
    for key in range(4):
        service.submit(key, asked((*prompt(10, 20), key + 3)))
    service.step()
    assert service.statistics().running == 4
    world.finish([service])
    assert service.statistics().publications == 0


def test_another_salt_finds_nothing(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open()
    ids = prompt(11, 50)
    texts = [answer(world, service, asked(ids, cache_salt=salt)) for salt in ("", "one", "two", "one")]
    assert [text.cached_tokens for text in texts] == [0, 0, 0, joined(50, 50)]
    assert len({text.text for text in texts}) == 1


def test_with_the_cache_off_nothing_is_found_and_nothing_stays(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open(prefix_cache=False)
    ids = prompt(12, 50)
    texts = [answer(world, service, asked(ids)) for _ in range(2)]
    assert [text.cached_tokens for text in texts] == [0, 0]
    assert world.device.audit().retained_bytes == 0
    assert service.statistics().lookups == 0


def test_what_a_preempted_request_computed_itself_is_no_hit(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=24)
    service = world.open()
    prompts = {key: prompt(13 + key, 20 + key) for key in range(4)}
    results = world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    assert service.statistics().preemptions > 0
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, 60))
        assert said.cached_tokens == 0


def test_what_a_preempted_request_leaves_is_found_by_its_own_tokens_and_no_others(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=24)
    service = world.open()
    prompts = {key: prompt(13 + key, 20 + key) for key in range(4)}
    world.run(service, {key: asked(ids, 60) for key, ids in prompts.items()})
    assert service.statistics().preemptions > 0
    for ids in prompts.values():
        chat = (*ids, *greedy(ids, 60), 9)
        assert answer(world, service, asked(chat)).text == tokenizer.decode(greedy(chat, TOKENS))
        again = (*ids, *ids, *greedy(ids, 60))
        assert answer(world, service, asked(again)).text == tokenizer.decode(greedy(again, TOKENS))


def test_a_request_that_needs_the_memory_of_what_is_kept_gets_it(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    """The prefix that it would join keeps more than it reads, and the two do not fit."""
    world = worlds(granules=14)
    service = world.open()
    answer(world, service, asked(prompt(14, 90), 10))
    other = (*prompt(14, 50), *prompt(15, 20))
    said = answer(world, service, asked(other, 30))
    assert said.text == tokenizer.decode(greedy(other, 30))


def test_those_that_wait_for_room_on_a_small_device_find_what_made_room_for_them(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=14)
    service = world.open(fallback=Fallback.WAIT)
    prompts = {key: (*prompt(0, 40), *prompt(key + 1, 9)) for key in range(4)}
    results = world.run(service, {key: asked(ids) for key, ids in prompts.items()})
    for key, ids in prompts.items():
        said = results[key]
        assert isinstance(said, Completion)
        assert said.text == tokenizer.decode(greedy(ids, TOKENS))
        assert said.cached_tokens == (40 if key else 0)
    assert service.statistics().refusals > 0


def test_one_that_runs_on_a_prefix_which_keeps_the_memory_that_it_lacks_begins_again(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=14)
    service = world.open()
    answer(world, service, asked(prompt(16, 80), 8))
    other = (*prompt(16, 40), *prompt(17, 4))
    said = answer(world, service, asked(other, 60))
    assert said.text == tokenizer.decode(greedy(other, 60))


def test_a_request_larger_than_the_memory_is_refused_and_the_next_one_is_served(worlds: Worlds) -> None:
    world = worlds(granules=10)
    service = world.open()
    results = world.run(service, {1: asked(prompt(18, 100)), 2: asked(prompt(19, 10))})
    assert isinstance(results[1], Refused)
    assert isinstance(results[2], Completion)


def test_an_empty_prompt_is_refused_and_the_next_one_is_served(worlds: Worlds) -> None:
    world = worlds(granules=10)
    results = world.run(world.open(), {1: asked(()), 2: asked(prompt(19, 10))})
    assert isinstance(results[1], Refused)
    assert isinstance(results[2], Completion)


@pytest.mark.parametrize("memory", [{"granules": 100}, {"granules": 1, "blocks": 200}], ids=["device", "pages"])
@pytest.mark.parametrize("steps", range(7))
def test_a_key_that_is_used_again_while_its_first_request_ends_mixes_nothing(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, steps: int, memory: dict[str, int]
) -> None:
    world = worlds(**memory)
    service = world.open(fallback=Fallback.HOST, prefill_chunk_tokens=32)
    first, second = prompt(20, 70), (*prompt(20, 64), *prompt(21, 12))
    service.submit(1, asked(first))
    for _ in range(steps):
        service.step()
    service.cancel(1)
    service.step()
    assert answer(world, service, asked(second)).text == tokenizer.decode(greedy(second, TOKENS))


@pytest.mark.parametrize("steps", range(8))
def test_a_cancel_at_any_stage_of_sharing_leaves_no_pin(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=100)
    service = world.open(prefill_chunk_tokens=32)
    for key in range(3):
        service.submit(key, asked((*prompt(22, 80), key + 3)))
    for _ in range(steps):
        service.step()
    for key in range(3):
        service.cancel(key)
    while service.step():
        pass
    assert world.free_bytes == world.device.audit().capacity_bytes
    assert world.device.audit().running_requests == 0


def test_sharing_costs_the_messages_of_what_was_published_and_no_more(worlds: Worlds) -> None:
    """A publication is two frames and their answers; what is kept at the end costs nothing."""
    texts: list[Results] = []
    messages = []
    for on in (False, True):
        world = worlds(granules=400)
        service = world.open(prefix_cache=on)
        prompts = {key: (*prompt(25, 80), *prompt(30 + key, 6)) for key in range(6)}
        texts.append(world.run(service, {key: asked(ids, 40) for key, ids in prompts.items()}))
        messages.append(service.statistics())
    assert texts[0] == texts[1]
    off, on = messages
    assert on.publications == 1
    assert on.control_messages <= off.control_messages + 4 * on.publications + 4


def test_equal_requests_one_after_the_other_cost_no_message_more(worlds: Worlds) -> None:
    counts = []
    for on in (False, True):
        world = worlds(granules=100)
        service = world.open(prefix_cache=on)
        for _ in range(3):
            answer(world, service, asked(prompt(26, 70), 20))
        counts.append(service.statistics().control_messages)
    assert counts[0] == counts[1]


def test_two_actors_share_what_either_computed(worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer) -> None:
    world = worlds(granules=200)
    services = [world.open(), world.open()]
    ids = prompt(27, 64)
    for turn, service in zip(range(4), itertools.cycle(services), strict=False):
        said = answer(world, service, asked(ids))
        assert said.text == tokenizer.decode(greedy(ids, TOKENS))
        assert said.cached_tokens == (63 if turn else 0)


def test_a_device_tells_of_a_prompt_under_the_root_that_a_worker_names_for_its_salt(
    worlds: Worlds, model: Model
) -> None:
    """So whoever is told a worker's identity finds its prompts among what its device tells."""
    world, ids = worlds(granules=100), prompt(8, 40)
    answer(world, world.open(), replace(asked(ids), cache_salt="kim"))
    told = set(names_in(world.device.service.known_since(0, NEVER).news.stored))
    identity = cache_identity(model, RequestSettings())
    for salt, is_known in (("kim", True), ("lee", False)):
        root = root_for("", identity.salted(salt).root)
        assert ({block_name(digest) for digest in digests(root, packed(ids))} <= told) == is_known
