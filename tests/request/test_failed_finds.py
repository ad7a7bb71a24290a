"""A Find that its owner did and this process could not use: the text is right, and so is every later hit on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from kvcluster.driver.host import open_host_driver
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.request.settings import Fallback
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.faulty_driver import FaultyDriver, failing_every, failing_named, never
from tests.pages.test_faults import Protection
from tests.pages.test_faults import protection as protection
from tests.request.asking import TOKENS, answer, asked, prompt, texts, wide
from tests.request.world import World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
P = prompt(1, 24)
Q = (*P, *P, *prompt(5, 3))  # whose rows behind P are not those of P


def faulty(world: World) -> FaultyDriver:
    assert isinstance(world.device.driver, FaultyDriver)
    return world.device.driver


def over_faults(worlds: Worlds, granules: int) -> World:
    return worlds(granules=granules, driver_of=lambda **sizes: FaultyDriver(open_host_driver(**sizes)))


def crowded(world: World) -> SequenceMemory:
    """Somebody else takes whatever the device has."""
    memory = world.device.open_port().memory(SequenceSpec(world.model.geometry, Layout.TOKEN_MAJOR, 180))
    for tokens in range(180, 0, -4):
        try:
            memory.commit(tokens, memory.grant(tokens))
        except MemoryError:
            continue
        return memory
    raise AssertionError("there was no room at all")


@pytest.mark.parametrize("call", ["map", "set_access"])
def test_a_find_that_could_not_be_mapped_and_one_that_is_refused_list_no_row_under_anothers_ids(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, call: str
) -> None:
    """The third ask is a growth; what was said is listed at the end, and behind the prompt."""
    world = over_faults(worlds, 24)
    service = world.open()
    service.submit(1, asked(P, 24))
    faulty(world).follow(failing_every(call))
    service.step()
    service.step()
    faulty(world).follow(never())
    hog = crowded(world)
    world.clock.advance(0.2)
    for _ in range(6):
        service.step()
    hog.close()
    [results] = world.finish([service])
    assert texts(results[1]) == [tokenizer.decode(greedy(P, 24))]
    warm = answer(world, service, asked(Q))
    assert warm.text == tokenizer.decode(greedy(Q, TOKENS))
    assert warm.cached_tokens == 24


@pytest.mark.parametrize("name", ["map", "set_access"])
def test_a_mapping_that_fails_at_any_time_leaves_a_hit_that_is_right(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, name: str
) -> None:
    for failing_call in itertools.count(1):
        world = over_faults(worlds, 40)
        service = world.open()
        answer(world, service, asked(P, 4))
        faulty(world).follow(failing_named(name, failing_call))
        said = [answer(world, service, asked(ids, 4)).text for ids in (Q, P)]
        failed = any(call.failed for call in faulty(world).since_plan())
        faulty(world).follow(never())
        said += [answer(world, service, asked(ids, 4)).text for ids in (Q, P)]
        assert said == 2 * [tokenizer.decode(greedy(ids, 4)) for ids in (Q, P)]
        if not failed:
            assert failing_call > 3
            break


def close_and_end(world: World) -> None:
    """What could not be made read-only is free when the process is gone."""
    assert world.pages is not None
    for service in world.services:
        service.close()
    for session in world.pages.statistics().sessions:
        world.pages.service.gone(session)
    world.close()


REQUESTS: dict[str, tuple[CompletionRequest, ...]] = {
    "without a hit": (asked(P, 6),),
    "with a hit": (asked(P, 6), asked(Q, 6)),
    "beams": (wide(prompt(7, 20), 3, max_tokens=4),),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_access_to_pages_that_fails_at_any_call_changes_no_text(
    model: Model, tokenizer: Tokenizer, protection: Protection, name: str
) -> None:
    wanted = None
    for failing_call in itertools.count(0):
        world = World(model, tokenizer, granules=1, blocks=60)
        service = world.open(fallback=Fallback.HOST)
        with protection.failing_at(failing_call) if failing_call else nullcontext():
            said = [answer(world, service, request) for request in REQUESTS[name]]
            failed = protection.calls >= failing_call
        said += [answer(world, service, request) for request in REQUESTS[name]]
        found = [texts(one) for one in said]
        wanted = wanted or found
        assert found == wanted
        close_and_end(world)
        if not failed:
            assert failing_call > 2
            break


def test_a_waiting_request_whose_access_fails_holds_no_block(worlds: Worlds, protection: Protection) -> None:
    world = worlds(granules=1, blocks=60)
    service = world.open(fallback=Fallback.HOST)
    service.submit(1, asked(P, 6))
    with protection.failing_at(1):
        while protection.calls < 1:
            service.step()
    assert world.pages is not None
    assert world.pages.audit().free_blocks == 60
    [results] = world.finish([service])
    assert isinstance(results[1], Completion)
