"""What an entry is worth that is kept: its Gittins index, the most hits to expect for the time that it is kept.

Learned from the load itself, for entries of a kind and an age: the hazard of another use is hits over exposure, where
entries that still wait for one are exposure too (Kaplan and Meier). The index takes the best of all horizons, so that
what comes back after a long while and then surely is worth more the longer it has waited.

Ages are counted in uses, and told apart by half octaves; nothing here knows a size, a time or a load.
Sources: J. C. Gittins, "Bandit processes and dynamic allocation indices" (1979); E. L. Kaplan, P. Meier,
"Nonparametric estimation from incomplete observations" (1958); N. Beckmann et al., "LHD: improving cache hit rate by
maximizing hit density" (2018).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import expm1

BINS = 64  # of age: the last is of more than 2,000 million uses
KEPT = 0.9  # of what was learned, from one learning to the next


class Worth:
    """Of entries of so many kinds. Before anything was learned, of two the later used, and by kind, is worth more."""

    def __init__(self, kinds: int) -> None:
        self._hits = [[0.0] * BINS for _ in range(kinds)]
        self._ends = [[0.0] * BINS for _ in range(kinds)]
        self._worth = [[(kind + 1) * 0.5**age for age in range(BINS)] for kind in range(kinds)]

    def of(self, kind: int, age: int) -> float:
        """Hits a use, for an entry of this kind whose last use was `age` uses ago. Only the order means anything."""
        return self._worth[kind][age_bin(age)]

    def hit(self, kind: int, age: int, *, times: int = 1) -> None:
        """One of this kind was used again, `age` uses after its last; or so many of them were."""
        self._hits[kind][age_bin(age)] += times

    def ended(self, kind: int, age: int) -> None:
        """One of this kind was not used again for so long, and is watched no more."""
        self._ends[kind][age_bin(age)] += 1

    def learn(self, waiting: Iterable[tuple[int, int]], *, weight: float, doubt: float) -> None:
        """Take in what was seen; what was seen before counts less and less.

        `waiting` are kind and age of some that wait still, each of which stands for `weight`; `doubt` is exposure that
        is added everywhere, so that one hit of one entry proves little.
        """
        standing = [[0.0] * BINS for _ in self._worth]
        for kind, age in waiting:
            standing[kind][age_bin(age)] += weight
        for kind, hits in enumerate(self._hits):
            ends = self._ends[kind]
            seen = [h + e + s for h, e, s in zip(hits, ends, standing[kind], strict=True)]
            self._worth[kind] = gittins(hazards(hits, seen, doubt))
            self._hits[kind] = [KEPT * h for h in hits]
            self._ends[kind] = [KEPT * e for e in ends]


def age_bin(age: int) -> int:
    """Half octaves: bin b has the ages from 2**((b - 1) / 2) to below 2**(b / 2)."""
    return min((age * age).bit_length(), BINS - 1)


def hazards(hits: list[float], seen: list[float], doubt: float) -> list[float]:
    """Hits a use in each bin, where so many were `seen` up to that bin and no further, `hits` of them for a hit."""
    rates, older = [0.0] * BINS, 0.0
    for age in reversed(range(BINS)):
        exposure = (older + seen[age] / 2) * WIDTHS[age]
        rates[age] = hits[age] / (exposure + doubt) if hits[age] else 0.0
        older += seen[age]
    return rates


def gittins(rates: list[float]) -> list[float]:
    """For each bin, the most hits for the time, over all horizons, of an entry that has come to its beginning.

    From the oldest bin back. A stretch goes on into the one behind it as long as that is worth more than itself: each
    bin joins another once at most, so all of it takes a step a bin.
    """
    worth = [0.0] * len(rates)
    behind: list[tuple[float, float, float]] = []  # hits, time and survival of stretches, the next one last
    for age in reversed(range(len(rates))):
        rate, width = rates[age], WIDTHS[age]
        ends = -expm1(-rate * width)
        hits, time, alive = ends, ends / rate if rate else width, 1 - ends
        while behind and alive and behind[-1][0] * time > hits * behind[-1][1]:
            more, longer, survive = behind.pop()
            hits, time, alive = hits + alive * more, time + alive * longer, alive * survive
        behind.append((hits, time, alive))
        worth[age] = hits / time
    return worth


WIDTHS = [2 ** (b / 2) - (2 ** ((b - 1) / 2) if b else 0) for b in range(BINS)]
