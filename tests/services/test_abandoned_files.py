"""Files that a killed owner left: found where nobody holds them, and swept where no client of theirs lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from kvcluster.services.abandoned_files import AbandonedFile, abandoned_files, sweep
from kvcluster.services.doctor import Status
from kvcluster.services.doctor.leftovers import judge
from kvcluster.services.session_file import open_session_file

OWNER = """
import os, signal, sys
from pathlib import Path
from kvcluster.services.session_file import open_session_file
file = open_session_file(Path(sys.argv[1]), wait_s=0)
file.enter("a", int(sys.argv[2]))
os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by_a_killed_owner(path: Path, *, client: int) -> Path:
    """Its file, in which that client stands."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ran = subprocess.run([sys.executable, "-c", OWNER, str(path), str(client)], env=environment, check=False)
    assert ran.returncode == -signal.SIGKILL
    return path


def ended() -> int:
    """The id of a process that is dead."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    return child.pid


def test_a_file_that_an_owner_holds_is_no_leftover_and_is_not_swept(tmp_path: Path) -> None:
    file = open_session_file(tmp_path / "device-n-host:0.sessions", wait_s=0)
    assert list(abandoned_files(tmp_path)) == []
    sweep(tmp_path, but=tmp_path / "other")
    assert len(list(tmp_path.iterdir())) == 1
    file.close()


def test_what_a_killed_owner_left_is_found_with_its_living_clients_and_swept_once_they_are_dead(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as client:
        lived_in = left_by_a_killed_owner(tmp_path / "one.sessions", client=client.pid)
        dead = left_by_a_killed_owner(tmp_path / "two.sessions", client=ended())
        assert list(abandoned_files(tmp_path)) == [AbandonedFile(lived_in, (client.pid,)), AbandonedFile(dead, ())]
        sweep(tmp_path, but=tmp_path / "other")
        assert list(tmp_path.iterdir()) == [lived_in]
    sweep(tmp_path, but=tmp_path / "other")
    assert list(tmp_path.iterdir()) == []


def test_an_owner_sweeps_all_but_its_own_file_and_what_is_none_of_ours(tmp_path: Path) -> None:
    own = left_by_a_killed_owner(tmp_path / "own.sessions", client=ended())
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link.sessions").symlink_to(tmp_path / "notes.txt")
    sweep(tmp_path, but=own)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.sessions", "notes.txt", "own.sessions"]
    file = open_session_file(own, wait_s=0)
    assert file.incarnation == 2
    file.close()


def test_the_doctor_names_each_with_a_remedy_and_none_is_a_problem(tmp_path: Path) -> None:
    files = [AbandonedFile(tmp_path / "one.sessions", (7, 7, 9)), AbandonedFile(tmp_path / "two.sessions", ())]
    lived_in, dead = judge((), files)
    assert (lived_in.status, dead.status) == (Status.NOTE, Status.NOTE)
    assert "process 7, 9 has memory of them" in lived_in.sentence
    assert str(lived_in.remedy).endswith("kill 7, 9")
    assert str(tmp_path / "two.sessions") in dead.sentence
    assert str(dead.remedy).startswith("nothing: the next start")


def test_what_is_no_file_holds_up_nobody_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "device-node-host:0.sessions"
    os.mkfifo(pipe)
    assert list(abandoned_files(tmp_path)) == []
    sweep(tmp_path, but=tmp_path / "mine.sessions")
    assert pipe.exists()
