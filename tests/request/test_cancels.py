"""A request that nobody wants any more: its memory is back at the next step boundary, whatever it was about to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from kvcluster.services.completion import CompletionRequest
from kvcluster.services.request import RequestService
from kvcluster.services.request.settings import Fallback
from kvcluster.testing.invariants import assert_ledger_balances
from tests.request.asking import asked, prompt
from tests.request.world import World

Worlds = Callable[..., World]


@dataclass(slots=True)
class Case:
    """A function that makes one is named by the state in which its request is then; all requests are in `keys`."""

    world: World
    service: RequestService
    keys: tuple[int, ...] = (1,)


def submitted(world: World, service: RequestService, *requests: CompletionRequest) -> Case:
    for key, request in enumerate(requests, start=1):
        service.submit(key, request)
    return Case(world, service, tuple(range(1, len(requests) + 1)))


def steps(service: RequestService, count: int) -> None:
    for _ in range(count):
        service.step()


def not_heard(worlds: Worlds) -> Case:
    world = worlds(granules=24)
    return submitted(world, world.open(), asked(prompt(1, 20), 60))


def waiting(worlds: Worlds) -> Case:
    """For memory that another request has."""
    world = worlds(granules=9)
    service = world.open()
    service.submit(9, asked(prompt(9, 40), 24))
    steps(service, 2)
    case = submitted(world, service, asked(prompt(1, 40), 24))
    steps(service, 4)
    assert service.statistics().refusals > 0
    assert service.statistics().waiting == 1
    return Case(world, service, (9, *case.keys))


def in_flight_for_admission(worlds: Worlds) -> Case:
    """Asked beside a step of another request, whose end its answer awaits."""
    world = worlds(granules=40)
    service = world.open()
    service.submit(9, asked(prompt(9, 10), 60))
    steps(service, 3)
    case = submitted(world, service, asked(prompt(1, 20), 60))
    before = world.free_bytes
    steps(service, 1)
    assert service.statistics().waiting == 1
    assert world.free_bytes < before
    return Case(world, service, (9, *case.keys))


def prefilling(worlds: Worlds) -> Case:
    world = worlds(granules=24)
    case = submitted(world, world.open(prefill_chunk_tokens=4), asked(prompt(1, 40), 60))
    steps(case.service, 3)
    assert (case.service.statistics().running, case.service.statistics().generated_tokens) == (1, 0)
    return case


def decoding(worlds: Worlds) -> Case:
    world = worlds(granules=24)
    case = submitted(world, world.open(), asked(prompt(1, 20), 60, n=2, temperature=1.0))
    steps(case.service, 20)
    assert case.service.statistics().running == 2
    return case


def preempted(worlds: Worlds) -> Case:
    world = worlds(granules=14)
    case = submitted(world, world.open(), *(asked(prompt(key, 10), 60) for key in range(3)))
    while not case.service.statistics().preemptions:
        case.service.step()
    assert case.service.statistics().waiting
    return case


def in_host_pages(worlds: Worlds) -> Case:
    world = worlds(granules=1, blocks=60)
    case = submitted(world, world.open(fallback=Fallback.HOST), asked(prompt(1, 20), 60))
    steps(case.service, 8)
    assert case.service.statistics().running == 1
    assert world.pages is not None
    assert world.pages.audit().open_requests == 1
    return case


def waiting_for_host_pages(worlds: Worlds) -> Case:
    world = worlds(granules=1, blocks=20)
    case = submitted(world, world.open(fallback=Fallback.HOST), *(asked(prompt(key, 40), 24) for key in (1, 2)))
    steps(case.service, 8)
    assert case.service.statistics().waiting == 1
    return case


def publishing(worlds: Worlds) -> Case:
    """What two begin with is shared once, by the older one, while the younger one waits for it."""
    world = worlds(granules=100)
    common = prompt(3, 80)
    service = world.open(least_shared_tokens=8)
    case = submitted(world, service, *(asked((*common, *prompt(key, 9)), 60) for key in (1, 2)))
    while "writing" not in {prefix.state for prefix in world.device.audit().prefixes.values()}:
        service.step()
    return case


def moved_to_host_pages(worlds: Worlds) -> Case:
    world = worlds(granules=14, blocks=60)
    case = submitted(world, world.open(fallback=Fallback.HOST), *(asked(prompt(key, 10), 70) for key in range(4)))
    while not case.service.statistics().moves:
        case.service.step()
    return case


def moved_back(worlds: Worlds) -> Case:
    world = worlds(granules=14, blocks=200)
    lengths = {1: 60, 2: 60, 3: 100}
    case = submitted(
        world, world.open(fallback=Fallback.HOST), *(asked(prompt(key, 10), count) for key, count in lengths.items())
    )
    while case.service.statistics().moves < 2:
        case.service.step()
        world.clock.advance(0.05)
    return replace(case, keys=(3,))  # the others are answered


CASES = (
    not_heard,
    waiting,
    in_flight_for_admission,
    prefilling,
    decoding,
    preempted,
    in_host_pages,
    waiting_for_host_pages,
    publishing,
    moved_to_host_pages,
    moved_back,
)


@pytest.fixture(params=CASES, ids=[case.__name__ for case in CASES])
def case(request: pytest.FixtureRequest, worlds: Worlds) -> Case:
    made: Case = request.param(worlds)
    return made


def test_all_memory_of_a_cancelled_request_is_back_at_the_next_step_boundary_and_nothing_is_said(case: Case) -> None:
    case.service.said()
    for key in case.keys:
        case.service.cancel(key)
    case.service.step()
    assert case.world.free_bytes == case.world.device.audit().capacity_bytes
    assert assert_ledger_balances(case.world.device).open_requests == 0
    if case.world.pages is not None:
        assert case.world.pages.audit().open_requests == 0
    assert case.service.said() == []
    done = case.service.statistics()
    assert (done.waiting, done.running, done.cancelled) == (0, 0, len(case.keys))
    assert not case.service.step()


def test_the_same_requests_are_answered_where_they_are_asked_again_after_it(case: Case, worlds: Worlds) -> None:
    case.service.said()
    for key in case.keys:
        case.service.cancel(key)
    case.service.step()
    again = asked(prompt(1, 20), 12)
    other = worlds(granules=40)
    if case.world.granules > 1:
        assert case.world.run(case.service, {1: again}) == other.run(other.open(), {1: again})
