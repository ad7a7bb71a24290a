"""A job's cluster: Ray joined or started, devices found or made, workers at them; all of it ended in order.

With RAY_ADDRESS set (or an address given) the running cluster is joined: only this job's workers and sessions end
with it, and a device that nobody uses leaves by itself. Otherwise a cluster of this process is started, and stopped
with everything in it: with as many CPUs as the job has actors, because Ray starts an idle process for each, and
these become our actors at once; and with the GPUs that the job names, because then Ray gives no others.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from actors.backends import gpus_visible
from actors.devices import find_device
from actors.gpus import gpus_of, visible_to_ray
from actors.leaving import leave_all
from actors.own_ray import all_ended, signals_held_back
from actors.owners import NAMESPACE
from actors.ray_words import RaysWords
from actors.site import Place, Site, open_site
from actors.workers import RayWorkers
from kvcluster.config import Backend, ConfigError, Settings
from kvcluster.engine.pretrained import model_folder
from kvcluster.errors import DeviceUnreachable
from kvcluster.failpoints import Passer, arm_with, process_is
from kvcluster.units import MIB

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 20.0  # on cores that are all busy `ray status` took more than 8
LEAVE_S = 1.0  # an owner, once the processes of its clients have been killed
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
        opened.enter_context(armed(settings.failpoints))
        gpus = gpus_of(settings)
        start_ray(named_address(address), settings, len(gpus), opened)
        site = open_site(settings, ray.get_runtime_context().get_node_id(), gpus)
        workers = RayWorkers(settings, folder, site, env=worker_env or {})
        opened.callback(workers.stop)
        for place in dict.fromkeys(place for place in site.seats if place.device):
            _find(place, site, settings)
        workers.start()
        yield workers


@contextmanager
def armed(text: str) -> Iterator[None]:
    """In the block this process is armed as the settings say, if they do."""
    process_is(Passer.JOB)
    if not text:
        yield
        return
    arm_with(text)
    try:
        yield
    finally:
        arm_with("")


def _find(place: Place, site: Site, settings: Settings) -> None:
    """The device there is, or is made. Raises as `find_device`, with the node where there are several."""
    try:
        find_device(place.device, place.node_id, settings)
    except DeviceUnreachable as error:
        raise DeviceUnreachable(device=site.named(place), reason=error.reason) from None


@contextmanager
def joined_cluster(address: str | None = None) -> Iterator[None]:
    """In the block this process is connected to the cluster at `address`, or RAY_ADDRESS, or the one on this machine.

    Raises:
        ConfigError: no cluster answers there. Nothing is left.
    """
    with ExitStack() as opened:
        where = named_address(address) or "auto"
        if not ray.is_initialized():  # the caller's own connection: it stays
            opened.enter_context(redirect_stdout(RaysWords(sys.stderr)))
            opened.callback(ray.shutdown)
            _join("auto" if where == "local" else where)
        yield


def named_address(address: str | None) -> str:
    """The cluster that is meant: this one, else RAY_ADDRESS; empty for none. An empty `address` raises ConfigError."""
    if address is not None and not address.strip():
        raise ConfigError("ray_address is empty: write HOST:PORT or auto, or leave it out")
    return address or os.environ.get("RAY_ADDRESS", "")


def started_address() -> str:
    """Where the cluster listens that the last `ray start` on this machine started.

    Ray's own "auto" takes any Ray of the machine where it finds none, a job's own too: nobody may look into that, or
    end it. The file is Ray's (2.60).

    Raises:
        OSError: none was started, or it was stopped.
    """
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(temporary, "ray", "ray_current_cluster").read_text(encoding="utf-8").strip()


def start_ray(address: str, settings: Settings, gpus: int, opened: ExitStack, *, more_cpus: int = 0) -> None:
    """Join the cluster at `address`, or start one of our own with so many GPUs; leaving `opened` undoes it.

    One of our own has a CPU for each of a job's actors, and so many more.

    Raises:
        ConfigError: no cluster answers there, or Ray does not start. Nothing is left.
    """
    if ray.is_initialized():  # the caller's own connection: it stays
        return
    opened.enter_context(redirect_stdout(RaysWords(sys.stderr)))
    if address and address != "local":
        opened.callback(ray.shutdown)
        _join(address)
    else:
        resources = _own_resources(settings, gpus, more_cpus)
        opened.callback(_stop_own)
        with gpus_visible(visible_to_ray(settings)):
            _start_own(resources)


def _own_resources(settings: Settings, gpus: int, more_cpus: int) -> dict[str, int]:
    """What a cluster of our own has; told how many, Ray does not look for GPUs itself.

    Raises:
        ConfigError: no GPU is there.
    """
    is_gpu = settings.backend is Backend.CUDA
    if is_gpu and not gpus:
        raise ConfigError(
            "devices is cuda, and this process sees no GPU: see CUDA_VISIBLE_DEVICES, or use host devices"
        )
    devices = gpus if is_gpu else len(settings.device_names)
    workers = devices * settings.workers_per_device
    cpus = devices + workers + (settings.host_memory_bytes is not None) + 1 + more_cpus  # 1 for the supervisor
    return {"num_cpus": cpus, "num_gpus": gpus} if is_gpu else {"num_cpus": cpus}


def _start_own(resources: dict[str, int]) -> None:
    own = {**resources, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        with signals_held_back():
            ray.init(address="local", **own, **_QUIET)
    except (OSError, RuntimeError, RayError) as error:
        raise ConfigError(f"Ray does not start on this machine: {error}") from error


def _stop_own() -> None:
    """Owners whose sessions have ended leave first, so that no file of theirs stays; the next start removes others'."""
    with all_ended():
        if ray.is_initialized():  # else whatever is asked of Ray starts another one, by itself
            with suppress(RayError, RuntimeError):
                leave_all(LEAVE_S)
        ray.shutdown()


