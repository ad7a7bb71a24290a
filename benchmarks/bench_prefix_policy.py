"""Which idle prefix goes next: the share of prompt tokens found, by our policy, LRU, ARC and the optimum.

Ours is `kvcluster.index.retention` itself, driven as the index drives it (`benchmarks.prefix_caches`). With --trace the
load is a recorded one (lines with `hash_ids` and `input_length`); without, the made ones of `benchmarks.prefix_loads`.
A token is found only as part of a beginning that is there without a gap. Over all requests, and over the last half,
the cache being as the first half left it. Counts, not times: they are the same on every machine.

--simulator FOLDER compares LRU and the optimum with kvcache-simulator 0.1.3, unpacked or installed there, which counts
the last half: the tokens found must be equal to the token.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Ratio, report
from benchmarks.prefix_caches import arc, least_recent, optimum, ours
from benchmarks.prefix_loads import BLOCK_TOKENS, MADE, Load, made, recorded

POLICIES: dict[str, Callable[[Load, int], Iterator[int]]] = {
    "ours": ours,
    "lru": least_recent,
    "arc": arc,
    "optimum": optimum,
}
TRACE_SIZES = (1_000, 5_859, 10_000, 30_000)
MADE_SIZES = (1_000, 4_000)


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens found, and the share of all that they are."""

    tokens_of_half: int
    whole: float
    quarters: tuple[float, float, float, float]
    half: float


def found(policy: Callable[[Load, int], Iterator[int]], load: Load, size: int) -> Found:
    """By a cache of `size` blocks, over the whole load, each quarter, and the last half."""
    hits, asked = [0] * 4, [0] * 4
    begins = [len(load) * quarter // 4 for quarter in (1, 2, 3)]
    for number, (request, blocks) in enumerate(zip(load, policy(load, size), strict=True)):
        quarter = bisect_right(begins, number)
        hits[quarter] += sum(request.tokens[:blocks])
        asked[quarter] += sum(request.tokens)
    first, second, third, last = (h / a for h, a in zip(hits, asked, strict=True))
    half = sum(hits[2:])
    return Found(half, sum(hits) / sum(asked), (first, second, third, last), half / sum(asked[2:]))


def measure(name: str, load: Load, sizes: tuple[int, ...]) -> dict[str, dict[str, Found]]:
    """By size and policy, printed as they come."""
    figures: dict[str, dict[str, Found]] = {}
    for size in sizes:
        figures[str(size)] = by_policy = {policy: found(run, load, size) for policy, run in POLICIES.items()}
        row = "  ".join(f"{policy} {one.whole:.4f} / {one.half:.4f}" for policy, one in by_policy.items())
        print(f"{name}, {size:,} blocks, whole / last half: {row}", flush=True)
    return figures


def ratios(name: str, figures: dict[str, dict[str, Found]]) -> dict[str, Ratio]:
    """Points above the better of LRU and ARC, and the share of the optimum in the last half."""
    result = {}
    for size, one in figures.items():
        ahead = 100 * (one["ours"].whole - max(one["lru"].whole, one["arc"].whole))
        share = one["ours"].half / one["optimum"].half if one["optimum"].half else 1.0
        result[f"{name}, {size} blocks: points ahead of the better of LRU and ARC"] = Ratio(ahead, ahead, ahead)
        result[f"{name}, {size} blocks: share of the optimum, last half"] = Ratio(share, share, share)
    return result


def simulated(folder: Path, load: Load, sizes: tuple[int, ...]) -> dict[str, dict[str, int]]:
    """Tokens found in the last half by kvcache-simulator's policies."""
    sys.path.insert(0, str(folder))
    trace, plan, policies = (importlib.import_module(f"kvcache_sim.{room}") for room in ("trace", "plan", "policies"))
    lines = [
        json.dumps({"block_size": BLOCK_TOKENS, "hash_ids": r.blocks, "input_length": sum(r.tokens)}) for r in load
    ]
    planned = plan.build_execution_plan(trace.parse_trace_lines(lines), warmup_fraction=0.5)
    return {
        str(size): {
            "lru": policies.simulate_policy(planned, "lru", size).hitTokens,
            "optimum": policies.simulate_policy(planned, "optimal", size).hitTokens,
        }
        for size in sizes
    }


def compared(figures: dict[str, dict[str, Found]], simulator: dict[str, dict[str, int]]) -> dict[str, Any]:
    """Ours beside the simulator's, and whether all are equal."""
    mine = {
        size: {policy: figures[size][policy].tokens_of_half for policy in by_policy}
        for size, by_policy in simulator.items()
    }
    print(f"tokens found in the last half, equal to kvcache-simulator's: {mine == simulator}")
    return {"kvcache-simulator 0.1.3": simulator, "here": mine, "are equal": mine == simulator}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a recorded load; else the made ones")
    parser.add_argument("--sizes", type=int, nargs="+", help="of the cache, in blocks")
    parser.add_argument("--requests", type=int, default=4_000, help="of each made load")
    parser.add_argument("--seed", type=int, default=1, help="of the made loads")
    parser.add_argument("--simulator", type=Path, metavar="FOLDER", help="where kvcache_sim can be imported from")
    asked = parser.parse_args()
    sizes = tuple(asked.sizes or (TRACE_SIZES if asked.trace else MADE_SIZES))
    if asked.trace:
        loads = {asked.trace.stem: recorded(asked.trace)}
    else:
        loads = {name: made(name, requests=asked.requests, seed=asked.seed) for name in MADE}
    figures = {name: measure(name, load, sizes) for name, load in loads.items()}
    more: dict[str, Any] = {}
    if asked.simulator:
        more["simulator"] = {
            name: compared(figures[name], simulated(asked.simulator, load, sizes)) for name, load in loads.items()
        }
    all_ratios = {what: one for name, by_size in figures.items() for what, one in ratios(name, by_size).items()}
    report("prefix_policy", all_ratios, found=_plain(figures), **more)


def _plain(figures: dict[str, dict[str, dict[str, Found]]]) -> dict[str, Any]:
    return {
        name: {
            size: {
                policy: {
                    "whole": round(one.whole, 5),
                    "last_half": round(one.half, 5),
                    "quarters": [round(quarter, 5) for quarter in one.quarters],
                }
                for policy, one in by_policy.items()
            }
            for size, by_policy in by_size.items()
        }
        for name, by_size in figures.items()
    }


if __name__ == "__main__":
    main()
