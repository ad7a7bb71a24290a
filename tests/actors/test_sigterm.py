"""SIGTERM to a worker: its loop ends at a step boundary, and its memory goes back before its process ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import ray
from ray.exceptions import RayActorError

from actors.causes import cause_of
from actors.request import RequestActor
from actors.spec import WorkerSpec
from kvcluster.services.completion import CompletionRequest
from kvcluster.units import MIB
from tests.actors.answers import PROMPTS
from tests.actors.world import TIMEOUT_S, World, audit, eventually, has_ended

MANY = 1_500  # tokens, so that it is not done when the signal comes


def test_a_worker_that_is_told_to_end_leaves_what_it_computed_to_others(world: World, folder: Path) -> None:
    settings = world.settings(model=str(folder), device_memory=8 * MIB)
    device = world.device(settings)
    worker = world.started(
        RequestActor, WorkerSpec(str(folder), settings, device.name, world.node_id), max_concurrency=4
    )
    opened = ray.get(worker.open.remote(), timeout=TIMEOUT_S)
    long = CompletionRequest(PROMPTS[0], max_tokens=MANY, ignore_eos=True)
    worker.submit.remote([(1, long)])
    eventually(lambda: audit(device).running_requests == 1, "it computes")
    assert audit(device).listed_prefixes == 0
    os.kill(opened.pid, signal.SIGTERM)
    assert has_ended(opened.pid, TIMEOUT_S)
    figures = eventually(lambda: audit(device) if not audit(device).sessions else None, "its session is over")
    assert figures.listed_prefixes == 1  # which nobody lists for one that was killed
    assert figures.free_bytes + figures.retained_bytes == figures.capacity_bytes
    with pytest.raises(RayActorError) as raised:
        ray.get(worker.standing.remote(), timeout=TIMEOUT_S)
    assert cause_of(raised.value) == "it was told to end (SIGTERM)"
