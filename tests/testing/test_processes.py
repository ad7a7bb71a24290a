"""A cluster's processes are found by the mark that they began with, and what of ours they hold is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kvcluster.testing.processes import MARK, held_by, marked, name_of

HOLD = """
import mmap, os, socket, sys
descriptor = os.memfd_create("kvcluster-test")
os.ftruncate(descriptor, 4096)
mapping = mmap.mmap(descriptor, 4096)  # which has a descriptor of its own
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind("\\0kvcluster-test-" + str(os.getpid()))
listening.listen()
print("here", flush=True)
sys.stdin.read()
"""
FORK = "import os, sys; os.fork() and os._exit(0); print(os.getpid(), flush=True); sys.stdin.read()"


@contextmanager
def child(program: str, mark: str) -> Iterator[tuple[int, str]]:
    """Its process, and the first line that it said; it ends with the block."""
    command, environment = [sys.executable, "-c", program], {**os.environ, MARK: mark}
    process = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(timeout=10)
        process.stdout.close()


def test_what_a_process_holds_of_ours_is_counted_by_kind() -> None:
    with child(HOLD, "held") as (pid, _):
        assert held_by(pid) == {"descriptors": 2, "sockets": 1, "mappings": 1}
    assert held_by(pid) == {}


def test_a_process_is_found_by_its_mark_and_no_other() -> None:
    with child(HOLD, "one") as (one, _), child(HOLD, "other") as (other, _):
        assert (marked("one"), marked("other"), marked("none")) == ([one], [other], [])
        assert "python" in name_of(one)
    assert marked("one") == []
    assert name_of(one) == "a process that has ended"


def test_a_process_whose_parent_has_ended_is_found_too() -> None:
    with child(FORK, "orphan") as (parent, said):
        assert marked("orphan") == [int(said)] != [parent]


def test_a_process_that_sets_the_mark_itself_is_not_one_of_them() -> None:
    os.environ[MARK] = "mine"
    try:
        assert marked("mine") == []
    finally:
        del os.environ[MARK]
