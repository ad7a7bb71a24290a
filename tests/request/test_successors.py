"""A worker dies, and another one goes on with what it computed: the same texts, and no token is computed twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.request.settings import Fallback
from tests.request.asking import TOKENS, asked
from tests.request.conftest import PROMPTS
from tests.request.mortal import Mortal
from tests.request.world import World

REQUESTS = {key: asked(ids) for key, ids in enumerate(PROMPTS[:4])}
DRAWN = {key: replace(request, temperature=0.9, seed=40 + key, n=2) for key, request in REQUESTS.items()}


@pytest.fixture
def world(worlds: Callable[..., World]) -> World:
    return worlds(granules=512, grace_s=60.0)


def texts(results: dict[int, Completion]) -> dict[int, list[str]]:
    return {key: [choice.text for choice in result.choices] for key, result in results.items()}


def undisturbed(world: World, requests: dict[int, CompletionRequest]) -> dict[int, list[str]]:
    worker = Mortal(world, prefix_cache=False)
    worker.submit(requests)
    said = texts(worker.finish())
    worker.close()
    return said


def succeed(world: World, dead: Mortal, requests: dict[int, CompletionRequest]) -> Mortal:
    """Another worker, which is given the same requests."""
    successor = Mortal(world)
    successor.submit({key: replace(request, died_with=(dead.session,)) for key, request in requests.items()})
    return successor


def rows(requests: dict[int, CompletionRequest], emitted: int) -> int:
    """Tokens whose rows are written when these have emitted so many: all but the newest of each."""
    return sum(len(request.prompt) for request in requests.values()) + emitted - len(requests)


@pytest.mark.parametrize("requests", [REQUESTS, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_a_successor_says_the_same_and_computes_nothing_twice(
    world: World, requests: dict[int, CompletionRequest], steps: int
) -> None:
    expected = undisturbed(world, requests)
    dead = Mortal(world)
    dead.submit(requests)
    dead.step(steps)
    computed = dead.service.statistics().generated_tokens
    dead.die()
    successor = succeed(world, dead, requests)
    assert texts(successor.finish()) == expected
    done = successor.service.statistics()
    assert (done.recomputed_tokens, done.adoptions) == (0, len(requests) * requests[0].n)
    assert computed + done.generated_tokens == len(requests) * requests[0].n * TOKENS
    successor.close()


def test_what_was_complete_is_answered_without_any_computing(world: World) -> None:
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world)
    dead.submit(REQUESTS)
    dead.finish()  # and nobody has collected it
    dead.die()
    successor = succeed(world, dead, REQUESTS)
    assert texts(successor.finish()) == expected
    assert (successor.service.statistics().generated_tokens, successor.service.statistics().steps) == (0, 0)
    successor.close()


def test_after_the_grace_the_words_are_left_and_what_was_computed_is_counted(world: World) -> None:
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world, prefix_cache=False)
    dead.submit(REQUESTS)
    dead.step(6)
    emitted = dead.service.statistics().generated_tokens
    dead.die()
    world.clock.advance(61.0)
    world.device.service.idle()
    successor = Mortal(world, prefix_cache=False)
    successor.submit({key: replace(request, died_with=(dead.session,)) for key, request in REQUESTS.items()})
    assert texts(successor.finish()) == expected
    done = successor.service.statistics()
    assert done.generated_tokens == len(REQUESTS) * TOKENS - emitted
    assert done.recomputed_tokens == rows(REQUESTS, emitted)
    successor.close()


def test_without_a_grace_only_what_the_dead_worker_computed_is_computed_again(worlds: Callable[..., World]) -> None:
    world = worlds(granules=512)
    expected = undisturbed(world, REQUESTS)
    dead, other = Mortal(world, prefix_cache=False), Mortal(world, prefix_cache=False)
    dead.submit(dict(list(REQUESTS.items())[:2]))
    other.submit(dict(list(REQUESTS.items())[2:]))
    for worker in (dead, other):
        worker.step(6)
    dead.die()
    successor = Mortal(world, prefix_cache=False)
    successor.submit({key: replace(REQUESTS[key], died_with=(dead.session,)) for key in (0, 1)})
    assert texts(successor.finish()) | texts(other.finish()) == expected
    assert other.service.statistics().recomputed_tokens == 0
    mine = {key: REQUESTS[key] for key in (0, 1)}
    assert successor.service.statistics().recomputed_tokens == rows(mine, dead.service.statistics().generated_tokens)
    successor.close()
    other.close()


def test_a_loop_that_failed_leaves_nothing_to_go_on_with(world: World) -> None:
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world)
    dead.submit(REQUESTS)
    dead.step(6)
    dead.service.distrust()
    dead.die()
    assert world.free_bytes == world.device.audit().capacity_bytes
    successor = succeed(world, dead, REQUESTS)
    assert texts(successor.finish()) == expected
    done = successor.service.statistics()
    assert (done.adoptions, done.generated_tokens) == (0, len(REQUESTS) * TOKENS)
    assert done.recomputed_tokens > 0
    successor.close()


def test_a_preempted_request_goes_on_with_its_words(worlds: Callable[..., World]) -> None:
    world = worlds(granules=8, grace_s=60.0)
    requests = {key: asked(ids, 24) for key, ids in enumerate(PROMPTS[:2])}
    expected = undisturbed(world, requests)
    dead = Mortal(world)
    dead.submit(requests)
    for _ in range(40):
        dead.step(0 if dead.service.statistics().preemptions else 1)
    assert dead.service.statistics().preemptions == 1
    dead.die()
    successor = succeed(world, dead, requests)
    assert texts(successor.finish()) == expected
    assert successor.service.statistics().adoptions == 1
    successor.close()


def test_what_ran_in_host_pages_goes_on_with_its_words(worlds: Callable[..., World]) -> None:
    world = worlds(granules=8, blocks=200, grace_s=60.0)
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world, fallback=Fallback.HOST)
    dead.submit(REQUESTS)
    dead.step(6)
    assert dead.service.statistics().fallbacks > 0
    emitted = dead.service.statistics().generated_tokens
    dead.die()
    successor = succeed(world, dead, REQUESTS)
    assert texts(successor.finish()) == expected
    done = successor.service.statistics()
    assert 0 < done.adoptions < len(REQUESTS)
    assert done.generated_tokens == len(REQUESTS) * TOKENS - emitted
    successor.close()


def test_who_asks_before_the_death_is_known_waits_for_it_but_not_for_ever(world: World) -> None:
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world)
    dead.submit(REQUESTS)
    dead.step(6)
    dead.orphan()
    successor = succeed(world, dead, REQUESTS)
    for _ in range(20):
        successor.service.step()
        world.clock.advance(0.1)
    assert successor.service.statistics().waiting == len(REQUESTS)
    dead.die()
    world.clock.advance(0.1)
    assert texts(successor.finish()) == expected
    assert successor.service.statistics().recomputed_tokens == 0
    successor.close()


def test_a_process_that_does_not_die_is_not_waited_for_for_ever(world: World) -> None:
    expected = undisturbed(world, REQUESTS)
    dead = Mortal(world)
    dead.submit(REQUESTS)
    dead.step(6)
    successor = succeed(world, dead, REQUESTS)
    successor.step(1)
    world.clock.advance(8.0)
    assert texts(successor.finish()) == expected
    assert successor.service.statistics().adoptions == 0
    successor.close()
    dead.die()


def test_a_cancelled_request_is_nobodys_to_go_on_with(world: World) -> None:
    dead = Mortal(world)
    dead.submit(REQUESTS)
    dead.step(4)
    dead.service.cancel(0)
    dead.step(1)
    dead.die()
    successor = succeed(world, dead, REQUESTS)
    successor.finish()
    assert successor.service.statistics().adoptions == len(REQUESTS) - 1
    successor.close()


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": TOKENS + 1},
        {"cache_salt": "x"},
        {"stop": ("zz",)},
        {"temperature": 0.5, "seed": 1},
        {"sample": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_work_is_not_gone_on_with(world: World, change: dict[str, object]) -> None:
    other = {0: replace(REQUESTS[0], **change)}  # type: ignore[arg-type]
    expected = undisturbed(world, other)
    dead = Mortal(world)
    dead.submit({0: REQUESTS[0]})
    dead.step(5)
    dead.die()
    successor = succeed(world, dead, other)
    assert texts(successor.finish()) == expected
    assert successor.service.statistics().adoptions == 0
    successor.close()
