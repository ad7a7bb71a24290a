"""Can a prefix be shared, and how much of it does a joiner save? Arithmetic, not trial.

Memory is mapped a granule at a time, so a fragment can be shared exactly as far as whole granules lie inside the
prefix; a granule that also holds a byte of a later token stays its owner's. The layout decides how long a
fragment is and how many maps a join costs, never whether sharing is possible at all.

A sliding-window group shares nothing: its ring is overwritten, and a joiner copies a snapshot of its window. With
such a group beside others, `reusable_tokens` says how far a published boundary may lie at most.
Source: "Virtual Memory for KV Cache", "Whether it can be shared is an arithmetic question".
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.geometry.layout import GroupLayout, Layout, group_layouts
from kvcluster.geometry.model import KvGeometry
from kvcluster.units import format_bytes


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
    refusal_reason: str | None

    @property
    def shareable(self) -> bool:
        return self.refusal_reason is None


def evaluate_shareability(geometry: KvGeometry, layout: Layout, prefix_tokens: int, granule_bytes: int) -> Shareability:
    """Whether whole granules of every fragment lie inside the first `prefix_tokens` tokens, and what that is worth.

    `reusable_tokens` is where a joiner begins to compute: the tokens that lie wholly in shared granules of every
    fragment, and never all of the prefix, because a prompt's last token must be computed to know the next (so a
    prefix of 1 token may be shareable and save nothing).

    Raises:
        ValueError: fewer than 1 prefix token, or a granule of fewer than 1 byte.
    """
    if prefix_tokens < 1 or granule_bytes < 1:
        raise ValueError(f"a prefix has at least 1 token and a granule 1 byte, not {prefix_tokens} and {granule_bytes}")
    groups = tuple(g for g in group_layouts(geometry, layout) if g.group.window_tokens is None)
    granules = tuple(prefix_tokens * g.stride_bytes // granule_bytes for g in groups)
    reason = _refusal_reason(groups, prefix_tokens, granule_bytes)
    return Shareability(
        fragments=sum(g.fragments for g in groups),
        fragment_bytes=min((prefix_tokens * g.stride_bytes for g in groups), default=0),
        shareable_granules_per_fragment=min(granules, default=0),
        multi_map_ops=0 if reason else sum(g.fragments * n for g, n in zip(groups, granules, strict=True)),
        reusable_tokens=0 if reason else _reusable_tokens(groups, granules, prefix_tokens, granule_bytes),
        refusal_reason=reason,
    )


def _refusal_reason(groups: tuple[GroupLayout, ...], prefix_tokens: int, granule_bytes: int) -> str | None:
    if not groups:
        return "The prefix cannot be shared: every layer keeps a sliding window only, and a ring is copied, not shared."
    fragment_bytes = prefix_tokens * min(g.stride_bytes for g in groups)
    if fragment_bytes >= granule_bytes:
        return None
    return (
        f"The prefix cannot be shared: its {prefix_tokens} tokens fill {format_bytes(fragment_bytes)} of a fragment "
        f"and one granule is {format_bytes(granule_bytes)}, so no whole granule lies inside the prefix "
        "(fragment_bytes < granule)."
    )


def _reusable_tokens(
    groups: tuple[GroupLayout, ...], granules: tuple[int, ...], prefix_tokens: int, granule_bytes: int
) -> int:
    sealed = (n * granule_bytes // g.stride_bytes for g, n in zip(groups, granules, strict=True))
    return min(prefix_tokens - 1, *sealed)
