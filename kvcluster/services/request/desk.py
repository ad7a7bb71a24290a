"""Asks the device for memory; all that is due at a step boundary shares a frame, and one is in flight at a time.

In one frame, in this order: memories that end, those that preempted requests lose, growth of those that run, and
admissions, each oldest first. While a running request is refused what it cannot do without, nobody is admitted.
A frame leaves before a model step and its answer is used after it, so growth costs no waiting.

Where the device demands memory back, for a request of some other actor that is older, the youngest lose theirs.
While another thread captures a graph a boundary waits for its end, whatever the capture says: the loop has nobody to
tell a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcluster.driver.gate import patient_operation
from kvcluster.errors import DriverError, LimitReached
from kvcluster.geometry.residency import Shape
from kvcluster.services.asks import Ask, End, Grow, Shed
from kvcluster.services.frames import in_frames
from kvcluster.services.pending import PendingAsks
from kvcluster.services.port import DevicePort
from kvcluster.services.request.answers import Answered, Answers
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.margin import admission_tokens, is_due, needed_tokens, topped_up_tokens
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.wait_die import GiveBack, Preempt, Wait, enough, remedy
from kvcluster.services.sequence import SequenceMemory, SequenceSpec


class MemoryDesk:
    """One port's asks and answers. `clock` gives seconds."""

    def __init__(self, port: DevicePort, shared: Shared, *, clock: Callable[[], float]) -> None:
        self._port = port
        self._shared = shared
        self._clock = clock
        self._answers = Answers(shared, port.welcome, clock=clock)
        self._shape = Shape.of(
            shared.geometry,
            shared.settings.layout,
            port.welcome.granule_bytes,
            chunk_tokens=shared.settings.prefill_chunk_tokens,
        )
        self._pending: tuple[PendingAsks, ...] = ()
        self._held_bytes: dict[SequenceMemory, int] = {}  # of those that give everything back

    @property
    def in_flight(self) -> bool:
        return bool(self._pending)

    @patient_operation
    def boundary(self) -> None:
        """Use an answer that is here, and send what is due. Never waits for the device.

        Nothing that the loop gives back waits for a fence: it has read the tokens of each step before the next
        boundary, so all work is over by then. `tend` is for others who use this port in this process: what they
        released after a fence rides along here. What of it cannot be unmapped stays charged, as their memory says.

        Raises:
            KvClusterError: the session is of no more use (see `Answers.absorb`).
        """
        self._answers.heed(self._port.tend())
        if all(pending.ready() for pending in self._pending):
            self.settle()
            self._send(self._due())

    @patient_operation
    def settle(self) -> None:
        """Use the answer to what is in flight; waits for it. Raises as `boundary` does."""
        pending, self._pending = self._pending, ()
        outcomes = [outcome for frame in pending for outcome in frame.settle()]
        self._answers.absorb(outcomes, self._held_bytes)

    def drain_answered(self) -> list[Answered]:
        """Requests that the device's answers decided since the last call."""
        answered, self._answers.answered = self._answers.answered, []
        return answered

    def due_at(self) -> float:
        """When there is something to ask that nobody's step or answer leads to; infinity for never."""
        roster = self._shared.roster
        moments = [g.ask_again_at for g in roster.running if g.needs_more and is_due(g.room)]
        if not any(g.refusal for g in roster.running):
            moments += self._admission_moments()
        return float("-inf") if self._shared.ending else min(moments, default=float("inf"))

    # --- what is due ----------------------------------------------------------------------------------------------

    def _send(self, asks: list[Ask]) -> None:
        self._held_bytes = {ask.memory: ask.memory.committed_bytes for ask in asks if isinstance(ask, Shed | End)}
        self._pending = tuple(self._port.submit(frame) for frame in in_frames(asks))

    def _due(self) -> list[Ask]:
        now, roster = self._clock(), self._shared.roster
        ends, self._shared.ending = [End(memory) for memory in self._shared.ending], []
        relief = [*self._reclaimed(now), *self._relief(now)]
        refused = any(generation.refusal for generation in roster.running)
        admissions = [] if relief or refused else list(self._admissions(now))
        growths = list(self._growths(now, refused=refused, along=bool(ends or admissions)))
        return [*ends, *relief, *growths, *admissions]

    def _reclaimed(self, now: float) -> Iterator[Shed]:
        """What the device demands back: the newest demand counts, because each says all that is missing."""
        demands = self._port.pushes()
        if not demands:
            return
        running, demand = self._shared.roster.running, demands[-1]
        younger = [generation for generation in reversed(running) if generation.arrival > demand.younger_than]
        for victim in enough(younger, demand.size_bytes):
            yield self._shed(victim, again_at=now + self._shared.settings.try_again_s)

    def _relief(self, now: float) -> Iterator[Ask]:
        """What is done for the oldest running request that was refused what it cannot do without."""
        running = self._shared.roster.running
        refused = [generation for generation in running if generation.refusal]
        if not refused or (oldest := refused[0]).refusal is None:
            return
        match remedy(oldest, oldest.refusal, running):
            case Preempt(victims):
                for victim in victims:
                    yield self._shed(victim, again_at=oldest.ask_again_at)
            case GiveBack():
                yield self._shed(oldest, again_at=oldest.ask_again_at)
            case Wait():
                if now < oldest.ask_again_at:
                    return
        for generation in refused:
            if generation.phase is Phase.RUNNING:
                yield Grow(_memory_of(generation), needed_tokens(generation.length, generation.order.most_held))

    def _shed(self, victim: Generation, *, again_at: float) -> Shed:
        self._shared.tally.add(preemptions=1)
        victim.ask_again_at = max(victim.ask_again_at, again_at)
        self._shared.roster.requeue(victim)
        return Shed(_memory_of(victim))

    def _growths(self, now: float, *, refused: bool, along: bool) -> Iterator[Grow]:
        """A top-up of everybody when anybody is due; where somebody was refused, what those that are due need.

        `along`: a frame leaves anyhow, so it takes along whoever would be due within half a margin.
        """
        margin = self._shared.settings.margin_steps
        growing = [g for g in self._shared.roster.running if g.needs_more and not g.refusal and g.ask_again_at <= now]
        due = [g for g in growing if is_due(g.room)]
        soon = [g for g in growing if along and g.room <= margin // 2]
        for generation in due if refused else growing if due else soon:
            length, most = generation.length, generation.order.most_held
            least, filled = needed_tokens(length, most), topped_up_tokens(self._shape, length, most, margin)
            tokens = least if refused else filled
            if tokens > generation.committed:
                yield Grow(_memory_of(generation), tokens)

    def _admissions(self, now: float) -> Iterator[Grow]:
        for generation in self._candidates(now):
            memory = generation.memory or self._open(generation)
            if memory is not None:
                known, most = len(generation.tokens), generation.order.most_held
                yield Grow(memory, admission_tokens(known, most, self._shared.settings.margin_steps))

    def _candidates(self, now: float) -> list[Generation]:
        """Who may ask to be admitted: the oldest, as many as may run, up to the first whose time has not come.

        Whoever is younger than that one would be refused with it. One that is blocked holds up nobody.
        """
        roster = self._shared.roster
        places = self._shared.settings.max_num_seqs - len(roster.running)
        found: list[Generation] = []
        for generation in roster.waiting:
            is_due_now = generation.ask_again_at <= now
            if len(found) == places or not (is_due_now or generation.is_blocked):
                break
            if is_due_now:
                found.append(generation)
        return found

    def _admission_moments(self) -> list[float]:
        """When those may ask that hold up nobody or have nobody before them."""
        waiting = self._shared.roster.waiting
        first = next((place for place, generation in enumerate(waiting) if not generation.is_blocked), len(waiting))
        return [generation.ask_again_at for generation in waiting[: first + 1]]

    def _open(self, generation: Generation) -> SequenceMemory | None:
        shared = self._shared
        settings, tokens = shared.settings, generation.order.total_tokens
        spec = SequenceSpec(
            shared.geometry,
            settings.layout,
            tokens,
            after=generation.former,
            chunk_tokens=settings.prefill_chunk_tokens,
        )
        try:
            memory = self._port.memory(spec)
        except (LimitReached, DriverError) as error:
            self._answers.failed(generation, error)
            return None
        shared.own(generation, memory)
        return memory

    # --- the end --------------------------------------------------------------------------------------------------

    @patient_operation
    def close(self) -> None:
        """Give back every memory whose generation has left the roster. Raises as `boundary` does."""
        self.settle()
        while self._shared.ending:
            self._send(self._due())
            self.settle()


def _memory_of(generation: Generation) -> SequenceMemory:
    assert generation.memory is not None  # whatever runs has a memory
    return generation.memory
