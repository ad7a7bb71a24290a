"""What the engine's own parts bring: tokens a second of the same requests, at batch 1, 8 and 32, in one process.

Arms: our forward on our operators ("fused"), the model's own code on our operators ("transformers"), and the model's
own code with torch's attention, a sequence at a time ("torch"). All three have packed linear layers.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.harness import Ratio, interleaved, report, seconds, speed_ratios
from benchmarks.workload import OurArm, Subject, gemma3_270m, llama_31m, open_our_arm, prompts

BATCHES, TOKENS, WARM_UP_TOKENS = (1, 8, 32), 128, 4


def open_arms(subject: Subject) -> dict[str, OurArm]:
    batch = {"max_num_seqs": max(BATCHES), "prefix_cache": "off"}
    return {
        "fused": open_our_arm(subject, **batch),
        "transformers": open_our_arm(subject, model_impl="transformers", **batch),
        "torch": open_our_arm(subject, model_impl="transformers", kernels=(), **batch),
    }


def measure(subject: Subject, rounds: int) -> tuple[dict[str, Ratio], dict[str, Any]]:
    opened = open_arms(subject)
    ratios: dict[str, Ratio] = {}
    taken: dict[str, Any] = {}
    for batch in BATCHES:
        asked = prompts(batch, shortest=8, longest=64, vocabulary=8192)

        def answer(arm: OurArm, tokens: int, asked: list[tuple[int, ...]] = asked) -> Callable[[], object]:
            return lambda: arm.answer(asked, max_tokens=tokens)

        for arm in opened.values():
            answer(arm, WARM_UP_TOKENS)()
        timings = interleaved({name: answer(arm, TOKENS) for name, arm in opened.items()}, rounds=rounds)
        name = f"{subject.name}, batch {batch}"
        ratios |= {f"{name}: {what}": one for what, one in speed_ratios(timings, "fused").items()}
        taken[name] = seconds(timings)
    for arm in opened.values():
        arm.close()
    return ratios, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    ratios: dict[str, Ratio] = {}
    taken: dict[str, Any] = {}
    for subject in (llama_31m(), gemma3_270m()):
        found, arm_seconds = measure(subject, rounds)
        ratios |= found
        taken |= arm_seconds
    report("engine", ratios, rounds=rounds, median_seconds=taken)


if __name__ == "__main__":
    main()
