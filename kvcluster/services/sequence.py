"""The memory of one request, in the process that computes: an address that never moves, and what backs it.

This is what a user holds. It has the verbs one at a time (`grant`, `commit`, `publish`, `join`, `leave`, `trim`,
`release`, `close`); an engine that serves many requests sends them together through `services.port.DevicePort.submit`.
What is mapped, and whose it is, is kept in `services.holdings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from kvcluster.driver.gate import operation
from kvcluster.driver.protocol import Fence
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import packed
from kvcluster.mapping.address_range import AddressRange
from kvcluster.services.asks import Ask, Find, Join, Leave, ReturnGrant, Spend, Trim
from kvcluster.services.holdings import Holdings
from kvcluster.services.memory_state import MEMORY_MOVES, MemoryState
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence_spec import Grant as Grant
from kvcluster.services.sequence_spec import SequenceSpec as SequenceSpec
from kvcluster.services.told import Told
from kvcluster.states import moved

if TYPE_CHECKING:
    import torch

    from kvcluster.services.port import DevicePort
    from kvcluster.tensors.views import KvViews


class SequenceMemory:
    """One request's memory. Made by `DevicePort.memory` or `LocalDevice.open`; used by one thread at a time."""

    def __init__(self, port: DevicePort, request: RequestId, spec: SequenceSpec, address_range: AddressRange) -> None:
        self.request = request
        self.spec = spec
        self.holdings = Holdings(request, address_range)
        self.arrival: int | None = None
        self.state = MemoryState.NEW
        self.in_flight = False
        self.is_leaving = False  # a release waits for work that may use the memory
        self.joined_tokens = 0  # tokens that came with the prefix that was joined
        self.lacks_window = False  # the rings lack the window before `joined_tokens`
        self.told = Told()
        self.computes_on = port.computes_on
        self._port = port

    @property
    def range(self) -> AddressRange:
        return self.holdings.range

    @property
    def address(self) -> int:
        """Where the range begins; the same from `open` to `close`."""
        return self.range.address

    @property
    def tokens(self) -> int:
        """The most tokens that the committed windows hold, shared ones among them."""
        return self.holdings.tokens

    @property
    def told_tokens(self) -> int:
        """The ids that a Find which succeeded has named."""
        return self.told.heard

    @property
    def committed_bytes(self) -> int:
        """What this request pays for: not what it shares."""
        return self.holdings.own_bytes

    @property
    def shared_bytes(self) -> int:
        """What is mapped here and is a prefix's: nobody pays for it a second time."""
        return self.holdings.shared_bytes

    @property
    def reserved_bytes(self) -> int:
        return self.range.range_map.size_bytes

    @property
    def most_bytes(self) -> int:
        """The device's capacity as it was at the hello: more than a request can ever have."""
        return self._port.welcome.capacity_bytes

    @property
    def fragments(self) -> int:
        """Pieces of address that grow together."""
        return sum(group.fragments for group in self.holdings.shape.groups)

    @property
    def returnable_runs(self) -> int:
        """How many runs of windows a release of everything names at most."""
        return self.holdings.returnable_runs

    @property
    def windows(self) -> tuple[int, ...]:
        """Usable windows of each fragment, a group at a time: committed and shared ones."""
        return self.holdings.usable.windows

    @property
    def sealed(self) -> tuple[int, ...]:
        """How many of each fragment's `windows`, from the first on, can be read and never written."""
        return self.holdings.usable.sealed

    def bytes_to_reach(self, tokens: int) -> int:
        """What a grant must hold so that a commit of `tokens` tokens can be paid."""
        return self.holdings.missing_bytes(self.holdings.shape.windows(tokens))

    @operation
    def grant(self, tokens: int) -> Grant:
        """Ask for the budget that `tokens` tokens need beyond what is there.

        Raises:
            ValueError: no tokens, or more than the most. Nothing changed.
            OutOfBudget: not now. Nothing changed; the request keeps its place in the queue.
            NeverFits: the whole reservation is larger than the device. Nothing changed.
            DriverError: a graph is being captured. Nothing changed.
        """
        return self._port.verbs.grant(self, tokens)

    @operation
    def give_back(self, grant: Grant) -> None:
        """Return a grant that will not be spent.

        Raises:
            GrantRefused: it is not held. Nothing changed.
            DriverError: a graph is being captured. Nothing changed.
        """
        self._port.verbs.one(ReturnGrant(self, grant))

    @operation
    def commit(self, tokens: int, grant: Grant) -> None:
        """Back the first `tokens` tokens with physical memory; the address does not move.

        Maps whole granules. `grant` is spent for what was mapped; the rest of it goes back. After a join the window
        before the joined tokens is copied into the rings, once they hold it.

        Raises:
            GrantRefused: no grant, no commit: no driver call was made. Nothing changed.
            ValueError: no tokens, or more than the most. Nothing changed.
            NotAllowed: the memory is quarantined, or torn, and takes no more commits. Nothing changed.
            DriverError, LimitReached: a call failed and every earlier one was undone. On the device's half the grant
                is held again; on this process's half the windows were given back and the grant stays spent. Or a graph
                is being captured, and nothing changed.
            Quarantined: a call failed and so did an undo; those bytes stay charged. Where a window of this memory is
                still mapped (`committed_bytes` counts it), the memory takes no more commits.

        Source: "Virtual Memory for KV Cache", case one.
        """
        self._port.verbs.one(Spend(self, tokens, grant))

    @operation
    def publish(self, tokens: int, *, written: int | None = None) -> Prefix:
        """Share the whole granules of the first `tokens` tokens: nobody writes them any more, this request neither.

        They are unmapped, sealed, and mapped for reading at the same address; the bytes become the prefix's. With
        rings the window before the prefix's end is copied out of them first, which takes budget; `written` tokens
        were computed by now (`tokens`, where nobody says otherwise). For a step boundary.

        Raises:
            NotShareable: by the arithmetic, or the window before it was overwritten already (nothing changed but
                that a snapshot may have been committed); or the device could not seal it: the windows are this
                request's as before, mapped for reading, and hold what they held.
            OutOfBudget, NeverFits: no room for the snapshot. Nothing changed.
            NotAllowed: windows are missing, or the memory is quarantined or torn. Nothing changed.
            Quarantined: a window could not be unmapped, so nothing was sealed. It stays mapped and the request's; of
                several runs those that were unmapped are given back. The memory takes no more commits.
            ValueError: more tokens, or `written`, than are committed, or `written` below `tokens`. Nothing changed.
            DriverError, LimitReached: the sealed windows could not be mapped again: this request has left the prefix,
                and as nobody else knew of it, it is gone with what it held. `tokens` is 0 until a release, and all must
                be computed again. Before the seal (a captured graph, a failed snapshot): nothing changed.
        """
        return self._port.verbs.publish(self, tokens, written=tokens if written is None else written)

    @operation
    def join(self, prefix: Prefix, tokens: int) -> int:
        """Map `prefix`, as far as it lies inside the first `tokens` tokens of this request; returns how many are there.

        This request computes from that token on. It must hold nothing yet. Costs no bytes. With rings the window
        before that token arrives with the next commit that holds it.

        Raises:
            NotShareable: no such prefix on this device, or it cannot be joined there. Nothing changed.
            NotAllowed: the request holds something, or uses a prefix already. Nothing changed.
            DriverError, LimitReached: a call failed and every earlier one was undone: the prefix was left again. Or a
                graph is being captured, and nothing changed.
            Quarantined: and an undo failed: it stays mapped, and the prefix's until this process is gone. The memory
                takes no more commits.
        """
        return self._port.verbs.one(Join(self, prefix, tokens)).joined_tokens

    @operation
    def find(self, token_ids: Sequence[int], tokens: int) -> int:
        """Map what is known of these tokens, this request's own, and commit `tokens`; returns how many are there.

        This request computes from that token on. It must hold nothing yet, and its `cache_root` says under what others
        wrote it. Where nothing is known it is a grant and a commit. Raises as these, and as `join`, but that nothing
        known is no error: `joined_tokens` is 0.
        """
        return self._port.verbs.one(Find(self, packed(token_ids), tokens)).joined_tokens

    def publication(self, tokens: int, *, written: int) -> tuple[Ask, ...]:
        """The asks, a frame each, that share the first `tokens` tokens; none where that adds nothing."""
        from kvcluster.services.publication import publication

        return publication(self, tokens, written)

    @operation
    def leave(self) -> None:
        """Use no prefix any more. Where the request holds more than that, only a release leads on.

        Raises:
            Quarantined: windows could not be unmapped: the prefix keeps them until this process is gone.
            DriverError: a graph is being captured. Nothing changed.
        """
        self._port.verbs.one(Leave(self))

    @operation
    def trim(self, tokens: int) -> None:
        """Give back what lies behind the first `tokens` tokens: whole handles, and none of a prefix or a snapshot.

        Waits for the driver's work first, as `release` does without a fence. The address stays.

        Raises:
            ValueError: more tokens than the most. Nothing changed.
            Quarantined: some windows could not be unmapped. They stay charged until this process is gone, and the
                memory takes no more commits.
            DriverError: a graph is being captured. Nothing changed.
        """
        self._port.verbs.one(Trim(self, tokens))

    @operation
    def release(self, *, after: Fence | None = None) -> None:
        """Give every window back, and leave every prefix; the address stays and the next commit uses it again.

        While the work of `after` is under way everything stays mapped and charged, and the memory takes no more asks
        but a close: `DevicePort.tend` gives it back at the first step boundary after it.

        Raises:
            Quarantined: some windows could not be unmapped. They stay charged until this process is gone.
            DriverError: a graph is being captured. Nothing changed.
        """
        self._port.verbs.release(self, after=after)

    @operation
    def close(self, *, retain_tokens: int = 0, token_ids: Sequence[int] = ()) -> Prefix | None:
        """Release, end the request, and free the address. Closing again tries again what could not be freed here.

        The whole granules of the first `retain_tokens` tokens stay on the device, for whoever joins them, until their
        memory is needed: returns the newest prefix that stays, with its own tokens, which may be fewer. A prefix that
        was used here stays if it lies wholly inside so many tokens; a longer one, only as long as others use it. With
        rings only what was published stays. `token_ids` follow what the last `find` that succeeded was told: with them
        all of it is found by its tokens.

        Raises:
            ValueError: more tokens are to be retained than are there. Nothing changed.
            Quarantined: it cannot be confirmed that nothing uses the memory, which is leaked on purpose, with one
                warning; or a window could not be unmapped. Its bytes stay charged until this process is gone, and
                nothing is retained.
            DriverError: the address could not be freed; nothing is mapped in it. Or a graph is being captured, and
                nothing changed.
        """
        return self._port.verbs.close(self, retain_tokens=retain_tokens, token_ids=packed(token_ids))

    def views(self, dtype: torch.dtype) -> KvViews:
        """K and V of every layer over the committed tokens, in place; see `tensors.views.kv_views`."""
        from kvcluster.tensors.memory import CPU
        from kvcluster.tensors.views import kv_views

        return kv_views(
            self.address,
            self.range.range_map,
            self.spec.geometry,
            self.spec.layout,
            tokens=self.tokens,
            dtype=dtype,
            sealed=self.sealed,
            device=self.computes_on or CPU,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- for the port: what the device's answers change here ---------------------------------------------------------

    def opened(self, arrival: int) -> None:
        self.state = moved(self.state, MemoryState.OPEN, MEMORY_MOVES)
        self.arrival = arrival

    def closed(self) -> None:
        self.state = moved(self.state, MemoryState.CLOSED, MEMORY_MOVES)
        self.emptied()

    def emptied(self) -> None:
        """What came with a prefix is not there any more."""
        self.is_leaving = self.lacks_window = False
        self.joined_tokens = 0

    def registered(self, arrival: int) -> None:
        """A device that was restarted knows it again; of its tokens it knows none."""
        self.arrival = arrival
        self.told = Told()

    def joined(self, tokens: int) -> None:
        """A prefix is mapped, and `tokens` tokens are there with it."""
        self.joined_tokens = tokens
        self.lacks_window = tokens > 0 and self.holdings.shape.has_rings
