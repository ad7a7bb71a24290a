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

from kvcluster.driver.protocol import Driver
from kvcluster.errors import NotAllowed
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import RangeMap, Shape
from kvcluster.ids import GrantId, RequestId
from kvcluster.mapping.address_range import Unmapped, open_range
from kvcluster.services.asks import (
    Ask,
    AskGrant,
    End,
    Grow,
    ReturnGrant,
    Shed,
    Spend,
    open_operation,
    release_operations,
    request_key,
)
from kvcluster.services.pending import PendingAsks, Sent
from kvcluster.services.sequence import Grant, MemoryState, SequenceMemory, SequenceSpec
from kvcluster.services.transport import Transport
from kvcluster.wire import messages as wire
from kvcluster.wire.codec import decode_reply, encode
from kvcluster.wire.faults import error_of

REPLY_TIMEOUT_S = 60.0


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
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._seqs = itertools.count(1)
        self._ack = 0
        self._received: set[int] = set()

    def memory(self, spec: SequenceSpec) -> SequenceMemory:
        """A new request: its address is reserved in this process; the device hears of it with its first ask.

        Raises:
            LimitReached: no address space. Nothing changed.
        """
        range_map = RangeMap(Shape.of(spec.geometry, spec.layout, self.welcome.granule_bytes), spec.max_tokens)
        request = RequestId(self.session, next(self._requests))
        return SequenceMemory(self, request, spec, open_range(self.driver, range_map))

    def submit(self, asks: Sequence[Ask]) -> PendingAsks:
        """Send all of `asks` in one frame; at most one a request, none of which may be in flight already.

        The client's half of Shed and End is done here: their windows are unmapped before the frame leaves.

        Raises:
            NotAllowed: a memory is closed, or has an ask in flight. Nothing was sent or changed.
        """
        memories = [ask.memory for ask in asks]
        if len(set(memories)) != len(memories) or any(memory.in_flight for memory in memories):
            raise NotAllowed(reason="a request may have one ask in flight: settle it first")
        if any(memory.state is MemoryState.CLOSED for memory in memories):
            raise NotAllowed(reason="the memory is closed")
        ops = tuple(op for ask in asks for op in self._operations(ask))
        sent = self._send(ops) if ops else None
        for memory in memories:
            memory.in_flight = True
        return PendingAsks(self, tuple(asks), sent)

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
        if memory.state is not MemoryState.CLOSED:
            self._one(End(memory))

    def _one(self, ask: Ask) -> None:
        [outcome] = self.submit([ask]).settle()
        if outcome.error:
            raise outcome.error

    # --- frames ---------------------------------------------------------------------------------------------------

    def _operations(self, ask: Ask) -> tuple[wire.Operation, ...]:
        key = request_key(ask.memory)
        match ask:
            case Grow(memory, tokens):
                number, size_bytes = next(self._grants), max(1, memory.bytes_to_reach(tokens))
                grant = wire.Grant(request=key, grant=number, size_bytes=size_bytes)
                return (*open_operation(memory), grant, wire.Commit(request=key, grant=number, tokens=tokens))
            case AskGrant(memory, grant):
                asked = wire.Grant(request=key, grant=grant.identity.number, size_bytes=grant.size_bytes)
                return (*open_operation(memory), asked)
            case Spend(memory, tokens, grant):
                return (wire.Commit(request=key, grant=grant.identity.number, tokens=tokens),)
            case ReturnGrant(memory, grant):
                return (wire.GiveBack(request=key, grant=grant.identity.number),)
            case Shed(memory):
                return release_operations(memory, memory.unmap())
            case End(memory):
                if memory.state is MemoryState.NEW:
                    return ()
                return (*release_operations(memory, memory.unmap()), wire.Close(request=key))

    def _send(self, ops: tuple[wire.Operation, ...]) -> Sent:
        seq = next(self._seqs)
        frame = wire.Frame(session=self.session, seq=seq, ack=self._ack, epoch=self.welcome.epoch, ops=ops)
        reach(Failpoint.CLIENT_ASK)
        self.traffic.control_messages += 1
        return Sent(seq, self.transport.send(encode(frame)))

    def receive(self, sent: Sent) -> tuple[wire.GroupResult, ...]:
        """The results of a frame.

        Raises:
            KvClusterError: the whole frame was refused (nothing was executed), or no reply came.
        """
        answer = decode_reply(sent.reply.result(REPLY_TIMEOUT_S))
        self.traffic.control_messages += 1
        reach(Failpoint.CLIENT_REPLIED)
        self._received.add(sent.seq)
        while self._ack + 1 in self._received:
            self._ack += 1
            self._received.remove(self._ack)
        if answer.fault:
            raise error_of(answer.fault)
        return answer.results

    def return_windows(self, failed: Sequence[tuple[SequenceMemory, Unmapped]]) -> None:
        """Give back windows that were committed and could not be mapped.

        Raises:
            KvClusterError: the device refused; it keeps them charged to their requests.
        """
        ops = tuple(op for memory, unmapped in failed for op in release_operations(memory, unmapped))
        if not ops:
            return
        for result in self.receive(self._send(ops)):
            if result.fault:
                raise error_of(result.fault)
