"""Is a device's memory large enough for one request, and small enough for the operating system? Pure arithmetic.

The smallest request has a token in every fragment, so it takes one granule a fragment. At the peak each granule is a
handle of its own. What the operating system limits is then, where it is measured:

    device    descriptors   one a granule, and those of the packet that is being handed over
    worker    descriptors   one a granule that it has received and not yet mapped, and the one that it imports
    worker    mappings      one a granule, one for the reserved rest of each fragment of a sequence that has memory,
                            and one for each address range that waits

A mapped granule takes no descriptor in a worker. How many are left is measured by `kvcluster.driver.limits`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from kvcluster.attach.sockets import MAX_DESCRIPTORS
from kvcluster.config import ConfigError, Settings
from kvcluster.geometry.residency import Shape
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
    fragments, smallest = shape.window_count((1,) * len(shape.groups)), shape.window_count(shape.windows(1))
    if settings.device_memory_bytes // settings.granule_bytes < smallest:
        raise ConfigError(_too_small(settings, fragments, smallest))

    def worker_mappings(granules: int) -> int:
        sequences = min(settings.max_num_seqs, granules // smallest)
        return granules + fragments * sequences + settings.max_num_seqs + 1  # one more than it uses, as a map asks for

    _check(settings, "descriptors in a worker's process", _worker_descriptors, descriptors, _DESCRIPTORS)
    _check(settings, "mappings in a worker's process", worker_mappings, mappings, _MAPPINGS)


def _device_descriptors(granules: int) -> int:
    return granules + min(granules, MAX_DESCRIPTORS)


def _worker_descriptors(granules: int) -> int:
    return granules + 1


def _check(settings: Settings, limit: str, need: Need, room: int, remedy: str) -> None:
    needed = need(settings.device_memory_bytes // settings.granule_bytes)
    if needed <= room:
        return
    most = bisect_right(range(room + 1), room, key=need) - 1
    give = f"give at most {format_bytes(most * settings.granule_bytes)}, " if most > 0 else ""
    raise ConfigError(
        f"device_memory is {settings.device_memory}, which takes {needed} {limit} at a granule of "
        f"{settings.granule}, and {room} are left: {give}choose a larger granule, or {remedy}"
    )


def _too_small(settings: Settings, fragments: int, smallest: int) -> str:
    return (
        f"device_memory is {settings.device_memory}, and one token in the {settings.layout} layout needs "
        f"{format_bytes(smallest * settings.granule_bytes)} ({smallest} granules of {settings.granule}; "
        f"fragments: {fragments}): give at least that much, or choose a smaller granule or the token-major layout"
    )
