"""A frame on its way, and the client's half of what comes back.

`settle` is called at a step boundary: it takes the reply, redeems the ticket once for the whole frame, maps each
request's new windows as a transaction of its own, and gives back at once what could not be mapped. So the device and
this process never disagree for longer than one frame about who has which window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.driver.protocol import PhysicalHandle
from kvcluster.errors import KvClusterError
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.windows import windows_of
from kvcluster.ids import WindowRun
from kvcluster.services.asks import Ask, Grow, Outcome, Spend
from kvcluster.services.encoding import key_of, window_runs
from kvcluster.services.sequence import SequenceMemory
from kvcluster.services.transport import PendingReply
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import error_of

if TYPE_CHECKING:
    from kvcluster.services.port import DevicePort


@dataclass(frozen=True, slots=True)
class Sent:
    seq: int
    reply: PendingReply


@dataclass(frozen=True, slots=True)
class _Committed:
    """Windows that the device committed and this process has yet to map."""

    place: int
    memory: SequenceMemory
    tokens: int
    runs: tuple[WindowRun, ...]


class PendingAsks:
    """Asks whose frame is on its way (`sent` is None where nothing had to be said).

    Each comes with what this process itself could not do for it.
    """

    def __init__(self, port: DevicePort, asked: Sequence[tuple[Ask, KvClusterError | None]], sent: Sent | None) -> None:
        self._port = port
        self._asks = tuple(ask for ask, _ in asked)
        self._errors = [error for _, error in asked]
        self._sent = sent

    @property
    def asks(self) -> tuple[Ask, ...]:
        return self._asks

    def ready(self) -> bool:
        """Whether `settle` would not wait for the device."""
        return self._sent is None or self._sent.reply.ready()

    def settle(self) -> tuple[Outcome, ...]:
        """Do the client's half; one outcome an ask, in order. Call it at a step boundary, once.

        Raises:
            DeviceUnreachable: no reply came, or the device went away. What the asks did on the device is unknown.
        """
        try:
            if self._sent:
                self._absorb(self._sent)
        finally:
            for ask in self._asks:
                ask.memory.in_flight = False
        return tuple(Outcome(ask, error) for ask, error in zip(self._asks, self._errors, strict=True))

    def _absorb(self, sent: Sent) -> None:
        reply = self._port.receive(sent)
        refusal = error_of(reply.fault) if reply.fault else None  # of the whole frame: nothing was executed
        committed: list[_Committed] = []
        for place, ask in enumerate(self._asks):
            mine = [result for result in reply.results if result.request == key_of(ask.memory.request)]
            self._errors[place] = self._errors[place] or refusal or _absorbed(ask, mine)
            committed += _commitments(place, ask, mine)
        if committed:
            self._map(sent, committed)

    def _map(self, sent: Sent, committed: Sequence[_Committed]) -> None:
        try:
            handles = self._port.transport.redeem(sent.seq)
        except KvClusterError as failure:
            failed = [(piece, failure) for piece in committed]
        else:
            self._port.traffic.redemptions += 1
            reach(Failpoint.CLIENT_REDEEMED)
            failed = list(_map_each(committed, handles))
            self._port.transport.settled(handles)
        for piece, error in failed:
            self._errors[piece.place] = error
        self._port.return_windows([(piece.memory, piece.memory.not_mapped(piece.runs)) for piece, _ in failed])
        reach(Failpoint.CLIENT_COMMITTED)


def _absorbed(ask: Ask, results: Sequence[wire.GroupResult]) -> KvClusterError | None:
    """The ask's own refusal; tells its memory if it was opened."""
    for result in results:
        if result.fault:
            return error_of(result.fault)
        for answer in result.answers:
            if isinstance(answer, wire.Opened):
                ask.memory.opened(answer.arrival)
    return None


def _commitments(place: int, ask: Ask, results: Sequence[wire.GroupResult]) -> Iterator[_Committed]:
    if not isinstance(ask, Grow | Spend):
        return
    for result in results:
        for answer in result.answers:
            if isinstance(answer, wire.Committed) and answer.runs:
                yield _Committed(place, ask.memory, ask.tokens, window_runs(answer.runs))


def _map_each(
    committed: Sequence[_Committed], handles: Sequence[PhysicalHandle]
) -> Iterator[tuple[_Committed, KvClusterError]]:
    """Map each request's windows; yields those that could not be."""
    rest = iter(handles)
    for piece in committed:
        mine = [next(rest) for _ in windows_of(piece.runs)]
        try:
            piece.memory.range.map_runs(piece.runs, mine)
        except KvClusterError as failure:
            yield piece, failure
        else:
            piece.memory.mapped(piece.tokens)
