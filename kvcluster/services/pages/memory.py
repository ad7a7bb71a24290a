"""Host pages as verbs of their clients: open, find, drop, close, and their end; more in `spending` and `branching`.

A verb plans first, then does what can fail, noting each undo, and leaves what cannot be undone to `Work.after`, as on a
device (`services.device_memory`). The host changes tables and copies blocks; clients write their tokens.

What a stray write of a client can reach: all pages are mapped for reading, and only the blocks that its own tables have
alone are writable, so at worst it spoils sequences of its own, and ends with any other write. Blocks that others have,
or that are found, it made read-only before it said so. A client that means harm holds a descriptor of all pages and can
map them as it likes: pages are for processes of one owner.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import HandleId, RequestId
from kvcluster.index.block_index import FoundBlocks
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.pages.books import PageBooks
from kvcluster.services.pages.branching import Branching
from kvcluster.services.pages.open_sequences import (
    OpenSequences,
    PageOpening,
    check_empty,
    check_held,
    check_tokens,
    check_told,
)
from kvcluster.services.pages.sequence_table import SequenceTable
from kvcluster.services.pages.spending import PageSpending
from kvcluster.services.pressure import Pressure
from kvcluster.services.queue import Queue
from kvcluster.services.told import checked_count, continued
from kvcluster.services.work import Work
from kvcluster.units import ceil_div


@dataclass(frozen=True, slots=True)
class PagesFound:
    """Whole `blocks`, and how many tokens are there with them, and with the copy of one more."""

    blocks: tuple[int, ...]
    tokens: int


class PageMemory:
    """The sequences of one pool. For one thread at a time."""

    def __init__(self, pool: BlockPool, settings: MemorySettings, *, clock: Callable[[], float]) -> None:
        self.pool = pool
        self.books = PageBooks(pool.counts, pool.shape.block_size, settings, clock=clock)
        self.queue = Queue(self.books.ledger, settings.quotas)
        self.sequences = OpenSequences(pool.shape, self.queue)
        self.spending = PageSpending(pool, self.books, self.queue, self.sequences)
        self.branching = Branching(self.books, self.sequences, self.queue)
        self.asked_tokens = self.found_tokens = self.lookups = 0

    # --- verbs ------------------------------------------------------------------------------------------------------

    def open(self, request: RequestId, opening: PageOpening) -> int:
        """A sequence of at most `max_tokens` tokens; returns the arrival number. Costs nothing.

        Raises:
            NeverFits: so many tokens are more than the pool, or the tenant's part of it. Nothing changed.
            NotAllowed: the sequence is open already. Nothing changed.
            LimitReached: the session has `MOST_OPEN` open. Nothing changed.
        """
        self.sequences.check_new(request)
        self.spending.check_fits(ceil_div(opening.max_tokens, self.pool.shape.block_size), opening.tenant)
        return self.sequences.add(request, opening).arrival

    def find(self, request: RequestId, token_ids: bytes, work: Work, *, most_tokens: int = sys.maxsize) -> PagesFound:
        """Begin with the longest known beginning of these tokens, which are the sequence's from now on.

        Whole blocks are taken as they are, and the first tokens of one more are copied with the next commit; at most
        `most_tokens` are taken, and the last token is left to be computed.

        Raises:
            NotAllowed: the sequence holds something, has no room for so many tokens, or the bytes are no ids. Nothing
                changed.
            LimitReached: the session would have told too many ids. Nothing changed.
            UnknownRequest: nothing changed.
        """
        sequence = self.sequences.find(request)
        check_empty(sequence)
        tokens = checked_count(token_ids)
        check_tokens(sequence, tokens)
        self.sequences.told.tell(sequence, token_ids, work)
        if not sequence.cache_root:
            return PagesFound((), 0)
        found = self.books.index.look_up(sequence.cache_root, token_ids)
        blocks, lent = _usable(found, self.pool.shape.block_size, min(tokens - 1, most_tokens))
        reused = [*blocks, *lent[:1]] if lent else blocks
        self.books.reuse(reused)
        self.books.tables.begin(sequence.table, blocks, lent)
        work.txn.doing("blocks found", 0, undo=lambda _: self.books.drop(sequence))
        reach(Failpoint.PAGES_FOUND)
        joined = sequence.table.frozen
        work.after.append(lambda: self.books.used(reused))
        work.after.append(lambda: self._found(sequence, tokens, joined))
        return PagesFound(blocks, joined)

    def drop(self, request: RequestId, work: Work, *, clean: bool) -> None:
        """Every block back; the sequence stays open. Not `clean`: its process may still write to its own ones.

        Raises:
            UnknownRequest: nothing changed.
        """
        sequence = self.sequences.find(request)
        work.after.append(lambda: self._dropped(sequence, clean=clean))

    def close(
        self, request: RequestId, work: Work, *, retain_tokens: int = 0, token_ids: bytes = b"", told_tokens: int = 0
    ) -> None:
        """The end: every block back, and the whole ones of the first `retain_tokens` tokens are found by others.

        `token_ids` follow the `told_tokens` that were told before.

        Raises:
            NotAllowed: it holds fewer tokens, not all of their ids are known, another number of them was told, these
                are none, or too many with them. Nothing changed.
            UnknownRequest: nothing changed.
        """
        sequence, all_ids = self.sequences.find(request), b""
        if retain_tokens:
            check_held(sequence, retain_tokens)
            all_ids = continued(sequence, told_tokens, token_ids, most_tokens=sequence.max_tokens)
            check_told(sequence, all_ids, retain_tokens)
        work.is_ended = True
        work.after.append(lambda: self._closed(sequence, retain_tokens, all_ids))

    # --- services.clients.Owner -------------------------------------------------------------------------------------

    @property
    def pressure(self) -> Pressure:
        return self.queue.pressure

    def drain_forgotten(self) -> Sequence[HandleId]:
        """Clients import nothing but the whole pool."""
        return ()

    def collect_expired(self) -> None:
        """Grants whose time is over return."""
        self.books.governor.collect_expired()

    def orphan(self, session: str) -> None:
        """The session's connection or lease ended: its grants return, and what only it could write is quarantined.

        What it shares with others stays as it is: its process may be in the middle of a step that reads it.
        """
        for sequence in self.sequences.of(session):
            self.books.pin(sequence)
            self.books.isolate(sequence)
            self._strike(sequence)
        self.queue.forget(session)
        self.books.governor.end(session)

    def surrendered(self, session: str) -> None:
        """Nothing: nobody goes on with what was in pages."""

    def process_gone(self, session: str) -> None:
        """Nothing of the session is used any more: what it had is free."""
        self.books.process_gone(session)

    def survived(self, session: str, size_bytes: int) -> None:
        """Its process has pages of an earlier incarnation mapped: other memory than this, and none of its bill."""

    def weigh(self, request: RequestId) -> None:
        """Its session's processes have all pages mapped, whatever the sequence has of them."""

    def mapped_bytes(self, session: str) -> int:
        """Nothing that a later incarnation would have to pay for: its pages are its own."""
        return 0

    def waits_for(self, session: str) -> bool:
        """Whether anything waits for the session's process to end."""
        return self.books.waits_for(session)

    def shrink(self) -> bool:
        """The pool is one piece of memory, all of it there from the beginning."""
        return False

    # --- steps ------------------------------------------------------------------------------------------------------

    def _found(self, sequence: SequenceTable, asked: int, joined: int) -> None:
        self.lookups += 1
        self.asked_tokens += asked
        self.found_tokens += joined
        self.queue.weigh(sequence)

    def _dropped(self, sequence: SequenceTable, *, clean: bool) -> None:
        if clean:
            self.books.drop(sequence)
            self.queue.pressure.eased(sequence.request.session)
        else:
            self.books.isolate(sequence)
            sequence.is_quarantined = True
        self.queue.weigh(sequence)

    def _closed(self, sequence: SequenceTable, retain_tokens: int, token_ids: bytes) -> None:
        self.sequences.told.put(sequence, token_ids)
        if retain_tokens and sequence.cache_root:
            self.books.list_written(sequence, retain_tokens)
            reach(Failpoint.PAGES_LISTED)
        self.books.drop(sequence)
        self._strike(sequence)

    def _strike(self, sequence: SequenceTable) -> None:
        self.books.governor.close(sequence.request)
        self.sequences.remove(sequence)


def _usable(found: FoundBlocks, size: int, most_tokens: int) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Whole blocks, and a block with how many of its tokens, that are at most so many tokens together."""
    tokens = min(len(found.blocks) * size + found.partial_tokens, most_tokens)
    whole, part = divmod(tokens, size)
    behind = (*found.blocks, *([found.partial] if found.partial is not None else []))
    return found.blocks[:whole], (behind[whole], part) if part else None
