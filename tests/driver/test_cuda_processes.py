"""The CUDA driver in processes of their own: no libcuda, no bindings, other devices, real limits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from kvcluster.testing.stand_in_cuda import UUIDS, environment
from kvcluster.units import KIB, MIB

ROOT = Path(__file__).parents[2]


def _command(*words: object) -> list[str]:
    return [sys.executable, "-m", "tests.driver.cuda_children", *map(str, words)]


def _found(name: str, more: Mapping[str, str]) -> dict[str, Any]:
    clean = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    child = subprocess.run(_command(name), cwd=ROOT, env=clean | more, capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stderr) == (0, "")
    found: dict[str, Any] = json.loads(child.stdout)
    return found


@pytest.mark.skipif(find_library("cuda") is not None, reason="this machine has a libcuda")
def test_a_machine_without_libcuda_is_told_so_with_a_remedy() -> None:
    found = _found("list_devices", {})
    assert (found["error"], found["reason"]) == ("DeviceMissing", "libcuda.so.1 cannot be loaded")
    assert "install NVIDIA's driver" in found["remedy"]


def test_a_process_without_the_bindings_is_told_so_with_a_remedy() -> None:
    found = _found("without_bindings", environment())
    assert (found["error"], found["reason"]) == ("DeviceMissing", "cuda.bindings cannot be imported")
    assert "pip install 'kvcluster[gpu]'" in found["remedy"]


@pytest.mark.parametrize(
    ("visible", "ordinals"),
    [("1", [1]), ("1,0", [1, 0]), (UUIDS[1], [1]), ("", []), ("0,7,1", [0])],
)
def test_a_device_keeps_its_uuid_when_its_number_changes(visible: str, ordinals: list[int]) -> None:
    found = _found("list_devices", environment() | {"CUDA_VISIBLE_DEVICES": visible})
    assert found == {"devices": [[place, UUIDS[ordinal]] for place, ordinal in enumerate(ordinals)]}


def test_a_machine_without_devices_has_none() -> None:
    assert _found("list_devices", environment(DEVICES=0)) == {"devices": []}


def test_a_cuda_that_does_not_start_is_an_error_with_its_own_name() -> None:
    found = _found("list_devices", environment(FAIL="cuInit@1+=802"))
    assert (found["error"], found["call"], found["name"]) == ("DriverError", "cuInit", "CUDA_ERROR_SYSTEM_NOT_READY")


def test_a_library_without_an_entry_point_is_an_error_that_changes_nothing() -> None:
    found = _found("without_memset", environment(MISSING="cuMemsetD8"))
    assert (found["error"], found["call"], found["name"]) == ("DriverError", "scrub", "CUDA_ERROR_NOT_FOUND")
    assert found["held"] == 0


def test_descriptors_are_refused_before_the_last_is_used() -> None:
    found = _found("use_up_descriptors", environment())
    assert found["limit"] == "descriptors"
    assert found["open"] < 300 - 100


def test_descriptors_lost_to_the_rest_of_the_process_are_a_limit_and_change_nothing() -> None:
    assert _found("lose_the_last_descriptors", environment()) == {"error": "LimitReached", "held": 1}


def test_free_bytes_are_what_all_processes_leave(tmp_path: Path) -> None:
    shared = environment(MEMORY="1M", SHARED=tmp_path / "memory")
    assert _found("free_bytes", shared) == {"free": MIB}
    command = _command("hold_until_told", 256 * KIB)
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | shared, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"{}\n"
        assert _found("free_bytes", shared) == {"free": MIB - 256 * KIB}
        child.kill()
        child.wait()
    assert _found("free_bytes", shared) == {"free": MIB}


def test_a_process_that_leaves_everything_open_ends_like_any_other() -> None:
    assert _found("leave_everything_open", environment()) == {}
