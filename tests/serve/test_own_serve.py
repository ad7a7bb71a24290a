"""Serve is started and ended in order, whatever goes wrong between. Serve is a stand-in; the real one is asked in
`tests.actors.test_serving`.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RaySystemError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from actors import own_serve
from actors.endpoint import checked_by_serve
from actors.own_serve import Serving, open_serve, wait_until_known
from kvcluster.config import ConfigError
from kvcluster.config_file import Listening, endpoint_from
from tests.serve.standing_in import Script, StandIn

ENDPOINT = endpoint_from({"models": {"one": "m", "two": "m"}, "drain_s": 600}, Listening())
BROKEN_OFF = AioRpcError(StatusCode.CANCELLED, Metadata(), Metadata(), "Application shutting down")
NEVER_TAKEN = RuntimeError("Unexpected error (StatusCode.CANCELLED): .")
LOST = [TimeoutError("3 s"), GetTimeoutError("3 s"), ActorDiedError(), BROKEN_OFF, NEVER_TAKEN]


def opened(opened: ExitStack, *, drain_s: float = 600.0) -> Serving:
    settings = ENDPOINT.settings.model_copy(update={"drain_s": drain_s})
    return open_serve(checked_by_serve(ENDPOINT), opened, settings)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    one = StandIn()
    monkeypatch.setattr(own_serve, "serve", one)
    monkeypatch.setattr(own_serve, "serve_start", one.start)
    monkeypatch.setattr(own_serve, "POLL_S", 0.0)
    return one


def ended(stand_in: StandIn, *, drain_s: float = 600.0) -> list[str]:
    """What Serve was told from the end on."""
    with ExitStack() as stack:
        opened(stack, drain_s=drain_s)
        stand_in.told.clear()
    return stand_in.told


def test_an_end_waits_until_nothing_is_under_way(stand_in: StandIn) -> None:
    stand_in.gateway = Script([[3], [1, 2], [0, 1], [0, 0]])
    assert ended(stand_in) == ["gateway.end"] * 4 + ["shutdown"]


@pytest.mark.parametrize("error", LOST, ids=repr)
def test_one_answer_that_does_not_come_ends_no_drain(stand_in: StandIn, error: Exception) -> None:
    stand_in.gateway = Script([[3], error, error, [1], [0]])
    assert ended(stand_in) == ["gateway.end"] * 5 + ["shutdown"]


def test_what_outlasts_its_time_is_told_so_by_every_model_before_serve_ends(stand_in: StandIn) -> None:
    stand_in.gateway = Script([[3], [0]])
    assert ended(stand_in, drain_s=0.0) == ["gateway.end", "one.end", "two.end", "gateway.end", "shutdown"]


@pytest.mark.parametrize("error", [*LOST, DeploymentUnavailableError("one"), KeyError("one")], ids=repr)
def test_a_model_that_does_not_answer_keeps_no_other_from_being_told(stand_in: StandIn, error: Exception) -> None:
    stand_in.gateway = Script([[3], [0]])
    stand_in.models["one"] = Script([error])
    assert ended(stand_in, drain_s=0.0) == ["gateway.end", "one.end", "two.end", "gateway.end", "shutdown"]


def test_a_gateway_that_never_answers_is_waited_for_no_longer_than_its_time(stand_in: StandIn) -> None:
    stand_in.gateway = Script([TimeoutError("3 s"), TimeoutError("3 s"), [0]])
    assert ended(stand_in, drain_s=0.0) == ["gateway.end", "one.end", "two.end"] + ["gateway.end"] * 2 + ["shutdown"]


def test_where_no_gateway_is_there_nobody_is_waited_for(stand_in: StandIn) -> None:
    stand_in.gateway = Script([DeploymentUnavailableError("Gateway")])
    assert ended(stand_in) == ["gateway.end", "shutdown"]


@pytest.mark.parametrize("error", [RayServeException("does not exist"), ActorDiedError(), BROKEN_OFF], ids=repr)
def test_where_nobody_knows_of_the_application_serve_ends_all_the_same(stand_in: StandIn, error: Exception) -> None:
    stand_in.application = Script([error])
    assert ended(stand_in) == ["shutdown"]


@pytest.mark.parametrize("error", [ValueError("a bug of ours"), KeyboardInterrupt()], ids=repr)
def test_whatever_is_raised_in_a_drain_serve_is_not_left_behind(stand_in: StandIn, error: BaseException) -> None:
    stand_in.gateway = Script([[3], error])
    with pytest.raises(type(error)):
        ended(stand_in)
    assert stand_in.told == ["gateway.end"] * 2 + ["shutdown"]


@pytest.mark.parametrize("error", [ActorUnavailableError("gone", None), RayServeException("already")], ids=repr)
def test_a_serve_that_does_not_end_hides_no_other_end(stand_in: StandIn, error: Exception) -> None:
    stand_in.closes = Script([error])
    assert ended(stand_in) == ["gateway.end", "shutdown"]


def test_an_application_that_is_not_taken_ends_serve(stand_in: StandIn) -> None:
    stand_in.deploys = Script([RayServeException("no such class")])
    stand_in.application = Script([RayServeException("does not exist")])
    with pytest.raises(RayServeException, match="no such class"), ExitStack() as stack:
        opened(stack)
    assert stand_in.told == ["start", "deploy", "shutdown"]


@pytest.mark.parametrize(
    "error",
    [ActorDiedError(), TimeoutError("60 s"), GetTimeoutError("60 s"), RaySystemError("store"), RayServeException("no")],
    ids=repr,
)
def test_serve_that_does_not_start_at_once_is_started_again(stand_in: StandIn, error: Exception) -> None:
    stand_in.starts = Script([error, None])
    with ExitStack() as stack:
        serving = opened(stack)
        assert (serving.client, serving.models) == (stand_in, ("one", "two"))
        assert stand_in.told == ["start", "start", "deploy"]


@pytest.mark.parametrize("error", [ActorDiedError(), TimeoutError("60 s"), RayServeException("no")], ids=repr)
def test_serve_that_does_not_start_twice_is_one_sentence_and_nothing_is_left(
    stand_in: StandIn, error: Exception
) -> None:
    stand_in.starts = Script([error])
    stand_in.closes = Script([GetTimeoutError("30 s")])  # hides nothing
    with pytest.raises(ConfigError, match="Ray Serve does not start: "), ExitStack() as stack:
        opened(stack)
    assert stand_in.told == ["start", "start", "shutdown"]


def test_a_start_that_is_interrupted_leaves_no_serve(stand_in: StandIn) -> None:
    stand_in.starts = Script([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:
        opened(stack)
    assert stand_in.told == ["start", "shutdown"]


@pytest.mark.parametrize("answers", [[[True]], [[True, False], [True, True]], [*LOST, [True]]], ids=["1", "2", "lost"])
def test_an_endpoint_is_ready_once_every_gateway_knows_the_models(stand_in: StandIn, answers: list[Any]) -> None:
    stand_in.gateway = Script([*answers, [0]])
    with ExitStack() as stack:
        wait_until_known(opened(stack))
        assert stand_in.told.count("gateway.knows_all") == len(answers)
