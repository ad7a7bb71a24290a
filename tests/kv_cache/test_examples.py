"""The examples run as they stand, and say what they say they do. Those with Ray are in tests/actors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "01_grow.py": [r"moved: False; the first 200 as written: True", r"closed: 67,108,864 bytes free"],
    "02_share_a_prefix.py": [r"joined: \d+ of 1,000 tokens are there, as written: True"],
    "03_generate_with_kvcache.py": [
        r"an open cache holds 0 bytes at (?P<address>0x\w+)",
        r"as with DynamicCache: True",
        r"3 beams each: 6 rows, [\d,]+ bytes at (?P=address)",
        r"closed: the device holds 0 bytes",
    ],
}


@pytest.mark.parametrize("example", SAID)
def test_an_example_runs_and_says_what_it_shows(example: str) -> None:
    command = [sys.executable, str(EXAMPLES / example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(".*".join(SAID[example]), done.stdout, flags=re.DOTALL), done.stdout
