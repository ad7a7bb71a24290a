"""Elastic, crash-safe KV-cache memory for LLM inference on Ray.

    import kvcluster
    device = kvcluster.open_device("host", memory="256MiB")

The names below are imported when they are first used, so that `import kvcluster` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcluster.geometry.layout import Layout as Layout
    from kvcluster.geometry.model import KvGeometry as KvGeometry
    from kvcluster.geometry.model import LayerGroup as LayerGroup
    from kvcluster.services.local import LocalDevice as LocalDevice
    from kvcluster.services.local import open_device as open_device

_HOMES = {
    "open_device": "kvcluster.services.local",
    "LocalDevice": "kvcluster.services.local",
    "KvGeometry": "kvcluster.geometry.model",
    "LayerGroup": "kvcluster.geometry.model",
    "Layout": "kvcluster.geometry.layout",
}

__all__ = ["KvGeometry", "LayerGroup", "Layout", "LocalDevice", "open_device"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcluster' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
