"""The open sequences of one pool, by request: opening them, ending them, and what may be asked of one.

Called by the verbs (`services.pages.memory`, `services.pages.branching`), which say what a refusal leaves behind: none
of these checks changes anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kvcluster.errors import LimitReached, NotAllowed, UnknownRequest
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.paged.shape import PageShape
from kvcluster.services.pages.sequence_table import SequenceTable
from kvcluster.services.queue import Queue
from kvcluster.services.told import ToldIds

MOST_OPEN = 4096  # sequences of one session


@dataclass(frozen=True, slots=True)
class PageOpening:
    """What a sequence is to be. `after` is one that has ended, whose place in the queue this one takes."""

    max_tokens: int
    tenant: str = ""
    after: RequestId | None = None
    cache_root: bytes = b""


class OpenSequences:
    """Of one pool."""

    def __init__(self, shape: PageShape, queue: Queue) -> None:
        self.told = ToldIds()
        self._shape = shape
        self._queue = queue
        self._sequences: dict[RequestId, SequenceTable] = {}
        self._open_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[SequenceTable]:
        return iter(self._sequences.values())

    def of(self, session: str) -> list[SequenceTable]:
        """A session's."""
        return [sequence for sequence in self if sequence.request.session == session]

    def find(self, request: RequestId) -> SequenceTable:
        """The open sequence. Raises UnknownRequest."""
        sequence = self._sequences.get(request)
        if sequence is None:
            raise UnknownRequest(request=str(request))
        return sequence

    def add(self, request: RequestId, opening: PageOpening) -> SequenceTable:
        """It is open, without blocks, with an arrival number."""
        sequence = self._sequences[request] = SequenceTable(
            request,
            self._queue.arrive(opening.tenant, opening.after),
            opening.tenant,
            opening.max_tokens,
            block_tokens=self._shape.block_size,
            block_bytes=self._shape.pitch_bytes,
            cache_root=opening.cache_root,
        )
        self._open_of[request.session] += 1
        return sequence

    def remove(self, sequence: SequenceTable) -> None:
        """It is over, and has no blocks."""
        self._queue.leave(sequence)
        self.told.put(sequence, b"")
        del self._sequences[sequence.request]
        self._open_of -= Counter([sequence.request.session])  # and drops a session at 0

    def check_new(self, *requests: RequestId) -> None:
        """All of them, of one session, can be opened.

        Raises:
            NotAllowed: one is open already, or named twice.
            LimitReached: the session would have more than `MOST_OPEN` open.
        """
        if len({*requests}) < len(requests) or not self._sequences.keys().isdisjoint(requests):
            raise NotAllowed(reason="a request that is to be opened is open already, or named twice")
        free = MOST_OPEN - self._open_of[requests[0].session]
        if free < len(requests):
            limit, remedy = "open sequences of a session", "close some of them first"
            raise LimitReached(limit=limit, need=len(requests), free=free, remedy=remedy)


def check_tokens(sequence: SequenceTable, tokens: int) -> None:
    """It may be given so many. Raises NotAllowed."""
    check_sound(sequence)
    if not 1 <= tokens <= sequence.max_tokens:
        raise NotAllowed(reason=f"{tokens} tokens are none, or more than the {sequence.max_tokens} reserved")


def check_sound(sequence: SequenceTable) -> None:
    """Its process writes to nothing that it gave back. Raises NotAllowed."""
    if sequence.is_quarantined:
        raise NotAllowed(reason=f"request {sequence.request} is quarantined and takes no more commits")


def check_empty(sequence: SequenceTable) -> None:
    """It holds nothing yet. Raises NotAllowed."""
    if sequence.table.blocks or sequence.table.lends:
        raise NotAllowed(reason=f"request {sequence.request} finds before it holds anything")


def check_held(sequence: SequenceTable, tokens: int) -> None:
    """It holds the first `tokens` ones, and nothing that waits for its commit. Raises NotAllowed."""
    room = len(sequence.table.blocks) * sequence.block_tokens
    if sequence.table.lends is not None:
        raise NotAllowed(reason=f"request {sequence.request} has found more than it has committed: commit first")
    if not 1 <= tokens <= room:
        raise NotAllowed(reason=f"request {sequence.request} holds {room} tokens, and not the first {tokens}")


def check_told(sequence: SequenceTable, token_ids: bytes, tokens: int) -> None:
    """These are the ids of all of its first `tokens`. Raises NotAllowed."""
    told = len(token_ids) // ID_BYTES
    if tokens > told:
        raise NotAllowed(reason=f"of request {sequence.request} {told} ids would be told, for {tokens} tokens")
