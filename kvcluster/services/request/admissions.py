"""Who of those that wait asks for memory at a step boundary, and for what.

An admission finds what others computed and is budgeted beside it in one step of the device; one that died with a worker
asks first for what that left, and is admitted with it, whatever others wait for. What becomes of the asks is in
`answers`; when a boundary admits anybody at all, in `desk`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvcluster.errors import DriverError, LimitReached
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import Adopt, Find, Grow
from kvcluster.services.kv_port import KvMemory, KvPort
from kvcluster.services.request.answers import Answers
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.margin import admission_tokens
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.targets import leader_of
from kvcluster.wire.adopt import MOST_SESSIONS
from kvcluster.wire.messages import MOST_TOKENS


class Admissions:
    """To one port."""

    def __init__(self, port: KvPort, shared: Shared, answers: Answers) -> None:
        self._port = port
        self._shared = shared
        self._answers = answers

    def due(self, now: float) -> Iterator[Grow | Find | Adopt]:
        """The asks of those that may be admitted now, each oldest first."""
        for generation in self._candidates(now):
            memory = generation.memory or self._open(generation)
            if memory is not None and self._may_adopt(generation):
                yield Adopt(memory, generation.died_with[:MOST_SESSIONS], generation.order.label)
            elif memory is not None:
                known, most = len(generation.tokens), generation.order.most_held
                tokens = admission_tokens(known, most, self._shared.settings.margin_steps)
                looks = generation.looks and generation.order.cache_root and known <= MOST_TOKENS
                yield Find(memory, packed(generation.tokens), tokens) if looks else Grow(memory, tokens)

    def moments(self) -> list[float]:
        """When those may ask that hold up nobody or have nobody before them. A step ends the holding back of others."""
        waiting = [generation for generation in self._shared.roster.waiting if not generation.is_held_back]
        first = next((place for place, generation in enumerate(waiting) if not generation.is_blocked), len(waiting))
        return [generation.ask_again_at for generation in waiting[: first + 1]]

    def _candidates(self, now: float) -> list[Generation]:
        """Who may ask to be admitted: the oldest, as many as may run, up to the first whose time has not come.

        Whoever is younger than that one would be refused with it. One that is blocked holds up nobody, and neither does
        one that is held back while somebody older computes what both begin with.
        """
        shared, seats = self._shared, self._shared.free_seats
        found: list[Generation] = []
        for generation in shared.roster.waiting:
            is_due_now = generation.ask_again_at <= now
            generation.is_held_back = False
            if seats < generation.seats or not (is_due_now or generation.is_blocked):
                break
            if is_due_now and not self._hold_back(generation, found):
                found.append(generation)
                seats -= generation.seats
        return found

    def _may_adopt(self, generation: Generation) -> bool:
        """Whether a process died that had it, and its device is the one here; host pages keep nothing of the kind."""
        return bool(generation.died_with) and not self._port.welcome.block_tokens

    def _hold_back(self, generation: Generation, admitted: list[Generation]) -> bool:
        """Whether somebody older computes the beginning of this one's prompt; that one is to share it, then."""
        if self._may_adopt(generation):
            return False
        older = [other for other in self._shared.roster.running if other.named and other.arrival < generation.arrival]
        older = [other for other in (*older, *admitted) if other.looks and not other.crew]
        leader = leader_of(generation, older, self._shared.worth)
        if leader is not None:
            leader[0].targets.add(leader[1])
        generation.is_held_back = leader is not None
        return leader is not None

    def _open(self, generation: Generation) -> KvMemory | None:
        shared = self._shared
        try:
            memory = self._port.memory(shared.spec_of(generation))
        except (LimitReached, DriverError) as error:
            self._answers.failed(generation, error)
            return None
        shared.own(generation, memory)
        return memory
