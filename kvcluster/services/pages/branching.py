"""What sequences of host pages have in common with each other, and with whoever has the same tokens.

A fork, a beam that goes on from another one, and what others may find: no block is copied here and none is taken, so
none of it can run out of memory. Whoever writes into a block that others have too commits first, and gets a copy then.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvcluster.errors import NotAllowed
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.services.pages.books import PageBooks
from kvcluster.services.pages.open_sequences import OpenSequences, PageOpening, check_held, check_sound, check_told
from kvcluster.services.pages.sequence_table import SequenceTable
from kvcluster.services.queue import Queue
from kvcluster.services.told import continued


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
            LimitReached: the session would have more than `MOST_OPEN` open, or have told too many ids.
            UnknownRequest: whatever is raised, nothing changed.
        """
        parent = self._sequences.find(request)
        check_sound(parent)
        check_held(parent, tokens)
        self._sequences.check_new(*children)
        token_ids = parent.token_ids[: tokens * ID_BYTES]
        more_bytes = (1 + len(children)) * len(token_ids) - len(parent.token_ids)
        self._sequences.told.check_room(request.session, more_bytes)
        before = parent.table.blocks
        tables = self._books.tables.fork(parent.table, tokens, len(children))
        self._books.left(parent, before[len(parent.table.blocks) :])
        self._books.share(parent, parent.table.blocks)
        made = [self._sequences.add(child, _like(parent)) for child in children]
        for child, table in zip(made, tables, strict=True):
            child.table = table
        reach(Failpoint.PAGES_FORKED)
        for sequence in (parent, *made):
            self._sequences.told.put(sequence, token_ids)
            self._queue.weigh(sequence)
        return tuple(sequence.arrival for sequence in made)

    def permute(self, members: Sequence[RequestId], parents: Sequence[int], tokens: int) -> None:
        """Member i goes on from the first `tokens` tokens of member `parents[i]`. Stands alone in its group.

        Raises:
            NotAllowed: not a parent each, a member twice, fewer tokens held than these or room for fewer, one of them
                quarantined, or not all of one tenant and cache root: their tokens would be shown to others.
            LimitReached: the session would have told too many ids.
            UnknownRequest: whatever is raised, nothing changed.
        """
        sequences = [self._sequences.find(member) for member in members]
        _check_alike(sequences, tokens)
        before = [block for sequence in sequences for block in sequence.table.blocks]
        ids = [sequence.token_ids[: tokens * ID_BYTES] for sequence in sequences]
        more_bytes = sum(len(ids[parent]) for parent in parents if parent < len(ids)) - _id_bytes(sequences)
        self._sequences.told.check_room(members[0].session, more_bytes)
        try:
            self._books.tables.permute([sequence.table for sequence in sequences], parents, tokens)
        except ValueError as wrong:
            raise NotAllowed(reason=str(wrong)) from wrong
        reach(Failpoint.PAGES_PERMUTED)
        for sequence, parent in zip(sequences, parents, strict=True):
            self._books.left(sequence, [b for b in sequence.own if not self._books.counts.is_had(b)])
            self._books.share(sequence, sequence.own.copy())
            self._sequences.told.put(sequence, ids[parent])
        self._books.settle([block for block in dict.fromkeys(before) if block in self._books.tenants])
        for sequence in sequences:
            self._queue.weigh(sequence)

    def share(self, request: RequestId, tokens: int, token_ids: bytes, *, told_tokens: int) -> int:
        """The first `tokens` tokens are written: whoever has the same finds their whole blocks from now on.

        `token_ids` follow the `told_tokens` that were told before. Returns how many tokens are in whole blocks, which
        are written no more. Stands alone.

        Raises:
            NotAllowed: it holds fewer tokens, not all of their ids are known, another number of them was told, these
                are none, or too many with them. Nothing changed.
            LimitReached: the session would have told too many ids. Nothing changed.
            UnknownRequest: nothing changed.
        """
        sequence = self._sequences.find(request)
        check_held(sequence, tokens)
        all_ids = continued(sequence, told_tokens, token_ids, most_tokens=sequence.max_tokens)
        check_told(sequence, all_ids, tokens)
        self._sequences.told.check_room(request.session, len(token_ids))
        self._sequences.told.put(sequence, all_ids)
        reach(Failpoint.PAGES_SHARED)
        if not sequence.cache_root:
            return 0
        self._books.list_written(sequence, tokens)
        self._queue.weigh(sequence)
        return tokens // sequence.block_tokens * sequence.block_tokens


def _id_bytes(sequences: Sequence[SequenceTable]) -> int:
    return sum(len(sequence.token_ids) for sequence in sequences)


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
