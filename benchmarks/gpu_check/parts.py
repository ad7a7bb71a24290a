"""The parts by name, and one of them in a process of its own: `python -m benchmarks.gpu_check.parts NAME SETTING`.

Whatever becomes of that process, an outcome comes of it: an exception is a sentence, a signal and a part that takes
too long are one too. It leads a process group, so that its own children end with it. A part for which the whole check
has no time left is skipped, or stopped and then counts as skipped: nothing is known of it.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.setting import Broken, Found, Setting, Skipped

ROOT = Path(__file__).parents[2]
MARK = "gpu-check part: "


@dataclass(frozen=True, slots=True)
class Part:
    """A function, "module:name", and how long it may take."""

    title: str
    function: str
    longest_s: int


PARTS: Mapping[str, Part] = {
    "contract": Part("driver contract", "contract:check", 180),
    "faults": Part("fault matrix", "faults:check", 120),
    "calls": Part("cost of calls", "calls:check", 90),
    "growth": Part("growth", "growth:check", 60),
    "attention": Part("decode attention", "attention:check", 120),
    "read-only": Part("store into read-only memory", "sharing:check_read_only", 60),
    "outliving": Part("outliving the exporter", "sharing:check_outliving", 60),
    "killed": Part("pidfd and a running kernel", "processes:check_killed", 90),
    "context": Part("bytes of a context", "processes:check_context", 90),
    "probes": Part("questions to the driver", "probes:check", 150),
}


class Status(StrEnum):
    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    status: Status
    sentence: str
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


NO_TIME_LEFT = Outcome(Status.SKIPPED, "no time left")


def run_part(name: str, setting: Setting, environment: Mapping[str, str], *, left_s: float) -> Outcome:
    """The outcome of the part, whatever happens to its process; what it says goes to standard error."""
    if left_s <= 0:
        return NO_TIME_LEFT
    command, start = [sys.executable, "-m", __name__, name, setting.encoded()], time.monotonic()
    longest_s, said = PARTS[name].longest_s, None
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=min(longest_s, left_s))
        except subprocess.TimeoutExpired:
            said = f"it took longer than {longest_s} s" if longest_s <= left_s else None
        finally:
            _end_group(process)
    outcome = NO_TIME_LEFT if said is None else _read(said, process.returncode)
    return replace(outcome, seconds=round(time.monotonic() - start, 1))


def _end_group(process: subprocess.Popen[str]) -> None:
    """Whatever it left running: a child of a part that was stopped."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(said: str, status: int) -> Outcome:
    lines = said.splitlines()
    if lines and lines[-1].startswith(MARK):
        sys.stderr.write("".join(f"{line}\n" for line in lines[:-1]))
        told = json.loads(lines[-1].removeprefix(MARK))
        return Outcome(Status(told["status"]), told["sentence"], 0.0, told["figures"])
    ended = signal.Signals(-status).name if status < 0 else f"status {status}"
    return Outcome(Status.FAILED, f"its process ended with {ended}: {lines[-1] if lines else 'it said nothing'}")


def _do(name: str, setting: Setting) -> Outcome:
    module, _, function = PARTS[name].function.partition(":")
    try:
        found: Found = getattr(importlib.import_module(f"benchmarks.gpu_check.{module}"), function)(setting)
    except Skipped as reason:
        return Outcome(Status.SKIPPED, str(reason))
    except Broken as failure:
        return Outcome(Status.FAILED, str(failure), figures=failure.figures)
    except Exception as failure:  # noqa: BLE001 - one part's failure is told, and stops no other
        traceback.print_exc()
        return Outcome(Status.FAILED, f"{type(failure).__name__}: {failure}")
    return Outcome(Status.OK, found.sentence, figures=found.figures)


if __name__ == "__main__":
    print(MARK + json.dumps(asdict(_do(sys.argv[1], Setting.decoded(sys.argv[2])))), flush=True)
    os._exit(0)  # what a part leaves mapped on purpose is the kernel's to take down
