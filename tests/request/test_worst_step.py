"""The step that a worker computes before its first request: as full as any, and without a trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.worst_step import MOST_S, prompt_lengths, run_worst_step
from tests.request.world import World


@pytest.mark.parametrize(
    ("batched", "chunk", "seqs", "context", "lengths"),
    [
        (512, 256, 16, 4096, [256, 256]),
        (512, 512, 16, 4096, [512]),
        (500, 256, 16, 4096, [256, 244]),
        (64, 256, 16, 4096, [64]),
        (512, 256, 16, 129, [128, 128, 128, 128]),
        (512, 64, 3, 4096, [64, 64, 64]),
    ],
)
def test_the_prompts_fill_one_step_and_none_is_longer_than_a_chunk_or_the_model_allows(
    batched: int, chunk: int, seqs: int, context: int, lengths: list[int]
) -> None:
    settings = RequestSettings(max_num_batched_tokens=batched, prefill_chunk_tokens=chunk, max_num_seqs=seqs)
    assert prompt_lengths(settings, context) == lengths


def test_afterwards_the_device_has_had_a_full_step_and_has_all_of_it_back(worlds: Callable[..., World]) -> None:
    world = worlds(granules=64)
    settings = RequestSettings(max_num_batched_tokens=96, prefill_chunk_tokens=32)
    run_worst_step(world.model, world.tokenizer, world.device.open_port(), settings)
    figures = world.device.audit()
    assert figures.peak_committed_bytes >= 96 * world.model.geometry.token_bytes
    assert figures.free_bytes == figures.capacity_bytes
    assert figures.open_requests == 0


def test_on_a_device_too_small_for_such_a_step_it_ends_all_the_same(worlds: Callable[..., World]) -> None:
    world = worlds(granules=1)
    settings = RequestSettings(max_num_batched_tokens=96, prefill_chunk_tokens=32)
    run_worst_step(world.model, world.tokenizer, world.device.open_port(), settings)
    assert world.device.audit().open_requests == 0


class Ticking:
    """A second passes at each look at it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


def test_on_a_device_whose_memory_others_keep_it_ends_in_time_and_leaves_nothing(worlds: Callable[..., World]) -> None:
    world, clock = worlds(granules=8), Ticking()
    holder = world.device.open(world.model.geometry, max_tokens=64)
    holder.commit(64, holder.grant(64))
    settings = RequestSettings(max_num_batched_tokens=96, prefill_chunk_tokens=32)
    run_worst_step(world.model, world.tokenizer, world.device.open_port(), settings, clock=clock)
    assert clock.now_s >= MOST_S
    assert world.device.audit().open_requests == 1
    holder.close()
