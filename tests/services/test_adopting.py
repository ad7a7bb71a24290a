"""A successor maps what a dead process left, byte for byte at its own address, and every failure of it is whole."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest

from kvcluster.errors import DriverError, KvClusterError, LimitReached, NotAllowed, Quarantined
from kvcluster.ids import new_session
from kvcluster.services.asks import Adopt, End, Outcome
from kvcluster.services.direct import DirectTransport
from kvcluster.services.port import DevicePort
from kvcluster.services.progress_page import ProgressPage, mapped
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.faulty_driver import failing, failing_every
from kvcluster.testing.invariants import assert_ledger_balances
from kvcluster.wire.socket import Hello
from tests.services.world import GEOMETRY, GRANULE, Sizes, World, digest, fill

OpenWorld = Callable[..., World]
LABEL = b"l" * 16
SHARED, ALL, MORE = 64, 112, 160  # tokens: shared ones, those there are, and what it grows to


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


@pytest.fixture(params=[0, 4], ids=["granules", "bulk handles"])
def open_kept(request: pytest.FixtureRequest, open_world: OpenWorld) -> OpenWorld:
    return lambda: open_world(Sizes(bulk=request.param, grace_s=60.0))


def left_behind(world: World) -> tuple[str, str, SequenceMemory]:
    """A dead session's name, what its memory held, and a memory for who adopts that. Beside its own windows it used
    two prefixes, of which it had published both."""
    service, session = world.service, new_session()
    welcome = service.hello(Hello(session=session), pid=os.getpid())
    port = DevicePort(session, welcome, world.device.driver, DirectTransport(service, session))
    [handed] = service.redeem(session, 0).handles
    assert handed.fd is not None
    page = ProgressPage(mapped(handed.fd))
    os.close(handed.fd)
    heir = world.device.open(GEOMETRY, max_tokens=16 * 16, shareable_tokens=SHARED)
    memory = port.memory(heir.spec)
    memory.commit(ALL, memory.grant(ALL))
    fill(memory)
    memory.publish(SHARED // 2, written=ALL)
    memory.publish(SHARED, written=ALL)
    slot = page.begin(LABEL)
    assert slot is not None
    slot.wrote(memory.request, ALL, [7, 8], computed=ALL)
    content = digest(memory)
    service.disconnected(session)
    service.gone(session)
    memory.range.close()
    page.close()
    return session, content, heir


def adopt(session: str, heir: SequenceMemory, world: World) -> Outcome:
    [outcome] = world.device.port.submit([Adopt(heir, (session,), LABEL)]).settle()
    return outcome


def test_an_adopted_memory_has_every_byte_and_is_grown_shared_and_given_back_like_any(open_kept: OpenWorld) -> None:
    world = open_kept()
    session, content, heir = left_behind(world)
    outcome = adopt(session, heir, world)
    assert outcome.error is None
    assert outcome.adoption is not None
    assert (outcome.adoption.what, outcome.adoption.tokens) == ("adopted", ALL)
    assert digest(heir) == content
    assert heir.shared_bytes == SHARED // 16 * GRANULE
    assert heir.committed_bytes + heir.shared_bytes == heir.tokens // 16 * GRANULE
    heir.commit(MORE, heir.grant(MORE))
    assert heir.tokens >= MORE
    heir.release()
    assert (heir.tokens, world.granules("requests")) == (0, 0)
    heir.commit(ALL, heir.grant(ALL))
    fill(heir)
    heir.close()
    assert_ledger_balances(world.device)
    assert world.granules("free") == 64


def test_an_adoption_that_fails_at_any_call_leaves_a_memory_that_ends_clean(open_kept: OpenWorld) -> None:
    for failing_call in itertools.count(1):
        world = open_kept()
        session, content, heir = left_behind(world)
        world.driver.follow(failing(failing_call))
        outcome = adopt(session, heir, world)
        world.healed()
        assert_ledger_balances(world.device)
        if outcome.error is None:
            assert digest(heir) == content
            heir.close()
            break
        assert isinstance(outcome.error, DriverError | LimitReached)
        assert outcome.adoption is not None  # the words are there, whatever became of the memory
        assert outcome.adoption.token_ids
        heir.close()
        assert world.granules("free") == 64
    assert failing_call > 2


def test_an_adoption_whose_undo_fails_too_stays_charged(open_kept: OpenWorld) -> None:
    world = open_kept()
    session, _, heir = left_behind(world)
    world.driver.follow(failing_every("set_access", "unmap"))
    outcome = adopt(session, heir, world)
    world.healed()
    assert isinstance(outcome.error, Quarantined)
    assert_ledger_balances(world.device)
    [ended] = world.device.port.submit([End(heir)]).settle()
    assert isinstance(ended.error, KvClusterError | None)
    assert_ledger_balances(world.device)


def test_a_memory_that_holds_something_adopts_nothing(open_kept: OpenWorld) -> None:
    world = open_kept()
    session, _, heir = left_behind(world)
    heir.commit(16, heir.grant(16))
    assert isinstance(adopt(session, heir, world).error, NotAllowed)
    assert heir.tokens >= 16
    heir.close()
