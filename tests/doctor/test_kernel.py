"""What the kernel offers is tried for real; how old it may be is told from figures."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvcluster.services.doctor import Status
from kvcluster.services.doctor.kernel import pages, pidfd, release, rights, seals
from kvcluster.units import KIB

OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


@pytest.mark.parametrize(
    ("system", "version", "status"),
    [
        ("Linux", "6.18.44-x", OK),
        ("Linux", "6.5.0", OK),
        ("Linux", "6.4.16", NOTE),
        ("Linux", "5.15.0-91-generic", NOTE),
        ("Linux", "10.0", OK),
        ("Darwin", "23.1.0", PROBLEM),
    ],
)
def test_a_kernel_before_6_5_is_noted_and_another_system_is_a_problem(
    system: str, version: str, status: Status
) -> None:
    assert release(system, version).status is status


@pytest.mark.parametrize(("page_bytes", "status"), [(4 * KIB, OK), (64 * KIB, OK), (128 * KIB, PROBLEM)])
def test_pages_larger_than_the_default_granule_are_a_problem(page_bytes: int, status: Status) -> None:
    assert pages(page_bytes).status is status


def test_seals_pidfds_and_descriptors_over_sockets_work_here() -> None:
    for probe in (seals, pidfd, rights):
        probe()


def test_what_the_kernel_refuses_is_a_problem_that_says_why() -> None:
    program = (
        "import resource\n"
        "from kvcluster.services.doctor import kernel\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "for found in kernel.findings():\n"
        "    print(found.status, found.topic, found.sentence, sep='|')\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    rows = [row.split("|") for row in said.stdout.splitlines()]
    assert [status for status, _, _ in rows] == ["ok", "ok", "problem", "problem", "problem"]
    assert {sentence for _, _, sentence in rows[2:]} == {"it does not work here: Too many open files."}
