"""What the CUDA driver's tests do in a process of its own, whose CUDA is another one, or none.

Run as `python -m tests.driver.cuda_children NAME`; prints what it found as one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from kvcluster.driver.cuda import cuda_devices, open_cuda_driver
from kvcluster.errors import KvClusterError, LimitReached
from kvcluster.transaction import Progress


def _told(error: KvClusterError) -> dict[str, Any]:
    return {"error": type(error).__name__, **error.fields()}


def list_devices() -> dict[str, Any]:
    try:
        return {"devices": [[device.ordinal, device.uuid] for device in cuda_devices()]}
    except KvClusterError as error:
        return _told(error)


def without_bindings() -> dict[str, Any]:
    class Blocker:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.partition(".")[0] == "cuda":
                raise ModuleNotFoundError(f"{name} is blocked")

    sys.meta_path.insert(0, Blocker())  # type: ignore[arg-type]
    return list_devices()


def without_memset() -> dict[str, Any]:
    driver = open_cuda_driver()
    size = driver.granularity_bytes
    address, handle = driver.reserve(size), driver.create(size)
    driver.map(address, [handle], Progress())
    found = {}
    try:
        driver.scrub(handle)
    except KvClusterError as error:
        found = _told(error)
    driver.unmap(address, size)
    driver.release(handle)
    driver.free_address(address, size)
    return {**found, "held": driver.memory_info().held_bytes}


def use_up_descriptors() -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    driver = open_cuda_driver()
    handle, exported = driver.create(driver.granularity_bytes), []
    try:
        while True:
            exported.append(driver.export_fd(handle))
    except LimitReached as refusal:
        return {"limit": refusal.limit, "open": len(os.listdir("/proc/self/fd"))}


def lose_the_last_descriptors() -> dict[str, Any]:
    """The rest of the process takes them all after the driver measured."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
    driver = open_cuda_driver()
    os.close(driver.export_fd(driver.create(driver.granularity_bytes)))
    taken = []
    try:
        while True:
            taken.append(os.dup(1))
    except OSError:
        pass
    try:
        driver.create(driver.granularity_bytes)
    except KvClusterError as error:
        return {"error": type(error).__name__, "held": driver.memory_info().held_bytes // driver.granularity_bytes}
    return {}


def hold_until_told() -> dict[str, Any]:
    """Create what the command line says, say so, and keep it until standard input ends."""
    driver = open_cuda_driver()
    driver.create(int(sys.argv[2]))
    print("{}", flush=True)
    sys.stdin.read()
    return {}


def free_bytes() -> dict[str, Any]:
    return {"free": open_cuda_driver().memory_info().free_bytes}


def leave_everything_open() -> dict[str, Any]:
    """Memory, a mapping, a fence; nothing is given back, and nothing is closed."""
    driver = open_cuda_driver()
    driver.map(driver.reserve(driver.granularity_bytes), [driver.create(driver.granularity_bytes)], Progress())
    driver.fence()
    return {}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
