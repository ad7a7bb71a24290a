"""An endpoint of one command: Ray joined or started, the application deployed, and all of it ended in order.

As `actors.cluster` does it for a job. What Serve is told is a whole config, so that the command and `serve deploy` do
the same with the same file. A cluster on which Serve runs already is not touched: Serve has one config, and would end
the applications that are not in ours.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import ray
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from actors.cluster import armed, named_address, start_ray
from actors.gpus import gpus_of
from actors.listening import check_free, url_of
from actors.own_serve import check_no_serve, open_serve, wait_until_known
from actors.rollout import wait_until_running
from actors.serve_app import workers_per_node
from kvcluster.config import ConfigError
from kvcluster.config_file import Endpoint
from kvcluster.engine.pretrained import GEMMA3_270M, model_folder

_OTHERS = 3  # processes beside those of a job: Serve's controller, its proxy, and the gateway


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


def _say_nothing(sentence: str) -> None:
    return


@dataclass(frozen=True, slots=True)
class Opened:
    """An endpoint that answers at `url`; `ray_address` is where `kvcluster top` and `status` find its cluster."""

    url: str
    ray_address: str


@contextmanager
def open_endpoint(
    endpoint: Endpoint, *, address: str | None = None, tell: Callable[[str], object] = _say_nothing
) -> Iterator[Opened]:
    """The endpoint, ready. `address` names a running cluster (RAY_ADDRESS does too); `tell` hears what is waited for.

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
        check_no_serve()
        check_room(endpoint, _nodes_cpus())
        serving = open_serve(config, opened, settings)
        wait_until_running(serving.client, serving.name, tell=tell)
        wait_until_known(serving)
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
