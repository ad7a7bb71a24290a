"""The real model in float32: eight prompts, two of them beyond its window of 512 tokens, against generate().

One of them goes round the rings of its sliding layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from kvcluster import Layout
from kvcluster.engine.pretrained import GEMMA3_270M, model_folder
from kvcluster.testing.models import documentation
from kvcluster.units import KIB
from tests.exact.conftest import opened_by_both
from tests.exact.subject import Prompts, Subject, greedy
from tests.request.world import World

Worlds = Callable[..., World]

NEW_TOKENS = 6
PROMPT_TOKENS = (3, 8, 17, 29, 40, 90, 520, 600)
GRANULE_BYTES = 64 * KIB  # holds no whole number of its tokens of 36 KiB


@pytest.fixture(scope="module")
def gemma() -> Iterator[Subject]:
    """Converted into the user's cache first, where that was not done before."""
    threads = torch.get_num_threads()
    yield opened_by_both(model_folder(GEMMA3_270M), threads=2)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def prompts(gemma: Subject) -> Prompts:
    """Beginnings of a real text, each from another place."""
    ids = gemma.tokenizer.encode("\n\n".join(documentation(modules=8)))
    starts = [100 * number for number in range(len(PROMPT_TOKENS))]
    return [(ids[0], *ids[1 + at : at + count]) for at, count in zip(starts, PROMPT_TOKENS, strict=True)]


def granules(gemma: Subject, layout: Layout, tokens: int) -> int:
    return gemma.shape(layout, GRANULE_BYTES).committed_bytes(tokens) // GRANULE_BYTES


@pytest.mark.timeout(900)  # the first time it is converted, which takes a minute on two idle cores
@pytest.mark.parametrize(("layout", "chunk_tokens"), [(Layout.TOKEN_MAJOR, 64), (Layout.SEQ_MAJOR, 256)])
def test_eight_prompts_at_once_get_the_texts_of_generate(
    layout: Layout, chunk_tokens: int, gemma: Subject, prompts: Prompts, worlds: Worlds
) -> None:
    """With chunks of 64 tokens the rings hold 576, and one of the texts goes round them; with 256 none does."""
    room = sum(granules(gemma, layout, count + NEW_TOKENS + 16) for count in PROMPT_TOKENS)
    world = worlds(gemma, granules=room, granule_bytes=GRANULE_BYTES, layout=layout)
    service = world.open(prefill_chunk_tokens=chunk_tokens)
    assert world.run(service, greedy(prompts, NEW_TOKENS)) == gemma.wanted(prompts, NEW_TOKENS)
    assert service.statistics().preemptions == 0


@pytest.mark.timeout(900)
def test_the_texts_wanted_would_show_a_fault(gemma: Subject, prompts: Prompts) -> None:
    assert len({answer.text for answer in gemma.wanted(prompts, NEW_TOKENS).values()}) == len(prompts)
