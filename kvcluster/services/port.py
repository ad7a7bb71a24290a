"""A client's end of one device: the verbs, as frames, and the client's half of each.

`submit` sends what many requests ask in one frame and does not wait; `PendingAsks.settle` does the rest at a step
boundary (services.pending). `tend` is called at step boundaries too: it gives back what waited for work to end.
A request has at most one ask in flight. The same code serves LocalDevice and the actors: only the `Transport`
differs. Nothing here retries; `services.request` decides what a refusal leads to. Each verb is one operation
(`driver.passages`): a graph is captured before it or after it, or it is refused with nothing changed.

A device that dies takes nothing along that is mapped here: its next incarnation is sought in the background, and
`in_touch`, called at step boundaries, registers with it what is open. What was asked and not answered counts as not
executed: nothing of it is mapped, and what was unmapped for it stays so (DeviceUnreachable is its outcome).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from kvcluster.driver.gate import operation
from kvcluster.driver.protocol import Driver, Fence, PhysicalHandle
from kvcluster.errors import (
    DeviceUnreachable,
    InvariantBroken,
    KvClusterError,
    NotAllowed,
    NotShareable,
    SessionEnded,
)
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.geometry.shareability import Refusal
from kvcluster.ids import GrantId, RequestId, new_session
from kvcluster.index.token_chain import packed
from kvcluster.mapping.address_range import open_range
from kvcluster.services import encoding
from kvcluster.services.ask_checks import check, check_room, check_written, refusal_of
from kvcluster.services.asks import (
    Ask,
    AskGrant,
    End,
    Find,
    Join,
    Leave,
    Load,
    Outcome,
    Publish,
    ReturnGrant,
    Seal,
    Shed,
    Spend,
    TakeSnapshot,
    load_of,
)
from kvcluster.services.client_half import ClientHalf
from kvcluster.services.contact import Seek
from kvcluster.services.correspondence import Traffic
from kvcluster.services.departures import Departures, is_over
from kvcluster.services.exchange import Exchange, Touch
from kvcluster.services.pending import PendingAsks
from kvcluster.services.prefix import Prefix
from kvcluster.services.progress_page import ProgressPage
from kvcluster.services.renewal import MOST_REQUESTS, register_all
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory, SequenceSpec
from kvcluster.services.snapshots import boundary_of
from kvcluster.services.taken_back import TakenBack
from kvcluster.services.transport import Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.restart import MOST_GIVEN_UP
from kvcluster.wire.socket import Reclaim, Welcome

if TYPE_CHECKING:
    import torch

Operations = tuple[wire.Operation, ...]


class DevicePort:
    """One session with one device. `welcome` is what the device said of itself. Used by one thread.

    `computes_on` is the torch device of its memory, where that is not the CPU's.
    """

    def __init__(
        self,
        session: str,
        welcome: Welcome,
        driver: Driver,
        transport: Transport,
        *,
        seek: Seek[Transport] | None = None,
    ) -> None:
        self.driver = driver
        self.computes_on: torch.device | None = None
        self.most_registered = MOST_REQUESTS  # in one frame, after a restart of the device
        self.progress: ProgressPage | None = None  # where whoever computes notes what a successor can go on with
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._exchange: Exchange[Transport, Transport] = Exchange(session, welcome, transport, seek)
        self._memories: set[SequenceMemory] = set()
        self._unsettled: dict[PendingAsks, None] = {}  # in the order in which they were sent
        self._held: dict[SequenceMemory, Sequence[PhysicalHandle]] = {}  # of publications that are under way
        self._given_up: list[str] = []  # sessions of which nothing is mapped, and nobody has heard so
        self._departures = Departures(self.submit)
        self._half = ClientHalf(self._departures, self._grants, welcome.granule_bytes)

    @property
    def quarantined_bytes(self) -> int:
        """What was given back as "may still be mapped": only this process's end frees it."""
        return self._half.quarantined_bytes

    @property
    def session(self) -> str:
        """The name of the present session."""
        return self._exchange.session

    @property
    def welcome(self) -> Welcome:
        """What the device said of itself, as it is now."""
        return self._exchange.welcome

    @property
    def transport(self) -> Transport:
        """How it is reached now."""
        return self._exchange.line

    @property
    def traffic(self) -> Traffic:
        return self._exchange.traffic

    @operation
    def memory(self, spec: SequenceSpec) -> SequenceMemory:
        """A new request: its address is reserved in this process; the device hears of it with its first ask.

        Raises:
            LimitReached: no address space. Nothing changed.
            DriverError: a graph is being captured, or the call failed. Nothing changed.
        """
        granule_bytes = self.welcome.granule_bytes
        shape = Shape.of(spec.geometry, spec.layout, granule_bytes, chunk_tokens=spec.chunk_tokens)
        request = RequestId(self.session, next(self._requests))
        memory = SequenceMemory(self, request, spec, open_range(self.driver, RangeMap(shape, spec.max_tokens)))
        self._memories.add(memory)
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
        refusals = [self._refusal(ask) for ask in asks]  # whatever can be refused here is, before any unmapping
        asked = [() if r else encoding.operations_of(ask, self._grants) for ask, r in zip(asks, refusals, strict=True)]
        given = [((), r) if r else self._half.first(ask) for ask, r in zip(asks, refusals, strict=True)]
        ops = [op for ask_ops, (back_ops, _) in zip(asked, given, strict=True) for op in (*ask_ops, *back_ops)]
        sent = self._exchange.send(ops) if ops else None
        for ask in asks:
            ask.memory.in_flight = True
        self._memories -= {ask.memory for ask in asks if isinstance(ask, End)}
        pending = PendingAsks(self, [(ask, error) for ask, (_, error) in zip(asks, given, strict=True)], sent)
        self._unsettled[pending] = None
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
            Whatever it refuses to register: likewise.
        """
        match self._exchange.look():
            case Touch.FOUND:
                return self._go_on()
            case Touch.GONE:
                self._exchange.lose(self._exchange.loss("its socket closed"))
            case Touch.ENDED:
                self._start_over()
            case Touch.REACHED:
                return True
        return False

    @property
    def is_adrift(self) -> bool:
        """Whether nothing is answered before `in_touch` says so: the device is sought, or has ended the session."""
        return self._exchange.is_adrift

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

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the device demands back since the last call. Never waits."""
        return self._exchange.pushes()

    def memories(self) -> tuple[SequenceMemory, ...]:
        """Those that are not closed."""
        return tuple(self._memories)

    @operation
    def close(self) -> None:
        """End the session; the device takes back whatever this client did not return.

        Raises:
            DriverError: a graph is being captured. Nothing changed.
        """
        if self.progress is not None:
            self.progress.close()
        if (link := self._exchange.close()) is not None:
            link.way.close()

    # --- one verb at a time ---------------------------------------------------------------------------------------

    def grant(self, memory: SequenceMemory, tokens: int) -> Grant:
        check_room(memory, tokens, 1, memory.spec.max_tokens)
        identity = GrantId(memory.request, next(self._grants))
        grant = Grant(identity, max(1, memory.bytes_to_reach(tokens)))
        self._one(AskGrant(memory, grant))
        return grant

    def give_back(self, memory: SequenceMemory, grant: Grant) -> None:
        self._one(ReturnGrant(memory, grant))

    def commit(self, memory: SequenceMemory, tokens: int, grant: Grant) -> None:
        self._one(Spend(memory, tokens, grant))

    def publish(self, memory: SequenceMemory, tokens: int, *, written: int) -> Prefix:
        self._free_for_verbs(memory)
        check([Publish(memory, tokens)])
        check_written(memory, tokens, written)
        if memory.holdings.shape.has_rings:
            boundary_of(memory, tokens, written)
            self._one(TakeSnapshot(memory, tokens, written))
        self._one(Publish(memory, tokens))
        prefix = self._one(Seal(memory)).prefix
        assert prefix is not None  # or an error was raised
        return prefix

    def find(self, memory: SequenceMemory, token_ids: Sequence[int], tokens: int) -> int:
        self._one(Find(memory, packed(token_ids), tokens))
        return memory.joined_tokens

    def join(self, memory: SequenceMemory, prefix: Prefix, tokens: int) -> int:
        self._one(Join(memory, prefix, tokens))
        return memory.joined_tokens

    def leave(self, memory: SequenceMemory) -> None:
        self._one(Leave(memory))

    def release(self, memory: SequenceMemory, *, after: Fence | None) -> None:
        shed = Shed(memory, after)
        self._free_for_verbs(memory)
        if after is None or is_over(after):
            self._one(shed)
            return
        check([shed])
        memory.is_leaving = True
        self._departures.wait(memory, after)

    def close_memory(self, memory: SequenceMemory, *, retain_tokens: int, token_ids: bytes) -> Prefix | None:
        if memory.state is MemoryState.CLOSED:
            memory.range.close()  # does nothing, unless it failed before
            return None
        return self._one(End(memory, retain_tokens, token_ids)).prefix

    def _free_for_verbs(self, memory: SequenceMemory) -> None:
        """Wait for what `tend` has under way for it; what became of that the next `tend` says."""
        if self._departures.is_under_way(memory):
            self._departures.settle()

    def _one(self, ask: Ask) -> Outcome:
        self._free_for_verbs(ask.memory)
        [outcome] = self.submit([ask]).settle()
        if outcome.error:
            raise outcome.error
        return outcome

    # --- asks -----------------------------------------------------------------------------------------------------

    def _refusal(self, ask: Ask) -> KvClusterError | None:
        """Why the device is not even asked."""
        here = (self.welcome.device, self.welcome.epoch)
        match ask:
            case Join(prefix=Prefix(device, epoch, number)) if (device, epoch) != here:
                reason = f"prefix {number} is one of device {device} as it was in epoch {epoch}"
                return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=reason)
            case Seal(memory) if (plan := memory.holdings.publication) and plan.epoch != self.welcome.epoch:
                memory.holdings.publication = None  # whose windows are mapped as they were
                reason = f"prefix {plan.number} was planned by device {here[0]} as it was in epoch {plan.epoch}"
                return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=reason)
            case Shed(after=after) if after is not None and not is_over(after):
                return NotAllowed(reason="work that may use the memory is under way")
        return refusal_of(ask)

    # --- for PendingAsks ------------------------------------------------------------------------------------------

    @property
    def exchange(self) -> Exchange[Transport, Transport]:
        """Its frames and replies."""
        return self._exchange

    def settled(self, pending: PendingAsks) -> None:
        """Its outcomes are there."""
        self._unsettled.pop(pending, None)
        self._let_go()

    def hold(self, memory: SequenceMemory, handles: Sequence[PhysicalHandle]) -> None:
        """What it publishes lies in these, whoever has them mapped, until that is done or given up."""
        self._held[memory] = handles
        self.transport.hold(handles)

    def _let_go(self) -> None:
        for memory in [memory for memory in self._held if memory.holdings.publication is None]:
            self.transport.let_go(self._held.pop(memory))

    def return_windows(self, failed: Mapping[SequenceMemory, TakenBack]) -> None:
        """Give back windows that were handed over and could not be mapped.

        If the session has ended meanwhile the device has them in quarantine already, with all that this process had.
        """
        ops = [op for memory, taken_back in failed.items() for op in self._half.told(memory, taken_back)[0]]
        if not ops or self.is_adrift:
            return
        try:
            reply = self._exchange.receive(self._exchange.send(ops))
        except DeviceUnreachable:
            if not self._exchange.can_be_found:
                raise
            return  # it died, and with it what it had given
        for result in reply.results:
            if result.fault:
                raise InvariantBroken(sentence=f"the device does not take back what it gave: {result.fault}")

    # --- a device that was lost -----------------------------------------------------------------------------------

    def _go_on(self) -> bool:
        """Everything that is open goes on with the device that was found; whether it has heard all of it.

        A device that was found under another name than was sought has ended the session: nothing of it goes on.
        """
        exchange, before, sought = self._exchange, self.welcome, self.session
        link = exchange.link
        assert link is not None  # it was found
        if link.welcome.granule_bytes != before.granule_bytes:
            link.way.close()
            raise exchange.loss(f"it came back with granules of {link.welcome.granule_bytes} bytes")
        for pending in self._unsettled:
            pending.lose(exchange.loss("it was restarted before it answered"))
        exchange.go_on(link, link.way)
        if self.progress is not None and link.way.page is not None:
            self.progress.move_to(link.way.page)
        is_over = link.session != sought
        if is_over:
            self._give_up(sought)
        is_heard = self._register(before.epoch)
        if is_over:
            raise SessionEnded(session=sought)
        return is_heard

    def _register(self, before_epoch: int) -> bool:
        """Tell the device what there is here of earlier incarnations; whether it has heard all of it."""
        kept_bytes = self.quarantined_bytes
        given_up = () if kept_bytes else tuple(self._given_up[-MOST_GIVEN_UP:])
        complete = wire.Complete(kept_bytes=kept_bytes, given_up=given_up)
        try:
            register_all(
                self._exchange,
                self.memories(),
                before_epoch=before_epoch,
                complete=complete,
                most_requests=self.most_registered,
            )
        except DeviceUnreachable:
            if not self.is_adrift:
                raise
            return False  # it died again
        self._given_up.clear()
        return True

    def _give_up(self, session: str) -> None:
        """Every memory is unmapped and closed: nothing is left of the session, whether its device hears so or not."""
        self._given_up.append(session)
        for memory in self.memories():
            memory.in_flight = False
            self._half.end(memory)
            self._memories.discard(memory)
        self._unsettled.clear()

    def _start_over(self) -> NoReturn:
        """The session is over: unmap everything, say so, and look for the device under another name."""
        ended = self.session
        self._give_up(ended)
        if not self.quarantined_bytes:
            with suppress(DeviceUnreachable):  # the next that is found hears it
                self.transport.surrender()
                self._given_up.remove(ended)
        self._exchange.end(new_session())
        raise SessionEnded(session=ended)
