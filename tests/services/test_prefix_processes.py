"""One copy of a prefix in many processes: by the kernel's own figures, and after any of them has died."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.nursery import Nursery
from tests.piped import Piped
from tests.services.processes import GRANULE, Host, opened_host

PREFIX_TOKENS = 2048  # of 256 bytes: 128 granules
PREFIX_GRANULES = 128
PREFIX_BYTES = PREFIX_GRANULES * GRANULE


@pytest.fixture(params=["host", "cuda"])
def host(request: pytest.FixtureRequest, nursery: Nursery, nothing_left: None) -> Iterator[Host]:
    """A device of the host, and a GPU's of a stand-in whose granule is as small."""
    with opened_host(request.param, nursery) as host:
        yield host


def publisher(host: Host) -> tuple[Piped, dict[str, Any]]:
    """A process whose memory 0 is twice as long as the prefix that it has made of it."""
    owner = host.child()
    owner.ask("open")
    owner.ask("commit", 0, PREFIX_TOKENS)
    for granule in range(PREFIX_GRANULES):
        owner.ask("fill", 0, granule * GRANULE, GRANULE, granule % 251)
    return owner, owner.ask("publish", 0, PREFIX_TOKENS)


def joined(host: Host, prefix: dict[str, Any], joiners: int) -> Piped:
    child = host.child()
    for number in range(joiners):
        child.ask("open")
        assert child.ask("join", number, prefix, PREFIX_TOKENS) == PREFIX_TOKENS - 1
    return child


def content(child: Piped, number: int = 0) -> str:
    said: str = child.ask("digest", number, 0, PREFIX_BYTES)
    return said


def is_whole(host: Host) -> bool:
    seen = host.audit()
    return dict(seen.accounts) == {"free": seen.capacity_bytes}


def test_sixteen_joiners_in_four_processes_hold_one_copy_and_the_ledger_agrees(host: Host) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    children = [joined(host, prefix, 4) for _ in range(4)]
    for child in children:
        for number in range(4):
            assert content(child, number) == expected
            assert child.ask("commit", number, PREFIX_TOKENS + 16) == GRANULE
            child.ask("fill", number, PREFIX_BYTES, GRANULE, 7)
    assert host.held_granules == PREFIX_GRANULES + 16
    assert (host.granules(f"prefix/{prefix['number']}"), host.granules("requests")) == (PREFIX_GRANULES, 16)
    assert {content(child, number) for child in children for number in range(4)} == {expected}
    for child in children:
        assert child.ask("imported") == [PREFIX_GRANULES + 4, PREFIX_GRANULES + 4, 8]  # each handle imported once
        for number in range(4):
            assert child.ask("close", number) is None
    assert host.granules(f"prefix/{prefix['number']}") == PREFIX_GRANULES
    owner.ask("close", 0)
    assert is_whole(host)


def test_a_write_through_a_joiners_mapping_kills_that_process_alone(host: Host) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    writer, other = joined(host, prefix, 1), joined(host, prefix, 1)
    assert writer.ask("fill", 0, 0, 1, 255) is None
    assert writer.died_of() == signal.SIGSEGV
    assert {content(child) for child in (owner, other)} == {expected}
    for child in (owner, other):
        child.ask("close", 0)
    host.eventually(lambda: is_whole(host), "the dead one's share is free")


def test_a_write_through_the_publishers_mapping_kills_that_process_alone(host: Host) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    other = joined(host, prefix, 1)
    assert owner.ask("fill", 0, PREFIX_BYTES - 1, 1, 255) is None
    assert owner.died_of() == signal.SIGSEGV
    assert content(other) == expected
    other.ask("leave", 0)
    host.eventually(lambda: is_whole(host), "the prefix is free")


def test_the_owner_killed_the_joiners_read_on_and_the_last_to_leave_frees_the_bytes(host: Host) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    one, two = joined(host, prefix, 2), joined(host, prefix, 1)
    owner.kill()
    host.eventually(lambda: len(host.audit().sessions) == 2, "the owner's session is gone")
    assert {content(one), content(one, 1), content(two)} == {expected}
    late = joined(host, prefix, 1)
    assert content(late) == expected
    late.kill()
    one.ask("close", 0)
    one.ask("leave", 1)
    host.eventually(lambda: len(host.audit().sessions) == 2, "the late one's session is gone")
    assert host.granules(f"prefix/{prefix['number']}") == PREFIX_GRANULES == host.held_granules
    assert content(two) == expected
    two.ask("release", 0)
    assert is_whole(host)


def test_a_joiner_that_hung_up_and_lives_pins_the_prefix_until_it_is_dead(host: Host) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    orphan = joined(host, prefix, 1)
    orphan.ask("hang_up")
    owner.ask("close", 0)
    host.eventually(lambda: "orphaned" in host.audit().sessions.values(), "the session is orphaned")
    assert host.granules(f"prefix/{prefix['number']}") == PREFIX_GRANULES
    assert content(orphan) == expected
    orphan.kill()
    host.eventually(lambda: is_whole(host), "the prefix is free")


