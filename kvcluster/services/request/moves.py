"""Sequences that change places, with what they computed: to host pages when the device is short, and back.

A move is one growth in the place where the sequence goes, and a copy of its rows; then its old memory ends. It is done
at a step boundary, whole or not at all, and waits for the growth's answer, as nothing else in the loop does: it spares
the prefill of all that is copied. What is refused is preempted as if there were no other place.

Back go the oldest, one a boundary, while nobody waits at the device and nobody there is refused: first of those that
wait for pages, which somebody else may keep for long, then of those that run there. These go back once, so that a
device which is short again does not make anybody travel to and fro.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcluster.errors import (
    DeviceUnreachable,
    DriverError,
    GrantRefused,
    KvClusterError,
    LimitReached,
    NeverFits,
    NotAllowed,
    OutOfBudget,
    Quarantined,
)
from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.asks import End, Grow
from kvcluster.services.kv_port import KvMemory, KvPort
from kvcluster.services.request.back_off import BackOff
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.margin import admission_tokens
from kvcluster.services.request.shared import Shared

REFUSALS = (
    DeviceUnreachable | OutOfBudget | NeverFits | NotAllowed | LimitReached | DriverError | GrantRefused | Quarantined
)


class Moves:
    """Between a device, and host pages beside it. `clock` gives seconds."""

    def __init__(
        self, device: tuple[KvPort, Shared], pages: tuple[KvPort, Shared], *, clock: Callable[[], float]
    ) -> None:
        self._device_port, self._device = device
        self._pages_port, self._pages = pages
        self._clock = clock
        self._again_at = float("-inf")
        self._back_off = BackOff()

    def flee(self, generation: Generation) -> End | None:
        """A running sequence of the device goes on in pages: the end of its old memory; None where they have no room.

        Raises:
            KvClusterError: the session with the pages is of no more use.
        """
        from kvcluster.tensors.moving import copy_to_pages

        if self._pages_port.is_lost:
            return None
        memory = self._grown(self._pages_port, self._pages, generation)
        if isinstance(memory, KvClusterError):
            return None
        is_whole = copy_to_pages(generation.views, memory.views(self._pages.dtype), generation.held)
        reach(Failpoint.REQUEST_FLEEING)
        end = self._arrive(generation, memory, self._device, self._pages)
        generation.is_whole = generation.is_whole and is_whole
        return end

    def come_back(self) -> None:
        """The oldest of the pages goes back, if one may and the device has room for it. Raises as `flee`."""
        roster = self._device.roster
        is_short = bool(roster.waiting) or any(generation.refusal for generation in roster.running)
        is_lost = self._device_port.is_lost or self._pages_port.is_lost
        if is_short or is_lost or self._clock() < self._again_at:
            return
        generation = self._waiting() or self._returning()
        if generation is None:
            return
        memory = self._grown(self._device_port, self._device, generation)
        if isinstance(memory, OutOfBudget):
            self._back_off = self._back_off.after(memory)
            self._again_at = self._clock() + self._back_off.wait_s
        if isinstance(memory, KvClusterError):
            generation.may_return = isinstance(memory, OutOfBudget)
            return
        self._back_off, generation.may_return = BackOff(), False
        if generation.phase is Phase.WAITING:
            self._begin(generation, memory)
            return
        from kvcluster.tensors.moving import copy_from_pages

        copy_from_pages(generation.views, memory.views(self._device.dtype), generation.held)
        reach(Failpoint.REQUEST_RETURNING)
        self._pages.ending.append(self._arrive(generation, memory, self._pages, self._device))

    def _begin(self, generation: Generation, memory: KvMemory) -> None:
        """One that waited for pages runs on the device, from its first token on."""
        self._pages.move(generation, self._device)
        self._device.own(generation, memory)
        generation.grown(self._device.dtype)
        generation.begin(0)
        self._device.admit(generation)

    def _waiting(self) -> Generation | None:
        """The oldest that pages refused and the device may have room for by now."""
        if self._device.free_seats < 1:
            return None
        for generation in self._pages.roster.waiting:
            is_quiet = generation.memory is None or not generation.memory.in_flight
            is_refused = generation.ask_again_at > self._clock()
            if is_quiet and is_refused and generation.may_return and not generation.places_too_small:
                return generation
        return None

    def _returning(self) -> Generation | None:
        for generation in self._pages.roster.running:
            memory = generation.memory
            is_quiet = memory is not None and not memory.in_flight and memory not in self._pages.publications
            if is_quiet and generation.may_return and generation.finish_reason is None:
                return generation
        return None

    def _grown(self, port: KvPort, to: Shared, generation: Generation) -> KvMemory | KvClusterError:
        """A memory with room for all that the sequence has, or why there is none."""
        known, most = len(generation.tokens), generation.order.most_held
        try:
            memory = port.memory(to.spec_of(generation))
        except (LimitReached, DriverError) as error:
            return error
        [outcome] = port.submit([Grow(memory, admission_tokens(known, most, to.settings.margin_steps))]).settle()
        if outcome.error is None:
            return memory
        to.ending.append(End(memory))
        if not isinstance(outcome.error, REFUSALS):
            raise outcome.error
        return outcome.error

    def _arrive(self, generation: Generation, memory: KvMemory, old: Shared, new: Shared) -> End:
        """Its rows are there: it goes on in `memory`. The end of the old one."""
        end = old.release(generation)
        old.roster.hand_over(generation)
        generation.move_away()
        new.own(generation, memory)
        generation.grown(new.dtype)
        new.roster.take_over(generation)
        new.tally.add(moves=1)
        return end
