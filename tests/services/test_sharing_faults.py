"""Each driver call of the device's half of every verb fails once, and so does each call of what follows it.

Nothing changed, or what has changed is what the verb's docstring names; whatever the driver would not give up is in
quarantine and charged; the books sum after each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from kvcluster.budget.quotas import Quotas
from kvcluster.errors import DriverError, KvClusterError, NotShareable, Quarantined
from kvcluster.failpoints import Failpoint
from kvcluster.testing.arming import armed
from kvcluster.testing.faulty_driver import Plan, failing, failing_every, failing_then
from tests.services.device_world import GRANULE, ROOT, WITH_RING, Device, DeviceWorld, Request, refused, windows
from tests.services.sharing.finders import IDS, beside

KEPT = range(5000, 5100)
OpenScene = Callable[..., "Scene"]


@dataclass(slots=True)
class Scene:
    """A publisher with six windows, a prefix of four more, a joiner with two of its own, a kept prefix of four.

    What is kept is found by its tokens, and those of the publisher are known.

    The pool keeps nothing unless asked to, so that each handle that comes back is a call.
    """

    world: DeviceWorld
    owner: Request
    prefix: int
    joiner: Request
    fresh: Request
    kept: int
    handles: list[int]  # the publisher's own, in window order

    @classmethod
    def open(cls, pool: int) -> Scene:
        world = DeviceWorld(Device(pool=pool))
        client = world.client()
        ended = client.open(root=ROOT)
        ended.grow(64, 4)
        kept = ended.close(64, KEPT[:64])
        assert kept is not None
        owner = client.open(root=ROOT)
        owner.find(IDS[:160])
        owner.grow(160, 10)
        handles = client.handles()[4:]
        prefix = owner.share(64)
        other = world.client()
        joiner = other.open()
        other.ask(joiner.join_op(prefix, 70), *joiner.grow_ops(96, 2))
        return cls(world, owner, prefix, joiner, other.open(max_tokens=768, root=ROOT), kept, handles)

    def ends(self) -> None:
        """Whatever happened: with every process gone, and the device closed, only what was lost is not free."""
        self.world.healed()
        for client in (self.owner.client, self.joiner.client):
            self.world.service.gone(client.session)
        self.world.service.close()
        seen = self.world.seen()
        assert set(seen.accounts) <= {"free", "quarantine"}
        assert seen.handles["quarantined"] == seen.accounts.get("quarantine", 0)
        assert not seen.prefixes


@pytest.fixture
def open_scene() -> Iterator[OpenScene]:
    scenes: list[Scene] = []

    def open_one(*, pool: int = 0) -> Scene:
        scenes.append(Scene.open(pool))
        return scenes[-1]

    yield open_one
    for scene in scenes:
        scene.world.clear()


def publish(scene: Scene) -> None:
    scene.owner.publish(128)


def seal(scene: Scene) -> None:
    scene.owner.seal(scene.owner.publish(128).prefix)


def join(scene: Scene) -> None:
    scene.fresh.join(scene.prefix, 70)


def join_and_grow(scene: Scene) -> None:
    scene.fresh.client.ask(scene.fresh.join_op(scene.prefix, 70), *scene.fresh.grow_ops(128, 4))


def join_what_was_kept(scene: Scene) -> None:
    scene.fresh.client.ask(scene.fresh.join_op(scene.kept, 64), *scene.fresh.grow_ops(128, 4))


def find(scene: Scene) -> None:
    fresh = scene.fresh
    fresh.client.ask(fresh.find_op(IDS[:70]), *beside(fresh, 128))


def find_what_was_kept(scene: Scene) -> None:
    fresh = scene.fresh
    fresh.client.ask(fresh.find_op(KEPT), *beside(fresh, 128))


def close_and_list(scene: Scene) -> None:
    owner = scene.owner
    owner.client.ask(owner.leave_op(scene.prefix), owner.close_op(160))


def leave(scene: Scene) -> None:
    scene.owner.leave(scene.prefix)
    scene.joiner.leave(scene.prefix)


def release(scene: Scene) -> None:
    scene.owner.release(windows(5, 4))


def close(scene: Scene) -> None:
    owner = scene.owner
    owner.client.ask(owner.release_op(windows(4, 6)), owner.leave_op(scene.prefix), owner.close_op())
    scene.joiner.close()


def close_and_keep(scene: Scene) -> None:
    scene.owner.client.ask(scene.owner.leave_op(scene.prefix), scene.owner.close_op(130))


def evict(scene: Scene) -> None:
    scene.fresh.grow(48 * 16, 49)


def ring(scene: Scene) -> None:
    request = scene.fresh.client.open(WITH_RING)
    request.grow(96, 11, snapshot=True)
    request.seal(request.publish(70).prefix)


JOINS = [join, join_and_grow, join_what_was_kept, find, find_what_was_kept]
VERBS = [publish, seal, *JOINS, leave, release, close, close_and_keep, close_and_list, evict, ring]
ATOMIC = [publish, *JOINS]  # all or nothing, whatever fails


def attempt(scene: Scene, verb: Callable[[Scene], None], plan: Plan) -> tuple[KvClusterError | None, list[str]]:
    """The error, and the names of the calls that failed."""
    scene.world.driver.follow(plan)
    error = None
    try:
        verb(scene)
    except KvClusterError as failure:
        error = failure
    failed = [call.name for call in scene.world.driver.since_plan() if call.failed]
    scene.world.healed()
    return error, failed


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_fails_at_any_call_leaves_books_that_sum(
    open_scene: OpenScene, verb: Callable[[Scene], None]
) -> None:
    for failing_call in itertools.count(1):
        scene = open_scene()
        before = scene.world.claims()
        error, failed = attempt(scene, verb, failing(failing_call))
        after = scene.world.claims()
        if error and verb in ATOMIC:
            assert without_grants(after) == without_grants(before)
        lost = failed.count("release")
        assert after[0].get("quarantine", 0) >= lost * GRANULE
        scene.ends()
        if not failed:
            assert error is None
            break


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_whose_undo_fails_too_at_any_call_leaves_books_that_sum(
    open_scene: OpenScene, verb: Callable[[Scene], None]
) -> None:
    for first in itertools.count(1):
        for second in (1, 2, 3):
            scene = open_scene()
            _, failed = attempt(scene, verb, failing_then(first, second))
            scene.world.seen()
            scene.ends()
            if len(failed) < 2:  # so many calls do not follow
                break
        if not failed:
            break


@pytest.mark.parametrize("broken", ["create", "seal", "release", "create release", "seal release", "create seal"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leaves_books_that_sum_where_a_call_fails_for_ever(
    open_scene: OpenScene, verb: Callable[[Scene], None], broken: str
) -> None:
    scene = open_scene()
    attempt(scene, verb, failing_every(*broken.split()))
    scene.world.seen()
    scene.ends()


def without_grants(claims: tuple[dict[str, int], dict[str, int]]) -> dict[str, int]:
    """Who has what; a grant that its commit did not spend is held, and as good as free."""
    accounts = dict(claims[0])
    accounts["free"] += accounts.pop("granted", 0)
    return accounts


# --- what a seal that fails leaves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("failing_call", [1, 2, 3, 4])
def test_a_seal_that_fails_at_any_handle_leaves_the_windows_to_the_request_and_hands_them_over_again(
    open_scene: OpenScene, failing_call: int
) -> None:
    scene = open_scene()
    published = scene.owner.publish(128)
    before = scene.world.claims()
    scene.world.driver.follow(failing(failing_call))
    sealed = scene.owner.seal(published.prefix)
    scene.world.healed()
    assert sealed.refusal is not None
    assert "seal" in sealed.refusal
    assert sealed.runs == published.runs
    assert scene.owner.client.handles() == scene.handles[:4]
    assert scene.world.claims() == before
    assert published.prefix not in scene.world.seen().prefixes
    with pytest.raises(NotShareable):
        scene.fresh.join(published.prefix, 128)


def test_handles_that_were_sealed_before_it_failed_are_never_pooled(open_scene: OpenScene) -> None:
    scene = open_scene(pool=64)
    published = scene.owner.publish(128)
    scene.world.driver.follow(failing(3))
    assert scene.owner.seal(published.prefix).refusal
    scene.world.healed()
    scene.owner.release(windows(4, 6))
    assert scene.world.pooled() == 4


def test_a_prefix_whose_seal_failed_may_be_published_again(open_scene: OpenScene) -> None:
    scene = open_scene()
    published = scene.owner.publish(128)
    scene.world.driver.follow(failing(3))
    scene.owner.seal(published.prefix)
    scene.world.healed()
    assert scene.fresh.join(scene.owner.share(128), 128).tokens == 127


def test_a_prefix_that_cannot_be_released_is_charged_for_good(open_scene: OpenScene) -> None:
    scene = open_scene()
    unlisted = scene.fresh.client.open()
    unlisted.grow(64, 4)
    number = unlisted.share(64)
    scene.world.driver.follow(failing_every("release"))
    unlisted.leave(number)
    scene.world.healed()
    assert (scene.world.granules("prefix"), scene.world.granules("quarantine")) == (4, 4)


def test_an_eviction_that_frees_too_little_refuses_the_grant_and_charges_what_was_lost(open_scene: OpenScene) -> None:
    scene = open_scene()
    scene.world.driver.follow(failing_every("release"))
    with pytest.raises(KvClusterError):
        evict(scene)
    scene.world.healed()
    scene.world.seen()
    scene.ends()


# --- failpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        (Failpoint.DEVICE_PUBLISHED, publish),
        (Failpoint.DEVICE_JOINED, join),
        (Failpoint.DEVICE_JOINED, join_and_grow),
        (Failpoint.DEVICE_TAKEN, join_and_grow),
        (Failpoint.DEVICE_CHARGED, join_what_was_kept),
        (Failpoint.DEVICE_JOINED, find),
        (Failpoint.DEVICE_TAKEN, find),
        (Failpoint.DEVICE_CHARGED, find_what_was_kept),
    ],
)
def test_a_verb_that_stops_at_a_point_of_its_transaction_changes_nobodys_claims(
    open_scene: OpenScene, point: Failpoint, verb: Callable[[Scene], None]
) -> None:
    scene = open_scene()
    before = scene.world.claims()
    with armed(f"{point}=raise"), pytest.raises((DriverError, Quarantined)):
        verb(scene)
    assert without_grants(scene.world.claims()) == without_grants(before)
    verb(scene)
    scene.ends()


def test_a_seal_that_stops_when_all_is_sealed_is_a_seal_that_failed(open_scene: OpenScene) -> None:
    scene = open_scene()
    published = scene.owner.publish(128)
    before = scene.world.claims()
    with armed(f"{Failpoint.DEVICE_SEALED}=raise"):
        assert scene.owner.seal(published.prefix).refusal
    assert scene.world.claims() == before
    scene.ends()


def test_sharing_passes_its_points_in_this_order(open_scene: OpenScene) -> None:
    scene = open_scene()
    with armed("device.frame.stored=delay:0") as arms:
        number = scene.owner.share(128)
        scene.fresh.join(number, 128)
        scene.fresh.leave(number)
    passed = [point for point in arms.passed if point is not Failpoint.DEVICE_STORED]
    assert passed == [
        Failpoint.DEVICE_PUBLISHED,
        Failpoint.DEVICE_SEALED,
        Failpoint.DEVICE_JOINED,
        Failpoint.DEVICE_LEFT,
    ]


def test_what_a_tenant_gave_back_and_the_driver_then_lost_leaves_its_quota_alone() -> None:
    world = DeviceWorld(Device(capacity=32, pool=8, quotas=Quotas({"acme": 8 * GRANULE})))
    acme = world.client("acme").open(max_tokens=128)
    acme.grow(128, 8)
    acme.release(windows(0, 8))
    world.driver.follow(failing_every("scrub", "release"))
    refused(KvClusterError, lambda: world.client("other").open().grow(128, 8))
    world.healed()
    assert world.granules("quarantine") == 9  # and what was made for the other, who is not charged either
    acme.grow(128, 8)
    assert world.seen().tenants["acme"] == 8 * GRANULE
    world.clear()
