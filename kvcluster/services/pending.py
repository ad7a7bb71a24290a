"""A frame on its way, and the client's half of what comes back.

`settle` is called at a step boundary: it takes the reply, redeems the ticket once for the whole frame, maps each
request's new windows as a transaction of its own, and gives back at once what could not be mapped. So the device and
this process never disagree for longer than one frame about who has which window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvcluster.driver.gate import operation
from kvcluster.errors import DeviceUnreachable, KvClusterError, NotShareable
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.shareability import Refusal
from kvcluster.index.token_chain import count_of
from kvcluster.mapping.supply import Supply
from kvcluster.services.asks import (
    Adopt,
    Adoption,
    Ask,
    End,
    Find,
    Grow,
    Join,
    Leave,
    Outcome,
    Publish,
    ReturnGrant,
    Seal,
    Shed,
    Spend,
    TakeSnapshot,
    Trim,
)
from kvcluster.services.encoding import window_runs
from kvcluster.services.pieces import JoinedWindows, Piece, PlannedWindows, pieces_of, size_of
from kvcluster.services.prefix import Prefix, Publication
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.snapshots import fill_rings, take_snapshot
from kvcluster.services.taken_back import TakenBack
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import error_of

if TYPE_CHECKING:
    from kvcluster.services.exchange import SentTo
    from kvcluster.services.port import DevicePort


class PendingAsks:
    """Asks whose frame is on its way (`sent` is None where nothing had to be said).

    Each comes with what this process itself could not do for it.
    """

    def __init__(
        self, port: DevicePort, asked: Sequence[tuple[Ask, KvClusterError | None]], sent: SentTo | None
    ) -> None:
        self._port = port
        self._asks = tuple(ask for ask, _ in asked)
        self._errors = [error for _, error in asked]
        self._prefixes: dict[int, Prefix] = {}  # by the ask's place
        self._known: dict[int, int] = {}  # tokens, by the ask's place
        self._adoptions: dict[int, Adoption] = {}  # by the ask's place
        self._returned: dict[SequenceMemory, TakenBack] = {}
        self._sent = sent

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self._asks

    def ready(self) -> bool:
        """Whether `settle` would not wait for the device."""
        return self._sent is None or self._port.exchange.is_answered(self._sent)

    def lose(self, loss: DeviceUnreachable) -> None:
        """The device died: what these asked counts as not executed, whatever comes of the reply."""
        if self._sent is not None:
            self._sent = None
            self._not_executed(loss)

    @operation
    def settle(self) -> tuple[Outcome, ...]:
        """Do the client's half; one outcome an ask, in order. Call it at a step boundary, once.

        Raises:
            DriverError: a graph is being captured. Nothing changed: settle it after that.
            DeviceUnreachable: no reply came, or the device went away, and nobody here finds it again. What the asks did
                on the device is unknown. (Where it is sought, this is their outcome, and none of them counts as
                executed; what gives back is done.)
        """
        try:
            if self._sent:
                self._absorb(self._sent)
            for place, ask in enumerate(self._asks):
                if self._errors[place] is None:
                    self._errors[place] = _finished(ask)
        finally:
            self._port.settled(self)
            for ask in self._asks:
                ask.memory.in_flight = False
        for ask, error in zip(self._asks, self._errors, strict=True):
            if isinstance(ask, Find | Adopt) and error is None:
                ask.memory.told.answered()
        return tuple(
            Outcome(
                ask,
                error,
                self._prefixes.get(place),
                _joined_tokens(ask),
                self._known.get(place, 0),
                self._adoptions.get(place),
            )
            for place, (ask, error) in enumerate(zip(self._asks, self._errors, strict=True))
        )

    def _absorb(self, sent: SentTo) -> None:
        reply = self._port.exchange.hear(sent)
        if isinstance(reply, DeviceUnreachable):
            self._not_executed(reply)
        else:
            self._absorb_reply(sent, reply)

    def _not_executed(self, loss: DeviceUnreachable) -> None:
        """The device died, and with it all that it did for these: nothing of it was mapped here."""
        for place, ask in enumerate(self._asks):
            if not isinstance(ask, Trim | Shed | End | Leave | ReturnGrant):
                self._errors[place] = self._errors[place] or loss
            if isinstance(ask, Seal) and (plan := ask.memory.holdings.publication):
                self._map_again(ask.memory, plan)

    def _map_again(self, memory: SequenceMemory, plan: Publication) -> None:
        """What was unmapped to be sealed is the request's own, and is not written any more: it may be sealed."""
        try:
            memory.holdings.map_published(plan.handles, is_shared=False)
        except (KvClusterError, ValueError):  # its handles are not there: its rows are gone
            memory.holdings.not_published(is_shared=False)

    def _absorb_reply(self, sent: SentTo, reply: wire.Reply) -> None:
        refusal = error_of(reply.fault) if reply.fault else None  # of the whole frame: nothing was executed
        pieces: list[tuple[int, Piece]] = []
        for place, (ask, results) in enumerate(zip(self._asks, _by_ask(self._asks, reply.results), strict=True)):
            answers = [answer for result in results for answer in result.answers]
            faults = [error_of(result.fault) for result in results if result.fault]
            self._hear(place, ask, answers)
            self._errors[place] = self._errors[place] or refusal or next(iter(faults), None)
            pieces += ((place, piece) for piece in pieces_of(ask, answers))
            if isinstance(ask, Seal) and not answers and ask.memory.holdings.publication:
                self._give_back(ask.memory, ask.memory.holdings.not_published(is_shared=False))
        if pieces:
            self._map(sent, pieces)
        self._port.return_windows(self._returned)
        if pieces:
            reach(Failpoint.CLIENT_COMMITTED)

    def _hear(self, place: int, ask: Ask, answers: Sequence[wire.Answer]) -> None:
        """What the answers say beside windows."""
        for answer in answers:
            match answer, ask:
                case wire.Opened(arrival=arrival), _:
                    ask.memory.opened(arrival)
                case wire.Published(prefix=number, runs=runs), Publish(tokens=tokens):
                    epoch = self._port.welcome.epoch
                    ask.memory.holdings.publication = Publication(number, tokens, window_runs(runs), epoch)
                case wire.Sealed(refusal=str(reason)), _:
                    self._errors[place] = NotShareable(kind=Refusal.NOT_SEALED, reason=reason)
                case wire.Sealed(prefix=number), Seal(memory) if plan := memory.holdings.publication:
                    self._prefixes[place] = self._prefix(memory, number, plan.tokens)
                case wire.Adopted(), Adopt(memory):
                    self._adoptions[place] = _adoption(memory, answer)
                case wire.Found(known=known), Find(memory, token_ids):
                    self._known[place], memory.told.there = known, count_of(token_ids)
                case wire.Closed(prefix=int(number), tokens=tokens), End(memory):
                    self._prefixes[place] = self._prefix(memory, number, tokens)

    def _prefix(self, memory: SequenceMemory, number: int, tokens: int) -> Prefix:
        """Prefix `number` of this device, which begins with the first `tokens` tokens of `memory`."""
        shape, device = memory.holdings.shape, self._port.welcome
        reusable_tokens = shape.reusable_tokens(shape.shared_windows(tokens), tokens)
        return Prefix(device.device, device.epoch, number, tokens, reusable_tokens)

    def _map(self, sent: SentTo, pieces: Sequence[tuple[int, Piece]]) -> None:
        try:
            handles = self._port.exchange.redeem(sent)
        except KvClusterError as failure:
            for place, piece in pieces:
                if not isinstance(piece, PlannedWindows):
                    self._fail(place, piece, failure)
            return
        reach(Failpoint.CLIENT_REDEEMED)
        failed: dict[int, KvClusterError] = {}
        supply = Supply(handles)
        for place, piece in pieces:
            mine = supply.next(size_of(piece))
            try:
                if place in failed:  # the prefix before these windows is not there
                    raise failed[place]
                piece.map(mine)
                if isinstance(piece, PlannedWindows):
                    self._port.hold(piece.memory, mine)
            except KvClusterError as failure:
                failed[place] = failure
                self._fail(place, piece, failure)
        self._port.exchange.line.settled(handles)
        if self._adoptions:
            reach(Failpoint.CLIENT_ADOPTED)
        if any(isinstance(piece, JoinedWindows) for _, piece in pieces):
            reach(Failpoint.CLIENT_JOINED)

    def _fail(self, place: int, piece: Piece, failure: KvClusterError) -> None:
        self._errors[place] = failure
        self._prefixes.pop(place, None)
        self._give_back(piece.memory, piece.withdrawn())

    def _give_back(self, memory: SequenceMemory, taken_back: TakenBack) -> None:
        self._returned[memory] = self._returned.get(memory, TakenBack()).with_more(taken_back)


