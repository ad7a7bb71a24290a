"""What a failpoint does when it is armed, in this process and in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kvcluster.errors import DriverError
from kvcluster.failpoints import ENVIRONMENT, Failpoint, reach
from kvcluster.testing.arming import EXIT_STATUS, Fault, armed, parse_faults

PASS_THRICE = """
from kvcluster.failpoints import Failpoint, reach
for n in range(3):
    print(n, flush=True)
    reach(Failpoint.CLIENT_MAPPED)
"""


def run_child(faults: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, ENVIRONMENT: faults}
    return subprocess.run([sys.executable, "-c", PASS_THRICE], env=environment, capture_output=True, text=True)


def test_the_text_is_read_in_its_order() -> None:
    text = "client.commit.mapped=kill@2; device.commit.taken=hang:/tmp/x;device.frame.stored=delay:0.5@*;"
    assert parse_faults(text) == (
        Fault(Failpoint.CLIENT_MAPPED, "kill", "", 2),
        Fault(Failpoint.DEVICE_TAKEN, "hang", "/tmp/x", 1),
        Fault(Failpoint.DEVICE_STORED, "delay", "0.5", None),
    )


@pytest.mark.parametrize(
    "text",
    [
        "client.commit.nowhere=kill",
        "client.commit.mapped",
        "client.commit.mapped=explode",
        "client.commit.mapped=kill@0",
        "client.commit.mapped=kill@x",
        "client.commit.mapped=hang",
        "client.commit.mapped=kill:now",
        "client.commit.mapped=delay:soon",
    ],
)
def test_text_that_means_nothing_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no|is no|could not convert"):
        parse_faults(text)


def test_a_point_raises_at_the_passage_that_was_asked_for_and_no_other() -> None:
    with armed("device.commit.taken=raise@2") as arms:
        reach(Failpoint.DEVICE_TAKEN)
        with pytest.raises(DriverError, match=r"device\.commit\.taken"):
            reach(Failpoint.DEVICE_TAKEN)
        reach(Failpoint.DEVICE_TAKEN)
        reach(Failpoint.DEVICE_PLANNED)
    assert (arms.passed[Failpoint.DEVICE_TAKEN], arms.passed[Failpoint.DEVICE_PLANNED]) == (3, 1)
    reach(Failpoint.DEVICE_TAKEN)


def test_a_star_raises_at_each_passage() -> None:
    with armed("device.commit.taken=raise@*"):
        for _ in range(3):
            with pytest.raises(DriverError):
                reach(Failpoint.DEVICE_TAKEN)


def test_a_delay_lets_the_point_be_passed() -> None:
    with armed("device.commit.taken=delay:0.001") as arms:
        reach(Failpoint.DEVICE_TAKEN)
    assert arms.passed[Failpoint.DEVICE_TAKEN] == 1


def test_a_hang_shows_that_it_was_reached_and_lasts_until_its_file_is_gone(tmp_path: Path) -> None:
    file, passed = tmp_path / "here", threading.Event()

    def passing() -> None:
        reach(Failpoint.DEVICE_TAKEN)
        passed.set()

    with armed(f"device.commit.taken=hang:{file}"):
        thread = threading.Thread(target=passing)
        thread.start()
        while not file.exists():
            assert not passed.is_set()
        assert thread.is_alive()
        file.unlink()
        thread.join(timeout=10)
    assert passed.is_set()


def test_a_child_armed_by_its_environment_is_killed_at_its_second_passage() -> None:
    child = run_child("client.commit.mapped=kill@2")
    assert (child.returncode, child.stdout.split()) == (-signal.SIGKILL, ["0", "1"])


def test_a_child_armed_by_its_environment_leaves_at_its_first_passage() -> None:
    child = run_child("client.commit.mapped=exit")
    assert (child.returncode, child.stdout.split()) == (EXIT_STATUS, ["0"])
