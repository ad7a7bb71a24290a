"""What `generate()` says with a KVCache is, token for token, what it says with DynamicCache. Greedy float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DynamicCache, set_seed

from kvcluster import KVCache, LocalDevice

FAMILIES = ("llama", "qwen3", "gemma3")  # the last has layers with a window of 12 tokens
MOST = 128
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.3},
    "beams": {"do_sample": False, "num_beams": 3},
    "assisted": {"do_sample": False, "prompt_lookup_num_tokens": 4},
    "in chunks": {"do_sample": False, "prefill_chunk_size": 7},
    "several answers": {"do_sample": True, "num_return_sequences": 2},
}


def prompts(rows: int, tokens: int = 40) -> dict[str, torch.Tensor]:
    """Of unequal length, padded on the left; the last repeats itself."""
    ids = torch.randint(2, 500, (rows, tokens), generator=torch.Generator().manual_seed(1))
    ids[-1] = ids[-1, :8].repeat(tokens // 8)
    mask = torch.ones_like(ids)
    for row in range(rows - 1):
        mask[row, : 5 * (row + 1)] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 1), "attention_mask": mask}


def said(model: Any, cache: Any, prompt: dict[str, torch.Tensor], **way: Any) -> list[list[int]]:
    set_seed(7)
    ids: torch.Tensor = model.generate(**prompt, max_new_tokens=24, cache=cache, **way)
    return ids.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_it_says_what_a_dynamic_cache_says(
    model_of: Callable[[str], Any], device: LocalDevice, family: str, way: str
) -> None:
    model, prompt = model_of(family), prompts(1 if way == "assisted" else 3)
    wanted = said(model, DynamicCache(config=model.config), prompt, **WAYS[way])
    with KVCache(device, model.config, max_tokens=MOST, batch=9) as cache:
        assert said(model, cache, prompt, **WAYS[way]) == wanted
        assert cache.committed_bytes == device.audit().committed_bytes > 0
    assert device.audit().committed_bytes == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_goes_on_with_the_same_cache(model_of: Callable[[str], Any], device: LocalDevice, family: str) -> None:
    model, prompt, more = model_of(family), prompts(1), prompts(1, tokens=8)["input_ids"]

    def chat(cache: Any) -> list[list[int]]:
        first = torch.tensor(said(model, cache, prompt, do_sample=False))
        return said(model, cache, {"input_ids": torch.cat((first, more), dim=1)}, do_sample=False)

    with KVCache(device, model.config, max_tokens=MOST) as cache:
        before = cache.address
        assert chat(cache) == chat(DynamicCache(config=model.config))
        assert cache.address == before


def test_a_cache_that_was_reset_says_the_same_again(model_of: Callable[[str], Any], device: LocalDevice) -> None:
    model, prompt = model_of("gemma3"), prompts(2)
    with KVCache(device, model.config, max_tokens=MOST, batch=3) as cache:
        first = said(model, cache, prompt, do_sample=False)
        cache.reset()
        assert device.audit().committed_bytes == 0
        assert said(model, cache, prompt, do_sample=False) == first


def test_the_older_name_of_the_argument_works_with_a_warning(
    model_of: Callable[[str], Any], device: LocalDevice
) -> None:
    model, prompt = model_of("llama"), prompts(1)
    with KVCache(device, model.config, max_tokens=MOST) as cache:
        with pytest.warns(FutureWarning, match="Use `cache` instead"):
            ids = model.generate(**prompt, max_new_tokens=8, do_sample=False, past_key_values=cache)
        assert cache.get_seq_length() == ids.shape[1] - 1
