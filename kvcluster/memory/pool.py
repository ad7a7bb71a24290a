"""Handles between two uses, and where new ones come from.

Creating costs far more than mapping (page allocation; on CUDA a driver call of tens of microseconds), so handles
that come back are kept, newest first, up to a bound, and some are created ahead. Taking is all or nothing: when the
third create fails, the earlier two are released newest first and the pooled ones are back in the pool.

No tenant reads what another wrote. What no other process ever had is scrubbed between two tenants. What another
process had is destroyed instead: it may have kept its mapping, and would go on reading and writing. The content of
new memory is undefined, so once a second tenant was here new handles are scrubbed too.

Physically: created = pooled + out + shared + quarantined, never more than the capacity: pooled handles make room, the
oldest first. One that the driver would not release is quarantined and reported once by `drain_lost`, for the ledger
to charge (`memory.living`). Called under the device's lock, by whoever commits and by whoever fills, so neither waits
for the other in here.
Source: "Virtual Memory for KV Cache", "an important implementation detail: commit is a transaction".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain

from kvcluster.driver.protocol import Driver
from kvcluster.errors import DriverError, InvariantBroken, LimitReached, Quarantined, Residue
from kvcluster.ids import HandleId
from kvcluster.memory.handle import Handle, HandleState, bytes_of
from kvcluster.memory.living import Living
from kvcluster.memory.stock import Stock
from kvcluster.transaction import Transaction

NONE_KNOWN: frozenset[HandleId] = frozenset()
MOST_AT_ONCE = 64  # handles released in one go: of 64 KiB each some 3 ms, most of it the kernel's freeing of pages


class HandlePool:
    """Handles of one granule or of `bulk_bytes`; at most `limit_bytes` of them stay pooled.

    Many that come back at once stay for longer: nobody who asks meanwhile waits until all of them are released.
    """

    def __init__(
        self, driver: Driver, *, granule_bytes: int, bulk_bytes: int, capacity_bytes: int, limit_bytes: int
    ) -> None:
        self._driver = driver
        self.granule_bytes = granule_bytes
        self.bulk_bytes = bulk_bytes
        self.capacity_bytes = capacity_bytes
        self.limit_bytes = limit_bytes
        self.created_ahead = 0  # handles that `fill` made
        self._stock = Stock()
        self._living = Living(driver)
        self._tenant: str | None = None  # the only one that was here so far
        self._is_mixed = False  # there was another

    # --- lending --------------------------------------------------------------------------------------------------

    def take(self, sizes: Sequence[int], *, tenant: str, known: AbstractSet[HandleId] = NONE_KNOWN) -> list[Handle]:
        """One handle for each size, in this order, OUT and the tenant's: pooled ones, and new ones for the rest.

        Those in `known` (a client's imports) come first, then the tenant's own (newest first, what another process had
        before the rest), then those of nobody, then other tenants', scrubbed. One that cannot be scrubbed is
        destroyed, and another is taken.

        Raises:
            ValueError: a size that is neither. Nothing changed.
            DriverError, LimitReached: a call failed and everything was undone. Nobody has more or less than before;
                pooled handles that were to make room are gone, and `drain_lost` has those that would not go.
            Quarantined: a call failed, and so did the release of a new handle, or the undo of its scrubbing: that one
                is quarantined.
            InvariantBroken: there is no room for it: more was granted than there is.
        """
        wanted = Counter(sizes)
        if not wanted.keys() <= {self.granule_bytes, self.bulk_bytes}:
            raise ValueError(f"handles are of {self.granule_bytes} or {self.bulk_bytes} bytes, not {sorted(wanted)}")
        self._meet(tenant)
        found = {size: self._stock.take(size, tenant, count, known) for size, count in wanted.items()}
        made: list[Handle] = []
        with Transaction() as txn:
            txn.doing("handles out of the pool", 0, undo=lambda _: self._restock(found))
            txn.doing("handles made", 0, undo=lambda _: self._unmake(made))
            for size, count in wanted.items():
                self._scrub_some(size, count - len(found[size]), tenant, found[size])
                self._make_some(size, count - len(found[size]), made)
            txn.keep()
        return self._lent(sizes, found, made, tenant)

    def give_back(self, handles: Sequence[Handle]) -> None:
        """Handles that nobody maps any more: pooled as far as the bound allows, else released. Never raises.

        At most `MOST_AT_ONCE` are released now, and the rest by later calls, or by `fill`. What is sealed can hold
        nothing new and is released.
        """
        usable = [handle for handle in handles if not handle.is_sealed]
        if len(usable) < len(handles):
            self.destroy([handle for handle in handles if handle.is_sealed])
        self._living.move(usable, HandleState.POOLED)
        self._stock.add(usable)
        self.shrink(self.limit_bytes)

    def share(self, handles: Sequence[Handle]) -> None:
        """Sealed handles that were out: a prefix has them now."""
        self._living.move(handles, HandleState.SHARED)

    def quarantine(self, handles: Sequence[Handle]) -> None:
        """Handles that may still be mapped. Their bytes are the ledger's business."""
        self._living.move(handles, HandleState.QUARANTINED)

    def keep(self, handles: Sequence[Handle]) -> None:
        """What was in quarantine is mapped by nobody any more, and is not to be used for anything else yet."""
        self._living.move(handles, HandleState.OUT)

    def destroy(self, handles: Sequence[Handle]) -> None:
        """Release handles to the driver that nobody maps any more and that are not pooled. Never raises."""
        for handle in handles:
            self._living.release(handle)

    # --- what is pooled -------------------------------------------------------------------------------------------

    def trim(self, limit_bytes: int) -> None:
        """Release pooled handles, oldest first, until at most `limit_bytes` are pooled. Never raises."""
        while self._stock.size_bytes > limit_bytes and (oldest := self._stock.oldest()):
            self._discard(oldest)

    def shrink(self, limit_bytes: int) -> bool:
        """The same, of at most `MOST_AT_ONCE`; True while more than `limit_bytes` are pooled."""
        for _ in range(MOST_AT_ONCE):
            oldest = self._stock.oldest() if self._stock.size_bytes > limit_bytes else None
            if oldest is None:
                return False
            self._discard(oldest)
        return self._stock.size_bytes > limit_bytes

    def fill(self, target_bytes: int, *, most: int = 4) -> bool:
        """Create at most `most` single granules ahead, or release some where too many are pooled; True: there is more.

        Until `target_bytes` are pooled (the caller's word: no more than is free and granted), within the pool's bound
        and the capacity. Nothing that exists makes room. A create that fails ends it for this time: whoever needs
        the memory meets the error itself. Never raises.
        """
        if self._stock.size_bytes > self.limit_bytes:
            return self.shrink(self.limit_bytes)
        for _ in range(most):
            if not self._may_fill(target_bytes) or not self._create_ahead():
                return False
        return self._may_fill(target_bytes)

    def resize(self, capacity_bytes: int) -> None:
        """Another capacity; pooled handles beyond it are released, the oldest first. Never raises.

        Those that would not go stay beyond it: the caller, who charges them, raises the capacity to what is claimed.
        """
        self.capacity_bytes = capacity_bytes
        while self.created_bytes > capacity_bytes and (oldest := self._stock.oldest()):
            self._discard(oldest)

    # --- figures --------------------------------------------------------------------------------------------------

    def drain_lost(self) -> dict[str, int]:
        """Bytes, by tenant, that could not be released since the last call. They are quarantined for good."""
        return self._living.drain_lost()

    def drain_forgotten(self) -> list[HandleId]:
        """Handles destroyed since the last call that other processes may have imported, and should forget."""
        return self._living.drain_forgotten()

    def bytes_in(self, state: HandleState) -> int:
        """Bytes of all handles in `state`."""
        return self._living.bytes_in(state)

    def counted_bytes(self, state: HandleState) -> int:
        """The same, one by one: equals `bytes_in`."""
        return self._living.counted_bytes(state)

    @property
    def pooled_bytes(self) -> int:
        """Bytes of the handles that `take` finds, one by one: equals `bytes_in(POOLED)`."""
        return sum(handle.size_bytes for handle in self._stock if handle.state is HandleState.POOLED)

    @property
    def created_bytes(self) -> int:
        """Bytes created and not released: what the driver should say that it holds."""
        return self._living.size_bytes

    # --- steps ----------------------------------------------------------------------------------------------------

    def _meet(self, tenant: str) -> None:
        self._is_mixed = self._is_mixed or self._tenant not in (None, tenant)
        self._tenant = tenant

    def _restock(self, found: Mapping[int, Sequence[Handle]]) -> None:
        """Back in the pool, in the order of before; the scrubbed ones among them are nobody's now."""
        self._stock.add(reversed(list(chain.from_iterable(found.values()))))

    def _scrub_some(self, size_bytes: int, count: int, tenant: str, found: list[Handle]) -> None:
        """Put at most `count` pooled handles of other tenants into `found`, emptied of what they wrote."""
        while count > 0 and (handle := self._stock.private_of_others(size_bytes, tenant)):
            try:
                self._driver.scrub(handle.physical)
            except DriverError:
                self._discard(handle)
            except Quarantined as failure:
                self._living.lose(handle, failure)
                self._stock.remove(handle)
            else:
                self._stock.remove(handle)
                handle.tenant = None
                found.append(handle)
                count -= 1

    def _make_some(self, size_bytes: int, count: int, made: list[Handle]) -> None:
        for _ in range(count):
            self._make_room(size_bytes)
            made.append(self._living.create(size_bytes, self._tenant))
            self._clean(made[-1])

    def _make_room(self, size_bytes: int) -> None:
        """Release pooled handles until a create of `size_bytes` does not pass the capacity.

        Raises:
            DriverError, Quarantined: something would not go, in this act, and there is no room beside it.
            InvariantBroken: more was promised than there is.
        """
        while self.created_bytes + size_bytes > self.capacity_bytes:
            oldest = self._stock.oldest()
            if oldest is None:
                sentence = f"no room for {size_bytes} bytes beside {self.created_bytes} of {self.capacity_bytes}"
                raise self._living.failure or InvariantBroken(sentence=sentence)
            self._discard(oldest)

    def _clean(self, handle: Handle) -> None:
        """New memory may hold what was in a destroyed handle: nothing to hide where there is one tenant.

        Raises:
            DriverError: it could not be scrubbed; it is as it was.
            Quarantined: and it is still mapped by the driver: lost.
        """
        if self._is_mixed:
            try:
                self._driver.scrub(handle.physical)
            except Quarantined as failure:
                self._living.lose(handle, failure)
                raise
            handle.tenant = None

    def _create_ahead(self) -> bool:
        try:
            handle = self._living.create(self.granule_bytes, self._tenant)
        except (DriverError, LimitReached):
            return False
        try:
            self._clean(handle)
        except DriverError:
            self._living.release(handle)
            return False
        except Quarantined:
            return False
        self._stock.add([handle])
        self.created_ahead += 1
        return True

    def _may_fill(self, target_bytes: int) -> bool:
        room_bytes = min(target_bytes, self.limit_bytes) - self._stock.size_bytes
        return self.granule_bytes <= min(room_bytes, self.capacity_bytes - self.created_bytes)

    def _unmake(self, made: list[Handle]) -> None:
        left = [handle for handle in reversed(made) if handle.state is HandleState.POOLED]  # but for what is lost
        failures = [failure for handle in left if (failure := self._living.release(handle))]
        if failures:
            size_bytes = bytes_of(handle for handle in made if handle.state is HandleState.QUARANTINED)
            what = f"{len(failures)} handles ({failures[0]})"
            raise Quarantined(residue=(Residue(what, size_bytes),)) from failures[0]

    def _discard(self, handle: Handle) -> None:
        """Destroy a pooled one. It is on the list for as long as it is pooled: whatever breaks off, the books sum."""
        self._living.release(handle)
        self._stock.remove(handle)

    def _lent(
        self, sizes: Sequence[int], found: Mapping[int, Sequence[Handle]], made: Sequence[Handle], tenant: str
    ) -> list[Handle]:
        """The handles, the tenant's now, in the order of the sizes: of each size those that were found come first."""
        at_hand = {
            size: chain(rows, [handle for handle in made if handle.size_bytes == size]) for size, rows in found.items()
        }
        lent = [next(at_hand[size]) for size in sizes]
        for handle in lent:
            handle.tenant = tenant
        self._living.move(lent, HandleState.OUT)
        return lent
