"""The host driver against real limits and real deaths, each in a process of its own."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from kvcluster.driver.host import open_host_driver
from kvcluster.driver.limits import LAST_DESCRIPTORS
from kvcluster.driver.protocol import Access
from kvcluster.transaction import Progress
from kvcluster.units import MIB

ROOT = Path(__file__).parents[2]
PAGE = mmap.PAGESIZE


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.driver.children", *words]


def _run(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(name), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def _found(name: str) -> dict[str, Any]:
    child = _run(name)
    assert child.returncode == 0, child.stderr
    found: dict[str, Any] = json.loads(child.stdout)
    return found


def test_a_write_through_a_read_mapping_kills_only_the_writer() -> None:
    child = _run("write_through_a_read_mapping")
    assert json.loads(child.stdout) == {"read": 0}
    assert child.returncode == -signal.SIGSEGV


def test_a_mapping_has_no_access_until_it_is_set() -> None:
    child = _run("touch_without_access")
    assert child.stdout == "{}\n"
    assert child.returncode == -signal.SIGSEGV


def test_the_soft_descriptor_limit_is_raised_and_the_hard_one_is_refused_before_it_is_reached() -> None:
    found = _found("use_up_descriptors")
    assert (found["limit"], found["free"]) == ("descriptors", 0)
    assert found["made"] == 320 - LAST_DESCRIPTORS - found["before"]
    assert found["after"] == found["before"] + found["made"]


def test_at_the_mapping_limit_a_map_is_refused_and_every_unmap_still_works() -> None:
    found = _found("use_up_mappings")
    assert found["limit"] == "mappings"
    assert "vm.max_map_count" in found["remedy"]
    assert (
        100 <= found["made"] <= 200
    )  # room for about 300, and two kernel mappings each: the window and the gap behind it


def test_beyond_the_spare_mappings_a_failed_unmap_leaves_its_window_mapped() -> None:
    found = _found("lose_the_last_mappings")
    assert found == {"limit": "mappings", "free": 0, "call": "unmap", "name": "ENOMEM"}


def test_descriptors_lost_to_the_rest_of_the_process_are_a_limit_and_change_nothing() -> None:
    assert _found("lose_the_last_descriptors") == {"limit": "descriptors", "free": 0, "held": PAGE}


def test_a_create_that_fails_in_the_kernel_leaves_nothing() -> None:
    found = _found("run_into_a_file_size_limit")
    assert found == {"call": "create", "name": "EFBIG", "left": 0, "held": 0}


def test_address_space_has_a_limit_of_its_own() -> None:
    assert _found("run_out_of_address") == {"limit": "bytes of address", "need": 1 << 40}


def test_another_process_imports_over_a_socket_and_outlives_the_exporters_release() -> None:
    driver = open_host_driver(granule_bytes=PAGE, capacity_bytes=MIB)
    handle, address = driver.create(2 * PAGE), driver.reserve(2 * PAGE)
    driver.map(address, [handle], Progress())
    driver.set_access(address, 2 * PAGE, Access.READ_WRITE)
    ctypes.memmove(address, b"exported", 8)
    descriptor = driver.export_fd(handle)
    ours, theirs = socket.socketpair()
    command, number = _command("import_and_answer", str(theirs.fileno())), theirs.fileno()
    with ours, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, pass_fds=(number,)) as child:
        theirs.close()
        socket.send_fds(ours, [str(2 * PAGE).encode()], [descriptor])
        assert ours.recv(6) == b"mapped"
        driver.unmap(address, 2 * PAGE)
        driver.release(handle)
        assert driver.memory_info().held_bytes == 0
        ours.sendall(b".")
        assert child.stdout is not None
        found = json.loads(child.stdout.read())
    assert (found["found"], found["held"], "create" in found["calls"]) == ("exported", 0, False)
    assert os.pread(descriptor, 8, PAGE) == b"answered"
    os.close(descriptor)
    driver.free_address(address, 2 * PAGE)
