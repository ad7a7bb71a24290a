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
from typing import NoReturn

from kvcluster.driver.protocol import Access
from kvcluster.errors import DeviceUnreachable, DriverError, KvClusterError, LimitReached, SessionEnded
from kvcluster.failpoints import Failpoint, reach
from kvcluster.ids import RequestId
from kvcluster.paged.store import PageStore
from kvcluster.services.asks import MOST_RUNS, Ask, End, Load, Outcome, Publish, Shed
from kvcluster.services.contact import Link, Seek
from kvcluster.services.correspondence import Traffic
from kvcluster.services.exchange import Exchange, Line, Touch
from kvcluster.services.frames import outcome_of
from kvcluster.services.pages.ask_checks import checked
from kvcluster.services.pages.asks import Fork, PageAsk, Permute, load_of, memories_of
from kvcluster.services.pages.encoding import drop_operation, operations_of
from kvcluster.services.pages.pending import PendingPages
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.services.progress_page import ProgressPage
from kvcluster.services.sequence import SequenceSpec
from kvcluster.units import ceil_div
from kvcluster.wire.socket import Reclaim, Welcome


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
        self.exchange: Exchange[Line, Pages] = Exchange(session, welcome, line, seek)
        self._requests = itertools.count(1)
        self._grants = itertools.count(1)
        self._earlier_calls = 0  # of stores that are closed
        self._has_pages = True  # `store` is open, and of the host as it is now
        self._memories: set[SequencePages] = set()

    @property
    def session(self) -> str:
        """The name of the present session."""
        return self.exchange.session

    @property
    def welcome(self) -> Welcome:
        return self.exchange.welcome

    @property
    def is_lost(self) -> bool:
        """As `KvPort`."""
        return self.exchange.is_lost

    @property
    def traffic(self) -> Traffic:
        """As `KvPort`."""
        return self.exchange.traffic

    def pushes(self) -> tuple[Reclaim, ...]:
        """As `KvPort`."""
        return self.exchange.pushes()

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
        page_asks = checked(asks, block_tokens=self.block_tokens)
        errors = [self._guarded(ask) for ask in page_asks]
        reach(Failpoint.CLIENT_GUARDED)
        granule_bytes = self.welcome.granule_bytes
        asked = list(zip(page_asks, errors, strict=True))
        ops = [op for ask, e in asked for op in operations_of(ask, e, self._grants, granule_bytes=granule_bytes)]
        sent = self.exchange.send(ops) if ops else None
        for ask in page_asks:
            for memory in memories_of(ask):
                memory.in_flight = True
        return PendingPages(self, asked, sent)

    def in_touch(self) -> bool:
        """As `KvPort`. A host that is gone has ended the session."""
        match self.exchange.look():
            case Link() as found:
                return self._go_on(found)
            case Touch.GONE | Touch.ENDED:
                self._begin_again()
            case Touch.REACHED:
                return True
        return False

    def load(self, ask: Ask | PageAsk) -> Load:
        """The most that a frame, or its reply, says for it: a block that it names is no more than a run of windows."""
        return load_of(ask, self.block_tokens)

    def tend(self) -> tuple[Outcome, ...]:
        """Nothing here waits for work: the CPU's is over when its step is."""
        return ()

    def one(self, ask: Ask | PageAsk) -> Outcome:
        """One ask by itself. Raises as `submit`, and what it is refused with."""
        return outcome_of(self.submit([ask]))

    def close(self) -> None:
        """End the session, and unmap the pages. The host takes back whatever was not given back."""
        self.exchange.close()
        if self._has_pages:
            self.store.close()

    def forget(self, memory: SequencePages) -> None:
        """It is closed."""
        self._memories.discard(memory)

    def _go_on(self, link: Link[Pages]) -> bool:
        """The host was found, with other pages: what is left of the ones before is given up, if that was not done."""
        sought = self.session
        is_over = self._has_pages or link.session != sought  # its sequences bear a name that the host does not know
        if is_over:
            self._give_up()
        self.store, self._has_pages = link.way.store, True
        self.exchange.go_on(link, link.way.line)
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

    def _begin_again(self) -> NoReturn:
        """The session is over: unmap all pages, say so where somebody hears it, and look for the host again."""
        self._give_up()
        with suppress(DeviceUnreachable):  # it is dead
            self.exchange.line.surrender()
        self.exchange.begin_again()

    # --- where this process writes ------------------------------------------------------------------------------------

    def _guarded(self, ask: PageAsk) -> KvClusterError | None:
        """Make read-only what the ask gives away; why that could not be done."""
        match ask:
            case Publish(memory, tokens):
                return self._made_read_only(memory.numbers[: tokens // self.block_tokens])
            case Fork(memory):
                return self._made_read_only(memory.numbers)
            case Permute(members=members):
                return self._made_read_only([number for memory in members for number in memory.numbers])
            case Shed(memory) | End(memory):
                return self.withdrawn(memory)
        return None

    def withdrawn(self, memory: SequencePages) -> KvClusterError | None:
        """This process writes to its blocks no more; why that could not be done, which counts from now on."""
        error = self._made_read_only(memory.numbers)
        if error:
            self.quarantined_bytes += memory.committed_bytes
        return error

    def _made_read_only(self, numbers: Iterable[int]) -> KvClusterError | None:
        """This process writes to these blocks no more; why that could not be done."""
        try:
            self.store.protect(numbers, Access.READ)
        except (LimitReached, DriverError) as error:
            return error
        return None

    def return_blocks(self, in_vain: Mapping[SequencePages, KvClusterError | None]) -> None:
        """Give back what was handed over and cannot be written here; with an error, what may still be written."""
        ops = [drop_operation(memory, error) for memory, error in in_vain.items()]
        for memory in in_vain:
            memory.emptied()
        self.exchange.give_back(ops)
