"""Shared prefixes as verbs: publish, seal, join, leave.

    publish   a plan: which windows will be the prefix's. They are still the publisher's, who unmaps them
    seal      nobody can write them any more; from now on they are the prefix's, and its publisher uses it
    join      another request maps the same handles, for reading; it pays nothing
    leave     one user less; memory goes when nobody uses it, unless it is kept until somebody needs the room

A driver call that fails in a seal is told in the result, because something has changed by then: see `Sealing`. What an
ended request leaves for others is in `services.retaining`.
Called under the device service's lock, for a reservation that its caller has looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcluster.errors import KvClusterError, NotAllowed, NotShareable
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.residency import Keeps
from kvcluster.geometry.shareability import Refusal
from kvcluster.memory.handle import Handle
from kvcluster.memory.reservation import Reservation, ReservationState, Use
from kvcluster.memory.shared_prefix import Extent, Part, PrefixState, SharedPrefix, no_such_prefix
from kvcluster.services.books import Books
from kvcluster.services.joinable import check_shareable, joinable, lies_inside, shared_groups
from kvcluster.services.listing import end_claim, list_prefix, listed_alike
from kvcluster.services.queue import Queue
from kvcluster.services.work import Work


@dataclass(frozen=True, slots=True)
class Sealing:
    """What a seal came to. With a `refusal` the prefix is DRAINED and its windows are the request's, as before."""

    prefix: SharedPrefix
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Joining:
    """The windows to map, and how many tokens are there already."""

    prefix: SharedPrefix
    part: Part
    tokens: int


