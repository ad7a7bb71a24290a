"""What the device's answers change: who runs, who has what, who must ask again and when.

A refusal for lack of budget is ordinary and costs nobody anything; what a running request's refusal leads to is
decided in `wait_die`. A device that fails is asked a few times more, and then the request is refused with a result of
its own. A memory in quarantine is ended, and its request starts again in a new one, in its old place in the queue.
What needs more than the quarantine leaves waits for a bounded time: a process that holds on to memory may never end.
What an owner died over (DeviceUnreachable) is asked again of its next incarnation, and counts against nobody. Other
errors of the session itself (stale, ended) are not this request's and are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvcluster.errors import (
    DeviceUnreachable,
    DriverError,
    GrantRefused,
    KvClusterError,
    LimitReached,
    NeverFits,
    NotAllowed,
    NotShareable,
    OutOfBudget,
    Quarantined,
)
from kvcluster.services.asks import Adopt, End, Find, Grow, Outcome, Publish, Seal, Shed, TakeSnapshot
from kvcluster.services.completion import Refused
from kvcluster.services.kv_port import KvMemory
from kvcluster.services.request import refusals
from kvcluster.services.request.crew import Crew
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.margin import is_due
from kvcluster.services.request.resumption import Resumption
from kvcluster.services.request.settings import Fallback
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.targets import set_out
from kvcluster.wire.socket import Welcome

NOT_SHARED = (
    NotShareable
    | NotAllowed
    | OutOfBudget
    | NeverFits
    | GrantRefused
    | LimitReached
    | DriverError
    | Quarantined
    | DeviceUnreachable
)
"""What ends the sharing of a memory, and nothing else."""
_LONG_AGO = float("-inf")


@dataclass(frozen=True, slots=True)
class Answered:
    """A request that the device's answer decided."""

    generation: Generation
    outcome: Refused


