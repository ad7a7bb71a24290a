"""What the tests of the loop ask: prompts that differ, requests of fixed length, and a model that counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model
from kvcluster.services.completion import Completion, CompletionRequest
from kvcluster.services.request import RequestService
from tests.request.world import World

GRANULE_TOKENS = 8
TOKENS = 12
BEAM_TOKENS = 14


def prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(2 + (seed * 31 + 17 * j + j * j * (seed + 1)) % 500 for j in range(length))


def asked(ids: tuple[int, ...], max_tokens: int = TOKENS, **more: object) -> CompletionRequest:
    return CompletionRequest(ids, **{"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more})  # type: ignore[arg-type]


def joined(common: int, length: int) -> int:
    """What a prompt of so many tokens joins of a common beginning: whole granules, and never its last token."""
    return min(common // GRANULE_TOKENS * GRANULE_TOKENS, length - 1)


def answer(world: World, service: RequestService, request: CompletionRequest) -> Completion:
    [result] = world.run(service, {1: request}).values()
    assert isinstance(result, Completion)
    return result


class Counting:
    """A model that counts the tokens that it computes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.tokens = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)

    def forward(self, slices: Sequence[Slice]) -> torch.Tensor:
        self.tokens += sum(len(piece.token_ids) for piece in slices)
        return self._model.forward(slices)


def wide(ids: tuple[int, ...], width: int, **more: Any) -> CompletionRequest:
    request: dict[str, Any] = {
        "max_tokens": BEAM_TOKENS,
        "ignore_eos": True,
        "use_beam_search": True,
        "n": width,
        **more,
    }
    return CompletionRequest(ids, **request)


def texts(completion: object) -> list[str]:
    assert isinstance(completion, Completion)
    return [choice.text for choice in completion.choices]
