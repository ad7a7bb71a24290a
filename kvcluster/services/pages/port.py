"""A client's end of host pages: asks as frames, and the client's half of each, which is access to blocks.

All pages are mapped for reading. Blocks that a sequence has alone are made writable when they arrive, and read-only
again before the host hears that others may have them, or that they are given back: what the host is told is what has
happened. One frame carries what all sequences of a step ask. Nothing here retries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from kvcluster.driver.protocol import Access
from kvcluster.errors import DriverError, InvariantBroken, KvClusterError, LimitReached, NotAllowed
from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.ids import RequestId
from kvcluster.index.token_chain import count_of
from kvcluster.paged.store import PageStore
from kvcluster.services.ask_checks import check_load, check_room, check_token_ids
from kvcluster.services.asks import (
    MOST_RUNS,
    Ask,
    End,
    Find,
    Grow,
    Load,
    Outcome,
    Publish,
    Shed,
)
from kvcluster.services.correspondence import Correspondence, Traffic
from kvcluster.services.encoding import close_operation, key_of
from kvcluster.services.pages.asks import Fork, PageAsk, Permute, memories_of
from kvcluster.services.pages.pending import PendingPages
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.sequence import MemoryState, SequenceSpec
from kvcluster.services.transport import Sender
from kvcluster.units import ceil_div
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Reclaim, Welcome

Operations = tuple[wire.Operation, ...]


class PageTransport(Sender, Protocol):
    """How frames get to the host; the memory came with the session."""

    def pushes(self) -> tuple[Reclaim, ...]:
        """What the host demands back since the last call. Never waits."""

    def close(self) -> None:
        """End the session."""


class PagePort:
    """`services.kv_port.KvPort` of host pages: one session, `store` being its own mapping of them. For one thread."""

    def __init__(self, session: str, welcome: Welcome, store: PageStore, transport: PageTransport) -> None:
        self.session = session
        self.welcome = welcome
        self.store = store
        self.transport = transport
        self.quarantined_bytes = 0
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._letters = Correspondence(session, welcome.epoch)
        self._memories: set[SequencePages] = set()

    @property
    def traffic(self) -> Traffic:
        return self._letters.traffic

    @property
    def driver_calls(self) -> int:
        return self.store.calls

    @property
    def block_tokens(self) -> int:
        return self.welcome.block_tokens

    def memory(self, spec: SequenceSpec) -> SequencePages:
        """A new sequence; the host hears of it with its first ask. Costs nothing.

        Raises:
            LimitReached: it may have more blocks than one reply names.
        """
        blocks = ceil_div(spec.max_tokens, self.block_tokens)
        if blocks > MOST_RUNS:
            remedy = "give a larger block_size, or fewer tokens"
            raise LimitReached(limit="blocks of a sequence", need=blocks, free=MOST_RUNS, remedy=remedy)
        memory = SequencePages(self, RequestId(self.session, next(self._requests)), spec)
        self._memories.add(memory)
        return memory

    def memories(self) -> tuple[SequencePages, ...]:
        """Those that are not closed."""
        return tuple(self._memories)

    def submit(self, asks: Sequence[Ask | PageAsk]) -> PendingPages:
        """Send all of `asks` in one frame; at most one a sequence, none of which may be in flight.

        Raises:
            NotAllowed: a sequence is closed, has an ask in flight or is in two of these, or an ask is for a device.
                Nothing was sent or changed.
            ValueError: no tokens, more than a sequence's most, or more than a frame carries. Nothing was sent or
                changed.
            DeviceUnreachable: the way is closed; the session is of no more use.
        """
        checked = self._checked(asks)
        errors = [self._guarded(ask) for ask in checked]
        ops = [op for ask, error in zip(checked, errors, strict=True) for op in self._operations(ask, error)]
        sent = self._letters.send(ops, self.transport) if ops else None
        for ask in checked:
            for memory in memories_of(ask):
                memory.in_flight = True
        return PendingPages(self, list(zip(checked, errors, strict=True)), (self._letters, sent) if sent else None)

    def load(self, ask: Ask | PageAsk) -> Load:
        """The most that a frame, or its reply, says for it: a block that it names is no more than a run of windows."""
        blocks = 0
        match ask:
            case Grow(memory, tokens) | Find(memory, _, tokens):
                blocks = max(0, ceil_div(tokens, self.block_tokens) - len(memory.blocks)) + 1  # and a copy of one
        return Load(1, 4, blocks, len(ask.token_ids) if isinstance(ask, Find | End) else 0)

    def tend(self) -> tuple[Outcome, ...]:
        """Nothing here waits for work: the CPU's is over when its step is."""
        return ()

    def pushes(self) -> tuple[Reclaim, ...]:
        return self.transport.pushes()

    def close_memory(self, memory: SequencePages, *, retain_tokens: int = 0, token_ids: bytes = b"") -> None:
        if memory.state is not MemoryState.CLOSED:
            self.one(End(memory, retain_tokens, token_ids))

    def one(self, ask: Ask | PageAsk) -> Outcome:
        """One ask by itself. Raises what it is refused with."""
        [outcome] = self.submit([ask]).settle()
        if outcome.error:
            raise outcome.error
        return outcome

    def close(self) -> None:
        """End the session, and unmap the pages. The host takes back whatever was not given back."""
        self.transport.close()
        self.store.close()

    def forget(self, memory: SequencePages) -> None:
        """It is closed."""
        self._memories.discard(memory)

    # --- what an ask says to the host, and what is done here first ----------------------------------------------------

    def _checked(self, asks: Sequence[Ask | PageAsk]) -> list[PageAsk]:
        """Nothing of them is refused here. Raises as `submit`."""
        checked = [_for_pages(ask) for ask in asks]
        memories = [memory for ask in checked for memory in memories_of(ask)]
        if len({*memories}) < len(memories):
            raise NotAllowed(reason="a request may have one ask in flight: settle it first")
        if any(memory.state is MemoryState.CLOSED or memory.in_flight for memory in memories):
            raise NotAllowed(reason="a request may have one ask in flight, and none once it is closed")
        for ask in checked:
            _check_tokens(ask)
        if len(checked) > 1:  # one alone is smaller than what a frame carries, whatever it names
            check_load(Load(*map(sum, zip(*map(self.load, checked), strict=True))))
        return checked

    def _guarded(self, ask: PageAsk) -> KvClusterError | None:
        """Make read-only what the ask gives away; why that could not be done."""
        match ask:
            case Publish(memory, tokens):
                return self.made_read_only(memory.numbers[: tokens // self.block_tokens])
            case Fork(memory) | Shed(memory) | End(memory):
                return self.made_read_only(memory.numbers)
            case Permute(members=members):
                return self.made_read_only([number for memory in members for number in memory.numbers])
        return None

    def made_read_only(self, numbers: Iterable[int]) -> KvClusterError | None:
        """This process writes to these blocks no more; why that could not be done."""
        try:
            self.store.protect(numbers, Access.READ)
        except (LimitReached, DriverError) as error:
            return error
        return None

    def return_blocks(self, in_vain: Mapping[SequencePages, KvClusterError | None]) -> None:
        """Give back what was handed over and cannot be written here; with an error, what may still be written."""
        ops = []
        for memory, error in in_vain.items():
            ops.append(wire.Drop(request=key_of(memory.request), outcome=self._outcome(memory, error)))
            memory.emptied()
        if not ops:
            return
        for result in self._letters.receive(self._letters.send(ops, self.transport)).results:
            if result.fault:
                raise InvariantBroken(sentence=f"the host does not take back what it gave: {result.fault}")

    def _operations(self, ask: PageAsk, error: KvClusterError | None) -> Operations:
        key = key_of(ask.memory.request)
        match ask:
            case Grow(memory, tokens):
                return (*self._opening(memory), *self._paid(key, tokens))
            case Find(memory, token_ids, tokens):
                return (*self._opening(memory), wire.Find(request=key, token_ids=token_ids), *self._paid(key, tokens))
            case Shed(memory) if memory.state is MemoryState.OPEN:
                return (wire.Drop(request=key, outcome=self._outcome(memory, error)),)
            case End(memory, retain_tokens, token_ids) if memory.state is MemoryState.OPEN:
                if error:
                    return (wire.Drop(request=key, outcome=self._outcome(memory, error)), wire.Close(request=key))
                return (close_operation(memory, retain_tokens, token_ids),)
            case Publish(memory, tokens) if not error:
                return (wire.Share(request=key, tokens=tokens, told_tokens=memory.told.tokens),)
            case Fork(_, children, tokens) if not error:
                keys = tuple(key_of(child.request) for child in children)
                return (wire.Fork(request=key, children=keys, tokens=tokens),)
            case Permute(_, members, parents, tokens) if not error:
                keys = tuple(key_of(member.request) for member in members)
                return (wire.Permute(request=key, members=keys, parents=parents, tokens=tokens),)
        return ()

    def _outcome(self, memory: SequencePages, error: KvClusterError | None) -> Literal["clean", "quarantined"]:
        if error:
            self.quarantined_bytes += memory.committed_bytes
        return "quarantined" if error else "clean"

    def _paid(self, key: wire.RequestKey, tokens: int) -> Operations:
        grant = next(self._grants)
        asked = wire.Grant(request=key, grant=grant, size_bytes=self.welcome.granule_bytes, tokens=tokens)
        return (asked, wire.Commit(request=key, grant=grant, tokens=tokens))

    def _opening(self, memory: SequencePages) -> Operations:
        if memory.state is not MemoryState.NEW:
            return ()
        spec = memory.spec
        layouts = group_layouts(spec.geometry, Layout.TOKEN_MAJOR)
        token_bytes = sum(layout.stride_bytes for layout in layouts)
        opened = wire.Open(
            request=key_of(memory.request),
            groups=(wire.Group(fragments=1, stride_bytes=token_bytes),),
            max_tokens=spec.max_tokens,
            after=key_of(spec.after) if spec.after else None,
            tenant=spec.tenant,
            cache_root=spec.cache_root,
        )
        return (opened,)


def _for_pages(ask: Ask | PageAsk) -> PageAsk:
    """The same. Raises NotAllowed where it is for a device."""
    if not isinstance(ask, Grow | Find | Publish | Shed | End | Fork | Permute):
        raise NotAllowed(reason=f"{type(ask).__name__} is for a device, and these are host pages")
    return ask


def _check_tokens(ask: PageAsk) -> None:
    """Raises ValueError where the memory has no room for so many tokens, or has not so many."""
    memory: SequencePages = ask.memory
    most = memory.spec.max_tokens
    match ask:
        case Grow(tokens=tokens):
            check_room(memory, tokens, 1, most)
        case Find(token_ids=token_ids, grow_to=tokens):
            check_token_ids(memory, token_ids)
            check_room(memory, tokens, count_of(token_ids), most)
        case Publish(tokens=tokens):
            check_room(memory, tokens, 1, min(memory.tokens, memory.told.tokens))
        case Fork(tokens=tokens):
            check_room(memory, tokens, 1, memory.tokens)
        case Permute(members=members):
            _check_members(ask, members)
        case End(retain_tokens=tokens, token_ids=token_ids) if tokens:
            told = memory.told.heard + count_of(token_ids)
            check_room(memory, told, 0, most)
            check_room(memory, tokens, 0, min(memory.tokens, max(told, memory.told.there)))


def _check_members(ask: Permute, members: Sequence[SequencePages]) -> None:
    if ask.memory not in members:
        raise ValueError(f"{ask.memory.request} is permuted and is none of the members")
    if all(0 <= parent < len(members) for parent in ask.parents):
        held = min([members[parent].tokens for parent in ask.parents], default=0)
        check_room(ask.memory, ask.tokens, 1, held)
