"""What generate() says after many prompts: those of one length at a time, so that nothing is padded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig


class Reference:
    """A model as transformers runs it by itself, in float32; its texts have no end. What it said is remembered."""

    def __init__(self, folder: Path, new_tokens: int) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None
        self._settings = GenerationConfig(do_sample=False, max_new_tokens=new_tokens, pad_token_id=1)
        self._said: dict[tuple[int, ...], list[int]] = {}

    def said(self, prompts: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
        """The continuation of each prompt, and of all before them."""
        new = sorted(set(prompts) - set(self._said), key=len)
        for count, same in groupby(new, key=len):
            rows = list(same)
            ids = torch.tensor(rows)
            output = self._model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=self._settings)
            self._said.update(zip(rows, output[:, count:].tolist(), strict=True))
        return self._said
