"""An owner that is gone is found again, one that hangs is ended first, and what no waiting cures is said at once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from actors.finding import BEGINNINGS, find_owner, session_with
from actors.owners import OwnerKind, Sought
from actors.proxies import open_session
from actors.records import read_log
from actors.supervisor import meet_supervisor
from kvcluster.errors import DeviceGone, DeviceUnreachable
from tests.actors.world import TIMEOUT_S, World, eventually, has_ended

GONE = DeviceGone(device="host:0", reason="it is leaving")
FOREIGN = DeviceUnreachable(device="host:0", reason="another user's process listens under its name")


class Search:
    """What is found by it is opened after the errors were raised, each once, or the last of them for ever."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.found = 0

    def find(self) -> int:
        self.found += 1
        return self.found

    def opened(self, number: int) -> int:
        if self._errors:
            raise self._errors.pop(0)
        return number


class Vain(Search):
    """Nothing is ever opened."""

    def opened(self, number: int) -> int:
        raise GONE


class FullDisk:
    """An owner that cannot begin. `notes` has a line for each time that it was tried."""

    def __init__(self, notes: Path) -> None:
        with notes.open("a") as file:
            file.write("tried\n")
        raise OSError(28, "No space left on device", "a run folder")

    def address(self) -> None:
        raise AssertionError("it began")


def test_an_owner_that_cannot_begin_is_tried_twice_and_says_why(node_id: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    sought = Sought(OwnerKind.DEVICE, "full", node_id, FullDisk, notes, check=lambda _: None)
    with pytest.raises(DeviceUnreachable, match=r"device full .*No space left on device: 'a run folder'"):
        find_owner(sought)
    assert notes.read_text().count("tried") == BEGINNINGS


def test_an_owner_that_left_before_it_was_greeted_is_found_again() -> None:
    search = Search(GONE, GONE)
    assert session_with(search.find, search.opened) == 3


def test_an_error_that_no_waiting_cures_is_raised_at_once() -> None:
    search = Search(FOREIGN)
    with pytest.raises(DeviceUnreachable, match="another user"):
        session_with(search.find, search.opened)
    assert search.found == 1


def test_owners_that_leave_for_ever_are_found_a_few_times_and_the_last_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.finding.LEAVING_S", 0.2)
    search = Vain()
    with pytest.raises(DeviceGone, match="leaving"):
        session_with(search.find, search.opened)
    assert 2 < search.found < 10


def test_a_device_that_hangs_while_nobody_waits_for_it_is_ended_by_whoever_comes_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.finding.HUNG_S", 0.5)
    monkeypatch.setattr("actors.seeking.KNOCK_S", 1.0)
    settings = world.settings()
    device = world.device(settings)
    meet_supervisor()
    os.kill(device.address.pid, signal.SIGSTOP)
    port = open_session(device.name, world.node_id, settings)
    assert has_ended(device.address.pid, TIMEOUT_S)
    assert port.in_touch()
    port.close()
    [death] = eventually(lambda: [each for each in read_log().deaths if each.who.name == device.name], "it is told")
    assert death.cause.startswith("it did not answer")
