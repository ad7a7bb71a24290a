"""The application that Ray Serve runs: `build`, which import_path in ray_config.yaml names.

One deployment speaks HTTP (`Gateway`: the routes are `actors.openai`, the models behind them `actors.served_models`),
and each model has one of its own, of the class `ServedModel`; their replicas share the devices that the settings name.
What Serve itself refuses, where more wait for it than it lets, is a 429 too: an outer guard, which a flood alone meets.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray import serve
from ray.serve.config import BackpressureConfig, RequestRouterConfig

from actors.crowding import Crowding
from actors.gpus import gpu_share
from actors.metrics import HttpTelling
from actors.openai.app import open_app
from actors.openai.limits import MOST_PROMPTS, Limits
from actors.openai.prompts import open_prompts
from actors.presence import Presence
from actors.served_model import ServedModel
from actors.served_models import ServedEntry, ServedModels
from kvcluster.config import Backend, ConfigError, settings_of
from kvcluster.engine.pretrained import model_folder
from kvcluster.services.completion import TOO_MANY
from kvcluster.services.pacing import Pace
from kvcluster.serving_config import GATEWAY, ServingSettings, key_from_environment

_GUARD = BackpressureConfig(status_code=TOO_MANY, retry_after_s=1)
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
        self._watching: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> Any:
        """Serve calls it once. It waits for no model: one that is not there yet is Unavailable."""
        entries = [self._entry(served) for served in self._handles]
        caller = serve.get_replica_context().replica_id.to_full_id_str()
        self._models = ServedModels(entries, caller=caller)
        self._watching = asyncio.create_task(self._models.watch())
        return open_app(self._models, limits_of(self._settings), observer=HttpTelling())

    async def end(self) -> int:
        """As `ServedModels.end`."""
        self._leave_off()
        return self._models.end() if self._models else 0

    async def knows_all(self) -> bool:
        """Whether no model is Unavailable for want of a replica, as far as is known here."""
        return self._models is not None and self._models.are_there

    def __del__(self) -> None:
        """Serve calls it when nothing is under way any more, or after `graceful_shutdown_timeout_s`."""
        self._leave_off()

    def _leave_off(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def _entry(self, served: str) -> ServedEntry:
        handle, prompts = self._handles[served], open_prompts(model_folder(self._settings.served[served]))
        least_s, most_s = self._settings.retry_after_min_s, self._settings.retry_after_max_s
        crowding = Crowding(Pace(least_s=least_s, most_s=most_s, clock=time.monotonic), time.monotonic)
        return ServedEntry(served, int(time.time()), prompts, handle, Presence(served, handle), crowding)


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


def limits_of(settings: ServingSettings) -> Limits:
    """What the HTTP side lets one request, and all of them, ask for: of one prompt no more than a replica takes."""
    texts = settings.max_num_seqs + (settings.max_num_waiting or 0)
    return Limits(
        most_body_bytes=settings.max_body_bytes,
        most_prompt_tokens=settings.max_prompt_tokens,
        most_prompts=MOST_PROMPTS,
        most_choices=settings.max_choices,
        most_n=min(settings.max_choices, texts),
        most_streams=settings.max_streams,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
    )
