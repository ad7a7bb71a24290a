"""The examples that need Ray run as they stand, on a cluster that is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray

from actors.devices import living_device
from tests.actors.world import eventually, is_whole

EXAMPLES = Path(__file__).parents[2] / "examples"
DEVICES = {"04_own_deployment.py": "host:4", "05_batch_job.py": "host:5"}


@pytest.fixture
def ran(node_id: str) -> Iterator[Callable[..., str]]:
    """Runs an example to its end; its device is whole then."""
    used = []

    def run(example: str, *arguments: str) -> str:
        used.append(DEVICES[example])
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / example), *arguments],
            env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    yield run
    for device in [living for name in used if (living := living_device(name, node_id))]:
        eventually(lambda device=device: is_whole(device), "the device has all its bytes back")
        ray.kill(device)


def test_a_deployment_of_ones_own_shares_a_device_and_refuses_what_it_has_not(ran: Callable[..., str]) -> None:
    said = ran("04_own_deployment.py")
    assert re.search(r"alone: 200, [\d,]+ bytes held", said)
    both = re.findall(r"two at once: (\d+),", said)
    assert len(both) == 2
    assert set(both) <= {"200", "429"}  # both where one ended before the other began, neither where each held half
    assert re.search(r"after them: 200, [\d,]+ bytes held", said)


def test_the_batch_job_answers_its_prompts(ran: Callable[..., str]) -> None:
    assert "10 prompts answered" in ran("05_batch_job.py", str(EXAMPLES / "prompts.jsonl"))
