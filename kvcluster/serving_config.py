"""Every setting of an endpoint: those that it shares with a batch job (`kvcluster.config`), and its own.

They are `args` in ray_config.yaml, side by side. Some defaults are not those of a job, because somebody waits for each
answer: a request that the device refuses goes to host pages, or on a GPU is refused; only so many wait as can run; and
nobody goes on with what a dead replica computed. Where the endpoint listens stands in `http_options`, which is Serve's.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr, model_validator

from kvcluster.config import Backend, Count, Seconds, Settings, Size, settings_from
from kvcluster.services.completion import MOST_CHOICES
from kvcluster.units import parse_bytes

GATEWAY = "Gateway"  # the deployment that speaks HTTP; each model has one of its own
API_KEY_VARIABLE = "KVCLUSTER_API_KEY"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}", re.ASCII)
_ONE_OR_MANY_RULE = "model is for one model and models for several: leave one of them out"


def _served_name(name: str) -> str:
    if not _NAME.fullmatch(name) or name == GATEWAY:
        raise ValueError(
            f"must name each model by what clients call it: up to 100 of A-Z a-z 0-9 . _ : / -, and not {GATEWAY}"
        )
    return name


def _last_part(path: str) -> str:
    """What a model is called whose path alone is known."""
    return re.sub(r"[^\w.:-]|^[^A-Za-z0-9]", "-", PurePath(path).name, flags=re.ASCII).lstrip("-")[:100] or "model"


def _key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("must be printable ASCII without spaces, as an HTTP header carries it")
    return key


ServedName = Annotated[str, AfterValidator(_served_name)]
ModelPath = Annotated[str, Field(min_length=1)]
ApiKey = Annotated[SecretStr, AfterValidator(_key)]


class ServingSettings(Settings):
    """Validated settings of an endpoint. `max_body` is text here and bytes in the property of nearly the same name."""

    models: dict[ServedName, ModelPath] = Field(default_factory=dict)  # by the name that clients use; or `model` alone
    api_key: ApiKey | None = None  # None: whoever reaches the endpoint is answered
    max_body: Size = "8MiB"  # of one request
    max_prompt_tokens: Count | None = None  # of one prompt; None: only the model's context limits it
    max_streams: Count = 512  # requests under way together, of one gateway
    max_choices: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 64  # of one request: its prompts, n texts each

    drain_s: Seconds = 30.0  # for requests under way when the endpoint, or a replica, is to end
    successor_grace_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0

    @model_validator(mode="before")
    @classmethod
    def _for_an_endpoint(cls, values: dict[str, Any]) -> dict[str, Any]:
        models = values.get("models")
        if models and values.get("model") is not None:
            raise ValueError(_ONE_OR_MANY_RULE)
        if models:
            first = next(iter(models.values())) if isinstance(models, dict) else None
            values = values | {"model": first if isinstance(first, str) else str(first)}  # `models` itself is refused
        if values.get("fallback") is None:
            is_gpu = str(values.get("devices")).startswith(Backend.CUDA)
            values = values | {"fallback": "refuse" if is_gpu else "host"}
        if values.get("max_num_waiting") is None:
            running = values.get("max_num_seqs", Settings.model_fields["max_num_seqs"].default)
            values = values | {"max_num_waiting": running}
        return values

    @model_validator(mode="after")
    def _one_deployment_each(self) -> ServingSettings:
        if len(self.deployments) < len(self.served):
            raise ValueError("models has two names that differ only in / and _: they would be one deployment's")
        return self

    @property
    def served(self) -> dict[str, str]:
        """Each model, by the name that clients use: of a single one the last part of its path."""
        return self.models or {_last_part(self.model): self.model}

    @property
    def deployments(self) -> dict[str, str]:
        """The served name of each deployment of a model."""
        return {served.replace("/", "_"): served for served in self.served}

    @property
    def max_body_bytes(self) -> int:
        return parse_bytes(self.max_body)

    def of(self, served: str) -> Settings:
        """What the model of this name shares with a worker of a job."""
        shared = self.model_dump(include=set(Settings.model_fields))
        return settings_from({**shared, "model": self.served[served]})

    def threads_of(self, workers: int) -> int:
        """Of each of so many replicas of one model: as set, or this node's cores divided between those of all."""
        return super().threads_of(workers * len(self.served))


def key_from_environment() -> dict[str, str]:
    """`api_key` of the settings, where this process's environment has one."""
    key = os.environ.get(API_KEY_VARIABLE)
    return {"api_key": key} if key else {}


OWN_NAMES = frozenset(ServingSettings.model_fields) - frozenset(Settings.model_fields)  # a job has no use for them