POINTS = [
    "client.publish.unmapped",
    "client.seal.sealed",
    "client.commit.mapped",
    "client.commit.accessible",
    "client.commit.committed",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_publisher_killed_at_any_point_of_its_publish_leaves_nothing(host: Host, point: str) -> None:
    passage = 2 if point.startswith("client.commit") else 1  # the first is the commit's before it
    owner = host.child(failpoints=f"{point}=kill@{passage}")
    owner.ask("open")
    owner.ask("commit", 0, 256)
    assert owner.ask("publish", 0, 256) is None
    assert owner.died_of() == signal.SIGKILL
    host.eventually(lambda: is_whole(host), "all its bytes are free")


@pytest.mark.parametrize("point", ["client.commit.replied", "client.commit.redeemed", "client.join.joined"])
def test_a_joiner_killed_at_any_point_of_its_join_changes_nobody_elses_bytes(host: Host, point: str) -> None:
    owner, prefix = publisher(host)
    expected = content(owner)
    joiner = host.child(failpoints=f"{point}=kill")
    joiner.ask("open")
    assert joiner.ask("join", 0, prefix, PREFIX_TOKENS) is None
    assert joiner.died_of() == signal.SIGKILL
    host.eventually(lambda: len(host.audit().sessions) == 1, "its session is gone")
    assert content(owner) == expected
    owner.ask("close", 0)
    assert is_whole(host)


def test_what_is_retained_outlives_its_process_and_is_joined_by_another(host: Host) -> None:
    writer = host.child()
    writer.ask("open")
    writer.ask("commit", 0, 256)
    writer.ask("fill", 0, 0, 16 * GRANULE, 9)
    expected = writer.ask("digest", 0, 0, 16 * GRANULE)
    retained = writer.ask("close", 0, 256)
    writer.kill()
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    reader = host.child()
    reader.ask("open")
    assert reader.ask("join", 0, retained, 256) == 255
    assert reader.ask("digest", 0, 0, 16 * GRANULE) == expected
    assert host.held_granules == 16


# --- found by their tokens --------------------------------------------------------------------------------------------

IDS = list(range(PREFIX_TOKENS))


def answered(host: Host) -> str:
    """A process computed a prompt and is gone; what it left, hashed."""
    writer = host.child()
    writer.ask("open", "token-major", "root")
    assert writer.ask("find", 0, IDS, PREFIX_TOKENS) == 0
    writer.ask("fill", 0, 0, PREFIX_BYTES, 9)
    expected = content(writer)
    writer.ask("close", 0, PREFIX_TOKENS)
    writer.kill()
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    return expected


def test_what_one_process_computed_another_finds_by_its_tokens_after_the_first_is_dead(host: Host) -> None:
    expected = answered(host)
    reader = host.child()
    reader.ask("open", "token-major", "root")
    assert reader.ask("find", 0, [*IDS, 7], PREFIX_TOKENS + 16) == PREFIX_TOKENS
    assert content(reader) == expected
    assert reader.ask("figures", 0) == [PREFIX_TOKENS + 16, GRANULE, PREFIX_BYTES]
    assert host.held_granules == PREFIX_GRANULES + 1


FIND_POINTS = ["client.commit.replied", "client.commit.redeemed", "client.commit.mapped", "client.join.joined"]


@pytest.mark.parametrize("point", FIND_POINTS)
def test_a_client_killed_at_any_point_of_its_find_leaves_no_pin_and_what_it_found_stays(host: Host, point: str) -> None:
    expected = answered(host)
    child = host.child(failpoints=f"{point}=kill")
    child.ask("open", "token-major", "root")
    assert child.ask("find", 0, IDS, PREFIX_TOKENS + 16) is None
    assert child.died_of() == signal.SIGKILL
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    [prefix] = host.audit().prefixes.values()
    assert (prefix.users, prefix.pins, host.held_granules) == (0, 0, PREFIX_GRANULES)
    reader = host.child()
    reader.ask("open", "token-major", "root")
    assert reader.ask("find", 0, IDS, PREFIX_TOKENS) == PREFIX_TOKENS - 1
    assert content(reader) == expected


# --- the cache of imports -------------------------------------------------------------------------------------------


def test_handles_that_come_again_are_not_imported_again(host: Host) -> None:
    child = host.child()
    child.ask("open")
    for _ in range(3):
        child.ask("commit", 0, 256)
        child.ask("fill", 0, 0, 16 * GRANULE, 3)
        child.ask("release", 0)
    assert child.ask("imported") == [16, 16, 3]


def test_an_import_of_memory_that_is_gone_is_dropped_and_the_kernel_has_it_back(host: Host) -> None:
    owner, _ = publisher(host)
    assert owner.ask("descriptors") == PREFIX_GRANULES * 2  # as they were before the seal, and after it
    owner.ask("release", 0)
    assert is_whole(host)
    host.eventually(lambda: owner.ask("listen") == 0 and owner.ask("descriptors") == 0, "the imports are dropped")
    assert host.held_granules == 0


@pytest.mark.parametrize("host", ["host"], indirect=True)  # a stand-in's mapping holds a descriptor itself
def test_a_client_that_hangs_up_keeps_no_descriptor(host: Host) -> None:
    child = host.child()
    child.ask("open")
    child.ask("commit", 0, 256)
    assert child.ask("descriptors") == 16
    child.ask("hang_up")
    assert child.ask("descriptors") == 0
    child.ask("fill", 0, 0, 16 * GRANULE, 3)
