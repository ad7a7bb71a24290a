"""For users' own fault tests: the fixture `kv_cluster`, devices and workers on simulated nodes, with a tiny model.

    @pytest.mark.kv_cluster(devices=2, nodes=1)
    def test_a_worker_that_dies_costs_no_answer(kv_cluster):
        undisturbed = kv_cluster.run("A list is", "A tuple is")
        kv_cluster.kill_at("client.commit.mapped")
        assert kv_cluster.run("A list is", "A tuple is").texts == undisturbed.texts
        kv_cluster.assert_nothing_lost()

What the fixture's value can do is `kvcluster.testing.deployment.Deployment`; the places where something can be killed
are listed by `kvcluster failpoints`; examples/test_my_deployment.py is a whole test. A cluster takes some 15 seconds to
start: use it for what only processes show.

pytest loads this module wherever kvcluster is installed, so it imports neither Ray nor torch, nor anything of ours,
before a test asks for the fixture. `-p no:kvcluster` keeps it out.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kvcluster.testing.deployment import Deployment

MARKER = "kv_cluster(devices=1, nodes=1, model=FOLDER_OR_NAME, **settings): what the fixture kv_cluster is made of"
# Read when Ray is imported, and when it starts: with its own niceness of 15 a worker starves beside tests that compute.
_RAY = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "5"}
_numbers = itertools.count(100)


def pytest_configure(config: pytest.Config) -> None:
    """The marker is known, also where unknown ones are refused."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def kv_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Llama with random weights, made in a second and equal every time."""
    from kvcluster.testing.models import make_model

    return make_model(tmp_path_factory.mktemp("kv-model") / "llama", "llama")


@pytest.fixture
def kv_cluster(request: pytest.FixtureRequest, kv_model: Path, tmp_path: Path) -> Iterator[Deployment]:
    """Devices and workers of this test alone: a `kvcluster.testing.deployment.Deployment`.

    The marker `kv_cluster` says how many `devices` there are a node, on how many simulated `nodes`, which `model` the
    workers load, by its folder or name, and any other setting of kvcluster. What the test did is ended after it.

    Raises:
        RuntimeError: Ray runs in this process already: a fixture or another test started it.
        ConfigError: a setting of the marker is wrong.
    """
    marker = request.node.get_closest_marker("kv_cluster")
    chosen = {"model": kv_model, **(marker.kwargs if marker else {})}
    with open_deployment(tmp_path, **chosen) as deployment:
        yield deployment


@contextmanager
def open_deployment(
    scratch: Path, model: Path | str, *, devices: int = 1, nodes: int = 1, cpus: int = 8, **settings: Any
) -> Iterator[Deployment]:
    """The same without pytest: `devices` a node on so many simulated `nodes`. `scratch` is an empty folder.

    Raises:
        RuntimeError, ConfigError: as `kv_cluster`. Nothing is left.
        ModelNotFound: `model` is neither a model's folder nor a name that is known. Nothing is left.
    """
    with simulated(nodes, cpus=cpus) as (site, mark):
        from kvcluster.engine.pretrained import model_folder
        from kvcluster.testing.deployment import Deployment, deployment_settings

        more = {"nodes": nodes} if nodes > 1 else {}
        chosen = deployment_settings(model_folder(model), devices, next(_numbers), **more, **settings)
        deployment = Deployment(chosen, site, scratch, mark=mark)
        try:
            yield deployment
        finally:
            deployment.close()


@contextmanager
def simulated(nodes: int, *, cpus: int) -> Iterator[tuple[Any, str]]:
    """Simulated nodes, and the mark in the environment of all their processes. Raises RuntimeError as `kv_cluster`."""
    from kvcluster.testing.processes import MARK

    mark = uuid.uuid4().hex
    with ExitStack() as opened:
        for name, value in {**_RAY, MARK: mark}.items():
            opened.callback(_put_back, name, os.environ.get(name))
            os.environ[name] = value
        from actors.simulated import simulated_nodes  # here, because it imports Ray

        yield opened.enter_context(simulated_nodes(nodes, cpus=cpus)), mark


def _put_back(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
