"""What sequences of host pages have in common with each other, and with whoever has the same tokens.

A fork, a beam that goes on from another one, and what others may find: no block is copied here and none is taken, so
none of it can run out of memory. Whoever writes into a block that others have too commits first, and gets a copy then.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.errors import NotAllowed
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.services.pages.books import PageBooks
from kvcluster.services.pages.open_sequences import OpenSequences, PageOpening, check_held, check_sound, check_told
from kvcluster.services.pages.sequence_table import SequenceTable
from kvcluster.services.queue import Queue


class Branching:
    """Of one pool."""

    def __init__(self, books: PageBooks, sequences: OpenSequences, queue: Queue) -> None:
        self._books = books
        self._sequences = sequences
        self._queue = queue

    def fork(self, request: RequestId, children: Sequence[RequestId], tokens: int) -> tuple[int, ...]:
        """Sequences that begin with its first `tokens` tokens, in the same blocks; returns their arrival numbers.

        It goes on from there itself, and has what came behind no longer. All or none. Stands alone in its group.

        Raises:
            NotAllowed: a child is open already or named twice, the sequence does not hold so many tokens, or is
                quarantined.
            LimitReached: the session would have more than `MOST_OPEN` open.
            UnknownRequest: whatever is raised, nothing changed.
        """
        parent = self._sequences.find(request)
        check_sound(parent)
        check_held(parent, tokens)
        self._sequences.check_new(*children)
        before = parent.table.blocks
        tables = self._books.tables.fork(parent.table, tokens, len(children))
        self._books.left(parent, before[len(parent.table.blocks) :])
        self._books.share(parent, parent.table.blocks)
        parent.token_ids = parent.token_ids[: tokens * ID_BYTES]
        made = []
        for child, table in zip(children, tables, strict=True):
            made.append(self._sequences.add(child, _like(parent)))
            made[-1].table, made[-1].token_ids = table, parent.token_ids
        for sequence in (parent, *made):
            self._queue.weigh(sequence)
        return tuple(sequence.arrival for sequence in made)

    def permute(self, members: Sequence[RequestId], parents: Sequence[int], tokens: int) -> None:
        """Member i goes on from the first `tokens` tokens of member `parents[i]`. Stands alone in its group.

        Raises:
            NotAllowed: not a parent each, a member twice, fewer tokens held than these or room for fewer, one of them
                quarantined, or not all of one tenant and cache root: their tokens would be shown to others.
            UnknownRequest: whatever is raised, nothing changed.
        """
        sequences = [self._sequences.find(member) for member in members]
        _check_alike(sequences, tokens)
        before = [block for sequence in sequences for block in sequence.table.blocks]
        ids = [sequence.token_ids for sequence in sequences]
        try:
            self._books.tables.permute([sequence.table for sequence in sequences], parents, tokens)
        except ValueError as wrong:
            raise NotAllowed(reason=str(wrong)) from wrong
        for sequence, parent in zip(sequences, parents, strict=True):
            self._books.left(sequence, [b for b in sequence.own if not self._books.counts.is_had(b)])
            self._books.share(sequence, sequence.own.copy())
            sequence.token_ids = ids[parent][: tokens * ID_BYTES]
        self._books.settle([block for block in dict.fromkeys(before) if block in self._books.tenants])
        for sequence in sequences:
            self._queue.weigh(sequence)

    def share(self, request: RequestId, tokens: int, token_ids: bytes) -> int:
        """The first `tokens` tokens are written: whoever has the same finds their whole blocks from now on.

        `token_ids` are those that followed what was told before. Returns how many tokens are in whole blocks, which
        are written no more. Stands alone.

        Raises:
            NotAllowed: it holds fewer tokens, or not all of their ids are known. Nothing changed.
            UnknownRequest: nothing changed.
        """
        sequence = self._sequences.find(request)
        check_held(sequence, tokens)
        check_told(sequence, token_ids, tokens)
        sequence.token_ids += token_ids
        if not sequence.cache_root:
            return 0
        self._books.list_written(sequence, tokens)
        self._queue.weigh(sequence)
        return tokens // sequence.block_tokens * sequence.block_tokens


def _like(parent: SequenceTable) -> PageOpening:
    return PageOpening(parent.max_tokens, parent.tenant, cache_root=parent.cache_root)


def _check_alike(sequences: Sequence[SequenceTable], tokens: int) -> None:
    for sequence in sequences:
        check_sound(sequence)
        if sequence.table.lends is not None or tokens > sequence.max_tokens:
            reason = f"request {sequence.request} has found more than it has committed, or has no room for {tokens}"
            raise NotAllowed(reason=reason)
    if len({(sequence.tenant, sequence.cache_root) for sequence in sequences}) > 1:
        raise NotAllowed(reason="sequences of different tenants, or of different cache roots, are no beams")
