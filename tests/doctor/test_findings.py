"""Every finding has a remedy where something is not well, and every topic is looked at."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvcluster.services.doctor import Finding, Status


def test_what_is_well_has_no_remedy_and_all_else_has_one() -> None:
    with pytest.raises(ValueError, match="has a remedy"):
        Finding("topic", Status.OK, "well", remedy="but")
    for status in (Status.NOTE, Status.PROBLEM):
        with pytest.raises(ValueError, match="has a remedy"):
            Finding("topic", status, "not well")


def test_every_topic_is_looked_at_on_this_machine() -> None:
    """In a process of its own: a process that has looked for a GPU's library can take no stand-in for it."""
    program = "from kvcluster.services.doctor import examine\nfor found in examine():\n    print(found.topic)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    topics = set(ran.stdout.splitlines())
    assert {"kernel", "granularity", "memory seals", "pidfd", "descriptors over sockets"} <= topics
    assert {
        "memory",
        "descriptors",
        "mappings",
        "huge pages",
        "GPU",
        "threads",
        "operators",
        "C compiler",
        "leftovers",
    } <= topics
