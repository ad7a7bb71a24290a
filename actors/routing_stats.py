"""What a replica tells routers of itself: at which device it sits, and under which root its prompts are found there.

Serve asks a replica for it by `record_routing_stats`, every 10 s unless told otherwise, and hands it to every router as
a dict. What changes all the time (free bytes, known blocks) a router asks of the device itself: `actors.router`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from actors.owners import OwnerKind, owner_name
from kvcluster.index.identity import CacheIdentity, root_for

_TENANT = ""  # that replicas hold their memory for


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """`device` on node `node_id`; `token_bytes` of KV memory a token takes there, in all layers that keep every token.

    `model`, `dtype` and `layout` are those of the worker's `cache_identity`; `model` is empty where nothing that it
    computes is found again.
    """

    device: str
    node_id: str
    token_bytes: int = 0
    model: str = ""
    dtype: str = ""
    layout: str = ""

    @classmethod
    def of(cls, identity: CacheIdentity | None, *, device: str, node_id: str, token_bytes: int = 0) -> RoutingStats:
        """Of a worker of this identity; None where it shares no prefixes."""
        if identity is None:
            return cls(device, node_id, token_bytes)
        return cls(device, node_id, token_bytes, identity.model, identity.dtype, identity.layout)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RoutingStats | None:
        """What `to_dict` made, whatever else is told beside it; None where that is missing: a replica that told nothing
        yet, or is none of ours.
        """
        types = {field.name: int if field.name == "token_bytes" else str for field in fields(cls)}
        if not all(isinstance(values.get(name), kind) for name, kind in types.items()):
            return None
        return cls(**{name: values[name] for name in types})

    def to_dict(self) -> dict[str, Any]:
        """What `record_routing_stats` returns."""
        return asdict(self)

    @property
    def place(self) -> str:
        """The name of the device's actor."""
        return owner_name(OwnerKind.DEVICE, self.device, self.node_id)

    def root(self, salt: str) -> bytes:
        """Under what the device finds the prompts of requests of this `cache_salt`; empty where it finds none."""
        if not self.model:
            return b""
        return root_for(_TENANT, CacheIdentity(self.model, self.dtype, self.layout).salted(salt).root)
