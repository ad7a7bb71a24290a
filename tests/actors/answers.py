"""What the tests ask of the tiny Llama, and what transformers itself answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from kvcluster.engine.tokenizer import open_tokenizer
from kvcluster.services.completion import CompletionRequest

PROMPTS = tuple(tuple(2 + (7 * i + 13 * j + j * j * i) % 500 for j in range(8 + 3 * i)) for i in range(6))
LENGTHS = (72, 40, 64, 56, 25, 48)


def requests() -> list[tuple[int, CompletionRequest]]:
    """Each prompt under its place."""
    return [
        (place, CompletionRequest(prompt, max_tokens=length, temperature=0, ignore_eos=True))
        for place, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


def generated_texts(folder: Path) -> list[str]:
    """generate()'s greedy text for each prompt by itself, in float32; it knows no end."""
    logging.disable_progress_bar()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    tokenizer = open_tokenizer(folder)
    texts = []
    for prompt, length in zip(PROMPTS, LENGTHS, strict=True):
        ids = torch.tensor([prompt])
        said = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=length)
        texts.append(tokenizer.decode(said[0, len(prompt) :].tolist()))
    return texts