class Answers:
    """Absorbs outcomes into what the service's parts share. `clock` gives seconds."""

    def __init__(self, shared: Shared, welcome: Welcome, *, clock: Callable[[], float]) -> None:
        wait_s = shared.settings.quarantine_wait_s
        self._shared = shared
        self._clock = clock
        self._block_bytes = welcome.granule_bytes
        self._owner = "the host" if welcome.block_tokens else "the device"
        self._quarantine_wait_s = 2 * welcome.lease_s if wait_s is None else wait_s
        self.answered: list[Answered] = []
        self.resumption = Resumption(shared, clock=clock)

    def absorb(self, outcomes: Sequence[Outcome], held_bytes: Mapping[KvMemory, int]) -> None:
        """Outcomes in the order of their asks. `held_bytes`: what those held, shared or not, that gave everything back.

        Raises:
            KvClusterError: the session is of no more use.
        """
        self._shared.roster.sort()
        ended = [outcome.ask.memory for outcome in outcomes if isinstance(outcome.ask, End)]
        if _freed_bytes(ended, held_bytes):
            for generation in self._shared.roster.all():
                generation.ask_again_at = _LONG_AGO
        grew = [self._absorb(outcome) for outcome in outcomes]
        self._shared.tally.add(steps_that_grew=int(any(grew)))
        shed = [outcome.ask.memory for outcome in outcomes if isinstance(outcome.ask, Shed)]
        if shed and not _freed_bytes(shed, held_bytes):
            for generation in self._shared.roster.running:
                generation.preempted_in_vain = generation.refusal is not None

    def heed(self, outcomes: Sequence[Outcome]) -> None:
        """What became of memories that are not this service's. Raises as `absorb`."""
        for outcome in outcomes:
            self._given_back(outcome, None)

    def _absorb(self, outcome: Outcome) -> bool:
        """Whether a running request grew."""
        generation = self._shared.owners.get(outcome.ask.memory)
        match outcome.ask:
            case Grow() | Find() if generation is not None:
                was_running = generation.phase is Phase.RUNNING
                self._grow(generation, outcome)
                return was_running and outcome.error is None
            case Adopt() if generation is not None and isinstance(outcome.error, NeverFits):
                self._never_fits(generation, outcome.error)
            case Adopt() if isinstance(outcome.error, DeviceUnreachable):
                return False
            case Adopt() if generation is not None:
                self.resumption.heard(generation, outcome)
            case TakeSnapshot() | Publish() | Seal():
                self._shared_on(outcome, generation)
            case Shed() | End():
                self._given_back(outcome, generation)
        return False

    def _shared_on(self, outcome: Outcome, generation: Generation | None) -> None:
        """A step of sharing is done, or ends it: who owns the memory goes on, unless its windows are gone."""
        memory, error = outcome.ask.memory, outcome.error
        if not isinstance(error, NOT_SHARED | None):
            raise error
        is_over = self._shared.publications.answered(memory, refused=error is not None)
        if generation is None or not is_over:
            return
        if error is not None and (memory.tokens < generation.held or isinstance(error, Quarantined)):
            self.renew(generation, error)
            return
        reached = generation.targets.reached(generation.held)
        generation.targets.pass_by(generation.held)
        generation.look_again(self._shared.dtype)
        if error is None:
            generation.targets.shared = self._shared.worth.reusable_tokens(reached)
            self._shared.tally.add(publications=1)

    def _given_back(self, outcome: Outcome, generation: Generation | None) -> None:
        """What could not be given back stays charged; a preempted request goes on in another memory."""
        error = outcome.error
        if isinstance(error, DeviceUnreachable):
            return
        if not isinstance(error, Quarantined | DriverError | LimitReached | None):
            raise error
        if isinstance(outcome.ask, Shed) and generation is not None and error is not None:
            self.renew(generation, error)

    def _grow(self, generation: Generation, outcome: Outcome) -> None:
        match error := outcome.error:
            case None:
                self._granted(generation, outcome)
            case OutOfBudget():
                in_its_way = isinstance(outcome.ask, Find) and self._may_stand_in_its_own_way(generation, error)
                generation.looks = not in_its_way
                self._refused(generation, error, asked_all=not isinstance(outcome.ask, Find))
            case DeviceUnreachable():
                return
            case NeverFits():
                self._never_fits(generation, error)
            case Quarantined():
                self.renew(generation, error)
            case LimitReached() | DriverError() | GrantRefused() if isinstance(outcome.ask, Find):
                self.renew(generation, error)  # whoever waits holds nothing, and has told nobody its tokens
                generation.ask_again_at = self._clock() + self._shared.settings.try_again_s
            case LimitReached() | DriverError() | GrantRefused():
                self.failed(generation, error)
            case _:
                raise error

    def _granted(self, generation: Generation, outcome: Outcome) -> None:
        generation.grown(self._shared.dtype)
        if generation.phase is Phase.WAITING:
            self._begin(generation, outcome)
            self._shared.admit(generation)

    def _begin(self, generation: Generation, outcome: Outcome) -> None:
        """What others know matters once: later it knows most of it itself."""
        is_first, looked = generation.cached is None, isinstance(outcome.ask, Find)
        generation.looks = True
        generation.begin(outcome.joined_tokens)
        if looked:
            if not generation.crew:
                set_out(generation, self._shared.worth, outcome.known_tokens if is_first else 0)
            self._shared.tally.add(lookups=1, hit_tokens=outcome.joined_tokens)

    def _may_stand_in_its_own_way(self, generation: Generation, refusal: OutOfBudget) -> bool:
        """Whether what it finds may keep what it lacks, as in `wait_die`: nobody else's end brings room first."""
        return refusal.oldest_arrival == generation.arrival and not self._shared.roster.running

    def _never_fits(self, generation: Generation, error: NeverFits) -> None:
        """Perhaps elsewhere, where it waits as long as it must then."""
        generation.places_too_small += 1
        elsewhere = None if generation.crew else self._shared.elsewhere  # beams fork, and no device does that
        if elsewhere is not None and generation.places_too_small == 1:
            self._shared.move(generation, elsewhere)
            return
        self.answer(generation, refusals.never_fits(self._owner, error))

    def _overflows(self, generation: Generation) -> bool:
        """One that waits is served by the other place from now on, if there is one that takes what this one refuses."""
        overflow = self._shared.overflow
        if overflow is None or generation.phase is not Phase.WAITING or generation.places_too_small:
            return False
        self._shared.tally.add(fallbacks=1)
        self._shared.move(generation, overflow)
        return True

    def _refused(self, generation: Generation, refusal: OutOfBudget, *, asked_all: bool) -> None:
        """`asked_all`: nobody looked for what others computed, so that it lacks no more than it was refused."""
        self._shared.tally.add(refusals=1)
        if generation.phase is Phase.RUNNING and not is_due(generation.room):
            return  # it was only topped up along with the others
        if generation.crew and self._are_too_many(generation.crew, refusal):
            return
        if self._overflows(generation) or self._is_turned_away(generation, refusal):
            return
        now = self._clock()
        need_bytes = generation.held_bytes + refusal.need
        is_too_much = need_bytes > refusal.capacity - refusal.quarantined
        if is_too_much and generation.blocked_since is None:
            generation.blocked_since = now
        elif asked_all and not is_too_much:
            generation.blocked_since = None
        if generation.blocked_since is not None and now >= generation.blocked_since + self._quarantine_wait_s:
            waited_s = self._quarantine_wait_s
            self.answer(generation, refusals.blocked(self._owner, need_bytes, refusal, waited_s=waited_s))
        else:
            self._wait(generation, refusal, now)

    def _are_too_many(self, crew: Crew, refusal: OutOfBudget) -> bool:
        """Whether its beams hold all that there is and lack a block: to begin again would lead to the same."""
        need_bytes = (crew.count_blocks() + 1) * self._block_bytes
        if need_bytes <= refusal.capacity - refusal.quarantined:
            return False
        self._shared.ending += self.disband(crew)
        self.answer(crew.lead, refusals.too_many_beams(self._owner, need_bytes, refusal))
        return True

    def _is_turned_away(self, generation: Generation, refusal: OutOfBudget) -> bool:
        """Whether its caller is told to come back later. One that has said something already is never sent away."""
        shared, order = self._shared, generation.order
        refuses = shared.settings.fallback is Fallback.REFUSE and generation.phase is Phase.WAITING
        if not refuses or shared.outbox.has_begun(order.key) or generation.emitted:
            return False
        again_s = shared.pace.place(order.texts, behind=shared.staying, not_before_s=refusal.retry_after_s)
        self.answer(generation, refusals.come_back(self._owner, refusal, again_s))
        return True

    def _wait(self, generation: Generation, refusal: OutOfBudget, now: float) -> None:
        generation.back_off = generation.back_off.after(refusal)
        generation.ask_again_at = now + generation.back_off.wait_s
        if not generation.looks:
            generation.ask_again_at = now  # for all of it, then: what it found may be what it lacks
        if generation.blocked_since is not None:
            generation.ask_again_at = min(generation.ask_again_at, generation.blocked_since + self._quarantine_wait_s)
        if generation.phase is Phase.RUNNING:
            generation.refusal = refusal

    def failed(self, generation: Generation, error: KvClusterError) -> None:
        """The device or this process could not do it: again in a while, but not for ever."""
        if self._gives_up(generation, error):
            return
        generation.refusal = None
        generation.ask_again_at = self._clock() + self._shared.settings.try_again_s

    def renew(self, generation: Generation, error: KvClusterError) -> None:
        """Its memory takes no more windows: start again in another one, but not for ever."""
        if generation.crew:
            self._shared.ending += self.disband(generation.crew)
            generation = generation.crew.lead
        if not isinstance(error, DeviceUnreachable) and self._gives_up(generation, error):
            return
        self._shared.discard(generation)
        self._shared.roster.requeue(generation)

    def disband(self, crew: Crew) -> list[End]:
        """The lead is to begin again by itself: the ends of the others' memories."""
        ends = []
        for other in crew.disband():
            ends.append(self._shared.release(other))
            self._shared.roster.leave(other)
        return ends

    def _gives_up(self, generation: Generation, error: KvClusterError) -> bool:
        generation.tries += 1
        if generation.tries < self._shared.settings.most_tries:
            return False
        self.answer(generation, refusals.gave_none(self._owner, generation.tries, error))
        return True

    def answer(self, generation: Generation, refused: Refused) -> None:
        """The request is over with this result."""
        self._shared.discard(generation)
        self._shared.roster.leave(generation)
        self.answered.append(Answered(generation, refused))


def _freed_bytes(memories: Sequence[KvMemory], held_bytes: Mapping[KvMemory, int]) -> int:
    """What these gave back: what they held, less what is still mapped of it."""
    return sum(held_bytes[memory] - memory.committed_bytes - memory.shared_bytes for memory in memories)
