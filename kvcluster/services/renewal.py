"""What a restarted device is told of a client: every open request, with what is mapped for it, and the last word.

In frames of so many requests and runs, each answered before the next. When this is said, and what is not said because
it was given up, is in `services.recovery`; what the device makes of it in `services.registering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvcluster.failpoints import Failpoint, reach
from kvcluster.services.encoding import register_operations
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.sequence import SequenceMemory
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import error_of

if TYPE_CHECKING:
    from kvcluster.services.exchange import Exchange
    from kvcluster.services.transport import Transport

MOST_RUNS = 8192  # of one frame
MOST_REQUESTS = 512  # of one frame


def register_all(
    exchange: Exchange[Transport, Transport],
    memories: Sequence[SequenceMemory],
    *,
    before_epoch: int,
    complete: wire.Complete,
    most_requests: int = MOST_REQUESTS,
) -> None:
    """Tell a new incarnation what is mapped for `memories` since that of `before_epoch`, and earlier ones.

    `complete` is the last word. A frame names at most `most_requests`.

    Raises:
        DeviceUnreachable: it died again. Whatever it was told, the next one is told all of it.
        Whatever it is refused with: the process's memory and the device's books do not fit together.
    """
    opened = [memory for memory in memories if memory.state is MemoryState.OPEN]
    for memory in opened:
        memory.holdings.date_prefixes(before_epoch)  # of all at once: this incarnation may die before it heard the last
    reach(Failpoint.CLIENT_REGISTERS)
    for batch in _batches(opened, most_requests):
        ops = [op for memory in batch for op in register_operations(memory)]
        for memory, arrival in zip(batch, _arrivals(exchange.receive(exchange.send(ops))), strict=True):
            memory.registered(arrival)
    _arrivals(exchange.receive(exchange.send([complete])))
    reach(Failpoint.CLIENT_REGISTERED)


def _arrivals(reply: wire.Reply) -> list[int]:
    """Of those that were registered. Raises what one of them was refused with."""
    for fault in (reply.fault, *(result.fault for result in reply.results)):
        if fault is not None:
            raise error_of(fault)
    answers = [answer for result in reply.results for answer in result.answers]
    return [answer.arrival for answer in answers if isinstance(answer, wire.Registered)]


def _batches(memories: Sequence[SequenceMemory], most_requests: int) -> Iterator[list[SequenceMemory]]:
    """As many as a frame carries at a time."""
    batch: list[SequenceMemory] = []
    runs = 0
    for memory in memories:
        more = memory.returnable_runs + memory.fragments * memory.holdings.prefix_count
        if batch and (len(batch) == most_requests or runs + more > MOST_RUNS):
            yield batch
            batch, runs = [], 0
        batch.append(memory)
        runs += more
    if batch:
        yield batch
