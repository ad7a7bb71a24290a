"""What becomes of requests that died with a worker, when the device says what that left of them.

    adopted   the memory is theirs: they run at once, from the token that the dead process had reached
    said      what had been emitted is known: one prefill of all of it is left to do
    living    the device does not know of the death yet: asked again, for a bounded time
    nothing   from the first token on

In each case the words come first, so that a text that was complete is answered without any computing.
"""

from __future__ import annotations

from collections.abc import Callable

from kvcluster.errors import DriverError, LimitReached, NotAllowed, Quarantined
from kvcluster.services.asks import Adoption, Outcome
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.targets import set_out


class Resumption:
    """Of one place. `clock` gives seconds. `resumed` know what there is to know of them by now."""

    def __init__(self, shared: Shared, *, clock: Callable[[], float]) -> None:
        self._shared = shared
        self._clock = clock
        self.resumed: list[Generation] = []

    def heard(self, generation: Generation, outcome: Outcome) -> None:
        """Raises KvClusterError: the session is of no more use."""
        adoption = outcome.adoption or Adoption()
        if outcome.error is None and adoption.what == "living" and self._may_wait(generation):
            generation.ask_again_at = self._clock() + self._shared.settings.try_again_s
            return
        generation.died_with = ()
        generation.computed = max(generation.computed, adoption.computed)
        generation.said(adoption.token_ids)
        self._go_on(generation, outcome, adoption)
        self.resumed.append(generation)

    def _go_on(self, generation: Generation, outcome: Outcome, adoption: Adoption) -> None:
        match error := outcome.error:
            case None if adoption.what != "adopted":
                return
            case None if adoption.tokens < len(generation.tokens):
                self._run(generation, adoption.tokens)
            case None | Quarantined() | LimitReached() | DriverError() | NotAllowed():
                self._shared.discard(generation)  # in another memory, then
            case _:
                raise error

    def _run(self, generation: Generation, tokens: int) -> None:
        self._shared.tally.add(adoptions=1)
        generation.grown(self._shared.dtype)
        generation.adopt(tokens)
        set_out(generation, self._shared.worth, 0)
        self._shared.admit(generation)

    def _may_wait(self, generation: Generation) -> bool:
        now = self._clock()
        if generation.waits_for_death_until is None:
            generation.waits_for_death_until = now + self._shared.settings.death_wait_s
        return now < generation.waits_for_death_until
