"""The loop goes on while its device is dead, and with the next one; where its session was ended, it begins again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import Completion, CompletionRequest, answers_among
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from tests.request.asking import asked
from tests.request.conftest import PROMPTS
from tests.services.restarts import RestartWorld

TOKENS = 24
ROOMY = 400  # granules: nobody is preempted
REQUESTS = {key: asked(prompt, TOKENS) for key, prompt in enumerate(PROMPTS)}


@pytest.fixture
def open_world(model: Model, tokenizer: Tokenizer) -> Iterator[Callable[..., tuple[RestartWorld, RequestService]]]:
    worlds: list[tuple[RestartWorld, RequestService]] = []

    def opened(capacity: int = ROOMY, **settings: object) -> tuple[RestartWorld, RequestService]:
        world = RestartWorld(capacity)
        chosen = RequestSettings(margin_steps=4, **settings)  # type: ignore[arg-type]
        service = open_request_service(model, tokenizer, world.open_port(), chosen, clock=world.clock)
        worlds.append((world, service))
        return worlds[-1]

    yield opened
    for world, service in worlds:
        service.close()
        world.close()


def run(
    world: RestartWorld, service: RequestService, requests: dict[int, CompletionRequest], disturb: Callable[[int], None]
) -> dict[int, tuple[int, ...] | str]:
    """The texts of `requests`; `disturb` comes before each step, with its number."""
    for key, request in requests.items():
        service.submit(key, request)
    texts: dict[int, tuple[int, ...] | str] = {}
    for number in range(20_000):
        disturb(number)
        service.step()
        world.clock.advance(0.01)
        for key, result in answers_among(service.said()):
            assert isinstance(result, Completion)
            texts[key] = result.text
        if len(texts) == len(requests):
            return texts
    raise AssertionError("still at work")


def nothing(_: int) -> None:
    """Happens."""


@pytest.fixture
def wanted(open_world: Callable[..., tuple[RestartWorld, RequestService]]) -> dict[int, object]:
    return dict(run(*open_world(), REQUESTS, nothing))


@pytest.mark.parametrize("period", [1, 3, 7])
def test_a_device_that_dies_every_few_steps_costs_no_token_and_changes_none(
    open_world: Callable[..., tuple[RestartWorld, RequestService]], wanted: dict[int, object], period: int
) -> None:
    world, service = open_world(prefix_cache=False)
    deaths: list[int] = []

    def die(number: int) -> None:
        if number % period == 0 and len(deaths) < 4:
            deaths.append(number)
            world.die()

    assert run(world, service, REQUESTS, die) == wanted
    assert len(deaths) == 4
    assert service.statistics().recomputed_tokens == 0


@pytest.mark.parametrize("period", [2, 5])
def test_a_small_device_that_dies_every_few_steps_changes_no_text(
    open_world: Callable[..., tuple[RestartWorld, RequestService]], wanted: dict[int, object], period: int
) -> None:
    world, service = open_world(40)

    def die(number: int) -> None:
        if number % period == 0 and number < 60:
            world.die()

    assert run(world, service, REQUESTS, die) == wanted


def test_a_session_that_was_ended_begins_again_and_changes_no_text(
    open_world: Callable[..., tuple[RestartWorld, RequestService]], wanted: dict[int, object]
) -> None:
    world, service = open_world()

    def fence(number: int) -> None:
        if number in (5, 9, 20):
            world.fence()

    assert run(world, service, REQUESTS, fence) == wanted
    assert service.statistics().recomputed_tokens > 0
    assert world.granules("quarantine") == 0


def test_all_is_free_after_deaths_in_the_middle_of_everything(
    open_world: Callable[..., tuple[RestartWorld, RequestService]], wanted: dict[int, object]
) -> None:
    world, service = open_world()

    def disturb(number: int) -> None:
        if number in (3, 4, 8, 13):
            world.die()
        if number == 20:
            world.fence()

    assert run(world, service, REQUESTS, disturb) == wanted
    service.step()
    accounts = world.service.audit().accounts
    assert sum(accounts.get(name, 0) for name in accounts if name.startswith(("free", "retained"))) == ROOMY * 4096
