"""What a model keeps a token: layers, heads, sizes. Pure values, no framework.

Layers are grouped by what they keep: a full-attention group keeps every token, a sliding-window group needs only
its last `window_tokens`. Everything below is arithmetic on these groups; which layers of a Hugging Face model
belong to which group is read in `kvcluster.engine.architecture`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that keep the same tokens in the same shape.

    `layers` are the model's own layer indices, ascending. `window_tokens` is None where every token is kept.
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.layers or self.kv_heads < 1 or self.head_dim < 1:
            raise ValueError(f"a layer group needs layers, heads and a head size of at least 1, not {self}")
        if self.layers[0] < 0 or any(a >= b for a, b in pairwise(self.layers)):
            raise ValueError(f"layer indices are ascending from 0, not {self.layers}")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ValueError(f"a window holds at least 1 token, not {self.window_tokens}")


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """The K and V of one token: groups of layers, and the bytes of one element (2 for bfloat16, 4 for float32)."""

    groups: tuple[LayerGroup, ...]
    element_bytes: int

    def __post_init__(self) -> None:
        layers = [layer for group in self.groups for layer in group.layers]
        if not layers or len(set(layers)) != len(layers):
            raise ValueError(f"each layer belongs to exactly one group, not {layers}")
        if self.element_bytes < 1:
            raise ValueError(f"an element has at least 1 byte, not {self.element_bytes}")

    @classmethod
    def uniform(cls, *, layers: int, kv_heads: int, head_dim: int, element_bytes: int) -> KvGeometry:
        """`layers` layers of one shape that keep every token."""
        return cls((LayerGroup(tuple(range(layers)), kv_heads, head_dim),), element_bytes)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's K and V over all layers."""
        return sum(2 * len(g.layers) * g.kv_heads * g.head_dim for g in self.groups) * self.element_bytes

    def live_bytes(self, tokens: int) -> int:
        """What `tokens` tokens still need: all of them, and in a sliding-window group the last of them."""
        return self.element_bytes * sum(
            2 * len(g.layers) * g.kv_heads * g.head_dim * min(tokens, g.window_tokens or tokens) for g in self.groups
        )
