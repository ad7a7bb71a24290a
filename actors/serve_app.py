"""The application that Ray Serve runs: `build`, which import_path in ray_config.yaml names.

One deployment speaks HTTP (`Gateway`: the routes are `actors.openai`, the models behind them `actors.served_models`),
and each model has one of its own, of the class `ServedModel`; their replicas share the devices that the settings name.
What Serve itself refuses, where more wait for it than it lets, is a 429 too: an outer guard, which a flood alone meets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from actors.gpus import gpu_share
from actors.metrics import HttpTelling
from actors.openai.app import open_app
from actors.openai.limits import Limits
from actors.openai.prompts import open_prompts
from actors.openai.seams import ModelCard
from actors.served_model import ModelFacts, ServedModel
from actors.served_models import ServedEntry, ServedModels
from kvcluster.config import Backend, ConfigError, settings_of
from kvcluster.engine.pretrained import model_folder
from kvcluster.serving_config import GATEWAY, ServingSettings, key_from_environment

_GUARD = BackpressureConfig(status_code=429, retry_after_s=1)
_SPARE = 256  # requests beyond those that a replica serves or keeps waiting: to be refused with figures, by itself
_ROUTER = RequestRouterConfig(request_router_class="actors.router:PrefixRouter", request_routing_stats_period_s=1.0)
_ALIKE: dict[str, Any] = {
    "backpressure_config": _GUARD,
    "graceful_shutdown_wait_loop_s": 0.5,
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
    "logging_config": {"log_level": "WARNING", "enable_access_log": False},
}


def build(args: dict[str, Any]) -> serve.Application:
    """The application of these `args`: see `kvcluster.serving_config`.

    Raises:
        ConfigError: one of them is wrong, or the cluster has no such devices. Nothing was started.
    """
    settings = settings_of(ServingSettings, {**key_from_environment(), **args})
    workers = workers_per_node(settings)
    options = _model_options(settings, workers)
    model = serve.deployment(ServedModel)
    handles = {
        served: model.options(name=name, **options).bind(served, settings, workers)
        for name, served in settings.deployments.items()
    }
    return serve.deployment(serve.ingress()(Gateway)).options(**_gateway_options(settings)).bind(settings, handles)


class Gateway:
    """The deployment that speaks HTTP: it tokenizes and checks, and decides nothing about memory."""

    def __init__(self, settings: ServingSettings, handles: Mapping[str, Any]) -> None:
        self._settings = settings
        self._handles = dict(handles)
        self._models: ServedModels | None = None

    async def __serve_build_asgi_app__(self) -> Any:
        """Serve calls it once; it waits until each model has a replica."""
        entries = [await self._entry(served) for served in self._handles]
        self._models = ServedModels(entries)
        return open_app(self._models, _limits(self._settings), observer=HttpTelling())

    async def end(self) -> int:
        """As `ServedModels.end`."""
        return self._models.end() if self._models else 0

    async def _entry(self, served: str) -> ServedEntry:
        handle = self._handles[served]
        facts: ModelFacts = await handle.facts.remote()
        card = ModelCard(served, created=int(time.time()), max_model_len=facts.most_tokens)
        return ServedEntry(card, open_prompts(model_folder(self._settings.served[served])), handle)


def workers_per_node(settings: ServingSettings) -> int:
    """Replicas of one model on a node.

    Raises:
        ConfigError: the devices are GPUs, and no node of this cluster has any, or has others than are named.
    """
    if settings.backend is Backend.HOST:
        return len(settings.device_names) * settings.workers_per_device
    gpus, named = _most_gpus(), settings.device_numbers
    if not gpus:
        raise ConfigError("devices is cuda, and no node of this cluster has GPUs: start Ray with some, or use host")
    if named is not None and len(named) != gpus:
        raise ConfigError(
            f"devices is {settings.devices}, and Ray, which has {gpus} GPUs on a node, gives whichever it likes: name "
            f"cuda, or start Ray with these alone (CUDA_VISIBLE_DEVICES)"
        )
    return gpus * settings.workers_per_device


def _most_gpus() -> int:
    return max((int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]), default=0)


def _nodes(settings: ServingSettings) -> int:
    return sum(node["Alive"] for node in ray.nodes()) if settings.nodes == "all" else int(settings.nodes)


def _model_options(settings: ServingSettings, workers: int) -> dict[str, Any]:
    ongoing = settings.max_num_seqs + (settings.max_num_waiting or 0) + _SPARE
    is_gpu = settings.backend is Backend.CUDA
    share = gpu_share(settings, models=len(settings.served))
    options = {
        "num_replicas": workers * _nodes(settings),
        "graceful_shutdown_timeout_s": settings.drain_s,
        "max_ongoing_requests": ongoing,
        "max_queued_requests": ongoing,
        "ray_actor_options": {"num_cpus": 1, **({"num_gpus": share} if is_gpu else {})},
        "request_router_config": _ROUTER,
    }
    return _ALIKE | options | ({} if settings.nodes == 1 else {"max_replicas_per_node": workers})


def _gateway_options(settings: ServingSettings) -> dict[str, Any]:
    """It computes little, and beside the models: it asks for no CPU of its own."""
    most = settings.max_streams + _SPARE
    options = {"max_ongoing_requests": most, "max_queued_requests": most, "ray_actor_options": {"num_cpus": 0}}
    return _ALIKE | options | {"name": GATEWAY, "graceful_shutdown_timeout_s": settings.drain_s}


def _limits(settings: ServingSettings) -> Limits:
    return Limits(
        most_body_bytes=settings.max_body_bytes,
        most_choices=settings.max_choices,
        most_streams=settings.max_streams,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
    )
