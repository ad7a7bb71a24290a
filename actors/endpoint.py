"""An endpoint of one command: Ray joined or started, the application deployed, and all of it ended in order.

As `actors.cluster` does it for a job. What Serve is told is a whole config, so that the command and `serve deploy` do
the same with the same file. A cluster on which Serve runs already is not touched: Serve has one config, and would end
the applications that are not in ours.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from pydantic import ValidationError
from ray import serve
from ray.exceptions import RayActorError, RayError
from ray.serve._private.api import serve_start  # as `serve run` does: what is public takes no config
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema

from actors.causes import cause_of
from actors.cluster import armed, named_address, start_ray
from actors.gpus import gpus_of
from actors.rollout import POLL_S, wait_until_running
from actors.serve_app import workers_per_node
from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint
from kvcluster.engine.pretrained import GEMMA3_270M, model_folder
from kvcluster.serving_config import ServingSettings

ANSWER_TIMEOUT_S = 3.0
MEET_S = 30.0  # after the last replica is ready
CUT_S = 8.0  # for what outlasted its time: to be told, and to have it
CLOSE_S = 15.0  # for Serve's own end, when nothing is under way any more
_OTHERS = 3  # processes beside those of a job: Serve's controller, its proxy, and the gateway
_ANYWHERE = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class _Serving:
    """Serve, which this process has started; the application's name on it, and those of its models' deployments."""

    client: Any
    name: str
    models: tuple[str, ...]


@contextmanager
def _quiet() -> Iterator[None]:
    """Serve says on standard error that it starts, and more: what goes wrong is told by our own sentences."""
    logger = logging.getLogger("ray.serve")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


@dataclass(frozen=True, slots=True)
class Opened:
    """An endpoint that answers at `url`; `ray_address` is where `kvcluster top` and `status` find its cluster."""

    url: str
    ray_address: str


@contextmanager
def open_endpoint(endpoint: Endpoint, *, address: str | None = None) -> Iterator[Opened]:
    """The endpoint, ready. `address` names a running cluster (RAY_ADDRESS does too).

    At the end new requests are refused, those under way have `drain_s`, and then everything of ours ends.

    Raises:
        ConfigError, KvClusterError: the model, a device, the port or the cluster is not to be had. Nothing is left.
    """
    settings = endpoint.settings
    for path in settings.served.values():
        model_folder(path)
    config = checked_by_serve(endpoint)
    check_free(endpoint.host, endpoint.port)
    with ExitStack() as opened:
        opened.enter_context(armed(settings.failpoints))
        opened.enter_context(_quiet())
        gpus = gpus_of(settings)
        devices = len(gpus) or len(settings.device_names)
        more = _OTHERS + devices * settings.workers_per_device * (len(settings.served) - 1)
        start_ray(named_address(address), settings, len(gpus), opened, more_cpus=more)
        _check_no_serve()
        check_room(endpoint, _nodes_cpus())
        serving = _deployed(config, opened, settings)
        wait_until_running(serving.client, serving.name)
        _wait_until_known(serve.get_app_handle(serving.name))
        yield Opened(url_of(endpoint), ray.get_runtime_context().gcs_address)


def check_models(endpoint: Endpoint) -> None:
    """Nothing, where there are such models; one that is known by name is not made ready for that.

    Raises:
        ModelNotFound: there is none, or its folder has no config.
    """
    for path in endpoint.settings.served.values():
        if path != GEMMA3_270M:
            model_folder(path)


def checked_by_serve(endpoint: Endpoint) -> ServeDeploySchema:
    """The config as Serve reads it.

    Raises:
        ConfigError: a key of Serve's own has a value that it does not take.
    """
    try:
        return ServeDeploySchema.model_validate(endpoint.document)
    except ValidationError as wrong:
        first = wrong.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def check_free(host: str, port: int) -> None:
    """Nothing, where somebody may listen there now.

    Raises:
        ConfigError: another one does, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} of {host} is taken: name another one with --port") from None
            raise ConfigError(f"nobody can listen at port {port} of {host}: {error.strerror or error}") from None


