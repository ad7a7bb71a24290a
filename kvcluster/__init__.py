"""Elastic, crash-safe KV-cache memory for LLM inference on Ray.

    import kvcluster
    device = kvcluster.open_device("host", memory="256MiB")

The names below are imported when they are first used, so that `import kvcluster` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcluster.driver.gate import Meanwhile as Meanwhile
    from kvcluster.driver.gate import capture_gate as capture_gate
    from kvcluster.engine.kv_cache import KVCache as KVCache
    from kvcluster.errors import DriverError as DriverError
    from kvcluster.errors import KvClusterError as KvClusterError
    from kvcluster.errors import NeverFits as NeverFits
    from kvcluster.errors import NotShareable as NotShareable
    from kvcluster.errors import OutOfBudget as OutOfBudget
    from kvcluster.errors import Quarantined as Quarantined
    from kvcluster.geometry.layout import Layout as Layout
    from kvcluster.geometry.model import KvGeometry as KvGeometry
    from kvcluster.geometry.model import LayerGroup as LayerGroup
    from kvcluster.services.kv_port import KvPort as KvPort
    from kvcluster.services.local import LocalDevice as LocalDevice
    from kvcluster.services.local import open_device as open_device
    from kvcluster.services.port import DevicePort as DevicePort
    from kvcluster.services.prefix import Prefix as Prefix
    from kvcluster.services.sequence import Grant as Grant
    from kvcluster.services.sequence import SequenceMemory as SequenceMemory

_ROOMS = {
    "kvcluster.driver.gate": ("Meanwhile", "capture_gate"),
    "kvcluster.engine.kv_cache": ("KVCache",),
    "kvcluster.errors": ("DriverError", "KvClusterError", "NeverFits", "NotShareable", "OutOfBudget", "Quarantined"),
    "kvcluster.geometry.layout": ("Layout",),
    "kvcluster.geometry.model": ("KvGeometry", "LayerGroup"),
    "kvcluster.services.kv_port": ("KvPort",),
    "kvcluster.services.local": ("LocalDevice", "open_device"),
    "kvcluster.services.port": ("DevicePort",),
    "kvcluster.services.prefix": ("Prefix",),
    "kvcluster.services.sequence": ("Grant", "SequenceMemory"),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DevicePort",
    "DriverError",
    "Grant",
    "KVCache",
    "KvClusterError",
    "KvGeometry",
    "KvPort",
    "LayerGroup",
    "Layout",
    "LocalDevice",
    "Meanwhile",
    "NeverFits",
    "NotShareable",
    "OutOfBudget",
    "Prefix",
    "Quarantined",
    "SequenceMemory",
    "capture_gate",
    "open_device",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcluster' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
