"""Descriptors, mappings and memory: what they come to, and when they are too few."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcluster.services.doctor import Status
from kvcluster.services.doctor.limits import Memory, bound, measure_memory, memory_finding
from kvcluster.units import GIB, KIB, MIB
from tests.doctor.files import write

OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


@pytest.mark.parametrize(
    ("granules", "status"),
    [(8_191, PROBLEM), (8_192, NOTE), (GIB * 4 // (64 * KIB) - 1, NOTE), (GIB * 4 // (64 * KIB), OK)],
)
def test_a_limit_is_a_problem_below_the_default_device_and_a_note_below_the_memory(
    granules: int, status: Status
) -> None:
    memory = Memory(4 * GIB + 256 * MIB, None)
    assert bound("mappings", "so many", granules=granules, memory=memory, remedy="more").status is status


def test_a_limit_says_what_it_comes_to_at_both_granules() -> None:
    found = bound("mappings", "it is 65,530", granules=64_250, memory=Memory(GIB, None), remedy="more")
    assert (
        found.sentence == "it is 65,530: at most 64,250 granules a process, 3.9 GiB at 64 KiB and 125.5 GiB at 2 MiB."
    )


@pytest.mark.parametrize(
    ("memory", "status", "words"),
    [
        (Memory(8 * GIB, None), OK, "8.0 GiB are available, limited by nothing; devices may have 7.8 GiB"),
        (Memory(8 * GIB, GIB), OK, "limited by control groups to 1.0 GiB; devices may have 768.0 MiB"),
        (Memory(8 * GIB, 700 * MIB), PROBLEM, "limited by control groups to 700.0 MiB; less 256.0 MiB in spare"),
        (Memory(100 * MIB, None), PROBLEM, "100.0 MiB are available"),
    ],
)
def test_memory_is_what_the_machine_and_its_control_groups_leave(memory: Memory, status: Status, words: str) -> None:
    found = memory_finding(memory)
    assert found.status is status
    assert words in found.sentence


def test_memory_is_read_from_the_machine_and_from_its_control_group(tmp_path: Path) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 900 kB\nMemFree: 1 kB\nMemAvailable:  512 kB\n")
    assert measure_memory(tmp_path) == Memory(512 * KIB, None)
    write(tmp_path, "proc/self/cgroup", "0::/job\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "8192\n")
    write(tmp_path, "sys/fs/cgroup/job/memory.current", "4096\n")
    assert measure_memory(tmp_path) == Memory(512 * KIB, 4096)
