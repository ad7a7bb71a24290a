"""A client's end of host pages: asks as frames, and the client's half of each, which is access to blocks.

All pages are mapped for reading. Blocks that a sequence has alone are made writable when they arrive, and read-only
again before the host hears that others may have them, or that they are given back: what the host is told is what has
happened. One frame carries what all sequences of a step ask. Nothing here retries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NoReturn

from kvcluster.driver.protocol import Access
from kvcluster.errors import (
    DeviceUnreachable,
    DriverError,
    InvariantBroken,
    KvClusterError,
    LimitReached,
    NotAllowed,
    SessionEnded,
)
from kvcluster.failpoints import Failpoint, reach
from kvcluster.geometry.layout import Layout, group_layouts
from kvcluster.ids import RequestId, new_session
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
from kvcluster.services.contact import Seek
from kvcluster.services.correspondence import Traffic
from kvcluster.services.encoding import close_operation, key_of
from kvcluster.services.exchange import Exchange, Line, Touch
from kvcluster.services.pages.asks import Fork, PageAsk, Permute, memories_of
from kvcluster.services.pages.pending import PendingPages
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.progress_page import ProgressPage
from kvcluster.services.sequence import MemoryState, SequenceSpec
from kvcluster.units import ceil_div
from kvcluster.wire import messages as wire
from kvcluster.wire.socket import Reclaim, Welcome

Operations = tuple[wire.Operation, ...]


@dataclass(frozen=True, slots=True)
class Pages:
    """What a session with the host came to: the way to it, and this process's own mapping of its memory."""

    line: Line
    store: PageStore

    def close(self) -> None:
        """End the session, and unmap the pages."""
        self.line.close()
        self.store.close()


class PagePort:
    """`services.kv_port.KvPort` of host pages: one session, `store` being its own mapping of them. For one thread.

    A host that dies takes all pages along, whoever has them mapped: there is nothing to go on with, and another session
    begins, with the next incarnation and with its memory.
    """

    def __init__(
        self, session: str, welcome: Welcome, store: PageStore, line: Line, *, seek: Seek[Pages] | None = None
    ) -> None:
        self.store = store
        self.quarantined_bytes = 0
        self.progress: ProgressPage | None = None  # nobody goes on with what a dead process had in pages
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._exchange: Exchange[Line, Pages] = Exchange(session, welcome, line, seek)
        self._earlier_calls = 0  # of stores that are closed
        self._has_pages = True  # `store` is open, and of the host as it is now
        self._memories: set[SequencePages] = set()

    @property
    def session(self) -> str:
        """The name of the present session."""
        return self._exchange.session

    @property
    def welcome(self) -> Welcome:
        return self._exchange.welcome

    @property
    def exchange(self) -> Exchange[Line, Pages]:
        """Its frames and replies."""
        return self._exchange

    @property
    def traffic(self) -> Traffic:
        return self._exchange.traffic

    @property
    def driver_calls(self) -> int:
        return self._earlier_calls + (self.store.calls if self._has_pages else 0)

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
            DeviceUnreachable: the way is closed, and nobody here finds another; the session is of no more use.
        """
        checked = self._checked(asks)
        errors = [self._guarded(ask) for ask in checked]
        reach(Failpoint.CLIENT_GUARDED)
        ops = [op for ask, error in zip(checked, errors, strict=True) for op in self._operations(ask, error)]
        sent = self._exchange.send(ops) if ops else None
        for ask in checked:
            for memory in memories_of(ask):
                memory.in_flight = True
        return PendingPages(self, list(zip(checked, errors, strict=True)), sent)

    def in_touch(self) -> bool:
        """As `KvPort`. A host that is gone has ended the session."""
        match self._exchange.look():
            case Touch.FOUND:
                return self._go_on()
            case Touch.GONE | Touch.ENDED:
                self._start_over()
            case Touch.REACHED:
                return True
        return False

    @property
    def is_adrift(self) -> bool:
        return self._exchange.is_adrift

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
        return self._exchange.pushes()

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
        if (link := self._exchange.close()) is not None:
            link.way.close()
        if self._has_pages:
            self.store.close()

    def forget(self, memory: SequencePages) -> None:
        """It is closed."""
        self._memories.discard(memory)

    def _go_on(self) -> bool:
        """The host was found, with other pages: what is left of the ones before is given up, if that was not done."""
        link, sought = self._exchange.link, self.session
        assert link is not None  # it was found
        is_over = self._has_pages or link.session != sought  # its sequences bear a name that the host does not know
        if is_over:
            self._give_up()
        self.store, self._has_pages = link.way.store, True
        self._exchange.go_on(link, link.way.line)
        if is_over:
            raise SessionEnded(session=sought)
        return True

    def _give_up(self) -> None:
        """Every sequence is closed, and all pages are unmapped."""
        for memory in self.memories():
            memory.in_flight = False
            memory.closed()
        self._memories.clear()
        if self._has_pages:
            self._has_pages = False
            self._earlier_calls += self.store.calls
            self.store.close()

    def _start_over(self) -> NoReturn:
        """The session is over: unmap all pages, say so where somebody hears it, and look for the host again."""
        ended = self.session
        self._give_up()
        with suppress(DeviceUnreachable):  # it is dead
            self._exchange.line.surrender()
        self._exchange.end(new_session())
        raise SessionEnded(session=ended)

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
        if not ops or self.is_adrift:
            return
        try:
            reply = self._exchange.receive(self._exchange.send(ops))
        except DeviceUnreachable:
            if not self._exchange.can_be_found:
                raise
            return  # it died, and the pages with it
        for result in reply.results:
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
