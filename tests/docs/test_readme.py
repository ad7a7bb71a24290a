"""The README's first example runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_python_example_runs_as_it_stands() -> None:
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", README, flags=re.MULTILINE)
    example = next(textwrap.dedent(block) for block in blocks if "import kvcluster" in block)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("33554432 tensor(1.)", "")


def test_every_file_and_folder_that_the_readme_points_to_exists() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"`((?:kvcluster|actors)/[\w/]*)`", README)
    assert len(linked) > 8
    assert [path for path in linked if not (ROOT / path).exists()] == []