def check_room(endpoint: Endpoint, nodes_cpus: Sequence[int]) -> None:
    """Nothing, where nodes with so many CPUs have room for the replicas, which Serve would wait for without an end.

    Where the config says itself what a deployment takes it is not judged.

    Raises:
        ConfigError: there are too few nodes or CPUs.
    """
    settings = endpoint.settings
    nodes = len(nodes_cpus) if settings.nodes == "all" else int(settings.nodes)
    if nodes > len(nodes_cpus):
        raise ConfigError(
            f"nodes is {settings.nodes}, and the cluster has {len(nodes_cpus)}: name fewer, or join a larger one "
            f"(--ray-address)"
        )
    replicas = workers_per_node(settings) * nodes * len(settings.served)
    if replicas > sum(nodes_cpus) and not endpoint.application.get("deployments"):
        raise ConfigError(
            f"{replicas} replicas take a CPU each, and Ray has {sum(nodes_cpus)}: name fewer devices, models or "
            f"workers_per_device, or start Ray with more (ray start --num-cpus)"
        )


def _nodes_cpus() -> list[int]:
    """The CPUs of each node that lives."""
    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def url_of(endpoint: Endpoint) -> str:
    """Where clients of this machine find it."""
    host = "127.0.0.1" if endpoint.host in _ANYWHERE else endpoint.host
    prefix = str(endpoint.application.get("route_prefix") or "/").rstrip("/")
    return f"http://{f'[{host}]' if ':' in host else host}:{endpoint.port}{prefix}"


def _check_no_serve() -> None:
    """Raises ConfigError where Serve runs already."""
    try:
        ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
    except ValueError:
        return
    raise ConfigError(
        "Ray Serve runs on this cluster already, and has one config: write this application into its file and "
        "deploy that (serve deploy FILE), or end it (serve shutdown)"
    )


def _deployed(config: ServeDeploySchema, opened: ExitStack, settings: ServingSettings) -> _Serving:
    """Serve is started, and hears of the application; leaving `opened` ends both."""
    client = _start(config)
    [application] = config.applications
    serving = _Serving(client, application.name, tuple(settings.deployments))
    opened.callback(_end, serving, settings.drain_s)
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
        failed.callback(serve.shutdown)  # does nothing where there is none
        client = _once_more(partial(serve_start, **options))
        failed.pop_all()
    return client


def _once_more(start: Callable[[], Any]) -> Any:
    """The second time it finds what runs by then. Raises ConfigError."""
    with suppress(RayActorError, TimeoutError):
        return start()
    try:
        return start()
    except (RayError, TimeoutError) as error:
        raise ConfigError(f"Ray Serve does not start: {cause_of(error)}") from error


def _wait_until_known(gateway: Any) -> None:
    """The replicas are there, and a moment later the gateway has heard of them. Where it has not in `MEET_S` it tells
    its clients so itself.
    """
    deadline = time.monotonic() + MEET_S
    while time.monotonic() < deadline:
        with suppress(RayError, RayServeException, TimeoutError):
            if all(gateway.broadcast("knows_all").results(timeout_s=ANSWER_TIMEOUT_S)):
                return
        time.sleep(POLL_S)


def _end(serving: _Serving, drain_s: float) -> None:
    """New requests are refused; those under way end, or their time does, and they are told so; and then Serve ends."""
    with suppress(RayError, RayServeException, TimeoutError, KeyError):
        gateway = serve.get_app_handle(serving.name)
        if not _is_drained(gateway, drain_s):
            for name in serving.models:
                serve.get_deployment_handle(name, serving.name).broadcast("end").results(timeout_s=CUT_S)
            _is_drained(gateway, CUT_S)
    with suppress(RayError, RayServeException):
        serving.client.shutdown(timeout_s=CLOSE_S)


def _is_drained(gateway: Any, within_s: float) -> bool:
    """Whether nothing is under way any more, at the latest after so long.

    Raises whatever Serve does where no gateway answers: then nobody is served, and nothing is waited for.
    """
    deadline = time.monotonic() + within_s
    while any(gateway.broadcast("end").results(timeout_s=ANSWER_TIMEOUT_S)):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
