"""Leases of host pages: a client that is not heard loses what it writes, and what it reads stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings

from kvcluster.errors import SessionEnded
from kvcluster.wire.socket import Fenced
from tests.examples import examples
from tests.pages.frames import Client, PageHost, page_host
from tests.pages.world import PITCH_BYTES, SIZE
from tests.services.lease_machine import LEASE_S, MOST_TAKEN, Leased
from tests.services.lease_machine import Client as LeasedClient
from tests.services.lease_machine import LeaseMachine as Machine

PROMPT = list(range(20, 20 + 2 * SIZE + 1))
MOST = 8 * SIZE


@pytest.fixture
def host() -> Iterator[PageHost]:
    with page_host(8) as opened:
        yield opened


def pass_time(host: PageHost, seconds: int, *beating: Client) -> None:
    """The owner looks once a second, and hears these."""
    for _ in range(seconds):
        host.clock.advance(1)
        for client in beating:
            host.service.heartbeat(client.session)
        host.service.idle()


def test_a_hung_client_of_pages_loses_its_blocks_to_quarantine_and_is_told(host: PageHost) -> None:
    client = host.client()
    client.open(max_tokens=MOST).grow(3 * SIZE)
    pass_time(host, LEASE_S)
    assert (host.blocks("request"), host.blocks("quarantine"), host.blocks("free")) == (0, 3, 5)
    [(session, said)] = host.service.all_pushes()
    assert (session, isinstance(said, Fenced)) == (client.session, True)
    seen = host.seen()
    assert (seen.sessions, seen.pids) == ({client.session: "orphaned"}, {client.session: 1})
    assert (seen.silent_s, seen.quarantined) == ({client.session: LEASE_S}, {client.session: 3 * PITCH_BYTES})
    with pytest.raises(SessionEnded):
        client.open(max_tokens=MOST)
    with pytest.raises(SessionEnded):
        host.service.redeem(client.session, 1)
    host.service.surrendered(client.session)
    assert host.blocks("free") == 8


@pytest.mark.parametrize("end", ["surrendered", "gone"])
def test_what_a_fenced_client_may_read_is_not_evicted_or_written_by_others_before_its_end(
    host: PageHost, end: str
) -> None:
    reader, other = host.client(), host.client()
    author = other.open(max_tokens=MOST)
    author.find(PROMPT)
    author.share(len(PROMPT) - 1)
    author.close(2 * SIZE)
    reading = reader.open(max_tokens=MOST)
    assert reading.find(PROMPT) == 2 * SIZE
    pass_time(host, LEASE_S, other)
    assert (host.blocks("prefix"), host.blocks("retained"), host.blocks("quarantine")) == (2, 0, 1)
    greedy = other.open(max_tokens=MOST, root=b"")
    greedy.grow(5 * SIZE)
    assert not set(greedy.blocks) & set(reading.blocks)
    assert host.blocks("free") == 0
    host.service.disconnected(reader.session)
    assert (host.blocks("prefix"), host.blocks("quarantine")) == (2, 1)
    getattr(host.service, end)(reader.session)
    assert (host.blocks("prefix"), host.blocks("retained"), host.blocks("free")) == (0, 2, 1)
    greedy.grow(8 * SIZE)


def test_what_two_sequences_of_a_fenced_client_share_is_free_when_it_surrenders(host: PageHost) -> None:
    client = host.client()
    parent = client.open(max_tokens=MOST, root=b"")
    parent.grow(2 * SIZE)
    parent.fork(SIZE + 1)
    pass_time(host, LEASE_S)
    assert host.blocks("free") == 6
    host.service.surrendered(client.session)
    assert host.blocks("free") == 8


def test_a_block_that_a_fenced_client_shares_with_a_live_one_stays_that_ones(host: PageHost) -> None:
    """The live one copies what it writes into, as long as the other may read it."""
    one, other = host.client(), host.client()
    author = one.open(max_tokens=MOST)
    author.find(PROMPT)
    author.share(len(PROMPT) - 1)
    joiner = other.open(max_tokens=MOST)
    assert joiner.find(PROMPT) == 2 * SIZE
    pass_time(host, LEASE_S, other)
    assert (host.blocks("prefix"), host.blocks("request"), host.blocks("quarantine")) == (2, 1, 1)
    host.service.surrendered(one.session)
    assert (host.blocks("prefix"), host.blocks("request"), host.blocks("free")) == (2, 1, 5)
    joiner.close()
    assert (host.blocks("retained"), host.blocks("free")) == (2, 6)


class LeaseMachine(Machine):
    """Of host pages."""

    def opened(self, undo: ExitStack) -> Leased:
        self.host = undo.enter_context(page_host(64))
        return Leased(self.host.service, self.host.clock, self.held)

    def held(self, kind: str) -> int:
        return self.host.seen().blocks if kind == "all" else self.host.blocks(kind)

    def arrived(self) -> LeasedClient:
        client = self.host.client()
        asker = client.open(max_tokens=MOST_TAKEN * SIZE, root=b"")
        taken = iter(range(1, 100))

        def take() -> None:
            asker.grow(SIZE * next(taken))

        return LeasedClient(client.session, take)


TestAnyOrderOnPages = LeaseMachine.TestCase
TestAnyOrderOnPages.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
