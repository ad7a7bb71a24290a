"""A client's end of one device: the verbs, as frames, and the client's half of each.

`submit` sends what many requests ask in one frame and does not wait; `PendingAsks.settle` does the rest at a step
boundary (services.pending).
A request has at most one ask in flight. The same code serves LocalDevice and the actors: only the `Transport`
differs. Nothing here retries; `services.request` decides what a refusal leads to.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.attach.protocol import REPLY_TIMEOUT_S
from kvcluster.driver.protocol import Driver
from kvcluster.errors import InvariantBroken, KvClusterError
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.ids import GrantId, RequestId
from kvcluster.mapping.address_range import open_range
from kvcluster.services.asks import (
    Ask,
    AskGrant,
    End,
    Grow,
    ReturnGrant,
    Shed,
    Spend,
    check,
)
from kvcluster.services.encoding import (
    commit_operation,
    grant_operations,
    grow_operations,
    key_of,
    release_operations,
)
from kvcluster.services.pending import PendingAsks, Sent
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory, SequenceSpec, TakenBack
from kvcluster.services.transport import Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode


@dataclass(slots=True)
class Traffic:
    """What this client sent and got. A control message is a frame or its reply; redemptions are apart."""

    control_messages: int = 0
    redemptions: int = 0


class DevicePort:
    """One session with one device. `welcome` is what the device said of itself. Used by one thread."""

    def __init__(self, session: str, welcome: wire.Welcome, driver: Driver, transport: Transport) -> None:
        self.session = session
        self.welcome = welcome
        self.driver = driver
        self.transport = transport
        self.traffic = Traffic()
        self.quarantined_bytes = 0  # given back as "may still be mapped": only this process's end frees them
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._next_seq = 1
        self._ack = 0
        self._received: set[int] = set()
        self._memories: set[SequenceMemory] = set()

    def memory(self, spec: SequenceSpec) -> SequenceMemory:
        """A new request: its address is reserved in this process; the device hears of it with its first ask.

        Raises:
            LimitReached: no address space. Nothing changed.
        """
        range_map = RangeMap(Shape.of(spec.geometry, spec.layout, self.welcome.granule_bytes), spec.max_tokens)
        request = RequestId(self.session, next(self._requests))
        memory = SequenceMemory(self, request, spec, open_range(self.driver, range_map))
        self._memories.add(memory)
        return memory

    def submit(self, asks: Sequence[Ask]) -> PendingAsks:
        """Send all of `asks` in one frame; at most one a request, none of which may be in flight already.

        The client's half of Shed and End is done here: their windows are unmapped before the frame leaves.

        Raises:
            NotAllowed: a memory is closed, or has an ask in flight. Nothing was sent or changed.
            ValueError: no tokens, more than a memory's most, or more than a frame carries. Nothing was sent or changed.
            DeviceUnreachable: the way is closed; the session is of no more use.
        """
        check(asks)
        asked = [self._asked(ask) for ask in asks]  # whatever can be refused here is refused before any unmapping
        given = [self._given_back(ask) for ask in asks]
        ops = tuple(op for ask_ops, (back_ops, _) in zip(asked, given, strict=True) for op in (*ask_ops, *back_ops))
        sent = self._send(ops) if ops else None
        for ask in asks:
            ask.memory.in_flight = True
        return PendingAsks(self, [(ask, error) for ask, (_, error) in zip(asks, given, strict=True)], sent)

    def memories(self) -> tuple[SequenceMemory, ...]:
        """Those that are not closed."""
        return tuple(self._memories)

    def close(self) -> None:
        """End the session; the device takes back whatever this client did not return."""
        self.transport.close()

    # --- one verb at a time ---------------------------------------------------------------------------------------

    def grant(self, memory: SequenceMemory, tokens: int) -> Grant:
        identity = GrantId(memory.request, next(self._grants))
        grant = Grant(identity, max(1, memory.bytes_to_reach(tokens)))
        self._one(AskGrant(memory, grant))
        return grant

    def give_back(self, memory: SequenceMemory, grant: Grant) -> None:
        self._one(ReturnGrant(memory, grant))

    def commit(self, memory: SequenceMemory, tokens: int, grant: Grant) -> None:
        self._one(Spend(memory, tokens, grant))

    def release(self, memory: SequenceMemory) -> None:
        self._one(Shed(memory))

    def close_memory(self, memory: SequenceMemory) -> None:
        if memory.state is MemoryState.CLOSED:
            memory.range.close()  # does nothing, unless it failed before
        else:
            self._one(End(memory))

    def _one(self, ask: Ask) -> None:
        [outcome] = self.submit([ask]).settle()
        if outcome.error:
            raise outcome.error

    # --- frames ---------------------------------------------------------------------------------------------------

    def _asked(self, ask: Ask) -> tuple[wire.Operation, ...]:
        """What the device is asked for; nothing in this process changes."""
        match ask:
            case Grow(memory, tokens):
                return grow_operations(memory, tokens, next(self._grants))
            case AskGrant(memory, grant):
                return grant_operations(memory, grant.identity.number, grant.size_bytes)
            case Spend(memory, tokens, grant):
                return (commit_operation(memory, tokens, grant.identity.number),)
            case ReturnGrant(memory, grant):
                return (wire.GiveBack(request=key_of(memory.request), grant=grant.identity.number),)
            case Shed() | End():
                return ()

    def _given_back(self, ask: Ask) -> tuple[tuple[wire.Operation, ...], KvClusterError | None]:
        """Unmap what the ask gives back: what the device is told of it, and what this process could not do itself."""
        match ask:
            case Shed(memory):
                taken_back = memory.shed()
                reach(Failpoint.CLIENT_UNMAPPED)
                return self._release(memory, taken_back), taken_back.error
            case End(memory):
                return self._end(memory)
            case _:
                return (), None

    def _end(self, memory: SequenceMemory) -> tuple[tuple[wire.Operation, ...], KvClusterError | None]:
        known = memory.state is MemoryState.OPEN
        taken_back = memory.end()
        reach(Failpoint.CLIENT_UNMAPPED)
        self._memories.discard(memory)
        end = (wire.Close(request=key_of(memory.request)),) if known else ()
        return (*self._release(memory, taken_back), *end), taken_back.error

    def _release(self, memory: SequenceMemory, taken_back: TakenBack) -> tuple[wire.Operation, ...]:
        self.quarantined_bytes += self.welcome.granule_bytes * sum(run.count for run in taken_back.still)
        return release_operations(memory, taken_back)

    def _send(self, ops: tuple[wire.Operation, ...]) -> Sent:
        seq = self._next_seq
        frame = encode(wire.Frame(session=self.session, seq=seq, ack=self._ack, epoch=self.welcome.epoch, ops=ops))
        reach(Failpoint.CLIENT_ASK)
        self._next_seq += 1  # a seq is taken by what may have been sent, and by nothing else: no gap is left behind
        self.traffic.control_messages += 1
        return Sent(seq, self.transport.send(frame))

    def receive(self, sent: Sent) -> wire.Reply:
        """The reply to a frame.

        Raises:
            DeviceUnreachable: none came. What the frame did is unknown.
        """
        answer = decode_reply(sent.reply.result(REPLY_TIMEOUT_S))
        self.traffic.control_messages += 1
        reach(Failpoint.CLIENT_REPLIED)
        self._received.add(sent.seq)
        while self._ack + 1 in self._received:
            self._ack += 1
            self._received.remove(self._ack)
        return answer

    def return_windows(self, failed: Sequence[tuple[SequenceMemory, TakenBack]]) -> None:
        """Give back windows that were committed and could not be mapped.

        If the session has ended meanwhile the device has them in quarantine already, with all that this process had.
        """
        ops = tuple(op for memory, taken_back in failed for op in self._release(memory, taken_back))
        if not ops:
            return
        for result in self.receive(self._send(ops)).results:
            if result.fault:
                raise InvariantBroken(sentence=f"the device does not take back what it gave: {result.fault}")
