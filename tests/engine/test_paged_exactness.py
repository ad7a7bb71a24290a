"""On host pages, too, greedy float32 text is that of generate(): in chunks, windows or not, by operators or torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from kvcluster import LocalDevice
from kvcluster.engine.model import Model
from kvcluster.paged.gather import gather_batched_paged_kv
from tests.engine.generated import drawn_prompts, greedy_ids
from tests.engine.on_device import Loop, Running
from tests.engine.on_pages import PagedRunning, greedy, pages_for, shuffled

FAMILIES = ("llama", "qwen3", "mistral", "gemma3")
NEW_TOKENS = 32
PROMPT_TOKENS = (1, 7, 8, 9, 40, 90)

ByFamily = Callable[[str], Any]


@cache
def prompts() -> list[list[int]]:
    return drawn_prompts(PROMPT_TOKENS, seed=11)


@pytest.fixture(scope="session")
def wanted(reference: ByFamily) -> ByFamily:
    return cache(lambda family: [greedy_ids(reference(family), p, new_tokens=NEW_TOKENS) for p in prompts()])


@pytest.mark.parametrize("run", [1, 16])
@pytest.mark.parametrize("chunk_tokens", [13, 4096])
@pytest.mark.parametrize("family", FAMILIES)
def test_shuffled_tables_get_the_tokens_of_generate(
    family: str,
    chunk_tokens: int,
    run: int,
    opened: ByFamily,
    wanted: ByFamily,
) -> None:
    model: Model = opened(family)
    with pages_for(model) as pool:
        tables = shuffled(pool, len(prompts()), run=run)
        sequences = [PagedRunning(model, pool, p, t) for p, t in zip(prompts(), tables, strict=True)]
        greedy(model, sequences, new_tokens=NEW_TOKENS, chunk_tokens=chunk_tokens)
        assert [sequence.new_ids for sequence in sequences] == wanted(family)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_sequences_in_ranges_and_in_pages_share_a_step(
    family: str, opened: ByFamily, wanted: ByFamily, device: LocalDevice
) -> None:
    model: Model = opened(family)
    in_range = Running(model, device, Loop(new_tokens=NEW_TOKENS), prompts()[4])
    with pages_for(model) as pool:
        [table] = shuffled(pool, 1, run=1)
        in_pages = PagedRunning(model, pool, prompts()[5], table)
        for _ in range(NEW_TOKENS):
            pieces = [in_range.next_slice(4096), in_pages.piece(4096)]
            chosen = model.forward(pieces).argmax(-1).tolist()
            in_range.computed, in_pages.held = pieces[0].stop, pieces[1].stop
            in_range.token_ids.append(chosen[0])
            in_pages.tokens.append(chosen[1])
        assert in_range.new_ids == wanted(family)[4]
        assert in_pages.new_ids == wanted(family)[5]


def test_one_wrong_row_of_k_changes_the_text(opened: ByFamily, wanted: ByFamily) -> None:
    model: Model = opened("llama")
    with pages_for(model) as pool:
        [table] = shuffled(pool, 1, run=16)
        running = PagedRunning(model, pool, prompts()[5], table)
        greedy(model, [running], new_tokens=4)
        pool.tensor[table[3], 0, :, :, 5] += 5.0
        greedy(model, [running], new_tokens=NEW_TOKENS)
        assert running.new_ids != wanted("llama")[5]


def test_rows_of_frozen_tokens_are_not_written(opened: ByFamily) -> None:
    model: Model = opened("llama")
    with pages_for(model) as pool:
        running = PagedRunning(model, pool, prompts()[4], [3, 5, 2, 9, 1, 0])
        greedy(model, [running], new_tokens=1)
        before = pool.tensor.clone()
        frozen = PagedRunning(model, pool, prompts()[4], [3, 5, 2, 9, 1, 0])
        object.__setattr__(frozen.views, "frozen", 40)
        frozen.held = 20
        greedy(model, [frozen], new_tokens=1)
        assert torch.equal(pool.tensor, before)
        assert frozen.new_ids == running.new_ids


def test_what_the_engine_wrote_is_what_a_gathered_batch_has(opened: ByFamily) -> None:
    model: Model = opened("qwen3")
    with pages_for(model) as pool:
        tables = shuffled(pool, 2, run=1)
        sequences = [PagedRunning(model, pool, prompts()[4], t) for t in tables]
        greedy(model, sequences, new_tokens=3)
        lengths = [sequence.held for sequence in sequences]
        k, v, mask = gather_batched_paged_kv(pool.tensor, 1, tables, lengths)
        assert mask.all()
        assert torch.equal(k[0], k[1])
        assert torch.equal(v[0], v[1])
        assert float(k.abs().max()) < 1e3
