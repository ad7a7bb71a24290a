"""A sliding window's memory: a ring of granules, mapped twice in a row.

Token t's row lies at t x stride modulo the ring's bytes. The second mapping of the same granules follows the
first, so any span that is no longer than the ring is contiguous, wherever it begins, and a row may straddle the
ring's end.

    |-------- ring -------|---- the same again ---|
    [ 6   7   8   9   4   5 | 6   7   8   9   4   5 ]      6 rows: tokens 4 to 9 are one piece
                      ^-------------------^

While a chunk of c tokens is written, the chunk's first token still sees W - 1 tokens before it: W + c - 1 rows
are live at once, and the ring holds at least so many. Granules are committed on demand in the first lap; after
it nothing is committed any more. Here is only how many granules that are; what a sequence has of them is in
`geometry.residency`, and who maps a ring is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcluster.geometry.layout import GroupLayout
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class Ring:
    """One fragment of a sliding-window group, for chunks of at most `chunk_tokens` tokens."""

    window_tokens: int
    chunk_tokens: int
    stride_bytes: int
    granule_bytes: int

    def __post_init__(self) -> None:
        if min(self.window_tokens, self.chunk_tokens, self.stride_bytes, self.granule_bytes) < 1:
            raise ValueError(f"a ring needs a window, a chunk, a stride and a granule of at least 1, not {self}")

    @classmethod
    def of(cls, layout: GroupLayout, chunk_tokens: int, granule_bytes: int) -> Ring:
        """The ring of each fragment of `layout`.

        Raises:
            ValueError: the group keeps every token and has no ring.
        """
        if layout.group.window_tokens is None:
            raise ValueError("a group that keeps every token has no ring")
        return cls(layout.group.window_tokens, chunk_tokens, layout.stride_bytes, granule_bytes)

    @property
    def windows(self) -> int:
        """Granules of the whole ring."""
        return ceil_div((self.window_tokens + self.chunk_tokens - 1) * self.stride_bytes, self.granule_bytes)
