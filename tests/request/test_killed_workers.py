"""Real workers, killed by SIGKILL at every place of a step: their successors say the same and compute nothing twice."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kvcluster.failpoints import Failpoint
from kvcluster.services.completion import CompletionRequest
from kvcluster.testing.models import make_model
from tests.nursery import Nursery
from tests.piped import Piped
from tests.request.asking import asked, prompt
from tests.request.worker_child import MODEL_FOLDER
from tests.services.processes import Host

REQUESTS = {
    key: asked(prompt(key, 9 + 7 * key), temperature=0.8 * (key % 2), seed=key, n=1 + key // 3) for key in range(4)
}
SETTINGS = {"prefill_chunk_tokens": 8}
STEP = (Failpoint.STEP_PLANNED, Failpoint.STEP_COMPUTED, Failpoint.STEP_SAMPLED, Failpoint.STEP_NOTED)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    opened = Nursery("tests.request.worker_child")
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=["llama", "gemma3"], ids=["no rings", "rings"])
def family_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("killed") / request.param, request.param)


@pytest.fixture
def host(nursery: Nursery, family_folder: Path) -> Iterator[Host]:
    opened = Host(4096, nursery=nursery, env={MODEL_FOLDER: str(family_folder)}, grace_s=60.0)
    yield opened
    opened.close()


Expected = Callable[[Host], dict[str, list[str]]]


@pytest.fixture(scope="module")
def expected(family_folder: Path) -> Expected:
    """What one says who is not disturbed."""
    said: dict[str, list[str]] = {}

    def texts(host: Host) -> dict[str, list[str]]:
        said.update(said or run(host.child())["texts"])
        return said

    return texts


def run(worker: Piped, *died_with: str) -> Any:
    """Its answers; None where it was killed."""
    requests: dict[str, CompletionRequest] = {
        str(key): replace(request, died_with=died_with) for key, request in REQUESTS.items()
    }
    return worker.ask("run", {key: asdict(request) for key, request in requests.items()}, SETTINGS)


def kill(host: Host, failpoints: str, *died_with: str) -> str:
    """A worker that is killed on its way; the name of its session, once the kernel has said that it is dead."""
    worker = host.child(failpoints=failpoints)
    session: str = worker.ask("name")
    assert run(worker, *died_with) is None
    assert worker.died_of() == signal.SIGKILL
    host.eventually(lambda: session not in host.service.statistics().sessions, "its pidfd has fired")
    return session


@pytest.mark.parametrize(("point", "passage"), list(zip(STEP, (2, 4, 6, 9), strict=True)))
def test_a_worker_killed_at_any_place_of_a_step_is_succeeded_without_computing_again(
    host: Host, expected: Expected, point: Failpoint, passage: int
) -> None:
    texts = expected(host)
    session = kill(host, f"{point}=kill@{passage}")
    done = run(host.child(), session)
    assert done["texts"] == texts
    assert done["recomputed"] == 0
    assert done["adoptions"] > 0
    assert host.granules("request/") == 0


@pytest.mark.parametrize("family_folder", ["llama"], indirect=True, ids=["no rings"])
@pytest.mark.parametrize("point", [Failpoint.CLIENT_REDEEMED, Failpoint.CLIENT_ADOPTED, Failpoint.STEP_PLANNED])
def test_a_successor_that_is_killed_before_it_computes_is_succeeded_too(
    host: Host, expected: Expected, point: Failpoint
) -> None:
    texts = expected(host)
    first = kill(host, f"{Failpoint.STEP_NOTED}=kill@5")
    second = kill(host, f"{point}=kill", first)
    done = run(host.child(), second, first)
    assert done["texts"] == texts
    assert done["recomputed"] == 0
