"""What the device's answers change: who runs, who has what, who must ask again and when.

A refusal for lack of budget is ordinary and costs nobody anything; what a running request's refusal leads to is
decided in `wait_die`. A device that fails is asked a few times more, and then the request is refused with a result of
its own. A memory in quarantine is ended, and its request starts again in a new one. Errors of the session itself
(unreachable, stale, ended) are not this request's and are raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    def __init__(self, shared: Shared, *, clock: Callable[[], float]) -> None:
        self._shared = shared
        self._clock = clock
        self.answered: list[Answered] = []

    def absorb(self, outcomes: Sequence[Outcome], *, gave_back: bool) -> None:
        """One frame's outcomes, in order. `gave_back`: it ended memories that had windows.

        Raises:
            KvClusterError: the session is of no more use.
        """
        if gave_back:
            self._ask_again_at_once()
        grew = [self._absorb(outcome) for outcome in outcomes]
        self._shared.tally.steps_that_grew += any(grew)
        sheds = [outcome.ask.memory for outcome in outcomes if isinstance(outcome.ask, Shed)]
        if sheds and all(memory.committed_bytes for memory in sheds):
            for generation in self._shared.roster.running:
                generation.preempted_in_vain = generation.refusal is not None

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
        memory, error = outcome.ask.memory, outcome.error
        if not isinstance(error, Quarantined | DriverError | None):
            raise error
        if isinstance(outcome.ask, End):
            self._shared.lost_bytes += memory.committed_bytes
        elif generation is not None and error is not None:
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
        self._shared.tally.refusals += 1
        again_at = self._clock() + refusal.retry_after_s
        need_bytes = generation.committed_bytes + refusal.need
        if need_bytes > self._shared.usable_bytes:
            self.answer(generation, Refused(UNAVAILABLE, DEVICE_FAILED, self._lost(need_bytes)))
        elif generation.phase is Phase.WAITING:
            if generation is self._shared.roster.waiting[0]:
                self._shared.admit_again_at = again_at
        elif is_due(generation.room):  # anybody else was only topped up along with the others
            generation.refusal = refusal
            generation.ask_again_at = again_at

    def _lost(self, need_bytes: int) -> str:
        shared = self._shared
        return (
            f"the request needs {need_bytes} bytes at once, and {shared.lost_bytes} of the device's "
            f"{shared.capacity_bytes} bytes could not be taken back: they stay charged until this process ends"
        )

    def failed(self, generation: Generation, error: KvClusterError) -> None:
        """The device or this process could not do it: again in a while, but not for ever."""
        if self._gives_up(generation, error):
            return
        again_at = self._clock() + self._shared.settings.try_again_s
        generation.refusal = None
        generation.ask_again_at = again_at
        if generation.phase is Phase.WAITING:
            self._shared.admit_again_at = again_at

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
        self._shared.admit_again_at = _LONG_AGO
        for generation in self._shared.roster.running:
            generation.ask_again_at = _LONG_AGO
