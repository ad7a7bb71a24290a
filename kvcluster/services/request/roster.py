"""Who waits and who runs: two lists, each oldest first.

The oldest is the one with the lowest arrival number of the device; those that it does not know yet follow in order
of submission. Both lists are sorted at every moment but one: when the device's answers bring new arrival numbers,
`sort` comes before anything else.
"""

from __future__ import annotations

from bisect import insort

from kvcluster.services.request.generation import Generation, Phase


class Roster:
    """The generations that are not over."""

    def __init__(self) -> None:
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []

    def join(self, generation: Generation) -> None:
        """A new one waits."""
        insort(self.waiting, generation, key=_age)

    def admit(self, generation: Generation) -> None:
        """It has memory and runs."""
        self.waiting.remove(generation)
        generation.move(Phase.RUNNING)
        insort(self.running, generation, key=_age)

    def requeue(self, generation: Generation) -> None:
        """It has no windows any more and waits, at the place of its age."""
        if generation.phase is Phase.RUNNING:
            self.running.remove(generation)
            generation.move(Phase.WAITING)
        else:
            self.waiting.remove(generation)
        generation.stripped()
        self.join(generation)

    def leave(self, generation: Generation) -> None:
        """It is over."""
        (self.running if generation.phase is Phase.RUNNING else self.waiting).remove(generation)
        generation.move(Phase.OVER)
        generation.stripped()

    def give_up(self, generation: Generation) -> None:
        """It waits here no longer, and is not over."""
        self.waiting.remove(generation)
        generation.stripped()

    def hand_over(self, generation: Generation) -> None:
        """It runs, and goes on elsewhere."""
        self.running.remove(generation)

    def take_over(self, generation: Generation) -> None:
        """It runs, and came from elsewhere."""
        insort(self.running, generation, key=_age)

    def sort(self) -> None:
        """The device gave arrival numbers: everybody to the place of its age."""
        self.waiting.sort(key=_age)
        self.running.sort(key=_age)

    def of(self, key: int) -> tuple[Generation, ...]:
        """Those of the request with this key that are not over."""
        return tuple(g for g in self.all() if g.order.key == key)

    def all(self) -> tuple[Generation, ...]:
        return (*self.running, *self.waiting)


def _age(generation: Generation) -> tuple[float, int]:
    return generation.arrival, generation.order.number
