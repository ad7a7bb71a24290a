"""What transformers' own generate() says to a prompt by itself: what every text of ours is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig


def drawn_prompts(lengths: Sequence[int], *, seed: int) -> list[list[int]]:
    """Prompts of these lengths for a vocabulary of 512, always the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(2, 512, (count,), generator=generator).tolist() for count in lengths]


def greedy_ids(model: Any, prompt: Sequence[int], *, new_tokens: int) -> list[int]:
    """The ids that follow the prompt."""
    settings = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, pad_token_id=1)
    ids = torch.tensor([prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    found: list[int] = output[0, len(prompt) :].tolist()
    return found
