"""Devices, clients and actors of one test, and waiting for what other processes do."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.audits import device_actors
from actors.devices import Device, find_device, living_device
from actors.owners import NAMESPACE, OwnerKind
from kvcluster.config import Settings, settings_from
from kvcluster.failpoints import ENVIRONMENT
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.statistics import DeviceStatistics
from tests.actors.client import Client

GRANULE = 4096
CAPACITY = 64 * GRANULE
TIMEOUT_S = 180.0
NO_ENV: Mapping[str, str] = MappingProxyType({})


def eventually(holds: Callable[[], Any], what: str) -> Any:
    """What `holds` returns once it is true; another process is on its way there."""
    deadline, pause = time.monotonic() + TIMEOUT_S, threading.Event()
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S:.0f} s: {what}"
        pause.wait(0.01)
    return found


def has_ended(pid: int, timeout_s: float) -> bool:
    """Whether the process has ended, at the latest after `timeout_s`, by the kernel's word."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(timeout_s * 1000))
    finally:
        os.close(pidfd)


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert has_ended(pid, TIMEOUT_S)


class World:
    """What one test made in the session's cluster."""

    def __init__(self, node_id: str, numbers: Iterator[int]) -> None:
        self.node_id = node_id
        self._numbers = numbers
        self._earlier = set(host_actors())
        self._devices: list[str] = []
        self._actors: list[Any] = []

    def settings(self, *, devices: int = 1, **changes: Any) -> Settings:
        """Settings with devices that no other test has."""
        numbers = [str(next(self._numbers)) for _ in range(devices)]
        values = {"model": "none", "devices": f"host:{','.join(numbers)}", "granule": GRANULE, "dtype": "float32"}
        settings = settings_from({**values, "device_memory": CAPACITY, "max_num_batched_tokens": 64, **changes})
        self._devices += settings.device_names
        return settings

    def device(self, settings: Settings, *, failpoints: str = "") -> Device:
        [name] = settings.device_names
        return find_device(name, self.node_id, settings, env=armed_with(failpoints))

    def client(self, device: Device, *, failpoints: str = "", env: Mapping[str, str] = NO_ENV) -> Any:
        """A process that speaks to the device."""
        options = {"num_cpus": 0, "runtime_env": {"env_vars": {**armed_with(failpoints), **env}}}
        client = ray.remote(Client).options(**options).remote(device)
        self._actors.append(client)
        return client

    def started(
        self, kind: type, *arguments: Any, failpoints: str = "", env: Mapping[str, str] = NO_ENV, **options: Any
    ) -> Any:
        """An actor of any class, ended with the test."""
        environment = {"env_vars": {**armed_with(failpoints), **env}}
        actor = ray.remote(kind).options(runtime_env=environment, **options).remote(*arguments)
        self._actors.append(actor)
        return actor

    def close(self) -> None:
        """End everything; the books of each device that is still there must sum, with nothing charged to anybody."""
        for actor in self._actors:
            ray.kill(actor)
        devices = {name: actor for name in self._devices if (actor := living_device(name, self.node_id))}
        devices |= {name: actor for name, actor in host_actors().items() if name not in self._earlier}
        try:
            for name, actor in devices.items():
                eventually(lambda actor=actor: is_whole(actor), f"{name} has all its bytes back, and no session")
        finally:
            for actor in devices.values():
                ray.kill(actor)
        eventually(lambda: {*host_actors()} <= self._earlier, "the names of its host pages are free")


def host_actors() -> dict[str, Any]:
    """The actors of host pages, by name."""
    names = [name for name in device_actors() if name.startswith(OwnerKind.HOST_PAGES)]
    return {name: ray.get_actor(name, namespace=NAMESPACE) for name in names}


def is_whole(actor: Any) -> bool:
    """Whether nobody has anything of a device's, or it is gone."""
    try:
        figures: DeviceStatistics | PageStatistics = ray.get(actor.audit.remote(), timeout=TIMEOUT_S)
    except RayActorError:
        return True
    return not figures.sessions and figures.free_bytes + figures.retained_bytes == figures.capacity_bytes


def armed_with(failpoints: str) -> dict[str, str]:
    return {ENVIRONMENT: failpoints} if failpoints else {}


def audit(device: Device) -> DeviceStatistics:
    """The device's figures, after it has checked that they sum."""
    figures: DeviceStatistics = ray.get(device.actor.audit.remote(), timeout=TIMEOUT_S)
    return figures
