"""The start of a job's workers: one that dies is replaced, one that refuses ends the start, and so does time."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError, RayTaskError

from actors.cluster import open_cluster
from actors.seats import Seat
from actors.site import Site
from actors.spec import Placed
from actors.starting import WorkerFailed, check_goes_on, check_in_time, own_error
from kvcluster.config import ConfigError
from kvcluster.errors import DeviceUnreachable, KvClusterError
from kvcluster.failpoints import ENVIRONMENT, Failpoint
from kvcluster.services.workers import ClusterStopped, WorkerLost, WorkerReady, WorkerStopped
from tests.actors.world import World

SITE = Site(("a" * 56,), ("host:0",), 2)


def said(cause: Exception) -> RayTaskError:
    error = RayTaskError("open", "a traceback", cause)
    return error.as_instanceof_cause()


@pytest.mark.parametrize("cause", [ConfigError("no"), DeviceUnreachable(device="host:0", reason="no")])
def test_what_a_worker_says_against_its_start_is_raised_as_it_said_it(cause: ConfigError | KvClusterError) -> None:
    assert own_error(said(cause)) is cause
    assert own_error(ConfigError("of its place")).args == ("of its place",)  # type: ignore[union-attr]


def test_a_bug_in_a_worker_is_shown_with_its_traceback_and_a_death_is_no_word_of_its_own() -> None:
    bug = said(TypeError("a bug"))
    assert own_error(bug) is bug
    assert own_error(ActorDiedError()) is None


def test_a_death_ends_the_start_only_if_nobody_comes_in_its_place() -> None:
    seats = [Seat(number, "host:0", node_id="b" * 56, restarts=3 * number) for number in range(2)]
    check_goes_on(WorkerReady(1), seats)
    check_goes_on(WorkerLost(1, "it was killed", returns=True), seats)
    with pytest.raises(WorkerFailed, match=r"worker 1 did not start: it was killed \(node bbbbbbbb, the last of 4\)"):
        check_goes_on(WorkerLost(1, "it was killed", returns=False), seats)
    with pytest.raises(ClusterStopped):
        check_goes_on(WorkerStopped(1), seats)


def test_only_a_worker_that_never_had_a_place_is_missed_after_a_minute_and_any_that_is_not_ready_after_ten() -> None:
    placed, replaced, placeless = [Seat(number, "host:0", node_id="b" * 56) for number in range(3)]
    placed.is_placed(Placed("host:0", pid=1))
    replaced.restarts = 1
    check_in_time([placed, replaced], SITE, waited_s=599.0)
    check_in_time([placeless], SITE, waited_s=59.0)
    with pytest.raises(WorkerFailed, match="worker 2 did not start: no CPU of this node was free for it within 60 s"):
        check_in_time([placed, placeless], SITE, waited_s=61.0)
    with pytest.raises(WorkerFailed, match="worker 0 did not start: it did not load the model within 600 s"):
        check_in_time([placed], SITE, waited_s=601.0)


def test_a_worker_killed_while_it_starts_is_replaced_and_counted_and_one_too_many_ends_the_job_with_the_cause(
    world: World, folder: Path, tmp_path: Path
) -> None:
    settings = world.settings(model=str(folder), max_restarts=1)
    fatal = f"{Failpoint.REQUEST_STARTED}=kill@1"
    with open_cluster(settings, worker_env={ENVIRONMENT: f"{fatal}; marks={tmp_path}"}) as cluster:
        assert [(seat.is_ready, seat.restarts) for seat in cluster.seats] == [(True, 1)]
    sentence = r"worker 0 did not start: its? .* \(node .*, the last of 2\)"  # a busy kernel may not say how in time
    with pytest.raises(WorkerFailed, match=sentence), open_cluster(settings, worker_env={ENVIRONMENT: fatal}):
        raise AssertionError("it opened")
