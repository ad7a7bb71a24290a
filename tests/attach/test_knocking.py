"""Who listens is named by a pidfd, awake or not; of those who are asked, only who says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvcluster.attach.knocking import process_at, silent_process
from kvcluster.attach.server import AttachServer, open_attach_server
from tests.attach.attach_world import ROOT, TIMEOUT_S, Recorder, Serving

LISTENER = """
import os
from kvcluster.attach.server import open_attach_server
from tests.attach.attach_world import Recorder, Serving
server = open_attach_server("host:0", Recorder())
print(server.address.replace(chr(0), "@"), flush=True)
Serving(server)
"""
SHORT_S = 0.02


@pytest.fixture
def deaf() -> Iterator[AttachServer]:
    """It listens, and nobody serves it."""
    server = open_attach_server("host:0", Recorder())
    yield server
    server.close()


def named(pidfd: int | None) -> int | None:
    """Whose pidfd it is; it is closed."""
    if pidfd is None:
        return None
    with open(f"/proc/self/fdinfo/{pidfd}") as told:
        [pid] = [int(line.split()[1]) for line in told if line.startswith("Pid:")]
    os.close(pidfd)
    return pid


def test_a_server_answers_whoever_knocks_and_begins_no_session() -> None:
    events = Recorder()
    serving = Serving(open_attach_server("host:0", events))
    assert silent_process(serving.server.address, timeout_s=TIMEOUT_S) is None
    serving.close()
    assert {what for what, _ in events.calls} <= {"idle"}


def test_whoever_listens_is_named_whether_he_answers_or_not(deaf: AttachServer) -> None:
    serving = Serving(open_attach_server("host:0", Recorder()))
    asked = [process_at(serving.server.address, timeout_s=TIMEOUT_S) for _ in range(100)]
    assert {named(pidfd) for pidfd in asked} == {os.getpid()}
    serving.close()
    assert process_at(serving.server.address, timeout_s=TIMEOUT_S) is None
    assert named(process_at(deaf.address, timeout_s=TIMEOUT_S)) == os.getpid()


def test_a_process_whose_socket_nobody_serves_is_named(deaf: AttachServer) -> None:
    assert named(silent_process(deaf.address, timeout_s=SHORT_S)) == os.getpid()


def test_a_stopped_process_is_named_by_a_pidfd_of_its_own_and_one_that_goes_on_is_not() -> None:
    with subprocess.Popen([sys.executable, "-c", LISTENER], cwd=ROOT, stdout=subprocess.PIPE) as listener:
        assert listener.stdout is not None
        address = listener.stdout.readline().decode().strip().replace("@", "\0")
        assert silent_process(address, timeout_s=TIMEOUT_S) is None
        listener.send_signal(signal.SIGSTOP)
        os.waitpid(listener.pid, os.WUNTRACED)
        assert named(silent_process(address, timeout_s=SHORT_S)) == listener.pid
        listener.send_signal(signal.SIGCONT)
        assert silent_process(address, timeout_s=TIMEOUT_S) is None
        listener.kill()
    assert silent_process(address, timeout_s=TIMEOUT_S) is None


def test_a_server_whose_queue_is_full_is_not_named_and_nobody_waits_for_it_for_longer(deaf: AttachServer) -> None:
    assert named(silent_process(deaf.address, timeout_s=SHORT_S)) == os.getpid()
    for _ in range(66):  # each leaves a connection behind
        named(silent_process(deaf.address, timeout_s=0.001))
    assert silent_process(deaf.address, timeout_s=SHORT_S) is None
