"""Time to first token of a prompt that was computed before, beside one that was not: what a prefix hit is worth.

Each round draws a prompt of 2,048 tokens that nobody had, asks for one token after it (a miss), and asks again (a hit).
A ratio is that of one round. What a hit takes is to look the tokens up, map what is found, compute the tokens that a
granule's edge leaves over, and end. The 31 M Llama in float32, and gemma3-270m in bfloat16, which has sliding windows:
its boundary is published while the miss is computed, and a hit copies the window before it. The Llama on host pages as
well: its device is too small for the prompt, so all of it happens there.

    python -m benchmarks.bench_prefix_hit [--rounds 7] [--without-gemma]
"""

from __future__ import annotations

import argparse
import random

from benchmarks.harness import Ratio, Timing, ratio, report, seconds, timed
from benchmarks.workload import OurArm, Subject, gemma3_270m, llama_31m, open_our_arm

PROMPT_TOKENS = 2_048
ON_PAGES = {"memory": "1MiB", "fallback": "host", "host_memory": "512MiB"}
TARGETS = {"llama-31m float32": 20.0, "llama-31m float32, host pages": 20.0, "gemma3-270m bfloat16": 15.0}


def measure(name: str, ours: OurArm, *, rounds: int) -> tuple[Ratio, dict[str, dict[str, float]]]:
    """How many times as fast the first token is on a hit."""
    draw = random.Random(2)
    timings: dict[str, list[Timing]] = {"miss": [], "hit": []}
    for number in range(rounds + 1):
        prompt = tuple(draw.randrange(3, 8_000) for _ in range(PROMPT_TOKENS))
        for arm, runs in timings.items():
            took = first_token(ours, prompt)
            ours.rest()
            if number:  # the first round warms up
                runs.append(took)
                print(f"{name}, round {number} of {rounds}, {arm}: {1000 * took.wall_s:.0f} ms")
    found = (ours.pages or ours.device).statistics().found_tokens
    ours.close()
    assert found >= rounds * PROMPT_TOKENS * 0.95
    walls = {arm: [timing.wall_s for timing in runs] for arm, runs in timings.items()}
    return ratio(walls["miss"], walls["hit"]), seconds(timings)


def first_token(ours: OurArm, prompt: tuple[int, ...]) -> Timing:
    return timed(lambda: ours.answer([prompt], max_tokens=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-gemma", action="store_true")
    chosen = parser.parse_args()
    arms: list[tuple[str, Subject, dict[str, str]]] = [
        ("llama-31m float32", llama_31m(), {}),
        ("llama-31m float32, host pages", llama_31m(), ON_PAGES),
    ]
    if not chosen.without_gemma:
        arms.append(("gemma3-270m bfloat16", gemma3_270m(), {}))
    measured = {
        name: measure(name, open_our_arm(subject, **settings), rounds=chosen.rounds) for name, subject, settings in arms
    }
    report(
        "prefix_hit",
        {f"{name}: miss / hit": one for name, (one, _) in measured.items()},
        seconds={name: took for name, (_, took) in measured.items()},
        targets={f"{name}: miss / hit": TARGETS[name] for name in measured},
    )


if __name__ == "__main__":
    main()
