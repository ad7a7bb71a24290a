"""A client's end of one device: the verbs, as frames, and the client's half of each.

`submit` sends what many requests ask in one frame and does not wait; `PendingAsks.settle` does the rest at a step
boundary (services.pending). `tend` is called at step boundaries too: it gives back what waited for work to end.
A request has at most one ask in flight. The same code serves LocalDevice and the actors: only the `Transport`
differs. Nothing here retries; `services.request` decides what a refusal leads to. Each verb is one operation
(`driver.passages`): a graph is captured before it or after it, or it is refused with nothing changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kvcluster.driver.gate import operation
from kvcluster.driver.protocol import Driver, Fence
from kvcluster.errors import InvariantBroken, KvClusterError, NotAllowed, NotShareable
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.geometry.shareability import Refusal
from kvcluster.ids import GrantId, RequestId
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
from kvcluster.services.correspondence import Correspondence, Sent, Traffic
from kvcluster.services.departures import Departures, is_over
from kvcluster.services.pending import PendingAsks
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory, SequenceSpec
from kvcluster.services.snapshots import boundary_of
from kvcluster.services.taken_back import TakenBack
from kvcluster.services.transport import Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Reclaim, Welcome

if TYPE_CHECKING:
    import torch

Operations = tuple[wire.Operation, ...]


class DevicePort:
    """One session with one device. `welcome` is what the device said of itself. Used by one thread.

    `computes_on` is the torch device of its memory, where that is not the CPU's.
    """

    def __init__(self, session: str, welcome: Welcome, driver: Driver, transport: Transport) -> None:
        self.session = session
        self.welcome = welcome
        self.driver = driver
        self.transport = transport
        self.computes_on: torch.device | None = None
        self.quarantined_bytes = 0  # given back as "may still be mapped": only this process's end frees them
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._letters = Correspondence(session, welcome.epoch)
        self._memories: set[SequenceMemory] = set()
        self._departures = Departures(self.submit)

    @property
    def traffic(self) -> Traffic:
        return self._letters.traffic

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

        The client's half of giving back is done here: windows are unmapped before the frame leaves.

        Raises:
            NotAllowed: a memory is in no state for its ask, or has one in flight. Nothing was sent or changed.
            ValueError: no tokens, more than a memory's most, or more than a frame carries. Nothing was sent or changed.
            DriverError: a graph is being captured. Nothing was sent or changed.
            DeviceUnreachable: the way is closed; the session is of no more use.
        """
        check(asks)
        refusals = [self._refusal(ask) for ask in asks]  # whatever can be refused here is, before any unmapping
        asked = [() if r else encoding.operations_of(ask, self._grants) for ask, r in zip(asks, refusals, strict=True)]
        given = [((), r) if r else self._given_back(ask) for ask, r in zip(asks, refusals, strict=True)]
        ops = [op for ask_ops, (back_ops, _) in zip(asked, given, strict=True) for op in (*ask_ops, *back_ops)]
        sent = self._letters.send(ops, self.transport) if ops else None
        for ask in asks:
            ask.memory.in_flight = True
        return PendingAsks(self, [(ask, error) for ask, (_, error) in zip(asks, given, strict=True)], sent)

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
        return self.transport.pushes()

    def memories(self) -> tuple[SequenceMemory, ...]:
        """Those that are not closed."""
        return tuple(self._memories)

    @operation
    def close(self) -> None:
        """End the session; the device takes back whatever this client did not return.

        Raises:
            DriverError: a graph is being captured. Nothing changed.
        """
        self.transport.close()

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

    # --- what an ask says to the device, and what is done here first ----------------------------------------------

    def _refusal(self, ask: Ask) -> KvClusterError | None:
        """Why the device is not even asked."""
        here = (self.welcome.device, self.welcome.epoch)
        match ask:
            case Join(prefix=Prefix(device, epoch, number)) if (device, epoch) != here:
                reason = f"prefix {number} is one of device {device} as it was in epoch {epoch}"
                return NotShareable(kind=Refusal.NO_SUCH_PREFIX, reason=reason)
            case Shed(after=after) if after is not None and not is_over(after):
                return NotAllowed(reason="work that may use the memory is under way")
        return refusal_of(ask)

    def _given_back(self, ask: Ask) -> tuple[Operations, KvClusterError | None]:
        """What is done here first: what the device is told of it, and what this process could not do."""
        match ask:
            case Shed(memory, after):
                return self._emptied(memory, memory.holdings.shed(after=after))
            case End(memory, retain_tokens, token_ids):
                return self._end(memory, retain_tokens, token_ids)
            case Leave(memory):
                return self._emptied(memory, memory.holdings.leave())
            case Seal(memory):
                return self._seal(memory)
            case TakeSnapshot(memory, tokens):
                return self._make_room(memory, tokens)
        return (), None

    def _emptied(self, memory: SequenceMemory, taken_back: TakenBack) -> tuple[Operations, KvClusterError | None]:
        reach(Failpoint.CLIENT_UNMAPPED)
        self._departures.left(memory)
        memory.emptied()
        return self._told(memory, taken_back)

    def _end(
        self, memory: SequenceMemory, retain_tokens: int, token_ids: bytes
    ) -> tuple[Operations, KvClusterError | None]:
        known, shape = memory.state is MemoryState.OPEN, memory.holdings.shape
        taken_back = memory.holdings.end()
        reach(Failpoint.CLIENT_UNMAPPED)
        self._departures.left(memory)
        self._memories.discard(memory)
        memory.closed()
        retained = 0 if taken_back.error else retain_tokens
        if retained and not shape.has_rings:
            taken_back = encoding.but_retained(taken_back, shape.shared_windows(retained))
        close = encoding.close_operation(memory, retained, token_ids)
        told, error = self._told(memory, taken_back)
        return (*told, *((close,) if known else ())), error

    def _seal(self, memory: SequenceMemory) -> tuple[Operations, KvClusterError | None]:
        plan = memory.holdings.publication
        assert plan is not None  # `check` saw it
        taken_back = memory.holdings.unmap_published()
        reach(Failpoint.CLIENT_PUBLISH_UNMAPPED)
        if taken_back.error:
            return self._told(memory, taken_back)
        return (wire.Seal(request=encoding.key_of(memory.request), prefix=plan.number),), None

    def _make_room(self, memory: SequenceMemory, tokens: int) -> tuple[Operations, KvClusterError | None]:
        """Windows for a snapshot, in the place of the snapshot of a prefix that is used."""
        if error := memory.holdings.unmap_snapshot():
            return (), error
        if memory.holdings.has_sealed_snapshot:
            reason = "the snapshot could not be sealed once and cannot be written again: release the memory"
            return (), NotAllowed(reason=reason)
        return encoding.snapshot_operations(memory, tokens, next(self._grants)), None

    def _told(self, memory: SequenceMemory, taken_back: TakenBack) -> tuple[Operations, KvClusterError | None]:
        self.quarantined_bytes += self.welcome.granule_bytes * sum(run.count for run in taken_back.still)
        return encoding.release_operations(memory, taken_back), taken_back.error

    # --- for PendingAsks ------------------------------------------------------------------------------------------

    def receive(self, sent: Sent) -> wire.Reply:
        """The reply to a frame. Raises as `Correspondence.receive`."""
        return self._letters.receive(sent)

    def return_windows(self, failed: Mapping[SequenceMemory, TakenBack]) -> None:
        """Give back windows that were handed over and could not be mapped.

        If the session has ended meanwhile the device has them in quarantine already, with all that this process had.
        """
        ops = [op for memory, taken_back in failed.items() for op in self._told(memory, taken_back)[0]]
        if not ops:
            return
        for result in self.receive(self._letters.send(ops, self.transport)).results:
            if result.fault:
                raise InvariantBroken(sentence=f"the device does not take back what it gave: {result.fault}")
