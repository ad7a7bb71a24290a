"""What a failpoint does when it is armed, in this process and in another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcluster.config import ConfigError, settings_from
from kvcluster.errors import DriverError
from kvcluster.failpoints import ENVIRONMENT, Failpoint, Passer, ReplyLost, process_is, reach
from kvcluster.testing.arming import EXIT_STATUS, Fault, armed, marks_in, parse_faults

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
        "client.commit.mapped=kill@101%",
        "client.commit.mapped=kill@0%",
        "client.commit.mapped=kill@%",
        "client.commit.mapped=lose",
        "device:client.commit.mapped=kill",
        "nobody:client.commit.mapped=kill",
        "client.commit.mapped=kill;marks=/nowhere/at/all",
    ],
)
def test_text_that_means_nothing_is_refused_when_it_is_read(text: str) -> None:
    with pytest.raises(ValueError, match=r"names no|is no |are no seconds"):
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


def test_a_share_is_spread_evenly_and_begins_with_the_first() -> None:
    fault = Fault(Failpoint.CLIENT_REPLY, "lose", "", None, percent=10)
    due = [passage for passage in range(1, 201) if fault.is_due(passage)]
    assert due == list(range(1, 201, 10))
    assert parse_faults("client.reply.arrived=lose@10%") == (fault,)


@pytest.mark.parametrize(("percent", "lost"), [(1, 1), (50, 50), (33, 33), (100, 100)])
def test_of_each_hundred_so_many_replies_are_lost(percent: int, lost: int) -> None:
    missed = 0
    with armed(f"client.reply.arrived=lose@{percent}%"):
        for _ in range(100):
            try:
                reach(Failpoint.CLIENT_REPLY)
            except ReplyLost:
                missed += 1
    assert missed == lost


@pytest.fixture
def nobody_afterwards() -> Iterator[None]:
    yield
    process_is(None)


@pytest.mark.usefixtures("nobody_afterwards")
def test_a_fault_for_one_kind_of_process_happens_in_no_other() -> None:
    with armed("pages:device.frame.stored=raise@*"):
        reach(Failpoint.DEVICE_STORED)
        process_is(Passer.DEVICE)
        reach(Failpoint.DEVICE_STORED)
        process_is(Passer.PAGES)
        with pytest.raises(DriverError):
            reach(Failpoint.DEVICE_STORED)


def test_with_marks_a_fault_happens_once_in_all_processes_and_says_in_which(tmp_path: Path) -> None:
    faults = f"client.commit.mapped=kill@2;marks={tmp_path}"
    first, second = run_child(faults), run_child(faults)
    assert (first.returncode, first.stdout.split()) == (-signal.SIGKILL, ["0", "1"])
    assert (second.returncode, second.stdout.split()) == (0, ["0", "1", "2"])
    [(name, [pid])] = marks_in(tmp_path).items()
    assert (name, pid > 0) == ("client.commit.mapped=kill@2", True)


def test_with_marks_what_happens_at_each_passage_is_counted_and_goes_on_happening(tmp_path: Path) -> None:
    with armed(f"client.reply.arrived=lose@50%;marks={tmp_path}"):
        for _ in range(2):
            with pytest.raises(ReplyLost):
                reach(Failpoint.CLIENT_REPLY)
            reach(Failpoint.CLIENT_REPLY)
    assert marks_in(tmp_path) == {"client.reply.arrived=lose@50%": [os.getpid()] * 2}


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


def test_a_setting_that_arms_nothing_known_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^failpoints is 'client.commit.nowhere=kill', and .* names no failpoint"):
        settings_from({"model": "m", "failpoints": "client.commit.nowhere=kill"})
    text = "client.commit.mapped=kill@2"
    assert settings_from({"model": "m", "failpoints": text}).failpoints == text


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e99", "soon"])
def test_a_delay_that_nobody_can_wait_is_refused(seconds: str) -> None:
    with pytest.raises(ValueError, match="are no seconds to wait: write a number from 0 to 3600"):
        parse_faults(f"client.commit.mapped=delay:{seconds}")


def test_a_name_that_is_nearly_one_is_answered_with_it() -> None:
    with pytest.raises(ValueError, match=r"did you mean device\.commit\.charged\?"):
        parse_faults("device.commit.charge=kill")
