"""A job's cluster: Ray joined or started, devices found or made, workers at them; all of it ended in order.

With RAY_ADDRESS set (or an address given) the running cluster is joined: only this job's workers and sessions end
with it, and a device that nobody uses leaves by itself. Otherwise a cluster of this process is started, and stopped
with everything in it: with as many CPUs as the job has actors, because Ray starts an idle process for each, and
these become our actors at once.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import Any

import ray
from ray.exceptions import RayError

from actors.devices import NAMESPACE, find_device
from actors.own_ray import all_ended, signals_held_back
from actors.workers import RayWorkers
from kvcluster.config import ConfigError, Settings
from kvcluster.engine.pretrained import model_folder
from kvcluster.units import MIB

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 8.0
OBJECT_STORE_BYTES = 128 * MIB  # prompts and texts pass through it, and no memory of ours

_QUIET: dict[str, Any] = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}


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
        _check_cpus(node_id, settings)
        for name in settings.device_names:
            find_device(name, node_id, settings)
        workers = RayWorkers(settings, folder, node_id, env=worker_env or {})
        opened.callback(workers.stop)
        workers.start()
        yield workers


def _start_ray(address: str | None, settings: Settings, opened: ExitStack) -> None:
    """Join the cluster at `address`, or start one of our own; leaving `opened` undoes it."""
    if ray.is_initialized():  # the caller's own connection: it stays
        return
    opened.enter_context(redirect_stdout(sys.stderr))  # Ray says on standard output that a process of its crashed
    if address and address != "local":
        opened.callback(ray.shutdown)
        _join(address)
    else:
        opened.callback(_stop_own)
        devices = len(settings.device_names)
        cpus = devices + devices * settings.workers_per_device
        _start_own(cpus)


def _start_own(cpus: int) -> None:
    own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        with signals_held_back():
            ray.init(address="local", **own, **_QUIET)
    except (OSError, RuntimeError, RayError) as error:
        raise ConfigError(f"Ray does not start on this machine: {error}") from error


def _stop_own() -> None:
    with all_ended():
        ray.shutdown()


def _join(address: str) -> None:
    try:
        _check_listening(address)
        _check_ray_answers(address)
        with signals_held_back():
            ray.init(address=address, **_QUIET)
    except (OSError, ValueError, RuntimeError, RayError, subprocess.SubprocessError) as error:
        raise ConfigError(f"no Ray cluster answers at {address!r}: start it, or unset RAY_ADDRESS") from error


def _check_listening(address: str) -> None:
    """Ray itself tries for minutes, deaf to signals, where nobody listens, and says so in its own words.

    Raises:
        OSError: nobody listens there.
        ValueError: not HOST:PORT, and not "auto", which Ray looks up by itself.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(f"{address!r} is not HOST:PORT")
    host = ray.util.get_node_ip_address() if host in ("localhost", "127.0.0.1") else host  # as Ray does
    socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


def _check_ray_answers(address: str) -> None:
    """Whoever listens may be no Ray, and Ray tries just as long: so `ray status` asks first, in a process of its own.

    Measured: 0.8 s where a cluster answers, or another port of Ray; 41 s by itself where somebody listens in silence.

    Raises:
        subprocess.SubprocessError: it is no Ray cluster, or none that answers in time.
    """
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    subprocess.run(status, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=ANSWER_TIMEOUT_S)


def _check_cpus(node_id: str, settings: Settings) -> None:
    """Each worker takes a CPU of this node; one that never gets it would be waited for in vain.

    Raises:
        ConfigError: the node has fewer than there are workers.
    """
    workers = len(settings.device_names) * settings.workers_per_device
    [node] = [node for node in ray.nodes() if node["NodeID"] == node_id]
    cpus = int(node["Resources"].get("CPU", 0))
    if cpus < workers:
        raise ConfigError(
            f"{workers} workers take a CPU each, and Ray has {cpus} on this node: name fewer devices or "
            f"workers_per_device, or start Ray with more (ray start --num-cpus)"
        )
