"""The questions, put to this GPU and, where a compiler is, to the stand-in too; where the answers differ is told.

A difference fails nothing: the stand-in may be stricter than the driver. One that is laxer would hide faults of ours.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu_check.questions import QUESTIONS, Answers
from benchmarks.gpu_check.raw import Raw
from benchmarks.gpu_check.setting import Broken, Found, Setting
from kvcluster.testing.stand_in_cuda import environment

LONGEST_S = 40


def check(setting: Setting) -> Found:
    """Raises Broken where a question could not be put at all."""
    stand_in = {} if setting.is_stand_in else _stand_in()
    figures: dict[str, Any] = {}
    for question in QUESTIONS:
        told: dict[str, Any] = {"question": (question.__doc__ or "").splitlines()[0]}
        told["answers"] = _answer(question, setting.ordinal, {})
        if stand_in:
            told["stand-in"] = _answer(question, 0, stand_in)
            told["differs"] = _differing(told["answers"], told["stand-in"])
        figures[question.__name__] = told
    return _summed(figures, has_stand_in=bool(stand_in))


def _summed(figures: Mapping[str, Any], *, has_stand_in: bool) -> Found:
    skipped = [name for name, told in figures.items() if "skipped" in told["answers"]]
    silent = [name for name, told in figures.items() if "ended" in told["answers"]]
    if silent:
        raise Broken(f"no answer to: {', '.join(silent)}", figures)
    sentence = f"{len(figures) - len(skipped)} questions answered"
    if skipped:
        sentence += f", {len(skipped)} skipped ({figures[skipped[0]]['answers']['skipped']})"
    if has_stand_in:
        sentence += f", {sum(bool(told['differs']) for told in figures.values())} otherwise than by the stand-in"
    return Found(sentence, figures)


def _answer(question: Callable[[Raw], Answers], ordinal: int, more: Mapping[str, str]) -> dict[str, str]:
    """What its process said. That the question killed it is an answer too; "ended" tells of one that answered none."""
    command = [sys.executable, "-m", "benchmarks.gpu_check.questions", question.__name__, str(ordinal)]
    try:
        child = subprocess.run(
            command, env=os.environ | more, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"ended": f"it took longer than {LONGEST_S} s"}
    if child.stdout:
        return dict(json.loads(child.stdout.splitlines()[-1]))
    if child.returncode < 0:
        return {"the process": signal.Signals(-child.returncode).name}
    return {"ended": child.stderr.strip().splitlines()[-1]}


def _stand_in() -> dict[str, str]:
    """Where its library is, with one device and a granule as a GPU has it; nothing where it cannot be built."""
    try:
        return environment(DEVICES=1, GRANULE="2M", MEMORY="1G") | {"CUDA_VISIBLE_DEVICES": "0"}
    except (OSError, subprocess.CalledProcessError) as failure:
        print(f"the stand-in is not compared: {failure}", file=sys.stderr)
        return {}


def _differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What both answered, with other codes: times differ anyhow."""
    return [what for what in ours if what in theirs and _code(ours[what]) != _code(theirs[what])]


def _code(answer: str) -> str:
    return re.sub(r" in [\d.]+ ms$", "", answer)
