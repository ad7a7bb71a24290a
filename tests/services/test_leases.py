"""A client that is not heard loses its lease: what it has is nobody's until it surrenders or its process is dead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest
from hypothesis import settings

from kvcluster.errors import NotAllowed, SessionEnded
from kvcluster.services.leases import MOST_BETWEEN_S, Leases
from kvcluster.testing.invariants import assert_nothing_lost, picture
from kvcluster.wire.socket import Fenced, Hello
from tests.examples import examples
from tests.services.device_world import GRANULE, TOKENS, Device, DeviceWorld
from tests.services.lease_machine import LEASE_S, MOST_TAKEN, Leased
from tests.services.lease_machine import Client as LeasedClient
from tests.services.lease_machine import LeaseMachine as Machine
from tests.services.world import WireClient, World, close_op, commit_op, grant_op, open_op, refusal, release_op

# --- leases ---------------------------------------------------------------------------------------------------------


def test_a_lease_ends_when_nothing_was_heard_for_all_of_it_and_is_told_once() -> None:
    leases = Leases(10, now_s=0)
    leases.heard("s", now_s=0)
    assert [leases.expired(now_s=second) for second in range(1, 12)] == [()] * 9 + [("s",), ()]


def test_who_is_heard_has_a_whole_lease_from_then_on() -> None:
    leases = Leases(10, now_s=0)
    leases.heard("s", now_s=0)
    ended = {}
    for second in range(1, 40):
        if second == 9:
            leases.heard("s", now_s=second)
        if over := leases.expired(now_s=second):
            ended[second] = over
    assert ended == {19: ("s",)}


def test_a_lease_that_was_ended_does_not_end_again() -> None:
    leases = Leases(1, now_s=0)
    leases.heard("s", now_s=0)
    for _ in range(2):
        leases.end("s")
    assert leases.expired(now_s=1) == ()


def test_time_in_which_nobody_looked_is_nobodys_silence() -> None:
    leases = Leases(10, now_s=0)
    for name in ("before", "after"):
        leases.heard(name, now_s=0)
    assert leases.expired(now_s=4) == ()
    leases.heard("after", now_s=1004)  # it was the first to be heard again
    assert leases.expired(now_s=1004) == ()
    left = {second: over for second in range(1005, 1020) if (over := leases.expired(now_s=second))}
    assert left == {1004 + 10 - 2 - MOST_BETWEEN_S: ("before",), 1014: ("after",)}


def test_no_lease_is_longer_for_it_than_one_that_begins_now() -> None:
    leases = Leases(10, now_s=0)
    leases.heard("s", now_s=1000)
    leases.expired(now_s=1000)
    assert [second for second in range(1001, 1020) if leases.expired(now_s=second)] == [1010]


# --- a session whose lease ends -------------------------------------------------------------------------------------


def pass_time(world: World, seconds: int, *beating: WireClient) -> None:
    """The owner looks once a second, and hears these."""
    for _ in range(seconds):
        world.clock.advance(1)
        for client in beating:
            world.service.heartbeat(client.session)
        world.service.idle()


@pytest.fixture
def holder(client: WireClient) -> WireClient:
    """A client with three windows of one request, and another request without any."""
    client.opened(1)
    client.opened(2)
    client.ask(grant_op(1, 1, 3), commit_op(1, 1, 3))
    return client


def test_a_hung_client_does_not_keep_its_lease_for_ever(world: World, holder: WireClient) -> None:
    """CASES 46: its grants return and its bytes are quarantined, though its connection stands."""
    pass_time(world, LEASE_S - 1)
    holder.ask(grant_op(2, 2, 5))
    assert (world.granules("granted"), world.granules("requests")) == (5, 3)
    pass_time(world, 1)
    assert (world.granules("granted"), world.granules("quarantine"), world.granules("free")) == (0, 3, 61)
    seen = world.device.statistics()
    assert seen.sessions == {holder.session: "orphaned"}
    assert (seen.open_requests, seen.stored_replies) == (0, 0)


def test_a_client_that_only_computes_is_alive(world: World, holder: WireClient) -> None:
    pass_time(world, 3 * LEASE_S, holder)
    assert world.device.statistics().sessions == {holder.session: "live"}
    assert world.service.all_pushes() == ()


def test_frames_do_not_stand_for_heartbeats(world: World, holder: WireClient) -> None:
    """They come another way, and may have waited there since before the process was stopped."""
    for _ in range(LEASE_S):
        assert refusal(holder.ask(grant_op(2, holder.seq + 9, 1))) is None
        pass_time(world, 1)
    assert world.device.statistics().sessions == {holder.session: "orphaned"}


def test_a_fenced_session_is_told_so_once_with_its_name(world: World, holder: WireClient) -> None:
    pass_time(world, LEASE_S)
    assert world.service.has_pushes
    assert world.service.all_pushes() == ((holder.session, Fenced(session=holder.session)),)
    pass_time(world, LEASE_S)
    assert not world.service.has_pushes


def test_nothing_that_a_fenced_client_sends_revives_it(world: World, holder: WireClient) -> None:
    frame = holder.frame(open_op(3))
    seq = holder.seq - 1
    pass_time(world, LEASE_S)
    before = picture(world.device)
    for data in (frame, holder.frame(grant_op(1, 9, 1)), holder.frame(release_op(1, 0, 3), close_op(1))):
        assert isinstance(refusal(holder.send(data)), SessionEnded)
    for ask in (world.service.redeem, world.service.handles):
        with pytest.raises(SessionEnded):
            ask(holder.session, seq)
    with pytest.raises(NotAllowed, match="take a new name"):
        world.service.hello(Hello(session=holder.session), pid=1)
    pass_time(world, 3, holder)
    assert picture(world.device) == before
    assert world.device.statistics().silent_s == {holder.session: 0}


def test_quarantined_bytes_of_a_fenced_session_are_given_to_nobody_before_it_surrenders(
    world: World, holder: WireClient
) -> None:
    mine = world.service.handles(holder.session, 3)
    pass_time(world, LEASE_S)
    other = WireClient(world.service)
    other.opened(1)
    other.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    assert not set(world.service.handles(other.session, other.seq)) & set(mine)
    world.service.surrendered(holder.session)
    assert (world.granules("quarantine"), world.granules("free")) == (0, 60)
    other.opened(2)
    other.ask(grant_op(2, 2, 4), commit_op(2, 2, 4))
    assert set(mine) <= set(world.service.handles(other.session, other.seq))


def test_a_death_frees_a_fenced_sessions_bytes_as_well(world: World, holder: WireClient) -> None:
    pass_time(world, LEASE_S)
    world.service.disconnected(holder.session)
    assert world.granules("quarantine") == 3
    world.service.gone(holder.session)
    assert_nothing_lost(world.device)
    assert world.device.statistics().sessions == {}


def test_a_goodbye_of_a_live_session_frees_what_was_never_given_back(world: World, holder: WireClient) -> None:
    holder.ask(grant_op(2, 2, 5))
    world.service.surrendered(holder.session)
    assert_nothing_lost(world.device)
    assert world.device.statistics().sessions == {}
    assert world.service.all_pushes() == ()
    assert isinstance(refusal(holder.ask(open_op(3))), SessionEnded)


def test_a_surrender_after_the_end_or_of_a_stranger_changes_nothing(world: World, holder: WireClient) -> None:
    world.service.surrendered(holder.session)
    before = picture(world.device)
    for name in (holder.session, "nobody"):
        world.service.surrendered(name)
        world.service.gone(name)
    assert picture(world.device) == before


def test_two_sessions_of_one_process_end_one_by_one(world: World, holder: WireClient) -> None:
    other = WireClient(world.service)
    other.opened(1)
    other.ask(grant_op(1, 1, 4), commit_op(1, 1, 4))
    pass_time(world, LEASE_S, other)
    world.service.surrendered(holder.session)
    assert world.device.statistics().sessions == {other.session: "live"}
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("free")) == (4, 0, 60)


def test_a_fenced_session_without_memory_is_known_as_long_as_its_connection(world: World, client: WireClient) -> None:
    pass_time(world, LEASE_S)
    assert world.device.statistics().sessions == {client.session: "orphaned"}
    assert not world.service.close_if_idle(0)
    world.service.disconnected(client.session)
    assert world.device.statistics().sessions == {}
    assert world.service.close_if_idle(0)


def test_what_waits_for_which_process_is_told(world: World, holder: WireClient) -> None:
    pass_time(world, LEASE_S)
    seen = world.device.audit()
    assert (seen.pids[holder.session], seen.silent_s[holder.session]) == (1, LEASE_S)
    assert seen.quarantined == {holder.session: 3 * GRANULE}


def test_an_owner_that_was_stopped_itself_fences_nobody_when_it_wakes(world: World, holder: WireClient) -> None:
    pass_time(world, 1)
    world.clock.advance(1000)
    world.service.idle()
    assert world.device.statistics().sessions == {holder.session: "live"}
    pass_time(world, LEASE_S)
    assert world.device.statistics().sessions == {holder.session: "orphaned"}


def test_an_audit_is_no_look_at_leases(world: World, holder: WireClient) -> None:
    """Sessions of a device in this very process, which nobody hears, live for as long as it does."""
    for _ in range(2 * LEASE_S):
        world.clock.advance(1)
        world.device.audit()
    assert world.device.statistics().sessions == {holder.session: "live"}


def test_a_prefix_that_a_fenced_session_may_read_stays_as_it_is_until_it_surrenders(
    open_device: Callable[[Device], DeviceWorld],
) -> None:
    world = open_device(Device(capacity=8, pool=0))
    reader, other = world.client(), world.client()
    author = reader.open(max_tokens=8 * TOKENS)
    author.grow(4 * TOKENS, 4)
    author.share(4 * TOKENS)
    for _ in range(LEASE_S):
        world.clock.advance(1)
        world.service.heartbeat(other.session)
        world.service.idle()
    assert (world.granules("prefix"), world.granules("quarantine")) == (4, 0)
    assert world.seen().sessions[reader.session] == "orphaned"
    world.service.surrendered(reader.session)
    assert (world.granules("prefix"), world.granules("free")) == (0, 8)


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        ("live", "heartbeat", "live"),
        ("live", "lease ends", "orphaned"),
        ("live", "disconnected", "orphaned"),
        ("live", "surrendered", "over"),
        ("live", "gone", "over"),
        ("fenced", "heartbeat", "orphaned"),
        ("fenced", "lease ends", "orphaned"),
        ("fenced", "disconnected", "orphaned"),
        ("fenced", "surrendered", "over"),
        ("fenced", "gone", "over"),
        ("hung up", "heartbeat", "orphaned"),
        ("hung up", "lease ends", "orphaned"),
        ("hung up", "disconnected", "orphaned"),
        ("hung up", "surrendered", "over"),
        ("hung up", "gone", "over"),
        ("over", "heartbeat", "over"),
        ("over", "lease ends", "over"),
        ("over", "disconnected", "over"),
        ("over", "surrendered", "over"),
        ("over", "gone", "over"),
    ],
)
def test_a_session_in_any_state_meets_any_event(
    world: World, holder: WireClient, state: str, event: str, after: str
) -> None:
    acts: dict[str, Callable[[], None]] = {
        "lease ends": lambda: pass_time(world, LEASE_S),
        "heartbeat": lambda: world.service.heartbeat(holder.session),
        "disconnected": lambda: world.service.disconnected(holder.session),
        "surrendered": lambda: world.service.surrendered(holder.session),
        "gone": lambda: world.service.gone(holder.session),
    }
    before = {"fenced": "lease ends", "hung up": "disconnected", "over": "gone"}
    if state in before:
        acts[before[state]]()
    acts[event]()
    assert world.device.audit().sessions.get(holder.session, "over") == after
    where = {"live": (3, 0, 61), "orphaned": (0, 3, 61), "over": (0, 0, 64)}
    assert (world.granules("requests"), world.granules("quarantine"), world.granules("free")) == where[after]


# --- in any order ---------------------------------------------------------------------------------------------------


class LeaseMachine(Machine):
    """Of a device."""

    def opened(self, undo: ExitStack) -> Leased:
        self.world = DeviceWorld(Device(capacity=64))
        undo.callback(self.world.clear)
        return Leased(self.world.service, self.world.clock, self.held)

    def held(self, kind: str) -> int:
        return self.world.seen().capacity_bytes // GRANULE if kind == "all" else self.world.granules(kind)

    def arrived(self) -> LeasedClient:
        client = self.world.client()
        request = client.open(max_tokens=MOST_TAKEN * TOKENS)
        taken = iter(range(1, 100))

        def take() -> None:
            request.grow(TOKENS * next(taken), 1)

        return LeasedClient(client.session, take)


TestAnyOrderOnADevice = LeaseMachine.TestCase
TestAnyOrderOnADevice.settings = settings(max_examples=examples(25), stateful_step_count=20, deadline=None)
