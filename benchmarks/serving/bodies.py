"""Prompts of random token ids, no two alike, so that the prefix cache helps nobody unless it is meant to."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.serving.client import completion

FIRST_ID, IDS = 10, 500  # small models have 512 ids, of which the first are special


class Random:
    """Makes the next request's body: so many prompt tokens and so many generated ones."""

    def __init__(self, model: str, *, prompt_tokens: int, max_tokens: int, seed: int = 1, **more: Any) -> None:
        self._model, self._more = model, more
        self._prompt_tokens, self._max_tokens = prompt_tokens, max_tokens
        self._chance = random.Random(seed)

    def __call__(self) -> dict[str, Any]:
        prompt = [self._chance.randrange(FIRST_ID, IDS) for _ in range(self._prompt_tokens)]
        return completion(self._model, prompt, max_tokens=self._max_tokens, **self._more)
