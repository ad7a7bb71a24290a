"""One Ray cluster for the session; every test has devices of its own, and teardown kills them by name.

A worker with a model costs 5 seconds of CPU and more, a device 1: one job is shared by the tests that only look at it.
Where several processes run the tests, `tests/scheduling.py` says how many of these clusters there are.
"""

from __future__ import annotations

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # they are read when Ray is imported, and when it starts
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_worker_niceness"] = "5"  # noqa: SIM112 - with Ray's 15 a worker starves beside tests that compute

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from actors.cluster import open_cluster
from actors.owners import NAMESPACE
from actors.workers import RayWorkers
from kvcluster.config import Settings
from kvcluster.testing.models import make_model
from tests.actors.answers import generated_texts
from tests.actors.survivor import Survivor
from tests.actors.world import World

ROOT = Path(__file__).parents[2]
HEAD = {
    "num_cpus": 8,
    "num_gpus": 2,  # of a stand-in: see test_cuda_devices
    "include_dashboard": False,
    "include_log_monitor": False,  # it looks through the logs of hundreds of processes: 4 % of these tests' CPU
    "object_store_memory": 100 * 2**20,
    "_system_config": {"timeout_ms_task_wait_for_death_info": 50},
}


@pytest.fixture(scope="session")
def node_id() -> Iterator[str]:
    """The session's cluster, by its one node."""
    os.environ["PYTHONPATH"] = str(ROOT)  # for its processes, which import these tests' classes
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    yield ray.get_runtime_context().get_node_id()
    ray.shutdown()
    cluster.shutdown()
    del os.environ["PYTHONPATH"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Behind what shuffles them: what ends the endpoint of its module comes after all that ask it."""
    for last in [item for item in items if "ending_site" in getattr(item, "fixturenames", ())]:
        items.remove(last)
        places = [place for place, item in enumerate(items) if item.path == last.path]
        items.insert(places[-1] + 1 if places else len(items), last)


_numbers = itertools.count(10)


@pytest.fixture
def world(node_id: str) -> Iterator[World]:
    world = World(node_id, _numbers)
    yield world
    world.close()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, whose token takes 512 bytes."""
    return make_model(tmp_path_factory.mktemp("actors") / "llama", "llama")


@pytest.fixture(scope="session")
def survivor(node_id: str, folder: Path) -> Iterator[Any]:
    """A request actor's model and loop, loaded once for all tests."""
    actor = ray.remote(num_cpus=1)(Survivor).remote(str(folder))
    yield actor
    ray.kill(actor)


@pytest.fixture(scope="session")
def pair(node_id: str, folder: Path) -> Iterator[tuple[RayWorkers, Settings]]:
    """A job with two devices and one worker at each: see `cluster`."""
    world = World(node_id, itertools.count(1_000))
    settings = world.settings(model=str(folder), devices=2, max_restarts=100)
    with open_cluster(settings) as cluster:
        yield cluster, settings
    world.close()


@pytest.fixture
def cluster(pair: tuple[RayWorkers, Settings]) -> RayWorkers:
    """The workers of `pair`: all are there, whatever the test before did to them."""
    workers, _ = pair
    while not all(seat.is_ready for seat in workers.seats):
        workers.wait(1.0)
    return workers


@pytest.fixture(scope="session")
def wanted(folder: Path) -> list[str]:
    """What transformers' own generate() says to each of `PROMPTS`."""
    return generated_texts(folder)
