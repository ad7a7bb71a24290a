"""Can a prefix be shared, and how much of it does a joiner save? Arithmetic, not trial.

Memory is mapped a granule at a time, so a fragment can be shared exactly as far as whole granules lie inside the
prefix; a granule that also holds a byte of a later token stays its owner's. The layout decides how long a
fragment is and how many maps a join costs, never whether sharing is possible at all.

A sliding-window group shares nothing: its ring is overwritten, and a joiner copies a snapshot of its window. With
such a group beside others, `reusable_tokens` says how far a published boundary may lie at most.

A refusal is a value: one word of `Refusal` for counters, and a sentence for people that says what would help.
Source: "Virtual Memory for KV Cache", "Whether it can be shared is an arithmetic question".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import GroupShape, Keeps, Shape
from kvcluster.units import ceil_div


class Backing(StrEnum):
    """Whether memory can be mapped at several addresses (a device's), or has one address for good (malloc's)."""

    VIRTUAL = "virtual"
    PLAIN = "plain"


class Refusal(StrEnum):
    """Why a prefix is not shared, in one word. The last five are found by who shares, and not by arithmetic."""

    NOT_VMM_BACKED = "not-vmm-backed"
    SLIDING_ONLY = "sliding-only"
    SMALLER_THAN_A_GRANULE = "smaller-than-a-granule"
    NO_BOUNDARY = "no-boundary"
    NO_SUCH_PREFIX = "no-such-prefix"
    NOT_SEALED = "not-sealed"
    ALREADY_SHARED = "already-shared"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Shareability:
    """What sharing one prefix takes and gives.

    `fragment_bytes` and `shareable_granules_per_fragment` are those of the fragment with the least in it, where
    groups differ; `fragments` and `multi_map_ops` count all fragments of all groups that can share.
    """

    fragments: int
    fragment_bytes: int
    shareable_granules_per_fragment: int
    multi_map_ops: int
    reusable_tokens: int
    refusal: Refusal | None = None
    refusal_reason: str | None = None

    @property
    def shareable(self) -> bool:
        return self.refusal is None


def evaluate_shareability(
    geometry: KvGeometry,
    layout: Layout,
    prefix_tokens: int,
    granule_bytes: int,
    *,
    backing: Backing = Backing.VIRTUAL,
) -> Shareability:
    """Whether whole granules of every fragment lie inside the first `prefix_tokens` tokens, and what that is worth.

    Raises:
        ValueError: fewer than 1 prefix token, or a granule of fewer than 1 byte.
    """
    return shareability_of(Shape.of(geometry, layout, granule_bytes), prefix_tokens, backing=backing)


def shareability_of(shape: Shape, prefix_tokens: int, *, backing: Backing = Backing.VIRTUAL) -> Shareability:
    """The same of a request's shape, which is all that a device knows.

    `reusable_tokens` is where a joiner begins to compute: the tokens that lie wholly in shared granules of every
    fragment, and never all of the prefix, because a prompt's last token must be computed to know the next (so a
    prefix of 1 token may be shareable and save nothing).

    Raises:
        ValueError: fewer than 1 prefix token.
    """
    if prefix_tokens < 1:
        raise ValueError(f"a prefix has at least 1 token, not {prefix_tokens}")
    groups = tuple(g for g in shape.groups if g.keeps is Keeps.EVERY)
    granules = tuple(prefix_tokens * g.stride_bytes // shape.granule_bytes for g in groups)
    refusal = _refusal(granules, backing)
    return Shareability(
        fragments=sum(g.fragments for g in groups),
        fragment_bytes=min((prefix_tokens * g.stride_bytes for g in groups), default=0),
        shareable_granules_per_fragment=min(granules, default=0),
        multi_map_ops=0 if refusal else sum(g.fragments * n for g, n in zip(groups, granules, strict=True)),
        reusable_tokens=0 if refusal else shape.reusable_tokens(shape.shared_windows(prefix_tokens), prefix_tokens),
        refusal=refusal,
        refusal_reason=_reason(refusal, groups, prefix_tokens, shape.granule_bytes),
    )


def no_boundary_reason(prefix_tokens: int, boundary_tokens: int) -> str:
    """The sentence of `Refusal.NO_BOUNDARY`: the prefix's own boundary is not inside the tokens that are equal."""
    return (
        f"The prefix cannot be shared by a prompt that is equal for {prefix_tokens:,} tokens: its sliding windows can "
        f"be taken over only after its first {boundary_tokens:,} tokens, where a snapshot of them was made, and one "
        f"token more must be equal; publish a boundary further to the front."
    )


def _refusal(granules: tuple[int, ...], backing: Backing) -> Refusal | None:
    """`granules` are those that each fragment of a group shares, for the groups that keep every token."""
    if backing is Backing.PLAIN:
        return Refusal.NOT_VMM_BACKED
    if not granules:
        return Refusal.SLIDING_ONLY
    return None if min(granules) else Refusal.SMALLER_THAN_A_GRANULE


def _reason(
    refusal: Refusal | None, groups: tuple[GroupShape, ...], prefix_tokens: int, granule_bytes: int
) -> str | None:
    if refusal is Refusal.NOT_VMM_BACKED:
        return (
            "The prefix cannot be shared: its K and V lie in plain memory, which has one address only; keep them in "
            "a device's memory (kvcluster.open_device), whose granules can be mapped many times (not VMM-backed)."
        )
    if refusal is Refusal.SLIDING_ONLY:
        return "The prefix cannot be shared: every layer keeps a sliding window only, and a ring is copied, not shared."
    return _too_small(groups, prefix_tokens, granule_bytes) if refusal else None


def _too_small(groups: tuple[GroupShape, ...], prefix_tokens: int, granule_bytes: int) -> str:
    stride_bytes = min(g.stride_bytes for g in groups)
    return (
        f"The prefix cannot be shared: its {prefix_tokens:,} tokens fill {prefix_tokens * stride_bytes:,} bytes of a "
        f"fragment and one granule is {granule_bytes:,} bytes, so no whole granule lies inside the prefix "
        f"(fragment_bytes < granule); from {ceil_div(granule_bytes, stride_bytes):,} tokens on one does."
    )
