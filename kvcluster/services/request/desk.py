"""Asks the device for memory; all that is due at a step boundary shares a frame, and one is in flight at a time.

In one frame, in this order: memories that end, those that preempted requests lose, the next step of what is being
shared, growth of those that run, and admissions, each oldest first. While a running request is refused what it cannot
do without, nobody is admitted. A frame leaves before a model step and its answer is used after it, so growth costs no
waiting. Who is admitted, and what he asks for, is in `admissions`.

Where the device demands memory back, for a request of some other actor that is older, the youngest lose theirs.
An owner that dies holds up nobody who has room: what was asked of it is asked again of the next incarnation, and
meanwhile those that lack memory wait. Where it has ended the session, everybody begins again in another one.
While another thread captures a graph a boundary waits for its end, whatever the capture says: the loop has nobody to
tell a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvcluster.driver.gate import patient_operation
from kvcluster.errors import KvClusterError, SessionEnded
from kvcluster.services.asks import Ask, End, Grow, Shed
from kvcluster.services.frames import in_frames
from kvcluster.services.kv_port import KvMemory, KvPort, PendingFrame
from kvcluster.services.request.admissions import Admissions
from kvcluster.services.request.answers import Answered, Answers
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.margin import is_due, margin_at, needed_tokens, topped_up_tokens
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.wait_die import GiveBack, Preempt, StartOver, Wait, enough, remedy

SEEK_S = 0.01  # between two looks for an owner that is sought, where there is nothing to compute


class MemoryDesk:
    """One port's asks and answers. `clock` gives seconds."""

    def __init__(self, port: KvPort, shared: Shared, *, clock: Callable[[], float]) -> None:
        self._port = port
        self._shared = shared
        self._clock = clock
        self._answers = Answers(shared, port.welcome, clock=clock)
        self._admissions = Admissions(port, shared, self._answers)
        self._pending: tuple[PendingFrame, ...] = ()
        self._held_bytes: dict[KvMemory, int] = {}  # of those that give everything back

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
            KvClusterError: the owner is lost for good, or does what it should not (see `Answers.absorb`).
        """
        if self._is_in_touch():
            self._answers.heed(self._port.tend())
        if all(pending.ready() for pending in self._pending):
            self.settle()
            if not self._port.is_lost:
                self._send(self._due())

    def _is_in_touch(self) -> bool:
        try:
            return self._port.in_touch()
        except SessionEnded:
            self._begin_again()
            return False

    def _begin_again(self) -> None:
        """Every memory is closed: whoever had one, or waits in one, waits for another in the place of its age."""
        shared, self._pending = self._shared, ()
        for crew in {g.crew for g in shared.roster.all() if g.crew}:
            self._answers.disband(crew)
        for generation in shared.roster.all():
            shared.discard(generation)
            shared.roster.requeue(generation)
        shared.ending.clear()

    @patient_operation
    def settle(self) -> None:
        """Use the answer to what is in flight; waits for it. Raises as `boundary` does."""
        pending, self._pending = self._pending, ()
        outcomes = [outcome for frame in pending for outcome in frame.settle()]
        self._answers.absorb(outcomes, self._held_bytes)

    def renew(self, generation: Generation, error: KvClusterError) -> None:
        """Its memory is of no use: it begins again in another one, but not for ever."""
        self._answers.renew(generation, error)

    def drain_answered(self) -> list[Answered]:
        """Requests that the device's answers decided since the last call."""
        answered, self._answers.answered = self._answers.answered, []
        return answered

    def drain_resumed(self) -> list[Generation]:
        """Those that heard since the last call what a process that died had said of them, or have what it had."""
        resumption = self._answers.resumption
        resumed, resumption.resumed = resumption.resumed, []
        return resumed

    def due_at(self) -> float:
        """When there is something to ask that nobody's step or answer leads to; infinity for never."""
        if self._port.is_lost:
            return self._clock() + SEEK_S
        running = self._shared.roster.running
        if self._shared.ending or self._shared.publications or any(g.targets.reached(g.held) for g in running):
            return float("-inf")
        moments = [g.ask_again_at for g in running if g.needs_more and is_due(g.room)]
        if not any(g.refusal for g in running):
            moments += self._admissions.moments()
        return min(moments, default=float("inf"))

    # --- what is due ----------------------------------------------------------------------------------------------

    def _send(self, asks: list[Ask]) -> None:
        back = [ask.memory for ask in asks if isinstance(ask, Shed | End)]
        self._held_bytes = {memory: memory.committed_bytes + memory.shared_bytes for memory in back}
        self._pending = tuple(self._port.submit(frame) for frame in in_frames(asks, load_of=self._port.load))

    def _due(self) -> list[Ask]:
        now, roster = self._clock(), self._shared.roster
        ends = self._ends()
        relief = [*self._reclaimed(now), *self._relief(now)]
        refused = any(generation.refusal for generation in roster.running)
        self._begin_sharing()
        shares = self._shared.publications.due()
        admissions = [] if relief or refused else list(self._admissions.due(now))
        growths = list(self._growths(now, refused=refused, along=bool(ends or admissions)))
        return [*ends, *relief, *shares, *growths, *admissions]

    def _ends(self) -> list[Ask]:
        """Memories that end, but for those that are still being shared."""
        shared = self._shared
        ends: list[Ask] = [end for end in shared.ending if end.memory not in shared.publications]
        shared.ending = [end for end in shared.ending if end.memory in shared.publications]
        return ends

    def _begin_sharing(self) -> None:
        """Who has reached a target shares what it has; where its memory is short, it goes on without."""
        for generation in self._shared.roster.running:
            memory, target = _memory_of(generation), generation.targets.reached(generation.held)
            if not target or memory in self._shared.publications:
                continue
            if generation.refusal is None and target <= generation.named:
                self._shared.publications.begin(memory, memory.publication(target, written=generation.held))
            if memory not in self._shared.publications:
                generation.targets.pass_by(generation.held)

    def _reclaimed(self, now: float) -> Iterator[Shed | End]:
        """What the device demands back: the newest demand counts, because each says all that is missing."""
        demands = self._port.pushes()
        if not demands:
            return
        demand = demands[-1]
        for victim in enough(self._shared.roster.running, demand.size_bytes, younger_than=demand.younger_than):
            yield from self._shed(victim, again_at=now + self._shared.settings.try_again_s)

    def _relief(self, now: float) -> Iterator[Ask]:
        """What is done for the oldest running request that was refused what it cannot do without."""
        running = self._shared.roster.running
        refused = [generation for generation in running if generation.refusal]
        if not refused or (oldest := refused[0]).refusal is None:
            return
        match remedy(oldest, oldest.refusal, running):
            case Preempt(victims):
                for victim in victims:
                    yield from self._shed(victim, again_at=oldest.ask_again_at)
            case GiveBack():
                yield from self._shed(oldest, again_at=oldest.ask_again_at)
            case StartOver():
                oldest.lead.looks = False
                yield from self._shed(oldest, again_at=now)
            case Wait():
                if now < oldest.ask_again_at:
                    return
        for generation in refused:
            if generation in running and _memory_of(generation) not in self._shared.publications:
                yield Grow(_memory_of(generation), _needed(generation))

    def _shed(self, victim: Generation, *, again_at: float) -> Iterator[Shed | End]:
        """It loses its memory, and goes on elsewhere if that has room for what it computed; beams go together."""
        self._shared.tally.add(preemptions=1)
        self._shared.publications.forget(_memory_of(victim))
        if victim.crew:
            yield from self._answers.disband(victim.crew)
            victim = victim.crew.lead
        elif self._shared.flee and (end := self._shared.flee(victim)):
            yield end
            return
        victim.computed = 0  # it gave it back; to compute it again makes good no failure
        victim.ask_again_at = max(victim.ask_again_at, again_at)
        self._shared.roster.requeue(victim)
        yield Shed(_memory_of(victim))

    def _growths(self, now: float, *, refused: bool, along: bool) -> Iterator[Grow]:
        """A top-up of everybody when anybody is due; where somebody was refused, what those that are due need.

        `along`: a frame leaves anyhow, so it takes along whoever would be due within half a margin.
        """
        margin, shape = self._shared.settings.margin_steps, self._shared.shape
        growing = [g for g in self._growing() if not g.refusal and g.ask_again_at <= now]
        due = [g for g in growing if is_due(g.room)]
        soon = [g for g in growing if along and g.room <= margin // 2]
        for generation in due if refused else growing if due else soon:
            length, most = generation.length, generation.order.most_held
            ahead = margin_at(length, margin)
            tokens = _needed(generation) if refused else topped_up_tokens(shape, length, most, ahead)
            if tokens > generation.committed:
                yield Grow(_memory_of(generation), tokens)

    def _growing(self) -> Iterator[Generation]:
        for generation in self._shared.roster.running:
            if generation.needs_more and _memory_of(generation) not in self._shared.publications:
                yield generation

    # --- the end --------------------------------------------------------------------------------------------------

    @patient_operation
    def close(self) -> None:
        """Give back every memory whose generation has left the roster. Raises as `boundary` does."""
        self.settle()
        while self._shared.ending:
            self._send(self._due())
            self.settle()


def _needed(generation: Generation) -> int:
    """The least that lets it go on. A beam waits with all that its crew has: it asks for no step ahead."""
    if generation.crew:
        return generation.held + 1
    return needed_tokens(generation.length, generation.order.most_held)


def _memory_of(generation: Generation) -> KvMemory:
    assert generation.memory is not None  # whatever runs has a memory
    return generation.memory
