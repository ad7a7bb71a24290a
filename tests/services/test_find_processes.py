"""Who finds, or is to be found, is killed at any point of it: no user is left, and nobody else's bytes change."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.nursery import Nursery
from tests.piped import Piped
from tests.services.processes import GRANULE, Host, opened_host

TOKENS = 256  # of 256 bytes: 16 granules
IDS = list(range(TOKENS))
GRANULES = 16


@pytest.fixture(params=["host", "cuda"])
def host(request: pytest.FixtureRequest, nursery: Nursery, nothing_left: None) -> Iterator[Host]:
    """A device of the host, and a GPU's of a stand-in whose granule is as small."""
    with opened_host(request.param, nursery) as host:
        yield host


def looking(host: Host, failpoints: str = "") -> Piped:
    """A process whose memory 0 holds nothing yet."""
    child = host.child(failpoints=failpoints)
    child.ask("open", "token-major", "root")
    return child


def written(host: Host, failpoints: str = "") -> Piped:
    """One that found nothing, and has written so many tokens."""
    child = looking(host, failpoints)
    assert child.ask("find", 0, IDS, TOKENS) == 0
    for granule in range(GRANULES):
        child.ask("fill", 0, granule * GRANULE, GRANULE, granule + 1)
    return child


def content(child: Piped) -> str:
    said: str = child.ask("digest", 0, 0, GRANULES * GRANULE)
    return said


def users(host: Host) -> list[int]:
    """Of each prefix: who uses it, or may have it mapped."""
    return [prefix.users + prefix.pins for prefix in host.audit().prefixes.values()]


def claimed(host: Host) -> int:
    """Granules that are not free."""
    seen = host.audit()
    return (seen.capacity_bytes - seen.free_bytes) // GRANULE


FINDING = ["client.commit.accessible", "client.commit.committed"]  # of its growth; more in `test_prefix_processes`


@pytest.mark.parametrize("point", FINDING)
def test_who_is_killed_in_the_middle_of_a_find_leaves_no_user_and_the_bytes_as_they_were(
    host: Host, point: str
) -> None:
    writer = written(host)
    expected = content(writer)
    assert writer.ask("close", 0, TOKENS)
    finder = looking(host, f"{point}=kill")
    assert finder.ask("find", 0, IDS, TOKENS + 64) is None
    assert finder.died_of() == signal.SIGKILL
    host.eventually(lambda: len(host.audit().sessions) == 1, "its session is gone")
    assert (users(host), claimed(host)) == ([0], GRANULES)
    late = looking(host)
    assert late.ask("find", 0, IDS, TOKENS + 64) == TOKENS - 1
    assert content(late) == expected


def test_who_is_killed_right_after_a_find_leaves_no_user_and_what_others_read(host: Host) -> None:
    writer = written(host)
    expected = content(writer)
    writer.ask("publish", 0, TOKENS)
    finders = [looking(host), looking(host)]
    for finder in finders:
        assert finder.ask("find", 0, IDS, TOKENS) == TOKENS - 1
    assert users(host) == [3]
    finders[0].kill()
    writer.kill()
    host.eventually(lambda: len(host.audit().sessions) == 1, "their sessions are gone")
    assert (users(host), content(finders[1])) == ([1], expected)
    finders[1].kill()
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    assert (users(host), claimed(host), host.held_granules) == ([0], GRANULES, GRANULES)


SEALED = {
    "client.publish.unmapped": False,
    "client.commit.replied": False,
    "client.seal.sealed": True,
    "client.commit.committed": True,
}


@pytest.mark.parametrize("point", SEALED)
def test_a_publisher_that_is_killed_is_found_from_its_seal_on_and_not_before(host: Host, point: str) -> None:
    """It finds and writes first: those passages are counted out."""
    passage = {"client.commit.replied": 2, "client.commit.committed": 3}.get(point, 1)
    publisher = written(host, f"{point}=kill@{passage}")
    expected = content(publisher)
    assert publisher.ask("publish", 0, TOKENS) is None
    assert publisher.died_of() == signal.SIGKILL
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    seen = host.audit()
    assert (seen.listed_prefixes, len(seen.prefixes)) == (SEALED[point], SEALED[point])
    late = looking(host)
    assert late.ask("find", 0, IDS, TOKENS) == (TOKENS - 1) * SEALED[point]
    assert (content(late) == expected) is SEALED[point]


def test_who_is_killed_while_it_ends_leaves_nothing_to_find(host: Host) -> None:
    """Its windows are unmapped by then, and the device has not heard of it."""
    writer = written(host, "client.release.unmapped=kill")
    assert writer.ask("close", 0, TOKENS) is None
    host.eventually(lambda: not host.audit().sessions, "its session is gone")
    assert host.audit().accounts == {"free": host.audit().capacity_bytes}
    assert looking(host).ask("find", 0, IDS, TOKENS) == 0
