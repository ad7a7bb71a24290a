"""Quiet and lean: control messages a token, committed over live bytes, and driver calls of steps that do not grow.

The 31 M Llama in float32, token-major, 64 KiB granules, batch 8: 8 x 128 tokens after prompts of 8 to 15 tokens, and
8 sequences of 512 and of 1,000 tokens. The figures are counts, not times: they are the same on every machine.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.harness import Ratio, report
from benchmarks.workload import llama_31m, open_our_arm, prompts

TARGETS = {
    "8 x 128 tokens: control messages / token": 0.05,
    "8 x 128 tokens: committed / live": 1.15,
    "8 x 512 tokens: control messages / token": 0.02,
    "8 x 512 tokens: committed / live": 1.05,
    "8 x 1,000 tokens: committed / live": 1.03,
}


def measure(name: str, *, prompt_tokens: tuple[int, int], max_tokens: int) -> dict[str, Ratio]:
    ours = open_our_arm(llama_31m())
    asked = prompts(8, shortest=prompt_tokens[0], longest=prompt_tokens[1], vocabulary=8192)
    ours.submit(asked, max_tokens=max_tokens)
    quiet_steps = quiet_calls = finished = 0
    before = ours.statistics()
    while finished < len(asked):
        finished += len(ours.step())
        after = ours.statistics()
        if after.control_messages == before.control_messages:
            quiet_steps += 1
            quiet_calls += after.driver_calls - before.driver_calls
        before = after
    ours.close()
    figures = {
        "control messages / token": before.messages_per_token,
        "committed / live": before.committed_per_live,
        "driver calls / step without a message": quiet_calls / quiet_steps,
        "steps without a message / step": quiet_steps / before.steps,
    }
    return {f"{name}: {what}": Ratio(figure, figure, figure) for what, figure in figures.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(1)
    short = measure("8 x 128 tokens", prompt_tokens=(8, 15), max_tokens=128)
    middle = measure("8 x 512 tokens", prompt_tokens=(8, 15), max_tokens=512 - 15)
    long = measure("8 x 1,000 tokens", prompt_tokens=(8, 15), max_tokens=1000 - 15)
    report("quiet", {**short, **middle, **long}, targets=TARGETS)


if __name__ == "__main__":
    main()
