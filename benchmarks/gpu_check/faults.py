"""Every driver call of every verb fails once, and then its undo too, on this GPU: what our core makes of it.

The same as the project's fault tests do on the host and the stand-in, in short: after each failure the device's books
sum and agree with the driver's, and a witness's bytes are what they were; where nothing is quarantined a growth that
failed has changed no claim. Injected failures never reach CUDA; what is checked is that the undo's calls, which do,
are ones that the real driver takes.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.gpu_check.setting import Broken, Found, Setting
from kvcluster.driver.cuda import open_cuda_driver
from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.local import LocalDevice, open_local_device
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.testing.driver_contract.bench import peek, poke
from kvcluster.testing.faulty_driver import FaultyDriver, Plan, failing, failing_then, never
from kvcluster.testing.invariants import assert_ledger_balances

GRANULES = 64
FIRST, MORE = 8, 24  # tokens; a granule's edge falls inside one
LAYOUTS = (Layout.TOKEN_MAJOR, Layout.SEQ_MAJOR)  # one fragment, and two


@dataclass(frozen=True, slots=True)
class Scene:
    """A witness that has published, a memory that the verb is about, and one that is empty."""

    device: LocalDevice
    driver: FaultyDriver
    witness: SequenceMemory
    prefix: Prefix
    memory: SequenceMemory
    empty: SequenceMemory


def grow(scene: Scene) -> None:
    scene.memory.commit(MORE, scene.memory.grant(MORE))


def publish(scene: Scene) -> None:
    scene.memory.publish(FIRST)


def join(scene: Scene) -> None:
    scene.empty.join(scene.prefix, FIRST)


def leave(scene: Scene) -> None:
    join(scene)
    scene.empty.leave()


def release(scene: Scene) -> None:
    scene.memory.release()


def close(scene: Scene) -> None:
    scene.memory.close()


VERBS: tuple[Callable[[Scene], None], ...] = (grow, publish, join, leave, release, close)


def check(setting: Setting) -> Found:
    """
    Raises:
        Broken, AssertionError, InvariantBroken: a failure changed what it should not, or the books do not sum.
    """
    counts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakedOnPurpose)
        for verb, layout in itertools.product(VERBS, LAYOUTS):
            counts[f"{verb.__name__}, {layout}"] = _fail_each_call(setting, verb, layout)
    total = sum(counts.values())
    return Found(f"{total} injected failures of {len(VERBS)} verbs: the books sum after each", {"failures": counts})


def _fail_each_call(setting: Setting, verb: Callable[[Scene], None], layout: Layout) -> int:
    """How many failures there were until the verb made no more calls."""
    for number in itertools.count(1):
        once = _fails(setting, verb, layout, failing(number))
        if not once:
            return 2 * (number - 1)
        _fails(setting, verb, layout, failing_then(number, 1))
    raise AssertionError  # count() does not end


def _fails(setting: Setting, verb: Callable[[Scene], None], layout: Layout, plan: Plan) -> bool:
    """Do the verb under `plan` and look; whether anything failed."""
    with _scene(setting, layout) as scene:
        before, error = _claims(scene), None
        scene.driver.follow(plan)
        try:
            verb(scene)
        except KvClusterError as failure:
            error = failure
        failed = any(call.failed for call in scene.driver.since_plan())
        scene.driver.follow(never())
        _check(scene, verb, before, error, failed=failed)
    return failed


def _check(
    scene: Scene, verb: Callable[[Scene], None], before: dict[str, int], error: KvClusterError | None, *, failed: bool
) -> None:
    assert_ledger_balances(scene.device)
    after = _claims(scene)
    if error and not failed:
        raise Broken(f"{verb.__name__} failed by itself: {error}")
    if peek(scene.driver, scene.witness.address, 7) != b"witness":
        raise Broken(f"{verb.__name__} touched another's bytes: {error}")
    if verb is grow and error and "quarantine" not in after and after["free"] != before["free"]:
        raise Broken(f"a growth that failed changed what is free: {before} became {after} ({error})")


def _claims(scene: Scene) -> dict[str, int]:
    """A grant that a failed growth left held is a claim on its own for some seconds: it counts as free here."""
    accounts = dict(scene.device.statistics().accounts)
    accounts["free"] += accounts.pop("granted", 0)
    return accounts


@contextmanager
def _scene(setting: Setting, layout: Layout) -> Iterator[Scene]:
    driver = FaultyDriver(open_cuda_driver(setting.device))
    granule_bytes = driver.granularity_bytes
    geometry = KvGeometry.uniform(layers=1, kv_heads=1, head_dim=3 * granule_bytes // 32, element_bytes=2)
    device = open_local_device(driver, MemorySettings(GRANULES * granule_bytes, granule_bytes, 0))
    witness, memory, empty = (device.port.memory(SequenceSpec(geometry, layout, MORE)) for _ in range(3))
    for one in (witness, memory):
        one.commit(FIRST, one.grant(FIRST))
    poke(driver, witness.address, b"witness")
    yield Scene(device, driver, witness, witness.publish(FIRST), memory, empty)
    with suppress(KvClusterError):
        device.close()
