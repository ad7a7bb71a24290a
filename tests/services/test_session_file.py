"""The lock and the table of an owner's sessions, with processes that really hold it, die and are somebody else."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcluster.errors import DeviceUnreachable, LimitReached
from kvcluster.services.session_file import (
    SessionFile,
    began_at,
    listening_at,
    open_session_file,
    started_at,
)
from kvcluster.services.session_table import MOST_ROWS

HOLDER = """
import sys, time
from pathlib import Path
from kvcluster.services.session_file import open_session_file
file = open_session_file(Path(sys.argv[1]), wait_s=10.0)
file.enter("of-the-holder", int(sys.argv[2]))
file.note("of-the-holder", 4096)
file.listens_at("\\0somewhere")
print(file.epoch, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "device-node-host:0.sessions"


@pytest.fixture
def client() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may have memory mapped."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def opened(path: Path) -> SessionFile:
    file = open_session_file(path, wait_s=10.0)
    for survivor in file.survivors:
        os.close(survivor.pidfd)
    return file


def hold(path: Path, pid: int) -> tuple[subprocess.Popen[str], int]:
    """Another process that is an incarnation of the owner, and its epoch."""
    command = [sys.executable, "-c", HOLDER, str(path), str(pid)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def kill(holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.communicate()


def test_a_killed_owner_leaves_its_living_clients_and_what_they_may_have_to_a_later_epoch(
    path: Path, client: subprocess.Popen[bytes]
) -> None:
    holder, epoch = hold(path, client.pid)
    assert listening_at(path) is not None
    kill(holder)
    file = opened(path)
    [survivor] = file.survivors
    assert (survivor.session, survivor.pid, survivor.size_bytes) == ("of-the-holder", client.pid, 4096)
    assert (file.epoch > epoch, file.incarnation, listening_at(path)) == (True, 2, None)
    file.close()
    assert path.exists()


def test_who_is_dead_or_is_another_process_by_now_is_not_left(path: Path, client: subprocess.Popen[bytes]) -> None:
    holder, _ = hold(path, client.pid)
    kill(holder)
    data = bytearray(path.read_bytes())
    at = data.index(b"of-the-holder") + 72  # when it started
    data[at : at + 8] = (1).to_bytes(8, "little")
    path.write_bytes(bytes(data))
    file = opened(path)
    assert file.survivors == ()
    file.enter("another", client.pid)
    file.close()
    client.kill()
    client.wait()
    file = opened(path)
    assert file.survivors == ()
    file.close()
    assert not path.exists()


FLICKER = """
import sys
from pathlib import Path
from kvcluster.services.session_file import open_session_file
file = open_session_file(Path(sys.argv[1]), wait_s=10.0)
file.enter("flickering", int(sys.argv[2]))
file.note("flickering", 1 << 40)
print("on the way", flush=True)
while True:
    for number in range(1000):
        file.note("flickering", (1 << 40) + number)
"""


def test_whoever_reads_while_a_figure_is_written_never_finds_another_one_than_was_written(
    path: Path, client: subprocess.Popen[bytes]
) -> None:
    command = [sys.executable, "-c", FLICKER, str(path), str(client.pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
            words = memoryview(memory).cast("Q")
            [place] = [at for at in range(len(words)) if words[at] >> 40 == 1 and words[at] & 0xFFFF_FFFF < 1000]
            seen = {words[place] for _ in range(300_000)}
            words.release()
        writer.kill()
    assert min(seen) >> 40 == max(seen) >> 40 == 1


def test_all_of_a_table_is_allocated_before_anybody_writes_it(path: Path) -> None:
    file = opened(path)
    held = path.stat()
    assert held.st_blocks * 512 >= held.st_size
    file.close()


def test_a_table_that_finds_no_room_says_so_in_a_sentence_and_leaves_nothing_open(path: Path) -> None:
    code = (
        "import os, resource, sys; from pathlib import Path\n"
        "from kvcluster.services.session_file import open_session_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "before = os.listdir('/proc/self/fd')\n"
        "try: open_session_file(Path(sys.argv[1]), wait_s=1.0)\n"
        "except OSError as error: print(error, os.listdir('/proc/self/fd') == before)\n"
    )
    said = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    assert "no room for the" in said
    assert str(path) in said
    assert said.endswith("True\n")


def test_two_incarnations_never_hold_the_lock_together(path: Path) -> None:
    holder, _ = hold(path, os.getpid())
    with pytest.raises(DeviceUnreachable, match="still holds"):
        open_session_file(path, wait_s=0.05)
    kill(holder)
    opened(path).close()


def test_a_stopped_owner_keeps_its_lock_until_it_is_dead(path: Path) -> None:
    holder, _ = hold(path, os.getpid())
    holder.send_signal(signal.SIGSTOP)
    with pytest.raises(DeviceUnreachable):
        open_session_file(path, wait_s=0.05)
    kill(holder)
    opened(path).close()


def test_a_file_that_is_no_table_of_ours_is_begun_anew(path: Path) -> None:
    path.write_bytes(b"something else" * 100)
    assert listening_at(path) is None
    file = opened(path)
    assert (file.incarnation, file.survivors) == (1, ())
    file.close()


def test_nobody_is_there_where_no_file_is(path: Path) -> None:
    assert listening_at(path) is None


def test_a_session_that_is_struck_or_never_came_has_no_row(path: Path, client: subprocess.Popen[bytes]) -> None:
    file = opened(path)
    file.enter("one", client.pid)
    file.enter("one", client.pid)
    file.note("two", 5)
    file.strike("one")
    file.strike("two")
    file.close()
    assert not path.exists()


def test_who_has_nothing_of_this_incarnation_keeps_no_file_of_it(path: Path, client: subprocess.Popen[bytes]) -> None:
    holder, _ = hold(path, client.pid)
    kill(holder)
    before = os.listdir("/proc/self/fd")
    file = open_session_file(path, wait_s=10.0)
    file.forget_survivors()
    assert file.survivors == ()
    file.enter("of-the-holder", client.pid)
    file.strike("of-the-holder")
    file.close()
    assert not path.exists()
    assert os.listdir("/proc/self/fd") == before


def test_a_file_goes_with_its_owner_where_nobody_in_it_lives_and_stays_where_somebody_does(
    path: Path, client: subprocess.Popen[bytes]
) -> None:
    for is_killed in (False, True):
        file = opened(path)
        file.enter("one", client.pid)
        if is_killed:
            client.kill()
            client.wait()
        file.close()
        assert path.exists() != is_killed


def test_there_is_room_for_so_many_sessions_and_the_next_is_refused(path: Path) -> None:
    file = opened(path)
    for number in range(MOST_ROWS):
        file.enter(f"s{number}", os.getpid())
    with pytest.raises(LimitReached):
        file.enter("one-more", os.getpid())
    file.strike("s7")
    file.enter("one-more", os.getpid())
    for number in range(MOST_ROWS):
        file.strike(f"s{number}")
    file.strike("one-more")
    file.close()


def test_a_link_in_the_place_of_the_file_is_not_followed(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        open_session_file(path, wait_s=0.05)
    assert not target.exists()


def test_when_a_process_began_is_known_while_it_lives(client: subprocess.Popen[bytes]) -> None:
    began = started_at(client.pid)
    assert began is not None
    client.kill()
    os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)  # its remains are still there
    assert (started_at(client.pid), began_at(client.pid)) == (None, began)
    client.wait()
    assert (started_at(client.pid), began_at(client.pid)) == (None, None)


@pytest.mark.parametrize("at", [8, 16], ids=["epoch", "incarnation"])
def test_a_file_with_counts_that_nobody_reached_is_begun_anew(path: Path, at: int) -> None:
    first = opened(path)
    first.enter("one", os.getppid())
    first.close()
    data = bytearray(path.read_bytes())
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(bytes(data))
    file = opened(path)
    assert (file.incarnation, file.survivors) == (1, ())
    file.close()
