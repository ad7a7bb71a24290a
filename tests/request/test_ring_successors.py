"""A worker dies whose model has sliding windows: what a ring has is gone on with while the window in it is whole.

A step of which nothing is read is not noted where the device may be at work on it yet, as a GPU is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model, open_model
from kvcluster.engine.tokenizer import Tokenizer, open_tokenizer
from kvcluster.services.completion import Completion
from kvcluster.testing.models import make_model
from tests.request.asking import asked, prompt
from tests.request.mortal import Mortal
from tests.request.world import World

LONG = {0: asked(prompt(1, 8), 2), 1: asked(prompt(2, 160), 6)}  # the first one's tokens make the loop note twice
CHUNK = {"prefill_chunk_tokens": 16, "prefix_cache": False}


class Killed(BaseException):
    """Nobody's to catch."""


class Computing:
    """A model that is killed in the last of so many steps. Where it may run ahead they are noted as a GPU's are."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.may_run_ahead = False
        self.steps_left = -1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        logits = self._model.forward(slices)
        self.steps_left -= 1
        if self.steps_left == 0:
            raise Killed
        return logits


@pytest.fixture(scope="module")
def ringed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Tokenizer]:
    folder = make_model(tmp_path_factory.mktemp("rings") / "gemma3", "gemma3")
    return open_model(folder, dtype=torch.float32, threads=1), open_tokenizer(folder)


@pytest.fixture
def sliding(ringed: tuple[Model, Tokenizer]) -> Iterator[World]:
    """Of a model with windows of 12 tokens, in rings of 32."""
    made = World(Computing(ringed[0]), ringed[1], granules=512, grace_s=60.0)  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(ringed: tuple[Model, Tokenizer]) -> dict[int, list[str]]:
    """What one says who is not disturbed."""
    world = World(*ringed, granules=512)
    worker = Mortal(world, **CHUNK)
    worker.submit(LONG)
    said = texts(worker.finish())
    worker.close()
    world.close()
    return said


def texts(results: dict[int, Completion]) -> dict[int, list[str]]:
    return {key: [choice.text for choice in result.choices] for key, result in results.items()}


ADOPTIONS = {
    "as on a GPU": (0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 1),
    "as on a CPU": (0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1),
}
"""How many texts of the two are adopted, by the step, from the first on, that one is killed in before it was noted."""


@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("where", ADOPTIONS)
def test_what_rings_have_of_a_text_is_adopted_while_the_window_before_its_noted_end_is_whole(
    sliding: World, expected: dict[int, list[str]], *, where: str, steps: int
) -> None:
    """Killed between a step and its note. As on a GPU, of the long prompt's ten chunks the first two and the last are
    noted; the fourth goes over rows that the second one's note counts on, and with the last the note is true again."""
    model: Any = sliding.model
    model.may_run_ahead, model.steps_left = where == "as on a GPU", steps
    dead = Mortal(sliding, **CHUNK)
    dead.submit(LONG)
    with pytest.raises(Killed):
        dead.step(steps)
    assert adopted(sliding, dead, expected) == ADOPTIONS[where][steps - 1]


@pytest.mark.parametrize("steps", range(1, 12))
@pytest.mark.parametrize("ahead", [True, False], ids=["as on a GPU", "as on a CPU"])
def test_who_dies_between_two_steps_is_succeeded_with_the_same_texts(
    sliding: World, expected: dict[int, list[str]], *, ahead: bool, steps: int
) -> None:
    model: Any = sliding.model
    model.may_run_ahead = ahead
    dead = Mortal(sliding, **CHUNK)
    dead.submit(LONG)
    dead.step(steps)
    adopted(sliding, dead, expected)


def adopted(world: World, dead: Mortal, expected: dict[int, list[str]]) -> int:
    """What a successor adopts of who dies now; it says what was expected."""
    dead.die()
    successor = Mortal(world, **CHUNK)
    successor.submit({key: replace(request, died_with=(dead.session,)) for key, request in LONG.items()})
    assert texts(successor.finish()) == expected
    successor.close()
    return successor.service.statistics().adoptions
