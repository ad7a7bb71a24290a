"""How fast bytes come back: what a refused client is told to wait.

An average that forgets half of what it saw in `HALF_LIFE_S`, so that it follows the load within seconds and costs
two numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

HALF_LIFE_S = 10.0


class ReleaseRate:
    """Bytes a second that came back lately. `clock` gives seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._weight_bytes = 0.0
        self._noted_at = clock()

    def note(self, size_bytes: int) -> None:
        """So many bytes came back now."""
        self._weight_bytes = self._faded_bytes() + size_bytes
        self._noted_at = self._clock()

    def seconds_until(self, size_bytes: int) -> float:
        """How long until so many bytes come back at the present rate; 0 where none ever came back."""
        if not self._weight_bytes:
            return 0.0
        bytes_per_s = self._faded_bytes() * math.log(2) / HALF_LIFE_S  # a steady flow r weighs r x half-life / ln 2
        return size_bytes / bytes_per_s if bytes_per_s else math.inf

    def _faded_bytes(self) -> float:
        elapsed_s = self._clock() - self._noted_at
        return float(self._weight_bytes * 0.5 ** (elapsed_s / HALF_LIFE_S))
