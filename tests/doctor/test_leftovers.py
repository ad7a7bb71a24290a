"""Leftovers are told from real processes: whose memory has no descriptor left, whose Ray is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvcluster.services.doctor import Finding, Status
from kvcluster.services.doctor.leftovers import Process, judge, processes

OK, NOTE, PROBLEM = Status.OK, Status.NOTE, Status.PROBLEM


HOLDER = """
import os, signal, socket, sys
from kvcluster.driver.host import open_host_driver
from kvcluster.transaction import Progress
driver = open_host_driver(capacity_bytes=2**20)
line = socket.socket(fileno=0)
if "client" in sys.argv:
    _, [descriptor], *_ = socket.recv_fds(line, 1, 1)
    handle = driver.import_fd(descriptor, 2**16)
    os.close(descriptor)
else:
    handle = driver.create(2**16)
    if "device" in sys.argv:
        socket.send_fds(line, [b"x"], [driver.export_fd(handle)])
if "maps" in sys.argv:
    address = driver.reserve(2**17)
    driver.map(address, [handle], Progress())
    driver.map(address + 2**16, [handle], Progress())
    driver.release(handle)
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def process(*words: str, line: socket.socket, named: str = sys.executable) -> Iterator[int]:
    """A process with 64 KiB, called `named`; its id. Killed in the end."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [named, "-c", HOLDER, *words], executable=sys.executable, env=environment, stdin=line, stdout=subprocess.PIPE
    ) as child:
        line.close()
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        try:
            yield child.pid
        finally:
            child.kill()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A line with two ends."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


Pair = tuple[socket.socket, socket.socket]


def left_by(pid: int) -> list[Finding]:
    return [found for found in judge(tuple(processes())) if f"process {pid} " in found.sentence]


@pytest.mark.parametrize("holds", ["maps", "keeps a descriptor"])
def test_what_a_client_holds_is_a_leftover_from_when_its_device_is_gone(pair: Pair, holds: str) -> None:
    with process("device", line=pair[0]) as device, process("client", holds, line=pair[1]) as client:
        assert {device, client} <= {seen.pid for seen in processes()}
        assert left_by(client) == []
        os.kill(device, signal.SIGKILL)
        os.waitid(os.P_PID, device, os.WEXITED | os.WNOWAIT)
        [found] = left_by(client)
    assert found.status is NOTE
    assert "holds 64.0 KiB of memory whose device is gone" in found.sentence
    assert f"kill {client}" in str(found.remedy)


def test_what_a_process_made_for_itself_is_no_leftover(pair: Pair) -> None:
    with process("maps", line=pair[0]) as pid:
        assert pid in {seen.pid for seen in processes()}
        assert left_by(pid) == []


@pytest.mark.parametrize("actor", ["DeviceActor", "RequestActor"])
def test_an_actor_whose_ray_is_gone_is_a_problem(pair: Pair, actor: str) -> None:
    with process(line=pair[0], named=f"ray::{actor}") as pid:
        [found] = left_by(pid)
    assert (found.status, found.remedy) == (PROBLEM, f"kill {pid}")
    assert f"is a {actor} whose Ray is gone" in found.sentence


def test_an_actor_below_its_raylet_is_no_leftover_and_neither_is_another_of_ray() -> None:
    seen = (Process(1, "raylet", "ray::DeviceActor.frame"), Process(2, "systemd", "ray::Counter"))
    [found] = judge(seen)
    assert found.status is OK
