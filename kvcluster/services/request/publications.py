"""Memories that are being shared: the asks that each takes, one frame after the other.

Whose memory it is does not compute meanwhile. One that ends is shared first, if it reached a target with its last
token. A refusal ends the sharing of this once, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvcluster.services.asks import Ask
from kvcluster.services.kv_port import KvMemory


class Publications:
    """Of one place."""

    def __init__(self) -> None:
        self._left: dict[KvMemory, deque[Ask]] = {}

    def __contains__(self, memory: KvMemory) -> bool:
        return memory in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    def begin(self, memory: KvMemory, asks: Sequence[Ask]) -> None:
        """Share it by these asks; nothing, where there are none."""
        if asks:
            self._left[memory] = deque(asks)

    def due(self) -> list[Ask]:
        """The next ask of each; none of them has one in flight."""
        return [asks.popleft() for asks in self._left.values()]

    def answered(self, memory: KvMemory, *, refused: bool) -> bool:
        """An ask of this memory is answered. Whether that was the last."""
        if memory in self._left and (refused or not self._left[memory]):
            del self._left[memory]
        return memory not in self._left

    def forget(self, memory: KvMemory) -> None:
        """It is given back."""
        self._left.pop(memory, None)
