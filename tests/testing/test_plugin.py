"""The pytest plugin: it costs nobody anything who does not ask for it, and a user's own test runs on it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = "{'ray', 'torch', 'transformers', 'kvcluster.failpoints'}"


def python(*arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_to_load_the_plugin_imports_nothing_heavy_and_nothing_of_ours() -> None:
    program = f"import sys, kvcluster.testing.pytest_plugin; sys.exit(bool({HEAVY} & sys.modules.keys()))"
    assert python("-c", program, timeout_s=60).returncode == 0


def test_pytest_finds_the_plugin_wherever_kvcluster_is_installed() -> None:
    [found] = entry_points(group="pytest11", name="kvcluster")
    assert found.value == "kvcluster.testing.pytest_plugin"


@pytest.mark.timeout(600)
@pytest.mark.no_cover
def test_the_example_of_a_users_own_test_passes() -> None:
    ran = python("-m", "pytest", "-n", "0", "examples/test_my_deployment.py", timeout_s=590)
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "1 passed" in ran.stdout
