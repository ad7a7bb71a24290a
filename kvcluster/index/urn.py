"""Things of which some are drawn by chance, each as often as it weighs; put in, weighed again and taken out.

They lie in trays of their weights' octaves. A draw takes a tray, by what it weighs in all, and a thing from it, which
it keeps with the chance of its weight beside the most that a thing there can weigh: at least one half. So each act is
a step or two, however many things there are. Chance is no secret here: equal acts draw equal things.
"""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Tray(Generic[T]):
    """Things that weigh less than `below`, and at least half of it."""

    below: int
    weight: int = 0
    things: list[T] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Place(Generic[T]):
    tray: _Tray[T]
    at: int
    weight: int


class Urn(Generic[T]):
    def __init__(self) -> None:
        self.weight = 0
        self._trays: dict[int, _Tray[T]] = {}
        self._places: dict[T, _Place[T]] = {}
        self._chance = random.Random(0)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, thing: T) -> bool:
        return thing in self._places

    def put(self, thing: T, weight: int) -> None:
        """It weighs so much from now on, whether it was here or not; what weighs nothing is not here."""
        place = self._places.get(thing)
        if place is not None and place.tray.below == 1 << weight.bit_length():
            change = weight - place.weight
            place.weight = weight
        else:
            if place is not None:
                self.take(thing)
            if weight <= 0:
                return
            below, change = 1 << weight.bit_length(), weight
            tray = self._trays.setdefault(below, _Tray(below))
            place = self._places[thing] = _Place(tray, len(tray.things), weight)
            tray.things.append(thing)
        place.tray.weight += change
        self.weight += change

    def take(self, thing: T) -> None:
        """Raises KeyError for one that is not here. Nothing changed."""
        place = self._places.pop(thing)
        place.tray.weight -= place.weight
        self.weight -= place.weight
        last = place.tray.things.pop()
        if place.at < len(place.tray.things):
            place.tray.things[place.at] = last
            self._places[last].at = place.at

    def some(self, most: int) -> list[T]:
        """All of them, each as often as it weighs; where that is more than `most`, so many of those by chance."""
        if self.weight <= most:
            return [thing for thing, place in self._places.items() for _ in range(place.weight)]
        trays = list(self._trays.values())
        chosen = self._chance.choices(trays, weights=[tray.weight for tray in trays], k=most)
        return [self._drawn(tray) for tray in chosen]

    def _drawn(self, tray: _Tray[T]) -> T:
        chance = self._chance.random
        while True:
            thing = tray.things[int(chance() * len(tray.things))]
            if tray.below == 2 or chance() * tray.below < self._places[thing].weight:
                return thing
