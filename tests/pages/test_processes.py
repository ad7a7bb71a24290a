"""Clients in processes of their own that die, hang up or write where they must not: what is left, and who is hurt."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kvcluster.attach.server import open_attach_server
from kvcluster.paged.block_pool import BlockPool
from kvcluster.services.pages.local import page_service
from kvcluster.testing.clock import ManualClock
from tests.nursery import Nursery
from tests.pages.world import PITCH_BYTES, SIZE
from tests.piped import TIMEOUT_S, Piped

BLOCKS = 64
PROMPT = list(range(20, 20 + 10))


class Host:
    """Pages served over the attach socket; `close` ends its children first."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        pool = BlockPool(BLOCKS, SIZE, 2, 1, 4, dtype=torch.float32)
        self.clock = ManualClock()
        self.service = page_service(pool, "host-kv", epoch=1, clock=self.clock)
        self.server = open_attach_server("host-kv", self.service)
        self._thread = threading.Thread(target=self.server.serve)
        self._thread.start()
        self._children: list[Piped] = []

    def child(self, *, failpoints: str = "") -> Piped:
        self._children.append(Piped(self._nursery.born(self.server.address.replace("\0", "@"), failpoints=failpoints)))
        self._children[-1].answered = self.service.frame
        assert self._children[-1].answer() == "ready"
        return self._children[-1]

    def blocks(self, kind: str) -> int:
        accounts = self.service.audit().accounts
        return sum(size for name, size in accounts.items() if name.split("/")[0] == kind) // PITCH_BYTES

    def eventually(self, holds: Callable[[], bool], what: str) -> None:
        deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
        while not holds():
            assert time.monotonic() < deadline, f"never: {what}"
            pause.wait(0.005)

    def expire(self, session: str) -> None:
        """This one is not heard for longer than its lease, and all others are."""
        while (seen := self.service.audit()).sessions[session] == "live":  # what it sent before may come in between
            self.clock.advance(1)
            for other in seen.sessions.keys() - {session}:
                self.service.heartbeat(other)
            self.service.idle()

    def is_alone_with(self, sessions: int) -> None:
        self.eventually(lambda: len(self.service.audit().sessions) == sessions, f"{sessions} sessions are left")

    def close(self) -> None:
        for child in self._children:
            child.end()
        self.server.close()
        self._thread.join(TIMEOUT_S)
        self.service.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    opened = Nursery("tests.pages.child")
    yield opened
    opened.close()


@pytest.fixture
def host(nursery: Nursery) -> Iterator[Host]:
    opened = Host(nursery)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def author(host: Host) -> Piped:
    """A client whose prompt others find."""
    child = host.child()
    assert child.ask("begin", PROMPT) == 0
    child.ask("publish", 0)
    return child


def test_a_second_process_reads_what_the_first_wrote_and_its_writes_stay_its_own(host: Host, author: Piped) -> None:
    other = host.child()
    assert other.ask("begin", [*PROMPT, 1, 2, 3]) == 2 * SIZE
    other.ask("append", 0, [4] * 9)
    author.ask("append", 0, [5] * 9)
    assert other.ask("check", 0)
    assert author.ask("check", 0)
    assert other.ask("blocks", 0)[:2] == author.ask("blocks", 0)[:2]


@pytest.mark.parametrize("entry", [0, 1])
def test_a_stray_write_into_what_others_find_ends_its_own_process_alone(host: Host, author: Piped, entry: int) -> None:
    other = host.child()
    other.ask("begin", [*PROMPT, 1, 2, 3])
    block = author.ask("blocks", 0)[entry]
    for child in (other, author):
        assert child.ask("stray_write", block) is None
        assert child.died_of() == signal.SIGSEGV
    host.is_alone_with(0)
    late = host.child()
    assert late.ask("begin", PROMPT) == 2 * SIZE
    assert late.ask("check", 0)


def test_a_stray_write_into_another_processs_own_block_or_a_free_one_ends_the_writer(host: Host, author: Piped) -> None:
    own = author.ask("blocks", 0)[2]
    for block in (own, BLOCKS - 1):
        other = host.child()
        assert other.ask("stray_write", block) is None
        assert other.died_of() == signal.SIGSEGV
    assert author.ask("check", 0)


def test_a_stray_write_into_what_a_fork_shares_ends_the_process_of_the_fork(host: Host) -> None:
    child = host.child()
    child.ask("begin", PROMPT)
    child.ask("fork", 0, 1)
    assert child.ask("stray_write", child.ask("blocks", 0)[0]) is None
    assert child.died_of() == signal.SIGSEGV


