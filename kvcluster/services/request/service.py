"""The loop of a request actor: at each step boundary memory changes hands, then the model computes one step.

One thread runs it; `submit` and `cancel` may come from others. It neither sleeps nor starts threads: whoever runs it
calls `step` while there is work and `wait` when there is none. What the model raises is not caught: the caller ends
the actor, and the device takes its memory back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.completion import CompletionRequest, Refused, Said
from kvcluster.services.request.beams import Beams
from kvcluster.services.request.choosing import chosen_tokens
from kvcluster.services.request.crew import Crew
from kvcluster.services.request.door import Door
from kvcluster.services.request.generation import Generation, Phase
from kvcluster.services.request.inbox import Cancelled, Inbox, Submitted
from kvcluster.services.request.intake import Intake
from kvcluster.services.request.moves import Moves
from kvcluster.services.request.notes import Notes
from kvcluster.services.request.outbox import Outbox
from kvcluster.services.request.place import Place
from kvcluster.services.request.schedule import Piece, plan_step
from kvcluster.services.request.statistics import RequestStatistics

if TYPE_CHECKING:
    import torch

    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Parts:
    """What a service has once, beside its places."""

    intake: Intake
    inbox: Inbox
    outbox: Outbox
    moves: Moves | None
    beams: Beams | None


class RequestService:
    """Many requests, one model, one device. See `opening.open_request_service`."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        places: Sequence[Place],
        parts: Parts,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._places = tuple(places)
        self._intake, self._inbox, self._outbox = parts.intake, parts.inbox, parts.outbox
        self._moves, self._beams = parts.moves, parts.beams
        self._door = Door([place.shared for place in places])
        self._tally, self._pace = places[0].shared.tally, places[0].shared.pace
        self._clock = clock
        self._statistics = RequestStatistics()
        self._notes = Notes(places[0].port.progress, places[0].shared)

    # --- from any thread ------------------------------------------------------------------------------------------

    def submit(self, key: int, request: CompletionRequest) -> None:
        """Queue a request; its answer comes from `said` under `key`. Its text becomes tokens here, and not in a step.

        Raises:
            ValueError: the answer of an earlier request of this key was not taken yet. Nothing changed.
        """
        self._inbox.submit(key, self._intake.in_tokens(request))

    def cancel(self, key: int) -> None:
        """End a request: nothing is said of it any more, and its memory goes back at the next step boundary.

        A key whose answer was taken, or that never was, is nothing to cancel.
        """
        self._inbox.cancel(key)

    def statistics(self) -> RequestStatistics:
        """As of the end of the last step; all figures of one moment."""
        return self._statistics

    # --- from the thread that runs it -----------------------------------------------------------------------------

    def step(self) -> bool:
        """One step boundary and one model step. False when there was nothing to do, now.

        Raises:
            DeviceUnreachable, SessionEnded, StaleEpoch: the session is of no more use. Close, and start another.
        """
        heard = self._hear()
        for place in self._places:
            place.desk.boundary()
        if self._moves:
            self._moves.come_back()
        self._answer_decided()  # before the plan: a text that is refused takes the others of its request along
        pieces = self._plan()
        waited = not pieces and any(place.desk.in_flight for place in self._places)
        if waited:
            for place in self._places:
                place.desk.settle()
            self._answer_decided()
            pieces = self._plan()
        if pieces:
            self._compute(pieces)
        self._note()
        return bool(pieces) or heard or waited

    def wait(self, timeout_s: float) -> None:
        """Return when `step` has something to do, at the latest after `timeout_s`."""
        if any(place.desk.in_flight for place in self._places) or self._plan():
            return
        due_at = min(place.desk.due_at() for place in self._places)
        self._inbox.wait(min(timeout_s, max(0.0, due_at - self._clock())))

    def said(self) -> list[tuple[int, Said]]:
        """What was said since the last call, by key, in order.

        Of each request a Completion or Refused, which is its last. Before it, of one that streams: a Begun, and where
        it does so in parts a Delta for each step in which a text of it had a token. The deltas of a text are all of it,
        and their tokens those of the completion; a refusal may come at any point.
        """
        return self._outbox.take()

    def distrust(self) -> None:
        """The loop failed, by an error: nobody goes on with what it computed. Who was killed cannot say so."""
        self._notes.distrusted()

    def close(self) -> None:
        """Give every memory back; requests without an answer get none. Closing twice is once.

        Raises:
            DeviceUnreachable: the device is gone; what it had of this session it takes back by itself.
        """
        for place in self._places:
            for generation in place.shared.roster.all():
                self._leave(place, generation)
            place.desk.close()
        self._note()

    # --- the parts of a step --------------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Take in what other threads said; whether there was anything."""
        news = self._inbox.take()
        for item in news:
            match item:
                case Submitted(key, request):
                    self._take_in(key, request)
                case Cancelled(key):
                    self._cancel(key)
        return bool(news)

    def _take_in(self, key: int, request: CompletionRequest) -> None:
        made = self._intake.generations(key, request)
        if isinstance(made, Refused):
            self._answer(key, made)
            return
        if refused := self._door.refusal(made):
            self._answer(key, refused)
            return
        place = self._places[1 if made[0].crew else 0]
        self._outbox.expect(key, len(made))
        for generation in made:
            place.shared.roster.join(generation)

    def _cancel(self, key: int) -> None:
        """Whatever goes on for this key ends without an answer."""
        self._tally.add(cancelled=int(self._outbox.is_expected(key)))
        self._drop_texts(key)
        self._outbox.forget(key)
        self._inbox.heard(key)

    def _drop_texts(self, key: int) -> None:
        for place in self._places:
            for generation in place.shared.roster.of(key):
                self._notes.dropped(generation)
                place.shared.drop(generation)
                self._end(place, generation)

    def _plan(self) -> tuple[Piece, ...]:
        running = [generation for place in self._places for generation in place.shared.roster.running]
        return plan_step(running, self._places[0].shared.settings)

    def _compute(self, pieces: Sequence[Piece]) -> None:
        reach(Failpoint.STEP_PLANNED)
        self._notes.begins([piece.generation for piece in pieces])
        logits = self._model.forward([piece.slice() for piece in pieces])
        reach(Failpoint.STEP_COMPUTED)
        sampling = [piece.generation for piece in pieces if piece.samples]
        self._tally.add(recomputed_tokens=sum(piece.generation.wrote(piece.count) for piece in pieces))
        self._count_step()
        if sampling:
            self._go_on(sampling, logits)
        if sampling or not self._model.may_run_ahead:  # else a GPU may be at work on it
            self._notes.computed([piece.generation for piece in pieces])
            reach(Failpoint.STEP_NOTED)

    def _go_on(self, sampling: list[Generation], logits: torch.Tensor) -> None:
        """The next token of each."""
        self._tally.add(generated_tokens=len(sampling))
        crews = {generation.crew for generation in sampling if generation.crew}
        if crews:
            row_of = {generation: row for row, generation in enumerate(sampling)}
            for crew in crews:
                self._advance(crew, logits[[row_of[member] for member in crew.members]])
            sampling = [generation for generation in sampling if not generation.crew]
            logits = logits[[row_of[generation] for generation in sampling]]
        self._sample(sampling, logits)

    def _sample(self, sampling: Sequence[Generation], logits: torch.Tensor) -> None:
        chosen = chosen_tokens(logits, sampling, self._tokenizer)
        reach(Failpoint.STEP_SAMPLED)
        for generation, token in zip(sampling, chosen, strict=True):
            generation.take(token.token_id, token.likelihood)
            self._outbox.goes_on(generation)
            if generation.finish_reason is not None:
                self._conclude(self._place_of(generation), generation)

    def _advance(self, crew: Crew, logits: torch.Tensor) -> None:
        assert self._beams is not None  # or the request was refused
        completion = self._beams.advance(crew, logits)
        if completion is None:
            return
        for member in crew.members:
            self._leave(self._places[1], member)
        self._count_done(self._outbox.ends(crew.lead, completion, crew.deltas()))

    def _conclude(self, place: Place, generation: Generation) -> None:
        """One text is complete."""
        self._notes.done(generation)
        self._leave(place, generation)
        self._count_done(self._outbox.ends(generation, generation.completion()))

    def _answer_decided(self) -> None:
        """What the owners of memory decided. A request of which one text is refused is refused."""
        for place in self._places:
            resumed = place.desk.drain_resumed()
            self._notes.computed(resumed)
            for generation in resumed:
                if generation.finish_reason is not None:  # what was said by who died was all of it
                    self._outbox.goes_on(generation)
                    self._conclude(place, generation)
            for answered in place.desk.drain_answered():
                key = answered.generation.order.key
                self._notes.dropped(answered.generation)
                if self._outbox.is_expected(key):
                    self._drop_texts(key)
                    self._answer(key, answered.outcome)

    def _answer(self, key: int, refused: Refused) -> None:
        self._outbox.answer(key, refused)
        self._count_done(1)

    def _count_done(self, requests: int) -> None:
        if requests:
            self._tally.add(requests_done=requests)

    def _place_of(self, generation: Generation) -> Place:
        return next(place for place in self._places if generation in place.shared.roster.running)

    def _leave(self, place: Place, generation: Generation) -> None:
        place.shared.part(generation)
        self._end(place, generation)

    def _end(self, place: Place, generation: Generation) -> None:
        if generation.phase is Phase.RUNNING:
            self._pace.ended(is_short=any(each.shared.roster.waiting for each in self._places))
        place.shared.roster.leave(generation)

    def _count_step(self) -> None:
        """What is shared counts for nobody: see `statistics`."""
        shares = [place.shared for place in self._places]
        running = [generation for shared in shares for generation in shared.roster.running]
        self._tally.stepped(
            reserved_bytes=sum(shared.reserved_bytes for shared in shares),
            committed_bytes=sum(generation.committed_bytes for generation in running),
            live_bytes=sum(max(0, self._model.geometry.live_bytes(g.held) - g.shared_bytes) for g in running),
        )

    def _note(self) -> None:
        rosters = [place.shared.roster for place in self._places]
        self._statistics = self._tally.snapshot(
            [place.port for place in self._places],
            waiting=sum(len(roster.waiting) for roster in rosters),
            running=sum(len(roster.running) for roster in rosters),
        )
