"""How long a sequence waits for its next granule: frame, ledger, transaction and driver, on a device in this process.

8B-class geometry (32 layers, 8 KV heads, head_dim 128, 16 bit: 128 KiB a token), token-major, so that 2 MiB are 16
tokens and one growth is one window. With the pool its handles were made ahead, off the clock, as the device's filler
does; without it each growth creates. The first commit, which opens the request, is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.gpu_check.setting import Broken, Found, Setting
from benchmarks.gpu_check.timing import Stopwatch
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.local import LocalDevice, open_local_device
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.units import ceil_div

GEOMETRY = KvGeometry.uniform(layers=32, kv_heads=8, head_dim=128, element_bytes=2)
POOLED = 4  # granules


def check(setting: Setting) -> Found:
    """
    Raises:
        KvClusterError: a growth failed.
        Broken: one with a full pool made a create, or one without it made none.
    """
    watch = Stopwatch()
    with _device(setting, pooled=POOLED) as device:
        _check_creates(_grow(device, setting.growths, watch, "with the pool"), 0)
    with _device(setting, pooled=0) as device:
        windows = ceil_div(GEOMETRY.token_bytes, device.driver.granularity_bytes)  # a growth
        _check_creates(_grow(device, setting.growths, watch, "without"), setting.growths * windows)
    figures = watch.told()
    pooled, bare = figures["with the pool"], figures["without"]
    return Found(
        f"p50 and p99 in us: {pooled['median_us']:.0f} and {pooled['p99_us']:.0f} with the pool, "
        f"{bare['median_us']:.0f} and {bare['p99_us']:.0f} without",
        figures,
    )


@contextmanager
def _device(setting: Setting, *, pooled: int) -> Iterator[LocalDevice]:
    driver = open_cuda_driver(setting.device)
    granule_bytes = driver.granularity_bytes
    windows = (setting.growths + 1) * ceil_div(GEOMETRY.token_bytes, granule_bytes) + pooled
    settings = MemorySettings(windows * granule_bytes, granule_bytes, pooled * granule_bytes)
    with open_local_device(driver, settings) as device:
        yield device
        device.audit()


def _grow(device: LocalDevice, growths: int, watch: Stopwatch, name: str) -> int:
    """Returns how many creates the growths themselves made."""
    step = max(1, device.driver.granularity_bytes // GEOMETRY.token_bytes)
    memory = device.port.memory(SequenceSpec(GEOMETRY, Layout.TOKEN_MAJOR, (growths + 1) * step))
    _commit(memory, step)
    created = 0
    for number in range(2, growths + 2):
        while device.fill():
            pass
        before = device.driver.calls()["create"]
        with watch.timed(name):
            _commit(memory, number * step)
        created += device.driver.calls()["create"] - before
    return created


def _commit(memory: SequenceMemory, tokens: int) -> None:
    memory.commit(tokens, memory.grant(tokens))


def _check_creates(made: int, expected: int) -> None:
    if made != expected:
        raise Broken(f"the growths made {made} creates and not {expected}")
