"""Is a device's memory large enough for one request, and small enough for the operating system? Pure arithmetic.

The smallest request has a token in every fragment, so it takes one granule a fragment. With sliding windows it may hold
a snapshot of each, and a device takes no request that might have more than there is (`opening.most_bytes_of`). At the
peak each granule is a handle of its own. What the operating system limits is then, where it is measured:

    device    descriptors   one a granule, and those of the packet that is being handed over
    worker    descriptors   one a granule that it has received and not yet mapped, those of imports that it keeps from
                            earlier (`kvcluster.services.imports`), and the one that it imports
    worker    mappings      one a granule, one for the reserved rest of each fragment of a sequence that has memory,
                            and one for each address range that waits

A mapped granule alone takes no descriptor in a worker. How many are left is measured by `kvcluster.driver.limits`. A
GPU's memory takes neither: its descriptors live for the moment of handing over, and its mappings are not the kernel's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.budget.quotas import Quotas
from kvcluster.config import ConfigError, Settings
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.services.imports import most_kept
from kvcluster.services.opening import most_bytes_of
from kvcluster.units import format_bytes

_DESCRIPTORS = "raise the hard limit of open files (ulimit -Hn)"
_MAPPINGS = "raise vm.max_map_count (sysctl)"

Need = Callable[[int], int]
"""What so many granules take."""


def check_device(settings: Settings, descriptors: int) -> None:
    """Nothing, where the device's process, which has room for `descriptors`, can create and hand over all its memory.

    Raises:
        ConfigError: it cannot; the sentence says which size would do.
    """
    _check(settings, "descriptors in the device's process", _device_descriptors, descriptors, _DESCRIPTORS)


def check_memory(settings: Settings, shape: Shape, descriptors: int, mappings: int) -> None:
    """Nothing, where every request of one token fits and one worker, with so much room, can map the whole device.

    Raises:
        ConfigError: too small or too large; the sentence says which sizes would do.
    """
    fragments, smallest = _smallest(shape)
    usable_bytes = usable_bytes_of(settings, settings.host_sizes.capacity_bytes)
    if usable_bytes < _least_bytes(shape):
        sentence = f"device_memory is {settings.device_memory}{_left_by_quotas(settings, usable_bytes)}"
        remedy = "give at least that much, or choose a smaller granule or the token-major layout"
        if _windows_decide(shape):
            remedy = "give at least that much, or choose another model"
        raise ConfigError(f"{sentence}, and {_need(settings, shape, str(settings.granule))}: {remedy}")

    def worker_mappings(granules: int) -> int:
        sequences = min(settings.max_num_seqs, granules // smallest)
        return granules + fragments * sequences + settings.max_num_seqs + 1  # one more than it uses, as a map asks for

    def worker_descriptors(granules: int) -> int:
        return granules + most_kept(descriptors) + 1

    _check(settings, "descriptors in a worker's process", worker_descriptors, descriptors, _DESCRIPTORS)
    _check(settings, "mappings in a worker's process", worker_mappings, mappings, _MAPPINGS)


def check_gpu(settings: Settings, shape: Shape, capacity_bytes: int) -> None:
    """Nothing, where a request of one token fits into what a GPU has for us beside the model.

    Raises:
        ConfigError: it does not; the sentence says what would do.
    """
    usable_bytes = usable_bytes_of(settings, capacity_bytes)
    if usable_bytes < _least_bytes(shape):
        left = _left_by_quotas(settings, usable_bytes)
        sentence = f"{format_bytes(capacity_bytes)} of the GPU are left for K and V{left}"
        remedy = "raise gpu_memory_utilization or device_memory, or choose a smaller model or the token-major layout"
        raise ConfigError(f"{sentence}, and {_need(settings, shape, format_bytes(shape.granule_bytes))}: {remedy}")


def usable_bytes_of(settings: Settings, capacity_bytes: int) -> int:
    """What requests have of a device, or of host pages, of that capacity: they are of no tenant."""
    quotas = Quotas(settings.tenant_quota_bytes)
    return quotas.most_bytes("", capacity_bytes, gone_bytes=0, gone_of=lambda _: 0)


def _left_by_quotas(settings: Settings, usable_bytes: int) -> str:
    return f", of which tenant_quotas leave {format_bytes(usable_bytes)}" if settings.tenant_quotas else ""


def _granules(settings: Settings) -> int:
    sizes = settings.host_sizes
    return sizes.capacity_bytes // sizes.granule_bytes


def _smallest(shape: Shape) -> tuple[int, int]:
    """Fragments, and granules of a request of one token."""
    return shape.window_count((1,) * len(shape.groups)), shape.window_count(shape.windows(1))


def _least_bytes(shape: Shape) -> int:
    """Below it no request fits."""
    return most_bytes_of(RangeMap(shape, 1))


def _windows_decide(shape: Shape) -> bool:
    return _least_bytes(shape) > shape.committed_bytes(1)


def _device_descriptors(granules: int) -> int:
    return granules + min(granules, MAX_DESCRIPTORS)


def _check(settings: Settings, limit: str, need: Need, room: int, remedy: str) -> None:
    needed = need(_granules(settings))
    if needed <= room:
        return
    most = bisect_right(range(room + 1), room, key=need) - 1
    give = f"give at most {format_bytes(most * settings.host_sizes.granule_bytes)}, " if most > 0 else ""
    raise ConfigError(
        f"device_memory is {settings.device_memory}, which takes {needed} {limit} at a granule of "
        f"{settings.granule}, and {room} are left: {give}choose a larger granule, or {remedy}"
    )


def _need(settings: Settings, shape: Shape, granule: str) -> str:
    fragments, smallest = _smallest(shape)
    if _windows_decide(shape):
        least_bytes = _least_bytes(shape)
        return (
            f"the model's sliding windows in the {settings.layout} layout need {format_bytes(least_bytes)} "
            f"({least_bytes // shape.granule_bytes} granules of {granule})"
        )
    return (
        f"one token in the {settings.layout} layout needs {format_bytes(smallest * shape.granule_bytes)} "
        f"({smallest} granules of {granule}; fragments: {fragments})"
    )
