"""What is waited for until an application runs, and what ends the waiting. Serve's words are a stand-in's."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RaySystemError
from ray.serve.schema import (
    ApplicationStatus,
    ApplicationStatusOverview,
    DeploymentStatus,
    DeploymentStatusOverview,
    DeploymentStatusTrigger,
    ProxyStatus,
    ServeStatus,
)

from actors import rollout
from actors.rollout import wait_until_running
from kvcluster.config import ConfigError
from tests.serve.standing_in import Script, StandIn

HEALTHY, DRAINING = ProxyStatus.HEALTHY, ProxyStatus.DRAINING
LATE = "Deployment 'one' has 1 replicas that have taken more than 30s to be scheduled. Resources required: 9 CPU.\nMore"
OF_OURS = 'File "x.py"\nkvcluster.config.ConfigError: device_memory is 4KiB: give more\n'


def status(
    application: ApplicationStatus = ApplicationStatus.RUNNING,
    *,
    said: str = "",
    proxies: tuple[ProxyStatus, ...] = (HEALTHY,),
) -> ServeStatus:
    """Of an application with two models, of which `said` is said of the one."""
    ready = DeploymentStatusOverview(DeploymentStatus.HEALTHY, DeploymentStatusTrigger.CONFIG_UPDATE_COMPLETED, {}, "")
    late = DeploymentStatusOverview(DeploymentStatus.UPDATING, DeploymentStatusTrigger.CONFIG_UPDATE_STARTED, {}, said)
    overview = ApplicationStatusOverview(application, "", 0.0, {"one": late, "two": ready})
    return ServeStatus({str(place): state for place, state in enumerate(proxies)}, {"kvcluster": overview})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "POLL_S", 0.0)


def waited(monkeypatch: pytest.MonkeyPatch, *statuses: Any) -> list[str]:
    """What is told until the application runs."""
    stand_in, told = StandIn(statuses=Script(statuses)), list[str]()
    monkeypatch.setattr(rollout, "serve", stand_in)
    wait_until_running(stand_in, "kvcluster", tell=told.append)
    return told


DEPLOYING = status(ApplicationStatus.DEPLOYING, said=LATE)


def test_who_is_not_ready_after_a_minute_is_told_with_what_serve_says_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "TELL_S", 0.0)
    told = waited(monkeypatch, DEPLOYING, DEPLOYING, status())
    assert told == [f"still waiting for one: {LATE.splitlines()[0]}"] * 2


def test_nothing_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, DEPLOYING, DEPLOYING, status()) == []


@pytest.mark.parametrize("error", [ActorUnavailableError("gone", None), RaySystemError("store"), TimeoutError()])
def test_a_controller_that_is_away_for_a_moment_ends_no_start(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert waited(monkeypatch, error, DEPLOYING, error, error, status()) == []


def test_a_controller_that_stays_away_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "SILENT_S", 0.0)
    with pytest.raises(ConfigError, match="Ray Serve does not answer any more: "):
        waited(monkeypatch, DEPLOYING, ActorUnavailableError("gone", None))


def test_an_application_that_is_taken_off_meanwhile_is_waited_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="it was taken off the cluster meanwhile"):
        waited(monkeypatch, ServeStatus(), DEPLOYING, ServeStatus())


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (status(ApplicationStatus.DEPLOYING, said=OF_OURS), "device_memory is 4KiB: give more"),
        (status(ApplicationStatus.DEPLOY_FAILED, said="at last"), "Ray Serve does not start the application: at last"),
        (status(ApplicationStatus.UNHEALTHY, said="at last"), "Ray Serve does not start the application: at last"),
    ],
    ids=["ours", "failed", "unhealthy"],
)
def test_an_application_that_has_failed_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, last: ServeStatus, sentence: str
) -> None:
    with pytest.raises(ConfigError) as failed:
        waited(monkeypatch, DEPLOYING, last)
    assert str(failed.value) == sentence


@pytest.mark.parametrize(
    "proxies",
    [(), (DRAINING,), (HEALTHY, ProxyStatus.STARTING), (HEALTHY, ProxyStatus.UNHEALTHY), (ProxyStatus.DRAINED,)],
)
def test_it_does_not_run_before_a_proxy_answers_and_none_is_broken(
    monkeypatch: pytest.MonkeyPatch, proxies: tuple[ProxyStatus, ...]
) -> None:
    monkeypatch.setattr(rollout, "PROXIES_S", 0.0)
    with pytest.raises(ConfigError, match="Ray Serve's HTTP proxy does not answer"):
        waited(monkeypatch, status(proxies=proxies))


@pytest.mark.parametrize("proxies", [(HEALTHY,), (HEALTHY, DRAINING), (DRAINING, HEALTHY, HEALTHY)])
def test_a_proxy_that_nobody_needs_any_more_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, proxies: tuple[ProxyStatus, ...]
) -> None:
    assert waited(monkeypatch, status(proxies=()), status(proxies=(DRAINING,)), status(proxies=proxies)) == []
