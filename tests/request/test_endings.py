"""Cancel and close: memory comes back, from whatever stage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.request import open_request_service
from tests.request.conftest import PROMPTS
from tests.request.world import World

Worlds = Callable[..., World]


def long_request(key: int) -> CompletionRequest:
    return CompletionRequest(PROMPTS[key], max_tokens=60, temperature=0, ignore_eos=True)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 16, 17, 18, 19, 30])
def test_cancel_at_any_stage_gives_all_memory_back_and_answers_nothing(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=24)
    service = world.open(prefill_chunk_tokens=4)
    for key in range(4):
        service.submit(key, long_request(key))
    for _ in range(steps):
        service.step()
    for key in range(4):
        service.cancel(key)
    service.step()
    assert world.free_bytes == world.device.audit().capacity_bytes
    assert service.said() == []
    assert not service.step()


def test_cancel_of_one_leaves_the_others_texts_alone(worlds: Worlds) -> None:
    world = worlds(granules=60)
    alone = world.run(world.open(), {1: long_request(1)})
    service = world.open()
    for key in range(3):
        service.submit(key, long_request(key))
    for _ in range(10):
        service.step()
    service.cancel(0)
    service.cancel(2)
    service.cancel(99)
    assert world.finish([service])[0] == alone


def test_a_cancelled_request_that_waits_lets_the_next_one_in(worlds: Worlds) -> None:
    world = worlds(granules=24)
    service = world.open(max_num_seqs=1)
    service.submit(0, long_request(0))
    service.submit(1, long_request(1))
    service.step()
    service.cancel(0)
    assert set(world.finish([service])[0]) == {1}


@pytest.mark.parametrize("steps", [0, 1, 4, 18, 25])
def test_close_in_the_middle_leaves_the_session_clean(worlds: Worlds, steps: int) -> None:
    world = worlds(granules=24)
    service = world.open()
    for key in range(4):
        service.submit(key, long_request(key))
    for _ in range(steps):
        service.step()
    service.close()
    assert world.free_bytes == world.device.audit().capacity_bytes
    assert (service.statistics().waiting, service.statistics().running) == (0, 0)


class Broken(Exception):
    pass


def test_an_error_of_the_model_comes_out_of_step_and_close_still_frees_all(model: Model, tokenizer: Tokenizer) -> None:
    class BreaksDown:
        steps = 0

        def __getattr__(self, name: str) -> object:
            return getattr(model, name)

        def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
            self.steps += 1
            if self.steps == 18:
                raise Broken
            return model.forward(slices)

    world = World(BreaksDown(), tokenizer, granules=60)  # type: ignore[arg-type]
    service = world.open()
    service.submit(0, long_request(0))
    with pytest.raises(Broken):
        world.finish([service])
    world.close()


def test_wait_ends_when_another_thread_submits(worlds: Worlds, model: Model, tokenizer: Tokenizer) -> None:
    world = worlds(granules=24)
    service = world.open()
    assert not service.step()
    other = threading.Thread(target=service.submit, args=(1, long_request(1)))
    other.start()
    service.wait(60)
    other.join()
    assert service.step()
    service.wait(60)  # something runs, so there is nothing to wait for


def test_wait_ends_when_a_refused_request_may_ask_again(worlds: Worlds) -> None:
    world = worlds(granules=10)
    first, second = world.open(), world.open()
    first.submit(0, replace(long_request(0), max_tokens=64))
    for _ in range(40):
        first.step()
    second.submit(1, replace(long_request(1), max_tokens=60))
    while second.step():
        pass
    assert second.statistics().waiting == 1
    world.clock.advance(30)
    second.wait(60)
    assert second.step()


def test_a_service_is_opened_without_asking_the_device_for_anything(
    worlds: Worlds, model: Model, tokenizer: Tokenizer
) -> None:
    world = worlds(granules=10)
    before = dict(world.device.driver.calls())
    service = open_request_service(model, tokenizer, world.device.open_port(), clock=world.clock)
    assert dict(world.device.driver.calls()) == before
    assert service.statistics().control_messages == 0
    service.close()
