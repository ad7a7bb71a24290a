"""A size that is accepted can be filled to its last granule, and one granule more is refused at the start."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

ROOT = Path(__file__).parents[2]
GRANULES = 700
DEVICE_ROOM = GRANULES + 253  # every handle, and one packet's descriptors
KEPT = 233  # a quarter of a worker's: imports that it keeps from earlier
WORKER_ROOM = GRANULES + KEPT + 1  # every handle that is not mapped yet, and the descriptor that one is imported from


class Children:
    def __init__(self) -> None:
        self._address = f"kvcluster-test-{uuid4().hex}"
        self._ending = ExitStack()

    def start(self, role: str, granules: int, room: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "tests.actors.full_device", role, self._address, str(granules), str(room)]
        child = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._ending.enter_context(child)
        self._ending.callback(child.kill)
        return child

    def close(self) -> None:
        self._ending.close()


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_a_device_of_an_accepted_size_is_filled_with_exactly_the_descriptors_that_were_asked_for(
    children: Children,
) -> None:
    device = children.start("device", GRANULES, DEVICE_ROOM)
    assert said(device) == "ready"
    assert said(children.start("worker", GRANULES, WORKER_ROOM)) == "wrote 700, and keeps 233 descriptors"
    assert said(device) == "created 700"


def test_one_granule_more_than_the_device_has_descriptors_for_is_refused_at_its_start(children: Children) -> None:
    sentence = said(children.start("device", GRANULES + 1, DEVICE_ROOM))
    assert "takes 954 descriptors in the device's process at a granule of 4096, and 953 are left" in sentence
    assert "give at most 2.7 MiB" in sentence


def test_one_granule_more_than_a_worker_has_descriptors_for_is_refused_at_its_start(children: Children) -> None:
    assert said(children.start("device", GRANULES + 1, DEVICE_ROOM + 1)) == "ready"
    sentence = said(children.start("worker", GRANULES + 1, WORKER_ROOM))
    assert "takes 935 descriptors in a worker's process at a granule of 4096, and 934 are left" in sentence
