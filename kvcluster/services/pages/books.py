"""Whose blocks are whose: counts, ledger, index and retention of one pool of host pages, and each way a block goes.

    free -> granted -> a request's own -> shared by several, or found by others -> retained, when nobody uses it -> free

What a sequence may write is its own. A block that is shared stands in the account `prefix` of its tenant while anybody
uses it, and in `retained` while only the index knows it; the last of a fork's to write into its block has that as its
own again. A block that a client may still write to, though it gave it back or is gone, is in quarantine until its
process has ended, or says that it has nothing mapped; what it only read stays shared for as long, and is not evicted.
Each change of counts is one posting, so that free + granted is at all times what the pool has free.

Whoever has a listed block in its table has all that come before it (`index.block_index`): so what nobody uses is
followed by nothing that somebody does, and of what is retained all can be evicted, the last of a chain first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from kvcluster.budget.eviction import Evictable, Guard
from kvcluster.budget.governor import Governor
from kvcluster.budget.ledger import FREE, RETAINED, Account, Ledger, account_of
from kvcluster.failpoints import Failpoint, reach
from kvcluster.index.block_index import BlockIndex
from kvcluster.index.token_chain import ID_BYTES
from kvcluster.paged.block_table import BlockTables
from kvcluster.paged.counts import BlockCounts
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.pages.retained import RetainedBlocks
from kvcluster.services.pages.sequence_table import SequenceTable

PAGES = "pages"


class PageBooks:
    """Of one pool. Also the governor's evictor."""

    def __init__(
        self, counts: BlockCounts, block_tokens: int, settings: MemorySettings, *, clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.counts = counts
        self.block_bytes = settings.granule_bytes
        self.tables = BlockTables(counts, block_tokens)
        self.index = BlockIndex(block_tokens)
        self.ledger = Ledger(settings.capacity_bytes)
        self.guard = Guard(self.ledger, settings.quotas)
        self.governor = Governor(self.ledger, clock=clock, limits=settings.limits, quotas=settings.quotas, evictor=self)
        self.evictions = 0
        self.tenants: dict[int, str] = {}  # of blocks that are shared, or were
        self.retained = RetainedBlocks(settings.quotas.by_tenant)
        self._quarantine: dict[str, list[tuple[int, str]]] = {}  # blocks and their tenants, by session
        self._pinned: dict[str, dict[int, None]] = {}  # pinned blocks that a session may still read

    # --- ways ------------------------------------------------------------------------------------------------------

    def share(self, sequence: SequenceTable, blocks: Iterable[int]) -> None:
        """These of its blocks are others' too from now on, or may be."""
        mine = sequence.own.intersection(blocks)
        sequence.own -= mine
        self.tenants.update(dict.fromkeys(mine, sequence.tenant))
        self._post(len(mine), account_of(sequence.request, sequence.tenant), _shared(sequence.tenant))

    def reuse(self, blocks: Sequence[int]) -> None:
        """Somebody is to use these, which the index found: those that were idle are no longer.

        Until he is known to (`used`) it teaches nothing of what they are worth.
        """
        for tenant, part in self._by_tenant(blocks):
            self._post(len(self.counts.idle_among(part)), _retained(tenant), _shared(tenant))
            self.retained.held(tenant, self.index.contents(part))

    def used(self, blocks: Sequence[int]) -> None:
        """Somebody uses these, which the index found."""
        for tenant, part in self._by_tenant(blocks):
            self.retained.used(tenant, self.index.contents(part))

    def left(self, sequence: SequenceTable, blocks: Sequence[int]) -> None:
        """Its table names these no longer: what nobody has is free, what only the index knows is retained."""
        mine = sequence.own.intersection(blocks)
        sequence.own -= mine
        self._post(len(mine), account_of(sequence.request, sequence.tenant), FREE)
        self.governor.freed(len(mine) * self.block_bytes)
        self.settle([block for block in blocks if block not in mine])

    def settle(self, blocks: Sequence[int]) -> None:
        """Look again who has these, which are shared; children of others come behind them."""
        for tenant, part in self._by_tenant(blocks):
            idle = self.counts.idle_among(part)
            self._post(len(idle), _shared(tenant), _retained(tenant))
            self.retained.idle(tenant, self.index.contents(idle))
            gone = [block for block in part if not self.counts.is_had(block)] if len(idle) < len(part) else []
            for block in gone:
                del self.tenants[block]
            self._post(len(gone), _shared(tenant), FREE)
            self.governor.freed(len(gone) * self.block_bytes)

    def own_again(self, sequence: SequenceTable, block: int) -> None:
        """It has this block alone, of those that it shared, and is to write it."""
        tenant = self.tenants.pop(block)
        self._post(1, _shared(tenant), account_of(sequence.request, sequence.tenant))
        sequence.own.add(block)

    def list_written(self, sequence: SequenceTable, tokens: int) -> None:
        """Whoever has the same tokens finds the whole blocks of its first `tokens` ones from now on.

        They are written no more. A block that is found already for the same tokens is free, if only the index had it.
        """
        whole = tokens // self.tables.block_size
        blocks = sequence.table.blocks[:whole]
        self.share(sequence, blocks)
        sequence.table.frozen = max(sequence.table.frozen, whole * self.tables.block_size)
        token_ids = sequence.token_ids[: whole * self.tables.block_size * ID_BYTES]
        listing = self.index.insert(sequence.cache_root, token_ids, blocks, gives_way=self.counts.is_idle)
        for block in listing.gone:
            self._free_retained(block, sequence.tenant)
        for block in listing.new:
            self.counts.reside(block)
        self.retained.used(sequence.tenant, self.index.contents(listing.new))

    # --- quarantine ------------------------------------------------------------------------------------------------

    def pin(self, sequence: SequenceTable) -> None:
        """The session is over, and its process may still read what the sequence shares with others."""
        pinned = self._pinned.get(sequence.request.session, {})
        shared = [b for b in self._all_blocks(sequence) if b not in sequence.own and b not in pinned]
        for block in shared:
            self.counts.pin(block)
        if shared:
            self._pinned[sequence.request.session] = pinned | dict.fromkeys(shared)

    def isolate(self, sequence: SequenceTable) -> None:
        """Its own blocks may still be written by its process: charged, and nobody's, until that is gone."""
        own, rest = [b for b in sequence.table.blocks if b in sequence.own], self._all_blocks(sequence)
        for block in own:
            self.counts.pin(block)
        self.tables.drop(sequence.table)
        self._post(len(own), account_of(sequence.request, sequence.tenant), Account.quarantine(sequence.tenant))
        sequence.own -= set(own)
        if own:
            held = self._quarantine.setdefault(sequence.request.session, [])
            held += [(block, sequence.tenant) for block in own]
        self.settle([block for block in rest if block not in own])

    def process_gone(self, session: str) -> None:
        """What was isolated because of this process is free, and what it may have read is others' alone."""
        for block, tenant in self._quarantine.pop(session, []):
            self.counts.unpin(block)
            self._post(1, Account.quarantine(tenant), FREE)
            self.governor.freed(self.block_bytes)
        pinned = list(self._pinned.pop(session, ()))
        for block in pinned:
            self.counts.unpin(block)
        self.settle(pinned)

    def waits_for(self, session: str) -> bool:
        """Whether anything waits for this session's process to end."""
        return session in self._quarantine or session in self._pinned

    def quarantined_by_session(self) -> dict[str, int]:
        """Bytes that wait for the process of each session to end."""
        return {session: len(held) * self.block_bytes for session, held in self._quarantine.items()}

    def quarantined_by_tenant(self) -> dict[str, int]:
        """Bytes of each tenant."""
        found: dict[str, int] = {}
        for held in self._quarantine.values():
            for _, tenant in held:
                found[tenant] = found.get(tenant, 0) + self.block_bytes
        return found

    def drop(self, sequence: SequenceTable) -> None:
        """Its table names nothing any more."""
        blocks = self._all_blocks(sequence)
        self.tables.drop(sequence.table)
        self.left(sequence, blocks)

    def _all_blocks(self, sequence: SequenceTable) -> list[int]:
        """Of its table, and the one that it begins its next with."""
        lent = sequence.table.lends
        return [*sequence.table.blocks, *([lent[0]] if lent and lent[0] not in sequence.table.blocks else [])]

    # --- budget.governor.Evictor -----------------------------------------------------------------------------------

    def evictable_bytes(self, tenant: str) -> Evictable:
        return self.guard.evictable_bytes(tenant)

    def evict(self, tenant: str, *, own_bytes: int, others_bytes: int) -> None:
        """Free at least so much of each: leaves first, and what is guarded for others never.

        Of others', what no quota names goes before what a quota was given for.
        """
        self._evict_of(tenant, own_bytes)
        others_bytes -= self._evict_unnamed(others_bytes)
        for named in self.guard.named():
            if named != tenant:
                others_bytes -= self._evict_of(named, min(others_bytes, self.guard.unguarded_bytes(named)))

    def evict_all(self) -> None:
        """Everything that only the index knows."""
        for tenant in self.retained.tenants:
            self._evict_of(tenant, self.ledger.capacity_bytes)

    def _evict_unnamed(self, size_bytes: int) -> int:
        """Free at least so much of tenants that no quota names, if they have it; returns how much it was."""
        freed_bytes = 0
        while freed_bytes < size_bytes and (tenant := self.retained.first_unnamed()) is not None:
            freed_bytes += self._evict_next(tenant, size_bytes - freed_bytes)
        return freed_bytes

    def _evict_of(self, tenant: str, size_bytes: int) -> int:
        """The same of one tenant's."""
        freed_bytes = 0
        while freed_bytes < size_bytes and (more_bytes := self._evict_next(tenant, size_bytes - freed_bytes)):
            freed_bytes += more_bytes
        return freed_bytes

    def _evict_next(self, tenant: str, size_bytes: int) -> int:
        """The next of the tenant's to go goes, or as much of what builds on it as is wanted."""
        freed_bytes, content = 0, self.retained.next_of(tenant)
        if content is not None:
            reach(Failpoint.PAGES_EVICTING)
            for block in self.index.going(self.index.block_of(content)):
                self._forget(block, tenant)
                freed_bytes += self.block_bytes
                if freed_bytes >= size_bytes:
                    break
        return freed_bytes

    def _forget(self, block: int, tenant: str) -> None:
        self.evictions += 1
        content = self.index.content(block)
        self.index.remove(block)
        self.retained.gone(tenant, content)
        self._free_retained(block, tenant)

    def _free_retained(self, block: int, tenant: str) -> None:
        """No index knows it any more, and nobody else did."""
        self.counts.vacate(block)
        del self.tenants[block]
        self._post(1, _retained(tenant), FREE)
        self.governor.freed(self.block_bytes)

    def _by_tenant(self, blocks: Sequence[int]) -> list[tuple[str, list[int]]]:
        """Neighbours of one tenant together."""
        return [(tenant, list(part)) for tenant, part in groupby(blocks, self.tenants.__getitem__)]

    def _post(self, blocks: int, debit: Account, credit: Account) -> None:
        self.ledger.post(blocks * self.block_bytes, debit=debit, credit=credit)


def _shared(tenant: str) -> Account:
    return Account("prefix", PAGES, tenant)


def _retained(tenant: str) -> Account:
    return Account(RETAINED, PAGES, tenant)
