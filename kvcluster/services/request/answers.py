"""What the device's answers change: who runs, who has what, who must ask again and when.

A refusal for lack of budget is ordinary and costs nobody anything; what a running request's refusal leads to is
decided in `wait_die`. A device that fails is asked a few times more, and then the request is refused with a result of
its own. A memory in quarantine is ended, and its request starts again in a new one, in its old place in the queue.
What needs more than the quarantine leaves waits for a bounded time: a process that holds on to memory may never end.
Errors of the session itself (unreachable, stale, ended) are not this request's and are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvcluster.errors import (
    DriverError,
    GrantRefused,
    KvClusterError,
    LimitReached,
    NeverFits,
    OutOfBudget,
    Quarantined,
)
from kvcluster.services.asks import End, Grow, Outcome, Shed
from kvcluster.services.completion import Refused
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.intake import BAD_REQUEST, TOO_LONG
from kvcluster.services.request.margin import is_due
from kvcluster.services.request.shared import Shared
from kvcluster.services.sequence import SequenceMemory
from kvcluster.wire.messages import Welcome

UNAVAILABLE = 503
DEVICE_FAILED = "device_failed"
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
        self._quarantine_wait_s = 2 * welcome.lease_s if wait_s is None else wait_s
        self.answered: list[Answered] = []

    def absorb(self, outcomes: Sequence[Outcome], held_bytes: Mapping[SequenceMemory, int]) -> None:
        """Outcomes in the order of their asks. `held_bytes`: what those had that gave everything back.

        Raises:
            KvClusterError: the session is of no more use.
        """
        self._shared.roster.sort()
        ended = [outcome.ask.memory for outcome in outcomes if isinstance(outcome.ask, End)]
        if _freed_bytes(ended, held_bytes):
            self._ask_again_at_once()
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
            case Grow() if generation is not None:
                was_running = generation.phase is Phase.RUNNING
                self._grow(generation, outcome.error)
                return was_running and outcome.error is None
            case Shed() | End():
                self._given_back(outcome, generation)
        return False

    def _given_back(self, outcome: Outcome, generation: Generation | None) -> None:
        """What could not be given back stays charged; a preempted request goes on in another memory."""
        error = outcome.error
        if not isinstance(error, Quarantined | DriverError | None):
            raise error
        if isinstance(outcome.ask, Shed) and generation is not None and error is not None:
            self.renew(generation, error)

    def _grow(self, generation: Generation, error: KvClusterError | None) -> None:
        match error:
            case None:
                self._granted(generation)
            case OutOfBudget():
                self._refused(generation, error)
            case NeverFits(need=need, capacity=capacity):
                sentence = f"prompt and max_tokens need {need} bytes of KV memory, and the device has {capacity} bytes"
                self.answer(generation, Refused(BAD_REQUEST, TOO_LONG, sentence))
            case Quarantined():
                self.renew(generation, error)
            case LimitReached() | DriverError() | GrantRefused():
                self.failed(generation, error)
            case _:
                raise error

    def _granted(self, generation: Generation) -> None:
        generation.grown(self._shared.dtype)
        if generation.phase is Phase.WAITING:
            self._shared.roster.admit(generation)

    def _refused(self, generation: Generation, refusal: OutOfBudget) -> None:
        self._shared.tally.add(refusals=1)
        if generation.phase is Phase.RUNNING and not is_due(generation.room):
            return  # it was only topped up along with the others
        now = self._clock()
        need_bytes = generation.committed_bytes + refusal.need
        if need_bytes <= refusal.capacity - refusal.quarantined:
            generation.blocked_since = None
        elif generation.blocked_since is None:
            generation.blocked_since = now
        if generation.blocked_since is not None and now >= generation.blocked_since + self._quarantine_wait_s:
            self.answer(generation, Refused(UNAVAILABLE, DEVICE_FAILED, self._blocked(need_bytes, refusal)))
        else:
            self._wait(generation, refusal, now)

    def _wait(self, generation: Generation, refusal: OutOfBudget, now: float) -> None:
        generation.back_off = generation.back_off.after(refusal)
        generation.ask_again_at = now + generation.back_off.wait_s
        if generation.blocked_since is not None:
            generation.ask_again_at = min(generation.ask_again_at, generation.blocked_since + self._quarantine_wait_s)
        if generation.phase is Phase.RUNNING:
            generation.refusal = refusal

    def _blocked(self, need_bytes: int, refusal: OutOfBudget) -> str:
        return (
            f"the request needs {need_bytes} bytes at once, and {refusal.quarantined} of the device's "
            f"{refusal.capacity} bytes could not be taken back: they stay charged until the processes that may "
            f"still use them end, and none did in {self._quarantine_wait_s:.0f} s"
        )

    def failed(self, generation: Generation, error: KvClusterError) -> None:
        """The device or this process could not do it: again in a while, but not for ever."""
        if self._gives_up(generation, error):
            return
        generation.refusal = None
        generation.ask_again_at = self._clock() + self._shared.settings.try_again_s

    def renew(self, generation: Generation, error: KvClusterError) -> None:
        """Its memory takes no more windows: start again in another one, but not for ever."""
        if self._gives_up(generation, error):
            return
        self._shared.part(generation)
        self._shared.roster.requeue(generation)

    def _gives_up(self, generation: Generation, error: KvClusterError) -> bool:
        generation.tries += 1
        if generation.tries < self._shared.settings.most_tries:
            return False
        sentence = f"the device gave no memory in {generation.tries} tries, the last time because {error}"
        self.answer(generation, Refused(UNAVAILABLE, DEVICE_FAILED, sentence))
        return True

    def answer(self, generation: Generation, refused: Refused) -> None:
        """The request is over with this result."""
        self._shared.roster.leave(generation)
        self._shared.part(generation)
        self.answered.append(Answered(generation, refused))

    def _ask_again_at_once(self) -> None:
        for generation in self._shared.roster.all():
            generation.ask_again_at = _LONG_AGO


def _freed_bytes(memories: Sequence[SequenceMemory], held_bytes: Mapping[SequenceMemory, int]) -> int:
    """What these gave back: what they had, less what is still mapped of it."""
    return sum(held_bytes[memory] - memory.committed_bytes for memory in memories)
