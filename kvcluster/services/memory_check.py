"""Is a device's memory large enough for one request, and small enough for the operating system? Pure arithmetic.

The smallest request has a token in every fragment, so it takes one granule a fragment. At worst each granule is a
handle of its own, which is a descriptor in the device's process, and a mapping in a worker's; how many of either
are left is measured by `kvcluster.driver.limits`.
"""

from __future__ import annotations

from kvcluster.config import ConfigError, Settings
from kvcluster.geometry.residency import Shape
from kvcluster.units import format_bytes


def check_memory(settings: Settings, shape: Shape, descriptors: int, mappings: int) -> None:
    """Nothing, where every request of one token fits and a full device stays within `descriptors` and `mappings`.

    Raises:
        ConfigError: too small or too large; the sentence says which sizes would do.
    """
    granules = settings.device_memory_bytes // settings.granule_bytes
    fragments = sum(group.fragments for group in shape.groups)
    smallest = sum(group.fragments * windows for group, windows in zip(shape.groups, shape.windows(1), strict=True))
    if granules < smallest:
        raise ConfigError(_too_small(settings, fragments, smallest))
    for room, limit, remedy in (
        (descriptors, "descriptors", "raise the hard limit (ulimit -Hn)"),
        (mappings, "mappings", "raise vm.max_map_count (sysctl)"),
    ):
        if granules > room:
            raise ConfigError(_too_large(settings, room, limit, remedy))


def _too_small(settings: Settings, fragments: int, smallest: int) -> str:
    return (
        f"device_memory is {settings.device_memory}, and one token in the {settings.layout} layout needs "
        f"{format_bytes(smallest * settings.granule_bytes)} ({smallest} granules of {settings.granule}; "
        f"fragments: {fragments}): give at least that much, or choose a smaller granule or the token-major layout"
    )


def _too_large(settings: Settings, room: int, limit: str, remedy: str) -> str:
    granules = settings.device_memory_bytes // settings.granule_bytes
    return (
        f"device_memory is {settings.device_memory}, which takes {granules} {limit} at a granule of "
        f"{settings.granule}, and {room} are left: give at most {format_bytes(room * settings.granule_bytes)}, "
        f"choose a larger granule, or {remedy}"
    )
