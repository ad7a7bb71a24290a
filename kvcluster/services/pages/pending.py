"""A frame to host pages on its way, and the client's half of what comes back: tables, and access to their blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcluster.driver.protocol import Access
from kvcluster.errors import DeviceUnreachable, DriverError, KvClusterError, LimitReached, Quarantined, Residue
from kvcluster.failpoints import Failpoint, reach
from kvcluster.index.token_chain import count_of
from kvcluster.paged.counts import block_id
from kvcluster.services.asks import End, Find, Grow, Outcome, Publish, Shed
from kvcluster.services.memory_state import MemoryState
from kvcluster.services.pages.asks import Fork, PageAsk, Permute, memories_of
from kvcluster.services.pages.sequence import SequencePages
from kvcluster.units import ceil_div
from kvcluster.wire import messages as wire
from kvcluster.wire.faults import error_of

if TYPE_CHECKING:
    from kvcluster.services.exchange import SentTo
    from kvcluster.services.pages.port import PagePort


@dataclass(frozen=True, slots=True)
class _Heard:
    """What came of a whole frame: why none of it was done, or the results, by request."""

    refusal: KvClusterError | None
    results: Mapping[tuple[int, int], Sequence[wire.GroupResult]]


class PendingPages:
    """Asks whose frame is on its way (`sent` is None where nothing had to be said)."""

    def __init__(
        self,
        port: PagePort,
        asked: Sequence[tuple[PageAsk, KvClusterError | None]],
        sent: SentTo | None,
    ) -> None:
        self._port = port
        self._asked = asked
        self._sent = sent
        self._in_vain: dict[SequencePages, KvClusterError | None] = {}  # what goes back, and why not all of it

    def ready(self) -> bool:
        """Whether `settle` would not wait for the host."""
        return self._sent is None or self._port.exchange.is_answered(self._sent)

    def settle(self) -> tuple[Outcome, ...]:
        """Do the client's half; one outcome an ask, in order. Call it at a step boundary, once.

        Raises:
            DeviceUnreachable: no reply came, or the host went away, and nobody here finds it again. What the asks did
                there is unknown. (Where it is sought, this is their outcome, and none counts as executed.)
        """
        try:
            heard = _heard(None if self._sent is None else self._port.exchange.hear(self._sent))
        finally:
            for ask, _ in self._asked:
                for memory in memories_of(ask):
                    memory.in_flight = False
        outcomes = tuple(self._outcome(ask, error, heard) for ask, error in self._asked)
        self._port.return_blocks(self._in_vain)
        return outcomes

    def _outcome(self, ask: PageAsk, error: KvClusterError | None, heard: _Heard) -> Outcome:
        request = ask.memory.request
        mine = heard.results.get((request.number, request.generation), [])
        faults = [error_of(result.fault) for result in mine if result.fault]
        failure = error or heard.refusal or next(iter(faults), None)
        answers = [answer for result in mine for answer in result.answers]
        for answer in answers:
            if isinstance(answer, wire.Opened):
                ask.memory.opened(answer.arrival)
        failure = self._absorb(ask, answers, failure)
        joined = ask.memory.joined_tokens if isinstance(ask, Find) else 0
        return Outcome(ask, failure, joined_tokens=joined, known_tokens=joined)

    def _absorb(
        self, ask: PageAsk, answers: list[wire.Answer], failure: KvClusterError | None
    ) -> KvClusterError | None:
        """What the answers change here; what went wrong with it."""
        match ask:
            case End(memory):
                memory.closed()
                self._port.forget(memory)
            case Shed(memory):
                memory.emptied()
            case Grow(memory, tokens) if failure is None:
                return self._grown(memory, answers, tokens)
            case Find(memory, token_ids, tokens) if failure is None:
                return self._found(memory, answers, token_ids, tokens)
            case Publish(memory, tokens):
                return self._published(memory, tokens, failure)
            case Fork(memory, children, tokens):
                self._forked(memory, children, tokens, answers)
            case Permute(members=members, parents=parents, tokens=tokens):
                self._permuted(members, parents, tokens, answers)
        return failure

    def _found(
        self, memory: SequencePages, answers: list[wire.Answer], token_ids: bytes, tokens: int
    ) -> KvClusterError | None:
        memory.told.there = count_of(token_ids)
        failure = self._grown(memory, answers, tokens)
        if failure is None:
            memory.told.answered()
        return failure

    def _grown(self, memory: SequencePages, answers: list[wire.Answer], tokens: int) -> KvClusterError | None:
        """The host's table is this one's; where access fails it holds no more tokens than before, and may ask again.

        One that held none holds no block then either: whoever waits holds nothing.
        """
        for answer in answers:
            if isinstance(answer, wire.Paged):
                ids = [block_id(number, generation) for number, generation in answer.blocks]
                memory.blocks = [*memory.blocks[: answer.start], *ids]
                if answer.tokens:
                    memory.joined_tokens = memory.frozen = answer.tokens
                    memory.published = len(ids)
        before = max(memory.tokens, memory.joined_tokens)
        memory.tokens = max(memory.tokens, tokens)
        try:
            self._port.store.protect(memory.writable, Access.READ_WRITE)
        except (LimitReached, DriverError) as error:
            memory.tokens = before
            return error if before else self._withdrawn(memory, error)
        reach(Failpoint.CLIENT_WRITABLE)
        return None

    def _withdrawn(self, memory: SequencePages, error: KvClusterError) -> KvClusterError:
        """Its blocks go back at once; those that this process may still write to are quarantined."""
        stuck = self._in_vain[memory] = self._port.withdrawn(memory)
        return error if stuck is None else Quarantined(residue=(Residue("host pages", memory.committed_bytes),))

    def _published(self, memory: SequencePages, tokens: int, failure: KvClusterError | None) -> KvClusterError | None:
        """What is found from now on stays read-only; what could not be listed is written no more either."""
        memory.published = max(memory.published, tokens // self._port.block_tokens)
        return failure

    def _forked(
        self, memory: SequencePages, children: Sequence[SequencePages], tokens: int, answers: list[wire.Answer]
    ) -> None:
        """Everybody ends at the fork, and commits before he writes: it too, where the fork was refused."""
        memory.tokens = min(memory.tokens, tokens)
        forked = [answer for answer in answers if isinstance(answer, wire.Forked)]
        if not forked:
            for child in children:
                if child.state is MemoryState.NEW:
                    child.closed()
                    self._port.forget(child)
            return
        held = memory.blocks[: ceil_div(tokens, self._port.block_tokens)]
        published, told = memory.published, memory.told
        for child, arrival in zip(children, forked[0].arrivals, strict=True):
            child.opened(arrival)
        for sequence in (memory, *children):
            sequence.begins_with(held, tokens, published=published, told=told)

    def _permuted(
        self, members: Sequence[SequencePages], parents: Sequence[int], tokens: int, answers: list[wire.Answer]
    ) -> None:
        if not any(isinstance(answer, wire.Permuted) for answer in answers):
            for member in members:
                member.tokens = min(member.tokens, tokens)
            return
        before = [(member.blocks, member.published, member.told) for member in members]
        for member, parent in zip(members, parents, strict=True):
            blocks, published, told = before[parent]
            held = blocks[: ceil_div(tokens, self._port.block_tokens)]
            member.begins_with(held, tokens, published=published, told=told)


def _heard(reply: wire.Reply | DeviceUnreachable | None) -> _Heard:
    """Of no reply nothing: nothing had to be said."""
    if reply is None or isinstance(reply, DeviceUnreachable):
        return _Heard(reply, {})
    results: dict[tuple[int, int], list[wire.GroupResult]] = {}
    for result in reply.results:
        results.setdefault((result.request.number, result.request.generation), []).append(result)
    return _Heard(error_of(reply.fault) if reply.fault else None, results)
