"""Who waits and who runs: two lists, each oldest first.

The oldest is the one with the lowest arrival number of the device; those that it does not know yet follow in order
of submission. Arrivals are handed out in that order too, so a preempted request goes back before younger ones.
"""

from __future__ import annotations

from kvcluster.services.request.generation import Generation, Phase


class Roster:
    """The generations that are not over."""

    def __init__(self) -> None:
        self.waiting: list[Generation] = []
        self.running: list[Generation] = []

    def join(self, generation: Generation) -> None:
        """A new one waits."""
        self.waiting.append(generation)
        self.waiting.sort(key=_age)

    def admit(self, generation: Generation) -> None:
        """It has memory and runs."""
        generation.move(Phase.RUNNING)
        self.waiting.remove(generation)
        self.running.append(generation)
        self.running.sort(key=_age)

    def requeue(self, generation: Generation) -> None:
        """It has no windows any more and waits again, at its old place."""
        generation.move(Phase.WAITING)
        generation.stripped()
        self.running.remove(generation)
        self.join(generation)

    def leave(self, generation: Generation) -> None:
        """It is over."""
        (self.running if generation.phase is Phase.RUNNING else self.waiting).remove(generation)
        generation.move(Phase.OVER)
        generation.views = None

    def find(self, key: int) -> Generation | None:
        return next((g for g in (*self.running, *self.waiting) if g.order.key == key), None)

    def all(self) -> tuple[Generation, ...]:
        return (*self.running, *self.waiting)


def _age(generation: Generation) -> tuple[float, int]:
    return generation.arrival, generation.order.number
