"""Host pages as verbs of their clients: open, find, grant, commit, drop, close, and their end; more in `branching`.

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

from kvcluster.budget.ledger import account_of
from kvcluster.errors import InvariantBroken, NeverFits, OutOfBlocks, OutOfBudget
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import GrantId, HandleId, RequestId
from kvcluster.index.block_index import FoundBlocks
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.block_table import Growth
from kvcluster.paged.counts import number_of
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
        self._check_fits(ceil_div(opening.max_tokens, self.pool.shape.block_size), opening.tenant)
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

    def grant(self, identity: GrantId, tokens: int, work: Work) -> None:
        """Hold what the sequence lacks for its first `tokens` tokens; what is retained goes, as far as that helps.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting, and others are asked
                to give back. Nothing else changed.
            NeverFits: it is more than the pool, or the tenant's part of it. Nothing changed.
            NotAllowed, UnknownRequest: nothing changed.
        """
        sequence = self.sequences.find(identity.request)
        check_tokens(sequence, tokens)
        missing = self.books.tables.missing(sequence.table, tokens)
        self._check_fits(len(sequence.own) + missing, sequence.tenant)
        try:
            self.books.governor.ask(
                identity,
                missing * self.books.block_bytes,
                tenant=sequence.tenant,
                headroom=self.queue.headroom(sequence),
                oldest_arrival=self.queue.oldest(),
            )
        except OutOfBudget as refusal:
            self.queue.refused(sequence, refusal, self.sequences)
            raise
        work.txn.doing(f"grant {identity.number}", 0, undo=lambda _: self.books.governor.forget(identity))
        work.after.append(lambda: self.queue.served(sequence))

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant. Raises GrantRefused where it is not held; nothing changed."""
        self.sequences.find(identity.request)
        self.books.governor.give_back(identity)

    def commit(self, identity: GrantId, tokens: int, work: Work) -> Growth:
        """Blocks for the first `tokens` tokens, paid by the grant, those that are to be written its own.

        What a copy is due of is copied here.

        Raises:
            GrantRefused, NotAllowed, UnknownRequest: nothing changed.
        """
        sequence, governor = self.sequences.find(identity.request), self.books.governor
        governor.check(identity, 0)
        check_tokens(sequence, tokens)
        size_bytes = self.books.tables.missing(sequence.table, tokens) * self.books.block_bytes
        governor.check(identity, size_bytes)
        growth = self._grown(sequence, tokens, work)
        account = account_of(sequence.request, sequence.tenant)
        governor.spend(identity, size_bytes, account=account)
        work.txn.doing("bytes charged", 0, undo=lambda _: governor.unspend(identity, size_bytes, account=account))
        sequence.own.update(growth.taken)
        work.txn.doing("blocks given", 0, undo=lambda _: sequence.own.difference_update(growth.taken))
        reach(Failpoint.PAGES_CHARGED)
        work.after.append(lambda: self._committed(sequence, tokens, growth))
        return growth

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
            self.books.haunt(sequence)
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

    def is_haunted_by(self, session: str) -> bool:
        """Whether anything waits for the session's process to end."""
        return self.books.is_haunted_by(session)

    def shrink(self) -> bool:
        """The pool is one piece of memory, all of it there from the beginning."""
        return False

    # --- steps ------------------------------------------------------------------------------------------------------

    def _grown(self, sequence: SequenceTable, tokens: int, work: Work) -> Growth:
        tables = self.books.tables
        try:
            growth = tables.grow(sequence.table, tokens)
        except OutOfBlocks as error:
            raise InvariantBroken(sentence=f"blocks were granted, and yet {error}") from error
        work.txn.doing("blocks taken", 0, undo=lambda _: tables.undo(sequence.table, growth))
        for copy in growth.copies:
            self.pool.store.copy_tokens(number_of(copy.source), number_of(copy.target), copy.tokens)
        reach(Failpoint.PAGES_GROWN)
        return growth

    def _committed(self, sequence: SequenceTable, tokens: int, growth: Growth) -> None:
        self.books.tables.settle(growth)
        self.books.settle([copy.source for copy in growth.copies])
        kept = self.books.tables.written_into(sequence.table, tokens)
        if kept is not None and sequence.table.blocks[kept] not in sequence.own:  # the last of a fork's to write
            self.books.own_again(sequence, sequence.table.blocks[kept])
        self.queue.weigh(sequence)

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

    def _check_fits(self, blocks: int, tenant: str) -> None:
        """What is in quarantine comes back when a process ends, so that to wait for it helps: it counts as there."""
        settings, size_bytes = self.books.settings, blocks * self.books.block_bytes
        most_bytes = settings.quotas.most_bytes(
            tenant, self.books.ledger.capacity_bytes, gone_bytes=0, gone_of=lambda _: 0
        )
        if size_bytes > most_bytes:
            raise NeverFits(need=size_bytes, capacity=most_bytes)


def _usable(found: FoundBlocks, size: int, most_tokens: int) -> tuple[tuple[int, ...], tuple[int, int] | None]:
    """Whole blocks, and a block with how many of its tokens, that are at most so many tokens together."""
    tokens = min(len(found.blocks) * size + found.partial_tokens, most_tokens)
    whole, part = divmod(tokens, size)
    behind = (*found.blocks, *([found.partial] if found.partial is not None else []))
    return found.blocks[:whole], (behind[whole], part) if part else None
