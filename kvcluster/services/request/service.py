"""The loop of a request actor: at each step boundary memory changes hands, then the model computes one step.

One thread runs it; `submit` and `cancel` may come from others. It neither sleeps nor starts threads: whoever runs it
calls `step` while there is work and `wait` when there is none. What the model raises is not caught: the caller ends
the actor, and the device takes its memory back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvcluster.engine.sampling import next_tokens
from kvcluster.services.completion import Completion, CompletionRequest, Refused
from kvcluster.services.port import DevicePort
from kvcluster.services.request.desk import MemoryDesk
from kvcluster.services.request.generation import Generation
from kvcluster.services.request.inbox import Cancelled, Inbox, Submitted
from kvcluster.services.request.intake import Intake
from kvcluster.services.request.schedule import Piece, plan_step
from kvcluster.services.request.settings import RequestSettings
from kvcluster.services.request.shared import Shared
from kvcluster.services.request.statistics import RequestStatistics

if TYPE_CHECKING:
    from kvcluster.engine.model import Model
    from kvcluster.engine.tokenizer import Tokenizer


def open_request_service(
    model: Model,
    tokenizer: Tokenizer,
    port: DevicePort,
    settings: RequestSettings | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> RequestService:
    """A service that computes with `model` in memory of `port`'s device. The caller closes the port after it."""
    shared = Shared(model.geometry, model.dtype, settings or RequestSettings())
    desk = MemoryDesk(port, shared, clock=clock)
    return RequestService(model, Intake(model, tokenizer), desk, shared, port=port, clock=clock)


class RequestService:
    """Many requests, one model, one device. See `open_request_service`."""

    def __init__(
        self,
        model: Model,
        intake: Intake,
        desk: MemoryDesk,
        shared: Shared,
        *,
        port: DevicePort,
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._intake = intake
        self._desk = desk
        self._shared = shared
        self._port = port
        self._clock = clock
        self._geometry = model.geometry
        self._inbox = Inbox()
        self._finished: list[tuple[int, Completion | Refused]] = []
        self._statistics = RequestStatistics()

    # --- from any thread ------------------------------------------------------------------------------------------

    def submit(self, key: int, request: CompletionRequest) -> None:
        """Queue a request; its answer comes from `finished` under `key`.

        Raises:
            ValueError: a request of this key is not over yet. Nothing changed.
        """
        self._inbox.submit(key, request)

    def cancel(self, key: int) -> None:
        """End a request without an answer: its memory goes back at the next step boundary. Unknown keys are over."""
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
        self._desk.boundary()
        pieces = self._plan()
        waited = not pieces and self._desk.in_flight
        if waited:
            self._desk.settle()
            pieces = self._plan()
        self._answer_decided()
        if pieces:
            self._compute(pieces)
        self._note()
        return bool(pieces) or heard or waited

    def wait(self, timeout_s: float) -> None:
        """Return when `step` has something to do, at the latest after `timeout_s`."""
        if self._desk.in_flight or self._plan():
            return
        self._inbox.wait(min(timeout_s, max(0.0, self._desk.due_at() - self._clock())))

    def finished(self) -> list[tuple[int, Completion | Refused]]:
        """Answers since the last call, by key, in the order in which they were ready."""
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Give every memory back; requests without an answer get none. Closing twice is once.

        Raises:
            DeviceUnreachable: the device is gone; what it had of this session it takes back by itself.
        """
        for generation in self._shared.roster.all():
            self._leave(generation)
        self._desk.close()
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
                    if generation := self._shared.roster.find(key):
                        self._leave(generation)
        return bool(news)

    def _take_in(self, key: int, request: CompletionRequest) -> None:
        made = self._intake.generation(key, request)
        if isinstance(made, Refused):
            self._answer(key, made)
        else:
            self._shared.roster.join(made)

    def _plan(self) -> tuple[Piece, ...]:
        return plan_step(self._shared.roster.running, self._shared.settings)

    def _compute(self, pieces: Sequence[Piece]) -> None:
        logits = self._model.forward([piece.slice() for piece in pieces])
        sampling = [piece.generation for piece in pieces if piece.samples]
        for piece in pieces:
            piece.generation.held += piece.count
        self._count_step()
        if not sampling:
            return
        orders = [generation.order.params for generation in sampling]
        chosen = next_tokens(logits, orders, [generation.draw_key for generation in sampling])
        self._shared.tally.add(generated_tokens=len(sampling))
        for generation, token_id in zip(sampling, chosen, strict=True):
            self._extend(generation, token_id)

    def _extend(self, generation: Generation, token_id: int) -> None:
        generation.take(token_id)
        if generation.finish_reason:
            self._leave(generation)
            self._answer(generation.order.key, generation.completion())

    def _answer_decided(self) -> None:
        for answered in self._desk.drain_answered():
            self._answer(answered.generation.order.key, answered.outcome)

    def _answer(self, key: int, outcome: Completion | Refused) -> None:
        self._shared.tally.add(requests_done=1)
        self._finished.append((key, outcome))
        self._inbox.over(key)

    def _leave(self, generation: Generation) -> None:
        self._shared.roster.leave(generation)
        self._shared.part(generation)
        self._inbox.over(generation.order.key)

    def _count_step(self) -> None:
        running = self._shared.roster.running
        self._shared.tally.stepped(
            reserved_bytes=self._shared.reserved_bytes,
            committed_bytes=sum(generation.committed_bytes for generation in running),
            live_bytes=sum(self._geometry.live_bytes(generation.held) for generation in running),
        )

    def _note(self) -> None:
        roster = self._shared.roster
        self._statistics = self._shared.tally.snapshot(
            self._port, waiting=len(roster.waiting), running=len(roster.running)
        )
