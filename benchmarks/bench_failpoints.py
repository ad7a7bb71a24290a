"""What failpoints cost where none is armed: a pass beside an empty call, and all passes of a step beside the step.

Passing a point is a call, a look at a global and a comparison. How many are passed in a step is counted with an action
that counts; the 31 M Llama in float32, 8 sequences, decoding. Both figures are ratios of one run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from benchmarks.harness import Ratio, interleaved, ratio, report, timed
from benchmarks.workload import llama_31m, open_our_arm, prompts
from kvcluster.failpoints import Failpoint, arm, reach

PASSES = 1_000_000


def nothing(point: Failpoint) -> None:
    """The cheapest call of one argument."""


def many(call: Callable[[Failpoint], None]) -> None:
    point = Failpoint.CLIENT_MAPPED
    for _ in range(PASSES):
        call(point)


def passes_and_seconds_a_step(steps: int) -> tuple[float, float]:
    """Points that a decode step passes, and its median time with none armed."""
    ours = open_our_arm(llama_31m())
    ours.submit(prompts(8, shortest=8, longest=15, vocabulary=8192), max_tokens=2 * steps + 20)
    for _ in range(5):
        ours.step()
    passed: list[Failpoint] = []
    arm(passed.append)
    for _ in range(steps):
        ours.step()
    arm(None)
    seconds = statistics.median(timed(ours.step).wall_s for _ in range(steps))
    ours.close()
    return len(passed) / steps, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=32)
    chosen = parser.parse_args()
    torch.manual_seed(1)
    timings = interleaved({"reach": lambda: many(reach), "nothing": lambda: many(nothing)}, rounds=chosen.rounds)
    passing, empty = ([timing.wall_s for timing in timings[name]] for name in ("reach", "nothing"))
    passes, step_s = passes_and_seconds_a_step(chosen.steps)
    share = [1e6 * passes * seconds / PASSES / step_s for seconds in passing]
    ratios = {
        "a pass / an empty call": ratio(passing, empty),
        "all passes of a step, in millionths of it": Ratio(statistics.median(share), min(share), max(share)),
    }
    report("failpoints", ratios, passes_a_step=passes, pass_ns=1e9 * statistics.median(passing) / PASSES)


if __name__ == "__main__":
    main()
