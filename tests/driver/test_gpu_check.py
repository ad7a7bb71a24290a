"""The GPU check on a machine without a GPU: every part runs over the stand-in, or says why it does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.device import stand_in
from benchmarks.gpu_check.parts import Status, run_part
from benchmarks.gpu_check.setting import Setting

ROOT = Path(__file__).parents[2]
SKIPPED = {"attention": "torch computes on no stand-in", "context": "the stand-in's contexts take no memory"}


def _checked(out: Path, *arguments: str, faults: str = "") -> tuple[int, dict[str, Any]]:
    """The check's exit status, and the JSON of its last line."""
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--stand-in", "--quick", "--out", str(out), *arguments]
    environment = os.environ | {"STAND_IN_CUDA_FAIL": faults}
    child = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert child.stdout, child.stderr
    return child.returncode, json.loads(child.stdout.splitlines()[-1])


def _statuses(document: dict[str, Any]) -> dict[str, str]:
    return {name: part["status"] for name, part in document["parts"].items()}


def test_without_a_gpu_every_part_passes_on_the_stand_in_or_says_why_it_was_skipped(tmp_path: Path) -> None:
    status, document = _checked(tmp_path)
    parts = document["parts"]
    skipped = {name: part["sentence"] for name, part in parts.items() if part["status"] == "skipped"}
    assert (status, skipped) == (0, SKIPPED)
    assert {name for name, found in _statuses(document).items() if found != "ok"} == set(SKIPPED)
    assert parts["calls"]["figures"]["32 MiB, shared"]["import"]["median_us"] > 0
    assert parts["contract"]["figures"]["outcomes"]["passed"] > 50
    assert all(parts["faults"]["figures"]["failures"].values())
    answers = parts["probes"]["figures"]["release_twice"]["answers"]
    assert answers["again"] == "ERROR_INVALID_VALUE (1)"
    assert json.loads((tmp_path / "gpu-check-stand-in.json").read_text()) == document


def test_parts_for_which_no_time_is_left_are_skipped_and_nothing_failed(tmp_path: Path) -> None:
    status, document = _checked(tmp_path, "--only", "calls", "growth", "--seconds", "0")
    assert status == 0
    assert {part["sentence"] for part in document["parts"].values()} == {"no time left"}
    assert _statuses(document) == {"calls": "skipped", "growth": "skipped"}


def test_a_part_that_outlasts_the_whole_check_is_stopped_and_skipped(tmp_path: Path) -> None:
    setting = Setting(0, is_stand_in=True, rounds=4, run=4, growths=8, held_bytes=2**26)
    outcome = run_part("contract", setting, stand_in(tmp_path).environment, left_s=0.05)
    assert (outcome.status, outcome.sentence) == (Status.SKIPPED, "no time left")
    assert outcome.seconds < 5


def test_a_part_that_fails_is_told_with_its_reason_and_stops_no_other(tmp_path: Path) -> None:
    every_export_but_the_drivers_own = "cuMemExportToShareableHandle@2+=801"
    status, document = _checked(tmp_path, "--only", "outliving", "killed", faults=every_export_but_the_drivers_own)
    assert (status, _statuses(document)) == (1, {"outliving": "failed", "killed": "ok"})
    assert "ended before it exported" in document["parts"]["outliving"]["sentence"]


def test_a_part_whose_process_dies_is_told_with_the_signal(tmp_path: Path) -> None:
    status, document = _checked(tmp_path, "--only", "growth", faults="no rule at all")  # the library aborts
    assert (status, _statuses(document)) == (1, {"growth": "failed"})
    assert "SIGABRT" in document["parts"]["growth"]["sentence"]
