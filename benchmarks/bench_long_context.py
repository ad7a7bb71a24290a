"""A decode step at batch 8 and context 4,096, beside transformers with DynamicCache, which copies the cache each step.

Both hold 8 sequences of 4,096 tokens of the 31 M Llama in float32; a round is some decode steps of each arm. K and V
are random: the time of a step does not depend on them.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

import kvcluster
from benchmarks.harness import interleaved, report, seconds, speed_ratios
from benchmarks.workload import THREADS, llama_31m
from kvcluster.engine.batch import Slice
from kvcluster.engine.model import Model, open_model
from kvcluster.services.sequence import SequenceMemory

BATCH, CONTEXT, STEPS = 8, 4096, 8


class Ours:
    """Sequences on a host device, decoded a token at a time at the same place."""

    def __init__(self, model: Model, memories: list[SequenceMemory]) -> None:
        self._model = model
        self._views = [memory.views(model.dtype) for memory in memories]

    def fill(self) -> None:
        for views in self._views:
            for tensor in (*views.k, *views.v):
                tensor.normal_(std=0.1)

    def steps(self) -> None:
        for number in range(STEPS):
            slices = [Slice(views, CONTEXT + number, [5], sample=True) for views in self._views]
            self._model.forward(slices)


class Dynamic:
    """The same with transformers' own cache, which is cut back to `CONTEXT` after each run."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache = DynamicCache()
        config = model.config
        shape = (BATCH, config.num_key_value_heads, CONTEXT, config.head_dim)
        for layer in range(config.num_hidden_layers):
            self._cache.update(0.1 * torch.randn(shape), 0.1 * torch.randn(shape), layer)

    def steps(self) -> None:
        token_ids = torch.full((BATCH, 1), 5)
        for number in range(STEPS):
            positions = torch.full((BATCH, 1), CONTEXT + number)
            self._model(token_ids, cache=self._cache, position_ids=positions, use_cache=True)
        self._cache.crop(-STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    subject = llama_31m()
    model = open_model(subject.folder, dtype=torch.float32, threads=THREADS)
    theirs = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=torch.float32, local_files_only=True)
    with kvcluster.open_device("host", memory="384MiB") as device, torch.inference_mode():
        memories = [device.open(model.geometry, max_tokens=CONTEXT + STEPS) for _ in range(BATCH)]
        for memory in memories:
            memory.commit(CONTEXT + STEPS, memory.grant(CONTEXT + STEPS))
        ours, dynamic = Ours(model, memories), Dynamic(theirs.eval())
        ours.fill()
        for warm_up in (ours.steps, dynamic.steps):
            warm_up()
        timings = interleaved({"kvcluster": ours.steps, "DynamicCache": dynamic.steps}, rounds=rounds)
        for memory in memories:
            memory.close()
        device.audit()
    report(
        "long_context",
        speed_ratios(timings, "kvcluster"),
        batch=BATCH,
        context_tokens=CONTEXT,
        steps=STEPS,
        rounds=rounds,
        median_seconds=seconds(timings),
    )


if __name__ == "__main__":
    main()
