"""How long one text may be on a device of some size: what an endpoint promises is what the device takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kvcluster.engine.model import Model, open_model
from kvcluster.engine.tokenizer import Tokenizer, open_tokenizer
from kvcluster.geometry.residency import Shape
from kvcluster.services.completion import Completion, Refused
from kvcluster.services.opening import most_tokens_in, most_tokens_of_pages
from kvcluster.services.request.settings import Fallback
from kvcluster.testing.models import make_model
from tests.request.asking import asked, prompt
from tests.request.world import GRANULE_BYTES, World

Worlds = Callable[..., World]
CHUNK_TOKENS = 32
LONGEST = 300


@pytest.fixture(scope="module")
def ringed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Tokenizer]:
    folder: Path = make_model(tmp_path_factory.mktemp("most") / "gemma3", "gemma3")
    return open_model(folder, dtype=torch.float32, threads=1), open_tokenizer(folder)


@pytest.fixture
def worlds_of(ringed: tuple[Model, Tokenizer]) -> Iterator[Worlds]:
    made: list[World] = []

    def make(granules: int, blocks: int = 0) -> World:
        made.append(World(*ringed, granules=granules, blocks=blocks))
        return made[-1]

    yield make
    for world in made:
        world.close()


def most_tokens(world: World) -> int:
    shape = Shape.of(world.model.geometry, world.layout, GRANULE_BYTES, chunk_tokens=CHUNK_TOKENS)
    return most_tokens_in(shape, world.granules * GRANULE_BYTES, at_most=LONGEST)


def answers(world: World, *total_tokens: int, **settings: Any) -> list[Any]:
    service = world.open(prefill_chunk_tokens=CHUNK_TOKENS, **settings)
    texts = {key: asked(prompt(key, total - 1), 1) for key, total in enumerate(total_tokens)}
    results = world.run(service, texts)
    return [results[key] for key in texts]


@pytest.mark.parametrize("granules", range(1, 34))
def test_the_longest_text_that_is_promised_is_served_and_one_token_more_is_refused(
    worlds_of: Worlds, granules: int
) -> None:
    world = worlds_of(granules)
    most = most_tokens(world)
    if most:
        assert isinstance(answers(world, max(2, most))[0], Completion)
    if most < LONGEST:
        [refused] = answers(world, max(2, most + 1))
        assert isinstance(refused, Refused)
        assert (refused.status_code, refused.code) == (400, "context_length_exceeded")
        assert refused.free_bytes == granules * GRANULE_BYTES
        assert refused.need_bytes is not None
        assert refused.need_bytes > refused.free_bytes


def test_where_host_pages_take_what_never_fits_a_device_they_decide(worlds_of: Worlds) -> None:
    world = worlds_of(6, 20)
    assert world.pages
    port = world.pages.open_port()
    most = most_tokens_of_pages(port.welcome, port.welcome.capacity_bytes)
    assert most == 20 * world.block_size > most_tokens(world)
    port.close()
    assert isinstance(answers(world, most, fallback=Fallback.HOST)[0], Completion)
    [refused] = answers(world, most + 1, fallback=Fallback.HOST)
    assert isinstance(refused, Refused)
    assert (refused.status_code, refused.code) == (400, "context_length_exceeded")


def test_a_device_without_room_for_the_model_s_windows_takes_no_text(worlds_of: Worlds) -> None:
    """They may be kept at a boundary that another text begins at: as many granules are the least, and are enough."""
    promised = [most_tokens(worlds_of(granules)) for granules in range(1, 12)]
    assert promised[0] == 0
    assert promised == sorted(promised)
    least = next(granules for granules, most in enumerate(promised, 1) if most)
    assert isinstance(answers(worlds_of(least), 2)[0], Completion)
