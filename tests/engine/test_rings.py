"""Sliding layers read from rings that go round many times: in float32 the tokens are still those of generate()."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from kvcluster import Layout, LocalDevice
from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.testing.models import WINDOW_TOKENS
from tests.engine.on_device import GRANULE_BYTES, Arrival, Loop, Running, take_step

NEW_TOKENS = 30
PROMPT_TOKENS = 90

ByFamily = Callable[[str], Any]
OTHERS = (Layout.SEQ_MAJOR, Layout.HEAD_MAJOR)
families = pytest.mark.parametrize("family", ["mistral", "gemma3"])  # all layers slide, and some


@cache
def prompt() -> list[int]:
    return torch.randint(2, 512, (PROMPT_TOKENS,), generator=torch.Generator().manual_seed(11)).tolist()


@pytest.fixture(scope="session")
def wanted(reference: ByFamily) -> ByFamily:
    """What generate() says after the prompt."""
    settings = GenerationConfig(do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=1)

    def generated(family: str) -> list[int]:
        ids = torch.tensor([prompt()])
        output = reference(family).generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        return output[0, PROMPT_TOKENS:].tolist()

    return cache(generated)


def laps(running: Running) -> float:
    """How often the sequence has gone round its shortest ring."""
    range_map = running.kv.memory.range.range_map
    return max(
        running.computed * group.stride_bytes / range_map.ring_bytes(number)
        for number, group in enumerate(range_map.shape.groups)
        if range_map.copies(number) == 2
    )


@families
@pytest.mark.parametrize(
    ("layout", "chunk_tokens"),
    [*((Layout.TOKEN_MAJOR, chunk_tokens) for chunk_tokens in range(1, 13)), *product(OTHERS, (2, 5, 12))],
)
def test_any_chunk_gets_the_tokens_of_generate_over_many_laps(
    family: str, layout: Layout, chunk_tokens: int, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    loop = Loop(layout, NEW_TOKENS, chunk_tokens)
    [running] = loop.run(opened(family), device, [Arrival(prompt())])
    assert running.new_ids == wanted(family)
    assert laps(running) > (3 if layout is Layout.TOKEN_MAJOR else 1)


@families
def test_neighbours_in_the_batch_have_rings_of_their_own(
    family: str, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    arrivals = [Arrival(prompt(), step=2 * number) for number in range(4)]
    sequences = Loop(Layout.TOKEN_MAJOR, NEW_TOKENS, 5).run(opened(family), device, arrivals)
    assert [running.new_ids for running in sequences] == [wanted(family)] * 4


def test_nothing_is_committed_or_called_after_the_first_lap(opened: ByFamily, device: LocalDevice) -> None:
    model: Model = opened("mistral")
    running = Running(model, device, Loop(Layout.TOKEN_MAJOR, 300, 4), prompt())
    while running.kv.memory.committed_bytes < running.kv.memory.range.range_map.ring_bytes(0):
        take_step(model, [running], 4)
    committed, calls = running.kv.memory.committed_bytes, dict(device.port.driver.calls())
    while len(running.new_ids) < 300:
        take_step(model, [running], 4)
    assert laps(running) > 10
    assert (running.kv.memory.committed_bytes, dict(device.port.driver.calls())) == (committed, calls)
    assert running.kv.memory.committed_bytes == 2 * GRANULE_BYTES


@families
def test_one_wrong_row_of_a_ring_changes_the_text(
    family: str, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    model: Model = opened(family)
    running = Running(model, device, Loop(Layout.TOKEN_MAJOR, NEW_TOKENS, 7), prompt())
    while running.computed < PROMPT_TOKENS:
        take_step(model, [running], 7)
    [ring] = [group for group in running.kv.views(1).groups if group.window_tokens]
    ring.narrowed(running.computed - 2, running.computed - 1).block[0, 0] *= -8  # the key of one token in one layer
    while len(running.new_ids) < NEW_TOKENS:
        take_step(model, [running], 7)
    assert running.new_ids != wanted(family)


@families
def test_a_row_that_the_window_has_left_changes_nothing(
    family: str, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    model: Model = opened(family)
    running = Running(model, device, Loop(Layout.TOKEN_MAJOR, NEW_TOKENS, 7), prompt())
    while running.computed < PROMPT_TOKENS:
        take_step(model, [running], 7)
    [ring] = [group for group in running.kv.views(1).groups if group.window_tokens]
    left = running.computed - WINDOW_TOKENS
    ring.narrowed(left, left + 1).block[:] = float("nan")
    while len(running.new_ids) < NEW_TOKENS:
        take_step(model, [running], 7)
    assert running.new_ids == wanted(family)


def test_more_new_tokens_than_a_ring_is_made_for_are_refused_with_the_figures(
    opened: ByFamily, device: LocalDevice
) -> None:
    running = Running(opened("mistral"), device, Loop(Layout.TOKEN_MAJOR, NEW_TOKENS, 4), prompt())
    views = running.kv.views(40)
    assert Slice(views, 20, prompt()[20:25], True).stop == 25  # 12 - 1 and 5 tokens are a ring of 16 of them
    with pytest.raises(ValueError, match=r"tokens 9 to 26 .* holds 16 tokens, not 17"):
        Slice(views, 20, prompt()[20:26], True)
