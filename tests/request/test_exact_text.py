from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
import torch

from kvcluster.engine.model import open_model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.layout import Layout
from kvcluster.services.completion import Completion, CompletionRequest, answers_among
from kvcluster.testing.models import make_model
from tests.request.conftest import PROMPTS
from tests.request.world import Results, World

Worlds = Callable[..., World]
Greedy = Callable[[tuple[int, ...], int], list[int]]
TOKENS = 24


def requests(count: int = 8) -> dict[int, CompletionRequest]:
    return {i: CompletionRequest(PROMPTS[i], max_tokens=TOKENS, temperature=0, ignore_eos=True) for i in range(count)}


@pytest.fixture
def wanted(greedy: Greedy, tokenizer: Tokenizer) -> Results:
    """What generate() says to each of the prompts."""
    return {
        i: Completion(tokenizer.decode(greedy(prompt, TOKENS)), "length", len(prompt), TOKENS)
        for i, prompt in enumerate(PROMPTS)
    }


@pytest.mark.parametrize("layout", Layout)
def test_eight_prompts_at_once_get_the_texts_of_generate(worlds: Worlds, wanted: Results, layout: Layout) -> None:
    world = worlds(granules=400, layout=layout)
    assert world.run(world.open(), requests()) == wanted


def test_arriving_at_different_steps_changes_no_text(worlds: Worlds, wanted: Results) -> None:
    world = worlds(granules=400)
    service = world.open()
    results: Results = {}
    for steps, (key, request) in zip(cycle((1, 3, 7)), requests().items(), strict=False):
        service.submit(key, request)
        for _ in range(steps):
            service.step()
        results.update(answers_among(service.said()))
    assert results | world.finish([service])[0] == wanted


@pytest.mark.parametrize("chunk", [1, 5, 256])
def test_chunks_and_small_steps_change_no_text(worlds: Worlds, wanted: Results, chunk: int) -> None:
    world = worlds(granules=400)
    service = world.open(prefill_chunk_tokens=chunk, max_num_batched_tokens=11, max_num_seqs=5)
    assert world.run(service, requests()) == wanted


@pytest.mark.parametrize(("layout", "granules"), [(Layout.TOKEN_MAJOR, 10), (Layout.SEQ_MAJOR, 20)])
def test_preemption_changes_no_text(
    worlds: Worlds, greedy: Greedy, tokenizer: Tokenizer, layout: Layout, granules: int
) -> None:
    world = worlds(granules=granules, layout=layout)
    service = world.open()
    asked = {i: CompletionRequest(PROMPTS[i], max_tokens=45, temperature=0, ignore_eos=True) for i in range(4)}
    results = world.run(service, asked)
    assert service.statistics().preemptions > 0
    assert [results[i].text for i in range(4)] == [tokenizer.decode(greedy(PROMPTS[i], 45)) for i in range(4)]


def test_a_margin_of_one_token_changes_no_text(worlds: Worlds, wanted: Results) -> None:
    world = worlds(granules=30)
    assert world.run(world.open(margin_steps=1), requests()) == wanted


def test_a_granule_that_holds_no_whole_token_changes_no_text(
    tmp_path: Path, tokenizer: Tokenizer, wanted: Results
) -> None:
    folder = make_model(tmp_path / "wide", "llama", layers=3, kv_heads=4, head_dim=48)  # 4,608 bytes a token
    wide = open_model(folder, dtype=torch.float32, threads=1)
    roomy, short = World(wide, tokenizer, granules=2000), World(wide, tokenizer, granules=100)
    assert wide.geometry.token_bytes == 4608
    assert roomy.run(roomy.open(), requests()) == short.run(short.open(), requests())
    assert short.services[0].statistics().preemptions > 0
    roomy.close()
    short.close()
