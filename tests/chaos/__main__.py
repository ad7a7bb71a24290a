"""`python -m tests.chaos` (make chaos): every case, a table of what each cost, and a file of figures.

Exit code 0: every case held. `--slice` plays a spread over every kind of actor in two minutes, `--only WORDS` those
cases whose name has all of these words, `--list` plays none. What is written stands in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kvcluster.testing.processes import marked, name_of
from kvcluster.testing.pytest_plugin import simulated
from kvcluster.testing.waiting import eventually
from tests.chaos.cases import Act, Case, all_cases, slice_of_cases
from tests.chaos.loads import Loads
from tests.chaos.play import Outcome, Stage, as_json

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
COLUMNS = ("kills", "lost workers", "replays", "tokens recomputed", "seconds lost")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slice", action="store_true", help="a spread over every kind of actor, on one load")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name has all of these")
    parser.add_argument("--list", action="store_true", help="name the cases, and play none")
    parser.add_argument("--json", type=Path, help="where the figures go [benchmarks/results/chaos.json for all cases]")
    chosen = parser.parse_args()
    cases = [
        case
        for case in (slice_of_cases() if chosen.slice else all_cases())
        if all(word in case.name for word in chosen.only)
    ]
    if chosen.list:
        print("\n".join(f"{case.act:8} {case.load:6} {case.name}: {case.text}" for case in cases))
        return 0
    began = time.monotonic()
    outcomes = [outcome for group in _by_cluster(cases) for outcome in _played(group)]
    seconds = time.monotonic() - began
    show(outcomes, seconds)
    is_all = len(cases) == len(all_cases())
    write(chosen.json or (RESULTS / "chaos.json" if is_all else None), outcomes, seconds)
    return 1 if any(outcome.complaint for outcome in outcomes) else 0


def show(outcomes: Sequence[Outcome], seconds: float) -> None:
    table = Table("case", *COLUMNS, "held")
    for outcome in outcomes:
        figures = (outcome.kills, len(outcome.losses), outcome.replays, outcome.recomputed_tokens)
        held = outcome.complaint or "yes"
        table.add_row(outcome.case.name, *map(str, figures), f"{outcome.seconds_lost:.1f}", held)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    failed = sum(bool(outcome.complaint) for outcome in outcomes)
    console.print(f"{len(outcomes)} cases in {seconds / 60:.1f} minutes, {failed} did not hold")


def write(path: Path | None, outcomes: list[Outcome], seconds: float) -> None:
    if path is not None:
        document = {
            "command": " ".join(["python -m tests.chaos", *sys.argv[1:]]),
            "machine": f"{platform.platform()}, {_cpus()} CPUs",
            "minutes": round(seconds / 60, 1),
            "cases": as_json(outcomes),
        }
        path.write_text(json.dumps(document, indent=1) + "\n")


def _by_cluster(cases: Sequence[Case]) -> list[list[Case]]:
    """Those that need three nodes have a cluster of their own."""
    groups = [[case for case in cases if (case.act is Act.NODE) is of_three] for of_three in (False, True)]
    return [group for group in groups if group]


def _played(cases: Sequence[Case]) -> list[Outcome]:
    """On one cluster; of all its processes none is left."""
    nodes = 3 if cases[0].act is Act.NODE else 1
    outcomes = []
    with tempfile.TemporaryDirectory() as scratch:
        with simulated(nodes, cpus=8) as (site, mark):
            stage = Stage(Loads(site, Path(scratch), mark=mark), tuple(cases))
            for case in cases:
                outcomes.append(stage.play(case))
                print(f"{outcomes[-1].whole_s:6.1f} s  {case.name}: {outcomes[-1].complaint or 'held'}", flush=True)
            stage.clear()
        left = f"processes of the cluster are left: {', '.join(map(name_of, marked(mark)))}"
        eventually(lambda: not marked(mark), left)
    return outcomes


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
