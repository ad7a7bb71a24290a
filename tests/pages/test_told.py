"""What host pages are told of a sequence's tokens, and what a client says of it by itself."""

from __future__ import annotations

import pytest
import torch

from kvcluster.errors import LimitReached, NotAllowed
from kvcluster.ids import GrantId, RequestId
from kvcluster.index.token_chain import ID_BYTES, packed
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.asks import End, Find, Publish
from kvcluster.services.device_settings import MemorySettings
from kvcluster.services.pages.audit import audit_pages
from kvcluster.services.pages.memory import PageMemory
from kvcluster.services.pages.open_sequences import PageOpening
from kvcluster.services.told import MOST_TOLD_BYTES
from kvcluster.services.work import Work
from kvcluster.testing.clock import ManualClock
from kvcluster.wire import messages as wire
from tests.pages.frames import page_host
from tests.pages.test_faults import Protection
from tests.pages.test_faults import protection as protection
from tests.pages.test_finding_and_sharing import LONG
from tests.pages.world import SIZE, Writer, small_pages

FOUR_MIB = 4 * 2**20


@pytest.mark.parametrize("told", [0, 7, 9, 16])
@pytest.mark.parametrize("verb", ["share", "close"])
def test_ids_that_follow_another_number_than_the_host_was_told_are_refused_and_nothing_is_listed(
    verb: str, told: int
) -> None:
    with page_host() as host:
        client = host.client()
        sequence = client.open()
        sequence.find(LONG[:8], room=8)
        before, more = host.picture(), packed(LONG[8:16])
        share = wire.Share(request=sequence.key, tokens=16, token_ids=more, told_tokens=told)
        close = wire.Close(request=sequence.key, retain_tokens=16, token_ids=more, told_tokens=told)
        with pytest.raises(NotAllowed, match=f"these follow {told}"):
            client.ask({"share": share, "close": close}[verb])
        assert host.picture() == before
        sequence.close(16, LONG[8:16])
        assert client.open().find([*LONG, 1]) == 16


@pytest.mark.parametrize("retain", [8, 16])
def test_a_find_whose_access_fails_shifts_no_row_that_is_listed_later(protection: Protection, retain: int) -> None:
    with small_pages(30) as pages:
        writer = Writer(pages.port)
        with protection.failing_at(1):
            [outcome] = pages.port.submit([Find(writer.memory, packed(LONG[:8]), 8)]).settle()
        assert outcome.error is not None
        writer.append(LONG[:16])
        pages.port.one(End(writer.memory, retain, packed(LONG[:retain])))
        twice = Writer(pages.port)
        assert twice.begin([*LONG[:8], *LONG[:8]]) == 8
        again = Writer(pages.port)
        assert again.begin([*LONG, 1]) == retain
        for one in (twice, again):
            one.end()


def test_what_a_find_named_whose_access_failed_is_not_published_by_whoever_asked_twice(protection: Protection) -> None:
    with small_pages(30) as pages:
        writer = Writer(pages.port)
        with protection.failing_at(1):
            pages.port.submit([Find(writer.memory, packed(LONG[:8]), 8)]).settle()
        assert writer.begin(LONG[:8]) == 0
        pages.port.one(Publish(writer.memory, 8))
        second = Writer(pages.port)
        assert second.begin(LONG[:12]) == 8
        for one in (writer, second):
            one.end()


def wide_memory() -> tuple[BlockPool, PageMemory]:
    """Blocks that hold 65,536 tokens."""
    pool = BlockPool(16, 65_536, 1, 1, 1, dtype=torch.float32)
    pitch_bytes = pool.shape.pitch_bytes
    return pool, PageMemory(pool, MemorySettings(16 * pitch_bytes, pitch_bytes, 0), clock=ManualClock())


def told(memory: PageMemory, request: RequestId, token_ids: bytes) -> None:
    work = Work()
    with work.txn:
        memory.find(request, token_ids, work)
        work.txn.keep()
    work.follow()


def test_a_session_tells_so_many_ids_and_no_more_and_the_end_of_a_sequence_makes_room() -> None:
    pool, memory = wide_memory()
    ids = bytes(FOUR_MIB)
    most = MOST_TOLD_BYTES // FOUR_MIB
    requests = [RequestId("s", number) for number in range(most + 1)]
    with pool:
        for request in requests:
            memory.open(request, PageOpening(FOUR_MIB // ID_BYTES))
        for request in requests[:-1]:
            told(memory, request, ids)
            told(memory, request, ids)
        with pytest.raises(LimitReached, match="token ids"):
            told(memory, requests[-1], ids)
        audit_pages(memory)
        work = Work()
        memory.close(requests[0], work)
        work.follow()
        told(memory, requests[-1], ids)
        audit_pages(memory)


def test_what_forks_are_told_counts_for_each_and_one_that_would_tell_too_much_is_refused() -> None:
    pool, memory = wide_memory()
    tokens = FOUR_MIB // ID_BYTES
    parent = RequestId("s", 0)
    most = MOST_TOLD_BYTES // FOUR_MIB
    with pool:
        memory.open(parent, PageOpening(tokens))
        told(memory, parent, bytes(FOUR_MIB))
        work = Work()
        with work.txn:
            memory.spending.grant(GrantId(parent, 1), tokens, work)
            memory.spending.commit(GrantId(parent, 1), tokens, work)
            work.txn.keep()
        work.follow()
        children = [RequestId("s", number) for number in range(1, most + 1)]
        with pytest.raises(LimitReached, match="token ids"):
            memory.branching.fork(parent, children, tokens)
        assert len(memory.sequences) == 1
        memory.branching.fork(parent, children[:-1], tokens)
        with pytest.raises(LimitReached, match="token ids"):
            memory.branching.fork(parent, children[-1:], tokens)
        audit_pages(memory)
        memory.branching.permute([parent, *children[:-1]], list(range(most))[::-1], tokens)
        memory.branching.fork(parent, children[-1:], SIZE)
        audit_pages(memory)
