"""A capture that would begin before driver call 1, 2, 3 ... of a verb begins after the whole of it, or before it all.

Asked in a capture's way, a verb waits or is refused with nothing changed; never half of it, never a quarantine. And
whoever waits holds nothing that the capturing thread needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcluster.driver.gate import Meanwhile, capture_gate
from kvcluster.errors import DriverError
from kvcluster.services.asks import Join
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import Grant, SequenceMemory
from kvcluster.testing.capturing import LIMIT_S, Capturer
from kvcluster.testing.invariants import assert_ledger_balances, assert_nothing_lost, picture
from tests.services.prefixes import M
from tests.services.world import Sizes, WireClient, World

ROOT, IDS = b"r" * 32, range(128)
OpenWorld = Callable[..., World]
BOTH = pytest.mark.parametrize("meanwhile", list(Meanwhile))


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


class Scene:
    """A prefix with its publisher, one that has joined it and grown, one that can grow, and one that is new."""

    def __init__(self, open_world: OpenWorld) -> None:
        self.world: World = open_world(Sizes(capacity=64, pool=2))
        self.port = self.world.device.port
        self.owner = self.world.open(cache_root=ROOT)
        self.owner.find(IDS, M)
        self.prefix: Prefix = self.owner.publish(64)
        self.joiner = self.world.open()
        self.joiner.join(self.prefix, 64)
        self.joiner.commit(128, self.joiner.grant(128))
        self.grower = self.world.grown(M)
        self.held: Grant = self.grower.grant(160)
        self.fresh: SequenceMemory = self.world.open()
        self.finder = self.world.open(cache_root=ROOT)

    def end(self) -> None:
        """Everything goes back, and nothing was lost."""
        self.world.healed()
        assert "quarantine" not in assert_ledger_balances(self.world.device).accounts
        for memory in self.port.memories():
            memory.close()
        self.world.device.close()
        assert_nothing_lost(self.world.device)


def join_and_grow(scene: Scene) -> None:
    with capture_gate.passage("join and grow"):  # as an engine may whose step boundary is one operation
        [outcome] = scene.port.submit([Join(scene.fresh, scene.prefix, 64, grow_to=128)]).settle()
    assert outcome.error is None


VERBS: dict[str, Callable[[Scene], object]] = {
    "open": lambda scene: scene.world.open(),
    "grant": lambda scene: scene.fresh.grant(M),
    "commit": lambda scene: scene.grower.commit(160, scene.held),
    "publish": lambda scene: scene.grower.publish(M),
    "join": lambda scene: scene.fresh.join(scene.prefix, 64),
    "join and grow": join_and_grow,
    "find": lambda scene: scene.finder.find(IDS, 128),
    "leave": lambda scene: scene.joiner.leave(),
    "release": lambda scene: scene.joiner.release(),
    "close": lambda scene: scene.owner.close(),
    "close and retain": lambda scene: scene.grower.close(retain_tokens=64),
    "fill": lambda scene: scene.world.device.fill(),
    "end the device": lambda scene: scene.world.device.close(),
}
every_verb = pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)


@BOTH
@every_verb
def test_a_capture_that_begins_at_any_call_of_a_verb_waits_for_the_whole_of_it(
    open_world: OpenWorld, verb: Callable[[Scene], object], meanwhile: Meanwhile
) -> None:
    for number in itertools.count(1):
        scene = Scene(open_world)
        driver = scene.world.driver
        with Capturer(meanwhile, look=lambda driver=driver: len(driver.log())) as capturer:  # type: ignore[misc]
            driver.follow(capturer.begins_at(number))
            verb(scene)
            if capturer.has_begun:
                assert capturer.seen() == len(driver.log())
        scene.end()
        if not capturer.has_begun:
            break


@every_verb
def test_a_verb_that_comes_in_a_capture_is_refused_before_anything_changes(
    open_world: OpenWorld, verb: Callable[[Scene], object]
) -> None:
    scene = Scene(open_world)
    before = picture(scene.world.device)
    with Capturer(Meanwhile.REFUSE, look=lambda: None) as capturer:
        capturer.begin()
        capturer.seen()
        calls = len(scene.world.driver.log())
        with pytest.raises(DriverError, match="EBUSY"):
            verb(scene)
        assert len(scene.world.driver.log()) == calls
    assert picture(scene.world.device) == before
    verb(scene)
    scene.end()


@every_verb
def test_a_verb_that_comes_in_a_capture_waits_holding_nothing_that_the_capturing_thread_needs(
    open_world: OpenWorld, verb: Callable[[Scene], object]
) -> None:
    scene = Scene(open_world)
    with ThreadPoolExecutor(1) as others, capture_gate.closed(Meanwhile.WAIT):
        waiting = others.submit(verb, scene)
        while not capture_gate.waiting:
            assert not waiting.done()
        calls = len(scene.world.driver.log())
        assert scene.world.device.statistics().capacity_bytes > 0
        with pytest.raises(DriverError, match="EBUSY"):
            scene.grower.commit(160, scene.held)
        assert len(scene.world.driver.log()) == calls
    waiting.result(timeout=LIMIT_S)
    scene.end()


@BOTH
@pytest.mark.parametrize("event", ["disconnected", "gone", "idle", "fill"])
def test_what_comes_unasked_waits_for_a_capture_and_is_never_refused(
    open_world: OpenWorld, event: str, meanwhile: Meanwhile
) -> None:
    world = open_world(Sizes())
    arguments = (WireClient(world.service).session,) if event in ("disconnected", "gone") else ()
    with ThreadPoolExecutor(1) as others, capture_gate.closed(meanwhile):
        waiting = others.submit(getattr(world.service, event), *arguments)
        while not capture_gate.waiting:
            assert not waiting.done()
        assert world.service.statistics().capacity_bytes > 0
        with pytest.raises(DriverError, match=rf"{event} .* EBUSY"):
            getattr(world.service, event)(*arguments)
    waiting.result(timeout=LIMIT_S)
    assert_nothing_lost(world.device)


def test_a_release_that_waited_for_work_is_tended_after_a_capture(open_world: OpenWorld) -> None:
    world = open_world(Sizes())
    memory = world.grown(M)
    with world.working():
        memory.release(after=world.driver.fence())
    with capture_gate.closed(Meanwhile.WAIT), pytest.raises(DriverError, match=r"tend .* EBUSY"):
        world.device.port.tend()
    assert memory.committed_bytes
    while memory.committed_bytes:
        world.device.port.tend()
    memory.close()
    assert_nothing_lost(world.device)
