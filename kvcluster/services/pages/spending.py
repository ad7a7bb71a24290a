"""Budget and what it buys, as verbs of the clients of host pages: grant, give back, commit; as `services.spending`.

A grant holds bytes for blocks that a sequence lacks; a commit takes them, and copies what a copy is due of. Each plans
first, then does what can fail and notes each undo. Called under the lock of the host's service.
"""

from __future__ import annotations

from kvcluster.budget.ledger import account_of
from kvcluster.errors import InvariantBroken, NeverFits, OutOfBlocks
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import GrantId
from kvcluster.paged.block_pool import BlockPool
from kvcluster.paged.block_table import Growth
from kvcluster.paged.counts import number_of
from kvcluster.services.granting import Granting
from kvcluster.services.pages.books import PageBooks
from kvcluster.services.pages.open_sequences import OpenSequences, check_tokens
from kvcluster.services.pages.sequence_table import SequenceTable
from kvcluster.services.queue import Queue
from kvcluster.services.work import Work


class PageSpending:
    """Of one pool."""

    def __init__(self, pool: BlockPool, books: PageBooks, queue: Queue, sequences: OpenSequences) -> None:
        self._pool = pool
        self._books = books
        self._queue = queue
        self._granting = Granting(books.governor, queue, sequences)
        self._sequences = sequences

    def check_fits(self, blocks: int, tenant: str) -> None:
        """Raises NeverFits: so many are more than the pool, or the tenant's part of it.

        What is in quarantine comes back when a process ends, so that to wait for it helps: it counts as there.
        """
        settings, size_bytes = self._books.settings, blocks * self._books.block_bytes
        most_bytes = settings.quotas.most_bytes(
            tenant, self._books.ledger.capacity_bytes, gone_bytes=0, gone_of=lambda _: 0
        )
        if size_bytes > most_bytes:
            raise NeverFits(need=size_bytes, capacity=most_bytes)

    def grant(self, identity: GrantId, tokens: int, work: Work) -> None:
        """Hold what the sequence lacks for its first `tokens` tokens; what is retained goes, as far as that helps.

        Raises:
            OutOfBudget: too little is free; one that holds nothing yet is remembered as waiting, and others are asked
                to give back. Nothing else changed.
            NeverFits: it is more than the pool, or the tenant's part of it. Nothing changed.
            NotAllowed, UnknownRequest: nothing changed.
        """
        sequence = self._sequences.find(identity.request)
        check_tokens(sequence, tokens)
        missing = self._books.tables.missing(sequence.table, tokens)
        self.check_fits(len(sequence.own) + missing, sequence.tenant)
        self._granting.ask(identity, sequence, missing * self._books.block_bytes, work)

    def give_back(self, identity: GrantId) -> None:
        """Return a held grant. Raises GrantRefused where it is not held; nothing changed."""
        self._sequences.find(identity.request)
        self._books.governor.give_back(identity)

    def commit(self, identity: GrantId, tokens: int, work: Work) -> Growth:
        """Blocks for the first `tokens` tokens, paid by the grant, those that are to be written its own.

        What a copy is due of is copied here.

        Raises:
            GrantRefused, NotAllowed, UnknownRequest: nothing changed.
        """
        sequence, governor = self._sequences.find(identity.request), self._books.governor
        governor.check(identity, 0)
        check_tokens(sequence, tokens)
        size_bytes = self._books.tables.missing(sequence.table, tokens) * self._books.block_bytes
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

    def _grown(self, sequence: SequenceTable, tokens: int, work: Work) -> Growth:
        tables = self._books.tables
        try:
            growth = tables.grow(sequence.table, tokens)
        except OutOfBlocks as error:
            raise InvariantBroken(sentence=f"blocks were granted, and yet {error}") from error
        work.txn.doing("blocks taken", 0, undo=lambda _: tables.undo(sequence.table, growth))
        for copy in growth.copies:
            self._pool.store.copy_tokens(number_of(copy.source), number_of(copy.target), copy.tokens)
        reach(Failpoint.PAGES_GROWN)
        return growth

    def _committed(self, sequence: SequenceTable, tokens: int, growth: Growth) -> None:
        self._books.tables.settle(growth)
        self._books.settle([copy.source for copy in growth.copies])
        kept = self._books.tables.written_into(sequence.table, tokens)
        if kept is not None and sequence.table.blocks[kept] not in sequence.own:  # the last of a fork's to write
            self._books.own_again(sequence, sequence.table.blocks[kept])
        self._queue.weigh(sequence)
