"""A job's cluster: Ray joined or started, devices found or made, workers at them; all of it ended in order.

With RAY_ADDRESS set (or an address given) the running cluster is joined: only this job's workers and sessions end
with it, and a device that nobody uses leaves by itself. Otherwise a cluster of this process is started, and stopped
with everything in it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import ray

from actors.devices import NAMESPACE, find_device
from actors.workers import RayWorkers
from kvcluster.config import ConfigError, Settings
from kvcluster.engine.pretrained import model_folder


@contextmanager
def open_cluster(
    settings: Settings, *, address: str | None = None, worker_env: dict[str, str] | None = None
) -> Iterator[RayWorkers]:
    """The workers of one job, ready. `address` names a running cluster (RAY_ADDRESS does too).

    `worker_env` is added to the workers' environment, for fault tests.

    Raises:
        ConfigError, KvClusterError: the model, a device, a worker or the cluster is not to be had. Nothing is left.
    """
    folder = str(model_folder(settings.model))
    with ExitStack() as opened:
        _start_ray(address or os.environ.get("RAY_ADDRESS"), settings, opened)
        node_id = ray.get_runtime_context().get_node_id()
        devices = [find_device(name, node_id, settings) for name in settings.device_names]
        workers = RayWorkers(settings, folder, env=worker_env or {})
        opened.callback(workers.stop)
        workers.start(devices)
        yield workers


def _start_ray(address: str | None, settings: Settings, opened: ExitStack) -> None:
    """Join the cluster at `address`, or start one of our own; leaving `opened` undoes it."""
    if ray.is_initialized():  # the caller's own connection: it stays
        return
    quiet = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(f"no Ray cluster answers at {address!r}: start it, or unset RAY_ADDRESS") from error
    else:
        workers = len(settings.device_names) * settings.workers_per_device
        cpus = max(workers, os.cpu_count() or 1)
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quiet)
    opened.callback(ray.shutdown)
