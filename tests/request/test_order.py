"""Who is admitted when, and who is computed when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.services.completion import CompletionRequest
from tests.request.conftest import PROMPTS
from tests.request.world import World

Worlds = Callable[..., World]


class Watched:
    """A model that remembers how many tokens of how many sequences each step had."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.steps: list[list[int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        self.steps.append([len(piece.token_ids) for piece in slices])
        return self._model.forward(slices)


def request(prompt_tokens: int, max_tokens: int, token: int = 5) -> CompletionRequest:
    return CompletionRequest((token,) * prompt_tokens, max_tokens=max_tokens, temperature=0, ignore_eos=True)


def test_a_step_has_decode_rows_first_then_chunks_by_age_and_never_too_many_tokens(
    model: Model, tokenizer: Tokenizer
) -> None:
    watched = Watched(model)
    world = World(watched, tokenizer, granules=200)  # type: ignore[arg-type]
    service = world.open(max_num_batched_tokens=20, prefill_chunk_tokens=12)
    service.submit(1, request(5, 30))
    service.step()
    service.submit(2, request(30, 3, token=6))
    service.submit(3, request(30, 3, token=7))
    world.finish([service])
    assert watched.steps[0] == [5]
    first = next(step for step in watched.steps if len(step) == 3)
    assert first == [1, 12, 7]
    assert max(sum(step) for step in watched.steps) <= 20
    world.close()


def test_no_more_sequences_run_than_max_num_seqs(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open(max_num_seqs=3, max_num_batched_tokens=64)
    for key in range(8):
        service.submit(key, request(8, 10 + key))
    most = 0
    while service.step():
        most = max(most, service.statistics().running)
    assert most == 3
    assert [key for key, _ in service.said()] == list(range(8))


def test_a_refused_admission_stops_neither_those_that_run_nor_its_own_turn(worlds: Worlds) -> None:
    world = worlds(granules=12)
    service = world.open()
    service.submit(0, request(8, 40))
    service.step()
    service.submit(1, request(60, 20))  # refused while the first one runs
    service.submit(2, request(8, 20))
    service.step()
    steps = service.statistics().steps
    for _ in range(5):
        assert service.step()
    assert service.statistics().steps == steps + 5
    assert service.statistics().refusals > 0
    results = world.finish([service])[0]
    assert set(results) == {0, 1, 2}


def test_a_request_refused_first_is_admitted_before_younger_ones_of_its_size(worlds: Worlds) -> None:
    world = worlds(granules=12)
    service = world.open()
    service.submit(0, request(50, 20))
    service.step()
    for key in range(1, 5):
        service.submit(key, request(50, 4 + key))
    for _ in range(400):
        service.step()
        world.clock.advance(0.05)
    assert [key for key, _ in service.said()] == [0, 1, 2, 3, 4]


def test_memory_that_came_back_is_asked_for_at_once(worlds: Worlds) -> None:
    world = worlds(granules=10)
    service = world.open()
    service.submit(0, request(50, 10))
    service.step()
    service.submit(1, request(50, 10))
    while service.step():  # the clock stands still: no retry is ever due
        pass
    assert service.statistics().refusals > 0
    assert {key for key, _ in service.said()} == {0, 1}


def test_the_figures_are_those_of_what_was_done(worlds: Worlds) -> None:
    world = worlds(granules=200)
    service = world.open()
    world.run(service, {0: request(8, 40), 1: request(20, 30, token=6), 2: CompletionRequest("")})
    seen = service.statistics()
    assert seen.requests_done == 3
    assert seen.generated_tokens == 70
    assert seen.steps == 40
    assert seen.preemptions == seen.refusals == 0
    assert seen.steps_that_grew > 0
    assert seen.control_messages % 2 == 0
    assert seen.redemptions <= seen.control_messages // 2
    assert seen.live_byte_steps == 512 * (sum(range(8, 48)) + sum(range(20, 50)))
    assert seen.peak_live_bytes <= seen.peak_committed_bytes <= seen.peak_reserved_bytes == (6 + 7) * 4096
    assert 1 < seen.committed_per_live < 2
    assert seen.driver_calls == sum(world.device.driver.calls().values())
    assert (seen.waiting, seen.running) == (0, 0)


def test_prompts_of_the_test_differ() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS)
