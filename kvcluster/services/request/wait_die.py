"""What a refused growth leads to, so that the oldest request on the device always goes on. Pure.

First the younger requests of the same actor lose their memory, youngest first. If there are none, or taking from
them freed nothing, a request waits while it holds memory only if it is the oldest on the device; any other gives
everything back. So no two requests ever wait for each other, on one actor or on several. One that wants more than
the quarantine leaves gives everything back at once: nobody can help it by giving anything up, and it helps the others.

A prefix that it joined may keep more memory than it reads, from itself too. So the oldest gives everything back when it
has asked so often in vain, and begins again without looking for any.

Beams of one search are as old as their lead, and no victims of each other: one that loses its memory takes the others
along, and the search begins again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.errors import OutOfBudget
from kvcluster.services.request.generation import Generation

MOST_IN_VAIN = 8  # asks: some seconds


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take all memory from these, then ask again."""

    victims: tuple[Generation, ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep the memory, and ask again later."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give all of its own memory back, and queue again."""


@dataclass(frozen=True, slots=True)
class StartOver:
    """Give all of it back, and begin again without what others computed."""


Remedy = Preempt | Wait | GiveBack | StartOver


def remedy(refused: Generation, refusal: OutOfBudget, running: Sequence[Generation]) -> Remedy:
    """What to do about `refusal`; `running` are the actor's running requests, oldest first."""
    if refused.is_blocked:
        return GiveBack()
    lead = refused.lead
    younger = [] if refused.preempted_in_vain else running
    if victims := enough(younger, refusal.need - refusal.free, younger_than=lead.arrival):
        return Preempt(victims)
    if refusal.oldest_arrival != lead.arrival:
        return GiveBack()
    return StartOver() if lead.joined and refused.back_off.in_vain >= MOST_IN_VAIN else Wait()


def enough(running: Sequence[Generation], missing_bytes: int, *, younger_than: float) -> tuple[Generation, ...]:
    """The youngest that together hold `missing_bytes`, at least one; all that are so young, where they hold less.

    What one shares counts: without it the memory may be nobody's, and can be had. Of beams the lead stands for all.
    """
    victims: dict[Generation, None] = {}
    for generation in reversed(running):
        lead = generation.lead
        if lead.arrival <= younger_than or lead in victims:
            continue
        if victims and missing_bytes <= 0:
            break
        victims[lead] = None
        missing_bytes -= sum(member.held_bytes for member in lead.crew.members) if lead.crew else lead.held_bytes
    return tuple(victims)
