"""A batch job over two GPUs of a stand-in: made by racing creators, exact, and what happens when a worker is killed."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray

from actors.cluster import open_cluster
from actors.workers import RayWorkers
from kvcluster.config import Settings
from kvcluster.services.batch.job import Progress
from kvcluster.testing.stand_in_cuda import UUIDS
from kvcluster.units import MIB
from tests.actors.gpu_holder import GpuHolder
from tests.actors.gpu_world import GPU_BYTES, GpuWorld, two_gpus
from tests.actors.test_batch import LINES, ROUNDS, answered
from tests.actors.world import TIMEOUT_S, World, audit, kill_and_wait

CREATORS = 8  # of each GPU's device
TAKEN_BYTES = 16 * MIB


@dataclass(frozen=True)
class Job:
    """Two workers at each of the two GPUs, and the devices' processes by the word of each creator."""

    gpus: GpuWorld
    settings: Settings
    cluster: RayWorkers
    made: tuple[tuple[str, int], ...]


@pytest.fixture(scope="module")
def job(node_id: str, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Somebody else takes some of the second GPU after its device was made."""
    with two_gpus(node_id, tmp_path_factory.mktemp("gpus")) as gpus:
        sizes = {"workers_per_device": 2, "gpu_memory_utilization": 0.5}
        patience = {"max_restarts": 100, "idle_exit_s": 600.0}  # no device leaves while models are loaded
        settings = gpus.settings(model=str(folder), devices="cuda", **sizes, **patience)
        made, world = raced(gpus, settings), World(node_id, itertools.count(3_000))
        holder = world.started(GpuHolder, num_cpus=0, env=gpus.env)
        ray.get(holder.take.remote(UUIDS[1], TAKEN_BYTES), timeout=TIMEOUT_S)
        with open_cluster(settings, worker_env=gpus.env) as cluster:
            yield Job(gpus, settings, cluster, made)
        world.close()


def raced(gpus: GpuWorld, settings: Settings) -> tuple[tuple[str, int], ...]:
    """Which device each of the creators got, all at once."""
    together = threading.Barrier(CREATORS * len(UUIDS))

    def create(creator: int) -> tuple[str, int]:
        together.wait(TIMEOUT_S)
        device = gpus.device(UUIDS[creator % len(UUIDS)], settings)
        return device.name, device.address.pid

    with ThreadPoolExecutor(CREATORS * len(UUIDS)) as creators:
        return tuple(creators.map(create, range(CREATORS * len(UUIDS))))


def test_eight_creators_of_each_gpu_get_one_device_and_the_workers_sit_at_these_two(job: Job) -> None:
    assert sorted(name for name, _ in set(job.made)) == list(UUIDS)
    assert sorted(seat.device for seat in job.cluster.seats) == sorted(2 * UUIDS)
    for name, pid in set(job.made):
        device = job.gpus.device(name, job.settings)
        assert device.address.pid == pid
        assert len(audit(device).sessions) == 2


def test_two_workers_that_share_a_gpu_have_it_measured_before_they_begin(job: Job) -> None:
    figures = [audit(job.gpus.device(uuid, job.settings)) for uuid in UUIDS]
    assert [seen.capacity_bytes for seen in figures] == [GPU_BYTES // 2, (GPU_BYTES - TAKEN_BYTES) // 2]
    assert all(seen.peak_committed_bytes >= 64 * 512 for seen in figures)  # a full step's tokens


def test_two_gpus_answer_every_row_once_exactly_and_are_reported_by_number_and_uuid(
    job: Job, tmp_path: Path, wanted: list[str]
) -> None:
    before = job.cluster.device_reports()
    assert answered(job.cluster, tmp_path) == ROUNDS * wanted
    reports = job.cluster.device_reports()
    assert sum(now.requests - then.requests for now, then in zip(reports, before, strict=True)) == LINES
    assert sorted(report.device for report in reports) == [f"cuda:{n} {uuid}" for n, uuid in enumerate(UUIDS)]
    for now, then in zip(reports, before, strict=True):
        assert now.requests > then.requests
        assert now.peak_live_bytes <= now.peak_committed_bytes
        assert now.driver_calls > 0


def test_a_worker_killed_in_the_job_comes_back_to_its_gpu_and_its_rows_are_answered_once(
    job: Job, tmp_path: Path, wanted: list[str]
) -> None:
    victim = job.cluster.seats[0]
    pid, device, restarts, requests = victim.pid, victim.device, victim.restarts, victim.requests
    killed: list[int] = []

    def kill_at_its_first_answer(_: Progress) -> None:
        if victim.requests > requests and not killed:
            killed.append(pid)
            kill_and_wait(pid)

    assert answered(job.cluster, tmp_path, kill_at_its_first_answer) == ROUNDS * wanted
    assert killed == [pid]
    while not victim.is_ready:
        job.cluster.wait(1.0)
    assert (victim.restarts, victim.device) == (restarts + 1, device)
    figures = audit(job.gpus.device(device, job.settings))
    assert len(figures.sessions) == 2
