"""What a host actor is made of, and what it says of itself: values that travel through Ray. They need no torch."""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.budget.quotas import Quotas
from kvcluster.paged.shape import PageShape
from kvcluster.services.device_settings import DeviceSettings


@dataclass(frozen=True, slots=True)
class HostSpec:
    """`node_id` is where the pages are: an actor that finds itself elsewhere ends for good; `dtype` of its elements."""

    settings: DeviceSettings
    node_id: str
    idle_exit_s: float
    shape: PageShape
    dtype: str

    @property
    def blocks(self) -> int:
        """How many lie in its memory."""
        return self.settings.memory.capacity_bytes // self.shape.pitch_bytes


@dataclass(frozen=True, slots=True)
class HostAddress:
    """What a client must know before it says hello. `capacity_bytes` and `quotas` are what the pages were made with."""

    attach: str
    pid: int
    name: str
    capacity_bytes: int
    quotas: Quotas
    file: str  # of its incarnations


def pages_name(shape: PageShape, dtype: str) -> str:
    """The name of a node's pages of one shape, so that models of other shapes have pages of their own."""
    heads = f"{shape.num_layers}x{shape.num_kv_heads}x{shape.head_dim}"
    return f"pages-{heads}-{dtype}-{shape.block_size}"
