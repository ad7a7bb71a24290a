"""The README's Python examples run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_examples_run_as_they_stand() -> None:
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", README, flags=re.MULTILINE)
    example = textwrap.dedent("".join(block for block in blocks if "import kvcluster" in block or ".join(" in block))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("33554432 tensor(1.)\n768 196608 0", "")


def test_every_file_and_folder_that_the_readme_points_to_exists() -> None:
    linked = re.findall(r"\]\(([\w./-]+)\)", README) + re.findall(r"`((?:kvcluster|actors)/[\w/]*)`", README)
    assert len(linked) > 8
    assert [path for path in linked if not (ROOT / path).exists()] == []
