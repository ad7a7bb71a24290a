"""`kvcluster run-batch` on the test's cluster: it is killed where the text says, and then run again without."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from kvcluster.testing.batches import line_of, texts_of
from kvcluster.testing.deployment import Deployment
from tests.chaos.loads import Load

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Twice:
    """What both commands together said, and how long the first one lived."""

    texts: tuple[str, ...]
    first_s: float


def answered_by_command(deployment: Deployment, load: Load, faults: str) -> Twice:
    """The texts of the load's first work, from a command that died of `faults` and was run again.

    Raises:
        AssertionError: it did not die, or the second one did not end well, or a row is missing or there twice.
    """
    folder, work = deployment.marks.parent, load.works[0]
    asked = {"max_tokens": work.max_tokens, "temperature": 0, "ignore_eos": True, **work.body}
    lines, results = folder / "lines.jsonl", folder / "results.jsonl"
    lines.write_text("".join(line_of(str(number), prompt, asked) for number, prompt in enumerate(work.prompts)))
    began = time.monotonic()
    first = _run(deployment, lines, results, f"{faults}; marks={deployment.marks}")
    first_s = time.monotonic() - began
    assert first.returncode == -signal.SIGKILL, f"it did not die: {first.stderr[-1000:]}"
    second = _run(deployment, lines, results, "")
    assert second.returncode == 0, f"it did not end what it began: {second.stderr[-1000:]}"
    return Twice(texts_of(results, len(work.prompts)), first_s)


def _run(deployment: Deployment, lines: Path, results: Path, failpoints: str) -> subprocess.CompletedProcess[str]:
    settings = deployment.settings.model_dump(exclude_defaults=True) | {"failpoints": failpoints}
    config = results.with_name("config.yaml")
    config.write_text(yaml.safe_dump({"applications": [{"args": settings}]}))
    command = [KVCLUSTER, "run-batch", "-i", str(lines), "-o", str(results), "--config", str(config)]
    environment = {**os.environ, "RAY_ADDRESS": deployment.nodes.address}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
