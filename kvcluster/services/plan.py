"""What a model's K and V take, layout by layout, before anything is started: pure arithmetic.

Nothing is measured and nothing is asked of a device: the same shapes that a device is opened with are counted here.
Rings of sliding windows count as rings, with the snapshot that each shared boundary takes beside them. What is not in
it: the margin that a running request commits ahead (16 tokens), the model's weights, and handles in the pool.

"How many fit" is whole requests of the full context. Where they share the prefix, its whole granules are there once.
Source: "Virtual Memory for KV Cache", "How layout affects the commit lower bound".
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry, LayerGroup
from kvcluster.geometry.residency import CHUNK_TOKENS, Keeps, RangeMap, Shape
from kvcluster.geometry.shareability import Shareability, shareability_of


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What is asked: requests of `context_tokens` that begin with the same `prefix_tokens`, on so much memory.

    Raises:
        ValueError: a figure below 1, or a prefix longer than the context.
    """

    context_tokens: int
    prefix_tokens: int
    granule_bytes: int
    memory_bytes: int
    chunk_tokens: int = CHUNK_TOKENS

    def __post_init__(self) -> None:
        if min(self.prefix_tokens, self.granule_bytes, self.memory_bytes, self.chunk_tokens) < 1:
            raise ValueError(f"every figure of a plan is at least 1, not {self}")
        if self.prefix_tokens > self.context_tokens:
            raise ValueError(f"a prefix of {self.prefix_tokens} tokens is longer than {self.context_tokens} tokens")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens to look at: the first, the prefix, and a quarter, half and all of the context."""
        whole = self.context_tokens
        return tuple(sorted({1, self.prefix_tokens, max(1, whole // 4), max(1, whole // 2), whole}))


@dataclass(frozen=True, slots=True)
class Residency:
    """One request at one length: the bytes of its granules, and those of them that it needs."""

    tokens: int
    windows: int
    committed_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class Fit:
    """Requests of the full context that the memory holds: `alone`, and `sharing` the prefix.

    Where it cannot be shared (not `can_share`) each has its own, and both figures are the same. `sharing` is None
    where any number fits: the prefix is all that a request has, and each further one takes no memory at all.
    """

    alone: int
    can_share: bool
    sharing: int | None


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """One layout. `ring_bytes` are all rings of a request in full, `snapshot_bytes` those of one shared boundary.

    `address_bytes` is the address that a request reserves; it costs no memory.
    """

    layout: Layout
    fragments: int
    ring_fragments: int
    ring_bytes: int
    snapshot_bytes: int
    address_bytes: int
    residency: tuple[Residency, ...]
    sharing: Shareability
    fit: Fit


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts. `token_bytes` is what a token writes, `kept_bytes` what is kept of it for good (no ring's)."""

    spec: PlanSpec
    token_bytes: int
    kept_bytes: int
    layouts: tuple[LayoutPlan, ...]


def plan(geometry: KvGeometry, spec: PlanSpec) -> Plan:
    """What `spec` takes of a model of this geometry, in each layout."""
    kept_bytes = KvGeometry(kept, geometry.element_bytes).token_bytes if (kept := _kept(geometry)) else 0
    layouts = tuple(_layout_plan(geometry, layout, spec) for layout in Layout)
    return Plan(spec, geometry.token_bytes, kept_bytes, layouts)


def _kept(geometry: KvGeometry) -> tuple[LayerGroup, ...]:
    return tuple(group for group in geometry.groups if group.window_tokens is None)


def _layout_plan(geometry: KvGeometry, layout: Layout, spec: PlanSpec) -> LayoutPlan:
    shape = Shape.of(geometry, layout, spec.granule_bytes, chunk_tokens=spec.chunk_tokens)
    sharing = shareability_of(shape, spec.prefix_tokens)
    return LayoutPlan(
        layout,
        fragments=sum(g.fragments for g in shape.groups if g.keeps is not Keeps.SNAPSHOT),
        ring_fragments=sum(g.fragments for g in shape.groups if g.keeps is Keeps.RING),
        ring_bytes=_fixed_bytes(shape, Keeps.RING),
        snapshot_bytes=_fixed_bytes(shape, Keeps.SNAPSHOT),
        address_bytes=RangeMap(shape, spec.context_tokens).size_bytes,
        residency=tuple(_residency(geometry, shape, tokens) for tokens in spec.lengths),
        sharing=sharing,
        fit=_fit(shape, sharing, spec),
    )


def _fixed_bytes(shape: Shape, keeps: Keeps) -> int:
    return shape.granule_bytes * sum(g.fragments * g.windows for g in shape.groups if g.keeps is keeps)


def _residency(geometry: KvGeometry, shape: Shape, tokens: int) -> Residency:
    windows = shape.window_count(shape.windows(tokens))
    return Residency(tokens, windows, windows * shape.granule_bytes, geometry.live_bytes(tokens))


def _fit(shape: Shape, sharing: Shareability, spec: PlanSpec) -> Fit:
    """A prefix is there once: its whole granules, and its snapshots. A request pays for its other windows."""
    have, whole = spec.memory_bytes // spec.granule_bytes, shape.window_count(shape.windows(spec.context_tokens))
    alone, own = have // whole, whole - sharing.multi_map_ops
    if not sharing.shareable:
        return Fit(alone, False, alone)
    if not own:
        return Fit(alone, True, None if alone else 0)
    left = have - shape.window_count(shape.shared_windows(spec.prefix_tokens))
    return Fit(alone, True, max(0, left) // own)
