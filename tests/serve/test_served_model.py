"""What a replica says of its loop. The replica itself needs Ray: `tests.actors.test_serving`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.config import DeploymentConfig

from actors.served_model import most_replicas, why_silent

LEASE_S = 30.0


@pytest.mark.parametrize(
    ("failure", "silent_s", "why"),
    [
        (None, 0.0, None),
        (None, 30.0, None),
        (None, 31.0, "the loop was not heard of for 31 s"),
        (ValueError("no memory"), 0.0, "the loop failed: no memory"),
    ],
)
def test_a_loop_that_hangs_or_failed_is_of_no_use_and_says_why(
    failure: BaseException | None, silent_s: float, why: str | None
) -> None:
    assert why_silent(failure, silent_s, lease_s=LEASE_S) == why


@pytest.mark.parametrize(
    ("own", "replicas"),
    [
        ({"num_replicas": 3}, 3),
        ({"num_replicas": 3, "autoscaling_config": {"min_replicas": 1, "max_replicas": 5}}, 5),
    ],
)
def test_a_deployment_has_as_many_replicas_as_serve_may_start_of_it(own: dict[str, Any], replicas: int) -> None:
    config = DeploymentConfig(**own)
    context = SimpleNamespace(_deployment_config=config, world_size=config.num_replicas)  # as Serve makes it
    assert most_replicas(context) == replicas
