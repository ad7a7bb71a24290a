"""The vigil says of each process how it ended, once."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from actors.vigil import Vigil
from kvcluster.services.chronicle import Who
from kvcluster.services.session_file import began_at
from tests.driver.test_exits import is_told_here

TIMEOUT_S = 20.0
Heard = queue.Queue[tuple[Who, str]]


@pytest.fixture
def heard() -> Heard:
    return queue.Queue()


@pytest.fixture
def vigil(heard: Heard) -> Iterator[Vigil]:
    watching = Vigil(lambda who, ending: heard.put((who, ending)))
    thread = threading.Thread(target=watching.run)
    thread.start()
    yield watching
    watching.end()
    thread.join()


def waiting() -> subprocess.Popen[bytes]:
    """A child that ends when its input does."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def began(pid: int) -> int:
    return began_at(pid) or 0


def test_a_process_that_has_the_id_of_one_that_is_gone_is_not_watched_for_it(vigil: Vigil, heard: Heard) -> None:
    with waiting() as killed:
        vigil.begin(Who("device", "before", "node", killed.pid), began(killed.pid) - 1)
        vigil.begin(Who("device", "now", "node", killed.pid), began(killed.pid))
        killed.kill()
        killed.wait()
    assert heard.get(timeout=TIMEOUT_S)[0].name == "now"
    assert heard.empty()


def test_each_that_ends_is_told_with_what_the_kernel_says_and_the_others_are_not(vigil: Vigil, heard: Heard) -> None:
    with waiting() as killed, waiting() as other:
        names = {killed.pid: "killed", other.pid: "other"}
        whose = {pid: Who("device", name, "node", pid) for pid, name in names.items()}
        for who in whose.values():
            vigil.begin(who, began(who.pid))
        killed.kill()
        killed.wait()
        ending = "it was killed by SIGKILL" if is_told_here() else ""
        assert heard.get(timeout=TIMEOUT_S) == (whose[killed.pid], ending)
        assert heard.empty()
        assert other.stdin is not None
        other.stdin.write(b"\n")
        other.stdin.close()
        other.wait()
        assert heard.get(timeout=TIMEOUT_S) == (whose[other.pid], "")
        assert heard.empty()


def test_a_process_that_is_gone_is_not_watched(vigil: Vigil, heard: Heard) -> None:
    with waiting() as gone:
        pass
    vigil.begin(Who("device", "gone", "node", gone.pid), 1)
    with waiting() as killed:
        vigil.begin(Who("device", "killed", "node", killed.pid), began(killed.pid))
        killed.kill()
        killed.wait()
    assert heard.get(timeout=TIMEOUT_S)[0].name == "killed"
