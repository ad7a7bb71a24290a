"""A driver that fails under a request service: the text is equal, or the request has a result of its own."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.errors import DeviceUnreachable
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.completion import CompletionRequest, Refused, Telling
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.testing.faulty_driver import FaultyDriver, Plan, failing, failing_every, failing_then, never
from kvcluster.testing.invariants import assert_ledger_balances
from kvcluster.testing.tidy_driver import TidyDriver
from tests.request.conftest import PROMPTS
from tests.request.told import told
from tests.request.world import Results, World
from tests.services.ways import Way

ASKED = {key: CompletionRequest(PROMPTS[key], max_tokens=25, temperature=0, ignore_eos=True) for key in range(2)}


@dataclass(frozen=True)
class FaultyWorld:
    world: World
    faulty: FaultyDriver
    service: RequestService

    def run(self) -> Results:
        """All answers; none begins twice on the way, or says a word again."""
        for key, request in ASKED.items():
            self.service.submit(key, replace(request, tells=Telling.PARTS))
        return {key: heard.whole for key, heard in told(self.world, [self.service]).items()}


@pytest.fixture
def open_faulty(model: Model, tokenizer: Tokenizer) -> Iterator[Callable[[Plan], FaultyWorld]]:
    """Opens worlds over a driver that fails by a plan; what they leak on purpose goes at the end."""
    opened: list[tuple[FaultyWorld, TidyDriver]] = []

    def open_one(plan: Plan) -> FaultyWorld:
        drivers: list[TidyDriver] = []

        def driver_of(**sizes: int) -> FaultyDriver:
            drivers.append(TidyDriver(**sizes))
            return FaultyDriver(drivers[0])

        world = World(model, tokenizer, granules=40, driver_of=driver_of)
        faulty = world.device.driver
        assert isinstance(faulty, FaultyDriver)
        made = FaultyWorld(world, faulty, world.open())
        opened.append((made, drivers[0]))
        faulty.follow(plan)
        return made

    yield open_one
    for made, driver in opened:
        made.faulty.follow(never())
        made.service.close()
        made.world.device.close()
        driver.clear()


def test_each_driver_call_may_fail_once_and_every_text_is_equal(open_faulty: Callable[[Plan], FaultyWorld]) -> None:
    wanted = open_faulty(never()).run()
    assert_each_is_answered(open_faulty, failing, wanted)


def test_each_driver_call_and_the_next_one_may_fail(open_faulty: Callable[[Plan], FaultyWorld]) -> None:
    wanted = open_faulty(never()).run()
    assert_each_is_answered(open_faulty, lambda number: failing_then(number, 1), wanted)


def assert_each_is_answered(
    open_faulty: Callable[[Plan], FaultyWorld], plan_of: Callable[[int], Plan], wanted: Results
) -> None:
    for number in itertools.count(1):
        made = open_faulty(plan_of(number))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeakedOnPurpose)
            assert made.run() == wanted
            failed = any(call.failed for call in made.faulty.since_plan())
        seen = assert_ledger_balances(made.world.device)
        kept_bytes = seen.retained_bytes + seen.accounts.get("quarantine", 0)
        assert seen.free_bytes + kept_bytes == seen.capacity_bytes
        if not failed:
            assert number > 30
            break


@pytest.mark.parametrize("call", ["reserve", "create", "map", "set_access"])
def test_a_device_that_always_fails_refuses_each_request_with_503(
    open_faulty: Callable[[Plan], FaultyWorld], call: str
) -> None:
    made = open_faulty(failing_every(call))
    results = made.run()
    for key in ASKED:
        refused = results[key]
        assert isinstance(refused, Refused)
        assert (refused.status_code, refused.code) == (503, "device_failed")
        assert call in refused.message
    assert made.world.free_bytes == made.world.device.audit().capacity_bytes


def test_a_device_that_fails_later_refuses_what_runs_and_frees_it(
    open_faulty: Callable[[Plan], FaultyWorld],
) -> None:
    made = open_faulty(never())
    for key, request in ASKED.items():
        made.service.submit(key, request)
    for _ in range(6):
        made.service.step()
    made.faulty.follow(failing_every("set_access"))
    [results] = made.world.finish([made.service])
    assert {key: type(result) for key, result in results.items()} == dict.fromkeys(ASKED, Refused)
    assert made.world.free_bytes == made.world.device.audit().capacity_bytes


def test_bytes_in_quarantine_that_a_request_cannot_do_without_refuse_it(
    open_faulty: Callable[[Plan], FaultyWorld],
) -> None:
    made = open_faulty(never())
    service, prompt = made.service, PROMPTS[0]
    service.submit(1, CompletionRequest(prompt, max_tokens=200, temperature=0, ignore_eos=True))
    for _ in range(150):
        service.step()
    service.cancel(1)
    made.faulty.follow(failing_every("unmap"))
    service.step()
    made.faulty.follow(never())
    results = made.world.run(service, {2: CompletionRequest((5,) * 250, max_tokens=20, temperature=0)})
    refused = results[2]
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (503, "device_failed")
    assert "could not be taken back" in refused.message


def test_a_device_that_is_gone_comes_out_of_step(model: Model, tokenizer: Tokenizer) -> None:
    world = World(model, tokenizer, granules=40)
    port = world.device.open_port()
    service = open_request_service(model, tokenizer, port, RequestSettings(), clock=world.clock)
    service.submit(0, ASKED[0])
    service.step()
    way, port.exchange.line = port.exchange.line, Gone()
    with pytest.raises(DeviceUnreachable):
        world.finish([service])
    port.exchange.line = way
    service.close()
    world.close()


class Gone(Way):
    """A transport whose device does not answer."""

    def send(self, frame: bytes) -> Gone:
        return self

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        raise DeviceUnreachable(device="host", reason="it does not answer")

    def pushes(self) -> tuple[()]:
        return ()
