"""A failure inside a move or a beam search: the text is equal, or the request is refused, and nothing is lost.

What fails is in turn each call of the device's driver, each change of access to pages, each copy of a block, and each
frame to the host.
"""

from __future__ import annotations

import errno
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from kvcluster.driver import linux
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.errors import DeviceUnreachable, DriverError
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.completion import CompletionRequest, Refused
from kvcluster.services.pages.port import PagePort
from kvcluster.services.request import RequestService, RequestSettings, open_request_service
from kvcluster.services.request.settings import Fallback
from kvcluster.testing.faulty_driver import FaultyDriver, failing, never
from kvcluster.testing.invariants import assert_ledger_balances
from kvcluster.testing.tidy_driver import TidyDriver
from tests.request.asking import asked, prompt, wide
from tests.request.world import Results, World
from tests.services.ways import Way

Requests = dict[int, CompletionRequest]
MOVING: Requests = {0: asked(prompt(0, 30), 5), 1: asked(prompt(1, 30), 14)}
BEAMS: Requests = {0: wide(prompt(2, 9), 3, max_tokens=6), 1: asked(prompt(3, 6), 6)}


@dataclass
class Failing:
    """Counts; call number `at` fails, and as many after it as make `times`."""

    at: int = 0
    times: int = 1
    calls: int = 0

    def passes(self) -> bool:
        self.calls += 1
        return not self.at <= self.calls < self.at + self.times


@dataclass(frozen=True)
class Scene:
    world: World
    faulty: FaultyDriver
    port: PagePort
    service: RequestService

    def run(self, requests: Requests) -> Results:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LeakedOnPurpose)
            for key, request in requests.items():
                self.service.submit(key, request)
            return self.world.finish([self.service], self._a_moment)[0]

    def _a_moment(self) -> int:
        """Time passes from step to step: what moved asks whether there is room to go back."""
        self.world.clock.advance(0.05)
        return 0


Scenes = Callable[[int], Any]


@pytest.fixture
def scenes(model: Model, tokenizer: Tokenizer) -> Scenes:
    """Opens a place of so many granules with pages beside it, and ends it: both are whole but for the quarantine."""

    @contextmanager
    def opened(granules: int) -> Iterator[Scene]:
        tidy: list[TidyDriver] = []

        def driver_of(**sizes: int) -> FaultyDriver:
            tidy.append(TidyDriver(**sizes))
            return FaultyDriver(tidy[0])

        world = World(model, tokenizer, granules=granules, blocks=60, driver_of=driver_of)
        faulty, pages = world.device.driver, world.pages
        assert isinstance(faulty, FaultyDriver)
        assert pages is not None
        port, settings = pages.open_port(), RequestSettings(fallback=Fallback.HOST, margin_steps=2)
        service = open_request_service(
            model, tokenizer, world.device.open_port(), settings, pages=port, clock=world.clock
        )
        with ExitStack() as ending:
            ending.callback(tidy[0].clear)
            ending.callback(world.device.close)
            ending.callback(pages.close)
            yield Scene(world, faulty, port, service)
            faulty.follow(never())
            with suppress(DeviceUnreachable):
                service.close()
            seen = assert_ledger_balances(world.device)
            assert seen.free_bytes + seen.retained_bytes + seen.accounts.get("quarantine", 0) == seen.capacity_bytes
            port.close()
            pages.service.gone(port.session)
            assert {name.split("/")[0] for name in pages.audit().accounts} <= {"free", "retained"}

    return opened


def is_answered(results: Results, wanted: Results) -> bool:
    """Each with its text, or with a refusal that says that memory failed."""
    return results.keys() == wanted.keys() and all(
        said == wanted[key] or (isinstance(said, Refused) and said.status_code == 503) for key, said in results.items()
    )


def test_each_driver_call_may_fail_while_sequences_move_and_every_text_is_equal(scenes: Scenes) -> None:
    with scenes(9) as scene:
        wanted = scene.run(MOVING)
        assert scene.service.statistics().moves >= 2
    for number in itertools.count(1):
        with scenes(9) as scene:
            scene.faulty.follow(failing(number))
            assert scene.run(MOVING) == wanted
            failed = any(call.failed for call in scene.faulty.since_plan())
        if not failed:
            assert number > 20
            break


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize(("requests", "granules"), [(MOVING, 9), (BEAMS, 1)], ids=["moves", "beams"])
def test_each_change_of_access_and_the_next_may_fail_while_sequences_move_and_fork(
    scenes: Scenes, monkeypatch: pytest.MonkeyPatch, requests: Requests, granules: int, times: int
) -> None:
    with scenes(granules) as scene:
        wanted = scene.run(requests)
    honest = linux.protect
    for number in itertools.count(1):
        failure = Failing(number, times)

        def protect(address: int, size_bytes: int, protection: int, failure: Failing = failure) -> None:
            if not failure.passes():
                raise OSError(errno.ENOMEM, "no more mappings")
            honest(address, size_bytes, protection)

        with monkeypatch.context() as patch, scenes(granules) as scene:
            patch.setattr(linux, "protect", protect)
            assert is_answered(scene.run(requests), wanted)
        if failure.calls < number:
            assert number > 5
            break


def test_each_copy_of_a_block_may_fail_while_beams_write(scenes: Scenes) -> None:
    with scenes(1) as scene:
        wanted = scene.run(BEAMS)
    for number in itertools.count(1):
        failure = Failing(number)
        with scenes(1) as scene:
            assert scene.world.pages is not None
            store = scene.world.pages.pool.store
            honest = store.copy_tokens

            def copy_tokens(
                source: int, target: int, tokens: int, failure: Failing = failure, honest: Any = honest
            ) -> None:
                if not failure.passes():
                    raise DriverError(call="copy", code=errno.EIO, name="EIO")
                honest(source, target, tokens)

            store.copy_tokens = copy_tokens
            assert is_answered(scene.run(BEAMS), wanted)
        if failure.calls < number:
            assert number > 2
            break


@pytest.mark.parametrize(("requests", "granules"), [(MOVING, 9), (BEAMS, 1)], ids=["moves", "beams"])
def test_a_host_that_is_gone_at_any_frame_comes_out_of_step_and_has_everything_back(
    scenes: Scenes, requests: Requests, granules: int
) -> None:
    for number in itertools.count(1):
        failure = Failing(number)
        with scenes(granules) as scene:
            scene.port.exchange.line = Unreachable(scene.port.exchange.line, failure)
            was_over = is_over(scene, requests)
        if was_over:
            assert number > 5
            break


def is_over(scene: Scene, requests: Requests) -> bool:
    """Whether all was answered, and nothing said that the host is gone."""
    try:
        scene.run(requests)
    except DeviceUnreachable:
        return False
    return True


class Unreachable(Way):
    """A way on which frame number `failure.at` is not answered, nor any after it."""

    def __init__(self, inner: Any, failure: Failing) -> None:
        self._inner, self._failure = inner, failure

    def send(self, frame: bytes) -> Any:
        if self._failure.passes() and self._failure.calls < self._failure.at:
            return self._inner.send(frame)
        return self

    def ready(self) -> bool:
        return True

    def result(self, timeout_s: float) -> bytes:
        raise DeviceUnreachable(device="host-kv", reason="it does not answer")

    def pushes(self) -> Any:
        return self._inner.pushes()

    def close(self) -> None:
        self._inner.close()
