"""A copy or a change of access that fails at any call: nobody's rows change, and all is back, or in quarantine."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from kvcluster.driver import linux
from kvcluster.errors import DriverError, OutOfBudget
from kvcluster.index.token_chain import packed
from kvcluster.services.asks import End, Find, Grow, Outcome, Publish, Shed
from kvcluster.services.pages.asks import Fork, Permute
from kvcluster.services.pages.local import LocalPages
from tests.pages.frames import page_host
from tests.pages.test_finding_and_sharing import LONG, written
from tests.pages.world import PITCH_BYTES, SIZE, Writer, small_pages

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


class Protection:
    """Changes of access: call number `failing` from now on fails, or each while it `fails_always`; `calls` so far."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failing = self.calls = 0
        self.fails_always = False
        self._honest = linux.protect
        monkeypatch.setattr(linux, "protect", self)

    def __call__(self, address: int, size_bytes: int, protection: int) -> None:
        self.calls += 1
        if self.calls == self.failing or self.fails_always:
            raise OSError(errno.ENOMEM, "no more mappings")
        self._honest(address, size_bytes, protection)

    @contextmanager
    def failing_at(self, call: int) -> Iterator[None]:
        self.failing, self.calls = call, 0
        yield
        self.failing = 0


@pytest.fixture
def protection(monkeypatch: pytest.MonkeyPatch) -> Protection:
    return Protection(monkeypatch)


class Scene:
    """A sequence whose blocks lie apart, a fork of it, one beside them, and one that is new."""

    def __init__(self, pages: LocalPages) -> None:
        self.pages = pages
        self.one, other = Writer(pages.port), Writer(pages.port)
        self.one.begin(PROMPT)
        other.begin([7])
        for value in range(2):
            self.one.append([value] * SIZE)
            other.append([value] * SIZE)
        other.end()
        self.fork = Writer(pages.port)
        pages.port.one(Fork(self.one.memory, (self.fork.memory,), len(self.one.tokens)))
        self.fork.tokens, self.fork.told = list(self.one.tokens), self.one.told
        self.fresh, self.new = Writer(pages.port), Writer(pages.port)
        self.fresh.begin([5] * 9)

    def submit(self, ask: object) -> Outcome:
        [outcome] = self.pages.port.submit([ask]).settle()
        return outcome

    def check(self) -> None:
        for writer in (self.one, self.fork, self.fresh):
            if writer.memory.blocks:
                writer.check()
        self.pages.audit()


ASKS: dict[str, Callable[[Scene], object]] = {
    "grow": lambda s: Grow(s.one.memory, len(s.one.tokens) + 3 * SIZE),
    "grow the fork": lambda s: Grow(s.fork.memory, len(s.fork.tokens) + 2 * SIZE),
    "find": lambda s: Find(s.new.memory, packed(PROMPT), len(PROMPT) + SIZE),
    "fork": lambda s: Fork(s.one.memory, (s.new.memory,), len(s.one.tokens)),
    "permute": lambda s: Permute(s.one.memory, (s.one.memory, s.fork.memory), (1, 0), len(s.one.tokens)),
    "publish": lambda s: Publish(s.fresh.memory, 2 * SIZE),
    "shed": lambda s: Shed(s.one.memory),
    "end": lambda s: End(s.one.memory, 2 * SIZE),
}


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("published", [False, True])
def test_access_that_fails_at_any_call_of_an_ask_changes_nobodys_rows_and_loses_no_block(
    protection: Protection, name: str, published: bool
) -> None:
    for failing_call in itertools.count(1):
        with small_pages(40) as pages:
            scene = Scene(pages)
            if published:
                scene.one.publish()
            scene.one.append([1])
            scene.fork.append([2, 3])
            if name == "permute":
                scene.one.append([4])
            with protection.failing_at(failing_call):
                outcome = scene.submit(ASKS[name](scene))
                failed = protection.calls >= failing_call
            assert isinstance(outcome.error, DriverError) == failed
            if outcome.error is None and name == "permute":
                scene.one.tokens, scene.fork.tokens = scene.fork.tokens, scene.one.tokens
            scene.check()
            everybody_goes_on(scene, name)
        if not failed:
            assert failing_call > 1
            break


