"""Which device is checked: a GPU, or the stand-in where this machine has none; and what is told of it and the machine.

The stand-in's environment is given to every process of the check. Its memory is shared by them, as a GPU's is.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvcluster.driver.cuda import cuda_devices, cuda_support
from kvcluster.driver.cuda_devices import device_named
from kvcluster.testing.stand_in_cuda import environment

PACKAGES = ("torch", "cuda-bindings", "msgpack", "pydantic", "pytest")
STAND_IN = "stand-in"


@dataclass(frozen=True, slots=True)
class Target:
    """`name` is for people and file names; `told` goes into the JSON."""

    name: str
    ordinal: int
    environment: Mapping[str, str]
    told: Mapping[str, Any]

    @property
    def is_stand_in(self) -> bool:
        return self.name == STAND_IN


def gpu(name: str) -> Target | None:
    """The GPU that `name` means ("cuda:0", a UUID); None where this process sees none at all.

    Raises:
        DeviceMissing: the bindings or libcuda are not there, or no such device among those that are seen.
        DriverError: CUDA is there and does not work.
        ValueError: `name` names no device.
    """
    devices = cuda_devices()
    if not devices:
        return None
    found = device_named(name, devices)
    support = cuda_support(found)
    told = {
        "name": found.name,
        "uuid": found.uuid,
        "total_bytes": found.total_bytes,
        "granule_bytes": support.granule_bytes,
        "recommended_bytes": support.recommended_bytes,
        "missing": list(support.missing),
    }
    return Target(found.name, found.ordinal, os.environ, told | _driver())


def stand_in(folder: Path) -> Target:
    """The stand-in with a granule as GPUs have it; `folder` takes the file that its processes share.

    Raises:
        OSError, subprocess.CalledProcessError: it cannot be built.
    """
    settings = environment(DEVICES=1, GRANULE="2M", MEMORY="2G", SHARED=folder / "memory")
    return Target(STAND_IN, 0, os.environ | settings | {"CUDA_VISIBLE_DEVICES": "0"}, {"name": STAND_IN})


def machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}},
        "command": " ".join(["python", "-m", "benchmarks.gpu_check", *sys.argv[1:]]),
    }


def slug(name: str) -> str:
    """`name` as a file's: "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _driver() -> dict[str, Any]:
    """The version of CUDA that the driver speaks, and its own, where the kernel tells it."""
    from cuda.bindings import driver as cu

    status, speaks = cu.cuDriverGetVersion()
    file = Path("/sys/module/nvidia/version")
    own = file.read_text().strip() if file.exists() else None
    return {"cuda_version": None if int(status) else speaks, "driver_version": own or _driver_from_proc()}


def _driver_from_proc() -> str | None:
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"(\d+\.\d+(\.\d+)?)", file.read_text()) if file.exists() else None
    return found[1] if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
