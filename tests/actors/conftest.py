"""One Ray cluster for the session; every test has devices of its own, and teardown kills them by name."""

from __future__ import annotations

import os

os.environ["RAY_AUTH_MODE"] = "disabled"  # both are read when Ray is imported
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.owners import NAMESPACE
from kvcluster.testing.models import make_model
from tests.actors.answers import generated_texts
from tests.actors.survivor import Survivor
from tests.actors.world import World

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs them all, where several run the tests: they share one cluster."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def node_id() -> Iterator[str]:
    """The session's cluster, by its one node."""
    os.environ["PYTHONPATH"] = str(ROOT)  # for its processes, which import these tests' classes
    ray.init(
        address="local",
        namespace=NAMESPACE,
        num_cpus=6,
        num_gpus=2,  # of a stand-in: see test_cuda_devices
        include_dashboard=False,
        object_store_memory=100 * 2**20,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"timeout_ms_task_wait_for_death_info": 50},
    )
    yield ray.get_runtime_context().get_node_id()
    ray.shutdown()
    del os.environ["PYTHONPATH"]


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
def wanted(folder: Path) -> list[str]:
    """What transformers' own generate() says to each of `PROMPTS`."""
    return generated_texts(folder)
