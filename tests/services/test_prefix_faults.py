"""Every driver call of every verb on a prefix fails once, or for ever, and so does every call of its undo.

After each: the books sum, what requests are charged is what their memories have mapped, whatever else is mapped is in
quarantine or pins its prefix, and a third request that uses the prefix reads what it always read. Then the driver
works again: everything is closed, and what is left is freed by the end of the process and by nothing else.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from kvcluster.errors import KvClusterError
from kvcluster.geometry.layout import Layout
from kvcluster.mapping.address_range import LeakedOnPurpose
from kvcluster.services.asks import Join
from kvcluster.services.prefix import Prefix
from kvcluster.services.sequence import SequenceMemory
from kvcluster.testing.faulty_driver import Call, Plan, failing, failing_every, failing_then
from kvcluster.testing.invariants import assert_ledger_balances
from tests.services.prefixes import M, fill_own
from tests.services.world import GRANULE, Sizes, World, digest, fill

ROOT, IDS = b"r" * 32, range(4000, 4160)
OpenWorld = Callable[..., World]


@pytest.fixture
def gpu(on_both: str) -> str:
    return on_both


class Scene:
    """A prefix with two users: its publisher, grown since, and a witness; and a joiner that is what a verb needs."""

    def __init__(self, world: World, layout: Layout) -> None:
        self.world = world
        self.owner = world.open(layout=layout, cache_root=ROOT)
        self.owner.find(IDS, M)
        fill(self.owner)
        self.prefix: Prefix = self.owner.publish(64)
        self.witness = world.open(layout=layout)
        self.witness.join(self.prefix, 64)
        self.owner.commit(128, self.owner.grant(128))
        fill_own(self.owner)
        self.content = digest(self.witness)
        self.joiner = world.open(layout=layout, cache_root=ROOT)

    @property
    def memories(self) -> tuple[SequenceMemory, ...]:
        return (self.owner, self.witness, self.joiner)

    def joined(self) -> Scene:
        self.joiner.join(self.prefix, 64)
        self.joiner.commit(128, self.joiner.grant(128))
        fill_own(self.joiner)
        return self


def publish(scene: Scene) -> None:
    scene.owner.publish(128)


def join(scene: Scene) -> None:
    scene.joiner.join(scene.prefix, 64)


def join_and_grow(scene: Scene) -> None:
    [outcome] = scene.world.device.port.submit([Join(scene.joiner, scene.prefix, 64, grow_to=128)]).settle()
    if outcome.error:
        raise outcome.error


def find(scene: Scene) -> None:
    scene.joiner.find(IDS, 128)


def leave(scene: Scene) -> None:
    scene.joiner.leave()


def release(scene: Scene) -> None:
    scene.joiner.release()


def close(scene: Scene) -> None:
    scene.joiner.close()


def close_and_retain(scene: Scene) -> None:
    scene.joiner.close(retain_tokens=128)


def close_and_list(scene: Scene) -> None:
    scene.joiner.close(retain_tokens=128, token_ids=IDS[:128])


FRESH, JOINED = [publish, join, join_and_grow, find], [leave, release, close, close_and_retain, close_and_list]
VERBS = [*FRESH, *JOINED]


@dataclass(slots=True)
class Attempt:
    scene: Scene
    error: KvClusterError | None
    calls: tuple[Call, ...]

    @property
    def failed_calls(self) -> list[str]:
        return [call.name for call in self.calls if call.failed]


def attempt(world: World, verb: Callable[[Scene], None], plan: Plan, layout: Layout = Layout.SEQ_MAJOR) -> Attempt:
    scene = Scene(world, layout)
    if verb in JOINED:
        scene.joined()
    world.driver.follow(plan)
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakedOnPurpose)
        try:
            verb(scene)
        except KvClusterError as failure:
            error = failure
    return Attempt(scene, error, world.healed())


def assert_consistent(made: Attempt) -> None:
    world, scene = made.scene.world, made.scene
    assert_ledger_balances(world.device)
    mapped = sum(memory.committed_bytes for memory in scene.memories) // GRANULE
    assert world.granules("requests") <= mapped <= world.granules("requests") + world.granules("quarantine")
    assert digest(scene.witness) == scene.content
    assert world.granules(f"prefix/{scene.prefix.number}") == scene.witness.shared_bytes // GRANULE


def assert_ends_whole(made: Attempt) -> None:
    """Whoever is left closes; what stays is the process's and ends with it."""
    world = made.scene.world
    for memory in made.scene.memories:
        memory.close()
    assert_ledger_balances(world.device)
    assert world.granules("requests") == 0
    world.service.gone(world.device.port.session)
    accounts = world.device.statistics().accounts  # this process lives, so that its mappings do too: no audit
    kept = {name: size for name, size in accounts.items() if name.partition("/")[0] not in ("free", "retained")}
    assert sum(kept.values()) == GRANULE * made.failed_calls.count("release")  # a handle that the driver keeps


@pytest.mark.parametrize(
    ("on_both", "layout"),
    [("host", Layout.TOKEN_MAJOR), ("host", Layout.SEQ_MAJOR), ("cuda:0", Layout.SEQ_MAJOR)],
    indirect=["on_both"],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_fails_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[Scene], None], layout: Layout
) -> None:
    for failing_call in itertools.count(1):
        made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing(failing_call), layout)
        assert_consistent(made)
        assert_ends_whole(made)
        if not made.failed_calls:
            assert made.error is None
            break
    assert failing_call > len({call.name for call in made.calls})


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_undo_fails_too_at_any_call_leaves_books_that_sum(
    open_world: OpenWorld, verb: Callable[[Scene], None]
) -> None:
    for first in itertools.count(1):
        for second in (1, 2, 3):
            made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing_then(first, second))
            assert_consistent(made)
            assert_ends_whole(made)
            if len(made.failed_calls) < 2:  # so many calls do not follow
                break
        if not made.failed_calls:
            break
    assert first > 1


@pytest.mark.parametrize(
    "broken",
    ["create", "release", "map", "set_access", "unmap", "synchronize", "seal", "set_access unmap", "map unmap"],
)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_books_that_sum_where_a_call_fails_for_ever(
    open_world: OpenWorld, verb: Callable[[Scene], None], broken: str
) -> None:
    made = attempt(open_world(Sizes(pool=0, capacity=128)), verb, failing_every(*broken.split()))
    assert_consistent(made)
    assert_ends_whole(made)
