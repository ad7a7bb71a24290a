"""`python -m benchmarks.gpu_check`: every part, one table, and one JSON object as the last line and as a file.

Exit status 0 where nothing failed; what was skipped says why. A GPU's file lies in benchmarks/results/, the stand-in's,
which is no result of anybody's hardware, in out/.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu_check.device import Target, gpu, machine, slug, stand_in
from benchmarks.gpu_check.parts import PARTS, ROOT, Outcome, Status, run_part
from benchmarks.gpu_check.setting import Setting
from benchmarks.gpu_check.table import table
from kvcluster.driver.cuda_devices import DRIVER_REMEDY
from kvcluster.errors import DeviceMissing, KvClusterError
from kvcluster.units import MIB

LONGEST_S = 300.0  # of the whole check


def main(arguments: Sequence[str] | None = None) -> int:
    told, start = _parsed(arguments), time.monotonic()
    with TemporaryDirectory(prefix="kvcluster-gpu-check-") as folder:
        target = _target(told, Path(folder))
        setting = _setting(target, is_quick=told.quick)
        ends = start + told.seconds
        outcomes = {name: _outcome(name, setting, target, ends) for name in told.only or PARTS}
    document = _document(target, setting, outcomes, time.monotonic() - start)
    _write(told.out or ROOT / ("out" if target.is_stand_in else "benchmarks/results"), target, document)
    print(table(target.name, outcomes))
    print(json.dumps(document))
    return int(any(outcome.status is Status.FAILED for outcome in outcomes.values()))


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--device", default="cuda:0", help="a GPU by number or UUID")
    parser.add_argument("--stand-in", action="store_true", help="check the stand-in even where there is a GPU")
    parser.add_argument("--quick", action="store_true", help="every part, with as few rounds as possible")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=LONGEST_S, help="the most for all parts together")
    parser.add_argument("--out", type=Path, help="the folder for the JSON file")
    return parser.parse_args(arguments)


def _target(told: argparse.Namespace, folder: Path) -> Target:
    """Ends the program with a sentence where there is neither a GPU nor a stand-in."""
    try:
        return (None if told.stand_in else _gpu(told.device)) or stand_in(folder)
    except (KvClusterError, ValueError) as refusal:
        sys.exit(f"gpu-check: {refusal}")
    except (OSError, subprocess.CalledProcessError) as failure:
        sys.exit(f"gpu-check: there is no GPU here, and the stand-in cannot be built: {failure}")


def _outcome(name: str, setting: Setting, target: Target, ends: float) -> Outcome:
    outcome = run_part(name, setting, target.environment, left_s=ends - time.monotonic())
    print(f"{name}: {outcome.status}, {outcome.sentence}", file=sys.stderr, flush=True)
    return outcome


def _gpu(name: str) -> Target | None:
    try:
        return gpu(name)
    except DeviceMissing as absent:
        if absent.remedy == DRIVER_REMEDY:  # no libcuda: a machine without a GPU
            return None
        raise


def _setting(target: Target, *, is_quick: bool) -> Setting:
    rounds, run, growths = (4, 4, 8) if is_quick else (100, 16, 200)
    held_bytes = 64 * MIB if is_quick or target.is_stand_in else 1024 * MIB
    return Setting(target.ordinal, target.is_stand_in, rounds, run, growths, held_bytes)


def _document(target: Target, setting: Setting, outcomes: Mapping[str, Outcome], seconds: float) -> dict[str, Any]:
    return {
        "name": "gpu-check",
        "device": dict(target.told),
        **machine(),
        "setting": asdict(setting),
        "seconds": round(seconds, 1),
        "parts": {name: asdict(outcome) for name, outcome in outcomes.items()},
    }


def _write(folder: Path, target: Target, document: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"gpu-check-{slug(target.name)}.json"
    file.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written to {file}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
