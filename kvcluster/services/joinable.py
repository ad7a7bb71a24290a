"""Which windows of a prefix another request may map, and what two requests must have in common. Pure.

Only whole handles are shared, and a snapshot is good at its own boundary alone. What the geometry forbids at once
is in `geometry.shareability`; here it meets the prefix that there is.
"""

from __future__ import annotations

from kvcluster.errors import NotShareable
from kvcluster.geometry.residency import Keeps, Shape
from kvcluster.geometry.shareability import Refusal, no_boundary_reason, shareability_of
from kvcluster.memory.reservation import Use
from kvcluster.memory.shared_prefix import SharedPrefix


def check_shareable(shape: Shape, tokens: int) -> None:
    """Raises NotShareable: so many tokens of this shape are nothing that others could use."""
    found = shareability_of(shape, tokens)
    if found.refusal is not None:
        raise NotShareable(kind=found.refusal, reason=found.refusal_reason or "")


def joinable(prefix: SharedPrefix, tokens: int) -> tuple[int, ...]:
    """How many windows of the prefix somebody may map whose first `tokens` tokens are the same.

    Raises:
        NotShareable: none that would help.
    """
    shape, extent = prefix.shape, prefix.extent
    check_shareable(shape, min(tokens, extent.tokens))
    inside = tuple(min(a, b) for a, b in zip(shape.shared_windows(tokens), extent.windows, strict=True))
    if shape.has_rings:
        boundary = prefix.reusable_tokens
        if inside != extent.windows or tokens <= boundary:
            raise NotShareable(kind=Refusal.NO_BOUNDARY, reason=no_boundary_reason(tokens, boundary))
        return inside
    whole = prefix.whole(inside)
    if not shape.reusable_tokens(whole, tokens):
        raise NotShareable(
            kind=Refusal.SMALLER_THAN_A_GRANULE,
            reason=f"nothing of prefix {prefix.number} helps a prompt that is equal to it for {tokens} tokens",
        )
    return whole


def serves(prefix: SharedPrefix, shape: Shape, tokens: int, windows: tuple[int, ...]) -> bool:
    """Whether who has its first `tokens` tokens, and this shape, can join at least `windows` of it."""
    if shared_groups(prefix.shape) != shared_groups(shape):
        return False
    try:
        there = joinable(prefix, tokens)
    except NotShareable:
        return False
    return all(count >= wanted for count, wanted in zip(there, windows, strict=True))


def lies_inside(use: Use, limit: tuple[int, ...]) -> bool:
    """Whether all that the request uses of the prefix is below these windows."""
    return all(count <= most for count, most in zip(use.windows, limit, strict=True))


def tokens_of(use: Use) -> int:
    """How many tokens its prefix has for certain in common with the request: all, if all of it is used."""
    shape, extent = use.prefix.shape, use.prefix.extent
    if use.windows == extent.windows:
        return extent.tokens
    every = [(g, n) for g, n in zip(shape.groups, use.windows, strict=True) if g.keeps is Keeps.EVERY]
    return max(-(-n * shape.granule_bytes // group.stride_bytes) for group, n in every)


def shared_groups(shape: Shape) -> tuple[object, ...]:
    """What two requests must have in common: a ring's own size is not shared."""
    return (
        shape.granule_bytes,
        *((g.fragments, g.stride_bytes, g.keeps, g.windows * (g.keeps is not Keeps.RING)) for g in shape.groups),
    )