class Sharing:
    """The prefixes of one device, as its requests see them."""

    def __init__(self, books: Books, queue: Queue) -> None:
        self._books = books
        self._queue = queue
        self._prefixes = books.prefixes

    # --- verbs ----------------------------------------------------------------------------------------------------

    def publish(self, reservation: Reservation, tokens: int, work: Work) -> SharedPrefix:
        """Plan a prefix of the request's first `tokens` tokens, on top of what it shares already.

        Raises:
            NotShareable: no whole granule beyond that lies inside, a bulk handle reaches across its end, the same
                tokens are shared already and can be found, or its memory is of an earlier incarnation of the device.
            NotAllowed: windows of it are not committed (snapshots among them), it is quarantined, or it has a
                prefix that is not sealed yet. Nothing changed.
        """
        if reservation.is_foreign:
            reason = f"request {reservation.request} has memory of the device as it was before its last restart"
            raise NotShareable(kind=Refusal.FOREIGN, reason=reason)
        extent = self._extent(reservation, tokens)
        self._check_new(reservation, extent)
        parent = reservation.uses[-1].prefix if reservation.uses else None
        prefix = self.plan(reservation, extent, parent)
        reservation.writing = prefix
        work.txn.doing("prefix planned", 0, undo=lambda _: self.give_up(reservation))
        work.naming(prefix.runs)
        work.handed += reservation.own.backing(prefix.runs)  # its publisher holds on to them while it has them unmapped
        reach(Failpoint.DEVICE_PUBLISHED)
        return prefix

    def seal(self, reservation: Reservation, number: int, work: Work) -> Sealing:
        """The planned windows are unmapped: seal them, and hand them over again, whatever came of it.

        A driver call that fails leaves the windows to the request and ends the prefix: see `Sealing`. Those handles
        that were sealed by then are never pooled. It cannot be undone, so it stands alone in its group.

        Raises:
            NotAllowed: the request has no such prefix to seal. Nothing changed.
        """
        prefix = reservation.writing
        if prefix is None or prefix.number != number:
            raise NotAllowed(reason=f"request {reservation.request} has no prefix {number} to seal")
        work.naming(prefix.runs)
        handles = reservation.own.backing(prefix.runs)
        work.handed += handles
        try:
            self._seal(handles)
            reach(Failpoint.DEVICE_SEALED)
        except KvClusterError as failure:
            self.give_up(reservation)
            return Sealing(prefix, str(failure))
        self._sealed(reservation, prefix)
        return Sealing(prefix)

    def join(self, reservation: Reservation, number: int, tokens: int, work: Work) -> Joining:
        """Use a sealed prefix, as far as whole handles of it lie inside the request's first `tokens` tokens.

        A prefix that was kept of an ended request is sealed by its first join.

        Raises:
            NotShareable: there is no such prefix for this tenant and shape; nothing of it lies inside; with sliding
                windows, its boundary does not; or it could not be sealed. Nothing changed.
            NotAllowed: the request holds or uses something, or has no room for so many tokens. Nothing changed.
        """
        self._check_empty(reservation, tokens)
        prefix = self._prefixes.find(number, reservation.tenant)
        if shared_groups(prefix.shape) != shared_groups(reservation.range_map.shape):
            raise no_such_prefix(number)
        part = prefix.part(joinable(prefix, tokens))
        work.naming(part.runs)
        self._seal_retained(prefix)
        reservation.use(prefix, part.windows)
        self._books.use(prefix, reservation.request)
        work.txn.doing("prefix joined", 0, undo=lambda _: self._unjoin(reservation))
        work.after.append(lambda: self._queue.weigh(reservation))
        work.handed += part.handles
        reach(Failpoint.DEVICE_JOINED)
        return Joining(prefix, part, prefix.shape.reusable_tokens(part.windows, min(tokens, prefix.extent.tokens)))

    def leave(self, reservation: Reservation, number: int, work: Work, *, unmapped: bool) -> None:
        """The request uses its newest prefix no longer; where that is not sealed yet, the plan is given up.

        Not `unmapped`: its process may still have it mapped, so that it lives until that is gone, and the request takes
        no more commits.

        Raises:
            NotAllowed: it is not the newest prefix that the request uses. Nothing changed.
        """
        if reservation.writing is not None and reservation.writing.number == number:
            work.after.append(lambda: self.give_up(reservation))
            return
        if not reservation.uses or reservation.uses[-1].prefix.number != number:
            raise NotAllowed(reason=f"request {reservation.request} does not use prefix {number}, or a newer one too")
        use = reservation.part()
        work.txn.doing("prefix left", 0, undo=lambda _: reservation.use(use.prefix, use.windows))
        work.released += use.prefix.part(use.windows).handles
        if unmapped:
            work.left.append(use)
        work.after.append(lambda: self._part(reservation, use, work, unmapped=unmapped))

    # --- the end of a request -------------------------------------------------------------------------------------

    def give_up(self, reservation: Reservation) -> None:
        """The prefix that the request was about to seal is not to be."""
        prefix, reservation.writing = reservation.writing, None
        if prefix is not None:
            self.forget(prefix)

    def pin(self, reservation: Reservation) -> None:
        """The request ends without leaving its prefixes: its process may have them mapped until it is gone."""
        self.give_up(reservation)
        while reservation.uses:
            prefix = reservation.part().prefix
            self._books.booked(self._prefixes.pin(prefix, reservation.request.session))
            self._books.booked(self._prefixes.part(prefix, reservation.request))

    # --- plans ----------------------------------------------------------------------------------------------------

    def plan(self, reservation: Reservation, extent: Extent, parent: SharedPrefix | None) -> SharedPrefix:
        """A prefix that is the request's until it is sealed, or kept; on top of `parent`."""
        prefix = self._prefixes.plan(reservation.tenant, reservation.range_map.shape, extent, parent)
        prefix.owner = reservation.request
        if parent is not None:
            self._books.booked(self._prefixes.settle(parent))
        return prefix

    def forget(self, prefix: SharedPrefix) -> None:
        """A plan that is not carried out."""
        self._books.strike(prefix)
        self._books.drain_finished(prefix.parent)

    # --- steps of the verbs ---------------------------------------------------------------------------------------

    def _extent(self, reservation: Reservation, tokens: int) -> Extent:
        shape, base = reservation.range_map.shape, reservation.shared
        reservation.missing(tokens)  # refuses what is too long, or quarantined
        if reservation.writing is not None:
            raise NotAllowed(reason=f"prefix {reservation.writing.number} is not sealed yet: seal it or leave it first")
        check_shareable(shape, tokens)
        windows = shape.shared_windows(tokens)
        base = tuple(0 if g.keeps is Keeps.SNAPSHOT else n for g, n in zip(shape.groups, base, strict=True))
        if windows == base or any(new < old for new, old in zip(windows, base, strict=True)):
            raise NotShareable(
                kind=Refusal.SMALLER_THAN_A_GRANULE,
                reason=f"no whole granule of {tokens} tokens lies beyond the prefix that the request uses already",
            )
        if not reservation.own.holds(tuple(shape.runs(base, windows))):
            raise NotAllowed(reason=f"not all windows of {tokens} tokens and their snapshots are committed")
        if reservation.own.contiguous(base, windows) != windows:
            raise NotShareable(
                kind=Refusal.SMALLER_THAN_A_GRANULE,
                reason=f"a bulk handle reaches across the end of {tokens} tokens: open with so many shareable tokens",
            )
        return Extent(tokens, windows, base)

    def _check_new(self, reservation: Reservation, extent: Extent) -> None:
        if (number := listed_alike(self._books, reservation, extent)) is not None:
            reason = f"prefix {number} has the same {extent.tokens} tokens: join that"
            raise NotShareable(kind=Refusal.ALREADY_SHARED, reason=reason)

    def _seal(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._books.driver.seal(handle.physical)
            handle.is_sealed = True

    def _sealed(self, reservation: Reservation, prefix: SharedPrefix) -> None:
        reservation.writing = None
        self._books.hand_to_prefix(reservation, prefix)
        self._books.pool.share(prefix.handles)
        prefix.move(PrefixState.SEALED)
        list_prefix(self._books, reservation, prefix)
        reservation.use(prefix, prefix.extent.windows)
        self._books.use(prefix, reservation.request)
        self._queue.weigh(reservation)

    def _check_empty(self, reservation: Reservation, tokens: int) -> None:
        if reservation.state is not ReservationState.RESERVED:
            raise NotAllowed(reason=f"request {reservation.request} joins before it holds or uses anything")
        reservation.missing(tokens)  # refuses what is too long

    def _seal_retained(self, prefix: SharedPrefix) -> None:
        """Raises NotShareable: stays as it is, but for what was sealed by then; the next join tries again."""
        for link in prefix.chain():
            if link.state is PrefixState.WRITING:
                try:
                    self._seal(link.handles)
                except KvClusterError as failure:
                    reason = f"prefix {prefix.number} could not be sealed: {failure}"
                    raise NotShareable(kind=Refusal.NOT_SEALED, reason=reason) from failure
                self._books.pool.share(link.handles)
                link.move(PrefixState.SEALED)

    def _unjoin(self, reservation: Reservation) -> None:
        prefix = reservation.part().prefix
        self._books.booked(self._prefixes.part(prefix, reservation.request))
        self._books.drain_finished(prefix)

    def _part(self, reservation: Reservation, use: Use, work: Work, *, unmapped: bool) -> None:
        prefix, request = use.prefix, reservation.request
        if unmapped:
            self._queue.pressure.eased(request.session)
        else:
            self._books.booked(self._prefixes.pin(prefix, request.session))
            reservation.quarantine()
        if work.retain_tokens and lies_inside(use, prefix.shape.shared_windows(work.retain_tokens)):
            prefix.is_kept = True
        self._books.booked(self._prefixes.part(prefix, request))
        reach(Failpoint.DEVICE_LEFT)
        self._books.drain_finished(prefix)
        end_claim(self._books, reservation)
        self._queue.weigh(reservation)
