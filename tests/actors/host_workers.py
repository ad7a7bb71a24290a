"""A job's workers whose device has room for nothing, so that they compute in the host pages of their node."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch

from actors.cluster import open_cluster
from actors.host_spec import HostAddress
from actors.hosts import Host, find_host
from actors.owners import OwnerKind, living_owner
from actors.workers import RayWorkers
from kvcluster.config import Settings
from kvcluster.engine.architecture import geometry_of
from kvcluster.engine.model import open_config
from kvcluster.geometry.model import KvGeometry
from kvcluster.services.completion import Completion
from kvcluster.services.pages.statistics import PageStatistics
from kvcluster.services.workers import Finished, WorkerLost, WorkerReady
from kvcluster.units import MIB
from tests.actors.answers import requests
from tests.actors.world import GRANULE, TIMEOUT_S, World

_keys = itertools.count(1_000_000)  # those of a batch job begin at 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The prompts that a worker was asked, by their keys."""

    worker: int
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostJob:
    """Workers that are there, at one device and the same pages."""

    world: World
    settings: Settings
    geometry: KvGeometry
    cluster: RayWorkers

    @property
    def pages(self) -> str:
        """The name of the pages, which is the same for all."""
        [name] = {seat.pages for seat in self.cluster.seats}
        return name

    def host(self) -> Host:
        return find_host(self.geometry, self.world.node_id, self.settings)

    def address(self) -> HostAddress:
        address: HostAddress = ray.get(self._actor().address.remote(), timeout=TIMEOUT_S)
        return address

    def figures(self) -> PageStatistics:
        """Those of the pages, after they were checked to sum."""
        found: PageStatistics = ray.get(self._actor().audit.remote(), timeout=TIMEOUT_S)
        return found

    def is_alone(self) -> bool:
        """Whether nobody but the workers is at the pages, and nothing is charged to anybody."""
        seen = self.figures()
        return (
            {*seen.pids.values()} == {seat.pid for seat in self.cluster.seats}
            and seen.open_requests == 0
            and seen.free_bytes + seen.retained_bytes == seen.capacity_bytes
        )

    def begin(self, worker: int, *, salt: str = "") -> Asked:
        """Every prompt is asked of this worker; only who names the same salt finds what it computes."""
        keyed = {next(_keys): replace(request, cache_salt=salt) for _, request in requests()}
        self.cluster.submit(worker, list(keyed.items()))
        return Asked(worker, tuple(keyed))

    def answers(self, asked: Asked) -> list[Completion]:
        """What was said to each prompt, in their order; what others say and what becomes of them is passed over."""
        return self.all_answers([asked])[0]

    def all_answers(self, asked: Sequence[Asked]) -> list[list[Completion]]:
        """The same of several workers that compute at once."""
        keys, workers = {key for each in asked for key in each.keys}, {each.worker for each in asked}
        found: dict[int, Any] = {}
        while not keys <= {*found}:
            for event in self.cluster.wait(TIMEOUT_S):
                assert not isinstance(event, WorkerLost) or event.worker not in workers, event
                if isinstance(event, Finished):
                    found[event.key] = event.outcome
        assert all(isinstance(found[key], Completion) for key in keys)
        return [[found[key] for key in each.keys] for each in asked]

    def all_return(self) -> None:
        """Every worker has used the pages that are there now: one whose own have died has been replaced."""
        while not all(seat.is_ready for seat in self.cluster.seats):
            self.cluster.wait(TIMEOUT_S)
        asked = {worker: {*self.begin(worker).keys} for worker in range(self.cluster.count)}
        while any(asked.values()):
            for event in self.cluster.wait(TIMEOUT_S):
                match event:
                    case Finished(key):
                        asked = {worker: keys - {key} for worker, keys in asked.items()}
                    case WorkerReady(worker):
                        asked[worker] = set()

    def _actor(self) -> Any:
        actor = living_owner(OwnerKind.HOST_PAGES, self.pages, self.world.node_id)
        assert actor is not None
        return actor


@contextmanager
def open_host_job(world: World, folder: Path, *, workers: int) -> Iterator[HostJob]:
    sizes = {"device_memory": 2 * GRANULE, "fallback": "host", "host_memory": MIB, "max_restarts": 100}
    settings = world.settings(model=str(folder), workers_per_device=workers, **sizes)
    geometry = geometry_of(open_config(str(folder)), torch.float32)
    with open_cluster(settings) as cluster:
        yield HostJob(world, settings, geometry, cluster)
