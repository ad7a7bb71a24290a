"""Sealed memory in other processes: one that writes it dies alone, and no descriptor of it lets anybody write."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import DriverError
from kvcluster.testing.tidy_driver import TidyDriver
from tests.driver.sealing import PAGE, SIZE, read_back, written

ROOT = Path(__file__).parents[2]


@pytest.fixture
def owner() -> Iterator[TidyDriver]:
    owner = TidyDriver(granule_bytes=PAGE, capacity_bytes=16 * PAGE)
    yield owner
    owner.clear()


class Child:
    """Another process, of `tests.driver.seal_children`."""

    def __init__(self, name: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(60)
        self._answers = self._socket.makefile("r", encoding="utf-8")
        command = [sys.executable, "-m", "tests.driver.seal_children", name, str(theirs.fileno())]
        self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=(theirs.fileno(),))
        theirs.close()

    def send(self, driver: TidyDriver, handle: PhysicalHandle) -> None:
        descriptor = driver.export_fd(handle)
        socket.send_fds(self._socket, [str(SIZE).encode()], [descriptor])
        os.close(descriptor)

    def found(self) -> object:
        """What it says next; None where it ended without a word."""
        line = self._answers.readline()
        return json.loads(line) if line else None

    def go_on(self) -> None:
        self._socket.sendall(b".")

    def end(self) -> int:
        """How it ended."""
        status = self._process.wait(60)
        self._answers.close()
        self._socket.close()
        return status


def test_a_joiner_that_writes_dies_alone(owner: TidyDriver) -> None:
    handle = written(owner)
    owner.seal(handle)
    reader, writer = Child("read"), Child("read_and_write")
    for child in (reader, writer):
        child.send(owner, handle)
    assert (reader.found(), writer.found()) == ("sealed", "sealed")
    assert (writer.found(), writer.end()) == (None, -signal.SIGSEGV)
    reader.go_on()
    assert (reader.found(), reader.end()) == ("sealed", 0)
    assert read_back(owner, handle) == b"sealed"


def test_a_former_owner_that_writes_dies_alone(owner: TidyDriver) -> None:
    handle = owner.create(SIZE)
    former, reader = Child("own_and_write"), Child("read")
    former.send(owner, handle)
    assert former.found() == "unmapped"
    owner.seal(handle)
    for child in (former, reader):
        child.send(owner, handle)
    assert (former.found(), reader.found()) == ("sealed", "sealed")
    assert (former.found(), former.end()) == (None, -signal.SIGSEGV)
    reader.go_on()
    assert (reader.found(), reader.end()) == ("sealed", 0)
    assert read_back(owner, handle) == b"sealed"


def test_nobody_writes_shrinks_or_grows_it_or_maps_it_writable_by_any_descriptor(owner: TidyDriver) -> None:
    handle, child = written(owner), Child("try_everything")
    child.send(owner, handle)
    assert child.found() == "imported"
    owner.seal(handle)
    child.send(owner, handle)
    found = child.found()
    assert isinstance(found, dict)
    assert (found["old"], found["new"], found["reopened"]) == ([], [], [])
    assert found["driver"] in ("map", "set_access")
    assert child.end() == 0
    assert read_back(owner, handle) == b"sealed"


def test_a_process_that_has_it_mapped_by_way_of_a_writable_descriptor_hinders_the_seal(owner: TidyDriver) -> None:
    handle, child = written(owner), Child("stand_in_the_way")
    child.send(owner, handle)
    assert child.found() == "mapped"
    with pytest.raises(DriverError, match="EBUSY"):
        owner.seal(handle)
    child.go_on()
    assert child.found() == "unmapped"
    owner.seal(handle)
    assert child.end() == 0
