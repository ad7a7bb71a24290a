"""How many messages and how much slack the margin policy costs, for the 31 M Llama's shape.

The policy never sees a K or a V, so the model here only says random tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.completion import CompletionRequest
from kvcluster.services.request import RequestStatistics
from kvcluster.units import KIB
from tests.request.world import World

LLAMA_31M = KvGeometry.uniform(layers=8, kv_heads=2, head_dim=64, element_bytes=4)


@dataclass
class RandomTokens:
    """Says random tokens, in a memory of the 31 M Llama's shape: 8 KiB a token."""

    geometry: KvGeometry = LLAMA_31M
    dtype: torch.dtype = torch.float32
    context_tokens: int = 8192
    vocabulary: int = 512
    eos_ids: frozenset[int] = frozenset()
    fingerprint: str = "says random tokens"
    may_run_ahead: bool = False
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        return torch.rand((sum(piece.sample for piece in slices), self.vocabulary), generator=self.generator)


@pytest.fixture
def world(tokenizer: Tokenizer) -> Iterator[World]:
    made = World(RandomTokens(), tokenizer, granules=2048, granule_bytes=64 * KIB)  # type: ignore[arg-type]
    yield made
    made.close()


def served(world: World, prompt_tokens: Sequence[int], max_tokens: int, steps_between: int = 0) -> RequestStatistics:
    service = world.open(max_num_seqs=8)
    for key, length in enumerate(prompt_tokens):
        service.submit(key, CompletionRequest((100 + key, *range(3, 2 + length)), max_tokens=max_tokens, temperature=0))
        for _ in range(steps_between):
            service.step()
    world.finish([service])
    return service.statistics()


@pytest.mark.parametrize("prompt_tokens", [[8] * 8, list(range(8, 16)), [8, 30, 77, 150, 9, 41, 100, 12]])
def test_eight_short_texts_are_quiet_and_lean(world: World, prompt_tokens: list[int]) -> None:
    statistics = served(world, prompt_tokens, 128)
    assert statistics.generated_tokens == 8 * 128
    assert statistics.messages_per_token <= 0.05
    assert 1 <= statistics.committed_per_live <= 1.15


@pytest.mark.parametrize("prompt_tokens", [[8] * 8, list(range(8, 16))])
def test_long_texts_commit_hardly_more_than_they_hold(world: World, prompt_tokens: list[int]) -> None:
    statistics = served(world, prompt_tokens, 1000)
    assert statistics.messages_per_token <= 0.05
    assert 1 <= statistics.committed_per_live <= 1.03


def test_a_steady_stream_is_quiet_whenever_its_texts_begin_and_end(world: World) -> None:
    statistics = served(world, [8 + 5 * (i % 7) for i in range(40)], 128, steps_between=3)
    assert statistics.messages_per_token <= 0.05
    assert statistics.committed_per_live <= 1.15


def test_a_step_that_grows_nothing_calls_no_driver(world: World) -> None:
    service = world.open(max_num_seqs=8)
    for key in range(4):
        service.submit(key, CompletionRequest((5, 6, 7), max_tokens=200, temperature=0, ignore_eos=True))
    service.step()
    quiet = 0
    while service.statistics().running == 4:
        before, calls = service.statistics(), dict(world.device.driver.calls())
        service.step()
        if service.statistics().control_messages == before.control_messages:
            quiet += 1
            assert dict(world.device.driver.calls()) == calls
    assert quiet > 150