@pytest.mark.parametrize(
    ("what", "answers"),
    [("find", "opened paged"), ("grant", "opened granted"), ("both", "opened paged granted")],
)
def test_a_client_killed_after_half_of_an_ask_leaves_no_pin_and_no_grant(
    host: Host, author: Piped, what: str, answers: str
) -> None:
    """CASES 29: between a find, or a grant, and anything that would follow it."""
    dying = host.child()
    assert dying.ask("raw", what) == answers
    dying.kill()
    host.is_alone_with(1)
    assert (host.blocks("granted"), host.blocks("quarantine"), host.blocks("prefix")) == (0, 0, 2)
    author.ask("end", 0)
    assert (host.blocks("retained"), host.blocks("free")) == (2, BLOCKS - 2)


@pytest.mark.parametrize("point", ["client.commit.ask", "client.commit.replied"])
@pytest.mark.parametrize("passage", [1, 2, 3, 4])
def test_a_client_killed_before_or_after_any_frame_leaves_nothing_and_hurts_nobody(
    host: Host, author: Piped, point: str, passage: int
) -> None:
    dying = host.child(failpoints=f"{point}=kill@{passage}")
    steps: list[tuple[object, ...]] = [
        ("begin", [*PROMPT, 1]),
        ("append", 0, [1] * SIZE),
        ("fork", 0, 2),
        ("append", 1, [2] * SIZE),
    ]
    said = [dying.ask(str(verb), *arguments) for verb, *arguments in steps[: passage - 1]]
    assert said == [2 * SIZE, None, None][: passage - 1]
    verb, *arguments = steps[passage - 1]
    assert dying.ask(str(verb), *arguments) is None
    assert dying.died_of() == signal.SIGKILL
    host.is_alone_with(1)
    assert (host.blocks("request"), host.blocks("prefix"), host.blocks("quarantine")) == (1, 2, 0)
    assert author.ask("check", 0)
    author.ask("end", 0, True)
    assert host.blocks("free") == BLOCKS - 2


def test_what_a_client_left_for_others_outlives_its_process(host: Host) -> None:
    child = host.child()
    child.ask("begin", PROMPT)
    child.ask("end", 0, True)
    child.kill()
    host.is_alone_with(0)
    late = host.child()
    assert late.ask("begin", PROMPT) == 2 * SIZE
    assert late.ask("check", 0)


def test_a_process_that_is_stopped_keeps_its_rows_from_everybody_and_leaves_nothing_once_it_goes_on(
    host: Host, author: Piped
) -> None:
    earlier = host.service.audit().pids
    stopped = host.child()
    [(session, pid)] = host.service.audit().pids.items() - earlier.items()
    stopped.ask("begin", [*PROMPT, 1])
    stopped.ask("append", 0, [1] * 2 * SIZE)
    written = stopped.ask("blocks", 0)[2:]
    os.kill(pid, signal.SIGSTOP)
    host.expire(session)
    assert host.blocks("quarantine") == len(written)
    other = host.child()
    other.ask("begin", [7] * 4)
    other.ask("append", 0, [8] * 8 * SIZE)
    assert not {*other.ask("blocks", 0)} & {*written}
    os.kill(pid, signal.SIGCONT)
    assert stopped.ask("check", 0)
    assert stopped.ask("append", 0, [2] * SIZE)["error"] == "SessionEnded"
    assert stopped.ask("in_touch")["error"] == "DeviceUnreachable"  # it gave all of it back, and nobody finds another
    assert (host.blocks("quarantine"), stopped.lives) == (0, True)
    host.is_alone_with(2)
    assert author.ask("check", 0)
    assert other.ask("check", 0)


def test_a_client_that_hung_up_and_lives_keeps_its_own_blocks_from_everybody_until_it_is_dead(
    host: Host, author: Piped
) -> None:
    orphan = host.child()
    orphan.ask("begin", [*PROMPT, 1])
    orphan.ask("fork", 0, 1)
    orphan.ask("append", 1, [1, 2, 3, 4, 5])
    written = orphan.ask("blocks", 1)[2:]
    orphan.ask("hang_up")
    host.eventually(lambda: "orphaned" in host.service.audit().sessions.values(), "the session is orphaned")
    assert host.blocks("quarantine") == len(written) == 2
    others = host.child()
    others.ask("begin", [7] * 4)
    for _ in range(8):
        others.ask("append", 0, [8] * SIZE)
    assert not {*others.ask("blocks", 0)} & {*written}
    assert orphan.ask("stray_write", written[0]) is None
    assert orphan.lives
    assert others.ask("check", 0)
    assert author.ask("check", 0)
    orphan.kill()
    host.eventually(lambda: host.blocks("quarantine") == 0, "its blocks are free")
