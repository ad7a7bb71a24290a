"""The loop of a request actor by itself: what it hands out before it ends, and when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actors.loop import Told, serve
from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.errors import Quarantined
from kvcluster.services.completion import Completion
from kvcluster.testing.faulty_driver import FaultyDriver, failing_every, never
from kvcluster.testing.invariants import assert_ledger_balances
from kvcluster.testing.tidy_driver import TidyDriver
from tests.actors.answers import LENGTHS, requests
from tests.request.mortal import Mortal
from tests.request.world import World

SHORTEST = LENGTHS.index(min(LENGTHS))


class Faulty:
    """A world whose driver fails by a plan; what it leaks on purpose goes at the end."""

    def __init__(self, folder: Path) -> None:
        model, tokenizer = open_model(folder, dtype=torch.float32, threads=1), open_tokenizer(folder)
        self.world = World(model, tokenizer, granules=64, grace_s=60.0, driver_of=self._driver_of)
        self.service = self.world.open()

    def _driver_of(self, **sizes: int) -> FaultyDriver:
        self._tidy = TidyDriver(**sizes)
        self.driver = FaultyDriver(self._tidy)
        return self.driver

    def close(self) -> None:
        self.driver.follow(never())
        self.service.close()
        self.world.device.close()
        self._tidy.clear()


@pytest.fixture
def faulty(folder: Path) -> Iterator[Faulty]:
    faulty = Faulty(folder)
    yield faulty
    faulty.close()


def test_a_process_that_cannot_unmap_hands_out_what_is_finished_and_ends(faulty: Faulty, wanted: list[str]) -> None:
    for key, request in requests():
        faulty.service.submit(key, request)
    faulty.driver.follow(failing_every("unmap"))
    outcomes: Told = []
    with pytest.raises(Quarantined, match="memory that this process could not unmap"):
        serve(faulty.service, stopping=threading.Event(), publish=outcomes.extend)
    [(key, said)] = outcomes
    assert key == SHORTEST
    assert isinstance(said, Completion)
    assert said.text == wanted[key]
    assert assert_ledger_balances(faulty.world.device).accounts["quarantine"] > 0


def test_nobody_goes_on_with_what_a_loop_computed_that_failed(faulty: Faulty, wanted: list[str]) -> None:
    failed = Mortal(faulty.world)
    failed.submit(dict(requests()))

    def fail_at_the_first(outcomes: Told) -> None:
        if outcomes:
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it is ours
        serve(failed.service, stopping=threading.Event(), publish=fail_at_the_first)
    failed.die()
    assert faulty.world.device.audit().kept_bytes == 0
    successor = Mortal(faulty.world)
    successor.submit({key: replace(request, died_with=(failed.session,)) for key, request in requests()})
    assert [answer.text for _, answer in sorted(successor.finish().items())] == wanted
    assert successor.service.statistics().adoptions == 0
    successor.close()


def test_a_loop_that_is_told_to_stop_gives_everything_back(faulty: Faulty) -> None:
    for key, request in requests():
        faulty.service.submit(key, request)
    stopping = threading.Event()

    def stop_at_the_first(outcomes: Told) -> None:
        if outcomes:
            stopping.set()

    serve(faulty.service, stopping=stopping, publish=stop_at_the_first)
    assert faulty.service.statistics().requests_done < len(requests())
    assert faulty.world.free_bytes == faulty.world.device.audit().capacity_bytes
