"""Whether the books of host pages are true: each figure is counted twice, in two ways, and both must agree.

blocks            the pool's own counts: free or had, never both
references        what all tables name, against the pool's counts
accounts          sum to the capacity; each request's own blocks, what is shared, retained and quarantined
free              free and granted bytes, against the free blocks
index             every block of it is resident, and the other way round
"""

from __future__ import annotations

from collections import Counter

from kvcluster.budget.ledger import FREE, RETAINED, account_of
from kvcluster.errors import InvariantBroken
from kvcluster.services.pages.memory import PageMemory


def audit_pages(memory: PageMemory) -> None:
    """Count everything; changes nothing.

    Raises:
        InvariantBroken: two figures differ; the sentence has both.
    """
    books, counts, size = memory.books, memory.pool.counts, memory.books.block_bytes
    counts.check_invariants()
    books.ledger.check()
    named = Counter(block for sequence in memory.sequences for block in sequence.table.blocks)
    for block, times in named.items():
        _same(f"references of block {block}", times, counts.references(block))
    _same("references in all", named.total(), counts.references_in_all)
    for sequence in memory.sequences:
        held = books.ledger.balance(account_of(sequence.request, sequence.tenant))
        _same(f"bytes of {sequence.request}", sequence.held_bytes, held)
        if not sequence.own <= {*sequence.table.blocks} or any(named[block] != 1 for block in sequence.own):
            raise InvariantBroken(sentence=f"request {sequence.request} pays for blocks that are not its own")
    told = Counter[str]()
    for sequence in memory.sequences:
        told[sequence.request.session] += len(sequence.token_ids)
    for session in told:
        _same(f"bytes of ids told by session {session}", told[session], memory.sequences.told.bytes_of(session))
    idle = sum(1 for block in books.tenants if counts.is_idle(block))
    _same("retained bytes", idle * size, books.ledger.total(RETAINED))
    _same("shared bytes", (len(books.tenants) - idle) * size, books.ledger.total("prefix"))
    _same("quarantined bytes", sum(books.quarantined_by_tenant().values()), books.ledger.total("quarantine"))
    _same("free bytes", counts.free * size, books.ledger.balance(FREE) + books.ledger.total("granted"))
    _same("listed blocks", len(books.index), counts.resident)


def _same(what: str, counted: int, booked: int) -> None:
    if counted != booked:
        raise InvariantBroken(sentence=f"{what}: counted {counted} and booked {booked}")
