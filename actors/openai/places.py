"""How many requests are in hand at one time; one more is told when to come back.

This is the outer bound of what the gateway holds, far above what the devices take: those refuse by themselves, by their
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kvcluster.services.pacing import Pace


class Full(Exception):
    """There is no room; there will be in `retry_after_s` seconds, if others keep to theirs."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"there will be room in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class Places:
    """`most` of them; `taken` are in use. What the others are told is `pace`'s to say."""

    def __init__(self, most: int, pace: Pace) -> None:
        self.most = most
        self.taken = 0
        self._pace = pace

    @contextmanager
    def one(self) -> Iterator[None]:
        """A place for as long as the block runs.

        Raises:
            Full: all are taken. Nothing changed but that its place in time is taken.
        """
        if self.taken >= self.most:
            raise Full(self._pace.place(1, behind=0))
        self.taken += 1
        try:
            yield
        finally:
            self._pace.ended(is_short=self.taken >= self.most)
            self.taken -= 1
