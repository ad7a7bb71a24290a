"""What each call costs, through our driver: alone, and for a run of handles side by side.

A run has one set_access and one unmap over all of it; its times are a handle's share. Import is another process's: it
is given the descriptors. The driver's own books cost 1 to 2 us a call. No memory is touched.
"""

from __future__ import annotations

import os
from typing import Any

from benchmarks.gpu_check.children import started
from benchmarks.gpu_check.setting import Found, Setting
from benchmarks.gpu_check.timing import Stopwatch, told
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.driver.protocol import Access, Driver, PhysicalHandle
from kvcluster.transaction import Progress
from kvcluster.units import MIB

SIZES_MIB = (2, 16, 32)


def check(setting: Setting) -> Found:
    """Raises DriverError where a call fails."""
    driver = open_cuda_driver(setting.device)
    figures: dict[str, Any] = {"granule_bytes": driver.granularity_bytes, "run": setting.run}
    for size_mib in SIZES_MIB:
        size_bytes = max(size_mib * MIB, driver.granularity_bytes)
        figures[f"{size_mib} MiB, alone"] = _cycles(driver, size_bytes, count=1, rounds=setting.rounds)
        figures[f"{size_mib} MiB, a run"] = _cycles(driver, size_bytes, count=setting.run, rounds=setting.rounds // 4)
        figures[f"{size_mib} MiB, shared"] = _shared(driver, setting, size_bytes)
    driver.close()
    alone, run = figures["2 MiB, alone"], figures["2 MiB, a run"]
    costs = ", ".join(f"{name} {alone[name]['median_us']:.0f}" for name in ("create", "map", "set_access", "unmap"))
    a_run = ", ".join(f"{name} {run[name]['median_us']:.1f}" for name in ("set_access", "unmap"))
    return Found(f"2 MiB in us: {costs}; a handle's share of a run: {a_run}", figures)


def _cycles(driver: Driver, size_bytes: int, *, count: int, rounds: int) -> dict[str, Any]:
    watch, address = Stopwatch(), driver.reserve(count * size_bytes)
    for number in range(-2, max(rounds, 2)):
        _cycle(driver, address, size_bytes, count, watch if number >= 0 else Stopwatch())  # the first two warm up
    driver.free_address(address, count * size_bytes)
    return watch.told()


def _cycle(driver: Driver, address: int, size_bytes: int, count: int, watch: Stopwatch) -> None:
    with watch.timed("create", parts=count):
        handles = [driver.create(size_bytes) for _ in range(count)]
    with watch.timed("map", parts=count):
        for place, handle in enumerate(handles):
            driver.map(address + place * size_bytes, [handle], Progress())
    with watch.timed("set_access", parts=count):
        driver.set_access(address, count * size_bytes, Access.READ_WRITE)
    with watch.timed("unmap", parts=count):
        driver.unmap(address, count * size_bytes)
    with watch.timed("release", parts=count):
        for handle in handles:
            driver.release(handle)


def _shared(driver: Driver, setting: Setting, size_bytes: int) -> dict[str, Any]:
    """Export here, import there."""
    watch, handles = Stopwatch(), [driver.create(size_bytes) for _ in range(setting.run)]
    descriptors = [_exported(driver, handle, watch) for handle in handles]
    try:
        with started("import_times", setting.ordinal, size_bytes, descriptors=descriptors) as child:
            imports = child.says()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        for handle in handles:
            driver.release(handle)
    return watch.told() | {name: told(times_us) for name, times_us in imports.items()}


def _exported(driver: Driver, handle: PhysicalHandle, watch: Stopwatch) -> int:
    with watch.timed("export"):
        return driver.export_fd(handle)