def _by_ask(asks: Sequence[Ask], results: Sequence[wire.GroupResult]) -> Iterator[list[wire.GroupResult]]:
    """Each ask's results: those of its request, which has no other ask in the frame."""
    mine: dict[tuple[int, int], list[wire.GroupResult]] = {}
    for ask in asks:
        mine[ask.memory.request.number, ask.memory.request.generation] = []
    for result in results:
        key = result.request.number, result.request.generation
        if key in mine:
            mine[key].append(result)
    return iter(mine.values())


def _adoption(memory: SequenceMemory, answer: wire.Adopted) -> Adoption:
    if answer.what == "adopted":
        memory.arrival, memory.told.there = answer.arrival, answer.told
    return Adoption(answer.what, answer.tokens, answer.computed, answer.token_ids)


def _joined_tokens(ask: Ask) -> int:
    return ask.memory.joined_tokens if isinstance(ask, Join | Find) else 0


def _finished(ask: Ask) -> KvClusterError | None:
    """All is mapped: copy what belongs into it."""
    try:
        match ask:
            case TakeSnapshot(memory, tokens, written):
                take_snapshot(memory, tokens, written)
            case Grow() | Spend() | Join() | Find():
                fill_rings(ask.memory)
    except NotShareable as refusal:
        return refusal
    return None
