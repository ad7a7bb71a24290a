"""A model twice: as the engine runs it and as transformers does; and what the latter's generate() says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from kvcluster import Layout
from kvcluster.engine.model import Model
from kvcluster.engine.tokenizer import Tokenizer
from kvcluster.geometry.residency import CHUNK_TOKENS, Shape
from kvcluster.services.completion import Completion, CompletionRequest
from tests.request.world import GRANULE_BYTES, Results

Prompt = tuple[int, ...]
Prompts = Sequence[Prompt]


class Subject:
    """One model, opened twice with the same weights in float32. `continued`: what generate() says after a prompt."""

    def __init__(self, model: Model, tokenizer: Tokenizer, reference: Any) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self._reference = reference
        self.continued = cache(self._generate)

    def wanted(self, prompts: Prompts, new_tokens: int) -> Results:
        """What generate() continues each prompt with, one at a time, as an answer to it."""
        return {
            key: Completion(
                self.tokenizer.decode(self.continued(prompt, new_tokens)), "length", len(prompt), new_tokens
            )
            for key, prompt in enumerate(prompts)
        }

    def shape(self, layout: Layout, granule_bytes: int = GRANULE_BYTES, *, chunk_tokens: int = CHUNK_TOKENS) -> Shape:
        return Shape.of(self.model.geometry, layout, granule_bytes, chunk_tokens=chunk_tokens)

    def _generate(self, prompt: Prompt, new_tokens: int) -> list[int]:
        ids = torch.tensor([prompt])
        said = self._reference.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=1
        )
        tokens: list[int] = said[0, len(prompt) :].tolist()
        return tokens


def greedy(prompts: Prompts, new_tokens: int) -> dict[int, CompletionRequest]:
    """The prompts as requests of so many tokens, the most likely each time."""
    return {
        key: CompletionRequest(prompt, max_tokens=new_tokens, temperature=0, ignore_eos=True)
        for key, prompt in enumerate(prompts)
    }