def _join(address: str) -> None:
    try:
        where = started_address() if address == "auto" else address
        _check_listening(where)
        _check_ray_answers(where)
        with signals_held_back():
            ray.init(address=where, **_QUIET)
    except (OSError, ValueError, RuntimeError, RayError, subprocess.SubprocessError) as error:
        raise ConfigError(_no_cluster(address, error)) from error


def _no_cluster(address: str, error: Exception) -> str:
    said = f"{error} {getattr(error, 'stderr', b'')!r}".lower()
    if "authentication" in said or "auth_mode" in said:
        return (
            f"the Ray cluster at {address!r} does not let this process in, which has no token of it: set "
            "RAY_AUTH_MODE=token here, which is what `ray start` does by itself (elsewhere than on its machine and "
            "account it needs the same token too), or start the cluster with RAY_AUTH_MODE=disabled and set that here"
        )
    if address == "auto":
        return (
            "no Ray cluster was started on this machine: start it (ray start --head), or name one that runs elsewhere"
        )
    return f"no Ray cluster answers at {address!r}: start it, or unset RAY_ADDRESS"


def _check_listening(address: str) -> None:
    """Ray itself tries for minutes, deaf to signals, where nobody listens, and says so in its own words.

    Raises:
        OSError: nobody listens there.
        ValueError: not HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ValueError(f"{address!r} is not HOST:PORT")
    host = ray.util.get_node_ip_address() if host in ("localhost", "127.0.0.1") else host  # as Ray does
    socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()


def check_still_there() -> None:
    """The cluster that this process is connected to has a control process: else every call of Ray's hangs for a minute,
    deaf to signals, and then Ray ends this process.

    Raises:
        ConfigError: it has none any more.
    """
    address = ray.get_runtime_context().gcs_address
    try:
        _check_listening(address)
    except OSError as error:
        raise ConfigError(f"the Ray cluster at {address!r} has ended, or cannot be reached any more") from error


def _check_ray_answers(address: str) -> None:
    """Whoever listens may be no Ray, and Ray tries just as long: so `ray status` asks first, in a process of its own.

    Measured: 0.8 s where a cluster answers, or another port of Ray; 41 s by itself where somebody listens in silence.

    Raises:
        subprocess.SubprocessError: it is no Ray cluster, or none that answers in time.
    """
    status = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    subprocess.run(status, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=ANSWER_TIMEOUT_S)