def everybody_goes_on(scene: Scene, name: str) -> None:
    """Whoever holds something writes more; then all end, and nothing is missing but what may still be written."""
    for writer in (scene.one, scene.fork, scene.fresh):
        if writer.memory.blocks:
            writer.append([9])
            writer.append([8] * SIZE)
        scene.check()
    for writer in (scene.one, scene.fork, scene.fresh, scene.new):
        writer.memory.close()
    accounts = scene.pages.audit().accounts
    kinds = {account.split("/")[0] for account in accounts}
    assert kinds <= {"free", "retained", "quarantine"}
    assert ("quarantine" in kinds) <= (name in ("shed", "end"))


def test_a_find_whose_access_fails_keeps_what_it_found_and_grows_when_it_asks_again(protection: Protection) -> None:
    with small_pages(20) as pages:
        first = Writer(pages.port)
        first.begin(PROMPT)
        first.end(retain=True)
        second = Writer(pages.port)
        with protection.failing_at(1):
            [outcome] = pages.port.submit([Find(second.memory, packed(PROMPT), len(PROMPT))]).settle()
        assert isinstance(outcome.error, DriverError)
        assert outcome.joined_tokens == second.memory.tokens == 2 * SIZE
        second.tokens = PROMPT[: 2 * SIZE]
        second.check()
        second.append(PROMPT[2 * SIZE :])
        second.check()
        second.end()


def test_blocks_that_may_still_be_written_are_nobodys_until_the_process_is_gone(protection: Protection) -> None:
    with small_pages(20) as pages:
        port = pages.open_port()
        writer = Writer(port)
        writer.begin(PROMPT)
        with protection.failing_at(1):
            [outcome] = port.submit([Shed(writer.memory)]).settle()
        assert isinstance(outcome.error, DriverError)
        assert pages.audit().accounts == {"free": 17 * PITCH_BYTES, "quarantine": 3 * PITCH_BYTES}
        assert port.quarantined_bytes == 3 * PITCH_BYTES
        port.close()
        assert pages.audit().accounts["quarantine"] == 3 * PITCH_BYTES
        pages.service.gone(port.session)
        assert pages.audit().accounts == {"free": 20 * PITCH_BYTES}


@pytest.mark.parametrize("common", [5, 10, 15])
def test_a_copy_that_fails_leaves_neither_pin_nor_block_nor_grant_behind(common: int) -> None:
    """CASES 29, of a find whose commit breaks off."""
    with page_host() as host:
        client = host.client()
        written(host, client, LONG)
        sequence = client.open()
        before, store = host.picture(), host.pool.store
        honest = store.copy_tokens

        def failing(source: int, target: int, tokens: int) -> None:
            raise DriverError(call="copy", code=5, name="EIO")

        store.copy_tokens = failing  # type: ignore[method-assign]
        for ops in ((), (sequence.grant_op(common, 77), sequence.commit_op(common, 77))):
            with pytest.raises(DriverError):
                client.ask(sequence.find_op([*LONG[:common], 1]), *(ops or sequence.grow_ops(common + 1)))
            assert host.picture() == before
        store.copy_tokens = honest  # type: ignore[method-assign]
        assert sequence.find([*LONG[:common], 1]) == common


def test_a_copy_on_write_that_fails_leaves_the_fork_as_it_was() -> None:
    with page_host() as host:
        client = host.client()
        parent = client.open()
        parent.grow(6)
        host.write(parent.blocks[1], [1.0, 2.0])
        [child] = parent.fork(6)
        before, store, honest = host.picture(), host.pool.store, host.pool.store.copy_tokens

        def failing(source: int, target: int, tokens: int) -> None:
            raise DriverError(call="copy", code=5, name="EIO")

        store.copy_tokens = failing  # type: ignore[method-assign]
        with pytest.raises(DriverError):
            child.grow(7)
        assert host.picture() == before
        store.copy_tokens = honest  # type: ignore[method-assign]
        child.grow(7)
        assert host.rows(child.blocks[1])[:2] == [1.0, 2.0] == host.rows(parent.blocks[1])[:2]


def test_a_group_that_is_refused_at_its_end_has_found_nothing() -> None:
    """CASES 29, of a find whose grant is refused."""
    with page_host(10) as host:
        client = host.client()
        written(host, client, LONG)
        other = client.open(max_tokens=6 * SIZE)
        other.grow(6 * SIZE)
        sequence = client.open(max_tokens=9 * SIZE)
        before = host.picture()
        for _ in range(3):
            with pytest.raises(OutOfBudget) as refused:
                client.ask(sequence.find_op([*LONG, 1]), *sequence.grow_ops(6 * SIZE))
            assert (refused.value.need, refused.value.free) == (2 * PITCH_BYTES, 0)
            assert host.picture() == before
        other.close()
        assert sequence.find([*LONG, 1], room=7) == len(LONG)
