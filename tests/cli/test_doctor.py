"""`kvcluster doctor`: a line or an object for each finding, and an exit code that says whether there is a problem."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KVCLUSTER = str(Path(sys.executable).with_name("kvcluster"))


def doctor(*options: str, limits: str = "true") -> subprocess.CompletedProcess[str]:
    """The command, after the shell's command `limits`."""
    words = ["bash", "-c", f"{limits} && exec {KVCLUSTER} doctor {' '.join(options)}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_every_finding_is_a_line_with_its_status_and_a_remedy_where_it_has_one() -> None:
    result = doctor()
    *lines, last = result.stdout.splitlines()
    assert result.stderr == ""
    assert {line.split()[0] for line in lines} <= {"ok", "note", "problem", "->"}
    for line, after in zip(lines, [*lines[1:], "ok"], strict=True):
        if line.split()[0] != "->":
            assert (after.split()[0] == "->") == (line.split()[0] != "ok")
    counts = [sum(line.startswith(f"{status} ") for line in lines) for status in ("ok", "note", "problem")]
    assert last == f"{counts[0]} ok, {counts[1]} to note, {counts[2]} in the way"
    assert result.returncode == (1 if counts[2] else 0)


def test_the_object_holds_the_same_and_the_counts() -> None:
    result = doctor("--json")
    found = json.loads(result.stdout)
    statuses = [each["status"] for each in found["findings"]]
    assert {status: statuses.count(status) for status in ("ok", "note", "problem")} == {
        status: found[status] for status in ("ok", "note", "problem")
    }
    for each in found["findings"]:
        assert each.keys() == {"topic", "status", "sentence", "remedy"}
        assert (each["remedy"] is None) == (each["status"] == "ok")
    assert result.returncode == (1 if found["problem"] else 0)


def test_a_limit_too_low_for_the_default_device_is_a_problem_and_exit_code_1() -> None:
    ran = doctor("--json", limits="ulimit -n 4000")
    [found] = [each for each in json.loads(ran.stdout)["findings"] if each["topic"] == "descriptors"]
    assert (ran.returncode, ran.stderr, found["status"]) == (1, "", "problem")
    assert "4,000 (hard)" in found["sentence"]
    assert "ulimit -Hn" in found["remedy"]
