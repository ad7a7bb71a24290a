"""Switches of the machine and the environment: huge pages, WSL, threads, a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcluster.services.doctor import Status
from kvcluster.services.doctor.environment import compiler, operators, threads
from kvcluster.services.doctor.gpu import windows
from kvcluster.services.doctor.huge_pages import in_huge_pages, reserved, transparent
from kvcluster.units import MIB
from tests.doctor.files import write

OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


@pytest.mark.parametrize("chosen", ["never", "deny", "advise", "within_size"])
def test_the_huge_page_switch_is_said_beside_what_came(tmp_path: Path, chosen: str) -> None:
    switch = "sys/kernel/mm/transparent_hugepage"
    words = "always within_size advise never deny force".replace(chosen, f"[{chosen}]")
    write(tmp_path, f"{switch}/shmem_enabled", words)
    write(tmp_path, f"{switch}/enabled", "always [madvise] never")
    write(tmp_path, f"{switch}/hpage_pmd_size", str(512 * MIB))  # too large to be tried
    found = transparent(tmp_path)
    assert found.status is NOTE
    assert f"(shmem_enabled is {chosen}, enabled is madvise)" in found.sentence
    assert "shmem_enabled" in str(found.remedy)


def test_a_kernel_without_huge_pages_is_noted(tmp_path: Path) -> None:
    assert transparent(tmp_path).status is NOTE


def test_no_huge_page_comes_where_the_switch_forbids_it() -> None:
    switch = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    forbidden = not switch.exists() or "[never]" in switch.read_text() or "[deny]" in switch.read_text()
    assert in_huge_pages(2 * MIB) in ({False} if forbidden else {False, True})


def test_reserved_huge_pages_are_noted_with_their_bytes_and_none_are_nothing(tmp_path: Path) -> None:
    write(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0")
    assert list(reserved(tmp_path)) == []
    write(tmp_path, "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512")
    [found] = reserved(tmp_path)
    assert (found.status, found.sentence.partition(" are")[0]) == (NOTE, "1.0 GiB")


def test_linux_inside_windows_is_a_problem_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, "proc/version", "Linux version 6.1.0 (gcc)")
    assert list(windows(tmp_path)) == []
    write(tmp_path, "proc/version", "Linux version 5.15.153.1-microsoft-standard-WSL2")
    [found] = windows(tmp_path)
    assert found.status is PROBLEM
    assert "absurdly slow" in found.sentence


@pytest.mark.parametrize(
    ("environment", "status"),
    [
        ({}, OK),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, OK),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, NOTE),
        ({"OMP_WAIT_POLICY": "active"}, NOTE),
        ({"GOMP_SPINCOUNT": "2000"}, OK),
        ({"GOMP_SPINCOUNT": "30000000000"}, NOTE),
        ({"GOMP_SPINCOUNT": "infinite"}, NOTE),
        ({"OMP_NUM_THREADS": "1"}, OK),
    ],
)
def test_threads_that_spin_for_long_are_noted(environment: dict[str, str], status: Status) -> None:
    assert threads(environment, 2).status is status


def test_operators_that_were_not_compiled_are_noted() -> None:
    assert (operators(False).status, operators(True).status) == (NOTE, OK)


def test_a_missing_compiler_is_noted_and_no_problem() -> None:
    assert (compiler(None).status, compiler("/usr/bin/cc").status) == (NOTE, OK)
