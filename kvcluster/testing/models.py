"""Small models with random weights, for tests and benchmarks: real folders, made in seconds, equal for equal seeds.

At the usual spread of initial weights (0.02) such a model repeats one or two tokens, and one whose head is tied to
its embedding repeats its last token, so that a broken cache would go unnoticed. With a head of its own and a spread
of 0.12 (hidden size 512) or 0.2 (64), 64 greedy tokens hold more than 30 distinct ones after every prompt. (A larger
spread magnifies rounding: at 0.3 one token of 512 differed in float32, and none in float64.) The tokenizer is a
byte-level BPE trained on Python's own documentation, so nothing is downloaded.
"""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

EOS, PAD = "<eos>", "<pad>"
WINDOW_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Family:
    """A model's shape; `extra` are configuration keywords that its type alone has."""

    model_type: str
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 128
    vocabulary: int = 512
    initializer_range: float = 0.2
    extra: dict[str, Any] = field(default_factory=dict)


FAMILIES = {
    "llama": Family("llama"),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", head_dim=24),
    "mistral": Family("mistral", extra={"sliding_window": WINDOW_TOKENS}),
    "gemma3": Family(
        "gemma3_text",
        layers=4,
        kv_heads=1,
        extra={
            "sliding_window": WINDOW_TOKENS,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "query_pre_attn_scalar": 16,
        },
    ),
    "llama_31m": Family(
        "llama",
        hidden=512,
        layers=8,
        heads=8,
        kv_heads=2,
        head_dim=64,
        feed_forward=1408,
        vocabulary=8192,
        initializer_range=0.12,
    ),
}
"""`llama_31m` is for benchmarks; its stride as token-major float32 is 8 KiB. The others are for tests."""


def make_model(folder: Path, family: str, *, seed: int = 1, **changes: Any) -> Path:
    """Write a model and its tokenizer into `folder`, which need not exist; the folder.

    `family` is a key of FAMILIES; `changes` replace fields of it, as in `kv_heads=4`.
    """
    shape = replace(FAMILIES[family], **changes)
    config = _config(shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _spread_biases(model, shape.initializer_range)
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=1)
    model.save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_tokenizer(shape.vocabulary)), eos_token=EOS, pad_token=PAD
    )
    tokenizer.save_pretrained(folder)
    return folder


def _config(shape: Family) -> Any:
    return AutoConfig.for_model(
        shape.model_type,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.feed_forward,
        vocab_size=shape.vocabulary,
        max_position_embeddings=8192,
        initializer_range=shape.initializer_range,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
        **shape.extra,
    )


def _spread_biases(model: torch.nn.Module, spread: float) -> None:
    """Biases start at zero, where a forgotten one would not show."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=spread)


@cache
def _trained_tokenizer(vocabulary: int) -> str:
    """A tokenizer of so many ids, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documentation(modules=40 if vocabulary <= 1024 else 400), trainer)
    return tokenizer.to_str()


def documentation(*, modules: int) -> Iterator[str]:
    """The docstrings of the standard library's first `modules` modules, by name."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:modules]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text
