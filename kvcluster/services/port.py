"""A client's end of one device: asks as frames, and what is open there.

`submit` sends what many requests ask in one frame and does not wait; `PendingAsks.settle` does the rest at a step
boundary (services.pending). `tend` is called at step boundaries too: it gives back what waited for work to end.
A request has at most one ask in flight; `services.verbs` asks one thing at a time. The same code serves LocalDevice
and the actors: only the `Transport` differs. Nothing here retries; `services.request` decides what a refusal leads to.
Each verb is one operation (`driver.passages`): a graph is captured before it or after it, or it is refused with
nothing changed.

A device that dies takes nothing along that is mapped here: its next incarnation is sought in the background, and
`in_touch`, called at step boundaries, registers with it what is open (`services.recovery`). What was asked and not
answered counts as not executed: nothing of it is mapped, and what was unmapped for it stays so (DeviceUnreachable is
its outcome).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvcluster.driver.gate import operation
from kvcluster.driver.protocol import Driver, PhysicalHandle
from kvcluster.geometry.layout import Layout
from kvcluster.geometry.model import KvGeometry
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.ids import RequestId
from kvcluster.mapping.address_range import AddressRange, open_range, open_ranges
from kvcluster.services import encoding
from kvcluster.services.ask_checks import check
from kvcluster.services.asks import Ask, End, Load, Outcome, load_of
from kvcluster.services.batch_memory import MOST_ROWS, BatchMemory
from kvcluster.services.client_half import ClientHalf
from kvcluster.services.contact import Link, Seek
from kvcluster.services.correspondence import Traffic
from kvcluster.services.departures import Departures
from kvcluster.services.exchange import Exchange, Touch
from kvcluster.services.open_memories import OpenMemories
from kvcluster.services.pending import PendingAsks
from kvcluster.services.progress_page import ProgressPage
from kvcluster.services.recovery import Recovery
from kvcluster.services.renewal import MOST_REQUESTS
from kvcluster.services.sequence import SequenceMemory, SequenceSpec
from kvcluster.services.taken_back import TakenBack
from kvcluster.services.transport import Transport
from kvcluster.services.verbs import Verbs
from kvcluster.wire.socket import Reclaim, Welcome

if TYPE_CHECKING:
    import torch


class DevicePort:
    """One session with one device. `welcome` is what the device said of itself. Used by one thread at a time.

    `LocalDevice.port` is one in this process, `actors.proxies.open_session` opens one with a device actor. `memory` is
    for one sequence, `open_batch` for the rows of a batch.

    `exchange` are its frames and replies; `verbs` ask for one request at a time. `computes_on` is the torch device of
    its memory, where that is not the CPU's. A device that was restarted hears of `most_registered` requests in a frame.
    """

    def __init__(
        self,
        session: str,
        welcome: Welcome,
        driver: Driver,
        transport: Transport,
        *,
        seek: Seek[Transport] | None = None,
        most_registered: int = MOST_REQUESTS,
    ) -> None:
        self.driver = driver
        self.computes_on: torch.device | None = None
        self.progress: ProgressPage | None = None  # where whoever computes notes what a successor can go on with
        self.exchange: Exchange[Transport, Transport] = Exchange(session, welcome, transport, seek)
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._open = OpenMemories()
        self._held: dict[SequenceMemory, Sequence[PhysicalHandle]] = {}  # of publications that are under way
        self._departures = Departures(self.submit)
        self._half = ClientHalf(self._departures, self._grants, welcome.granule_bytes)
        self.verbs = Verbs(self.submit, self._departures, self._grants)
        self._recovery = Recovery(self.exchange, self._half, self._open, most_registered=most_registered)

    @property
    def quarantined_bytes(self) -> int:
        """What was given back as "may still be mapped": only this process's end frees it."""
        return self._half.quarantined_bytes

    @property
    def session(self) -> str:
        """The name of the present session."""
        return self.exchange.session

    @property
    def welcome(self) -> Welcome:
        """What the device said of itself, as it is now."""
        return self.exchange.welcome

    @property
    def is_lost(self) -> bool:
        """As `KvPort`."""
        return self.exchange.is_lost

    @property
    def traffic(self) -> Traffic:
        """As `KvPort`."""
        return self.exchange.traffic

    def pushes(self) -> tuple[Reclaim, ...]:
        """As `KvPort`."""
        return self.exchange.pushes()

    @operation
    def memory(self, spec: SequenceSpec) -> SequenceMemory:
        """A new request: its address is reserved in this process; the device hears of it with its first ask.

        Raises:
            LimitReached: no address space. Nothing changed.
            DriverError: a graph is being captured, or the call failed. Nothing changed.
        """
        return self._memory(spec, open_range(self.driver, self._range_map(spec)))

    @operation
    def open_batch(self, geometry: KvGeometry, *, rows: int, max_tokens: int, tenant: str = "") -> BatchMemory:
        """New requests, whose memories lie at equal steps, for the rows of a batch: see `BatchMemory`.

        Each has an address for `max_tokens` tokens, and no bytes yet.

        Raises:
            ValueError: no rows, or more than a frame serves (`MOST_ROWS`); no tokens. Nothing changed.
            LimitReached, DriverError: as `memory`. Nothing changed.
        """
        if not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"a batch has 1 to {MOST_ROWS} rows, not {rows}")
        spec = SequenceSpec(geometry, Layout.TOKEN_MAJOR, max_tokens, tenant=tenant, shareable_tokens=max_tokens)
        ranges = open_ranges(self.driver, self._range_map(spec), rows)
        return BatchMemory(self, tuple(self._memory(spec, each) for each in ranges))

    def _range_map(self, spec: SequenceSpec) -> RangeMap:
        granule_bytes = self.welcome.granule_bytes
        shape = Shape.of(spec.geometry, spec.layout, granule_bytes, chunk_tokens=spec.chunk_tokens)
        return RangeMap(shape, spec.max_tokens)

    def _memory(self, spec: SequenceSpec, address_range: AddressRange) -> SequenceMemory:
        memory = SequenceMemory(self, RequestId(self.session, next(self._requests)), spec, address_range)
        self._open.opened(memory)
        return memory

    @operation
    def submit(self, asks: Sequence[Ask]) -> PendingAsks:
        """Send all of `asks` in one frame; at most one a request, none of which may be in flight already.

        The client's half of giving back is done here: windows are unmapped before the frame leaves. While the device
        is sought nothing is sent, and the others' outcome is DeviceUnreachable.

        Raises:
            NotAllowed: a memory is in no state for its ask, or has one in flight. Nothing was sent or changed.
            ValueError: no tokens, more than a memory's most, or more than a frame carries. Nothing was sent or changed.
            DriverError: a graph is being captured. Nothing was sent or changed.
            DeviceUnreachable: the way is closed, and nobody here finds another; the session is of no more use.
        """
        check(asks)
        judged = [(ask, self._half.refusal(ask, self.welcome)) for ask in asks]  # all that can be, before any unmapping
        asked = [() if r else encoding.operations_of(ask, self._grants) for ask, r in judged]
        given = [self._half.refused(ask, r) if r else self._half.first(ask) for ask, r in judged]
        ops = [op for ask_ops, (back_ops, _) in zip(asked, given, strict=True) for op in (*ask_ops, *back_ops)]
        sent = self.exchange.send(ops) if ops else None
        for ask in asks:
            ask.memory.in_flight = True
            if isinstance(ask, End):
                self._open.ended(ask.memory)
        pending = PendingAsks(self, [(ask, error) for ask, (_, error) in zip(asks, given, strict=True)], sent)
        self._open.sent(pending)
        return pending

    @operation
    def in_touch(self) -> bool:
        """Whether asks are answered now. For a step boundary; waits for a device that is there, and for no other.

        Where the device was lost and is found again, everything that is open here is registered with it first.

        Raises:
            SessionEnded: the device ended the session, which this process has heard now: every memory is closed, and
                another session begins; what could not be unmapped is in `quarantined_bytes`.
            DeviceUnreachable: the device is gone for good; or it lives, and has ended the session without being heard
                (its connection broke, or a reply came too late): this process is to end, for nothing else gives
                back what it had there. What is mapped stays mapped.
            Whatever it refuses to hear: likewise; if it was found under another name, every memory is closed already.
        """
        match self.exchange.look():
            case Link() as found:
                return self._recovery.go_on(found, self.progress)
            case Touch.GONE:
                self.exchange.lose(self.exchange.loss("its socket closed"))
            case Touch.ENDED:
                self._recovery.begin_again()
            case Touch.REACHED:
                return True
        return False

    @operation
    def tend(self) -> tuple[Outcome, ...]:
        """Give back the memories whose work is done by now (see `SequenceMemory.release`). Waits for nothing.

        Returns what became of those that were given back and answered since the last call. While they are under way
        they have an ask in flight: `submit` refuses others, and a single verb waits for the answer first.

        Raises:
            DriverError, DeviceUnreachable: as `submit`.
        """
        return self._departures.advance()

    @property
    def driver_calls(self) -> int:
        """Of this client's driver so far; in a LocalDevice they are the device's too."""
        return sum(self.driver.calls().values())

    def load(self, ask: Ask) -> Load:
        """The most that a frame, or its reply, says for it."""
        return load_of(ask)

    def memories(self) -> tuple[SequenceMemory, ...]:
        """Those that are not closed."""
        return self._open.all()

    @operation
    def close(self) -> None:
        """End the session; the device takes back whatever this client did not return.

        Raises:
            DriverError: a graph is being captured. Nothing changed.
        """
        if self.progress is not None:
            self.progress.close()
        self.exchange.close()

    # --- for PendingAsks ------------------------------------------------------------------------------------------

    def settled(self, pending: PendingAsks) -> None:
        """Its outcomes are there."""
        self._open.settled(pending)
        self._let_go()

    def hold(self, memory: SequenceMemory, handles: Sequence[PhysicalHandle]) -> None:
        """What it publishes lies in these, whoever has them mapped, until that is done or given up."""
        self._held[memory] = handles
        self.exchange.line.hold(handles)

    def _let_go(self) -> None:
        for memory in [memory for memory in self._held if memory.holdings.publication is None]:
            self.exchange.line.let_go(self._held.pop(memory))

    def return_windows(self, failed: Mapping[SequenceMemory, TakenBack]) -> None:
        """Give back windows that were handed over and could not be mapped.

        If the session has ended meanwhile the device has them in quarantine already, with all that this process had.
        """
        told = [self._half.told(memory, taken_back)[0] for memory, taken_back in failed.items()]
        self.exchange.give_back([op for ops in told for op in ops])
