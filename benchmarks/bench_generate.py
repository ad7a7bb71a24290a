"""Tokens a second: 8 prompts x 128 greedy tokens, beside what transformers offers on the same machine.

Arms: kvcluster (a request service on a host device in this process), generate() one prompt after another,
generate() on a padded batch, and transformers' continuous batching. Same model, same threads, end tokens ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.utils import logging

from benchmarks.harness import Ratio, interleaved, report, seconds, speed_ratios
from benchmarks.workload import THREADS, OurArm, Subject, gemma3_270m, llama_31m, open_our_arm, prompts

PROMPTS, TOKENS, WARM_UP_TOKENS = 8, 128, 8

Prompts = Sequence[tuple[int, ...]]


def greedy(tokens: int) -> GenerationConfig:
    return GenerationConfig(
        do_sample=False, max_new_tokens=tokens, min_new_tokens=tokens, eos_token_id=-1, pad_token_id=0
    )


def one_by_one(model: Any, asked: Prompts, tokens: int) -> None:
    for prompt in asked:
        _generate(model, torch.tensor([prompt]), torch.ones(1, len(prompt), dtype=torch.long), tokens)


def padded(model: Any, asked: Prompts, tokens: int) -> None:
    longest = max(map(len, asked))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in asked])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in asked])
    _generate(model, ids, mask, tokens)


def _generate(model: Any, ids: torch.Tensor, mask: torch.Tensor, tokens: int) -> None:
    generated = model.generate(ids, attention_mask=mask, generation_config=greedy(tokens))
    assert generated.shape == (len(ids), ids.shape[1] + tokens)


def continuous(model: Any, asked: Prompts, tokens: int) -> None:
    settings = ContinuousBatchingConfig(
        page_size=256, num_blocks=32, max_batch_tokens=256, use_cuda_graph=False, use_async_batching=False
    )
    outputs = model.generate_batch(
        inputs=[list(prompt) for prompt in asked],
        generation_config=greedy(tokens),
        continuous_batching_config=settings,
        progress_bar=False,
    )
    assert sum(len(output.generated_tokens) for output in outputs.values()) == tokens * len(asked)


def arms(ours: OurArm, model: Any, asked: Prompts, tokens: int) -> dict[str, Callable[[], object]]:
    return {
        "kvcluster": lambda: ours.answer(asked, max_tokens=tokens),
        "one by one": lambda: one_by_one(model, asked, tokens),
        "padded batch": lambda: padded(model, asked, tokens),
        "continuous batching": lambda: continuous(model, asked, tokens),
    }


def measure(subject: Subject, rounds: int) -> tuple[dict[str, Ratio], dict[str, Any]]:
    ours = open_our_arm(subject)
    model = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=subject.torch_dtype, local_files_only=True)
    asked = prompts(PROMPTS, shortest=8, longest=64, vocabulary=model.config.vocab_size)
    with torch.inference_mode():
        for warm_up in arms(ours, model.eval(), asked, WARM_UP_TOKENS).values():
            warm_up()
        timings = interleaved(arms(ours, model, asked, TOKENS), rounds=rounds)
    ours.close()
    ratios = {f"{subject.name}: {what}": one for what, one in speed_ratios(timings, "kvcluster").items()}
    return ratios, {subject.name: seconds(timings)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    logging.set_verbosity_error()
    torch.set_num_threads(THREADS)
    ratios: dict[str, Ratio] = {}
    arm_seconds: dict[str, Any] = {}
    for subject in (llama_31m(), gemma3_270m()):
        found, taken = measure(subject, rounds)
        ratios |= found
        arm_seconds |= taken
    report("generate", ratios, threads=THREADS, rounds=rounds, median_seconds=arm_seconds)


if __name__ == "__main__":
    main()
