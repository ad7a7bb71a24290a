"""The keys of a config file that are written down are those of Serve's own schema."""

from __future__ import annotations

import pytest
from pydantic import BaseModel
from ray.serve import schema
from ray.serve.config import AutoscalingConfig, RequestRouterConfig

from kvcluster import serve_keys


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (serve_keys.DOCUMENT, schema.ServeDeploySchema),
        (serve_keys.HTTP_OPTIONS, schema.HTTPOptionsSchema),
        (serve_keys.APPLICATION, schema.ServeApplicationSchema),
        (serve_keys.DEPLOYMENT, schema.DeploymentSchema),
        (serve_keys.ACTOR_OPTIONS, schema.RayActorOptionsSchema),
        (serve_keys.GRPC_OPTIONS, schema.gRPCOptionsSchema),
        (serve_keys.AUTOSCALING, AutoscalingConfig),
        (serve_keys.REQUEST_ROUTER, RequestRouterConfig),
    ],
)
def test_the_keys_are_those_of_serve_s_schema(keys: tuple[str, ...], kind: type[BaseModel]) -> None:
    assert set(keys) == set(kind.model_fields)
