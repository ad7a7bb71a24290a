"""Ray Serve of our own: started on a cluster where none runs, told one config, and ended in order.

The end, in order: gateways refuse what is new and say how much is under way, until that is nothing or `drain_s` are
over; then the replicas end, and tell whoever they still answer; and Serve ends, whatever became of all that. Left
behind it would keep its models, and the next endpoint would be refused. Ray 2.60's calls and errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from grpc.aio import AioRpcError
from ray import serve
from ray.exceptions import RayError
from ray.serve._private.api import serve_start  # as `serve run` does: what is public takes no config
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema

from actors.causes import cause_of
from kvcluster.config import ConfigError
from kvcluster.serving_config import ServingSettings

ANSWER_TIMEOUT_S = 3.0
POLL_S = 0.2
MEET_S = 30.0  # after the last replica is ready
CUT_S = 8.0  # for what outlasted its time: to be told, and to have it
CLOSE_S = 15.0  # for Serve's own end, when nothing is under way any more
_NO_ANSWER = (TimeoutError, RayError, AioRpcError, RuntimeError)  # the last is Serve's for a call that broke off
_NOBODY = (RayServeException, KeyError)  # Serve says itself that there is no such application, or replica of it


@dataclass(frozen=True, slots=True)
class Serving:
    """Serve, which this process has started; the application's name on it, and those of its models' deployments."""

    client: Any
    name: str
    models: tuple[str, ...]


def check_no_serve() -> None:
    """Raises ConfigError where Serve runs already."""
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return
    raise ConfigError(
        "Ray Serve runs on this cluster already, and has one config: write this application into its file and "
        "deploy that (serve deploy FILE), or end it (serve shutdown)"
    )


def open_serve(config: ServeDeploySchema, opened: ExitStack, settings: ServingSettings) -> Serving:
    """Serve is started, and hears of the application; leaving `opened` ends both, in order.

    Raises:
        ConfigError: Serve does not start. Nothing is left.
    """
    client = _start(config)
    opened.callback(_shut_down, client)  # before all that may go wrong: it is done whatever does
    [application] = config.applications
    serving = Serving(client, application.name, tuple(settings.deployments))
    opened.callback(_drain, serving, settings.drain_s)
    client.deploy_apps(config)
    return serving


def _start(config: ServeDeploySchema) -> Any:
    """Serve. On a busy machine it takes its own proxy, which is still starting, for a broken one (from 15 s on) and
    makes another; whoever waits for the first hears that it died. Whether one answers is asked when models are ready.

    Raises:
        ConfigError: it does not start. Nothing is left.
    """
    options = {
        "http_options": config.http_options.model_dump(),
        "proxy_location": config.proxy_location,
        "global_logging_config": config.logging_config or {"log_level": "WARNING"},
    }
    with ExitStack() as failed:
        failed.callback(_shut_down_any)
        client = _once_more(partial(serve_start, **options))
        failed.pop_all()
    return client


def _shut_down_any() -> None:
    """Serve, as far as it has started; nothing where it has not."""
    with suppress(*_NO_ANSWER, *_NOBODY):
        serve.shutdown()


def _once_more(start: Callable[[], Any]) -> Any:
    """The second time it finds what runs by then. Raises ConfigError."""
    with suppress(RayError, RayServeException, TimeoutError):
        return start()
    try:
        return start()
    except (RayError, RayServeException, TimeoutError) as error:
        raise ConfigError(f"Ray Serve does not start: {cause_of(error)}") from error


def wait_until_known(serving: Serving) -> None:
    """The replicas are there, and a moment later the gateway has heard of them. Where it has not in `MEET_S` it tells
    its clients so itself.
    """
    deadline = time.monotonic() + MEET_S
    while time.monotonic() < deadline:
        with suppress(*_NO_ANSWER, *_NOBODY):
            gateway = serve.get_app_handle(serving.name)
            if all(gateway.broadcast("knows_all").results(timeout_s=ANSWER_TIMEOUT_S)):
                return
        time.sleep(POLL_S)


def _drain(serving: Serving, drain_s: float) -> None:
    """New requests are refused; those under way end, or their time does, and they are told so."""
    with suppress(*_NO_ANSWER, *_NOBODY):  # no gateway is to be had: then nobody is served, or waited for
        gateway = serve.get_app_handle(serving.name)
        if not _is_drained(gateway, drain_s):
            _end_models(serving)
            _is_drained(gateway, CUT_S)


def _is_drained(gateway: Any, within_s: float) -> bool:
    """Whether nothing is under way any more, at the latest after so long. Raises what `_are_under_way` does."""
    deadline = time.monotonic() + within_s
    while _are_under_way(gateway):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _are_under_way(gateway: Any) -> bool:
    """Whether requests may still be answered: also where a gateway is too busy to say so, or was lost while it was
    asked, because another one may have some.

    Raises:
        RayServeException, KeyError: there is no gateway.
    """
    try:
        return any(gateway.broadcast("end").results(timeout_s=ANSWER_TIMEOUT_S))
    except _NO_ANSWER:
        return True


def _end_models(serving: Serving) -> None:
    """All of them are told; they have `CUT_S` together to say that it is done."""
    deadline = time.monotonic() + CUT_S
    for name in serving.models:
        with suppress(*_NO_ANSWER, *_NOBODY):
            told = serve.get_deployment_handle(name, serving.name).broadcast("end")
            told.results(timeout_s=max(0.0, deadline - time.monotonic()))


def _shut_down(client: Any) -> None:
    with suppress(*_NO_ANSWER, *_NOBODY):
        client.shutdown(timeout_s=CLOSE_S)
